"""Each Python process of a job is armed, and none of them notices."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import site
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from agent_runs import Run, run, unwatched, watched
from waiting import in_time, until

from hangwatch.agent.environment import RECORDER, sitecustomize_directory
from hangwatch.agent.sample.sampler import PERIOD_S
from hangwatch.errors import PageError
from hangwatch.evidence import timing
from hangwatch.evidence.flight import request
from hangwatch.evidence.pages.reader import parse_page
from hangwatch.model.kinds import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hangwatch.model.page import RankPage

ALONE = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29400",
}
"""A rank as a launcher starts it; the store is a file in these tests."""
WITHOUT_PTH = {"HANGWATCH": ""}
"""Only PYTHONPATH leads to us, as where hangwatch is not installed for the job's Python."""
INIT = """
import os, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""


def python(
    code: str, tmp_path: Path, *options: str, environ: Mapping[str, str] | None = None
) -> Run:
    """Run code below hangwatch in an interpreter of its own."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(code))
    return run([sys.executable, *options, script], tmp_path / "run", environ=environ)


def place(directory: Path, code: str) -> Path:
    """A directory with a sitecustomize of the user's."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(code)
    return directory


class TestChaining:
    """A sitecustomize that was there before runs as if ours did not exist."""

    def test_the_next_one_on_the_path_runs(self, tmp_path: Path) -> None:
        theirs = place(tmp_path / "theirs", "import sys; sys.theirs = __file__, __name__")
        code = "import sys, sitecustomize; print(*sys.theirs, sitecustomize.__file__)"
        result = python(code, tmp_path, environ={"PYTHONPATH": str(theirs)})
        file = theirs / "sitecustomize.py"
        assert result.stdout.split() == [str(file), "sitecustomize", str(file)]
        assert result.stderr == ""

    def test_only_the_first_of_several_runs(self, tmp_path: Path) -> None:
        first = place(tmp_path / "first", "print('first')")
        second = place(tmp_path / "second", "print('second')")
        path = os.pathsep.join(map(str, (first, second)))
        assert python("", tmp_path, environ={"PYTHONPATH": path}).stdout == "first\n"

    def test_an_injector_that_chains_by_importing_again_leads_to_the_users(
        self, tmp_path: Path
    ) -> None:
        injector = place(
            tmp_path / "injector",
            "import os, sys\n"
            "print('injector')\n"
            "path = list(sys.path)\n"
            "sys.path = [p for p in sys.path if p != os.path.dirname(__file__)]\n"
            "del sys.modules['sitecustomize']\n"
            "import sitecustomize\n"
            "sys.path = path\n",
        )
        users = place(tmp_path / "users", "print('users')")
        path = os.pathsep.join(map(str, (injector, users)))
        result = python("", tmp_path, environ={"PYTHONPATH": path})
        assert (result.stdout, result.stderr) == ("injector\nusers\n", "")

    def test_a_package_runs_and_a_bare_directory_does_not(self, tmp_path: Path) -> None:
        (tmp_path / "bare" / "sitecustomize").mkdir(parents=True)
        package = tmp_path / "packed" / "sitecustomize"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("from sitecustomize import part; print(part.__name__)")
        (package / "part.py").touch()
        path = os.pathsep.join((str(tmp_path / "bare"), str(tmp_path / "packed")))
        result = python("", tmp_path, environ={"PYTHONPATH": path})
        assert result.stdout == "sitecustomize.part\n"

    @pytest.mark.parametrize(
        "code", ["raise ValueError('theirs')", "import no_such_module", "raise SystemExit(7)"]
    )
    def test_its_exceptions_are_its_own(self, code: str, tmp_path: Path) -> None:
        theirs = place(tmp_path / "theirs", code)
        script = tmp_path / "program.py"
        script.write_text("print('runs')")
        plain = subprocess.run(  # noqa: S603 (our own interpreter)
            [sys.executable, script],
            env=unwatched({"PYTHONPATH": str(theirs)}),
            capture_output=True,
            text=True,
            check=False,
        )
        result = python("print('runs')", tmp_path, environ={"PYTHONPATH": str(theirs)})
        assert (result.exit_code, result.stdout) == (plain.returncode, plain.stdout)
        # A traceback that the interpreter prints on its own has our frames in it.
        assert result.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]

    def test_of_ours_nothing_is_imported_that_does_not_wait_for_torch(self, tmp_path: Path) -> None:
        code = "import sys; print([m for m in sys.modules if m.startswith('hangwatch')])"
        room = "hangwatch.agent.inject"
        names = ["hangwatch", "hangwatch.agent", room, f"{room}.post_import", f"{room}.start"]
        assert python(code, tmp_path).stdout == f"{names}\n"


class TestTheJobsEnvironment:
    """What the supervisor gives to the command."""

    def test_the_users_pythonpath_is_kept_in_its_order(self, tmp_path: Path) -> None:
        path = os.pathsep.join(("/first", "/second", "/third"))
        code = "import sys; print(*sys.path[1:5], sep='\\n')"
        lines = python(code, tmp_path, environ={"PYTHONPATH": path}).stdout.split("\n")
        assert lines[:4] == [sitecustomize_directory(), "/first", "/second", "/third"]

    @pytest.mark.parametrize("flag", ["-I", "-E", "-P"])
    def test_an_isolated_interpreter_is_armed_where_hangwatch_is_installed(
        self, flag: str, tmp_path: Path
    ) -> None:
        found = python(INIT, tmp_path, flag, environ=ALONE)
        assert (found.exit_code, found.stderr, found.notes) == (0, "", [])
        assert [page.phase for page in found.pages] == [Phase.EXITED]

    def test_an_interpreter_without_site_is_left_alone(self, tmp_path: Path) -> None:
        code = "import sys; print('sitecustomize' in sys.modules, len(sys.meta_path))"
        script = tmp_path / "program.py"
        script.write_text(code)
        command = [sys.executable, "-S", str(script)]
        plain = subprocess.run(  # noqa: S603 (our own interpreter)
            command, env=unwatched({}), capture_output=True, text=True, check=False
        )
        assert run(command, tmp_path / "run").stdout == plain.stdout

    @pytest.mark.parametrize("switch", [{"HANGWATCH": "0"}, {"HANGWATCH_DIR": ""}])
    def test_it_can_be_switched_off(self, switch: dict[str, str], tmp_path: Path) -> None:
        directory = tmp_path / "run"
        directory.mkdir()
        code = "import sys; print([f for f in sys.meta_path if hasattr(f, 'of_hangwatch')])"
        found = subprocess.run(  # noqa: S603 (our own interpreter)
            [sys.executable, "-c", code],
            env=watched(directory, {}) | switch,
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout == "[]\n"

    def test_children_of_children_are_armed_too(self, tmp_path: Path) -> None:
        code = """
        import subprocess, sys
        child = "import sys; print([type(f).__name__ for f in sys.meta_path][0])"
        parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
        subprocess.run([sys.executable, "-c", parent], check=True)
        """
        assert python(code, tmp_path).stdout == "Finder\n"


SET_UP = ["init_process_group", "new_group", "destroy_process_group"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A rank that tells what it sees of us, and raises."""
    code = (
        INIT
        + """
import inspect, json, pickle, threading, types
import hangwatch
for _ in range(2):
    model = types.SimpleNamespace(require_backward_grad_sync=True)
    with torch.nn.parallel.DistributedDataParallel.no_sync(model):
        assert not model.require_backward_grad_sync
def fill():
    raise KeyError("no label")
filler = threading.Thread(target=fill, name="filler")
filler.start()
filler.join()
c10d = dist.distributed_c10d
dist.all_reduce(torch.ones(1))
dist.new_group([0])
dist.new_group(use_local_synchronization=True)
dist.new_group()
print(json.dumps({
    "signature": str(inspect.signature(dist.init_process_group)),
    "takes": [repr(inspect.getfullargspec(getattr(c10d, name))) for name in %r],
    "source": inspect.getsource(dist.new_group).startswith("@_time_logger"),
    "name": dist.destroy_process_group.__module__,
    "pickled": pickle.loads(pickle.dumps(dist.new_group)) is dist.new_group,
    "same": c10d.init_process_group is dist.init_process_group,
    "loader": [type(c10d.__loader__).__name__, type(c10d.__spec__.loader).__name__],
    "finders": [hasattr(finder, "of_hangwatch") for finder in sys.meta_path],
    "threads": [thread.name for thread in __import__("threading").enumerate()],
    "hook": sys.excepthook.__module__,
    "sizes": [os.environ.get(f"TORCH_{n}_BUFFER_SIZE") for n in ("FR", "NCCL_TRACE")],
}))
raise LookupError("a" * 600)
""".replace("%r", repr(SET_UP))
    )
    return python(code, tmp_path_factory.mktemp("alone"), environ=ALONE)


