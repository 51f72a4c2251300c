"""A rank that hangs in its own code ends its test, and is told by its stack."""

import contextlib
import datetime
import importlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import rankloom.torch
import torch
import torch.distributed as dist
from rankloom.torch import _ranks
from test_pytest_plugin import plugin_arguments, run_pytest

SPINS = '''
import time
import pytest
import torch.distributed as dist

@pytest.mark.ranks(2, timeout=1, PARALLEL)
def test_spins(rank):
    if rank == 1:
        while True:
            time.sleep(0.01)
    dist.barrier()

@pytest.mark.ranks(2)
def test_after(rank):
    dist.barrier()
'''


def test_a_timeout_ends_a_rank_that_spins_in_the_fixed_order(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, SPINS.replace("PARALLEL", "parallel=False"))
    assert "1 failed, 1 passed in" in done.stdout, done.stdout + done.stderr
    assert "rank 1 failed: Stall: no scheduling point for 1 s of real time: " in done.stdout  # not the 60 s of --ranks-stall
    assert re.search(r"test_it\.py:10 in test_spins: time\.sleep\(0\.01\)", done.stdout), done.stdout


def test_a_timeout_ends_a_rank_that_spins(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, SPINS.replace("PARALLEL", "parallel=True"))
    out = done.stdout
    assert "1 failed, 1 passed in" in out, out + done.stderr
    assert "rank 0 failed: Timeout: " in out
    assert "note: rank 1 was still in its own code 3 s after that" in out
    assert re.search(r"  rank 1 runs; (its last point: .*|it has come to no point yet)", out)
    assert re.search(r"Python stack of rank 1:\n +\S+test_it\.py:10 in test_spins: time\.sleep\(0\.01\)", out)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_stall_names_the_rank_and_where_all_are(seed: int | None) -> None:
    def body(rank: int) -> None:
        dist.barrier()
        while rank == 1:
            time.sleep(0.01)
        dist.barrier()

    report = rankloom.torch.run(body, 3, seed=seed, stall=0.5)
    assert report.first_failed == 1 and report.outcomes[1][0] == "failed"
    assert report.text.startswith("rank 1 failed: Stall: no scheduling point for 0.5 s of real time: "), report.text
    assert re.search(r"\n  rank 1 runs; its last point: ", report.text)
    assert re.search(r"Python stack of rank 1:\n +\S+test_hangs\.py:\d+ in body: time\.sleep\(0\.01\)", report.text)
    assert [report.outcomes[rank][0] for rank in (0, 2)] == ["stopped", "stopped"]
    if seed is None:
        assert re.search(r"ranks 0, 2 wait in barrier seq 2 for rank 1 ", report.text)
    # Once: neither in where all ranks are and again, nor as the traceback of what ended the rank.
    assert report.text.count("Python stack of rank 1:") == 1, report.text
    assert report.text.count("in body: time.sleep(0.01)") == 1 and "Traceback" not in report.text, report.text


