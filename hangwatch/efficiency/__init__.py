"""What a job loses though nothing hangs: stragglers, and inefficient training habits. Pure."""
