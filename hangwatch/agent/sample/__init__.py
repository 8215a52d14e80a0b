"""Reads twice a second what no wrapper sees: c10d's counters, stillness, exceptions."""
