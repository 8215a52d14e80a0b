"""The table of advice for each kind of finding, whatever a program is built on.

Data, not logic. What a culprit is doing has reason_remedies, libraries library_remedies.
"""

from __future__ import annotations

from hangwatch.diagnosis.advice.facts import Use
from hangwatch.diagnosis.advice.links import DATA, DDP, DISTRIBUTED, ELASTIC, JOIN, TORCH
from hangwatch.diagnosis.advice.remedy import Remedy
from hangwatch.types.kinds import Kind, Reason, What

BY_ERROR: tuple[Remedy, ...] = (
    Remedy(
        "unused",
        "A parameter got no gradient on {culprits}: let every parameter take part in the loss in "
        "each step, or construct DistributedDataParallel with find_unused_parameters=True.",
        DDP,
        error=r"finished reduction in the prior iteration",
        unless=(Use.LIGHTNING, Use.ACCELERATE, Use.TRANSFORMERS),
    ),
    Remedy(
        "static",
        "static_graph=True promises that the same parameters are used in every step: leave it "
        "out, or do not change what is used.",
        DDP,
        error=r"training graph has changed",
    ),
    Remedy(
        "port",
        "Another process, perhaps a job that was left behind, has that port: end it, or take "
        "another MASTER_PORT (torchrun --rdzv-endpoint=HOST:0 finds a free one).",
        ELASTIC,
        error=r"EADDRINUSE|[Aa]ddress already in use",
    ),
    Remedy(
        "space",
        "Make room on the file system that {culprits} wrote to, or write somewhere else.",
        error=r"No space left on device|Errno 28",
    ),
    Remedy(
        "assert",
        "Run with CUDA_LAUNCH_BLOCKING=1 to have the line that started the kernel; an index out of "
        "range (labels, tokens) is the most common cause.",
        f"{TORCH}/notes/cuda.html",
        error=r"device-side assert|illegal memory access",
    ),
    Remedy(
        "shm",
        "Give the container more shared memory (docker run --shm-size, --ipc=host): the workers "
        "of the DataLoader hand over batches in /dev/shm.",
        DATA,
        error=r"DataLoader worker .*(?:killed by signal: Bus error|exited unexpectedly)",
    ),
)

