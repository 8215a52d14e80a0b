"""Reads a rank's shared-memory page, whichever recorder wrote it."""
