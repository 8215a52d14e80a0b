"""Turns a verdict and its evidence into report.json and terminal text."""
