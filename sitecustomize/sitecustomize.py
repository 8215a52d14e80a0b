"""Found first on PYTHONPATH below ``python -m hangwatch``: arms hangwatch, then steps aside.

On a node where nobody has started that, and PYTHONPATH has come from another one or
from a template (``hangwatch path``), the ranks see to it themselves (agent/unwrapped.py).

Every Python process of the job runs this, so it imports next to nothing, and
whatever sitecustomize was there before runs as if this one did not exist. Other
injectors chain in the same way and may lead back here: each place on sys.path
runs once. Syntax of Python 3.8: an interpreter too old for hangwatch must not
complain.
"""

import importlib
import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader

_STATE = "_hangwatch_sitecustomize"


def _arm(here: str, directory: str) -> None:
    """Wait for the import of torch.distributed; hangwatch itself is imported only then."""
    try:
        parent = os.path.dirname(here)
        installed = os.path.isdir(parent + "/agent")  # else a source tree: side by side
        file = parent + ("" if installed else "/hangwatch") + "/agent/post_import.py"
        module = type(sys)("_hangwatch_post_import")
        module.__file__ = file
        SourceFileLoader(module.__name__, file).exec_module(module)
        module.install(directory)
    except (Exception, SystemExit) as error:  # SystemExit here would end the interpreter
        if not directory:
            return
        with open(f"{directory}/agent-{os.getpid()}.err", "a", encoding="utf-8") as record:
            record.write(f"hangwatch could not be armed: {type(error).__name__}: {error}\n")


def _chain(here: str) -> None:
    """Run the next sitecustomize; what it raises is its own affair, as without us."""
    done = sys.modules.setdefault(_STATE, type(sys)(_STATE)).__dict__.setdefault("done", set())
    done.add(here)
    places = [os.path.realpath(entry) for entry in sys.path]
    first = places.index(here) + 1 if here in places else 0
    for entry, place in list(zip(sys.path, places))[first:]:  # noqa: B905 (strict is of 3.10)
        spec = None if place in done else PathFinder.find_spec("sitecustomize", [entry])
        if spec is not None and spec.loader is not None and spec.origin is not None:
            done.add(place)
            # What importlib.util has, which is too slow to import here.
            module = importlib._bootstrap.module_from_spec(spec)  # noqa: SLF001
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)
            return


_HERE = os.path.dirname(os.path.realpath(__file__))
_DIR = os.environ.get("HANGWATCH_DIR")
if _DIR != "" and os.environ.get("HANGWATCH", "1") != "0":
    # That of a supervisor on another node is no directory here.
    _RUN = _DIR if _DIR and os.environ.get("HANGWATCH_SUPERVISOR_PID") else ""
    try:
        _arm(_HERE, _RUN if _RUN and os.path.isdir(_RUN) else "")
    except OSError:  # nowhere to say so: the supervisor notices that no rank checks in
        sys.modules.pop("_hangwatch_post_import", None)
_chain(_HERE)
