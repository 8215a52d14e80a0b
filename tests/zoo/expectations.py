"""What the header of a program says of it, and whether a run bore that out.

A program states its verdict in lines such as
``# expect --exit: state=failed kind=finished_early culprits=1 site=culprit``: the words
before the colon are the program's arguments, ``site`` names the line that ends in
``# culprit``, ``function`` its function without the class, ``a|b`` leaves either open, ``none``
is nothing. Several lines with the same arguments add up. What is told beside that, or before, may
accuse nobody else, and be of no other state than one that leads to it; ``also=failed:1`` is the
state and the culprits of what has to be told of another fault. ``may_be`` is another state that
may be told of the culprits, of a healthy job of anybody. ``lost`` is the kind that is left where
torchrun ended ranks before what C++ did in them was read. ``text`` is in the headline or the
explanation, ``advice`` in the first advice. ``forks=no``: a rank is known by what torchrun gives
it alone.
``# launched with`` gives options of torchrun, ``# watched with`` those of hangwatch.
Each case of a broken job says how certain its verdict may be.
``# cause --exit: early_exit at `return` (41) | data_condition at `if done:``` at the end of a
program says why it came to it: what, and the line to change, by its text or what it begins with,
and its number where several are alike. What is parted by ``|`` is equally right.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import report_schema
from harness import RECORDED, NothingCameError, reaches, watch
from waiting import SLOWNESS, NoAnswerError

from hangwatch.diagnosis.facts.wait_points import UNNAMED
from hangwatch.diagnosis.rules.mismatch import BY_CPP

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from harness import Result

PROGRAMS = Path(__file__).parent / "programs"
QUICK = ("--suspect-after", f"{3 * SLOWNESS:g}", "--hang-after", f"{6 * SLOWNESS:g}")
"""For what cannot be proved; what can be must come without, long before ``auto``."""
PROOF_WITHIN_S = 15.0 * SLOWNESS
"""Far below the least --hang-after of ``auto``, with room for a loaded machine."""

_LAUNCHED = re.compile(r"^# launched with (.*)$", re.MULTILINE)
_WATCHED = re.compile(r"^# watched with (.*)$", re.MULTILINE)
_EXPECT = re.compile(r"# expect *([^:]*): *(.*)")
_CAUSE = re.compile(r"^# cause *([^:]*): *(.*)$", re.MULTILINE)
_ONE_CAUSE = re.compile(r"(\w+)(?: at `(.*?)`(?: \((\d+)\))?)?")
_MEANT = re.compile(r"#\s*expect", re.IGNORECASE)
_RANKS = re.compile(r"--nproc-per-node=(\d+)")
_LISTS = ("culprits", "victims")
_BESIDE = {"hang": {"slow", "failed"}, "failed": {"slow"}}
"""What the same culprits may be called before or after, by what they are called."""
_SITES = ("site", "victim_site")
_NOT_COMPARED = ("text", "advice", "also", "may_be", "lost", "ranks", "forks")
"""Keys that are no values of the verdict."""
_OF_VERDICTS = (
    *("state", "kind", "reason", "certainty", *_LISTS, *_SITES, "group", "members", "op"),
    *("function", "call", "victim_call", "exit"),
)
_OF_HEALTHY = {"ok": {"state", "exit", "may_be", "ranks", "also"}}
"""Keys that are looked at, by state, where not all are."""
_UNRECORDED = {"op": (BY_CPP, UNNAMED), "certainty": ("likely",)}
"""What may be told instead where RECORDED is false."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the header of a program says of it when it is run with these arguments."""

    program: Path
    arguments: tuple[str, ...]
    launch: tuple[str, ...]
    options: tuple[str, ...]
    values: dict[str, str]
    causes: frozenset[tuple[str, int | None]] = frozenset()
    """Why it came to it: what, and the line. Each is right."""

    def __str__(self) -> str:
        return " ".join((self.program.stem, *self.arguments))

    @property
    def healthy(self) -> bool:
        """Whether it finishes, though it may keep people waiting."""
        return self.values["state"] in ("ok", "slow")

    @property
    def ends(self) -> bool:
        """Whether it comes to its end by itself: one of ``hang|failed`` may not.

        The verdict of one that fails may come before: a rank that is leaving keeps
        its connections for a second or two, and the others wait.
        """
        return self.healthy or self.values["state"].startswith("failed")

    @property
    def forks(self) -> bool:
        """Whether its verdict is the same where its ranks are forked, and not torchrun's.

        What ends needs torchrun to end the others, or to say how a rank ended.
        """
        only = all(option.startswith("--nproc-per-node=") for option in self.launch)
        return self.values["state"] == "hang" and only and self.values.get("forks") != "no"

    @property
    def patient(self) -> bool:
        """Whether its verdict needs patience: it is neither proved nor the job's end."""
        proved = self.values.get("certainty") == "proved" and RECORDED
        return self.values["state"] == "hang" and not proved

    @property
    def world_size(self) -> int:
        """How many ranks it has: ``ranks``, where it starts some itself."""
        return int(self.values.get("ranks", self.nproc))

    @property
    def nproc(self) -> int:
        """How many ranks are started."""
        found = _RANKS.findall(" ".join(self.launch))
        return int(found[-1]) if found else 4

    @property
    def groups(self) -> bool:
        """Whether it makes groups beside one of all ranks."""
        several = r'init_device_mesh\("cpu", \(\d+, \d+|new_group\('
        return bool(re.search(several, self.program.read_text()))


