"""Reads the user's source: values, loops, conditions, handlers."""
