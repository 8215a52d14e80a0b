"""Every command of the documentation does what it says there, and every link leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import chromium, opened
from harness import environment
from steady import TORCHRUN, Job
from waiting import BOUND_S

from hangwatch.model.kinds import Kind
from hangwatch.settings.config import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

pytestmark = pytest.mark.quiet
ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
SITE = re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
"""The pages of the site, in their order."""
PAGES = ["README.md", *(f"docs/{name}" for name in SITE), "CONTRIBUTING.md"]
BESIDE = ["SECURITY.md", "CHANGELOG.md", "dashboards/README.md", "dashboards/RUNBOOK.md"]
"""What has links, and no commands that are run here."""
COMMANDS = {
    page: [
        line
        for block in re.findall(
            r"^```sh\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL
        )
        for line in block.splitlines()
    ]
    for page in PAGES
}
TARGETS = (
    *("demo", "check", "test", "test-all", "soak N=20", "zoo", "docs"),
    "corpus WORDS=oom",
)
MAKING = {f"make {target}" for target in TARGETS}
INSTALLING = {*MAKING, "pip install ."}
"""Not run here: they install. What ``make demo`` and ``make docs`` run then is run below."""
BESIDE_A_JOB = {"hangwatch top", "hangwatch inspect"}
"""What is run while a job goes on."""
TRAIN = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a user would be, with a training script and a hook."""
    path = tmp_path_factory.mktemp("user")
    (path / "train.py").write_text(TRAIN)
    hook = path / "notify.sh"
    hook.write_text('#!/bin/sh\necho "$1" > notified\n')
    hook.chmod(0o755)
    return path


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job that goes on until it is told to stop, under watch."""
    with Job(tmp_path, env={"HANGWATCH_DIR": str(tmp_path)}, launch=TORCHRUN) as job:
        job.until_running()
        yield job


def run(command: str, where: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of the docs as a user's shell would, in the environment of the tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Not by pipes, whose end comes only with that of the demo's data worker, which is stuck.
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        done = subprocess.run(  # noqa: S602 (our own docs)
            command,
            shell=True,
            cwd=where,
            env={**os.environ, "PATH": path},
            stdout=stdout,
            stderr=stderr,
            text=True,
            timeout=2 * BOUND_S,
            check=False,
        )
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(command, done.returncode, stdout.read(), stderr.read())


def test_the_commands_were_found() -> None:
    assert {"make demo", "make test"} <= set(COMMANDS["README.md"])
    assert {line for lines in COMMANDS.values() for line in lines} >= INSTALLING | BESIDE_A_JOB


def test_each_command_of_the_readme_works(directory: Path) -> None:
    each_works(COMMANDS["README.md"], directory)


def test_each_command_works_in_the_order_of_the_pages(directory: Path) -> None:
    each_works([line for lines in COMMANDS.values() for line in lines], directory)
    assert "<title>" in (directory / "incident.html").read_text()


def each_works(commands: Iterable[str], directory: Path) -> None:
    found = Path("latest")
    for command in commands:
        if command == "make demo":
            done = run("hangwatch demo", directory)
            assert "The verdict is right." in done.stderr
            assert "the job has ended with exit code 1 after the hang above" in done.stderr
            found = (directory / "hangwatch-reports/latest").readlink()
        elif command in INSTALLING | BESIDE_A_JOB:
            continue
        else:
            # The newest run since then found nothing.
            command_then = command.replace("latest", str(found))
            done = run(command_then, ROOT if command.startswith("promtool") else directory)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if command == "hangwatch report hangwatch-reports/latest":
            assert done.stdout.startswith("hangwatch: HANG (")


def test_inspect_shows_the_ranks_of_a_job_that_runs(job: Job) -> None:
    done = run("hangwatch inspect", job.where)
    assert done.returncode == 0, done.stderr
    assert "Job: 2 ranks" in done.stdout


def test_top_follows_a_job_to_its_end(job: Job) -> None:
    (lock,) = job.where.glob("hangwatch-*/*/lock")
    # As below the job, since others may be watched on this machine.
    here = {"HANGWATCH_DIR": str(lock.parent)}
    with subprocess.Popen(  # noqa: S602 (a line of our docs)
        "hangwatch top",  # noqa: S607
        shell=True,
        cwd=job.where,
        env=environment(here),
        stdout=subprocess.PIPE,
        text=True,
    ) as top:
        assert top.stdout
        first = top.stdout.readline()
        (job.where / "stop").touch()
        rest = top.stdout.read()
    assert top.returncode == 0
    assert "2 ranks" in first
    assert "exit code 0" in rest


@pytest.mark.parametrize("command", sorted(MAKING))
def test_the_makefile_knows_the_target(command: str) -> None:
    assert run(f"{command} --dry-run", ROOT).returncode == 0


def test_every_option_and_every_kind_is_in_the_docs() -> None:
    for option in OPTIONS:
        flag = f"{option.flag} {option.metavar}".strip().partition(" ")[0]
        assert flag in (ROOT / "docs/options.md").read_text("utf-8")
    for kind in Kind:
        assert f"| `{kind}` |" in (ROOT / "docs/verdicts.md").read_text("utf-8")


def test_the_readme_is_short() -> None:
    assert len(README.encode()) <= 10_000


def test_every_page_is_in_the_site() -> None:
    assert sorted(SITE) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", [*PAGES, *BESIDE])
def test_every_link_to_a_file_leads_to_one(page: str) -> None:
    """Anchors, too, as GitHub makes them of headings."""
    file = ROOT / page
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", file.read_text("utf-8"))
    for link in links:
        target, _, anchor = "".join(link).partition("#")
        if target.startswith("https://"):
            continue
        found = (file.parent / target) if target else file
        assert found.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(found), f"{page}: {target}#{anchor}"


def anchors(file: Path) -> set[str]:
    """What the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built as ``make docs`` builds it: any link or anchor gone is an error."""
    where = tmp_path_factory.mktemp("site")
    done = run(f"NO_MKDOCS_2_WARNING=1 mkdocs build --site-dir {where}", ROOT)
    assert done.returncode == 0, done.stderr
    return where


def test_the_site_asks_nothing_of_a_network(site: Path) -> None:
    pages = list(site.glob("*.html"))
    assert len(pages) >= len(SITE)
    for page in pages:
        loaded = re.findall(
            r"<(?:script|link|img|source|iframe)[^>]*(?:src|href|srcset)=\"?(?:https?:)?//[^>]+",
            page.read_text("utf-8"),
        )
        assert loaded == [], page.name


def test_the_site_can_be_searched_where_it_is_opened_as_a_file(site: Path) -> None:
    with chromium() as browser, opened(browser, site / "index.html", site=True) as found:
        page = found.page
        page.click(".md-search__input")
        page.wait_for_function("typeof __index !== 'undefined'")
        page.keyboard.type("never entered", delay=20)
        page.wait_for_selector(".md-search-result__item")
        assert found.troubles == []