class TestARank:
    """A process that the launcher started as a rank."""

    def test_its_page_says_who_it_is(self, alone: Run) -> None:
        (page,) = alone.pages
        assert alone.notes == []
        assert (page.identity.rank, page.identity.world_size) == (0, 1)
        assert (page.identity.local_rank, page.identity.local_world_size) == (0, 1)
        assert Path(page.identity.program).name == "program.py"
        assert (page.recorder, page.recorder_reason) == ("native", "")

    def test_its_page_tells_of_the_groups_that_it_made(self, alone: Run) -> None:
        (page,) = alone.pages
        assert [(call.number, call.ranks) for call in page.new_groups] == [
            (1, (0,)),
            (-1, (0,)),
            (2, (0,)),
        ]
        assert {call.site.function for call in page.new_groups if call.site} == {"<module>"}
        lines = [call.site.line for call in page.new_groups if call.site]
        assert lines == list(range(lines[0], lines[0] + 3))

    def test_its_page_tells_of_no_sync_and_of_the_thread_that_died(self, alone: Run) -> None:
        (page,) = alone.pages
        local, died = page.marks
        assert (local.kind, local.count) == ("no_sync", 2)
        assert (died.kind, died.text) == ("thread_died", "filler: KeyError: 'no label'")
        assert local.site is not None
        assert died.site is not None
        assert (local.site.function, died.site.function) == ("<module>", "fill")
        assert "Exception in thread filler:" in alone.stderr

    def test_an_uncaught_exception_is_recorded_with_the_users_line(self, alone: Run) -> None:
        (page,) = alone.pages
        assert alone.exit_code == 1
        assert page.phase is Phase.RAISED
        assert page.exception is not None
        assert (page.exception.type, page.exception.message) == ("LookupError", "a" * 500)
        assert page.exception.site is not None
        assert page.exception.site.function == "<module>"

    def test_its_standard_error_has_nothing_of_ours(self, alone: Run) -> None:
        assert "hangwatch" not in alone.stderr
        assert "Warning" not in alone.stderr

    def test_what_is_wrapped_looks_as_before(self, alone: Run, tmp_path: Path) -> None:
        told = told_by(alone)
        assert told["signature"].startswith("(backend: str | None = None, init_method:")
        assert told["takes"] == takes_of_torch(tmp_path)
        assert told["name"] == "torch.distributed.distributed_c10d"
        assert told["source"]
        assert told["pickled"]
        assert told["same"]

    def test_the_import_leaves_no_trace_in_the_module(self, alone: Run) -> None:
        told = told_by(alone)
        assert told["loader"] == ["SourceFileLoader", "SourceFileLoader"]
        assert not any(told["finders"])

    def test_it_sees_no_thread_and_no_hook_of_ours(self, alone: Run) -> None:
        told = told_by(alone)
        assert told["threads"] == ["MainThread"]
        assert "hangwatch" not in told["hook"]

    def test_the_flight_recorder_is_on_by_the_name_that_this_torch_reads(self, alone: Run) -> None:
        assert told_by(alone)["sizes"] == ["2000", None]


