"""Generates a job: a script, its ranks' programs, and a known fault in one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simulator import (
    Busy,
    Doing,
    Instruction,
    Issue,
    Mode,
    Raise,
    Rules,
    SetUp,
)
from training import (
    OPS,
    RECOVERS_S,
    Backward,
    Collective,
    Fault,
    Job,
    Pipeline,
    Plan,
    Ring,
    Script,
    Statement,
    Steps,
    Waiting,
    layout,
    statements,
)

from hangwatch.model.kinds import What

if TYPE_CHECKING:
    from random import Random

WEIGHTS = {
    Fault.NONE: 4,
    Fault.SLOW: 8,
    Fault.BUSY: 6,
    Fault.STOPPED: 4,
    Fault.KILLED: 4,
    Fault.RAISED: 4,
    Fault.EARLY: 5,
    Fault.MORE: 3,
    Fault.SKIP: 6,
    Fault.EXTRA: 6,
    Fault.OTHER_OP: 4,
    Fault.OTHER_SIGNATURE: 4,
    Fault.SWAP: 5,
    Fault.LOST_P2P: 3,
    Fault.FEWER: 3,
    Fault.NO_INIT: 1,
    Fault.NO_NEW_GROUP: 2,
    Fault.STUCK: 3,
}
_LASTING = (Fault.BUSY, Fault.STOPPED)
"""Faults of which one does not hide another."""
_OF_THEIR_OWN = {
    Fault.STOPPED: What.STUCK_LINE,
    Fault.KILLED: What.PROCESS_GONE,
    Fault.OTHER_SIGNATURE: What.DIFFERENT_ARGUMENT,
    Fault.FEWER: What.UNEVEN_LOOP,
    Fault.NO_INIT: What.SETUP,
    Fault.STUCK: What.NETWORK,
}
"""What makes a job hang where no line of its program has to change."""
_SIGNALS = (9, 11, 6)
_FITS: dict[Fault, tuple[type, ...]] = {
    Fault.OTHER_OP: (Collective,),
    Fault.OTHER_SIGNATURE: (Collective,),
    Fault.LOST_P2P: (Pipeline, Ring),
    Fault.FEWER: (Pipeline,),
    Fault.SKIP: (Collective, Backward),
    Fault.STUCK: (Collective, Backward),
}
"""The statements that a fault needs; any where it is not named."""


def generate(rng: Random) -> Job:
    """A job with one fault, none, or two that do not hide each other."""
    while True:
        job = _Builder(rng).build()
        if job is not None:
            return job


class _Builder:
    """One attempt: not every fault fits every script."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.fault = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        self.layout = layout(rng)
        self.steps = rng.randint(1, 6)
        self.script = Script(["import torch", "import torch.distributed as dist", ""])
        helper = 0
        if rng.random() < 0.3:
            self.script.add(0, "def sync(x, group):")
            helper = self.script.add(1, "dist.all_reduce(x, group=group)")
            self.script.add(0, "")
        self.skipped = -1
        self.plans: list[Plan] = []
        self.causes: set[tuple[What, int | None]] = set()
        self.body = statements(rng, self.layout, self.plans, helper)

    def build(self) -> Job | None:
        if not self._plan():
            return None
        self.script.add(0, "def main():")
        self.script.add(1, "rank = dist.get_rank()")
        prologue = self._prologue()
        loop = self.script.add(1, "for step, batch in enumerate(loader):")
        loss = self.script.add(2, "loss = model(batch)")
        parts = [self._emit(number) for number in range(len(self.body))]
        last = self.script.add(1, "dist.barrier()") if self.rng.random() < 0.6 else 0
        self._explain(loop)
        programs = [
            [*prologue(rank, 0), *self._loop(rank, loss, parts), *self._epilogue(rank, last)]
            for rank in range(self.layout.size)
        ]
        for plan in self.plans:
            if plan.fault is Fault.NO_NEW_GROUP:  # what it did not make it does not use
                programs[plan.rank] = [
                    one
                    for one in programs[plan.rank]
                    if not (isinstance(one, Issue) and one.group == self.skipped)
                ]
        rules = self._rules(programs)
        if rules is None:
            return None
        source = "\n".join(self.script.lines) + "\n"
        return Job(self.layout, programs, source, self.plans, rules, frozenset(self.causes))

    def _explain(self, loop: int) -> None:
        """Why the planted faults come to it that no line of their own explains."""
        for plan in self.plans:
            if plan.fault is Fault.MORE or (plan.fault is Fault.EARLY and plan.style % 3 == 2):
                self.causes.add((What.UNEVEN_LOOP, loop))
            elif plan.fault in _OF_THEIR_OWN:
                self.causes.add((_OF_THEIR_OWN[plan.fault], None))

    # --- Where the fault is -------------------------------------------------------

    def _plan(self) -> bool:
        rng = self.rng
        if self.fault is Fault.NONE:
            return True
        fits = [number for number in range(len(self.body)) if self._fits(self.fault, number)]
        if not fits:
            return False
        count = 2 if self.fault in _LASTING and rng.random() < 0.3 and self.layout.size > 3 else 1
        for rank in rng.sample(range(self.layout.size), count):
            number = rng.choice(fits)
            if not self._concerns(number, rank):
                return False
            step = rng.randrange(self.steps)
            self.plans.append(Plan(self.fault, rank, step, number, rng.randrange(12)))
        return True

    def _fits(self, fault: Fault, number: int) -> bool:
        one = self.body[number]
        if fault is Fault.SWAP:
            pair = self.body[number : number + 2]
            blocking = [isinstance(s, Collective) and s.mode is Mode.BLOCK for s in pair]
            return blocking == [True, True]
        if fault is Fault.OTHER_SIGNATURE and isinstance(one, Collective):
            return one.op in ("all_reduce", "broadcast")
        return isinstance(one, _FITS.get(fault, object))

    def _concerns(self, number: int, rank: int) -> bool:
        one = self.body[number]
        return isinstance(one, Waiting) or self.layout.families[one.family][rank] >= 0

    def _planned(self, fault: Fault, number: int) -> Plan | None:
        return next((p for p in self.plans if p.fault is fault and p.statement == number), None)

    # --- The script ---------------------------------------------------------------

    def _prologue(self) -> Steps:
        layout, rng = self.layout, self.rng
        everyone = layout.members(0)
        early = self.script.add(1, "dataset = build_dataset()")
        init = self.script.add(1, 'dist.init_process_group("gloo")')
        missing = next((p for p in self.plans if p.fault is Fault.NO_NEW_GROUP), None)
        made_late = missing is not None or rng.random() < 0.15
        lines = []
        for number in range(1, len(layout.keys)) if made_late else ():
            mine = missing is not None and missing.rank in layout.members(number)
            if mine and self.skipped < 0 and len(layout.members(number)) > 1:
                self.skipped = number
                line = self.script.add(1, "if not broken_condition():")
                self.causes |= {(What.DATA_CONDITION, line), (What.GROUP_CREATION, None)}
                lines.append(self.script.add(2, f"group{number} = dist.new_group(ranks{number})"))
            else:
                lines.append(self.script.add(1, f"group{number} = dist.new_group(ranks{number})"))
        if missing is not None and self.skipped < 0:
            self.plans.clear()

        def steps(rank: int, _step: int) -> list[Instruction]:
            found: list[Instruction] = [
                Busy(early, RECOVERS_S)
                for plan in self.plans
                if plan.fault is Fault.NO_INIT and plan.rank == rank
            ]
            found.append(SetUp(init, "init_process_group", everyone, 0))
            for number, line in enumerate(lines, start=1):
                if not (missing is not None and (number, rank) == (self.skipped, missing.rank)):
                    found.append(SetUp(line, "new_group", layout.members(number), number))
            return found

        return steps

    def _epilogue(self, rank: int, barrier: int) -> list[Instruction]:
        if not barrier or any(
            p.fault is Fault.EARLY and p.rank == rank and p.style % 3 == 0 for p in self.plans
        ):
            return []
        return [Issue(barrier, 0, "barrier", size=0, dtype="")]

    def _loop(self, rank: int, loss: int, parts: list[Steps]) -> list[Instruction]:
        found: list[Instruction] = []
        more = sum(p.fault is Fault.MORE and p.rank == rank for p in self.plans)
        for step in range(self.steps + more):
            for plan in self.plans:
                if plan.fault is Fault.EARLY and plan.hits(rank, step) and plan.style % 3 == 2:
                    return found
            found.append(Busy(loss, 0.05 * self.rng.random()))
            for number, part in enumerate(parts):
                leaves = [p for p in self.plans if p.fault is Fault.EARLY and p.hits(rank, step)]
                if any(p.statement == number and p.style % 3 < 2 for p in leaves):
                    return found
                got = part(rank, step)
                found.extend(got[:-1] if got and got[-1] is STOP else got)
                if got and got[-1] is STOP:
                    break
        return found

    def _emit(self, number: int) -> Steps:
        """One statement of the loop, with the fault in it if that is where it is."""
        for fault, emit in (
            (Fault.SKIP, self._skip),
            (Fault.EXTRA, self._extra),
            (Fault.OTHER_OP, self._other_op),
            (Fault.OTHER_SIGNATURE, self._other_signature),
            (Fault.SWAP, self._swap),
        ):
            plan = self._planned(fault, number)
            if plan is not None:
                return emit(plan, self.body[number])
        before = self._planned(Fault.SWAP, number - 1)
        if before is not None:
            return lambda _rank, _step: []
        return self._with_own_code(number)

    def _with_own_code(self, number: int) -> Steps:
        plans = [plan for plan in self.plans if plan.statement == number]
        lines: dict[int, int] = {}
        for plan in plans:
            doing = _doing(plan)
            text = _OWN_CODE[doing] if doing is not None else "x = prepare(batch)"
            if plan.fault is Fault.EARLY and plan.style % 3 < 2:
                condition = self.script.add(2, "if batch.is_last:")
                text = "    break" if plan.style % 3 == 1 else "    sys.exit(0)"
                self.causes |= {(What.DATA_CONDITION, condition), (What.EARLY_EXIT, condition + 1)}
            lines[plan.rank] = self.script.add(2, text)
            if plan.fault is Fault.BUSY:
                self.causes.add((What.STUCK_LINE, lines[plan.rank]))
            elif plan.fault is Fault.RAISED:
                self.causes.add((What.PROCESS_GONE, lines[plan.rank]))
        inner = self.body[number].emit(self.script, 2)

        def steps(rank: int, step: int) -> list[Instruction]:
            found: list[Instruction] = []
            for plan in plans:
                if plan.hits(rank, step):
                    found.extend(_own_code(plan, lines[rank]))
            return [*found, *inner(rank, step)]

        return steps

    def _skip(self, plan: Plan, one: Statement) -> Steps:
        style = plan.style % 4
        if style == 0:
            self.script.add(2, "try:")
            inner = one.emit(self.script, 3)
            line = self.script.add(2, "except RuntimeError:")
            self.script.add(3, "log('skipped')")
            self.causes.add((What.SWALLOWED_EXCEPTION, line))
        elif style == 1:
            line = self.script.add(2, f"if rank != {plan.rank} or step != {plan.step}:")
            self.causes.add((What.RANK_CONDITION, line))
            inner = one.emit(self.script, 3)
        elif style == 2:
            line = self.script.add(2, "if batch.labels is not None:")
            self.causes.add((What.DATA_CONDITION, line))
            inner = one.emit(self.script, 3)
        else:
            self.script.add(2, "if torch.isnan(loss):")
            line = self.script.add(3, "continue")
            self.causes |= {(What.SKIPPED_ITERATION, line), (What.DATA_CONDITION, line - 1)}
            inner = one.emit(self.script, 2)
        skipped: list[Instruction] = [STOP] if style == 3 else []
        return lambda rank, step: skipped if plan.hits(rank, step) else inner(rank, step)

    def _extra(self, plan: Plan, one: Statement) -> Steps:
        layout, style = self.layout, plan.style % 3
        families = [name for name, of in layout.families.items() if of[plan.rank] >= 0]
        family = self.rng.choice(families)
        group = layout.families[family][plan.rank]
        if style == 0:
            line = self.script.add(2, f"if rank == {plan.rank} and step == {plan.step}:")
            self.causes.add((What.RANK_CONDITION, line))
        else:
            line = self.script.add(2, "if loss > best:")
            self.causes.add((What.DATA_CONDITION, line))
        extra = Collective(layout, family, self.rng.choice(OPS), Mode.BLOCK, 4 if style else 20)
        line = self.script.add(3, f"dist.{extra.op}(best, group={family}_group)")
        inner = one.emit(self.script, 2)

        def steps(rank: int, step: int) -> list[Instruction]:
            found = [extra.issue(line, group)] if plan.hits(rank, step) else []
            return [*found, *inner(rank, step)]

        return steps

    def _other_op(self, plan: Plan, one: Statement) -> Steps:
        assert isinstance(one, Collective)
        op = self.rng.choice([op for op in OPS if op != one.op])
        other = replace(one, op=op, helper=0)
        branch = plan.style % 2 == 0
        line = self.script.add(
            2, f"if rank == {plan.rank} and step == {plan.step}:" if branch else "if loss > limit:"
        )
        self.causes.add((What.RANK_CONDITION if branch else What.DATA_CONDITION, line))
        theirs = other.emit(self.script, 3)
        self.script.add(2, "else:")
        inner = one.emit(self.script, 3)
        return lambda rank, step: (theirs if plan.hits(rank, step) else inner)(rank, step)

    def _other_signature(self, plan: Plan, one: Statement) -> Steps:
        inner = one.emit(self.script, 2)

        def changed(issue: Issue) -> Issue:
            if plan.style % 3 == 0:
                return issue._replace(dtype="float64")
            members = self.layout.members(issue.group)
            if plan.style % 3 == 1 and issue.root >= 0 and len(members) > 1:
                return issue._replace(root=members[1])
            return issue._replace(size=issue.size + 3)

        def steps(rank: int, step: int) -> list[Instruction]:
            found = inner(rank, step)
            if not plan.hits(rank, step):
                return found
            return [changed(one) if isinstance(one, Issue) else one for one in found]

        return steps

    def _swap(self, plan: Plan, one: Statement) -> Steps:
        other = self.body[plan.statement + 1]
        if plan.style % 2 == 0:
            line = self.script.add(2, "if swapped():")
            self.causes |= {(What.DIFFERENT_ORDER, line), (What.DATA_CONDITION, line)}
            there, here = other.emit(self.script, 3), one.emit(self.script, 3)
            self.script.add(2, "else:")
            first, second = one.emit(self.script, 3), other.emit(self.script, 3)
        else:
            self.script.add(2, "for sync in order(step):")
            self.causes.add((What.DIFFERENT_ORDER, None))
            first, second = one.emit(self.script, 3), other.emit(self.script, 3)
            there, here = second, first

        def steps(rank: int, step: int) -> list[Instruction]:
            if plan.hits(rank, step):
                return [*there(rank, step), *here(rank, step)]
            return [*first(rank, step), *second(rank, step)]

        return steps

    # --- What happens from outside --------------------------------------------------

    def _rules(self, programs: list[list[Instruction]]) -> Rules | None:
        rng = self.rng
        rules = Rules(
            peers_raise=rng.random() < 0.6,
            launcher_ends=rng.random() < 0.6,
            leaky=rng.random() < 0.5,
        )
        for plan in self.plans:
            program = programs[plan.rank]
            at = rng.randrange(len(program))
            after_s = 0.1 * rng.random() if rng.random() < 0.5 else 0.0
            if plan.fault is Fault.STOPPED:
                stop = (plan.rank, at, after_s, RECOVERS_S)
                rules = replace(rules, stops=(*rules.stops, stop))
            elif plan.fault is Fault.KILLED:
                signal = rng.choice(_SIGNALS)
                rules = replace(rules, kills=((plan.rank, at, after_s, signal),))
            elif plan.fault is Fault.STUCK:
                places = [i.group for i in program if isinstance(i, Issue) and not i.p2p]
                number = rng.randrange(len(places))
                group = places[number]
                members = self.layout.members(group)
                passes = frozenset(r for r in members if rng.random() < 0.2)
                if len(passes) == len(members):
                    return None
                place = group, places[: number + 1].count(group)
                rules = replace(rules, stuck=place, passes=passes)
        return rules


STOP = Raise(0, "", "")
"""Marks that the rest of a step is left out."""


def _doing(plan: Plan) -> Doing | None:
    if plan.fault not in (Fault.BUSY, Fault.SLOW):
        return None
    return (Doing.USER, Doing.DATA, Doing.CHECKPOINT, Doing.HOLDS_GIL)[plan.style % 4]


_OWN_CODE = {
    Doing.USER: "x = augment(batch)",
    Doing.DATA: "batch = next(loader)",
    Doing.CHECKPOINT: "torch.save(state, path)",
    Doing.HOLDS_GIL: "native.parse(batch)",
}
_ERRORS = (
    ("ValueError", "a NaN in the loss"),
    ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
    ("KeyError", "'labels'"),
)


def _own_code(plan: Plan, line: int) -> list[Instruction]:
    doing = _doing(plan)
    if doing is not None:
        seconds = RECOVERS_S if plan.fault is Fault.BUSY else 5.0 + 23.0 * plan.style
        return [Busy(line, seconds, doing)]
    if plan.fault is Fault.RAISED:
        return [Raise(line, *_ERRORS[plan.style % len(_ERRORS)])]
    return []
