"""What c10d knows of its unfinished work, and the answer to the watchdog."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hangwatch.agent.sample.flight import DOUBT_AFTER_S, LOOK_AGAIN_S, REST, FlightRecorder
from hangwatch.agent.torch_api import Recorders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Core:
    """torch._C._distributed_c10d with the recorder as the test sets it."""

    def __init__(self) -> None:
        self.status: dict[str, tuple[int, int]] = {}
        self.unfinished: list[str] = []
        """pg_id of each entry that is not retired."""
        self.looks = 0

    def _dump_fr_trace_json(self, *, includeCollectives: bool) -> bytes:  # noqa: N803 (as torch has it)
        dump: dict[str, Any] = {
            "version": "2.10",
            "pg_status": {
                pg_id: {
                    "last_enqueued_collective": str(enqueued),
                    "last_completed_collective": str(completed),
                    "last_started_collective": "-1",
                }
                for pg_id, (enqueued, completed) in self.status.items()
            },
        }
        if includeCollectives:
            self.looks += 1
            entries: list[dict[str, Any]] = [
                {"pg_id": 0, "collective_seq_id": 1, "retired": True, "process_group": ["g0", ""]}
            ]
            entries += [
                {
                    "pg_id": int(pg_id),
                    "collective_seq_id": 2,
                    "retired": False,
                    "process_group": [f"g{pg_id}", ""],
                }
                for pg_id in self.unfinished
            ]
            dump["entries"] = entries
        return json.dumps(dump, separators=(",", ":")).encode()


class Clock:
    """Seconds, as the test has them pass."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def flight(core: Core, clock: Clock) -> FlightRecorder:
    return FlightRecorder(Recorders(core), clock)


def test_what_was_enqueued_and_not_completed_is_pending(
    core: Core, flight: FlightRecorder, clock: Clock
) -> None:
    core.status = {"0": (3, 3), "1": (2, 1)}
    assert flight.progress() == (True, True)
    assert flight.progress() == (True, False)
    core.status["1"] = (3, 2)
    clock.now_s += 0.5
    assert flight.progress() == (True, True)
    core.status["1"] = (3, 3)
    assert flight.progress() == (False, True)


def test_a_recorder_that_is_off_or_missing_knows_nothing(flight: FlightRecorder) -> None:
    assert flight.progress() == (None, False)
    assert FlightRecorder(Recorders(SimpleNamespace())).progress() == (None, False)


def test_a_status_that_lags_is_found_out_by_the_entries(
    core: Core, flight: FlightRecorder, clock: Clock
) -> None:
    core.status = {"0": (13, 12)}
    assert flight.progress() == (True, True)
    clock.now_s += DOUBT_AFTER_S
    assert flight.progress() == (False, True)
    clock.now_s += 100
    assert flight.progress() == (False, False)
    assert core.looks == 1


def test_an_unfinished_call_behind_a_finished_one_is_found(
    core: Core, flight: FlightRecorder, clock: Clock
) -> None:
    core.status = {"0": (13, 13)}
    core.unfinished = ["0"]
    assert flight.progress() == (False, True)
    clock.now_s += DOUBT_AFTER_S
    assert flight.progress() == (True, True)
    assert flight.progress() == (True, False)
    assert core.looks == 1
    clock.now_s += LOOK_AGAIN_S
    core.unfinished = []
    assert flight.progress() == (False, True)


def test_what_goes_on_in_another_group_does_not_make_it_other_work(
    core: Core, flight: FlightRecorder, clock: Clock
) -> None:
    core.status = {"0": (3, 2), "1": (7, 7)}
    core.unfinished = ["0"]
    assert flight.progress() == (True, True)
    for number in range(8, 40):
        clock.now_s += 0.5
        core.status["1"] = (number, number - number % 2)
        assert flight.progress() == (True, False)
    assert core.looks < 6
    core.status["0"] = (3, 3)
    core.unfinished = []
    assert flight.progress()[1]


def test_a_group_whose_status_lags_does_not_age_the_work_of_another(
    core: Core, flight: FlightRecorder, clock: Clock
) -> None:
    core.status = {"0": (3, 2), "1": (7, 7)}
    assert flight.progress() == (True, True)
    clock.now_s += DOUBT_AFTER_S
    assert flight.progress() == (False, True)
    for number in range(8, 12):
        clock.now_s += 30.0
        core.status["1"] = (number, number - 1)
        core.unfinished = ["1"]
        assert flight.progress() == (True, True)  # each time another call, just begun


