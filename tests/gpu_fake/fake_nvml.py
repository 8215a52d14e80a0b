"""Builds the fake libnvidia-ml.so.1 and writes what its devices say (fake_nvml.cpp)."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.cpp")
LIBRARY = "libnvidia-ml.so.1"
MISMATCH, LOST, RESET_REQUIRED, UNKNOWN, NO_PERMISSION = 18, 15, 16, 999, 4
"""NVML_ERROR_* of nvml.h."""
BLOCK = "block"


def error(number: int) -> str:
    """The value of a figure whose call fails."""
    return f"error {number}"


def build(directory: Path, *, old: bool = False) -> Path:
    """Compile the fake into a directory. old: without what drivers of 2020 lack."""
    directory.mkdir(parents=True, exist_ok=True)
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += ["-DOLD_DRIVER"] if old else []
    subprocess.run(  # noqa: S603 (the command is made here)
        [*command, "-o", str(directory / LIBRARY), str(SOURCE)], check=True
    )
    return directory


@dataclass(slots=True)
class FakeNvml:
    """The machine that the fake library shows; write() makes it so."""

    file: Path
    library: Path
    """Directory of the library."""
    values: dict[str, str] = field(default_factory=lambda: {"driver": "570.1"})

    def gpus(self, count: int, **figures: str) -> None:
        """So many sound GPUs."""
        self.values["count"] = str(count)
        for gpu in range(count):
            self.gpu(gpu, **{**SOUND, "uuid": f"GPU-{gpu}", **figures})

    def gpu(self, gpu: int, part: int | None = None, /, **figures: str) -> None:
        """Figures of a GPU, or of one of its MIG devices."""
        prefix = f"{gpu}." if part is None else f"{gpu}.{part}."
        self.values.update((prefix + name, value) for name, value in figures.items())

    def write(self) -> None:
        """Let the library see it, all at once."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text("".join(f"{key} = {value}\n" for key, value in self.values.items()))
        fresh.replace(self.file)

    def environment(self) -> dict[str, str]:
        """What a process needs to load the fake."""
        paths = [str(self.library), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            "FAKE_NVML": str(self.file),
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths)),
        }


SOUND = {
    "name": "NVIDIA H100 80GB HBM3",
    "temperature": "61",
    "power": "350500",
    "sm_clock": "1980",
    "memory_clock": "2619",
    "throttle": "0",
    "ecc_corrected": "2",
    "ecc_uncorrected": "0",
    "rows": "1 0 0 0",
    "nvlink": "0",
    "utilization": "97",
    "memory": "1073741824 85899345920",
    "mig": "0",
    "processes": "",
    "xids": "",
}
"""Power in mW, clocks in MHz, memory as bytes in use and in all."""
