"""Stands for the sampler of a rank, where its Flight Recorder is asked for."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORDER = b"""{"version": "2.10", "entries": [{"process_group": ["0", "default_pg"], "pg_id": 0,
 "collective_seq_id": 4, "p2p_seq_id": 0, "op_id": 4, "is_p2p": false, "retired": false,
 "profiling_name": "gloo:all_reduce", "input_sizes": [[4]], "input_dtypes": ["Float"],
 "state": "scheduled", "time_created_ns": 1700000000000000000}]}"""


@contextmanager
def sampling(page: Path) -> Iterator[None]:
    """Answers requests for a Flight Recorder as a rank's sampler does."""
    over = threading.Event()

    def work() -> None:
        request = page.with_name(page.name + ".req")
        while not over.wait(0.01):
            if request.exists():
                request.unlink()
                unfinished = page.with_name(page.name + ".flight.tmp")
                unfinished.write_bytes(RECORDER)
                unfinished.rename(page.with_name(page.name + ".flight"))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