class Hooked(Core):
    """One whose general recorder has another one for each backend, all alike."""

    def _dump_fr_trace_json(self, *, includeCollectives: bool, backend: str = "gloo") -> bytes:  # noqa: N803
        """Dump the recorder of a backend."""
        dumped = super()._dump_fr_trace_json(includeCollectives=includeCollectives)
        return dumped if backend == "mine" else b'{"version":"2.10"}'


def test_a_backend_that_tells_no_completion_leaves_it_unknown() -> None:
    core = Hooked()
    recorders = Recorders(core)
    recorders.add("mine", reports_completion=False)
    core.status, core.unfinished = {"0": (3, -1)}, ["0"]
    assert FlightRecorder(recorders).progress() == (None, False)
    recorders = Recorders(core)
    recorders.add("mine", reports_completion=True)
    assert FlightRecorder(recorders).progress() == (True, True)


def test_a_call_that_its_backend_has_refused_is_not_waited_for(clock: Clock) -> None:
    class Refusing(Hooked):
        def _dump_fr_trace_json(self, *, includeCollectives: bool, backend: str = "gloo") -> bytes:  # noqa: N803
            """Dump the recorder of a backend."""
            dump = json.loads(
                super()._dump_fr_trace_json(includeCollectives=includeCollectives, backend=backend)
            )
            # In the order in which they were made.
            dump["entries"] = [*dump.get("entries", ())[::-1], *self.later]
            return json.dumps(dump, separators=(",", ":")).encode()

        later: tuple[dict[str, Any], ...] = ()

    core = Refusing()
    recorders = Recorders(core)
    recorders.add("mine", reports_completion=True)
    flight = FlightRecorder(recorders, clock)
    core.status, core.unfinished = {"0": (3, 3)}, ["0"]
    flight.progress()
    clock.now_s += DOUBT_AFTER_S
    assert flight.progress() == (False, False)
    core.status = {"0": (4, 3)}
    core.later = ({"pg_id": 0, "collective_seq_id": 3, "retired": False},)
    flight.progress()
    clock.now_s += DOUBT_AFTER_S
    assert flight.progress() == (True, False)


@pytest.mark.parametrize("by_host", [True, False])
def test_a_barrier_that_the_host_ran_is_not_waited_for(clock: Clock, *, by_host: bool) -> None:
    barrier = {"pg_id": 0, "process_group": ["0", "default_pg"], "profiling_name": "nccl2:barrier"}
    of_hook = {**barrier, "record_id": 0, "time_created_ns": 10, "retired": False}
    of_host = {**barrier, "record_id": 0, "time_created_ns": 12, "retired": True}
    of_host["profiling_name"] = "gloo:barrier"
    if not by_host:
        of_host["time_created_ns"] = 8  # an earlier one

    def dump(last_completed: int, entry: dict[str, Any]) -> bytes:
        status = {"last_enqueued_collective": "1", "last_completed_collective": last_completed}
        values = {"version": "2.10", "pg_status": {"0": status}, "entries": [entry]}
        return json.dumps(values, separators=(",", ":")).encode()

    recorders = Recorders(SimpleNamespace())
    recorders.dumps = {
        "_dump_fr_trace_json": lambda **_: dump(1, of_host),
        "nccl2": lambda **_: dump(0, of_hook),
    }
    flight = FlightRecorder(recorders, clock)
    flight.progress()
    clock.now_s += DOUBT_AFTER_S
    assert flight.progress()[0] is not by_host


def test_while_the_status_moves_the_entries_are_not_looked_at(
    core: Core, flight: FlightRecorder, clock: Clock
) -> None:
    for seq in range(20):
        core.status = {"0": (seq, seq - 1)}
        flight.progress()
        clock.now_s += 0.5
    assert core.looks == 0


def test_what_a_destroyed_group_left_unfinished_is_not_pending(
    core: Core, flight: FlightRecorder, clock: Clock
) -> None:
    core.status = {"0": (3, 2)}
    core.unfinished = ["0"]
    flight.forget_ended("g0")
    assert flight.progress()[0] is False
    clock.now_s += DOUBT_AFTER_S
    assert flight.progress()[0] is False
    core.status = {"0": (3, 2), "1": (1, 0)}
    assert flight.progress()[0] is True


def test_what_another_group_than_the_destroyed_one_has_unfinished_stays_pending(
    core: Core, flight: FlightRecorder, clock: Clock
) -> None:
    core.status = {"0": (3, 2), "1": (5, 4)}
    core.unfinished = ["0", "1"]
    assert flight.progress()[0] is True
    flight.forget_ended("g1")
    assert flight.progress()[0] is True
    clock.now_s += DOUBT_AFTER_S
    assert flight.progress()[0] is True
    flight.forget_ended(None)  # and all the others
    assert flight.progress()[0] is False


