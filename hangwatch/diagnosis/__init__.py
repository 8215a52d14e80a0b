"""Judges a job: snapshots in, a verdict out. No I/O, no clock, no logging."""
