"""The cause may lie in a module that the program imports, and that no call and no stack names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import reaches, watch

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = {
    "train.py": """\
import torch.distributed as dist
from parts.rounds import train

if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(dist.get_rank())
""",
    "parts/rounds.py": """\
from .average import average


def train(rank):
    for step in range(9):
        if rank == 1 and step == 4:
            return
        average()
""",
    "parts/average.py": """\
import torch
import torch.distributed as dist


def average():
    dist.all_reduce(torch.ones(8))
""",
}


def test_a_statement_of_such_a_module_is_the_cause(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    result = watch(tmp_path / "train.py", nproc=3, until=reaches("failed"))
    (report,) = (one for one in result.reports if one["verdict"]["state"] == "failed")
    verdict = report["verdict"]
    assert verdict["culprits"] == [1]
    assert verdict["site"]["file"] == str(tmp_path / "parts" / "average.py")
    causes = [verdict["cause"], *verdict["cause"]["others"]]
    assert {"rank_condition", "early_exit"} & {cause["what"] for cause in causes}
    assert {cause["site"]["file"] for cause in causes} == {str(tmp_path / "parts" / "rounds.py")}