def takes_of_torch(tmp_path: Path) -> list[str]:
    """What the set-up functions take, as torch itself says it."""
    script = tmp_path / "bare.py"
    script.write_text(
        f"import inspect, json, torch.distributed.distributed_c10d as c10d\n"
        f"print(json.dumps([repr(inspect.getfullargspec(getattr(c10d, name)))"
        f" for name in {SET_UP}]))\n"
    )
    bare = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)  # noqa: S603 (our own)
    found: list[str] = json.loads(bare.stdout)
    return found


def told_by(result: Run) -> dict[str, Any]:
    """The JSON that a program printed."""
    told: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return told


def test_a_user_who_sized_the_flight_recorder_is_heeded(tmp_path: Path) -> None:
    code = "import os, torch; print(sorted(v for v in os.environ.items() if 'BUFFER_SIZE' in v[0]))"
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        result = python(code, tmp_path, environ={name: "17"})
        assert result.stdout == f"[('{name}', '17')]\n"


def test_an_interpreter_that_has_no_hangwatch_is_recorded_all_the_same(tmp_path: Path) -> None:
    code = INIT + "print(sys.path); print('hangwatch._native' in sys.modules)"
    script = tmp_path / "program.py"
    script.write_text(code)
    packages = site.getsitepackages()[0]  # torch; its .pth files are not read from here
    result = run(
        [sys._base_executable, script],  # type: ignore[attr-defined]  # noqa: SLF001
        tmp_path / "run",
        environ={**ALONE, "PYTHONPATH": packages},
    )
    assert result.notes == []
    (page,) = result.pages
    assert (page.recorder, page.phase) == ("native", Phase.EXITED)
    path, native = result.stdout.splitlines()
    assert path.count(packages) == 1
    assert native == "True"


