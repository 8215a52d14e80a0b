"""Reads the settings, from the command line or HANGWATCH_* variables."""
