"""Loads ``hangwatch._native``, or explains why this interpreter cannot."""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # typing is a slow import, and this runs inside training processes
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def _config(name: str) -> object:
    """Return a variable of the interpreter's build; those before 3.13 all have the GIL."""
    if not hasattr(sys, "_is_gil_enabled"):
        return None
    import sysconfig  # noqa: PLC0415 (it is slow)

    return sysconfig.get_config_var(name)


def load(file: str = "") -> ModuleType:
    """Load the module by its name, else from the file where one is named.

    Raises ImportError or OSError with the reason. An import by path asks for no tag of
    the interpreter, so that is asked for here, before anything is loaded.
    """
    loaded = sys.modules.get("hangwatch._native")
    if loaded is not None:
        return loaded
    why = reason_against()
    if why:
        raise ImportError(why)
    try:
        return importlib.import_module("hangwatch._native")
    except ImportError:
        if not file:
            raise
    from importlib.util import module_from_spec, spec_from_file_location  # noqa: PLC0415 (as above)

    spec = spec_from_file_location("hangwatch._native", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no extension module")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["hangwatch._native"] = module
    return module


def reason_against(
    abiflags: str = getattr(sys, "abiflags", ""),
    config: Callable[[str], object] = _config,
    implementation: str = sys.implementation.name,
) -> str:
    """Return why this interpreter must not load the module, or empty.

    It was built for the stable ABI of CPython with the GIL. In a free-threaded one
    (PEP 703) the objects are laid out otherwise, whether its GIL is on or not.
    """
    if "t" in abiflags or config("Py_GIL_DISABLED") in (1, "1"):
        return "the native module needs a Python with the GIL, and this one is free-threaded"
    if implementation != "cpython":
        return f"the native module needs CPython, and this is {implementation}"
    return ""
