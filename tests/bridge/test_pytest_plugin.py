"""The pytest plugin, in a pytest of its own."""

import os
import pathlib
import re
import subprocess
import sys
from importlib.metadata import entry_points

FILE = '''
import pytest, torch
import torch.distributed as dist

@pytest.fixture
def base():
    return 10

@pytest.mark.ranks(3, seeds=2, timeout=30)
def test_sum(rank, world_size, base):
    x = torch.tensor([float(rank + base)])
    dist.all_reduce(x)
    assert x.item() == 33 and world_size == 3

@pytest.mark.ranks(3, seeds=[8])
def test_fails(rank):
    dist.barrier()
    assert rank != 1

@pytest.mark.ranks(2)
def test_skips(rank):
    if rank == 1:
        pytest.skip("not here")
    dist.barrier()

def test_without_a_mark(rank):
    pass

@pytest.fixture
def seeded(rank):
    return rank + 1

@pytest.fixture
def late(request):
    return request.getfixturevalue("rank") + 1

@pytest.mark.ranks(2)
def test_of_a_fixture_that_asks(seeded):
    pass

@pytest.mark.ranks(2)
def test_of_a_fixture_that_asks_late(late):
    pass
'''


def plugin_arguments() -> list[str]:
    installed = any(entry.value == "rankloom.pytest_plugin" for entry in entry_points(group="pytest11"))
    return [*([] if installed else ["-p", "rankloom.pytest_plugin"]), "-p", "no:cacheprovider"]


def run_pytest(
    folder: pathlib.Path, source: str, *arguments: str, stdin: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", *plugin_arguments(), *(arguments or ["test_it.py"])]
    variables = {**os.environ, "RANKLOOM_TRACE_DIR": str(folder / "traces"), **(env or {})}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, input=stdin, env=variables
    )


def test_the_plugin(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, FILE, "--junit-xml=out.xml", "-rs", "test_it.py")
    assert re.search(r"1 failed, 1 passed, 1 skipped, 3 errors", done.stdout), done.stdout + done.stderr
    assert "rank 1 failed" in done.stdout and "assert 1 != 1" in done.stdout
    assert "RANKLOOM_SEED=8" in done.stdout
    assert "not here" in done.stdout
    assert "the fixture rank needs @pytest.mark.ranks(n)" in done.stdout
    for name in ("seeded", "late"):
        assert f"the fixture {name} asks for rank, which is there within the test only: " in done.stdout
    xml = (tmp_path / "out.xml").read_text()
    assert 'name="rankloom_seed" value="8"' in xml and 'name="rankloom_rank" value="1"' in xml
    assert 'name="rankloom_schedule" value="seeded:8"' in xml
    assert 'message="rank 1 failed: AssertionError: assert 1 != 1"' in xml


FAILS_UNDER_A_SEED = '''
import unittest
import pytest, torch
import torch.distributed as dist

@pytest.mark.ranks(3, seeds=[5, 8])
@pytest.mark.parametrize("shift", [0, 1])
def test_fails(rank, shift):
    dist.barrier()
    assert rank != 1 or not shift

def test_passes():
    pass

class TestMine(unittest.TestCase):
    def test_by_hand(self):
        import rankloom.torch
        def body(rank):
            assert rank == 0
        rankloom.torch.run(body, 2, seed=4).raise_if_failed()
'''


