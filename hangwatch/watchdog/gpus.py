"""Notices about the GPUs of the ranks of this node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hangwatch.console import News
from hangwatch.diagnosis.facts.gpu_faults import HEALTH, Weight, gpu_name, meaning
from hangwatch.efficiency.habits import Finding
from hangwatch.evidence.gpu.reader import Gpus, LocalRank
from hangwatch.evidence.pages.look import Look
from hangwatch.evidence.processes import PROC, environment
from hangwatch.evidence.sockets import open_files
from hangwatch.model.gpu import GpuState
from hangwatch.model.kinds import Cost, GpuHealth
from hangwatch.model.page import Identity
from hangwatch.text import the_ranks
from hangwatch.watchdog import timing

DEVICE = "/dev/nvidia"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(slots=True)
class _Process:
    """The process of a rank."""

    pid: int
    start_ticks: int
    visible: str | None
    on_device: bool = False
    checked_ns: int = 0


@dataclass(slots=True)
class GpuWatch:
    """Gives the ranks to the reader of the GPUs, and reports the state of their GPUs."""

    gpus: Gpus
    news: News
    proc: str = PROC
    device: str = DEVICE
    """Prefix of the paths of the devices."""
    findings: tuple[Finding, ...] = ()
    """Costly mistakes that the GPUs show."""
    _processes: dict[int, _Process] = field(default_factory=dict)
    _reported_ns: int = 0
    _since_ns: dict[str, int] = field(default_factory=dict)
    """Beginnings of states that are reported after a while."""

    def look(self, look: Look) -> None:
        """Note the ranks that there are, and report what is new of their GPUs."""
        try:
            self._look(look)
        except Exception as error:  # noqa: BLE001 (the ranks are watched without their GPUs)
            self._failed(error)

    def by_rank(self) -> dict[int, GpuState]:
        """Return the GPU of each rank that uses one, or used one."""
        try:
            return self.gpus.by_rank()
        except Exception as error:  # noqa: BLE001 (as above)
            self._failed(error)
            return {}

    def _failed(self, error: Exception) -> None:
        text = f"the GPUs cannot be watched: {type(error).__name__}: {error}"
        self.news.fault("gpus", text, error)

    def _look(self, look: Look) -> None:
        ranks = [
            self._local_rank(rank, seen.light.identity, look) for rank, seen in look.seen.items()
        ]
        self.gpus.watch(ranks, active=bool(look.waiting))
        if ranks and look.now_ns - self._reported_ns >= timing.GPU_REPORT_S * 1e9:
            self._reported_ns = look.now_ns
            self._report(ranks, look.now_ns)

    def _local_rank(self, rank: int, identity: Identity, look: Look) -> LocalRank:
        process = self._processes.get(rank)
        key = identity.pid, identity.start_ticks
        if process is None or (process.pid, process.start_ticks) != key:
            variables = environment(identity.pid, _VISIBLE.__eq__, self.proc)
            process = self._processes[rank] = _Process(*key, variables.get(_VISIBLE))
        due = look.now_ns - process.checked_ns >= timing.GPU_DEVICES_S * 1e9
        due = due and rank in look.waiting and not process.on_device
        if due and Path(f"{self.device}ctl").exists():
            process.checked_ns = look.now_ns
            files = open_files(identity.pid, self.proc)
            process.on_device = any(path.startswith(self.device) for path in files)
        return LocalRank(
            rank, identity.pid, identity.local_rank, process.visible, process.on_device
        )

    def _report(self, ranks: Iterable[LocalRank], now_ns: int) -> None:
        node = self.gpus.node()
        if self.gpus.trouble and any(rank.on_device for rank in ranks):
            text = f"nothing is known of the GPUs: {self.gpus.trouble}"
            self.news.lose("nvml", text, quiet=True)
        for gpu in node.gpus:
            if gpu.ranks:
                self._report_state(gpu)
        unmatched = {rank for gpu in node.gpus if gpu.assumed for rank in gpu.ranks}
        if self._lasts("unmatched", now_ns, timing.GPU_UNMATCHED_S, so=bool(unmatched)):
            text = (
                f"NVML names none of the processes of {the_ranks(unmatched)} (it may count pids as "
                "another container does): which GPU they use is concluded from LOCAL_RANK"
            )
            self.news.lose("gpu-pids", text, quiet=True)
        crowded = self.gpus.crowded()
        if self._lasts("crowded", now_ns, timing.GPU_CROWDED_S, so=crowded is not None) and crowded:
            idle = sum(not gpu.ranks for gpu in node.gpus)
            self.findings = (Finding(Cost.ONE_GPU, crowded.ranks, count=crowded.index, other=idle),)
            text = (
                f"all {len(crowded.ranks)} ranks of this node use {gpu_name(crowded)}, and none of "
                f"them the {idle} other{'s' if idle != 1 else ''}: is "
                "torch.cuda.set_device(LOCAL_RANK) missing?"
            )
            self.news.once("gpu-crowded", text)

    def _report_state(self, gpu: GpuState) -> None:
        who = f"{gpu_name(gpu)} ({the_ranks(gpu.ranks)})"
        if (health := HEALTH.get(gpu.health)) is not None:
            report = self.news.lose if gpu.health is GpuHealth.SILENT else self.news.once
            report(f"gpu-{gpu.health}:{gpu.uuid}", f"{who} {health.what}. {health.detail}")
        if gpu.unreadable:
            failed = ", ".join(gpu.unreadable)
            text = f"NVML does not report all values of {who}: {failed}"
            self.news.lose(f"gpu-figures:{gpu.uuid}", text, quiet=True)
        for xid in gpu.xids:
            known = meaning(xid.number)
            text = f"{who} {known.what} (Xid {xid.number}). {known.detail}"
            if known.weight > Weight.NOTE:
                self.news.once(f"xid-{xid.number}:{gpu.uuid}", text)
            elif xid.age_s <= timing.GPU_REPORT_S:
                self.news.debug(text)

    def _lasts(self, what: str, now_ns: int, for_s: float, *, so: bool) -> bool:
        """Return True if something has been so for long enough."""
        if not so:
            self._since_ns.pop(what, None)
            return False
        return now_ns - self._since_ns.setdefault(what, now_ns) >= for_s * 1e9
