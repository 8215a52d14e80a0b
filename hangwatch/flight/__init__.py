"""Reads PyTorch Flight Recorder dumps."""
