"""Starts COMMAND under watch, or the watch beside ranks that were started without it."""