def test_the_command_runs_one_test_and_the_trace_is_there(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, FAILS_UNDER_A_SEED, "-q", "--maxfail", "9", "--junit-xml=out.xml", "test_it.py")
    again = re.search(r"run it again: (.*)\nreplay it: (.*)\n", done.stdout)
    assert again is not None, done.stdout
    seed, replay = again.groups()
    test = r"-m pytest .*-q 'test_it\.py::test_fails\[1\]'"
    assert re.fullmatch(rf"RANKLOOM_ENGINE=threads RANKLOOM_SEED=5 .*{test}", seed)
    assert re.fullmatch(rf"RANKLOOM_REPLAY=(\S+\.rltrace) .*{test}", replay)
    assert "junit" not in seed and "maxfail" not in seed
    traces = [str(path) for path in (tmp_path / "traces").iterdir()]
    assert len(traces) == 2 and any(trace in replay for trace in traces)
    for command, schedule in ((seed, "seeded:5,"), (replay, "replay,")):
        repeated = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert "1 failed in" in repeated.stdout, repeated.stdout + repeated.stderr
        assert f"schedule {schedule}" in repeated.stdout
    # A test that runs ranks by itself has its own, too.
    assert re.search(r"RANKLOOM_SEED=4 .*-q test_it\.py::TestMine::test_by_hand\n", done.stdout)


