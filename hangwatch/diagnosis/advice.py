"""What to do, for each kind and reason."""

from __future__ import annotations

from hangwatch.types import Kind, Reason

_BY_REASON: dict[Reason, tuple[str, ...]] = {
    Reason.DATA_LOADING: (
        (
            "Look at what the dataset does at the line shown: a lock taken before fork, a slow or "
            "dead mount, a network read without a timeout."
        ),
        "Give the DataLoader a timeout= so that a stuck worker raises instead of waiting.",
        (
            "If the workers deadlock after fork, use multiprocessing_context='spawn' or "
            "'forkserver', or num_workers=0 to confirm."
        ),
    ),
    Reason.CHECKPOINT_IO: (
        "Check the file system that the checkpoint goes to (full, slow, or hung mount).",
        "If the others need not wait, save asynchronously or move the barrier away.",
        "If it is just slow, raise --hang-after above the time a checkpoint takes.",
    ),
    Reason.STORE_WAIT: (
        "See which key it waits for and which rank should set it.",
        "Use a timeout on the store so that the missing key is named in an error.",
    ),
    Reason.GIL_HELD: (
        (
            "Release the GIL in the native code at the line shown (Py_BEGIN_ALLOW_THREADS, "
            "py::gil_scoped_release)."
        ),
        "Run with --stacks native to see which native function it is in.",
    ),
    Reason.STOPPED: (
        "Continue the process with kill -CONT, or thaw its container.",
        "Find who stopped it: a scheduler's suspension, a memory limit, or a terminal's Ctrl-Z.",
    ),
    Reason.DEBUGGER: (
        "Continue or leave the debugger; remove the breakpoint from code that every rank runs.",
    ),
    Reason.EXCEPTION_HANDLING: (
        (
            "Let the exception end the rank, or make every rank take the same way out: a rank that "
            "handles it alone misses the collectives of the others."
        ),
        "Look at what the except or finally block waits for.",
    ),
    Reason.OUT_OF_MEMORY: (
        "Use less memory on that rank: smaller batch, activation checkpointing, fewer workers.",
        "Watch for uneven sequence lengths or batch sizes: one rank may need more than the rest.",
        "If the kernel killed it, raise the memory limit of the container.",
    ),
    Reason.NODE_LOST: (
        "Check the node's health (power, kernel log, network) and take it out of the pool.",
        "Run with restarts (torchrun --max-restarts) so that the job goes on without it.",
    ),
    Reason.GPU_KERNEL: (
        (
            "Look for an error of that GPU: Xid in the kernel log, nvidia-smi -q (ECC, pending "
            "retirement), the rank's own output (device-side assert, illegal access)."
        ),
        (
            "If the GPU is sound, find the kernel: CUDA_LAUNCH_BLOCKING=1 makes the rank's stack "
            "show it, cuda-gdb or compute-sanitizer tell more."
        ),
        "Run without that node once: a fault that stays away points to its hardware.",
    ),
    Reason.GPU_FAULT: (
        (
            "Look for `NVRM: Xid` in the kernel log of that node, and at nvidia-smi -q (ECC, "
            "remapped rows, NVLink) of that GPU."
        ),
        (
            "Take the GPU or the node out of the pool, and test it (dcgmi diag -r 3) before it "
            "comes back; a reset or a reboot may be needed."
        ),
        "Run with restarts (torchrun --max-restarts) or spare nodes, so that the job goes on.",
    ),
    Reason.NETWORK: (
        (
            "Check that the ranks reach each other on the interface that is used "
            "(GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME) and that no firewall is between them."
        ),
    ),
}

_BY_KIND: dict[Kind, tuple[str, ...]] = {
    Kind.NEVER_ENTERED: (
        "See why that rank alone takes so long at the line shown.",
        "If it is meant to take so long, raise --hang-after, or let the others not wait for it.",
    ),
    Kind.FINISHED_EARLY: (
        (
            "Give every rank the same number of batches: DistributedSampler(drop_last=True), equal "
            "shards, or a step count agreed upon before the loop."
        ),
        (
            "Or wrap the loop in torch.distributed.algorithms.join.Join, which shadows the "
            "collectives of ranks that have run out of data."
        ),
        "If a rank stops early on purpose, decide it together: all_reduce a stop flag.",
    ),
    Kind.DIED: (
        "Fix the failure of that rank; the errors of the others only follow from it.",
        "Run with restarts (torchrun --max-restarts) where such failures come from outside.",
    ),
    Kind.OP_MISMATCH: (
        (
            "Make all ranks issue the same collectives in the same order: look for a branch, an "
            "early continue, or a caught exception that depends on the rank or on local data."
        ),
        "Decide such branches on a value that all ranks agree on (broadcast or all_reduce it).",
    ),
    Kind.SIGNATURE_MISMATCH: (
        (
            "Make the tensor the same on all ranks: pad it, or gather the sizes first and use a "
            "collective that allows uneven ones."
        ),
        (
            "Look for a last batch that is smaller, a model or configuration that differs, or a "
            "root rank computed differently."
        ),
    ),
    Kind.SUBSET_ENTERED: (
        (
            "Call the collective on every rank of its group: move it out of the condition and keep "
            "only the use of its result (printing, saving) inside."
        ),
        "Or make a group of just those ranks with new_group, called by all ranks.",
    ),
    Kind.ORDER_INVERSION: (
        "Use the groups in the same order on all ranks.",
        "Look at the two lines shown: on one rank they come the other way round.",
    ),
    Kind.MISSING_PEER: (
        "Match every send with a recv of the same group, peer, tag and order.",
        (
            "For exchanges in both directions use batch_isend_irecv, so that neither side blocks "
            "before it has posted its part."
        ),
    ),
    Kind.INIT_INCOMPLETE: (
        (
            "Make sure that every rank starts and calls it: number of processes, node count, "
            "and code before it that only some ranks run."
        ),
        (
            "new_group has to be called by all ranks of the job, also by those that are not in it, "
            "in the same order."
        ),
    ),
    Kind.COLLECTIVE_STUCK: (
        "Check the network between the members, and the health of their devices.",
        "All of them entered it alike, so the program's order of collectives is not the cause.",
        "Run again with TORCH_DISTRIBUTED_DEBUG=DETAIL, or NCCL_DEBUG=INFO on GPUs.",
    ),
}

MAX_ITEMS = 4
ENOUGH = 2
"""So many special items make general ones needless where a rank is just busy."""
_REASON_COUNTS = {
    Kind.NEVER_ENTERED,
    Kind.MISSING_PEER,
    Kind.INIT_INCOMPLETE,
    Kind.DIED,
    Kind.COLLECTIVE_STUCK,
}


def advice(kind: Kind, reason: Reason) -> tuple[str, ...]:
    """Remedies, the most specific first: two to four."""
    general = _BY_KIND[kind]
    special = _BY_REASON.get(reason, ()) if kind in _REASON_COUNTS else ()
    # Of a lost node, or of a GPU that failed, no rank's code is at fault.
    apart = kind is Kind.NEVER_ENTERED or reason in (Reason.NODE_LOST, Reason.GPU_FAULT)
    if apart and len(special) >= ENOUGH:
        return special
    return (*special, *general)[:MAX_ITEMS]
