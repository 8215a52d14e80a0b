"""Imported by hangwatch.pth, at the start of each Python with HANGWATCH=1 in its environment.

It does what sitecustomize does, and needs no PYTHONPATH.
"""

from __future__ import annotations

import os

from hangwatch.agent.inject.post_import import install

_DIR = os.environ.get("HANGWATCH_DIR")
if _DIR != "":
    # That of a supervisor on another node is no directory here.
    _HERE = _DIR and os.environ.get("HANGWATCH_SUPERVISOR_PID") and os.path.isdir(_DIR)
    install(_DIR if _DIR and _HERE else "")
