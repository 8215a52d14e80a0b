"""The hook on the import of torch.distributed."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any

import pytest

from hangwatch.agent.inject import post_import
from hangwatch.agent.inject.post_import import TARGET, Finder, attach, install, record_failure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of torch's name on the path; returns the file of the target."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    for directory in (package, package.parent):
        (directory / "__init__.py").touch()
    (package / "distributed_c10d.py").write_text("loader = __loader__, __spec__.loader\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield package / "distributed_c10d.py"
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        del sys.modules[name]


@pytest.fixture
def hooked(torch: Path) -> list[ModuleType]:
    """The modules that the hook was called with."""
    assert torch.exists()
    called: list[ModuleType] = []
    sys.meta_path.insert(0, Finder(called.append))
    return called


def finders() -> list[object]:
    return [finder for finder in sys.meta_path if hasattr(finder, "of_hangwatch")]


def test_the_hook_is_called_after_the_module_was_executed(hooked: list[ModuleType]) -> None:
    module = importlib.import_module(TARGET)
    assert hooked == [module]
    assert finders() == []


def test_the_module_never_sees_our_loader(hooked: list[ModuleType]) -> None:
    module = importlib.import_module(TARGET)
    assert {type(loader) for loader in module.loader} == {SourceFileLoader}
    assert module.__spec__ is not None
    assert isinstance(module.__spec__.loader, SourceFileLoader)
    assert len(hooked) == 1


def test_other_modules_are_left_alone(hooked: list[ModuleType]) -> None:
    importlib.import_module("torch.distributed")
    assert hooked == []
    assert len(finders()) == 1


def test_looking_for_the_module_is_not_importing_it(hooked: list[ModuleType]) -> None:
    importlib.import_module("torch.distributed")
    spec = importlib.util.find_spec(TARGET)
    assert spec is not None
    assert spec.loader is not None
    assert spec.loader.get_source(TARGET) is not None  # type: ignore[attr-defined]
    assert hooked == []
    importlib.import_module(TARGET)
    assert len(hooked) == 1


def test_an_import_that_fails_may_be_tried_again(torch: Path, hooked: list[ModuleType]) -> None:
    text = torch.read_text()
    torch.write_text("raise ImportError('not yet')")
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module(TARGET)
    assert hooked == []
    torch.write_text(text)
    importlib.invalidate_caches()
    importlib.import_module(TARGET)
    assert len(hooked) == 1


def test_another_hook_of_the_same_kind_works_beside_ours(hooked: list[ModuleType]) -> None:
    others: list[ModuleType] = []
    sys.meta_path.insert(0, Finder(others.append))
    module = importlib.import_module(TARGET)
    assert (hooked, others) == ([module], [module])


def test_a_module_that_does_not_exist_is_not_found(torch: Path, hooked: list[ModuleType]) -> None:
    torch.unlink()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(TARGET)
    assert hooked == []


def test_installing_twice_installs_once(torch: Path, tmp_path: Path) -> None:
    assert torch.exists()
    install(str(tmp_path))
    install(str(tmp_path))
    assert len(finders()) == 1


def test_a_module_that_was_imported_before_is_attached_to_at_once(
    torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert torch.exists()
    module = importlib.import_module(TARGET)
    attached: list[Any] = []
    monkeypatch.setattr(post_import, "attach", lambda *args: attached.append(args))
    install(str(tmp_path))
    assert attached == [(module, str(tmp_path))]
    assert finders() == []


class Struck(Exception):  # noqa: N818 (the name says it)
    """A user's own."""


@pytest.mark.parametrize("kind", [Struck, KeyboardInterrupt])
def test_what_strikes_amid_it_passes_and_leaves_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    def load_package() -> None:
        exec(compile("raise kind", os.__file__, "exec"), {"kind": kind})  # noqa: S102

    monkeypatch.setattr(post_import, "load_package", load_package)
    with pytest.raises(kind):
        attach(sys, str(tmp_path))
    (note,) = tmp_path.glob("agent-*.err")
    assert f"is not recorded: {kind.__name__}" in note.read_text()


def test_an_agent_that_fails_leaves_word_and_no_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hangwatch.agent.inject.hooks", None)
    attach(sys, str(tmp_path))
    (note,) = tmp_path.glob("agent-*.err")
    first, *where = note.read_text().splitlines()
    assert first.endswith(
        "is not recorded: ModuleNotFoundError: import of hangwatch.agent.inject.hooks "
        "halted; None in sys.modules"
    )
    assert all(":" in line for line in where)


def test_where_no_word_can_be_left_none_is(tmp_path: Path) -> None:
    record_failure(str(tmp_path / "gone"), ValueError("x"))
    assert list(tmp_path.iterdir()) == []


def test_an_old_interpreter_is_told_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hangwatch")
    monkeypatch.setattr(post_import, "OLDEST", (99, 1))
    with pytest.raises(ImportError, match=r"hangwatch needs 99\.1 or later"):
        post_import.load_package()
