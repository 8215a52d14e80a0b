"""The table of advice for what a culprit is doing, or of what it ended. Data, not logic."""

from __future__ import annotations

from hangwatch.diagnosis.advice.links import DATA, DISTRIBUTED, ELASTIC, NCCL, TORCH, TUTORIALS, XID
from hangwatch.diagnosis.advice.remedy import Remedy
from hangwatch.types.kinds import Reason

BY_REASON: tuple[Remedy, ...] = (
    Remedy(
        "data",
        "Look at what the dataset does at the line shown: a lock taken before fork, a slow or "
        "dead mount, a network read without a timeout.",
        reasons=(Reason.DATA_LOADING,),
    ),
    Remedy(
        "data timeout",
        "Give the DataLoader a timeout= so that a stuck worker raises instead of waiting.",
        DATA,
        reasons=(Reason.DATA_LOADING,),
    ),
    Remedy(
        "fork",
        "If the workers deadlock after fork, use multiprocessing_context='spawn' or "
        "'forkserver', or num_workers=0 to confirm.",
        f"{TORCH}/notes/multiprocessing.html",
        reasons=(Reason.DATA_LOADING,),
    ),
    Remedy(
        "file system",
        "Check the file system that the checkpoint goes to (full, slow, or hung mount).",
        reasons=(Reason.CHECKPOINT_IO,),
    ),
    Remedy(
        "asynchronous",
        "If the others need not wait, save asynchronously or move the barrier away.",
        f"{TUTORIALS}/recipes/distributed_async_checkpoint_recipe.html",
        reasons=(Reason.CHECKPOINT_IO,),
    ),
    Remedy(
        "patience",
        "If it is just slow, raise --hang-after above the time a checkpoint takes.",
        reasons=(Reason.CHECKPOINT_IO,),
    ),
    Remedy(
        "lock",
        "If no process builds the extension any more, delete the file {lock} in its folder "
        "below TORCH_EXTENSIONS_DIR (~/.cache/torch_extensions): a build that was killed leaves "
        "it there, and all wait for it.",
        f"{TORCH}/cpp_extension.html",
        reasons=(Reason.COMPILING,),
    ),
    Remedy(
        "lock",
        "See which process holds the lock: `fuser -v` with {held}. One of another job, or that a "
        "job has left behind, is to be ended; if it is a rank that compiles, wait for it.",
        reasons=(Reason.COMPILING,),
    ),
    Remedy(
        "recompiles",
        "Run with TORCH_LOGS=recompiles to see why {torch_compile} compiles there. Where shapes "
        "differ by rank, pad them to a few lengths, or mark them with "
        "torch._dynamo.mark_dynamic().",
        f"{TORCH}/torch.compiler_troubleshooting.html",
        reasons=(Reason.COMPILING,),
    ),
    Remedy(
        "compile before",
        "Let all ranks run one step of each shape before the loop, and keep what {torch_compile} "
        "has made (TORCHINDUCTOR_CACHE_DIR) for the next start.",
        reasons=(Reason.COMPILING,),
    ),
    Remedy(
        "build before",
        "Build {extension} before the job starts (pip install; DS_BUILD_OPS=1 for DeepSpeed's), "
        "so that no rank compiles it while others wait.",
        f"{TORCH}/cpp_extension.html",
        reasons=(Reason.COMPILING,),
    ),
    Remedy(
        "compile before",
        "Run the kernels of {kernels} once with these shapes on all ranks before the loop, and "
        "keep their cache (TRITON_CACHE_DIR, NUMBA_CACHE_DIR) for the next start.",
        reasons=(Reason.COMPILING,),
    ),
    Remedy(
        "timeout",
        "If it only takes long, give init_process_group() a timeout above what it takes: else "
        "torch ends the job while it compiles.",
        DISTRIBUTED,
        reasons=(Reason.COMPILING,),
    ),
    Remedy(
        "key",
        "See which key it waits for and which rank should set it.",
        reasons=(Reason.STORE_WAIT,),
    ),
    Remedy(
        "store timeout",
        "Use a timeout on the store so that the missing key is named in an error.",
        DISTRIBUTED,
        reasons=(Reason.STORE_WAIT,),
    ),
    Remedy(
        "gil",
        "Release the GIL in the native code at the line shown (Py_BEGIN_ALLOW_THREADS, "
        "py::gil_scoped_release).",
        "https://docs.python.org/3/c-api/init.html",
        reasons=(Reason.GIL_HELD,),
    ),
    Remedy(
        "native",
        "Run with --stacks native to see which native function it is in.",
        reasons=(Reason.GIL_HELD,),
    ),
    Remedy(
        "continue",
        "Continue the process with kill -CONT, or thaw its container.",
        reasons=(Reason.STOPPED,),
    ),
    Remedy(
        "who stopped it",
        "Find who stopped it: a scheduler's suspension, a memory limit, or a terminal's Ctrl-Z.",
        reasons=(Reason.STOPPED,),
    ),
    Remedy(
        "debugger",
        "Continue or leave the debugger; remove the breakpoint from code that every rank runs.",
        reasons=(Reason.DEBUGGER,),
    ),
    Remedy(
        "exception",
        "Let the exception end the rank, or make every rank take the same way out: a rank that "
        "handles it alone misses the collectives of the others.",
        reasons=(Reason.EXCEPTION_HANDLING,),
    ),
    Remedy(
        "handler",
        "Look at what the except or finally block waits for.",
        reasons=(Reason.EXCEPTION_HANDLING,),
    ),
    Remedy(
        "memory",
        "Use less memory on that rank: smaller batch, activation checkpointing, fewer workers.",
        reasons=(Reason.OUT_OF_MEMORY,),
    ),
    Remedy(
        "uneven memory",
        "Watch for uneven sequence lengths or batch sizes: one rank may need more than the rest.",
        reasons=(Reason.OUT_OF_MEMORY,),
    ),
    Remedy(
        "memory limit",
        "If the kernel killed it, raise the memory limit of the container.",
        reasons=(Reason.OUT_OF_MEMORY,),
    ),
    Remedy(
        "node",
        "Check the node's health (power, kernel log, network) and take it out of the pool.",
        reasons=(Reason.NODE_LOST,),
    ),
    Remedy(
        "restarts",
        "Run with restarts (torchrun --max-restarts) so that the job goes on without it.",
        ELASTIC,
        reasons=(Reason.NODE_LOST,),
    ),
    Remedy(
        "gpu",
        "Look for an error of that GPU: Xid in the kernel log, nvidia-smi -q (ECC, pending "
        "retirement), the rank's own output (device-side assert, illegal access).",
        XID,
        reasons=(Reason.GPU_KERNEL,),
    ),
    Remedy(
        "kernel",
        "If the GPU is sound, find the kernel: CUDA_LAUNCH_BLOCKING=1 makes the rank's stack "
        "show it, cuda-gdb or compute-sanitizer tell more.",
        reasons=(Reason.GPU_KERNEL,),
    ),
    Remedy(
        "without the node",
        "Run without that node once: a fault that stays away points to its hardware.",
        reasons=(Reason.GPU_KERNEL,),
    ),
    Remedy(
        "xid",
        "Look for `NVRM: Xid` in the kernel log of that node, and at nvidia-smi -q (ECC, "
        "remapped rows, NVLink) of that GPU.",
        XID,
        reasons=(Reason.GPU_FAULT,),
    ),
    Remedy(
        "pool",
        "Take the GPU or the node out of the pool, and test it (dcgmi diag -r 3) before it "
        "comes back; a reset or a reboot may be needed.",
        reasons=(Reason.GPU_FAULT,),
    ),
    Remedy(
        "restarts",
        "Run with restarts (torchrun --max-restarts) or spare nodes, so that the job goes on.",
        ELASTIC,
        reasons=(Reason.GPU_FAULT,),
    ),
    Remedy(
        "network",
        "Check that the ranks reach each other on the interface that is used "
        "(GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME) and that no firewall is between them.",
        NCCL,
        reasons=(Reason.NETWORK,),
    ),
)
