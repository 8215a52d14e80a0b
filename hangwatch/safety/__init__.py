"""Keeps secrets, hostile files and our own faults from doing harm."""
