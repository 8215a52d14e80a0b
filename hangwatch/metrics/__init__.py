"""Serves Prometheus metrics of one node's ranks."""
