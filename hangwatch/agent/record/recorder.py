"""The recorder's interface, and the choice between the native and the Python one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, cast

from hangwatch.agent.environment import NATIVE, RECORDER
from hangwatch.agent.periodic import Bell
from hangwatch.model import native
from hangwatch.safety.foreign import is_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Recorder(Bell, Protocol):
    """Writes the rank page. hangwatch/_native.pyi says what each function does."""

    @property
    def MAX_GROUPS(self) -> int: ...  # noqa: N802 (a constant of the native module)

    def open_page(self, path: str, identity: dict[str, Any]) -> None: ...
    def start_heartbeat(self, interval_ms: int, with_moments: bool, /) -> None: ...
    def stop_heartbeat(self) -> None: ...
    def use_dumps(self, nccl: bool, general: bool) -> bool | None: ...
    def add_dump(self, backend: str) -> None: ...
    def answer_request(self) -> bool: ...
    def set_identity(
        self, rank: int, world_size: int, store_host: str, store_port: int
    ) -> None: ...
    def set_phase(self, phase: str) -> None: ...
    def set_in_call(self, name: str, file: str, line: int, function: str) -> None: ...
    def set_mark(
        self, index: int, kind: str, text: str, count: int, file: str, line: int, function: str
    ) -> None: ...
    def add_new_group(
        self, number: int, ranks: Sequence[int], file: str, line: int, function: str
    ) -> None: ...
    def set_exception(
        self, type: str, message: str, file: str, line: int, function: str
    ) -> None: ...
    def last_thrown(self) -> tuple[str, str]: ...
    def set_disarmed(self, reason: str) -> None: ...
    def set_torch_lacks(self, what: str) -> None: ...
    def count_swallowed(self) -> int: ...
    def beat(self, handling: str, pending: bool, pending_changed: bool) -> None: ...
    def define_group(
        self, slot: int, name: str, desc: str, ranks: Sequence[int], index: int, backend: str
    ) -> bool: ...
    def set_groups_left_out(self, groups: int) -> None: ...
    def sample_number(self, slot: int, group: Any, completed: int) -> int: ...
    def retire_group(self, slot: int) -> None: ...
    def wrap_methods(
        self,
        process_group: type,
        work: type,
        resolve: Callable[[Any], int],
        is_foreign: Callable[[BaseException], bool] | None = None,
    ) -> list[str]: ...
    def disarm(self) -> None: ...
    def use_streams(self, current_stream: Callable[[int], int]) -> None: ...
    def set_prefixes(self, internal: Sequence[str], program: Sequence[str]) -> None: ...
    def record_begin(
        self,
        slot: int,
        op: str,
        wire: str,
        seq: int,
        p2p: bool,
        dtype: str,
        shape: Sequence[int],
        root: int,
        peer: int,
        tag: int,
        is_async: bool,
    ) -> int: ...
    def record_end(self, index: int, failed: bool) -> None: ...


def choose(environ: Mapping[str, str] = os.environ) -> Recorder:
    """Return the native module if this interpreter can load it, else the Python recorder.

    HANGWATCH_RECORDER=python asks for the latter.
    """
    if environ.get(RECORDER) == "python":
        return _python(f"{RECORDER}=python asks for it")
    try:
        return cast("Recorder", native.load(environ.get(NATIVE, "")))
    except (ImportError, OSError) as error:
        if is_foreign(error):
            raise
        return _python(f"the native module cannot be loaded: {error}")


def _python(reason: str) -> Recorder:
    from hangwatch.agent.record.python_recorder import PythonRecorder

    return PythonRecorder(reason)
