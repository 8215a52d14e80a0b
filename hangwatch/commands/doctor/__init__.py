"""``hangwatch doctor``: what of this machine, and of a launcher's line, would make a job hang."""
