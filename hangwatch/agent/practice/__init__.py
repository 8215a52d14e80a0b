"""Habits of this rank that cost it dear: gathered here, judged by efficiency."""
