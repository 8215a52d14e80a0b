"""What the agent of a process does with the groups that it takes in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from fake_torch import Group
from test_agent_record_groups import C10d, World

from hangwatch.agent.inject.process import Process
from hangwatch.agent.torch_api import Recorders

if TYPE_CHECKING:
    from pathlib import Path


class Through(Group):
    """A group whose calls go through one backend."""

    _device_types = (SimpleNamespace(type="cpu"),)
    supports_completion_hooks = True

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.backend = backend

    def _get_backend(self, _device: Any) -> Any:
        return SimpleNamespace(name=lambda: self.backend)


class Recorder:
    """Keeps the calls that matter here; all others do nothing."""

    MAX_GROUPS = 8

    def __init__(self) -> None:
        self.lacks: list[str] = []
        self.dumps: list[str] = []
        self.phases: list[str] = []

    def last_thrown(self) -> tuple[str, str]:
        return "", ""

    def __getattr__(self, name: str) -> Any:
        kept = {
            "set_torch_lacks": self.lacks.append,
            "add_dump": self.dumps.append,
            "set_phase": self.phases.append,
        }
        return kept.get(name, lambda *_: True)


def hooked(backend: str = "gloo") -> bytes:
    """Dump the recorder of a backend."""
    return backend.encode()


@pytest.mark.parametrize(
    ("general", "unrecorded", "dumps"),
    [(hooked, [], ["mine", "other"]), (bytes, ["mine", "mine, other"], [])],
    ids=["2.15", "before"],
)
def test_backends_are_recorded_or_told_once_their_groups_are_there(
    tmp_path: Path, general: Any, unrecorded: list[str], dumps: list[str]
) -> None:
    world, recorder = World(), Recorder()
    torch: Any = C10d(world)
    torch.ProcessGroup = Through
    recorders = Recorders(SimpleNamespace(_dump_fr_trace_json=general))
    lacks = "it has no numbers"
    process = Process(torch, recorder, str(tmp_path), lambda _: None, recorders, lacks, {})
    process.open_page(0, 2)
    for backend in ("gloo", "mine", "other", "mine"):
        process.groups.find(world.add(Through(backend), 0, 1))
    nameless = "what C++ issues through {} has no name: no recorder of its calls is known"
    assert recorder.lacks == [lacks, *(f"{lacks}; {nameless.format(name)}" for name in unrecorded)]
    assert list(dict.fromkeys(recorder.dumps)) == dumps


def test_who_destroys_the_default_group_by_name_comes_to_its_end(tmp_path: Path) -> None:
    world, recorder = World(), Recorder()
    torch: Any = C10d(world)
    process = Process(
        torch, recorder, str(tmp_path), lambda _: None, Recorders(SimpleNamespace()), "", {}
    )
    world.default_pg = world.add(Group(), 0, 1)
    pair = world.add(Group(), 0, 1)
    assert process.before_destroy(pair) == world.pg_names[pair]
    assert recorder.phases == []
    assert process.before_destroy(world.default_pg) is None
    assert recorder.phases == ["finalizing"]


def test_a_child_whose_exception_was_recorded_did_not_end_well(tmp_path: Path) -> None:
    recorder = Recorder()
    torch: Any = C10d(World())
    process = Process(
        torch, recorder, str(tmp_path), lambda _: None, Recorders(SimpleNamespace()), "", {}
    )
    process.open_page(0, 2)
    process._exceptions.record(ValueError("bad row"))  # noqa: SLF001 (as at the end of a child)
    process.finish()
    assert recorder.phases == ["raised"]
