"""Found first on PYTHONPATH below ``python -m hangwatch``: arms hangwatch, then steps aside.

On a node where no one has started that, and PYTHONPATH has come from another one or
from a template (``hangwatch path``), the ranks see to it themselves (agent/inject/unwrapped.py).

Every Python process of the job runs this, so it imports next to nothing, and
whatever sitecustomize was there before runs as if this one did not exist. Other
injectors chain in the same way and may lead back here: each directory on sys.path
runs once. Syntax of Python 2.7: tools of a job run in interpreters of any age, which
must not complain. One too old for hangwatch says so only where it is a rank's.
"""

import os
import sys

_STATE = "_hangwatch_sitecustomize"
_TARGET = "torch.distributed.distributed_c10d"
_OLDEST = (3, 11)


class _TooOld(object):
    """Finds nothing on sys.meta_path, and leaves word if a rank imports torch.distributed."""

    of_hangwatch = True

    def __init__(self, directory):
        # type: (str) -> None
        self._directory = directory
        self._said = False

    def find_spec(self, name, path=None, target=None):
        # type: (str, object, object) -> None
        """Answer Python 3.4 and later."""
        if name == _TARGET and "RANK" in os.environ and not self._said:
            self._said = True
            text = "this is Python {}.{}, and hangwatch needs {}.{} or later in the job"
            why = text.format(*(tuple(sys.version_info[:2]) + _OLDEST))
            try:
                if self._directory:
                    who = "process {} is not recorded: ".format(os.getpid())
                    _note(self._directory, who + why)
                elif os.environ.get("LOCAL_RANK", "0") == "0":
                    who = "hangwatch: the ranks of this node run unwatched: "
                    sys.stderr.write(who + why + " (node-unwatched)\n")
            except Exception:  # nowhere to say so
                return

    def find_module(self, name, path=None):
        # type: (str, object) -> None
        """Answer older ones."""
        self.find_spec(name)


def _note(directory, text):
    # type: (str, str) -> None
    """Leave word for the watchdog."""
    with open("{}/agent-{}.err".format(directory, os.getpid()), "a") as record:
        record.write(text + "\n")


def _arm(here, directory):
    # type: (str, str) -> None
    """Wait for the import of torch.distributed; hangwatch itself is imported only then."""
    if any(getattr(finder, "of_hangwatch", False) for finder in sys.meta_path):
        return  # by hangwatch.pth
    if sys.version_info < _OLDEST:
        sys.meta_path.insert(0, _TooOld(directory))
        return
    try:
        from importlib.machinery import SourceFileLoader

        parent = os.path.dirname(here)
        installed = os.path.isdir(parent + "/agent")  # else a source tree: side by side
        file = parent + ("" if installed else "/hangwatch") + "/agent/inject/post_import.py"
        module = type(sys)("_hangwatch_post_import")
        module.__file__ = file
        SourceFileLoader(module.__name__, file).exec_module(module)
        module.install(directory)
    except (Exception, SystemExit) as error:  # SystemExit here would end the interpreter
        if not directory:
            return
        _note(directory, "hangwatch could not be armed: {}: {}".format(type(error).__name__, error))


def _chain(here):
    # type: (str) -> None
    """Run the next sitecustomize; what it raises is its own affair, as without us."""
    done = sys.modules.setdefault(_STATE, type(sys)(_STATE)).__dict__.setdefault("done", set())
    done.add(here)
    directories = [os.path.realpath(entry) for entry in sys.path]
    first = directories.index(here) + 1 if here in directories else 0
    run = _run_next if sys.version_info >= (3, 5) else _run_next_by_imp
    for entry, directory in list(zip(sys.path, directories))[first:]:
        if directory not in done and run(entry, directory, done):
            return


def _run_next(entry, directory, done):
    # type: (str, str, set[str]) -> bool
    """Run the sitecustomize of an entry of sys.path; False if there is none."""
    import importlib
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", [entry])
    if spec is None or spec.loader is None or spec.origin is None:
        return False
    done.add(directory)
    # What importlib.util has, which is too slow to import here.
    module = importlib._bootstrap.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)
    return True


def _run_next_by_imp(entry, directory, done):
    # type: (str, str, set[str]) -> bool
    """Do as _run_next in a Python that has no importlib worth the name."""
    import imp

    try:
        file, path, description = imp.find_module("sitecustomize", [entry])
    except ImportError:
        return False
    done.add(directory)
    try:
        imp.load_module("sitecustomize", file, path, description)  # type: ignore[arg-type]
    finally:
        if file is not None:
            file.close()
    return True


_HERE = os.path.dirname(os.path.realpath(__file__))
_DIR = os.environ.get("HANGWATCH_DIR")
if _DIR != "" and os.environ.get("HANGWATCH", "1") != "0":
    # That of a supervisor on another node is no directory here.
    _RUN = _DIR if _DIR and os.environ.get("HANGWATCH_SUPERVISOR_PID") else ""
    try:
        _arm(_HERE, _RUN if _RUN and os.path.isdir(_RUN) else "")
    except (IOError, OSError):  # nowhere to say so: the supervisor notices that no rank checks in
        sys.modules.pop("_hangwatch_post_import", None)
_chain(_HERE)
