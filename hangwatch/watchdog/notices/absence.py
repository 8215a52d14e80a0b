"""What to say of a job in which no rank ever checks in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hangwatch.evidence.processes import PROC, Tree
from hangwatch.news import News

PATIENCE_S = 60.0
"""Ranks that run for so long without a page will have none any more."""
_LOOK_S = 2.0
_WHY = (
    "Python does not load hangwatch with -I, -E or -S, nor where PYTHONPATH is reset; call "
    "hangwatch.agent.arm() at the top of the training script instead"
)


@dataclass(slots=True)
class Absence:
    """Looks for ranks among the command's processes until the first page is there."""

    commands: Callable[[], Sequence[int]]
    """Pids of what the supervisors have started."""
    news: News
    proc: str = PROC
    _next_s: float = 0.0
    _since_s: float | None = None
    _most: int = 0

    def look(self, now_s: float) -> None:
        """One look, where one is due; call it while there is no page."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + _LOOK_S
        tree = Tree(self.proc)
        ranks = [rank for pid in self.commands() for rank in tree.launched_ranks(pid)]
        self._most = max(self._most, len(ranks))
        if not ranks:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s >= PATIENCE_S:
            self.news.lose(
                "absence",
                f"{self._ranks()} {PATIENCE_S:g} s ago and none has checked in: the job is not "
                f"watched. If it uses torch.distributed: {_WHY}",
            )

    def ended(self) -> None:
        """The command has ended, and there never was a page."""
        if self._most:
            self.news.lose(
                "absence", f"{self._ranks()} but none checked in: nothing was watched. {_WHY}"
            )
        else:
            self.news.lose(
                "absence",
                "no rank checked in on this node: no process had RANK and WORLD_SIZE or called "
                "init_process_group, so there was nothing to watch. If there should have been: "
                f"{_WHY}",
            )

    def _ranks(self) -> str:
        return f"{self._most} rank{'s were' if self._most != 1 else ' was'} started"