def test_an_agent_that_cannot_write_leaves_the_job_alone(tmp_path: Path) -> None:
    code = INIT + "dist.all_reduce(torch.ones(1)); dist.destroy_process_group(); print('done')"
    script = tmp_path / "program.py"
    script.write_text(code)
    environ = watched(Path("/proc/self"), ALONE)  # not even root makes a file there
    result = subprocess.run(  # noqa: S603 (our own interpreter)
        [sys.executable, script], env=environ, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


def test_an_agent_that_cannot_be_imported_says_so_once_where_the_watchdog_looks(
    tmp_path: Path,
) -> None:
    code = """
    import sys
    sys.modules["hangwatch"] = sys  # something else of that name
    import torch
    import torch.distributed
    print("runs")
    """
    result = python(code, tmp_path, environ=ALONE)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "runs\n", "")
    (note,) = result.notes
    assert "is not recorded: ModuleNotFoundError" in note


def test_user_code_can_arm_where_sitecustomize_does_not_run(tmp_path: Path) -> None:
    code = """
    import hangwatch.agent
    hangwatch.agent.arm()
    hangwatch.agent.arm()
    import torch.distributed as dist
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    """
    result = python(code, tmp_path, "-I", environ={**ALONE, **WITHOUT_PTH})
    assert [page.phase for page in result.pages] == [Phase.EXITED]


def test_arming_after_the_import_of_torch_replaces_what_was_imported(tmp_path: Path) -> None:
    code = """
    from torch.distributed import init_process_group
    import hangwatch.agent, torch.distributed as dist
    hangwatch.agent.arm()
    init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    """
    result = python(code, tmp_path, "-I", environ=WITHOUT_PTH)
    assert [page.phase for page in result.pages] == [Phase.EXITED]
    assert result.pages[0].groups[0].key.ranks == (0,)


def test_arming_after_init_process_group_is_refused_in_writing(tmp_path: Path) -> None:
    code = """
    import hangwatch.agent, torch.distributed as dist
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    hangwatch.agent.arm()
    dist.barrier()
    """
    result = python(code, tmp_path, "-I", environ={**ALONE, **WITHOUT_PTH})
    assert (result.exit_code, result.stderr, result.pages) == (0, "", [])
    (note,) = result.notes
    assert "call it before" in note


def test_a_program_that_a_rank_becomes_by_exec_is_the_rank(tmp_path: Path) -> None:
    code = """
    import os, sys, torch.distributed as dist
    if len(sys.argv) == 1:
        os.execv(sys.executable, [sys.executable, __file__, "again"])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    """
    result = python(code, tmp_path, environ=ALONE)
    assert result.notes == []
    assert [page.phase for page in result.pages] == [Phase.EXITED]


def test_an_exception_is_recorded_while_the_programs_own_hook_still_prints_it(
    tmp_path: Path,
) -> None:
    code = """
    import glob, os, sys, time, torch.distributed as dist
    from hangwatch.evidence.pages.reader import parse_page
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    (page,) = glob.glob(os.environ["HANGWATCH_DIR"] + "/*.page")
    def recorded():
        with open(page, "rb") as file:
            return parse_page(file.read()).exception
    def hook(kind, error, trace):
        while not recorded():
            time.sleep(0.01)
        print(recorded().type)
    sys.excepthook = hook
    try:
        raise KeyError
    except KeyError as error:
        sys.last_value = error  # as debuggers do
        time.sleep(1.2)
        assert recorded() is None
    raise LookupError
    """
    result = python(code, tmp_path, environ=ALONE)
    assert result.stdout == "LookupError\n"
    assert result.pages[0].phase is Phase.RAISED


def test_a_warning_of_torch_names_the_line_that_it_is_about(tmp_path: Path) -> None:
    code = """
    import warnings
    from torch.nn import Linear
    from torch.nn.parallel import DistributedDataParallel
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DistributedDataParallel(Linear(2, 2), broadcast_buffers=False)
    print([warning.filename == __file__ for warning in caught])
    """
    result = python(INIT + textwrap.dedent(code), tmp_path, environ=ALONE)
    assert result.stdout == "[True]\n"


