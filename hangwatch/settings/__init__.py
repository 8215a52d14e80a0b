"""What the user chose, on the command line or in HANGWATCH_* variables."""
