"""The table of advice for what the source shows: the change to make, at its line."""

from __future__ import annotations

from hangwatch.diagnosis.advice.links import DATA, DISTRIBUTED
from hangwatch.diagnosis.advice.remedy import Remedy
from hangwatch.types.kinds import What

BY_CAUSE: tuple[Remedy, ...] = (
    Remedy(
        "change",
        "Have every rank of the group make the call: take it out of `{cause}` at {cause_line}, and "
        "keep only the use of its result (printing, saving) below the condition.",
        causes=(What.RANK_CONDITION,),
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
        "Give `{cause}` at {cause_line} the same number of turns on every rank: DistributedSampler "
        "(drop_last alike on all), equal shards, or a count that is agreed on before the loop.",
        DATA,
        causes=(What.UNEVEN_LOOP,),
    ),
    Remedy(
        "change",
        "Do not leave by `{cause}` at {cause_line} on one rank alone: agree on it first, such as "
        "by an all_reduce of the flag, so that all leave in the same step.",
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
        "Fix what was raised before `{cause}` at {cause_line}. And let the other ranks know: raise "
        "it again, so that the job ends with it, or agree after the `try` by an all_reduce of a "
        "flag whether to go on.",
        DISTRIBUTED,
        causes=(What.SWALLOWED_EXCEPTION,),
    ),
    Remedy(
        "change",
        "Make the calls around `{cause}` at {cause_line} in one order on all ranks.",
        causes=(What.DIFFERENT_ORDER,),
    ),
)
