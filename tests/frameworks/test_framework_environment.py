"""The environment that the tests of launchers and frameworks run in."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

_CONSTRAINTS = Path(__file__).parent / "constraints.txt"
_VERSIONS = """
import json
from importlib.metadata import version
names = "accelerate", "deepspeed", "lightning", "transformers", "hangwatch"
print(json.dumps({name: version(name) for name in names}))
"""


def test_it_has_the_releases_that_are_pinned_and_hangwatch(framework_python: str) -> None:
    told = subprocess.check_output([framework_python, "-c", _VERSIONS], text=True)  # noqa: S603 (ours)
    found = json.loads(told)
    assert found.pop("hangwatch")
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", _CONSTRAINTS.read_text(), re.MULTILINE))
    assert found == {name: pinned[name] for name in found}
