"""Keeps secrets, hostile files and faults of our own from doing harm."""
