"""The methods of a store work as ever, and the page tells of what the main thread waits for."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hangwatch
from hangwatch.agent.call_site import Prefixes
from hangwatch.agent.guard import Guard
from hangwatch.agent.inject.hooks import follow_stores
from hangwatch.agent.inject.process import SetupCall, SetupCalls
from hangwatch.agent.record.marks import AWAITS_KEY, SETS_KEY, Marks

PREFIXES = Prefixes((f"{Path(hangwatch.__file__).parent}/",))


class FakeRecorder:
    """Keeps what it was given."""

    def __init__(self) -> None:
        self.in_call = ""
        self.marks: dict[int, tuple[Any, ...]] = {}
        self.swallowed = 0

    def set_in_call(self, name: str, *_site: Any) -> None:
        self.in_call = name

    def set_mark(self, index: int, *values: Any) -> None:
        self.marks[index] = values

    def count_swallowed(self) -> None:
        self.swallowed += 1


class Followed:
    """A store, its class followed anew, and what the agent of this process keeps."""

    def __init__(self) -> None:
        recorder: Any = FakeRecorder()
        self.recorder = recorder
        self.seen: list[Any] = []
        seen = self.seen

        class Base:
            """As torch's Store, with the methods that matter here."""

            def get(self, key: str) -> str:
                seen.append((key, recorder.in_call))
                if key == "none":
                    raise KeyError(key)
                return key.upper()

            def wait(self, keys: list[str], timeout: float = 0.0) -> float:
                seen.append((tuple(keys), recorder.in_call))
                return timeout

            def set(self, key: str, value: str) -> None:
                seen.append((key, value))

            def add(self, key: str, amount: int) -> int:
                seen.append((key, amount))
                return amount

        self.process: Any = SimpleNamespace(
            active=True,
            calls=SetupCalls(recorder, PREFIXES),
            marks=Marks(recorder, PREFIXES),
        )

        class Store(Base):
            """As one of torch's own."""

        self.base = Base
        torch: Any = SimpleNamespace(Store=Base, TCPStore=Store)
        follow_stores(torch, lambda: self.process)
        follow_stores(torch, lambda: self.process)  # once is enough
        self.store = Store()

    @property
    def told(self) -> list[tuple[str, str, int]]:
        return [mark[:3] for mark in self.recorder.marks.values()]


@pytest.fixture
def followed() -> Followed:
    return Followed()


def test_a_wait_is_told_of_while_it_lasts(followed: Followed) -> None:
    assert followed.store.get("a") == "A"
    assert followed.store.wait(["a", "b"], timeout=2.0) == 2.0
    assert followed.seen == [("a", "store.get"), (("a", "b"), "store.wait")]
    assert followed.recorder.in_call == ""
    assert followed.told == [(AWAITS_KEY, "a", 1), (AWAITS_KEY, "a\nb", 1)]
    assert {mark[3] for mark in followed.recorder.marks.values()} == {__file__}


def test_a_wait_that_raises_is_over(followed: Followed) -> None:
    with pytest.raises(KeyError):
        followed.store.get(key="none")
    assert followed.recorder.in_call == ""
    assert followed.told == [(AWAITS_KEY, "none", 1)]


def test_what_was_set_is_told_by_its_line(followed: Followed) -> None:
    for turn in range(3):
        followed.store.set(f"step/{turn}", "x")
    assert followed.told == [(SETS_KEY, "step/2", 3)]


def test_other_threads_go_their_way(followed: Followed) -> None:
    thread = threading.Thread(target=followed.store.get, args=("a",))
    thread.start()
    thread.join()
    assert (followed.seen, followed.told) == ([("a", "")], [])


def test_what_torch_does_within_a_call_of_its_own_is_no_news(followed: Followed) -> None:
    call = SetupCall("init_process_group")
    followed.process.calls.begin(call)
    assert followed.store.get("a") == "A"
    assert followed.told == []


@pytest.mark.parametrize("agent", ["gone", "disarmed", "failed"])
def test_without_an_agent_the_store_works(followed: Followed, agent: str) -> None:
    if agent == "gone":
        followed.process = None
    elif agent == "disarmed":
        followed.process.active = False
    else:
        followed.process.marks.guard = Guard(followed.recorder.count_swallowed)
        followed.process.marks.awaits = None  # an error of ours
    assert followed.store.get("a") == "A"
    followed.store.set("a", "b")
    assert followed.recorder.in_call == ""
    assert followed.recorder.swallowed == (agent == "failed")


def test_a_store_that_is_written_in_python_is_left_alone(followed: Followed) -> None:
    # C++ asks whether the class of such a store has a function of Python's, and calls that.
    assert followed.base().get("a") == "A"
    assert followed.told == []


def test_a_key_is_told_without_secrets(followed: Followed) -> None:
    followed.store.set("token=hunter2hunter2", "x")
    assert "hunter2" not in followed.told[0][1]


def test_a_subclass_has_its_own_methods(followed: Followed) -> None:
    class Own(type(followed.store)):  # type: ignore[misc]
        def get(self, key: str) -> str:
            return f"{super().get(key)}!"

    assert Own().get("a") == "A!"
    assert type(followed.store).get.__name__ == "get"


def test_to_add_nothing_is_to_ask_and_sets_no_key(followed: Followed) -> None:
    assert (followed.store.add("a", 0), followed.store.add("b", 1)) == (0, 1)
    assert followed.told == [(SETS_KEY, "b", 1)]
