"""The part that lives inside the training process: standard library and _native only.

Below ``python -m hangwatch`` it arms itself in every Python process. Where neither hangwatch.pth
nor sitecustomize runs (``python -S``; ``-I`` and ``-E`` of a Python that hangwatch is not
installed for), user code can call :func:`arm`.
"""

from __future__ import annotations

import os
import sys


def arm() -> None:
    """Record this process for hangwatch, from now on or from the import of torch on.

    To be called before init_process_group, best at the top of the program. Does
    nothing where the job is not run by ``python -m hangwatch`` and there is no
    ``HANGWATCH=1`` either, with ``HANGWATCH=0``, and the second time. Never raises.
    """
    from hangwatch.agent import environment
    from hangwatch.agent.inject import post_import

    directory = environment.wrapped_in(os.environ)
    wanted = os.environ.get("HANGWATCH", "1" if directory else "0")
    if wanted == "0":
        return
    if "torch" not in sys.modules:
        environment.enable_flight_recorder(os.environ)
    post_import.install(directory)
