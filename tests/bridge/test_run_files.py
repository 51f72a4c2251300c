"""Runs of Python as files, and the command that shows them."""

import copy
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import sysconfig

import pytest
import rankloom.torch
import torch
import torch.distributed as dist
from test_pytest_plugin import run_pytest

COMMAND = os.path.join(sysconfig.get_path("scripts"), "rankloom")
THIS = os.path.basename(__file__)


def line_of(text: str) -> int:
    """Of the first line in this file that has the text."""
    lines = pathlib.Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def stuck(rank: int) -> None:
    dist.all_reduce(torch.ones(3))
    if rank == 0:
        dist.recv(torch.zeros(2), src=1)  # nobody sends


def goes_well(rank: int) -> None:
    dist.all_reduce(torch.ones(3))  # of the run that goes well


def read(path: pathlib.Path) -> dict[str, dict[str, object]]:
    """By tag, the last line of each."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["rlrun"] == 1
    return {line["t"]: line for line in lines[1:]}


def command(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60, **more)  # type: ignore[call-overload,no-any-return]


def test_a_failed_run_is_written_with_its_waits_and_lines_of_python(seed: int | None, tmp_path: pathlib.Path) -> None:
    report = rankloom.torch.run(stuck, 2, seed=seed)
    path = tmp_path / "made" / "stuck.rlrun"
    report.write_run(path)
    lines = read(path)
    assert lines["run"]["world_size"] == 2 and lines["run"]["ok"] is False
    assert lines["run"]["rerun"] == report.rerun
    assert str(lines["run"]["text"]) in report.text
    kinds = {kind["op"]: kind for kind in lines["kinds"]["kinds"]}  # type: ignore[attr-defined]
    assert kinds["recv"]["file"].endswith(THIS) and kinds["recv"]["line"] == line_of("# nobody sends")
    (wait,) = lines["waits"]["waits"]  # type: ignore[misc]
    assert wait["file"].endswith(THIS) and wait["line"] == line_of("# nobody sends")
    shown = command("show", path)
    assert shown.returncode == 0, shown.stderr
    assert f"{THIS}:{line_of('# nobody sends')}" in shown.stdout


def test_a_run_that_goes_well_has_its_calls_if_they_are_kept(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.rlrun"
    rankloom.torch.run(goes_well, 2).write_run(path)
    assert read(path)["run"]["ok"] is True and "calls" not in read(path)
    rankloom.torch.run(goes_well, 2, keep_run=True).write_run(path)
    assert read(path)["calls"]["made"] == 1
    shown = command("show", path, "--rank", 1)
    assert f"{THIS}:{line_of('# of the run that goes well')}" in shown.stdout, shown.stdout + shown.stderr


def test_the_file_says_what_the_report_does(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr("rankloom._rerun.command", "python mine.py")
    report = rankloom.torch.run(stuck, 2, seed=3)
    report.notes.append("a note of the caller's")
    report.write_run(tmp_path / "run.rlrun")
    lines = read(tmp_path / "run.rlrun")
    assert str(lines["run"]["rerun"]).endswith("RANKLOOM_SEED=3 python mine.py")
    assert lines["notes"]["notes"] == report.notes
    for again in (pickle.loads(pickle.dumps(report)), copy.deepcopy(report)):
        again.write_run(tmp_path / "again.rlrun")
        assert (tmp_path / "again.rlrun").read_bytes() == (tmp_path / "run.rlrun").read_bytes()


def test_a_failure_of_explore_has_its_story(tmp_path: pathlib.Path) -> None:
    def program(rank: int) -> float:
        x = torch.zeros(1)
        if rank == 0:
            dist.recv(x)  # from anybody
            dist.recv(torch.zeros(1))
        else:
            dist.send(torch.tensor([float(rank)]), dst=0)
        return x.item()

    failure = rankloom.torch.explore(program, 3, runs=100).failure
    assert failure is not None
    failure.write_run(tmp_path / "run.rlrun")
    lines = read(tmp_path / "run.rlrun")
    assert lines["story"]["strategy"] == "exhaustive" and failure.story == lines["story"]["story"]
    assert lines["run"]["rerun"] == failure.rerun and "calls" in lines
    assert command("show", tmp_path / "run.rlrun").returncode == 0


def test_failed_runs_are_kept_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("RANKLOOM_REPORT", str(tmp_path / "runs"))
    monkeypatch.setattr("rankloom._rerun.writes_runs", True)  # as without the plugin, in which this test runs
    monkeypatch.setattr("rankloom._rerun.program", "a program")
    assert rankloom.torch.run(goes_well, 2).run_file == ""
    assert not (tmp_path / "runs").exists()
    report = rankloom.torch.run(stuck, 2)
    (path,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"a_program\.run\d+\.rlrun", path.name)
    assert report.run_file == f"run written to {path}: open with `rankloom show {path}`"
    assert f"\n{report.run_file}" in report.text and read(path)["run"]["ok"] is False
    found = rankloom.torch.explore(stuck, 2, runs=10)
    assert found.failure is not None and found.failure.run_file in found.text and found.failure.run_file in found.failure.text
    assert len(list((tmp_path / "runs").iterdir())) == 2
    monkeypatch.setenv("RANKLOOM_REPORT", str(path))
    assert "\nno run file: " in rankloom.torch.run(stuck, 2).text


FAILS = '''
import unittest
import pytest, torch
import torch.distributed as dist
import rankloom.torch
from rankloom.torch.testing import MultiThreadedTestCase

def stuck(rank):
    if rank == 0:
        dist.recv(torch.zeros(2), src=1)  # nobody sends

@pytest.mark.ranks(2, seeds=[3])
@pytest.mark.parametrize("n", [1, 2])
def test_stuck(rank, n):
    if n == 2:
        stuck(rank)

@pytest.mark.ranks(2)
@pytest.mark.explore(runs=10)
def test_explored(rank):
    stuck(rank)

def test_by_hand():
    rankloom.torch.run(stuck, 2).raise_if_failed()

def test_spawned():
    rankloom.torch.spawn(fails, nprocs=2)

def fails(rank):
    assert rank == 0

class TestMine(unittest.TestCase):
    def test_by_hand(self):
        rankloom.torch.run(stuck, 2).raise_if_failed()

class TestThreads(MultiThreadedTestCase):
    world_size = 2
    def setUp(self):
        super().setUp()
        self._spawn_threads()
    def test_threads(self):
        stuck(self.rank)

def test_a_failed_run_that_is_wanted():
    with pytest.raises(rankloom.torch.RankFailedError):
        rankloom.torch.run(stuck, 2).raise_if_failed()

def test_without_ranks():
    assert False
'''

FAILED = {
    "test_it.py_test_stuck_2": "# nobody sends",
    "test_it.py_test_explored": "# nobody sends",
    "test_it.py_test_by_hand": "# nobody sends",
    "test_it.py_test_spawned": "",
    "test_it.py_TestMine_test_by_hand": "# nobody sends",
    "test_it.py_TestThreads_test_threads": "# nobody sends",
}


@pytest.mark.parametrize("by", ["option", "environment"])
@pytest.mark.parametrize("mode", ["first", "concise"])
def test_the_plugin_keeps_the_run_of_each_failed_test(tmp_path: pathlib.Path, by: str, mode: str) -> None:
    if by == "option":
        done = run_pytest(tmp_path, FAILS, "--rankloom-report=kept", f"--ranks-report={mode}", "test_it.py")
    else:
        done = run_pytest(tmp_path, FAILS, f"--ranks-report={mode}", "test_it.py", env={"RANKLOOM_REPORT": str(tmp_path / "kept")})
    assert "7 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    files = {path.stem.rpartition("-")[0]: path for path in (tmp_path / "kept").iterdir()}  # without the hash
    assert sorted(files) == sorted(FAILED)
    for name, where in FAILED.items():
        told = f"run written to {files[name]}: open with `rankloom show {files[name]}`"
        assert done.stdout.count(told) == 1, name
        shown = command("show", files[name])
        assert shown.returncode == 0, shown.stderr
        line = FAILS.split(where or FAILS)[0].count("\n") + 1
        assert not where or f"test_it.py:{line}" in shown.stdout, shown.stdout
    # A page has the lines of the test.
    made = command("report", files["test_it.py_test_stuck_2"], "-o", "page.html", cwd=tmp_path)
    assert made.returncode == 0, made.stderr


def test_the_plugin_keeps_no_run_that_nobody_asks_for(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, FAILS, "test_it.py", env={"RANKLOOM_REPORT": ""})
    assert "7 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "run written" not in done.stdout and not list(tmp_path.rglob("*.rlrun"))


SCRIPT = '''
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.recv(torch.zeros(2), src=1)  # nobody sends
dist.destroy_process_group()
'''


@pytest.mark.parametrize("options", [[], ["--explore", "5"]])
def test_the_launcher_keeps_a_failed_run(tmp_path: pathlib.Path, options: list[str]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "rankloom.torch", "--nproc-per-node", "2", *options, "train.py"]
    done = subprocess.run(
        launch, cwd=tmp_path, capture_output=True, text=True, timeout=120, env={**os.environ, "RANKLOOM_REPORT": "runs"}
    )
    assert done.returncode != 0
    path = tmp_path / "runs" / "train.run1.rlrun"
    assert done.stderr.count(f"run written to {path}: open with `rankloom show {path}`") == 1, done.stdout + done.stderr
    shown = command("show", path)
    assert f"train.py:{SCRIPT.split('# nobody')[0].count(chr(10)) + 1}" in shown.stdout, shown.stdout + shown.stderr
    assert read(path)["run"]["rerun"] and "train.py" in str(read(path)["run"]["rerun"])


def test_the_command_is_installed_and_needs_no_torch(tmp_path: pathlib.Path) -> None:
    assert command("--help").stdout.startswith("usage: rankloom ")
    assert command("show", tmp_path / "none.rlrun").returncode == 2
    code = "import sys, rankloom_command.command; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    rankloom.torch.run(goes_well, 2, keep_run=True).write_run(tmp_path / "run.rlrun")
    made = command("report", tmp_path / "run.rlrun", "-o", tmp_path / "page.html")
    assert made.returncode == 0, made.stderr
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>") or page.startswith("<!DOCTYPE html>")
