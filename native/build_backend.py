"""scikit-build-core, made to install the package where the native module cannot be built.

CMakeLists.txt takes care of a missing compiler; this takes care of a missing or
broken CMake, and of a compiler that fails. hangwatch then records from Python,
and says so where it runs. With HANGWATCH_NATIVE_REQUIRED=1 the build fails instead.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from scikit_build_core import build as core
from scikit_build_core.build import build_sdist, get_requires_for_build_sdist
from scikit_build_core.errors import CMakeNotFoundError, NinjaNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = dict[str, Any] | None

get_requires_for_build_wheel = core.get_requires_for_build_wheel
get_requires_for_build_editable = core.get_requires_for_build_editable


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """As PEP 517 has it. The metadata are the same with and without the module."""
    return core.prepare_metadata_for_build_wheel(
        metadata_directory, _without_native(config_settings)
    )


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """As PEP 660 has it."""
    return core.prepare_metadata_for_build_editable(
        metadata_directory, _without_native(config_settings)
    )


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """As PEP 517 has it."""
    del metadata_directory
    return _build(core.build_wheel, wheel_directory, config_settings)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """As PEP 660 has it."""
    del metadata_directory
    return _build(core.build_editable, wheel_directory, config_settings)


def _build(build: Callable[[str, Settings], str], directory: str, settings: Settings) -> str:
    # Without the prepared metadata: their tag is not that of a native wheel.
    try:
        return build(directory, settings)
    except (CMakeNotFoundError, NinjaNotFoundError, SystemExit) as error:
        if os.environ.get("HANGWATCH_NATIVE_REQUIRED") == "1":
            raise
        why = "see above" if isinstance(error, SystemExit) else str(error)
        print(
            f"hangwatch is installed without its native module, which cannot be built: {why}",
            file=sys.stderr,
        )
        return build(directory, _without_native(settings))


def _without_native(settings: Settings) -> dict[str, Any]:
    return {**(settings or {}), "wheel.cmake": "false", "wheel.py-api": "py3"}