def test_a_status_of_many_groups_is_not_read_at_each_that_is_destroyed() -> None:
    clock = Clock()

    class Slow(Core):
        reads = 0

        def _dump_fr_trace_json(self, *, includeCollectives: bool) -> bytes:  # noqa: N803
            self.reads += 1
            clock.now_s += 0.01
            return super()._dump_fr_trace_json(includeCollectives=includeCollectives)

    core = Slow()
    flight = FlightRecorder(Recorders(core), clock)
    core.status = {"0": (3, 2)}
    for _ in range(1000):
        clock.now_s += 0.001
        flight.forget_ended("g0")
    assert core.reads <= 1 + 1000 * 0.001 / (REST * 0.01)
    # What was put off is done at the next look.
    core.status["1"] = (2, 1)
    flight.forget_ended("g1")
    assert flight.resting
    assert flight.progress()[0] is False
    core.status["1"] = (3, 1)
    assert flight.progress()[0] is True


class Nccl:
    """torch._C._distributed_c10d with NCCL's recorder, made after ProcessGroupNCCL.cpp."""

    def __init__(self) -> None:
        self.status = (7, 7)
        self.entries: list[dict[str, Any]] = []
        self.looks = 0

    def _dump_nccl_trace_json(self, *, includeCollectives: bool) -> bytes:  # noqa: N803 (as torch has it)
        enqueued, completed = self.status
        status = {"last_enqueued_collective": enqueued, "last_completed_collective": completed}
        self.looks += includeCollectives
        dump = {"pg_status": {"0": status}} | (
            {"entries": self.entries} if includeCollectives else {}
        )
        return json.dumps(dump, separators=(",", ":")).encode()


def test_the_parts_of_a_coalesced_group_are_as_its_end_is(clock: Clock) -> None:
    core = Nccl()
    flight = FlightRecorder(Recorders(core), clock)
    batch = {"pg_id": 0, "is_p2p": True, "collective_seq_id": 7, "p2p_seq_id": 9}
    send = batch | {"profiling_name": "nccl:send 0->1", "retired": False}
    end = batch | {"profiling_name": "nccl:coalesced", "retired": True}
    core.entries = [send, send, end]
    core.status = (9, 9)
    flight.progress()
    core.status = (9, 7)  # the status counts both kinds, and a collective was completed last
    assert flight.progress() == (True, True)
    clock.now_s += DOUBT_AFTER_S
    assert flight.progress() == (False, True)
    end["retired"] = False
    core.status = (3, 100)  # collective 100 was completed, and call 3 of the other kind was not
    for _ in range(2):
        assert flight.progress()[0] is True
        clock.now_s += DOUBT_AFTER_S


@pytest.mark.parametrize("retired", [True, False])
def test_the_end_of_a_batch_of_sends_may_be_called_none_of_them(
    clock: Clock, *, retired: bool
) -> None:
    core = Nccl()
    flight = FlightRecorder(Recorders(core), clock)
    numbers = {"pg_id": 0, "collective_seq_id": 7, "p2p_seq_id": 9}
    send = numbers | {"profiling_name": "nccl:send 0->1", "is_p2p": True, "retired": False}
    # As torch 2.11 has it on a GPU.
    end = {"profiling_name": "nccl:coalesced", "is_p2p": False, "retired": retired}
    last = numbers | {"profiling_name": "nccl:all_reduce", "is_p2p": False, "retired": True}
    core.entries = [last | {"op_id": 1}, send | {"op_id": 2}, numbers | end | {"op_id": 2}]
    core.status = (9, 9)
    flight.progress()
    core.status = (9, 7)
    flight.progress()
    clock.now_s += DOUBT_AFTER_S
    assert flight.progress()[0] is not retired


def test_an_unfinished_call_of_nccls_is_believed_without_asking_the_device(clock: Clock) -> None:
    core = Nccl()
    flight = FlightRecorder(Recorders(core), clock)
    for core.status in ((7, 7), (8, 7)):
        flight.progress()
    clock.now_s += DOUBT_AFTER_S
    assert flight.progress() == (True, False)
    assert core.looks == 0


