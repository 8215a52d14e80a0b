"""The sentences of a verdict."""
