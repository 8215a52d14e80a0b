"""What headers of the zoo may say, and what is held to them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chosen import ZOO
from expectations import Expectation, expectations, misjudged, unexplained
from recordings import OF_FRAMEWORKS, ON_GPU, RECORDED, files_of, recorded, result_of
from test_zoo import CORE, FORKED, SLOW

from hangwatch.model.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

CASES = list(expectations())
BROKEN = [case for case in CASES if not case.healthy]
CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def case_of(where: Path, header: str) -> Expectation:
    """The case of a program with such a header."""
    (where / "train.py").write_text(f"{header}\nprint('trains')\n")
    (case,) = expectations(where)
    return case


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ("# expect: state=ok certainty=proved", "nobody looks at certainty"),
        ("# expect: state=hang culprits=1 certainty=likely colour=red", "nobody looks at colour"),
        ("# expect: state=hang culprits=1", "needs state, culprits and certainty"),
        ("#expect: state=ok", "no header: #expect"),
        ("# Expect: state=ok", "no header: # Expect"),
        ("# expect state=ok", "no header: # expect state=ok"),
    ],
)
def test_a_header_that_nobody_would_look_at_is_an_error(
    tmp_path: Path, header: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        case_of(tmp_path, header)


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ("# cause --exit: unknown", "causes of what is no case"),
        ("# cause: early exit", "no cause: early exit"),
        ("# cause: early_exit at `return`", "0 lines are return"),
        ("# cause: early_exit at `print...` (1)", "0 lines are print"),
    ],
)
def test_so_is_a_cause_that_is_not_there(tmp_path: Path, header: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        case_of(tmp_path, f"# expect: state=ok\n{header}")


def test_a_cause_is_a_line_of_the_program_or_none_and_any_of_several(tmp_path: Path) -> None:
    header = "# expect: state=ok\n# cause: early_exit at `print('tr...` | process_gone"
    case = case_of(tmp_path, header)
    assert case.causes == {("early_exit", 3), ("process_gone", None)}


def test_most_that_is_broken_says_why() -> None:
    explained = [case for case in BROKEN if case.causes]
    assert len(explained) >= 60
    assert len({what for case in explained for what, _ in case.causes}) >= 12


WRONG = {
    "state": "slow",
    "kind": "unknown",
    "certainty": "possible",
    "culprits": [3],
    "victims": [3],
    "site": None,
    "group": None,
    "headline": "Rank 9 has left.",
    "explanation": "",
    "advice": [],
}


@pytest.mark.parametrize("key", sorted(WRONG))
def test_each_part_of_a_verdict_is_held_to_the_header(key: str) -> None:
    (run,) = recorded([case for case in CASES if str(case) == "restart_then_hang"])
    result = result_of(run.case, run.told)
    assert list(misjudged(run.case, result)) == []
    report: dict[str, Any] = result.reports[-1]
    verdict = {**report["verdict"], key: WRONG[key]}
    changed = [*result.reports[:-1], {**report, "verdict": verdict}]
    told = [verdict if one == report["verdict"] else one for one in result.verdicts]
    assert list(misjudged(run.case, replace(result, reports=changed, verdicts=told)))


def test_nothing_is_recorded_of_what_is_no_case() -> None:
    cases = [*CASES, *expectations(ON_GPU), *expectations(OF_FRAMEWORKS)]
    known = [path for case in cases for path in files_of(case)]
    assert sorted(RECORDED.iterdir()) == sorted(known)


def test_what_is_told_besides_is_a_mistake_unless_the_header_explains_it() -> None:
    case = next(case for case in BROKEN if case.values.get("also") == "slow:0")
    assert (case.values["state"], case.values["culprits"]) == ("hang", "1")

    def told(*verdicts: tuple[str, list[int]], certainty: str = "likely") -> list[str]:
        same = {"kind": "died", "certainty": certainty, "headline": "It is so."}
        found = [{"state": state, "culprits": ranks, **same} for state, ranks in verdicts]
        return list(unexplained(case, found))

    assert told(("slow", [0])) == []
    assert told(("slow", [0]), ("slow", [1]), ("failed", [1])) == []
    assert told() == ["it is not called slow of 0"]
    assert told(("slow", [0]), ("hang", [0])) == ["it is also called HANG: It is so."]
    assert told(("slow", [0]), ("slow", [0, 1])) == ["it is also called SLOW: It is so."]
    assert told(("slow", [0]), ("desync", [1])) == ["it is also called DESYNC: It is so."]
    assert told(("slow", [0]), ("slow", [])) == ["it is also called SLOW: It is so."]
    proved = told(("slow", [0]), ("slow", [1]), certainty="proved")
    assert proved == ["it is also called SLOW: It is so."]
    case = next(case for case in BROKEN if case.values.get("may_be") == "desync")
    assert told(("desync", [1])) == []
    assert told(("desync", [0])) == ["it is also called DESYNC: It is so."]


def kinds(cases: Iterable[Expectation]) -> set[str]:
    return {kind for case in cases for kind in case.values["kind"].split("|")}


def test_every_kind_is_in_what_make_test_runs_and_every_reason_in_test_all() -> None:
    chosen = {name for names in ZOO.values() for name in names}
    assert kinds(case for case in BROKEN if str(case) in chosen) == set(Kind)
    core = [case for case in BROKEN if str(case) in CORE or case in FORKED]
    reasons = [{case.values.get("reason") for case in cases} for cases in (core, BROKEN)]
    assert reasons[0] == reasons[1]
    assert {str(case) for case in CASES} >= CORE | SLOW


def test_the_zoo_is_as_large_as_contributors_are_told() -> None:
    programs = len({case.program for case in CASES})
    healthy = len({case.program for case in CASES if case.healthy})
    cascades = len({case.program for case in BROKEN if case.groups})
    (told,) = re.findall(
        r"(\d+) training\s+programs.*?(\d+) of them are healthy.*?(\d+) hang with several groups",
        CONTRIBUTING.read_text(),
        re.DOTALL,
    )
    assert told == (str(programs), str(healthy), str(cascades))
    assert programs >= 30
    assert healthy >= 10
    assert cascades >= 8
