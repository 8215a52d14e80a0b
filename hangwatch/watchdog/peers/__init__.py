"""What the watchdogs of several nodes tell each other through the job's store."""
