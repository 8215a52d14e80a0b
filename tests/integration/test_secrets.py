"""A watched job that is given secrets: nothing that hangwatch writes or says has any of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from harness import environment, free_port
from waiting import BOUND_S, until

from hangwatch.evidence import sources
from hangwatch.safety.redaction import REDACTED

PROGRAM = Path(__file__).parent / "programs" / "given_secrets.py"
MARK = "Zq8"
"""In each secret, and nowhere else."""
COMMAND = (
    *(f"--wandb-api-key={MARK}Key1", "--hf_token", f"{MARK}Token1", "--tokenizer", "gpt2"),
    *("--password", f"{MARK}Pass/word", f"https://me:{MARK}Url1@host/x"),
    *("-e", f"AWS_SECRET_ACCESS_KEY={MARK}Aws1", "-H", f"Authorization: Bearer {MARK}Bearer"),
)
CHILD = f"--db-password {MARK}Child1 API_TOKEN={MARK}Child2"
RAISED = f"cannot log in: {{'user': 'me', 'password': '{MARK}Raised1'}} at https://u:{MARK}R2@h/"
HOOK = f"sh -c 'env > hook; exit 1' --token={MARK}Hook1"


def test_no_secret_is_in_anything_that_is_written_or_said(tmp_path: Path) -> None:
    (tmp_path / "child").write_text(CHILD)
    (tmp_path / "raised").write_text(RAISED)
    (tmp_path / "base").mkdir()
    port = free_port()
    options = (
        *(f"--report-dir={tmp_path / 'reports'}", "--suspect-after=0.5", "--hang-after=1", "-v"),
        *(f"--metrics-addr=127.0.0.1:{port}", "--no-gpu", f"--hook={HOOK}", "--interval=0.2"),
    )
    with (tmp_path / "said").open("wb") as said:
        job = subprocess.Popen(  # noqa: S603 (our own Python)
            [sys.executable, "-m", "hangwatch", *options, sys.executable, str(PROGRAM), *COMMAND],
            cwd=tmp_path,
            env={**environment({}), "HANGWATCH_DIR": str(tmp_path / "base")},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
        try:
            until(lambda: any((tmp_path / "reports").glob("*/incident-*/index.html")), tmp_path)
            until(lambda: "exit code 1" in (tmp_path / "said").read_text(), tmp_path)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                (tmp_path / "metrics").write_bytes(answer.read())
            written = everything(tmp_path)  # while the files of the run are still there
            (tmp_path / "end").touch()
            assert job.wait(BOUND_S) == 3
        finally:
            job.kill()
            job.wait()
    written |= everything(tmp_path)
    names = {path.name for path in written}
    assert {"run.json", "report.json", "index.html", "watchdog.json", "said", "hook"} <= names
    assert [path for path, data in written.items() if MARK.encode() in data] == []
    (run_file,) = (tmp_path / "reports").glob("[!l]*/run.json")
    command = json.loads(run_file.read_bytes())["command"]
    assert f"--wandb-api-key={REDACTED}" in command
    assert command[command.index("--tokenizer") + 1] == "gpt2"
    reports = [json.loads(data) for path, data in written.items() if path.name == "report.json"]
    assert any(REDACTED in json.dumps(report["ranks"]) for report in reports)  # of the exception
    assert f"--hook sh -c 'env > hook; exit 1' --token={REDACTED}" in (
        (tmp_path / "said").read_text()
    )


def everything(directory: Path) -> dict[Path, bytes]:
    """All files below a directory, but those by which the program is told its secrets."""
    told = {"child", "raised"}
    found = {}
    for path in directory.rglob("*"):
        if path.is_file() and path.name not in told:
            found[path] = path.read_bytes()
    return found


def test_no_line_of_source_that_is_shown_has_a_token(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f'import os\nlogin(token="hf_{MARK * 10}x1")\nstep()\n')
    text = sources.read({str(script): 1}, time.time() + 1)[str(script)]
    assert text == f'import os\nlogin(token="{REDACTED}")\nstep()\n'
