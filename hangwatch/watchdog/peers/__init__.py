"""The conversation of the watchdogs of several nodes, through the job's store."""