def test_a_rank_that_imports_for_long_is_not_ended(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(2)\nNAME = 'there'\n")
    (tmp_path / "never_imported.py").write_text("while True:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def body(rank: int, name: str) -> str:
        dist.barrier()
        return str(importlib.import_module(name).NAME) if rank == 0 else ""

    assert rankloom.torch.run(lambda rank: body(rank, "slow_to_import"), 2, stall=0.5).results == ["there", ""]
    report = rankloom.torch.run(lambda rank: body(rank, "never_imported"), 2, stall=0.1)
    assert "rank 0 failed: Stall: no scheduling point for 1 s of real time, in an import: " in report.text, report.text


def test_a_rank_that_only_computes_for_long_is_not_ended() -> None:
    def body(rank: int) -> int:
        until = time.monotonic() + (1.0 if rank == 1 else 0)
        while time.monotonic() < until:
            pass
        dist.barrier()
        return rank

    assert rankloom.torch.run(body, 2, stall=30).results == [0, 1]


STALLS = '''
import time
import pytest
import torch.distributed as dist

@pytest.mark.ranks(2)
def test_stalls(rank):
    while rank == 1:
        time.sleep(0.01)
    dist.barrier()
'''


def test_the_stack_of_a_rank_that_hangs_is_told_once(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, STALLS, "--ranks-stall=0.5", "test_it.py")
    assert "rank 1 failed: Stall: no scheduling point for 0.5 s of real time: " in done.stdout, done.stdout + done.stderr
    assert len(re.findall(r"Python stack of rank 1:", done.stdout)) == 1, done.stdout
    assert done.stdout.count("time.sleep(0.01)") == 1, done.stdout


RUNS = '''
import time
import rankloom.torch
import torch.distributed as dist

def test_runs():
    def body(rank):
        while rank == 1:
            time.sleep(0.01)
        dist.barrier()
    rankloom.torch.run(body, 2).raise_if_failed()
'''


def test_a_run_in_a_test_without_a_mark_ends_too(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, RUNS, "--ranks-stall=0.5", "test_it.py::test_runs")
    assert "rank 1 failed: Stall: no scheduling point for 0.5 s of real time: " in done.stdout, done.stdout + done.stderr


CASES = """
import threading
import time
import unittest
import rankloom.torch.testing
import torch.distributed as dist
from torch.testing._internal import common_distributed

class Ours(rankloom.torch.testing.MultiThreadedTestCase):
    @property
    def world_size(self):
        return 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_hangs(self):
        while self.rank == 1:
            time.sleep(0.01)
        dist.barrier()

    def test_barrier(self):
        dist.barrier()

class PyTorchs(common_distributed.MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    test_barrier = Ours.test_barrier
"""


def test_a_rank_of_a_class_that_hangs_fails_its_test(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, CASES, "--ranks-stall=0.5", "test_it.py::Ours::test_hangs")
    assert done.returncode == 1 and "1 failed in" in done.stdout, done.stdout + done.stderr
    assert "Stall: no scheduling point for 0.5 s of real time" in done.stdout


@pytest.mark.parametrize("name", ["Ours", "PyTorchs"])
def test_a_rank_of_a_class_that_crashes_by_plan_fails_its_test(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKLOOM_FAULTS", "crash@rank=1,op=barrier")
    done = run_pytest(tmp_path, CASES, "--rankloom", f"test_it.py::{name}::test_barrier")
    assert done.returncode == 1 and "1 failed in" in done.stdout, done.stdout + done.stderr
    assert "crashed" in done.stdout


def test_a_minute_without_a_scheduling_point_is_the_default(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getoption("--ranks-stall") == 60.0


BLOCKS = '''
import threading
import pytest
import torch.distributed as dist

@pytest.mark.ranks(2, SEEDS)
def test_blocks(rank):
    if rank == 1:
        threading.Event().wait()
    dist.barrier()

def test_after():
    pass
'''


@pytest.mark.parametrize("seeds", ["timeout=1", "seeds=1"])
def test_a_rank_that_cannot_be_ended_ends_the_session(seeds: str, tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, BLOCKS.replace("SEEDS", seeds), "--ranks-stall=2", "test_it.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed in" in done.stdout
    assert "note: rank 1 could not be ended: its thread stays until the process ends" in done.stdout
    assert re.search(r"Python stack of rank 1:\n +\S+test_it\.py:9 in test_blocks: threading\.Event\(\)\.wait\(\)", done.stdout)
    assert "stopping after" in done.stdout or "test_it.py::test_blocks: rank 1 could not be ended" in done.stdout


SCRIPT = '''
import threading, time
import rankloom.torch
import torch.distributed as dist

def program(rank):
    if rank == 1:
        print("begun", flush=True)
        HANGS
    dist.barrier()

rankloom.torch.run(program, ranks=2, seed=SEED)
'''


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("hangs", ["threading.Event().wait()", "while True: time.sleep(0.01)"])
def test_one_interrupt_ends_a_program(hangs: str, seed: int | None, tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text(SCRIPT.replace("HANGS", hangs).replace("SEED", str(seed)))
    program = subprocess.Popen(
        [sys.executable, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None and program.stdout.readline() == "begun\n"
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=300)
    finally:
        program.kill()
    assert program.returncode == -signal.SIGINT, err
    assert "KeyboardInterrupt" in err
    assert re.search(r"Python stack of rank 1:\n +\S+program\.py:9 in program: ", err), err
    assert ("rank 1 could not be ended" in err) == ("Event" in hangs)


CALLS_ON = """
import torch.distributed as dist, rankloom.torch
def program(rank):
    if rank == 0:
        print("begun", flush=True)
    while True:
        try: dist.barrier()
        except BaseException: pass
rankloom.torch.run(program, 4, OPTIONS)
"""


@pytest.mark.parametrize("options", ["", "seed=1", "parallel=True"])
def test_an_interrupt_ends_a_program_whose_ranks_go_on_calling(options: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text(CALLS_ON.replace("OPTIONS", options))
    command = [sys.executable, "program.py"]
    program = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None and program.stdout.readline() == "begun\n"
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=300)
    finally:
        program.kill()
    assert program.returncode == -signal.SIGINT, err
    assert "KeyboardInterrupt" in err and "could not be ended" in err, err


def test_an_exception_of_a_signal_ends_the_ranks() -> None:
    """As pytest-timeout's method "signal" does it."""

    class AlarmError(Exception):
        pass

    def ring(*_: object) -> None:
        raise AlarmError

    def body(rank: int) -> None:
        if rank == 0:
            os.kill(os.getpid(), signal.SIGALRM)
        while rank == 1:
            time.sleep(0.01)
        dist.barrier()

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(AlarmError) as caught:
            rankloom.torch.run(body, 2)
    finally:
        signal.signal(signal.SIGALRM, before)
    if hasattr(caught.value, "__notes__"):
        assert "in body: time.sleep(0.01)" in caught.value.__notes__[0]
    left = [t for t in threading.enumerate() if t.name.startswith("rank ")]
    for thread in left:
        thread.join(20)  # the exception comes at its next bytecode, which a busy machine may let wait
    assert not [t for t in left if t.is_alive()]


@pytest.mark.parametrize("method", ["signal", "thread"])
def test_pytest_timeout(method: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pytest_timeout")
    source = SPINS.replace("timeout=1, PARALLEL", "parallel=True")
    done = run_pytest(tmp_path, source, "--timeout=2", f"--timeout-method={method}", "test_it.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Timeout" in done.stdout + done.stderr
    assert ("1 failed, 1 passed in" in done.stdout) == (method == "signal")


def test_one_interrupt_ends_a_session(tmp_path: pathlib.Path) -> None:
    source = BLOCKS.replace("SEEDS", "").replace("threading.Event()", 'print("begun", flush=True) or threading.Event()')
    (tmp_path / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", *plugin_arguments(), "-s", "test_it.py"]
    session = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert session.stdout is not None
        for line in session.stdout:
            if "begun" in line:
                break
        session.send_signal(signal.SIGINT)
        out, _ = session.communicate(timeout=300)
    finally:
        session.kill()
    assert session.returncode == pytest.ExitCode.INTERRUPTED, out
    assert "KeyboardInterrupt" in out and "no tests ran" in out


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"parallel": True}])
def test_a_rank_that_retries_for_ever_is_ended(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ranks, "_RETRIES", 2.0)
    monkeypatch.setattr(_ranks, "_GRACE", 60.0)

    def body(rank: int) -> None:
        if rank == 0:
            raise ValueError("nothing works from here on")
        while True:
            with contextlib.suppress(Exception):
                dist.barrier()

    report = rankloom.torch.run(body, 2, **options)
    assert report.first_failed == 0 and report.text.startswith("rank 0 failed: ValueError: nothing works"), report.text
    assert isinstance(report.exceptions[1], BaseException) and not isinstance(report.exceptions[1], Exception)
    note = "rank 1 still called 2 s after that, though every call fails from then on"
    assert any(told.startswith(note) for told in report.notes), report.notes
    assert re.search(r"Python stack of rank 1:\n +\S+test_hangs\.py:\d+ in body: ", report.text), report.text


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"parallel": True}])
def test_ranks_whose_calls_all_fail_do_not_run_for_ever(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ranks, "_RETRIES", 1.0)

    def body(rank: int) -> None:
        while True:
            with contextlib.suppress(Exception):
                dist.all_reduce(torch.ones(1 + rank))
                return

    report = rankloom.torch.run(body, 2, stall=1, **options)
    first = report.text.split("\n")[0]
    assert re.match(r"rank \d failed: Stall: all calls have failed for 1 s of real time: the program has caught \d+ errors", first), first


def test_a_rank_that_polls_by_short_timeouts_is_not_ended() -> None:
    def body(rank: int) -> int:
        store = dist.distributed_c10d._get_default_store()
        timeouts = 0
        if rank == 0:
            time.sleep(3)
            store.set("stop", "")
        while rank == 1:
            try:
                store.wait(["stop"], datetime.timedelta(milliseconds=2))
                break
            except dist.DistStoreError:
                timeouts += 1
        return timeouts

    report = rankloom.torch.run(body, 2, parallel=True, stall=4)
    report.raise_if_failed()
    assert report.results[1] > 100


@pytest.mark.parametrize("options", [{}, {"parallel": True}])
def test_a_rank_whose_calls_go_well_again_is_not_ended(options: dict[str, Any]) -> None:
    def body(rank: int) -> int:
        store = dist.distributed_c10d._get_default_store()
        store.set("text", "no number")
        failed = 0
        for _ in range(150):
            try:
                store.add("text", 1)
            except dist.DistStoreError:
                failed += 1
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            store.set("alive", str(rank))
            time.sleep(0.05)
        return failed

    report = rankloom.torch.run(body, 2, stall=1, **options)
    report.raise_if_failed()
    assert report.results == [150, 150]


def test_a_rank_that_polls_a_queue_is_not_ended() -> None:
    def body(rank: int) -> int:
        store = dist.distributed_c10d._get_default_store()
        empty = 0
        if rank == 0:
            time.sleep(3)
            store.queue_push("queue", b"x")
        while rank == 1:
            try:
                store.queue_pop("queue", block=False)
                break
            except dist.QueueEmptyError:
                empty += 1
                time.sleep(0.002)
        return empty

    report = rankloom.torch.run(body, 2, parallel=True, stall=4)
    report.raise_if_failed()
    assert report.results[1] > 100


RETRIES = """
import torch, torch.distributed as dist, rankloom.torch
from rankloom.torch import _ranks
_ranks._RETRIES = 1
def body(rank):
    if rank == 0:
        raise ValueError("wrong")
    while True:
        try: dist.all_reduce(torch.ones(1))
        except BaseException: pass
for options in ({}, {"seed": 1}, {"parallel": True}):
    print(rankloom.torch.run(body, 4, **options).text.split(":")[0], flush=True)
"""


def test_a_process_ends_well_that_has_ranks_that_cannot_be_ended(tmp_path: pathlib.Path) -> None:
    (tmp_path / "retries.py").write_text(RETRIES)
    done = subprocess.run([sys.executable, tmp_path / "retries.py"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and done.stdout == "rank 0 failed\n" * 3, done


def test_a_rank_that_cleans_up_with_some_calls_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ranks, "_RETRIES", 1.0)

    def body(rank: int) -> None:
        if rank == 0:
            raise ValueError("nothing works from here on")
        try:
            dist.barrier()
        finally:
            for _ in range(6):
                time.sleep(0.5)
                with contextlib.suppress(Exception):
                    dist.barrier()
            cleaned.append(rank)

    cleaned: list[int] = []
    report = rankloom.torch.run(body, 2)
    assert report.first_failed == 0 and cleaned == [1] and not report.notes, report.text


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"parallel": True}])
def test_a_rank_that_never_comes_to_the_default_group_is_a_deadlock(options: dict[str, Any]) -> None:
    def body(rank: int) -> None:
        if rank == 0:
            return
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29777", rank=rank, world_size=2)

    report = rankloom.torch.run(body, 2, backend=None, **options)
    assert report.text.startswith("Deadlock: no rank can move\n"), report.text
    assert 'rank 1 waits in store wait key "the master of the TCPStore at port 29777"' in report.text, report.text