BY_KIND: tuple[Remedy, ...] = (
    Remedy(
        "slow rank",
        "Find out what kept {culprits} there. The time-out of {impatient} ended the job before "
        "anybody looked: make it longer than --hang-after, and the line will be told.",
        kinds=(Kind.NEVER_ENTERED,),
    ),
    Remedy(
        "wait",
        "If it is meant to take so long, give {impatient} a longer timeout in init_process_group "
        "or new_group.",
        DISTRIBUTED,
        kinds=(Kind.NEVER_ENTERED,),
    ),
    Remedy(
        "slow rank",
        "Find out what keeps this rank, and no other, at the line shown.",
        kinds=(Kind.NEVER_ENTERED,),
    ),
    Remedy(
        "wait",
        "If it is meant to take so long, raise --hang-after, or do not make the others wait for "
        "it.",
        kinds=(Kind.NEVER_ENTERED,),
    ),
    Remedy(
        "batches",
        "Find out what ended the program early there: fewer batches than others have "
        "(DistributedSampler makes them even), a return, a break or sys.exit() that depends on "
        "the rank or its data, an exception that was caught, or a library that ends the process.",
        DATA,
        kinds=(Kind.FINISHED_EARLY,),
    ),
    Remedy(
        "join",
        "Or, with DistributedDataParallel, wrap `{cause}` in `with Join([model])`, which shadows "
        "the collectives of `{backward}` for ranks that have run out of data.",
        JOIN,
        causes=(What.UNEVEN_LOOP,),
        uses=(Use.DDP,),
        unless=(Use.FSDP, Use.DEEPSPEED, Use.PIPELINE, Use.JOIN),
    ),
    Remedy(
        "stop",
        "If a rank stops early on purpose, decide it together: all_reduce a stop flag.",
        kinds=(Kind.FINISHED_EARLY,),
    ),
    Remedy(
        "failure",
        "Where gloo says `op.preamble.length <= op.nbytes`, it ended {culprits} with {abort} for "
        "what another rank sent: look for a collective that not all ranks make, or a tensor that "
        "differs.",
        kinds=(Kind.DIED,),
        reasons=(Reason.SIGNAL,),
    ),
    Remedy(
        "failure",
        "Read in the output of {culprits} what came before {abort_on_gpu}: of a `CUDA error` run "
        "again with CUDA_LAUNCH_BLOCKING=1, which shows the line; of `Watchdog caught collective "
        "operation timeout` look for a rank that did not come.",
        kinds=(Kind.DIED,),
        reasons=(Reason.SIGNAL,),
    ),
    Remedy(
        "failure",
        "If standard error says `terminate called without an active exception`, a thread of torch "
        "(of gloo, say) was still at work as the program of {culprits} ended, hence {late_abort}: "
        "wait for every work and future before, and leave by os._exit(0) once all is written.",
        kinds=(Kind.DIED,),
        reasons=(Reason.SIGNAL,),
    ),
    Remedy(
        "failure",
        "Fix the failure of that rank; the errors of the others only follow from it.",
        kinds=(Kind.DIED,),
    ),
    Remedy(
        "restarts",
        "Run with restarts (torchrun --max-restarts) where such failures come from outside.",
        ELASTIC,
        kinds=(Kind.DIED,),
    ),
    Remedy(
        "order",
        "Make all ranks issue the same collectives in the same order: look for a branch, an "
        "early continue, or a caught exception that depends on the rank or on local data.",
        kinds=(Kind.OP_MISMATCH,),
    ),
    Remedy(
        "agree",
        "Decide such branches on a value that all ranks agree on (broadcast or all_reduce it).",
        DISTRIBUTED,
        kinds=(Kind.OP_MISMATCH,),
    ),
    Remedy(
        "order",
        "{culprits} and {others} are in different calls there: one of them left a call out, or "
        "made one more, before. Look for a branch, a continue, a caught exception, a hook or a "
        "destructor that communicates on some ranks only.",
        DISTRIBUTED,
        kinds=(Kind.SIGNATURE_MISMATCH,),
        apart=True,
    ),
    Remedy(
        "agree",
        "Decide such branches on a value that all ranks agree on (broadcast or all_reduce it).",
        DISTRIBUTED,
        kinds=(Kind.SIGNATURE_MISMATCH,),
        apart=True,
    ),
    Remedy(
        "same tensor",
        "Bring the tensor to one {dtype} on all ranks before the call, and look for what makes "
        "another one on {culprits}: an empty batch, a default, a constant, mixed precision.",
        kinds=(Kind.SIGNATURE_MISMATCH,),
        apart=False,
    ),
    Remedy(
        "same tensor",
        "Name the same {root} rank on all ranks: look for how it is computed on {culprits}.",
        kinds=(Kind.SIGNATURE_MISMATCH,),
        apart=False,
    ),
    Remedy(
        "same tensor",
        "Exchange the {splits} first: all_to_all_single of what each rank sends gives each what it "
        "has to take (output_split_sizes). Compare the two at {line}.",
        DISTRIBUTED,
        kinds=(Kind.SIGNATURE_MISMATCH,),
        apart=False,
    ),
    Remedy(
        "same tensor",
        "Make the tensor the same on all ranks: pad it, or gather the sizes first and use a "
        "collective that allows uneven ones.",
        DISTRIBUTED,
        kinds=(Kind.SIGNATURE_MISMATCH,),
        apart=False,
    ),
    Remedy(
        "what differs",
        "Look for a last batch that is smaller, a model or configuration that differs, or a "
        "root rank computed differently.",
        kinds=(Kind.SIGNATURE_MISMATCH,),
        apart=False,
    ),
    Remedy(
        "move out",
        "Either a rank left a collective out, or made one more, before: look for a loop with "
        "fewer turns, an early exit, an exception that was caught. Or only those that entered it "
        "ever come to this call: then make it on every rank of its group.",
        kinds=(Kind.SUBSET_ENTERED,),
    ),
    Remedy(
        "group",
        "Or make a group of just those ranks with new_group, called by all ranks.",
        DISTRIBUTED,
        kinds=(Kind.SUBSET_ENTERED,),
        unless=(
            Use.LIGHTNING,
            Use.ACCELERATE,
            Use.TRANSFORMERS,
            Use.DEEPSPEED,
            Use.FSDP,
            Use.DTENSOR,
            Use.ZERO,
            Use.CHECKPOINT,
        ),
    ),
    Remedy(
        "alone",
        "What one rank does alone may not communicate: metrics, evaluation and the state of a "
        "sharded model or optimizer often do.",
        kinds=(Kind.SUBSET_ENTERED,),
    ),
    Remedy(
        "groups in order",
        "Use the groups in the same order on all ranks.",
        kinds=(Kind.ORDER_INVERSION,),
    ),
    Remedy(
        "two lines",
        "Look at the two lines shown: on one rank they come the other way round.",
        kinds=(Kind.ORDER_INVERSION,),
    ),
    Remedy(
        "match",
        "Match every send with a recv of the same group, peer, tag and order.",
        kinds=(Kind.MISSING_PEER,),
    ),
    Remedy(
        "batch",
        "For exchanges in both directions use batch_isend_irecv, so that neither side blocks "
        "before it has posted its part.",
        DISTRIBUTED,
        kinds=(Kind.MISSING_PEER,),
        unless=(Use.PIPELINE,),
    ),
    Remedy(
        "everyone",
        "Make sure that every rank starts and calls it: number of processes, node count, "
        "and code before it that only some ranks run.",
        ELASTIC,
        kinds=(Kind.INIT_INCOMPLETE,),
    ),
    Remedy(
        "new_group",
        "new_group has to be called by all ranks of the job, also by those that are not in it, "
        "in the same order.",
        DISTRIBUTED,
        kinds=(Kind.INIT_INCOMPLETE,),
    ),
    Remedy(
        "timing",
        "Run again with TORCH_NCCL_ENABLE_TIMING=1: it shows whether one of the devices of "
        "{untimed} has not come to the collective, as where a kernel before it is stuck.",
        kinds=(Kind.COLLECTIVE_STUCK,),
    ),
    Remedy(
        "members",
        "Check the network between the members, and the health of their devices.",
        kinds=(Kind.COLLECTIVE_STUCK,),
    ),
    Remedy(
        "alike",
        "As {as_one} entered it alike, the program's order of collectives is not the cause.",
        kinds=(Kind.COLLECTIVE_STUCK,),
    ),
    Remedy(
        "debug",
        "Run again with TORCH_DISTRIBUTED_DEBUG=DETAIL, or NCCL_DEBUG=INFO on GPUs.",
        DISTRIBUTED,
        kinds=(Kind.COLLECTIVE_STUCK,),
    ),
)
