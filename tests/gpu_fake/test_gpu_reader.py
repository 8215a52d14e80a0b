"""The real pynvml against the fake library: what is read, and what happens when it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_nvml import (
    BLOCK,
    LOST,
    MISMATCH,
    NO_PERMISSION,
    RESET_REQUIRED,
    UNKNOWN,
    error,
)
from harness import environment
from waiting import BOUND_S, until

from hangwatch.model import codec
from hangwatch.model.gpu import GpuState, NodeGpus
from hangwatch.model.kinds import GpuHealth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_nvml import FakeNvml

READER = Path(__file__).with_name("acting_reader.py")
RANK = {"rank": 0, "pid": 4001, "local_rank": 0}
RANKS = [{"rank": rank, "pid": 4001 + rank, "local_rank": rank} for rank in range(4)]


class Reader:
    """The acting reader; each ask() tells it its ranks and returns what it sees."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    def start(self, *, off: str = "", silent_s: float = 30.0, **earlier: Any) -> Reader:
        start = json.dumps({"off": off, "silent_s": silent_s, "earlier": earlier})
        self._process = subprocess.Popen(  # noqa: S603 (the program beside this one)
            [sys.executable, str(READER), start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": "/usr/bin", **self._environment},
        )
        return self

    def ask(self, *ranks: dict[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(ranks) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def node(self, *ranks: dict[str, Any]) -> NodeGpus:
        found: NodeGpus = codec.decode(NodeGpus, self.ask(*(ranks or (RANK,)))["node"])
        return found

    def until(self, holds: Callable[[NodeGpus], object], *ranks: dict[str, Any]) -> NodeGpus:
        """Ask again and again until something holds of the answer."""
        found: NodeGpus

        def held() -> object:
            nonlocal found
            found = self.node(*ranks)
            return holds(found)

        until(held, lambda: str(found))
        return found

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


@pytest.fixture
def reader(fake: FakeNvml) -> Iterator[Reader]:
    found = Reader(fake.environment())
    yield found
    found.stop()


def read(node: NodeGpus) -> bool:
    """Whether each GPU has been read."""
    return bool(node.gpus) and all(gpu.memory_total_bytes is not None for gpu in node.gpus)


def test_each_figure_has_the_unit_that_its_name_says(fake: FakeNvml, reader: Reader) -> None:
    fake.gpus(1, throttle=str(0x1 | 0x4 | 0x40), nvlink="7", ecc_uncorrected="3")
    fake.write()
    node = reader.start().until(read)
    assert node.off == ""
    assert node.gpus == (
        GpuState(
            uuid="GPU-0",
            index=0,
            name="NVIDIA H100 80GB HBM3",
            utilization=0.97,
            memory_used_bytes=1 << 30,
            memory_total_bytes=80 << 30,
            temperature_c=61.0,
            power_w=350.5,
            sm_clock_hz=1.98e9,
            memory_clock_hz=2.619e9,
            throttle=("sw_power_cap", "hw_thermal_slowdown"),
            ecc_corrected=2,
            ecc_uncorrected=3,
            remapped_rows={"correctable": 1, "uncorrectable": 0, "pending": 0, "failure": 0},
            nvlink_errors=7,
        ),
    )


def test_ranks_are_on_the_gpus_that_name_their_pids(fake: FakeNvml, reader: Reader) -> None:
    fake.gpus(4)
    for gpu in range(4):  # not in the order of their local ranks
        fake.gpu(gpu, processes=f"{4001 + 3 - gpu} 1000")
    fake.gpu(0, processes="4004 1000 4001 200 4002 200 4003 200")  # contexts made by mistake
    fake.write()
    node = reader.start().until(
        lambda node: len(node.gpus) == 4 and all(gpu.ranks for gpu in node.gpus), *RANKS
    )
    assert [gpu.ranks for gpu in node.gpus] == [(3,), (2,), (1,), (0,)]
    assert not any(gpu.assumed for gpu in node.gpus)


def test_a_process_that_is_gone_is_remembered_on_its_gpu(fake: FakeNvml, reader: Reader) -> None:
    fake.gpus(2)
    fake.gpu(1, processes="4001 1000")
    fake.write()
    reader.start().until(lambda node: node.gpus and node.gpus[1].ranks)
    fake.gpu(1, processes="", temperature="99")
    fake.write()
    node = reader.until(lambda node: node.gpus[1].temperature_c == 99)
    assert node.gpus[1].ranks == (0,)
    assert reader.node({**RANK, "pid": 4999}).gpus[1].ranks == ()  # the rank was started anew


def test_mig_devices_stand_for_the_gpu_that_they_are_parts_of(
    fake: FakeNvml, reader: Reader
) -> None:
    fake.gpus(2)
    fake.gpu(0, mig="1", utilization=error(3))
    for part, instance in ((0, 7), (2, 9)):  # with a gap, as after one was destroyed
        fake.gpu(
            0,
            part,
            uuid=f"MIG-{part}",
            name="NVIDIA H100 MIG 1g.10gb",
            memory="1000 10000",
            instance=str(instance),
            processes=f"{4001 + part} 10",
        )
    fake.write()
    node = reader.start().until(lambda node: len(node.gpus) == 3 and read(node), *RANKS)
    assert [(gpu.uuid, gpu.parent, gpu.index, gpu.ranks) for gpu in node.gpus] == [
        ("MIG-0", "GPU-0", 0, (0,)),
        ("MIG-2", "GPU-0", 0, (2,)),
        ("GPU-1", "", 1, ()),
    ]
    assert node.gpus[0].utilization is None  # NVML has none of MIG devices
    assert node.gpus[0].temperature_c == 61
    assert node.gpus[0].memory_total_bytes == 10000
    assert node.gpus[0].unreadable == ()
    fake.gpu(0, xids="31:9")
    fake.write()
    node = reader.until(lambda node: any(gpu.xids for gpu in node.gpus), *RANKS)
    assert [[xid.number for xid in gpu.xids] for gpu in node.gpus] == [[], [31], []]


def test_a_figure_that_fails_is_left_out_and_named(fake: FakeNvml, reader: Reader) -> None:
    fake.gpus(2)
    fake.gpu(0, power=error(UNKNOWN), utilization="4294967295", rows=error(NO_PERMISSION))
    fake.write()
    node = reader.start().until(read)
    left_out = node.gpus[0].power_w, node.gpus[0].utilization, node.gpus[0].remapped_rows
    assert left_out == (None, None, None)
    assert sorted(node.gpus[0].unreadable) == ["power", "remapped rows", "utilization"]
    assert node.gpus[0].temperature_c == 61
    assert node.gpus[1].unreadable == ()


def test_what_a_gpu_does_not_offer_is_no_failure(fake: FakeNvml, reader: Reader) -> None:
    fake.gpus(1)
    for name in ("ecc_corrected", "ecc_uncorrected", "rows", "nvlink", "xids", "mig"):
        del fake.values[f"0.{name}"]
    fake.write()
    node = reader.start().until(read)
    assert node.gpus[0].unreadable == ()
    assert (node.gpus[0].nvlink_errors, node.gpus[0].ecc_corrected) == (None, None)


def test_a_call_that_never_returns_costs_its_gpu_alone(fake: FakeNvml, reader: Reader) -> None:
    fake.gpus(3)
    fake.gpu(1, processes="4001 1000")
    fake.write()
    reader.start(silent_s=0.3).until(lambda node: read(node) and node.gpus[1].ranks)
    fake.gpu(1, power=BLOCK)
    fake.gpu(2, temperature="70")
    fake.write()
    node = reader.until(lambda node: node.gpus[1].health is GpuHealth.SILENT)
    assert node.gpus[1].temperature_c is None  # it is of a time that is over
    assert node.gpus[1].ranks == (0,)
    node = reader.until(lambda node: node.gpus[2].temperature_c == 70)
    assert {node.gpus[0].health, node.gpus[2].health} == {GpuHealth.OK}
    fake.gpu(1, power="1000")
    fake.write()


@pytest.mark.parametrize(
    ("number", "health"), [(LOST, GpuHealth.LOST), (RESET_REQUIRED, GpuHealth.RESET_REQUIRED)]
)
def test_a_gpu_that_is_lost_is_kept_as_lost(
    fake: FakeNvml, reader: Reader, number: int, health: GpuHealth
) -> None:
    fake.gpus(2)
    fake.gpu(1, processes="4001 1000")
    fake.write()
    reader.start().until(lambda node: read(node) and node.gpus[1].ranks)
    fake.gpu(1, all=error(number))
    fake.write()
    node = reader.until(lambda node: node.gpus[1].health is not GpuHealth.OK)
    name = "NVIDIA H100 80GB HBM3"
    assert node.gpus[1] == GpuState("GPU-1", 1, name, health=health, ranks=(0,))
    assert node.gpus[0].health is GpuHealth.OK


def test_a_gpu_that_was_lost_before_has_its_place(fake: FakeNvml, reader: Reader) -> None:
    fake.gpus(2)
    fake.gpu(0, all=error(LOST))
    fake.write()
    node = reader.start().until(
        lambda node: node.gpus and node.gpus[0].health is GpuHealth.LOST and node.gpus[1].name
    )
    assert [gpu.uuid for gpu in node.gpus] == ["index-0", "GPU-1"]


def test_xids_are_counted_from_when_the_run_was_first_watched(
    fake: FakeNvml, reader: Reader
) -> None:
    fake.gpus(2, xids="48")
    fake.write()
    reader.start().until(read)
    fake.gpu(0, xids="48 79 31 31")
    fake.write()
    node = reader.until(lambda node: sum(xid.count for xid in node.gpus[0].xids) == 3)
    assert [(xid.number, xid.count) for xid in node.gpus[0].xids] == [(31, 2), (79, 1)]
    assert all(0 <= xid.age_s < BOUND_S for xid in node.gpus[0].xids)
    assert node.gpus[1].xids == ()


def test_ecc_errors_from_before_the_run_are_no_news(fake: FakeNvml, reader: Reader) -> None:
    fake.gpus(1, ecc_uncorrected="5")
    fake.write()
    node = reader.start().until(read)
    assert (node.gpus[0].ecc_uncorrected, node.gpus[0].ecc_uncorrected_new) == (5, 0)
    fake.gpu(0, ecc_uncorrected="7")
    fake.write()
    node = reader.until(lambda node: node.gpus[0].ecc_uncorrected == 7)
    assert node.gpus[0].ecc_uncorrected_new == 2
    assert node.gpus[0].ecc_uncorrected_age_s is not None


def test_the_next_watchdog_goes_on_counting(fake: FakeNvml, reader: Reader) -> None:
    fake.gpus(1)
    fake.write()
    reader.start().until(read)
    fake.gpu(0, xids="94", ecc_uncorrected="1")
    fake.write()
    reader.until(lambda node: node.gpus[0].xids and node.gpus[0].ecc_uncorrected_new)
    kept = reader.ask(RANK)["export"]
    reader.stop()
    node = reader.start(**kept).until(read)
    assert [xid.number for xid in node.gpus[0].xids] == [94]
    assert node.gpus[0].ecc_uncorrected_new == 1


def test_an_old_driver_lacks_what_it_lacks(
    fake: FakeNvml, old_library: Path, reader: Reader
) -> None:
    fake.library = old_library
    fake.gpus(1, throttle="4", processes="4001 1000")
    fake.write()
    reader = Reader(fake.environment())
    try:
        node = reader.start().until(read)
    finally:
        reader.stop()
    gpu = node.gpus[0]
    assert (gpu.remapped_rows, gpu.nvlink_errors) == (None, None)
    assert gpu.throttle == ("sw_power_cap",)
    assert gpu.ranks == (0,)
    assert gpu.unreadable == ()


def test_without_a_library_it_is_off_and_pynvml_is_not_loaded(
    fake: FakeNvml, tmp_path: Path
) -> None:
    fake.library = tmp_path
    reader = Reader(fake.environment()).start()
    try:
        node = reader.until(lambda node: "no NVIDIA driver" in node.off)
        assert not reader.ask(RANK)["pynvml"]
    finally:
        reader.stop()
    assert node.gpus == ()


def test_a_library_that_is_none_is_a_reason_too(fake: FakeNvml, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"not ELF")
    fake.library = tmp_path
    reader = Reader(fake.environment()).start()
    try:
        assert (
            reader.until(lambda node: "libnvidia-ml.so.1 cannot be loaded" in node.off).gpus == ()
        )
    finally:
        reader.stop()


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("init", error(MISMATCH), "another version"),
        ("init", error(9), "Driver Not Loaded"),
        ("count", error(UNKNOWN), "Unknown Error"),
        ("count", "0", "no GPU"),
    ],
)
def test_nvml_that_does_not_begin_is_off_with_the_reason(
    fake: FakeNvml, reader: Reader, key: str, value: str, why: str
) -> None:
    fake.gpus(1)
    fake.values[key] = value
    fake.write()
    assert reader.start().until(lambda node: why in node.off).gpus == ()


def test_nvml_that_blocks_at_once_is_said_to(fake: FakeNvml, reader: Reader) -> None:
    fake.gpus(1)
    fake.values["init"] = BLOCK
    fake.write()
    node = reader.start(silent_s=0.2).until(lambda node: "has not answered" in node.off)
    assert node.gpus == ()


def test_nothing_is_read_without_ranks_or_when_it_is_switched_off(
    fake: FakeNvml, reader: Reader
) -> None:
    fake.gpus(1)
    fake.write()
    assert reader.start().ask()["node"]["off"] == "NVML is asked once there are ranks"
    reader.stop()
    node = reader.start(off="--no-gpu").node()
    assert node == NodeGpus((), "--no-gpu")
    assert not reader.ask(RANK)["pynvml"]


def test_all_ranks_on_one_gpu_is_noticed(fake: FakeNvml, reader: Reader) -> None:
    fake.gpus(4)
    fake.gpu(0, processes=" ".join(f"{4001 + rank} 1000" for rank in range(4)))
    fake.write()
    reader.start().until(lambda node: read(node) and len(node.gpus[0].ranks) == 4, *RANKS)
    assert reader.ask(*RANKS)["crowded"] == "GPU-0"
    assert reader.ask(*({**rank, "visible": "0"} for rank in RANKS))["crowded"] is None


def doctor(fake: FakeNvml) -> str:
    """What the doctor says of the GPUs."""
    fake.write()
    done = subprocess.run(
        [sys.executable, "-m", "hangwatch", "doctor"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(fake.environment()),
    )
    (line,) = (line for line in done.stdout.splitlines() if " gpus " in line)
    return line


def test_the_doctor_says_what_nvml_says(fake: FakeNvml, tmp_path: Path) -> None:
    fake.gpus(4)
    assert doctor(fake) == "ok    gpus       4 x NVIDIA H100 80GB HBM3, driver 570.1"
    fake.gpu(1, all=error(LOST))
    fake.gpu(2, power=error(UNKNOWN))
    del fake.values["3.xids"]
    said = doctor(fake)
    assert said.startswith("warn  gpus       3 x NVIDIA H100 80GB HBM3, 1 x unknown GPU, driver")
    assert (
        "GPU 1 is lost; GPU 2 has no reading of power; Xid errors of GPU-3 are not reported" in said
    )
    fake.values["init"] = error(MISMATCH)
    assert "warn  gpus       the driver in the kernel is of another version" in doctor(fake)
    fake.library = tmp_path
    assert doctor(fake) == "ok    gpus       none: no NVIDIA driver is installed here"


def test_random_names_stay_text(fake: FakeNvml, reader: Reader) -> None:
    fake.gpus(1, name='<script>"\\', uuid="GPU-\t{}")
    fake.write()
    assert reader.start().until(read).gpus[0].name == '<script>"\\'