def test_data_workers_of_either_kind_never_write_a_page(tmp_path: Path) -> None:
    code = """
    import os, sys, torch
    import torch.distributed as dist

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            return index, os.getpid()

    if __name__ == "__main__":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        for kind in ("fork", "spawn"):
            loader = torch.utils.data.DataLoader(
                Numbers(), num_workers=1, multiprocessing_context=kind
            )
            items = [[int(value) for value in item] for item in loader]
            assert [number for number, _ in items] == [0, 1, 2, 3]
            assert os.getpid() not in {pid for _, pid in items}
        print(os.getpid())
    """
    result = python(code, tmp_path, environ=ALONE)
    assert result.exit_code == 0
    (page,) = result.pages
    assert page.identity.pid == int(result.stdout)
    assert (page.phase, page.swallowed) == (Phase.EXITED, 0)


@pytest.mark.parametrize("recorder", ["native", "python"])
def test_a_forked_child_that_becomes_a_rank_has_a_page_of_its_own(
    recorder: str, tmp_path: Path
) -> None:
    code = """
    import os, sys, torch
    import torch.distributed as dist
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            dist.init_process_group(
                "gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2
            )
            dist.all_reduce(torch.ones(1))
            dist.destroy_process_group()
            sys.exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    print(*children)
    """
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(code))
    command = [sys.executable, str(script), str(tmp_path / "store")]
    result = run(command, tmp_path / "run", recorder=recorder)
    assert result.exit_code == 0
    assert [page.identity.pid for page in result.pages] == [int(p) for p in result.stdout.split()]
    assert [page.groups[0].enqueued for page in result.pages] == [1, 1]
    assert {page.phase for page in result.pages} == {Phase.EXITED}


def test_a_rank_that_multiprocessing_forked_tells_its_good_end(tmp_path: Path) -> None:
    code = """
    import multiprocessing, sys, threading, time
    import torch.distributed as dist

    def work(rank):
        store = f"file://{sys.argv[1]}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=3)
        met.wait()  # gloo fails where one leaves while another still connects
        if rank == 1:
            sys.exit(3)
        if rank == 2:  # main has returned, and the rank still works
            threading.Thread(target=time.sleep, args=(1,)).start()

    context = multiprocessing.get_context("fork")
    met = context.Barrier(3)
    ranks = [context.Process(target=work, args=(rank,)) for rank in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    print(*(rank.exitcode for rank in ranks))
    """
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(code))
    result = run([sys.executable, str(script), str(tmp_path / "store")], tmp_path / "run")
    assert (result.stdout, result.stderr) == ("0 3 0\n", "")
    phases = [Phase.EXITED, Phase.RUNNING, Phase.RUNNING]
    assert [page.phase for page in result.pages] == phases


