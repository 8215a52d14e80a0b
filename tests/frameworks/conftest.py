"""The environment of the frameworks, which ``make test`` builds beside the tests' own."""

from __future__ import annotations

from pathlib import Path

import pytest

_VENV = Path(__file__).parents[2] / ".venv-frameworks"


@pytest.fixture(scope="session")
def framework_python() -> str:
    """The Python that has torch, Lightning, Transformers, Accelerate, DeepSpeed and hangwatch.

    Their commands (torchrun, accelerate, deepspeed, hangwatch) lie beside it.
    """
    python = _VENV / "bin" / "python"
    if not python.exists():
        pytest.fail(f"{_VENV.name} is missing: `make {_VENV.name}/installed` builds it")
    return str(python)
