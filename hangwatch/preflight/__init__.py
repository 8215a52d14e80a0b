"""What makes a job hang at its start, found before it does: small checks with explicit inputs.

Each takes what it looks at (an environment, a root of /proc, a resolver) and returns
findings. Nothing here imports torch or changes anything.
"""
