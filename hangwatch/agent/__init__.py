"""The part that lives inside the training process: standard library and _native only.

Below ``python -m hangwatch`` it arms itself in every Python process. Where
sitecustomize does not run (``python -I``, ``-E`` or ``-S``), user code can call
:func:`arm`.
"""

from __future__ import annotations

import os
import sys


def arm() -> None:
    """Record this process for hangwatch, from now on or from the import of torch on.

    To be called before init_process_group, best at the top of the program. Does
    nothing where the job is not run by ``python -m hangwatch`` (there is no
    ``HANGWATCH_DIR``), with ``HANGWATCH=0``, and the second time. Never raises.
    """
    directory = os.environ.get("HANGWATCH_DIR")
    if not directory or os.environ.get("HANGWATCH", "1") == "0":
        return
    from hangwatch.agent import environment, post_import

    if "torch" not in sys.modules:
        environment.enable_flight_recorder(os.environ)
    post_import.install(directory)
