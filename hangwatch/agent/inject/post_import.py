"""Calls the agent when torch.distributed.distributed_c10d has been imported.

sitecustomize loads this file by its path, and start.py by its name, so that a process which
never imports torch pays for nothing else of hangwatch. Standard library only, and syntax of
Python 3.8: here it is found out whether the job's interpreter is too old.
"""

from __future__ import annotations

import _thread
import importlib
import os
import sys

TYPE_CHECKING = False  # typing is a slow import
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

TARGET = "torch.distributed.distributed_c10d"
OLDEST = (3, 11)
_MESSAGE_CHARS = 1000
_FRAMES = 20


def install(directory: str) -> None:
    """Attach the agent to torch.distributed, now or as soon as it is imported.

    directory is that of the run ($HANGWATCH_DIR), empty where there is none on this
    node. Calling it again does nothing.
    """
    if any(getattr(finder, "of_hangwatch", False) for finder in sys.meta_path):
        return
    finder = Finder(lambda module: attach(module, directory))
    module = sys.modules.get(TARGET)
    if module is None or getattr(module.__spec__, "_initializing", False):
        sys.meta_path.insert(0, finder)
    else:
        finder.hook(module)


def attach(c10d: ModuleType, directory: str) -> None:
    """Import the agent from the directory of this file and hand it the module.

    Raises nothing of ours: what goes wrong is written to ``agent-<pid>.err`` in the
    directory of the run.
    """
    try:
        load_package()
        environment = importlib.import_module("hangwatch.agent.environment")
        directory = directory or environment.wrapped_in(os.environ)
        importlib.import_module("hangwatch.agent.inject.hooks").install(c10d, directory)
    except BaseException as error:
        # Not ours: the program gets it, and goes on unwatched where half is done.
        record_failure(directory, error)
        if not isinstance(error, Exception) or _is_foreign(error):
            raise


def load_package() -> None:
    """Make ``hangwatch`` importable: the one that this file belongs to.

    The job's interpreter may be that of another virtual environment, where
    hangwatch is not installed or is of another version than the watchdog. Its
    site-packages must not be opened to the job, so only the package is loaded.
    """
    if "hangwatch" in sys.modules:
        return
    if sys.version_info < OLDEST:
        raise ImportError(
            "this is Python {}.{}, and hangwatch needs {}.{} or later in the job".format(
                *sys.version_info[:2], *OLDEST
            )
        )
    from importlib.util import module_from_spec, spec_from_file_location

    here = os.path.dirname(os.path.realpath(__file__))
    root = os.path.dirname(os.path.dirname(here))
    spec = spec_from_file_location(
        "hangwatch", os.path.join(root, "__init__.py"), submodule_search_locations=[root]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {root}")
    module = module_from_spec(spec)
    sys.modules["hangwatch"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["hangwatch"]
        raise


def record_failure(directory: str, error: BaseException) -> None:
    """Leave word for the watchdog that this process is not recorded; raises nothing of ours.

    Without a directory there is no watchdog that could say it.
    """
    if not directory:
        say_unwatched(error)
        return
    text = f"process {os.getpid()} is not recorded: {type(error).__name__}: {error}\n"
    _append(directory, f"agent-{os.getpid()}.err", text + _where(error))


def keep_fault(directory: str, error: BaseException) -> None:
    """Leave an error that was kept from the job in ``faults-<pid>.log``.

    Raises nothing of ours. Its caller bounds how many there are.
    """
    if not directory:
        return
    text = f"{type(error).__name__}: {error}"[:_MESSAGE_CHARS] + "\n"
    lines = _where(error).splitlines(keepends=True)[-_FRAMES:]
    _append(directory, f"faults-{os.getpid()}.log", text + "".join(lines))


def _append(directory: str, name: str, text: str) -> None:
    """Append to a file in the directory of the run; raises nothing of ours."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        record = os.open(os.path.join(directory, name), flags | os.O_NONBLOCK, 0o600)
        try:
            os.write(record, text.encode("utf-8", "backslashreplace"))
        finally:
            os.close(record)
    except (OSError, ValueError) as another:
        if _is_foreign(another):
            raise


def _is_foreign(error: Exception) -> bool:
    """Return True if a signal handler of the program raised ``error``; see safety.foreign."""
    try:
        foreign = importlib.import_module("hangwatch.safety.foreign")
    except Exception:
        return False  # the package could not even be loaded
    return bool(foreign.is_foreign(error))


def say_unwatched(error: BaseException) -> None:
    """Say on standard error, once on a node, that its ranks are not watched.

    Raises nothing of ours.
    """
    if "RANK" not in os.environ or os.environ.get("LOCAL_RANK", "0") != "0":
        return
    try:
        sys.stderr.write(f"hangwatch: the ranks of this node run unwatched: {error}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError, RuntimeError) as another:
        # The last of them where it is being written to already.
        if _is_foreign(another):
            raise


def _where(error: BaseException) -> str:
    """Return the lines of the traceback, innermost last, without importing traceback."""
    lines = []
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        lines.append(f"  {code.co_filename}:{step.tb_lineno} {code.co_name}\n")
        step = step.tb_next
    return "".join(lines)


class Finder:
    """A meta path finder that lets the others find, and calls hook after the import.

    No lock is held while the hook runs except the import system's own for that
    one module. The finder leaves sys.meta_path when the import has succeeded.
    """

    of_hangwatch = True

    def __init__(self, hook: Callable[[ModuleType], None]) -> None:
        self.hook = hook
        self._looking: set[int] = set()
        """Threads that are in find_spec: other hooks ask all finders, as we do, and so us."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the target's spec with our loader around its own; None for all others."""
        thread = _thread.get_ident()
        if name != TARGET or thread in self._looking:
            return None
        try:
            self._looking.add(thread)
            spec = self._ask_others(name, path, target)
        finally:
            self._looking.discard(thread)
        loader: Any = None if spec is None else spec.loader
        if spec is not None and hasattr(loader, "exec_module"):
            hooked: Any = HookedLoader(loader, self)
            spec.loader = hooked
        return spec

    def _ask_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                return spec
        return None


class HookedLoader:
    """Loads by the real loader, puts it back first, and then calls the hook."""

    def __init__(self, loader: Loader, finder: Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the real loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module as if we were not there; then, and only then, hook it."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
            self._finder.hook(module)
