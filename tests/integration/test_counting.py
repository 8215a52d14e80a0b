"""Every collective and point-to-point call is counted, as c10d itself counts it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from agent_runs import COUNTED, Run, calls, group_of, run, torchrun
from harness import RECORDED

from hangwatch.evidence.flight.recorder import wire_name
from hangwatch.model.kinds import OpState, Phase

if TYPE_CHECKING:
    from pathlib import Path

    from hangwatch.model.page import PageEvent, RankPage

GLOO_NAMES = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_coalesced": "all_gather",
    "all_reduce_coalesced": "all_reduce",
    "all_to_all_single": "all_to_all",
    "reduce_scatter": "all_reduce",
    "reduce_scatter_tensor": "all_reduce",
}
"""What gloo does instead, and calls it in the Flight Recorder."""
NEEDS_RECORDER = pytest.mark.skipif(not RECORDED, reason="this torch has no recorder for gloo")
RECORDERS = pytest.mark.parametrize("counted", ["native", "python"], indirect=True)


class Counted:
    """A program's run, and what each of its ranks wrote for the test."""

    def __init__(self, program: str, directory: Path, recorder: str) -> None:
        self.program, self.recorder = COUNTED / program, recorder
        out = directory / "out"
        out.mkdir()
        self.run: Run = run(torchrun(self.program, out), directory / "run", recorder=recorder)
        assert self.run.exit_code == 0
        assert self.run.notes == []
        self.results: list[dict[str, Any]] = [
            json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)
        ]

    def ranks(self) -> list[tuple[RankPage, dict[str, Any]]]:
        """The page and the result of each rank."""
        assert [page.identity.rank for page in self.run.pages] == [0, 1]
        return list(zip(self.run.pages, self.results, strict=True))


def _made(page: RankPage, result: dict[str, Any]) -> list[PageEvent]:
    """The calls of the forms that this torch supports: what it refused may have been begun."""
    refused = {form["name"] for form in result["forms"] if form["error"]}
    failed = [event for event in page.events if event.state is OpState.FAILED]
    assert {event.site.function for event in failed if event.site} <= refused
    return [event for event in page.events if event not in failed]


@pytest.fixture(scope="module")
def _runs() -> dict[tuple[str, str], Counted]:
    return {}


@pytest.fixture
def counted(
    request: pytest.FixtureRequest,
    _runs: dict[tuple[str, str], Counted],
    tmp_path_factory: pytest.TempPathFactory,
) -> Counted:
    """The run of the program that the test's module-level class names; one for all tests."""
    key = request.cls.program, request.param
    if key not in _runs:
        _runs[key] = Counted(key[0], tmp_path_factory.mktemp("counted"), key[1])
    return _runs[key]


@RECORDERS
class TestEveryCall:
    """Each call of torch.distributed once."""

    program = "every_call.py"

    def test_the_page_says_what_is_missing_in_an_old_torch_alone(self, counted: Counted) -> None:
        lacks = {page.torch_lacks for page in counted.run.pages}
        if RECORDED:
            assert lacks == {""}
        else:
            (said,) = lacks
            assert said.startswith("what C++ issues through gloo has no name")

    def test_this_torch_supports_most_of_them_so_that_the_test_means_something(
        self, counted: Counted
    ) -> None:
        for _, result in counted.ranks():
            failed = [form["name"] for form in result["forms"] if form["error"]]
            assert len(failed) < len(result["forms"]) / 4, failed

    def test_each_call_is_recorded_once_by_the_name_that_the_user_knows(
        self, counted: Counted
    ) -> None:
        for page, result in counted.ranks():
            expected = [
                tuple(pair)
                for form in result["forms"]
                if not form["error"]
                for pair in form["expected"]
            ]
            events = [(event.op, event.wire) for event in _made(page, result)]
            assert events == [*expected, ("barrier", "barrier")]

    def test_each_call_is_told_from_the_users_own_line(self, counted: Counted) -> None:
        for page, result in counted.ranks():
            events = iter(_made(page, result))
            for form in result["forms"]:
                for _ in form["expected"] if not form["error"] else ():
                    site = next(events).site
                    assert site is not None
                    assert (site.file, site.function) == (str(counted.program), form["name"])
                    first, last = form["lines"]
                    assert first <= site.line <= last

    @NEEDS_RECORDER
    def test_places_are_those_of_the_flight_recorder(self, counted: Counted) -> None:
        for page, result in counted.ranks():
            recorded = {
                entry["collective_seq_id"]: wire_name(entry["profiling_name"])[0]
                for entry in result["flight"]
            }
            issued = calls(page, group_of(page, "default_pg"))
            assert {
                event.seq: GLOO_NAMES.get(event.wire, event.wire)
                for event in issued
                if event.wire != "monitored_barrier"
            }.items() <= recorded.items()

    @NEEDS_RECORDER
    def test_the_group_has_come_as_far_as_the_flight_recorder_says(self, counted: Counted) -> None:
        for page, result in counted.ranks():
            group = group_of(page, "default_pg")
            assert group.enqueued == max(entry["collective_seq_id"] for entry in result["flight"])
            assert group.completed <= group.enqueued
            assert group.entered == group.left == len(calls(page, group))
            assert group.p2p == len(calls(page, group, p2p=True))

    def test_what_has_returned_is_done(self, counted: Counted) -> None:
        for page, result in counted.ranks():
            events = _made(page, result)
            assert {event.state for event in events} == {OpState.DONE}
            assert all(0 < event.issued_ns <= event.done_ns for event in events)

    def test_dtype_shape_root_peer_and_tag_are_told(self, counted: Counted) -> None:
        for page, _ in counted.ranks():
            rank = page.identity.rank
            by_site = {(e.site.function, e.wire): e for e in page.events if e.site is not None}
            event = by_site["all_reduce", "all_reduce"]
            assert (event.dtype, event.shape, event.root) == ("float32", (4,), -1)
            assert by_site["all_reduce_complex", "all_reduce"].shape == (2, 2)
            assert by_site["broadcast", "broadcast"].root == 1
            assert by_site["gather", "gather"].root == 0
            if RECORDED or counted.recorder == "native":  # c10d's options do not say so before
                assert by_site["all_reduce_async", "all_reduce"].is_async
            splits = {0: ((1, 3), (1, 2)), 1: ((2, 2), (3, 2))}
            uneven = by_site["all_to_all_uneven", "all_to_all_single"]
            assert (uneven.sends, uneven.receives) == splits[rank]
            assert by_site["all_to_all_single", "all_to_all_single"].sends == ()
            sent = by_site["isend_irecv", "recv" if rank else "send"]
            assert (sent.peer, sent.tag, sent.p2p) == (1 - rank, 7, True)
            if rank == 1:
                assert by_site["recv_from_anyone", "recv"].peer == -1

    def test_nothing_of_ours_failed(self, counted: Counted) -> None:
        for page, _ in counted.ranks():
            assert (page.swallowed, page.disarmed, page.phase) == (0, "", Phase.EXITED)
            assert page.in_call == ""


