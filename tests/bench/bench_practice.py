"""What observing a rank's practice adds: ratio of times, with it and without in turns.

In one process of one rank, as the observer is attached or not, in blocks that take turns
(A B B A ...): *epochs*, each of which begins a loop over a DataLoader of 16 small batches,
which is all that anything is added to; and *training steps* of a DistributedDataParallel
with 48 parameters while a look at it is taken twice a second, as the sampler does. The
time is that of the processor, since others may use the machine as well.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from bench_all_reduce import quartiles

if TYPE_CHECKING:
    from collections.abc import Callable

PAIRS = 30
EPOCHS = 20
STEPS = 32
LOOK_S = 0.5
LOOKS = 200
LAYERS = 24
WIDTH, SAMPLES, BATCH = 64, 64, 4


class Training:
    """A model, its data and the observer, which is on or off."""

    def __init__(self) -> None:
        torch: Any = importlib.import_module("torch")
        data: Any = importlib.import_module("torch.utils.data")
        parallel: Any = importlib.import_module("torch.nn.parallel")
        practices: Any = importlib.import_module("hangwatch.agent.habits")
        groups = SimpleNamespace(find=lambda _: SimpleNamespace(ranks=(0,), slot=0))
        self.practice = practices.Practice(groups, ())
        self.practice.attach()
        self._idle = practices.Practice(groups, ())
        self._idle.guard.swallowed = sys.maxsize  # the wrappers call torch, and that is all
        self._current = practices._current  # noqa: SLF001 (to turn it off)
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        self._model = parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        samples = data.TensorDataset(torch.randn(SAMPLES, WIDTH))
        sampler = data.DistributedSampler(samples)
        self._loader = data.DataLoader(samples, BATCH, sampler=sampler)
        self._page = str(Path(tempfile.mkdtemp(prefix="hangwatch-bench-")) / "rank.page")
        self._looked_at = time.monotonic()

    def turn(self, *, on: bool) -> None:
        self._current[:] = [self.practice if on else self._idle]

    def epochs(self) -> None:
        for _ in range(EPOCHS):
            for _batch in self._loader:
                pass

    def steps(self) -> None:
        for _ in range(STEPS // (SAMPLES // BATCH)):
            for (inputs,) in self._loader:
                self._model(inputs).sum().backward()
                self._optimizer.step()
                self._optimizer.zero_grad()
                self._look_if_due()

    def _look_if_due(self) -> None:
        on = self._current[0] is self.practice
        if on and time.monotonic() - self._looked_at >= LOOK_S:
            self._looked_at = time.monotonic()
            self.practice.look(self._page, busy=False)


def compare(name: str, training: Training, work: Callable[[], None]) -> None:
    """Print the ratios of one sort of work."""

    def timed(*, on: bool) -> float:
        training.turn(on=on)
        began = time.process_time()
        work()
        return time.process_time() - began

    timed(on=True)
    times: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(PAIRS):
        for on in (pair % 2 == 0, pair % 2 == 1):
            times[on].append(timed(on=on))
    ratios = [a / b for a, b in zip(times[True], times[False], strict=True)]
    shortest = min(times[True]) / min(times[False])
    each_ms = statistics.median(times[False]) * 1e3
    print(f"{name}: {each_ms:.1f} ms without; shortest {shortest:.4f}, pairs {quartiles(ratios)}")


def main() -> None:
    """Print the ratios, and what one look takes."""
    dist: Any = importlib.import_module("torch.distributed")
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    training = Training()
    compare(f"{EPOCHS} epochs of {SAMPLES // BATCH} batches", training, training.epochs)
    compare("training steps", training, training.steps)
    training.turn(on=True)
    began = time.process_time()
    for _ in range(LOOKS):
        training.practice.replicas.look()
        training.practice.loaders.look()
    print(
        f"one look at {2 * LAYERS} parameters: {(time.process_time() - began) / LOOKS * 1e6:.0f} us"
    )


if __name__ == "__main__":
    main()
