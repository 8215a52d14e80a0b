"""Joins the processes of one run: its directory, its supervisors, the start of its watchdog."""
