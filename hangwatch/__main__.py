"""``python -m hangwatch``: the same as the console script ``hangwatch``."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory: a program's selectors.py there is not ours
    from hangwatch.cli import main

    sys.exit(main())
