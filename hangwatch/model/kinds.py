"""Enumerations: kinds of verdicts, and states of ranks, calls and GPUs."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """The kind of a failure, by the counters."""

    NEVER_ENTERED = "never_entered"
    """The culprit has not entered the collective that others wait in."""
    FINISHED_EARLY = "finished_early"
    """The culprit left its loop or exited 0 while others wait (uneven inputs)."""
    DIED = "died"
    """The culprit raised, was killed, or was lost with its node."""
    OP_MISMATCH = "op_mismatch"
    """Ranks entered different collectives in one slot of a group."""
    SIGNATURE_MISMATCH = "signature_mismatch"
    """Same collective, but shape, dtype or root differ."""
    SUBSET_ENTERED = "subset_entered"
    """A minority entered a collective that the others never enter."""
    ORDER_INVERSION = "order_inversion"
    """A cycle: ranks wait for each other in different groups."""
    MISSING_PEER = "missing_peer"
    """A send without its recv, or a recv without its send."""
    INIT_INCOMPLETE = "init_incomplete"
    """Ranks missing from init_process_group, new_group or the rendezvous."""
    COLLECTIVE_STUCK = "collective_stuck"
    """Every member entered the same collective, and it does not complete."""


class Reason(StrEnum):
    """The reason of a failure: the culprit's activity, or its end."""

    USER_CODE = "user_code"
    DATA_LOADING = "data_loading"
    CHECKPOINT_IO = "checkpoint_io"
    COMPILING = "compiling"
    STORE_WAIT = "store_wait"
    GIL_HELD = "gil_held"
    STOPPED = "stopped"
    DEBUGGER = "debugger"
    EXCEPTION_HANDLING = "exception_handling"
    GPU_KERNEL = "gpu_kernel"
    GPU_FAULT = "gpu_fault"
    EXITED = "exited"
    SIGNAL = "signal"
    EXCEPTION = "exception"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_LOST = "node_lost"
    NETWORK = "network"
    UNEVEN_WORK = "uneven_work"
    """The same lines as on other ranks, more of them."""
    GARBAGE_COLLECTION = "garbage_collection"
    CPU_CONTENTION = "cpu_contention"
    CPU_THROTTLED = "cpu_throttled"
    """A limit of its container on the CPU keeps it from running."""
    UNKNOWN = "unknown"


class State(StrEnum):
    """The state of the job."""

    HANG = "hang"
    """It cannot continue, or has made no progress for longer than --hang-after."""
    SLOW = "slow"
    """It waits but may recover."""
    FAILED = "failed"
    """It ended because of the finding."""
    DESYNC = "desync"
    """Ranks are out of step, but nothing is stuck."""
    OK = "ok"
    """Nothing was found."""


class What(StrEnum):
    """The root cause of a hang: the kind of line to change."""

    RANK_CONDITION = "rank_condition"
    """A call that all ranks have to make is below a condition that depends on the rank."""
    DATA_CONDITION = "data_condition"
    """It is below a condition that depends on other data that differs between ranks."""
    UNEVEN_LOOP = "uneven_loop"
    """A loop runs more iterations on some ranks."""
    EARLY_EXIT = "early_exit"
    """break, return or the end of the program on some ranks."""
    SKIPPED_ITERATION = "skipped_iteration"
    """continue on some ranks."""
    SWALLOWED_EXCEPTION = "swallowed_exception"
    """An exception on some ranks was caught, and calls were skipped."""
    NO_SYNC = "no_sync"
    """Some ranks kept gradients local in a different step than the others."""
    UNUSED_PARAMETER = "unused_parameter"
    """A parameter got no gradient on some ranks."""
    DIFFERENT_ORDER = "different_order"
    """The same calls in a different order."""
    DIFFERENT_ARGUMENT = "different_argument"
    """A different shape, dtype, root or split sizes."""
    UNMATCHED_P2P = "unmatched_p2p"
    """A send without its recv, or a recv without its send."""
    UNORDERED_THREADS = "unordered_threads"
    """Two threads use one group."""
    GROUP_CREATION = "group_creation"
    """Groups were not created by all ranks, or in a different order."""
    STUCK_LINE = "stuck_line"
    """No call was skipped: a rank is stuck, or slow, at a line."""
    PROCESS_GONE = "process_gone"
    """A rank raised, was killed, or is lost with its node."""
    SETUP = "setup"
    """A rank never reached init_process_group."""
    DEVICE = "device"
    """A GPU, or its work."""
    NETWORK = "network"
    """The connections between ranks."""
    UNKNOWN = "unknown"


class Certainty(StrEnum):
    """Certainty of a verdict; ``proved`` means no future event can undo it."""

    PROVED = "proved"
    LIKELY = "likely"
    POSSIBLE = "possible"

    def at_most(self, most: Certainty) -> Certainty:
        """Return the lower one of two."""
        return max(self, most, key=list(Certainty).index)


class Phase(StrEnum):
    """Phase of a rank's life. Members are in the order of that life."""

    BORN = "born"
    """torch.distributed was imported."""
    INIT = "init"
    """Inside init_process_group."""
    RUNNING = "running"
    FINALIZING = "finalizing"
    """destroy_process_group was called."""
    EXITED = "exited"
    """The interpreter ended in order."""
    RAISED = "raised"
    """The interpreter ended by an uncaught exception."""


class OpState(StrEnum):
    """Progress of one collective or point-to-point call on one rank."""

    ISSUED = "issued"
    """Handed to the backend; no thread of the host is known to wait for it."""
    BLOCKED = "blocked"
    """A thread of the rank is inside the call or inside ``Work.wait`` for it."""
    DONE = "done"
    FAILED = "failed"
    """The call or the wait raised."""


class GpuHealth(StrEnum):
    """Health of a GPU, by NVML."""

    OK = "ok"
    LOST = "lost"
    """It has fallen off the bus, or is inaccessible (NVML_ERROR_GPU_IS_LOST)."""
    RESET_REQUIRED = "reset_required"
    """It cannot be used before a reset (NVML_ERROR_RESET_REQUIRED)."""
    SILENT = "silent"
    """NVML's calls about it do not return."""


class Cost(StrEnum):
    """A mistake that is expensive although nothing hangs."""

    ONE_GPU = "one_gpu"
    """All ranks of a node use one GPU while others are idle."""
    SAME_ORDER = "same_order"
    """Every epoch goes through the data in the same order."""
    """The replicas of a model are trained on the same data."""
    SYNC_EACH_BATCH = "sync_each_batch"
    """Gradients are averaged at each micro-batch of an accumulation."""
    UNUSED_SEARCH = "unused_search"
    """Unused parameters are looked for where there are none."""
