"""Advice on findings: the table of remedies, and the choice from it."""
