"""The facts of a job, indexed: the calls that ranks made, their waits and their ends."""
