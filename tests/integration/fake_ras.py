"""A fake of NCCL's RAS service, which speaks its protocol (src/ras/client_support.cc of NCCL)."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

TEXT = """\
NCCL version 2.24.3 compiled with CUDA 12.5
CUDA runtime version 12050, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          2            1          2        2

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         2         2         2   RUNNING  {errors}

Errors
======

{found}Warnings
========

"""
"""As text for people, with the errors of a communicator to be filled in."""


def member(rank: int, pid: int, launched: int = 5, **status: Any) -> dict[str, Any]:
    """A rank of a communicator as the service's JSON has it."""
    state = {"init_state": 0, "async_error": 0, "finalize_called": False}
    state |= {"destroy_flag": False, "abort_flag": False}
    return {
        "rank": rank,
        "host": "10.0.0.1",
        "pid": pid,
        "cuda_dev": rank,
        "nvml_dev": rank,
        "status": state | status,
        "collective_counts": {"Broadcast": 1, "AllReduce": launched},
    }


def absent(rank: int, pid: int, *, unresponsive: bool = True, dead: bool = False) -> dict[str, Any]:
    """A rank of which the service has heard nothing."""
    found = member(rank, pid)
    del found["collective_counts"]
    return found | {"status": {"unresponsive": unresponsive, "considered_dead": dead}}


def status(*members: dict[str, Any], missing: tuple[dict[str, Any], ...] = ()) -> str:
    """The answer for a job with one communicator."""
    communicator = {
        "hash": "0xbba1d25d7f4e6b2f",
        "secondary_hash": "0x1:0x2",
        "size": len(members) + len(missing),
        "ranks_count": len(members),
        "missing_ranks_count": len(missing),
        "ranks": members,
        "missing_ranks": missing,
    }
    top = {
        "nccl_version": "2.28.3",
        "cuda_runtime_version": 12090,
        "cuda_driver_version": 13000,
        "timestamp": "2026-01-02 03:04:05",
        "communicators_count": 1,
        "communicators": [communicator],
        "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    }
    return json.dumps(top, indent=2) + "\n"


@dataclass
class FakeRas:
    """Answers on a port of the loopback, from threads of this process."""

    answer: str
    knows_json: bool = True
    greeting: str = "SERVER PROTOCOL 2"
    port: int = 0
    """0 for any that is free."""
    hangs: bool = False
    """It begins its answer and does not end it."""
    commands: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", self.port))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def address(self) -> str:
        """For NCCL_RAS_ADDR."""
        return f"127.0.0.1:{self._server.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        for one in (self._server, *self._open):
            one.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._open.append(connection)
            with connection.makefile("rw", newline="\n") as lines:
                for line in lines:
                    self.commands.append(line.strip())
                    if line.strip().lower() in ("status", "verbose status"):
                        break
                    lines.write(self._reply(line.strip().lower()) + "\n")
                    lines.flush()
                else:
                    continue
                lines.write(self.answer[: len(self.answer) // 2] if self.hangs else self.answer)
            if not self.hangs:
                connection.close()

    def _reply(self, command: str) -> str:
        if command.startswith("client protocol "):
            return self.greeting
        if command.startswith("timeout ") or (command == "set format json" and self.knows_json):
            return "OK"
        return f"ERROR: Unknown command {command}"