@RECORDERS
class TestWhatCppIssues:
    """DDP, functional collectives, compiled graphs and FSDP, in several groups."""

    program = "cpp_calls.py"

    def test_results_are_as_without_us(self, counted: Counted) -> None:
        for _, result in counted.ranks():
            assert result["results"]["functional_calls"] == [2.0, 2.0]
            assert result["results"]["compiled"] == [4.0] * 4

    @NEEDS_RECORDER
    def test_every_group_has_come_as_far_as_the_flight_recorder_says(
        self, counted: Counted
    ) -> None:
        for page, result in counted.ranks():
            reached: dict[int, tuple[str, int]] = {}
            for entry in result["flight"]:
                name, place = entry["process_group"][0], entry["collective_seq_id"]
                before = reached.get(entry["pg_id"], (name, 0))[1]
                reached[entry["pg_id"]] = name, max(before, place)
            used = [group for group in page.groups if group.enqueued]
            assert [(group.name, group.enqueued) for group in used] == [
                reached[pg_id] for pg_id in sorted(reached)
            ]

    def test_more_is_counted_than_python_has_issued(self, counted: Counted) -> None:
        for page, _ in counted.ranks():
            group = group_of(page, "default_pg")
            assert group.entered == len(calls(page, group)) < group.enqueued / 4

    def test_groups_of_the_same_members_are_told_apart_by_the_order_of_their_making(
        self, counted: Counted
    ) -> None:
        first, second = (
            [group_of(page, "pair", index) for page, _ in counted.ranks()] for index in (0, 1)
        )
        assert [(group.name, group.enqueued) for group in first] == [("1", 1)] * 2
        assert [(group.name, group.enqueued) for group in second] == [("2", 4)] * 2

    def test_a_group_that_is_made_after_all_were_destroyed_is_a_new_one(
        self, counted: Counted
    ) -> None:
        for page, _ in counted.ranks():
            again = group_of(page, "default_pg", 1)
            assert (again.name, again.enqueued) == ("0", 2)
            assert group_of(page, "pair", 2).enqueued == 0
            assert not any(group.alive for group in page.groups)

    def test_a_handle_that_nobody_waits_for_stays_issued(self, counted: Counted) -> None:
        for page, _ in counted.ranks():
            states = [event.state for event in page.events]
            assert states.count(OpState.ISSUED) == 1
            assert set(states) == {OpState.ISSUED, OpState.DONE}

    def test_nothing_of_ours_failed(self, counted: Counted) -> None:
        for page, _ in counted.ranks():
            assert (page.swallowed, page.disarmed, page.phase) == (0, "", Phase.EXITED)


@RECORDERS
class TestGroupsWrittenInPython:
    """Process groups whose class overrides torch's."""

    program = "custom_groups.py"

    def test_results_are_as_without_us(self, counted: Counted) -> None:
        for _, result in counted.ranks():
            assert result["tensor"] == [8.0] * 3
            assert result["total"] == [2.0, 2.0]
            assert "No backend" in result["refused"]

    def test_each_call_reaches_the_class_once_and_is_counted_once(self, counted: Counted) -> None:
        methods = {"all_reduce": "allreduce"}
        for page, result in counted.ranks():
            for group, seen in zip(page.groups, result["seen"], strict=True):
                events = [event for event in page.events if event.slot == group.slot]
                assert [methods.get(event.wire, event.wire) for event in events] == seen

    def test_they_have_places_of_their_own(self, counted: Counted) -> None:
        for page, _ in counted.ranks():
            default = group_of(page, "default_pg")
            assert [event.seq for event in calls(page, default)] == [1, 2, 3, 4]
            assert (default.enqueued, default.p2p) == (4, 1)
            assert (page.swallowed, page.disarmed) == (0, "")

    def test_what_goes_round_torch_distributed_is_named(self, counted: Counted) -> None:
        for page, _ in counted.ranks():
            assert "what an_engine sends through NCCL by itself" in page.torch_lacks

    def test_the_users_line_is_told_and_not_that_of_the_class(self, counted: Counted) -> None:
        lines = counted.program.read_text().splitlines()
        for page, _ in counted.ranks():
            site = page.events[0].site
            assert site is not None
            assert lines[site.line - 1].endswith("# here")
            assert site.function == "main"
