"""The black box: reads a rank's shared-memory page, whichever recorder wrote it."""