class TestALivingRank:
    """What the page of a rank shows while it runs."""

    @pytest.fixture(params=["native", "python"])
    def waiting(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """A rank that waits for its peer in init_process_group, and its page."""
        script = tmp_path / "program.py"
        script.write_text(
            "import torch.distributed as dist\n"
            f"store = dist.FileStore({str(tmp_path / 'store')!r}, 2)\n"
            "dist.init_process_group('gloo', store=store, rank=1, world_size=2)\n"
        )
        directory = tmp_path / "run"
        directory.mkdir()
        environ = watched(directory, ALONE | {"RANK": "1", "WORLD_SIZE": "2"})
        process = subprocess.Popen(  # noqa: S603 (our own interpreter)
            [sys.executable, script], env=environ | {RECORDER: request.param}
        )
        try:
            page = until(lambda: whole_page(directory))
            until(lambda: waits_and_beats(page))
            yield process, page
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def test_a_set_up_call_that_blocks_is_told_with_its_line_and_the_rank_beats(
        self, waiting: tuple[subprocess.Popen[bytes], Path]
    ) -> None:
        _, path = waiting
        page = read(path)
        assert (page.phase, page.in_call) == (Phase.INIT, "init_process_group")
        assert page.in_call_site is not None
        assert (page.in_call_site.line, page.in_call_site.function) == (3, "<module>")
        assert path.name == f"r0-1-{page.identity.pid}.page"
        before = page.gil_ns
        until(lambda: read(path).gil_ns > before)

    def test_it_answers_with_its_flight_recorder(
        self, waiting: tuple[subprocess.Popen[bytes], Path]
    ) -> None:
        _, path = waiting
        path.with_name(path.name + ".req").touch()
        answer = path.with_name(path.name + ".flight")
        until(answer.exists)
        assert "version" in json.loads(answer.read_bytes())
        assert not path.with_name(path.name + ".req").exists()

    def test_it_answers_long_before_its_next_sample(
        self, waiting: tuple[subprocess.Popen[bytes], Path]
    ) -> None:
        _, path = waiting
        # That of the Python recorder looks for requests when it samples.
        bound_s = PERIOD_S / 2 if read(path).recorder == "native" else timing.FLIGHT_ANSWER_S
        spent = []
        for _ in range(5):
            before = read(path).gil_ns
            until(lambda before=before: read(path).gil_ns > before)  # type: ignore[misc]
            begin = time.monotonic()  # right after a sample: the next is half a second away
            asyncio.run(request.ask(path))
            spent.append(time.monotonic() - begin)
        in_time(time.monotonic() - min(spent), bound_s)

    def test_its_page_outlives_it(self, waiting: tuple[subprocess.Popen[bytes], Path]) -> None:
        process, path = waiting
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert read(path).phase is Phase.INIT


@pytest.mark.parametrize("recorder", ["native", "python"])
def test_a_rank_is_in_init_however_soon_its_first_sample_is_taken(
    tmp_path: Path, recorder: str
) -> None:
    """The thread that samples may run before the one that started it goes on."""
    directory = tmp_path / "run"
    directory.mkdir()
    environ = watched(directory, ALONE | {"RANK": "1", "WORLD_SIZE": "2"})
    script = tmp_path / "program.py"
    script.write_text(
        "import _thread, time\n"
        "import torch.distributed as dist\n"
        "start = _thread.start_new_thread\n"
        "def start_and_stay(*args):\n"
        "    start(*args)\n"
        "    time.sleep(1)  # two samples\n"
        "_thread.start_new_thread = start_and_stay\n"
        f"store = dist.FileStore({str(tmp_path / 'store')!r}, 2)\n"
        "dist.init_process_group('gloo', store=store, rank=1, world_size=2)\n"
    )
    process = subprocess.Popen(  # noqa: S603 (our own interpreter)
        [sys.executable, script], env=environ | {RECORDER: recorder}
    )
    try:
        path = until(lambda: whole_page(directory))
        until(lambda: read(path).in_call)
        before = read(path).gil_ns
        until(lambda: read(path).gil_ns > before)
        assert read(path).phase is Phase.INIT
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_a_rank_that_holds_the_gil_answers_with_its_flight_recorder(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    environ = watched(directory, ALONE | {"RANK": "0", "WORLD_SIZE": "1"})
    script = tmp_path / "program.py"
    script.write_text(
        "import ctypes\n"
        "import torch\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))\n"
        "for _ in range(3):\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "ctypes.PyDLL(None).sleep(1000)\n"
    )
    process = subprocess.Popen([sys.executable, script], env=environ)  # noqa: S603 (our own interpreter)
    try:
        page = until(lambda: whole_page(directory))
        # Its sampler wants the GIL twice a second.
        until(lambda: 0 < read(page).gil_ns < time.monotonic_ns() - 3 * 10**9)
        issued = read(page).groups[0].enqueued
        begin = time.monotonic()
        answer = asyncio.run(request.ask(page))
        in_time(begin, timing.FLIGHT_ANSWER_S)
        assert time.monotonic_ns() - read(page).gil_ns > 3 * 10**9
        (dump,) = answer.splitlines()
        entries = json.loads(dump)["entries"]
        # The last step's calls were issued by DDP's reducer, and not sampled any more.
        assert entries[-1]["collective_seq_id"] >= issued
        assert entries[-1]["profiling_name"] == "gloo:all_reduce"
        request.forget(page)
        assert [file.name for file in directory.iterdir()] == [page.name]
    finally:
        process.kill()
        process.wait()


def read(path: Path) -> RankPage:
    """The page as it is now."""
    return parse_page(path.read_bytes())


def whole_page(directory: Path) -> Path | None:
    """A page of a run that is not in the making any more."""
    for path in directory.glob("*.page"):
        with suppress(PageError):
            read(path)
            return path
    return None


def waits_and_beats(path: Path) -> bool:
    """Whether the owner of a page is in a set-up call and has been sampled there."""
    page = read(path)
    return bool(page.in_call and page.gil_ns)