def test_groups_of_a_device_stand_only_together_and_whatever_those_of_gloo_do(
    clock: Clock,
) -> None:
    told = {
        "_dump_nccl_trace_json": {"0": (8, 7), "1": (5, 4)},
        "_dump_fr_trace_json": {"2": (1, 0)},
    }

    def dump(name: str) -> Callable[..., bytes]:
        def status(**_: object) -> bytes:
            groups = {
                key: {"last_enqueued_collective": last, "last_completed_collective": done}
                for key, (last, done) in told[name].items()
            }
            return json.dumps({"pg_status": groups}).encode()

        return status

    flight = FlightRecorder(
        Recorders(SimpleNamespace(**{name: dump(name) for name in told})), clock
    )
    assert flight.progress() == (True, True)
    for number in range(2, 6):
        clock.now_s += 0.5
        told["_dump_fr_trace_json"]["2"] = (number, number - 1)
        assert flight.progress() == (True, False)
    clock.now_s += 0.5
    told["_dump_nccl_trace_json"]["0"] = (9, 8)
    assert flight.progress() == (True, True)
    for number in range(10, 14):  # one of gloo's that stands does not make the device's old
        clock.now_s += 0.5
        told["_dump_nccl_trace_json"]["0"] = (number, number - 1)
        assert flight.progress() == (True, True)


def test_a_request_is_answered_without_the_gil_where_that_can_be(
    core: Core, tmp_path: Path
) -> None:
    (tmp_path / "page.req").touch()
    assert FlightRecorder(Recorders(core), answer_request=lambda: True).answer(
        str(tmp_path / "page")
    )
    assert (tmp_path / "page.req").exists()  # the thread's
    assert core.looks == 0


def test_where_nccl_has_completed_all_no_device_is_asked(clock: Clock) -> None:
    core = Nccl()
    flight = FlightRecorder(Recorders(core), clock)
    core.entries = [{"pg_id": 0, "collective_seq_id": 7, "retired": False}]
    flight.progress()
    clock.now_s += DOUBT_AFTER_S
    assert flight.progress()[0] is False
    assert core.looks == 0


def test_the_watchdog_is_answered_once_for_each_request(
    core: Core, flight: FlightRecorder, tmp_path: Path
) -> None:
    page = tmp_path / "r0-0-1.page"
    assert not flight.answer(str(page))
    (tmp_path / "r0-0-1.page.req").touch()
    assert flight.answer(str(page))
    assert [path.name for path in tmp_path.iterdir()] == ["r0-0-1.page.flight"]
    answer = tmp_path / "r0-0-1.page.flight"
    assert json.loads(answer.read_bytes())["entries"]
    assert answer.stat().st_mode & 0o777 == 0o600
    assert not flight.answer(str(page))
    assert core.looks == 1


def answer_of(flight: FlightRecorder, directory: Path) -> bytes:
    """Ask for the recorder, and return the answer."""
    (directory / "page.req").touch()
    assert flight.answer(str(directory / "page"))
    return (directory / "page.flight").read_bytes()


def test_the_answer_is_all_recorders_that_have_entries(tmp_path: Path) -> None:
    core = SimpleNamespace(
        _dump_fr_trace_json=lambda **_: b'{"entries":["gloo"]}',
        _dump_nccl_trace_json=lambda **_: b'{"entries":["nccl"]}',
    )
    both = b'{"entries":["nccl"]}\n{"entries":["gloo"]}\n'
    assert answer_of(FlightRecorder(Recorders(core)), tmp_path) == both
    core.__dict__["_dump_nccl_trace_json"] = lambda **_: b'{"version":"2.10"}'
    assert answer_of(FlightRecorder(Recorders(core)), tmp_path) == b'{"entries":["gloo"]}\n'
    core.__dict__["_dump_fr_trace_json"] = lambda **_: b"{}"
    assert answer_of(FlightRecorder(Recorders(core)), tmp_path) == b"{}"


def test_the_answer_of_a_torch_without_json_is_its_pickle(tmp_path: Path) -> None:
    asked = []

    def dump(*wanted: bool) -> bytes:
        asked.append(wanted)
        return b"\x80\x02}q\x00."

    flight = FlightRecorder(Recorders(SimpleNamespace(_dump_nccl_trace=dump)))
    assert flight.progress() == (None, False)
    assert answer_of(flight, tmp_path) == b"\x80\x02}q\x00."
    assert asked == [(True, False, False)]


def test_an_answer_that_cannot_be_written_leaves_nothing_half(
    flight: FlightRecorder, tmp_path: Path
) -> None:
    (tmp_path / "page.req").touch()
    (tmp_path / "page.flight").mkdir()
    with pytest.raises(OSError, match="directory"):
        flight.answer(str(tmp_path / "page"))
    assert [path.name for path in tmp_path.iterdir()] == ["page.flight"]
