"""``hangwatch top``: a live view of the ranks of a run. It only reads."""
