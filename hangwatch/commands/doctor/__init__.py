"""``hangwatch doctor``: checks a machine, or a launcher's line, for causes of hangs."""
