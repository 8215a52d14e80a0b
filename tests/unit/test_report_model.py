"""The content of report.json."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from incident import BACKWARD, EVIDENCE, TRAIN, VERDICT, WORLD, rank

from hangwatch.model.kinds import Certainty, Kind, OpState, Phase, Reason, State
from hangwatch.model.page import ExceptionRecord
from hangwatch.model.snapshot import OpRecord
from hangwatch.model.verdict import OK, Verdict
from hangwatch.report.build import build_report

REPORT: Any = build_report(EVIDENCE)


def test_it_has_what_the_schema_promises() -> None:
    assert REPORT["schema"] == "hangwatch.report/1"
    assert REPORT["run"] == {
        "id": "night-7",
        "command": ["torchrun", "train.py"],
        "world_size": 4,
        "nodes": ["node-a"],
        "restart": 0,
        "started_at": "2026-01-02T03:00:00.000+00:00",
        "versions": {"torch": "2.13.0"},
    }
    wanted = {"ranks", "stacks", "waits", "timeline", "environment"}
    assert wanted <= REPORT.keys()
    assert REPORT["environment"] == {"NCCL_DEBUG": "INFO"}
    assert REPORT["lost"] == ["no stack of rank 1"]


def test_the_verdict_names_who_what_and_where() -> None:
    verdict = REPORT["verdict"]
    assert (verdict["state"], verdict["kind"], verdict["reason"], verdict["certainty"]) == (
        "hang",
        "never_entered",
        "data_loading",
        "likely",
    )
    assert (verdict["culprits"], verdict["victims"]) == ([2], [0, 1, 3])
    assert verdict["group"] == {"name": "0", "desc": "default_pg", "ranks": [0, 1, 2, 3]}
    assert verdict["collective"] == {
        "op": "all_reduce",
        "seq": 41,
        "dtype": "float32",
        "shape": [1153],
    }


def test_a_site_carries_two_lines_on_either_side() -> None:
    site = REPORT["verdict"]["site"]
    assert (site["file"], site["line"], site["function"]) == (TRAIN, 4, "__getitem__")
    assert site["source"] == "time.sleep(3600)  # a dead mount"
    assert site["context"]["first"] == 2
    assert len(site["context"]["lines"]) == 5


def test_a_site_at_the_edge_of_a_file_has_fewer_lines_around_it() -> None:
    context = REPORT["verdict"]["victim_site"]["context"]
    assert context == {
        "first": 7,
        "lines": ["def main():", "    for samples in loader:", "        loss.backward()"],
    }


def test_a_site_in_a_file_that_is_not_at_hand_has_no_context() -> None:
    bare: Any = build_report(replace(EVIDENCE, job=replace(EVIDENCE.job, sources={})))
    assert bare["verdict"]["site"]["context"] is None
    assert bare["verdict"]["victim_site"]["source"] is None


def test_the_job_got_stuck_as_long_before_as_it_took_to_see() -> None:
    assert REPORT["verdict"]["stuck_since"] == "2026-01-02T03:03:57.250+00:00"


def test_alike_stacks_are_kept_once_with_their_ranks() -> None:
    owners = sorted(tuple(stack["ranks"]) for stack in REPORT["stacks"].values())
    assert owners == [(0, 1, 3), (2,), (2,)]
    assert REPORT["ranks"][0]["stack"] == REPORT["ranks"][3]["stack"]
    frames = REPORT["stacks"][REPORT["ranks"][0]["stack"]]["frames"]
    assert [frame["user"] for frame in frames] == [False, True, True]
    assert frames[1]["source"] == "loss.backward()"


def test_a_ranks_workers_are_kept_with_their_stacks() -> None:
    (child,) = REPORT["ranks"][2]["children"]
    (thread,) = child["threads"]
    assert REPORT["stacks"][thread["stack"]]["frames"][0]["function"] == "__getitem__"


def test_a_waiting_rank_says_what_it_is_stuck_in() -> None:
    stuck = REPORT["ranks"][1]["stuck_in"]
    assert (stuck["op"], stuck["group"], stuck["seq"], stuck["age_s"]) == (
        "all_reduce",
        "default_pg",
        41,
        8.1,
    )
    assert REPORT["ranks"][2]["stuck_in"] is None
    assert REPORT["ranks"][2]["site"]["line"] == 4


def test_a_rank_that_no_wait_names_is_stuck_in_its_blocked_call() -> None:
    blocked = OpRecord(
        WORLD, "barrier", "barrier", 7, p2p=False, state=OpState.BLOCKED, blocked_age_s=3.0
    )
    job = replace(EVIDENCE.job, ranks=(replace(rank(2), ops=(blocked,)),))
    report: Any = build_report(replace(EVIDENCE, job=job))
    (entry,) = report["ranks"]
    assert (entry["stuck_in"]["op"], entry["stuck_in"]["age_s"]) == ("barrier", 3.0)


def test_a_rank_in_a_set_up_call_is_stuck_in_that() -> None:
    entering = replace(rank(2), in_call="new_group", in_call_age_s=4.0, in_call_site=BACKWARD)
    job = replace(EVIDENCE.job, ranks=(entering,))
    report: Any = build_report(replace(EVIDENCE, job=job))
    (entry,) = report["ranks"]
    assert entry["stuck_in"]["op"] == "new_group"
    assert entry["stuck_in"]["group"] is None


def test_an_exception_is_kept_with_its_line() -> None:
    raised = replace(
        rank(1),
        phase=Phase.RAISED,
        exception=ExceptionRecord("ValueError", "bad batch", BACKWARD),
        threads=None,
    )
    job = replace(EVIDENCE.job, ranks=(raised,))
    report: Any = build_report(replace(EVIDENCE, job=job, verdicts=(OK,)))
    (entry,) = report["ranks"]
    assert entry["exception"]["type"] == "ValueError"
    assert entry["exception"]["site"]["line"] == 9
    assert entry["stack"] is None


def test_other_verdicts_follow_the_most_important_one() -> None:
    other = Verdict(State.SLOW, Kind.COLLECTIVE_STUCK, Reason.UNKNOWN, Certainty.POSSIBLE)
    report = build_report(replace(EVIDENCE, verdicts=(VERDICT, other)))
    assert report["verdict"]["kind"] == "never_entered"
    assert [also["kind"] for also in report["also"]] == ["collective_stuck"]


def test_it_is_plain_json_even_with_odd_text() -> None:
    odd = replace(VERDICT, headline="half a \udce9 and \x00")
    text = json.dumps(build_report(replace(EVIDENCE, verdicts=(odd,))))
    assert json.loads(text)["verdict"]["headline"] == odd.headline


def test_a_moment_that_is_no_date_leaves_the_start_unknown() -> None:
    report = build_report(replace(EVIDENCE, detected_at="yesterday"))
    assert report["verdict"]["stuck_since"] is None


def test_each_of_several_culprits_is_at_its_own_line() -> None:
    verdict = replace(VERDICT, culprits=(1, 2), victims=(0, 3), waits=())
    ranks = build_report(replace(EVIDENCE, verdicts=(verdict,)))["ranks"]
    sites = [ranks[number]["site"] for number in verdict.culprits]
    assert [site and site["line"] for site in sites] == [9, 8]