def expectations(programs: Path = PROGRAMS) -> Iterator[Expectation]:
    """All cases of all programs of a directory, in the order of their names.

    Raises ValueError for a header that says what nobody looks at.
    """
    for program in sorted(programs.glob("*.py")):
        cases: dict[str, dict[str, str]] = {}
        text = program.read_text()
        for line in text.splitlines():
            match = _EXPECT.fullmatch(line)
            if match is None and _MEANT.match(line):
                raise ValueError(f"{program.name}: no header: {line}")
            if match:
                pairs = (word.partition("=") for word in match[2].split())
                cases.setdefault(match[1], {}).update({key: value for key, _, value in pairs})
        launch, options = _words(_LAUNCHED, text), _words(_WATCHED, text)
        causes = {
            arguments: frozenset(_causes(text, some)) for arguments, some in _CAUSE.findall(text)
        }
        if not causes.keys() <= cases.keys():
            raise ValueError(f"{program.name}: causes of what is no case: {[*causes]}")
        for arguments, values in cases.items():
            _check(f"{program.name} {arguments}", values)
            yield Expectation(
                program,
                tuple(arguments.split()),
                launch,
                options,
                values,
                causes.get(arguments, frozenset()),
            )


def _causes(text: str, several: str) -> Iterator[tuple[str, int | None]]:
    """Each of several causes. Raises ValueError for a line that is not there, or not alone."""
    lines = [line.strip() for line in text.splitlines()]
    for one in several.split(" | "):
        match = _ONE_CAUSE.fullmatch(one.strip())
        if match is None:
            raise ValueError(f"no cause: {one}")
        what, code, number = match.groups()
        begins = code is not None and code.endswith("...")
        found = [
            at
            for at, line in enumerate(lines, 1)
            if code is not None
            and not line.startswith("#")
            and (line.startswith(code[:-3]) if begins else line.partition("  # ")[0] == code)
        ]
        if number is not None:
            found = [at for at in found if at == int(number)]
        if code is not None and len(found) != 1:
            raise ValueError(f"{len(found)} lines are {code}")
        yield what, found[0] if found else None


def _check(case: str, values: Mapping[str, str]) -> None:
    """Raise ValueError for keys of a header that are not looked at, and for one that is missing."""
    state = values.get("state", "")
    known = _OF_HEALTHY.get(state, {*_OF_VERDICTS, *_NOT_COMPARED})
    unknown = sorted(values.keys() - known)
    if unknown:
        raise ValueError(f"{case}: nobody looks at {', '.join(unknown)}")
    if state not in ("ok", "slow") and not values.keys() >= {"state", "certainty", "culprits"}:
        raise ValueError(f"{case}: its header needs state, culprits and certainty")


