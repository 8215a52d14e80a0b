"""The pod template and the batch script of docs/, run here as far as one machine can."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import free_port
from hosts import needs_hosts
from launching import PROGRAMS, Launched, line_of

pytestmark = pytest.mark.quiet
ROOT = Path(__file__).parents[2]
LAUNCHED = PROGRAMS / "launched.py"
FAKE_SRUN = Path(__file__).parent / "fake_srun.py"
APART = ("unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--uts")
QUICK = {"HANGWATCH_SUSPECT_AFTER": "2"}
PARSE = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"


def block(page: str, language: str) -> str:
    """The first block of code of that language on a page of docs/."""
    found = re.search(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert found
    return found[1]


def stall_and_stop(job: Launched) -> list[dict[str, Any]]:
    """Have rank 1 stall until that is told, then the job end; the verdicts."""
    job.until_running()
    job.touch("hold")
    job.until_said("SLOW")
    (job.where / "hold").unlink()
    job.until_said("recovered")
    job.touch("stop")
    assert job.wait() == 0
    return [report["verdict"] for report in job.reports()]


def is_found(verdicts: list[dict[str, Any]]) -> bool:
    (verdict,) = verdicts
    assert verdict["site"]["line"] == line_of(LAUNCHED)
    return (verdict["culprits"], verdict["victims"]) == ([1], [0])


@needs_hosts
def test_the_pod_template_is_all_that_a_job_needs(tmp_path: Path, framework_python: str) -> None:
    text = block("kubernetes.md", "yaml")
    parsed = subprocess.run(  # noqa: S603 (ours)
        [framework_python, "-c", PARSE], input=text, capture_output=True, text=True, check=True
    )
    service, job = json.loads(parsed.stdout)
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["securityContext"]["capabilities"]["add"] == ["SYS_PTRACE"]
    assert {volume["name"] for volume in pod["volumes"]} == {
        mount["name"] for mount in container["volumeMounts"]
    }
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    env |= {"HANGWATCH_REPORT_DIR": "hangwatch-reports", **QUICK}
    env |= {"HANGWATCH_METRICS_ADDR": "off"}
    # As Kubeflow's PyTorchJob sets them, for the pod.
    env |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "train-0", "MASTER_PORT": "1"}
    here = {
        "--nnodes=2": "--nnodes=1",
        "--nproc-per-node=8": "--nproc-per-node=2",
        "--node-rank=$(JOB_COMPLETION_INDEX)": "--node-rank=0",
        "--master-addr=train-0.train": "--master-addr=127.0.0.1",
        "--master-port=29400": f"--master-port={free_port()}",
        "train.py": str(LAUNCHED),
    }
    command = [*APART, *container["command"], *(here[word] for word in container["args"])]
    with Launched(tmp_path, command, env, python=framework_python) as started:
        assert is_found(stall_and_stop(started))
        watching = [line for line in started.news() if "watching" in line]
        assert len(watching) == 1
    (report,) = started.reports()
    assert sorted(rank["rank"] for rank in report["ranks"]) == [0, 1]


def test_the_batch_script_has_each_node_watched(tmp_path: Path, framework_python: str) -> None:
    (tmp_path / "train.py").symlink_to(LAUNCHED)
    (tmp_path / "job.sh").write_text(block("slurm.md", "bash"))
    for name, line in {
        "srun": f'exec "{sys.executable}" "{FAKE_SRUN}" "$@"',
        "scontrol": "echo localhost; echo another",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    number = next(n for n in range(7, 100) if is_free(20000 + n))
    env = {
        "SLURM_JOB_ID": str(number),
        "SLURM_NNODES": "2",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_GPUS_ON_NODE": "1",
        "SLURM_JOB_NODELIST": "localhost,another",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        **QUICK,
    }
    with Launched(tmp_path, ["bash", "job.sh"], env, python=framework_python) as started:
        assert is_found(stall_and_stop(started))
        started.until_nothing_runs()
    assert {path.name for path in (tmp_path / "hangwatch-reports").iterdir()} == {
        f"slurm-{number}",
        "latest",
    }


def is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False
