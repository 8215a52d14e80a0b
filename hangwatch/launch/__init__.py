"""Runs COMMAND under watch, or the watchdog of ranks that were started without hangwatch."""
