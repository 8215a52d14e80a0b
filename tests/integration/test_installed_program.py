"""A program that is installed is the user's own code, wherever it lies."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import reaches, watch

TRAIN = """\
import torch
import torch.distributed as dist

from company import data


def main():
    dist.init_process_group("gloo")
    for step in range(40):
        batch = data.load(step, dist.get_rank())
        dist.all_reduce(batch)


if __name__ == "__main__":
    main()
"""
DATA = """\
import time

import torch


def load(step, rank):
    if step == 20 and rank == 1:
        time.sleep(3600)
    return torch.ones(8)
"""
SCRIPT = "import sys\nfrom company.train import main\n\nsys.exit(main())\n"


@pytest.mark.parametrize("start", ["module", "script"])
def test_its_lines_are_told(tmp_path: Path, start: str) -> None:
    library = tmp_path / "lib" / "site-packages"
    for name, text in (("__init__", ""), ("train", TRAIN), ("data", DATA)):
        file = library / "company" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    script = tmp_path / "bin" / "company-train"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    result = watch(
        Path("company.train") if start == "module" else script,
        *("--suspect-after", "3", "--hang-after", "6"),
        launch=("-m",) if start == "module" else (),
        nproc=2,
        env={"PYTHONPATH": str(library)},
        until=reaches("hang"),
    )
    (report,) = (one for one in result.reports if one["verdict"]["state"] == "hang")
    verdict = report["verdict"]
    assert verdict["culprits"] == [1]
    assert verdict["site"]["file"] == str(library / "company" / "data.py")
    assert verdict["site"]["source"] == "time.sleep(3600)"
    assert verdict["victim_site"]["file"] == str(library / "company" / "train.py")
    assert verdict["victim_site"]["source"] == "dist.all_reduce(batch)"
