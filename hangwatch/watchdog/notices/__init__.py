"""Notices about a running job: start-up problems, stragglers, GPU faults."""
