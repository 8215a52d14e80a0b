"""Checks for the causes of hangs at the start of a job: small, with explicit inputs.

Each takes its evidence (an environment, a root of /proc, a resolver) and returns
findings. Nothing here imports torch or changes anything.
"""
