"""Inefficiencies of a job that does not hang. Pure: evidence in, notes out."""
