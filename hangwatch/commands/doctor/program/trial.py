"""The program that ``hangwatch doctor -- LAUNCHER...`` starts in the place of the user's script.

The job's interpreter may be that of an environment without hangwatch, so the package that
this file belongs to is loaded from its place.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def load_package() -> None:
    """Make ``hangwatch`` importable, unless the agent has done so."""
    if "hangwatch" in sys.modules:
        return
    root = Path(__file__).resolve().parents[3]
    spec = spec_from_file_location(
        "hangwatch", root / "__init__.py", submodule_search_locations=[str(root)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {root}")
    module = module_from_spec(spec)
    sys.modules["hangwatch"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    load_package()
    import_module("hangwatch.commands.doctor.rank").main(sys.argv[1:])