def _words(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    return tuple(word for words in pattern.findall(text) for word in words.split())


def marked_line(program: Path, marker: str) -> int:
    """The number of the only line that ends in a comment ``# marker``."""
    lines = program.read_text().splitlines()
    found = [n for n, line in enumerate(lines, 1) if re.search(rf"# {re.escape(marker)}$", line)]
    assert len(found) == 1, f"{program.name} marks {len(found)} lines as {marker}"
    return found[0]


def run(
    case: Expectation,
    python: str = sys.executable,
    *options: str,
    forked: bool = False,
    env: Mapping[str, str] | None = None,
) -> Result:
    """Run a program under watch for as long as its verdict needs.

    python: that of the environment to run it in. options: beside those that its header names.
    forked: fork the ranks, instead of torchrun. Raises NothingCameError where its verdict or its
    end does not come, and AssertionError where something else has been told of it until then.
    """
    quick = QUICK if case.patient and not case.options else ()
    try:
        return watch(
            case.program,
            *quick,
            *case.options,
            *options,
            arguments=case.arguments,
            launch=case.launch,
            nproc=case.nproc,
            until=None if case.ends else reaches("hang"),
            python=python,
            forked=forked,
            env=env,
        )
    except NothingCameError as late:
        wrong = list(_unexplained(case, late.verdicts))
        if wrong:
            raise AssertionError(f"{late}: {wrong}") from None
        raise


def mistakes(case: Expectation, result: Result) -> list[str]:
    """What is not as the header says, one line each. Raises NoAnswerError for a late proof."""
    found = _of_a_healthy_job(case, result) if case.healthy else _of_a_broken_job(case, result)
    return [*found, *against_the_schema(result)]


@cache
def _schema() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(report_schema.document(closed=True))


def against_the_schema(result: Result) -> Iterator[str]:
    """What in the reports is not as their schema says."""
    for report in result.reports:
        for error in _schema().iter_errors(report):
            yield f"a report is not as its schema says: {error.json_path}: {error.message[:200]}"


def _of_a_healthy_job(case: Expectation, result: Result) -> Iterator[str]:
    states = result.states()
    if result.exit_code != 0:
        yield f"it ended with exit code {result.exit_code}"
    if result.survivors:
        yield f"processes outlived it: {result.survivors}"
    if result.run is None or result.run["exit_code"] != 0:
        yield "run.json does not say that it ended well"
    elif len(result.run["incidents"]) != len(states):
        yield "run.json does not list its incidents"
    if case.values["state"] == "ok":
        yield from unexplained(case, result.verdicts)
    elif states != ["slow"]:
        yield f"it is called {' and '.join(states) or 'healthy'}"
    else:
        yield from _differences(case, result.reports[0], result)
        yield from unexplained(case, _but(result, result.reports[0]))
    if states and "the job recovered" not in result.stderr:
        yield "that it recovered is not said"


def _of_a_broken_job(case: Expectation, result: Result) -> Iterator[str]:
    wrong = list(misjudged(case, result))
    late: list[float] = []
    for verdict in (report["verdict"] for report in told_by(case, result)):
        if " ".join(verdict["headline"].split()) not in " ".join(result.stderr.split()):
            wrong.append("the headline is not on standard error")
        if verdict["certainty"] == "proved" and verdict["detected_after_s"] > PROOF_WITHIN_S:
            late.append(verdict["detected_after_s"])
    if late and not wrong:
        raise NoAnswerError(f"the proof took {late[0]} s")
    yield from wrong


def misjudged(case: Expectation, result: Result) -> Iterator[str]:
    """What is told of a broken job otherwise than its header says."""
    told = told_by(case, result)
    if len(told) != 1:
        yield f"it is called {' and '.join(result.states()) or 'healthy'}"
        return
    report = told[0]
    verdict = report["verdict"]
    yield from _differences(case, report, result)
    yield from unexplained(case, _but(result, report))
    unnamed = set(verdict["culprits"]) - _numbers(verdict["headline"])
    if unnamed:
        yield f"the headline does not name {sorted(unnamed)}: {verdict['headline']!r}"
    if not verdict["explanation"] or not verdict["advice"]:
        yield "nothing is explained, or advised"
    text = " ".join((verdict["headline"], verdict["explanation"], verdict["cause"]["why"]))
    if case.values.get("text", "") not in text:
        yield f"the text is {text!r}"
    if case.values.get("advice", "") not in "".join(verdict["advice"][:1]):
        yield f"the first advice is {verdict['advice'][:1]}"
    if [rank["rank"] for rank in report["ranks"]] != list(range(case.world_size)):
        yield "the report leaves ranks out"


def _numbers(text: str) -> set[int]:
    """The numbers of a text, and those between two of ``0-3``."""
    found = {int(number) for number in re.findall(r"\d+", text)}
    for first, last in re.findall(r"(\d+)-(\d+)", text):
        found.update(range(int(first), int(last)))
    return found


def _but(result: Result, report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All that was told but the verdict of a report."""
    return [one for one in result.verdicts if one != report["verdict"]]


def unexplained(case: Expectation, told: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What is told beside the verdict otherwise than the header says."""
    state, _, ranks = case.values.get("also", "").partition(":")
    yield from _unexplained(case, told)
    if state and not any(_is_of(verdict, state, ranks) for verdict in told):
        yield f"it is not called {state} of {ranks}"


def _unexplained(case: Expectation, told: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """What is told that accuses others than the header, or nobody, or is of another state.

    Or proves another kind: what leads to a verdict is not sure of what the verdict denies.
    """
    wanted = set(case.values["state"].split("|"))
    states = wanted.union({case.values.get("may_be")}, *(_BESIDE.get(one, ()) for one in wanted))
    named = set(re.findall(r"\d+", case.values.get("culprits", "")))
    kinds = case.values.get("kind", "").split("|")
    anybody = case.values["state"] == "ok"
    state, _, ranks = case.values.get("also", "").partition(":")
    for verdict in told:
        culprits = set(map(str, verdict["culprits"]))
        guilty = bool(culprits) == bool(named) and culprits <= named
        proved = verdict["certainty"] == "proved" and verdict["kind"] not in kinds
        explained = verdict["state"] in states and (anybody or (guilty and not proved))
        if not explained and not _is_of(verdict, state, ranks):
            yield f"it is also called {verdict['state'].upper()}: {verdict['headline']}"


def _is_of(verdict: Mapping[str, Any], state: str, ranks: str) -> bool:
    return verdict["state"] == state and set(map(str, verdict["culprits"])) == set(ranks.split(","))


def named_cause(case: Expectation, result: Result) -> tuple[bool, list[tuple[str, int | None]]]:
    """Whether the cause is said to be more than possible, and what it is called, best first."""
    (report,) = told_by(case, result)
    cause = report["verdict"]["cause"]
    several = [
        (one["what"], one["site"]["line"] if one["site"] else None)
        for one in (cause, *cause["others"])
    ]
    return cause["certainty"] != "possible", several


def told_by(case: Expectation, result: Result) -> list[dict[str, Any]]:
    """The reports that have come to the state that the header names."""
    wanted = case.values["state"].split("|")
    return [report for report in result.reports if report["verdict"]["state"] in wanted]


def _differences(case: Expectation, report: Mapping[str, Any], result: Result) -> Iterator[str]:
    found = values_of(report, result)
    lost = case.values.get("lost", "").split("|")
    unsure: tuple[str, ...] = ("possible", "likely") if found["kind"] in lost else ("possible",)
    # What is recorded has lost nothing, unless the header says so.
    may_have_lost = result.run is not None or "lost" in case.values
    unsure = unsure if may_have_lost else ()
    if found["state"] == "failed" and found["certainty"] in unsure and _has_lost(report):
        culprits = re.findall(r"\d+", case.values["culprits"])
        if not {int(rank) for rank in culprits} & set(found["culprits"]):
            yield f"the culprit is not among {found['culprits']}"
        if found["kind"] not in ("died", *case.values["kind"].split("|"), *lost):
            yield f"kind is {found['kind']}"
        return
    for key, text in case.values.items():
        if key in _NOT_COMPARED:
            continue
        wanted = [_value(case, key, one) for one in text.split("|")]
        if key == "op" and _has_lost(report):
            wanted.append(BY_CPP)  # which one it was only the recorder knew
        if not RECORDED:
            wanted += _UNRECORDED.get(key, ())
        if found[key] not in wanted:
            shown = f"{wanted[0]}" if len(wanted) == 1 else f"one of {wanted}"
            yield f"{key} is {found[key]}, not {shown}"


def values_of(report: Mapping[str, Any], result: Result) -> dict[str, Any]:
    """What a report says, by the keys that headers use."""
    verdict = report["verdict"]
    group, collective = verdict["group"] or {}, verdict["collective"] or {}
    return {
        **verdict,
        "group": group.get("desc") or group.get("name"),
        "members": group.get("ranks"),
        "op": collective.get("op"),
        "site": _place(verdict["site"]),
        "victim_site": _place(verdict.get("victim_site")),
        "function": (verdict["site"] or {}).get("function", "").rpartition(".")[2],
        "call": _called(verdict["site"]),
        "victim_call": _called(verdict.get("victim_site")),
        "exit": result.exit_code,
    }


def _has_lost(report: Mapping[str, Any]) -> bool:
    """Whether torchrun ended ranks before anybody had read what C++ did in them.

    It does so within 0.1 s of an abort; then candidates are all that can be named.
    """
    ended = (rank for rank in report["ranks"] if rank["process"]["terminated_by_launcher"])
    missing = (text for rank in ended for text in rank["missing_evidence"])
    return any("no Flight Recorder: it ended" in text for text in missing)


def _value(case: Expectation, key: str, text: str) -> Any:
    if text == "none":
        return None
    if key in (*_LISTS, "members"):
        return [int(rank) for rank in text.split(",") if rank]
    if key in _SITES:
        return str(case.program), marked_line(case.program, text)
    return int(text) if key == "exit" else text


def _called(site: Mapping[str, Any] | None) -> str | None:
    call = (site or {}).get("call")
    return call["function"] if call else None


def _place(site: Mapping[str, Any] | None) -> tuple[str, int] | None:
    return (site["file"], site["line"]) if site else None
