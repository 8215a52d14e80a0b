"""``python -m hangwatch``: the same as the console script ``hangwatch``."""

from __future__ import annotations

import sys

from hangwatch.cli import main

if __name__ == "__main__":
    sys.exit(main())