def test_the_command_names_the_file_from_where_pytest_was_called(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sub").mkdir()
    done = run_pytest(tmp_path / "sub", FAILS_UNDER_A_SEED, "-q", f"--rootdir={tmp_path}", "test_it.py")
    assert re.search(r"run it again: .* 'test_it\.py::test_fails\[1\]'\n", done.stdout), done.stdout + done.stderr


RAISES = '''
import pytest
import torch.distributed as dist

def helper(rank):
    here = f"shard of rank {rank}"
    raise ValueError(f"bad {here}\\nand a second line")

@pytest.mark.ranks(3)
def test_raises(rank):
    if rank == 2:
        helper(rank)
    dist.barrier()

@pytest.mark.ranks(2)
def test_mismatch(rank):
    import torch
    dist.all_reduce(torch.ones(2 + rank))

@pytest.mark.ranks(2)
def test_expected(rank):
    pytest.xfail("known") if rank == 1 else dist.barrier()
'''


def test_a_failure_is_shown_as_pytest_shows_others(tmp_path: pathlib.Path) -> None:
    long = run_pytest(tmp_path, RAISES).stdout
    assert "2 failed, 1 xfailed in" in long, long
    assert "rank 2 failed: ValueError: bad shard of rank 2\nranks 0-1 stopped for it\n" in long
    assert '>       raise ValueError(f"bad {here}\\nand a second line")\nE       ValueError: bad shard of rank 2\n' in long
    assert long.count("and a second line\n") == 1
    assert long.count("field | value") == long.count("field | ") == 1
    for style in ("long", "short", "native", "line", "no"):
        out = run_pytest(tmp_path, RAISES, f"--tb={style}", "test_it.py").stdout
        assert "FAILED test_it.py::test_raises - rank 2 failed: ValueError: bad shard of rank 2" in out, out
        assert not re.search(r"rankloom\S*\.py", out), out
        assert "c10d-" not in out and "DEBUG" not in out, out
        assert ("test_it.py:7: " in out or ", line 7, in helper" in out) == (style != "no"), out
        assert "in rank_main" not in out


def test_pdb_stops_in_the_frame_of_the_rank(tmp_path: pathlib.Path) -> None:
    out = run_pytest(tmp_path, RAISES, "--pdb", "-k", "raises", "test_it.py", stdin="p 'here is', here\nq\n").stdout
    assert "('here is', 'shard of rank 2')" in out, out


ASYNC = '''
import asyncio
import pytest, torch
import torch.distributed as dist

async def halve(x):
    await asyncio.sleep(0)
    return x / 2

@pytest.mark.ranks(2)
async def test_runs(rank):
    x = torch.ones(1)
    dist.all_reduce(x)
    assert (await halve(x)).item() == 1

@pytest.mark.ranks(2, seeds=2)
async def test_fails(rank):
    await asyncio.sleep(0)
    assert rank == 0
'''


def test_coroutine_functions_run(tmp_path: pathlib.Path) -> None:
    out = run_pytest(tmp_path, ASYNC).stdout
    assert "1 failed, 1 passed in" in out and "rank 1 failed: AssertionError: assert 1 == 0" in out, out


MISTAKES = '''
import unittest
import pytest

@pytest.mark.ranks(2, sseds=3)
def test_unknown(rank): pass

@pytest.mark.ranks()
def test_none(rank): pass

@pytest.mark.ranks(2, 3)
def test_two(rank): pass

@pytest.mark.ranks(0)
def test_zero(): pass

@pytest.mark.ranks(2, seeds=0)
def test_no_seeds(): pass

@pytest.mark.ranks(2, timeout=-1)
def test_timeout(): pass

class TestCase(unittest.TestCase):
    @pytest.mark.ranks(2)
    def test_of_a_case(self): pass
'''


def test_a_mark_that_is_not_right_is_refused(tmp_path: pathlib.Path) -> None:
    out = run_pytest(tmp_path, MISTAKES).stdout
    assert "7 errors in" in out and "passed" not in out, out
    for text in (
        "@pytest.mark.ranks(2, sseds=3): sseds: want one of n, seeds, schedule, timeout, backend, parallel",
        "@pytest.mark.ranks(): want a number of ranks of at least 1",
        "@pytest.mark.ranks(2, 3): want one number of ranks, and all else by name",
        "@pytest.mark.ranks(0): want a number of ranks of at least 1",
        "@pytest.mark.ranks(2, seeds=0): want seeds to be a number of them of at least 1, or a list of them",
        "@pytest.mark.ranks(2, timeout=-1): want a timeout in seconds of more than 0",
        "@pytest.mark.ranks(2): a unittest.TestCase runs its methods itself",
    ):
        assert text in out, text


PLAIN = '''
import sys

def test_plain():
    import rankloom
    assert rankloom.__version__.split(".")[0].isdigit()
    assert "torch" not in sys.modules
'''


def test_torch_is_not_imported_for_tests_without_ranks(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, PLAIN)
    assert "1 passed in" in done.stdout, done.stdout + done.stderr


def test_without_the_plugin_pytest_is_as_it_was(tmp_path: pathlib.Path) -> None:
    """Of an installed rankloom, whose plugin pytest finds by itself."""
    without = ["-p", "no:rankloom"]
    assert plugin_arguments() == ["-p", "no:cacheprovider"], "rankloom is not installed: pytest does not know its plugin"
    done = run_pytest(tmp_path, PLAIN + "    assert 'rankloom.pytest_plugin' not in sys.modules\n", *without, "test_it.py")
    assert "1 passed in" in done.stdout, done.stdout + done.stderr
    marked = run_pytest(tmp_path, FILE, *without, "-k", "test_fails", "test_it.py")
    assert "fixture 'rank' not found" in marked.stdout and "PytestUnknownMarkWarning: Unknown pytest.mark.ranks" in marked.stdout
    option = run_pytest(tmp_path, PLAIN, *without, "--rankloom", "test_it.py")
    assert option.returncode == 4 and "unrecognized arguments: --rankloom" in option.stderr, option.stderr
    classes = run_pytest(tmp_path, UNCHANGED, *without, "test_it.py")
    assert "1 passed in" in classes.stdout, classes.stdout + classes.stderr


UNCHANGED = '''
import os, sys, threading
from torch.testing._internal.common_distributed import MultiProcessTestCase

PARENT = os.getpid()

class Test(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_it(self):
        assert os.getpid() != PARENT or threading.current_thread() is threading.main_thread()
        assert "rankloom.torch" not in sys.modules
'''


EXPLORES = '''
import pytest, torch
import torch.distributed as dist

@pytest.mark.explore(runs=200, min_ranks=2)
@pytest.mark.ranks(3)
def test_lost_update(rank, world_size):
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("count", "0")
    dist.barrier()
    store.set("count", str(int(store.get("count")) + 1))
    dist.barrier()
    assert int(store.get("count")) == world_size

@pytest.mark.explore(expect_verified=True)
@pytest.mark.ranks(3)
def test_sum(rank):
    x = torch.tensor([rank + 1])
    dist.all_reduce(x)
    assert x.item() == 6

came = []

@pytest.mark.explore(runs=3, strategies=["exhaustive"], expect_verified=True)
@pytest.mark.ranks(2)
def test_shares(rank):
    came.append(rank)
    dist.barrier()

@pytest.mark.explore(runs=5)
@pytest.mark.ranks(2, faults="crash@rank=1,op=barrier")
def test_crash(rank):
    try:
        dist.barrier()
    except Exception:
        pass

@pytest.mark.explore(runs=10)
def test_no_ranks():
    pass

@pytest.mark.explore(walks=10)
@pytest.mark.ranks(3)
def test_unknown(rank):
    pass

@pytest.mark.explore
@pytest.mark.ranks(3, seeds=3)
def test_seeds(rank):
    pass
'''


def test_a_mark_explores(tmp_path: pathlib.Path) -> None:
    xml = tmp_path / "all.xml"
    out = run_pytest(tmp_path, EXPLORES, f"--junit-xml={xml}").stdout
    assert "3 failed, 1 passed, 3 errors" in out, out
    assert re.search(r"explored 4 runs in \S+ s \(\d+ a second\): a schedule that fails\n", out), out
    assert "shrunk in 9 runs: 2 ranks, 1 switch from the default order" in out
    again = r"run it again: RANKLOOM_RANKS=2 RANKLOOM_ENGINE=threads RANKLOOM_SCHEDULE='steered:1:1@\d+>0' \S+ -m pytest .*::test_lost_update\n"
    assert re.search(again, out), out
    assert re.search(r"\n +\d+ {20,}store set 0//count \[test_it.py:12\]\n", out), out  # the story
    assert 'assert int(store.get("count")) == world_size' in out and "replay it: RANKLOOM_RANKS=2 RANKLOOM_REPLAY=" in out
    assert 'value="verified: all 1 schedule that can differ, in 1 run"' in xml.read_text()
    assert "not verified because of: variables of Python that ranks share and change: came)" in out
    assert "rank 1 failed: group 0, barrier seq 1: the rank crashed (injected, before the call) [test_it.py:" in out
    assert "@pytest.mark.explore: want @pytest.mark.ranks(n) beside it" in out
    assert "@pytest.mark.explore: walks: want by name one of runs, seconds, strategies, first_seed, " in out
    assert "@pytest.mark.explore: it chooses schedules itself, want no seeds, schedule or parallel" in out


LIVE = '''
import pytest
import torch
import torch.distributed as dist

shared = torch.tensor([1.0])

@pytest.mark.ranks(2)
def test_live(rank):
    dist.barrier()
    if rank == 1:
        raise ValueError(shared)
    try:
        dist.barrier()
    finally:
        shared.fill_(99)
'''


def test_what_a_rank_raised_is_told_as_it_was(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, LIVE)
    assert "rank 1 failed: ValueError: tensor([1.])" in done.stdout, done.stdout + done.stderr
    assert "E           ValueError: tensor([1.])" in done.stdout
    assert "tensor([99.])" not in done.stdout


def test_all_ranks_that_raised_something_else_are_told(tmp_path: pathlib.Path) -> None:
    out = run_pytest(tmp_path, RAISES, "--ranks-report=all", "-k", "raises", "test_it.py").stdout
    for rank in (0, 1):
        assert f"rank {rank} stopped:\nTraceback (most recent call last):\n" in out, out
    assert not re.search(r"rank 2 \w+:\nTraceback", out), out


def test_a_stall_of_less_than_nothing_is_refused(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, RAISES, "--ranks-stall=-1", "test_it.py")
    assert "ERROR: --ranks-stall is -1.0, want seconds, 0 or more\n" in done.stderr, done.stdout + done.stderr
