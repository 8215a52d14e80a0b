"""hangwatch names the rank that hung a distributed PyTorch job.

Importing it does nothing; ``python -m hangwatch COMMAND`` watches a job.
"""

__version__ = "0.1.0"
