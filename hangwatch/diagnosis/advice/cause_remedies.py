"""The table of advice for what the source shows: the change to make, at its line."""

from __future__ import annotations

from hangwatch.diagnosis.advice.facts import Use
from hangwatch.diagnosis.advice.library_remedies import OF_ACCELERATOR
from hangwatch.diagnosis.advice.links import ACCELERATE, DATA, DISTRIBUTED, LIGHTNING, TORCH
from hangwatch.diagnosis.advice.remedy import Remedy
from hangwatch.types.kinds import Kind, What

_ALONE = (Kind.SUBSET_ENTERED,)

BY_CAUSE: tuple[Remedy, ...] = (
    Remedy(
        "change",
        "Set {unset}, which is waited for, also where `{cause}` at {cause_line} leads {culprits} "
        "past {set_at}.",
        kinds=(Kind.MISSING_PEER,),
    ),
    Remedy(
        "change",
        "Let {culprits} come by {passed_at} also where `{cause}` at {cause_line} leads past it: "
        "the others wait until all have been there.",
        kinds=(Kind.MISSING_PEER,),
    ),
    Remedy(
        "change",
        "See what led {culprits} past {passed_at} this time: the others wait until all have been "
        "there.",
        kinds=(Kind.MISSING_PEER,),
    ),
    Remedy(
        "change",
        "Count alike on both sides: {either} is waited for at {other_line}, and what is set at "
        "{last_at} does not go so far.",
        kinds=(Kind.MISSING_PEER,),
    ),
    Remedy(
        "change",
        "See what led {culprits} past {set_at} this time, where it has set such keys before: "
        "{unset} is waited for.",
        kinds=(Kind.MISSING_PEER,),
    ),
    Remedy(
        "change",
        "self.log(..., sync_dist=True) is a collective: call it on all ranks, outside of "
        "`{cause}` at {cause_line}; the logger writes on rank 0 alone anyway.",
        f"{LIGHTNING}/extensions/logging.html",
        causes=(What.RANK_CONDITION,),
        kinds=_ALONE,
        uses=(Use.LIGHTNING,),
        call=r"log|log_dict",
    ),
    Remedy(
        "change",
        "`{call}` depends on `{cause}` at {cause_line}: move it out, and keep only the print or "
        "the write inside, under `accelerator.is_main_process`.",
        f"{ACCELERATE}/basic_tutorials/execution",
        causes=(What.RANK_CONDITION,),
        kinds=_ALONE,
        uses=(Use.ACCELERATE,),
        call=OF_ACCELERATOR,
    ),
    Remedy(
        "change",
        "`{leaving}` below `{cause}` at {cause_line} takes {culprits} past calls that the others "
        "make: make these calls before it, or have all ranks of the group go the same way.",
        causes=(What.RANK_CONDITION,),
    ),
    Remedy(
        "change",
        "See for which ranks `{cause}` at {cause_line} holds: {alike} went one way, and each waits "
        "for a message of the other one. A local rank is 0 on each node, and the rank only once.",
        kinds=(Kind.MISSING_PEER,),
    ),
    Remedy(
        "change",
        "Pass {own_group} to the `{op}` at {line}, if it is for {culprits} alone: they are just "
        "that group, and the call is in one of more ranks. Else make it on all ranks, outside of "
        "`{cause}` at {cause_line}.",
        causes=(What.RANK_CONDITION,),
        kinds=_ALONE,
    ),
    Remedy(
        "change",
        "`{entered}` depends on `{cause}` at {cause_line}, and is for all ranks of the group: move "
        "it out, and keep only the use of its result (printing, saving) below the condition.",
        causes=(What.RANK_CONDITION,),
        kinds=_ALONE,
    ),
    Remedy(
        "change",
        "Make the call at {other_line} on all ranks, outside of `{cause}` at {cause_line}: all "
        "ranks of the job have to come to it, also those that are not in the group.",
        causes=(What.RANK_CONDITION, What.DATA_CONDITION),
        kinds=(Kind.INIT_INCOMPLETE,),
    ),
    Remedy(
        "change",
        "Have all ranks of the group go one way at `{cause}` at {cause_line}: make the calls "
        "outside of it, and keep only the use of their results (printing, saving) below it.",
        causes=(What.RANK_CONDITION,),
    ),
    Remedy(
        "change",
        "Decide `{cause}` at {cause_line} by what both sides of a message know alike: exchange the "
        "counts after the last change to them, or send what is empty, too.",
        causes=(What.DATA_CONDITION,),
        kinds=(Kind.MISSING_PEER,),
    ),
    Remedy(
        "change",
        "Let `{cause}` at {cause_line} be decided alike on all ranks (all_reduce or broadcast what "
        "it asks for), or make the calls below it whatever it says.",
        DISTRIBUTED,
        causes=(What.DATA_CONDITION,),
    ),
    Remedy(
        "change",
        "Have `{asking}` at {cause_line} end in the same turn on every rank: what it asks for has "
        "to begin alike (broadcast a step that is restored from a checkpoint) and to change alike, "
        "or be agreed on in each turn by an all_reduce.",
        DISTRIBUTED,
        causes=(What.UNEVEN_LOOP,),
    ),
    Remedy(
        "change",
        "Give `{counted}` at {cause_line} the same number of turns on every rank: compute it from "
        "what all ranks know alike, or agree on it before the loop (an all_reduce with MIN).",
        DISTRIBUTED,
        causes=(What.UNEVEN_LOOP,),
    ),
    Remedy(
        "change",
        "Give `{cause}` at {cause_line} the same number of turns on every rank: DistributedSampler "
        "(drop_last alike on all), equal shards, or a count that is agreed on before the loop.",
        DATA,
        causes=(What.UNEVEN_LOOP,),
    ),
    Remedy(
        "change",
        "See what led {culprits} to `{fed}` at {cause_line}: the generator has ended there, and "
        "the loop over it with it. To leave out one item `continue`; and give all ranks as many "
        "(pad, or agree on the count before the loop).",
        causes=(What.EARLY_EXIT,),
    ),
    Remedy(
        "change",
        "Do not leave by `{cause}` at {cause_line} on one rank alone: take part in the calls that "
        "follow with what is neutral there (zeros, an empty list), or agree to leave by an "
        "all_reduce of a flag, so that all leave in the same step.",
        DISTRIBUTED,
        causes=(What.EARLY_EXIT,),
    ),
    Remedy(
        "change",
        "Do not leave out the rest of a turn by `{cause}` at {cause_line} on one rank alone: take "
        "part in its calls with a neutral value (a loss of zero), or agree to skip it by an "
        "all_reduce of a flag.",
        DISTRIBUTED,
        causes=(What.SKIPPED_ITERATION,),
    ),
    Remedy(
        "change",
        "Repeat only what can fail on one rank alone (a read, a write), and not the calls of all "
        "ranks with it: `{repeats}` at {cause_line} has them made again, and the others do not.",
        causes=(What.SWALLOWED_EXCEPTION,),
    ),
    Remedy(
        "change",
        "Fix the {unwinding} that was raised at {cause_line}: {culprits} came to {line} on its way "
        "out. And make no calls there for which the others have to be (`finally`, `__exit__`, "
        "callbacks of an ExitStack): the exception is not seen as long as they wait.",
        causes=(What.SWALLOWED_EXCEPTION,),
    ),
    Remedy(
        "change",
        "Fix the {raised} that led {culprits} to `{cause}` at {cause_line}. And let the other "
        "ranks know: raise it again, so that the job ends with it, or agree after the `try` by an "
        "all_reduce of a flag whether to go on.",
        causes=(What.SWALLOWED_EXCEPTION,),
    ),
    Remedy(
        "change",
        "Fix what was raised before `{cause}` at {cause_line}. And let the other ranks know: raise "
        "it again, so that the job ends with it, or agree after the `try` by an all_reduce of a "
        "flag whether to go on.",
        DISTRIBUTED,
        causes=(What.SWALLOWED_EXCEPTION,),
    ),
    Remedy(
        "change",
        "Make no calls of several ranks in `__del__` (`{finalizing}` at {cause_line}): give the "
        "class a method for it, and call that at one line on all ranks.",
        causes=(What.DIFFERENT_ORDER,),
    ),
    Remedy(
        "change",
        "Go over `sorted(...)` in `{unordered}` at {cause_line}, or over a list that is the same "
        "on all ranks.",
        causes=(What.DIFFERENT_ORDER,),
    ),
    Remedy(
        "change",
        "Make the calls around `{cause}` at {cause_line} in one order on all ranks.",
        causes=(What.DIFFERENT_ORDER,),
    ),
    Remedy(
        "change",
        "Give the two sides of a message one {tag}: derive it at {line} and at {other_line} from "
        "what both count alike, such as the step or the micro-batch.",
        causes=(What.DIFFERENT_ARGUMENT,),
        kinds=(Kind.MISSING_PEER,),
    ),
    Remedy(
        "change",
        "Pass one {group} to the two sides of a message, at {line} and at {other_line}.",
        causes=(What.DIFFERENT_ARGUMENT,),
        kinds=(Kind.MISSING_PEER,),
    ),
    Remedy(
        "change",
        "See how the peer of `{cause}` at {cause_line} is computed on {culprits}: it has to name "
        "the rank that names this one in turn, in each step.",
        causes=(What.DIFFERENT_ARGUMENT,),
        kinds=(Kind.MISSING_PEER,),
    ),
    Remedy(
        "change",
        "Give the calls of each thread a group of their own (new_group on all ranks, before the "
        "thread starts), or end the thread before the next call: in one group all ranks have to "
        "make their calls in one order.",
        DISTRIBUTED,
        causes=(What.UNORDERED_THREADS,),
    ),
    Remedy(
        "accumulate",
        "Enter `{cause}` at {cause_line} on all ranks in the same turns: by the number of the "
        "micro-batch, and not by what a rank has seen of its data. A backward pass within it "
        "averages no gradients, for which the others wait.",
        f"{TORCH}/notes/ddp.html",
        causes=(What.NO_SYNC,),
    ),
    Remedy(
        "unused",
        "Let every parameter take part in the loss in each step on all ranks, see `{cause}` at "
        "{cause_line} (a part that is left out may be added with a factor of 0); or construct "
        "DistributedDataParallel with find_unused_parameters=True.",
        f"{TORCH}/notes/ddp.html",
        causes=(What.UNUSED_PARAMETER,),
    ),
    Remedy(
        "new_group",
        "Call new_group at {cause_line} on all ranks of the job, also for groups that they are not "
        "in, with the same ranks in the same order: over a list that is alike everywhere.",
        DISTRIBUTED,
        causes=(What.GROUP_CREATION,),
    ),
)
