"""``hangwatch report`` and ``analyze``: what was stored, printed or judged anew."""
