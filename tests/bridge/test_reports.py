"""The report of a failed run: the blamed rank, the mistake of the program, and the command that repeats the run."""

import contextlib
import datetime
import pathlib
import re
import subprocess
import sys
import threading

import pytest
import rankloom.torch
import torch
import torch.distributed as dist
from test_pytest_plugin import run_pytest

SEEDS = range(20)


def _reads_early(rank: int) -> None:
    loss = torch.tensor([1.0 + rank])
    work = dist.all_reduce(loss, async_op=True)
    if loss.item() != 3.0:
        raise AssertionError(f"the sum is {loss.item()}")  # pytest's own text has addresses
    work.wait()


CALLED = f"all_reduce seq 1 [test_reports.py:{_reads_early.__code__.co_firstlineno + 2}]"


def test_a_missing_wait_is_told() -> None:
    for seed in SEEDS:
        report = rankloom.torch.run(_reads_early, 2, seed=seed)
        who = report.text.partition(" failed: AssertionError")[0]
        assert who in ("rank 0", "rank 1", "ranks 0-1"), report.text
        hint = f"outputs hold NaN or 0xEB until their call completes; {who} had {CALLED} open\n"
        assert report.text.startswith(f"{who} failed: AssertionError: the sum is nan\n{hint}"), report.text
        assert report.text.count("outputs hold NaN") == 1, report.text
    found = rankloom.torch.explore(_reads_early, 2)
    assert re.search(rf"\noutputs hold NaN or 0xEB until their call completes; rank \d had {re.escape(CALLED)} open\n", found.text), found.text


def test_a_report_shows_one_line() -> None:
    report = rankloom.torch.run(lambda rank: rank, 2, seed=3)
    assert repr(report) == f"<rankloom Report of 2 ranks, seeded:3: {report.text}>" == str(report)
    failed = rankloom.torch.run(_reads_early, 2, seed=1)
    assert repr(failed) == f"<rankloom Report of 2 ranks, seeded:1: {failed.text.splitlines()[0]}>"
    assert repr(rankloom.torch.explore(_reads_early, 2).failure).startswith("<rankloom Report of ")


def test_ranks_that_miss_the_same_wait_share_its_line() -> None:
    def fails_anyway(rank: int) -> None:
        loss = torch.tensor([1.0 + rank])
        work = dist.all_reduce(loss, async_op=True)
        with contextlib.suppress(dist.DistBackendError):  # of the rank that failed first
            dist.barrier()
        raise AssertionError(f"no sum ({work is None})")

    text = rankloom.torch.run(fails_anyway, 2, seed=1).text
    called = f"all_reduce seq 1 [test_reports.py:{fails_anyway.__code__.co_firstlineno + 2}]"
    hint = f"outputs hold NaN or 0xEB until their call completes; ranks 0-1 had {called} open\n"
    assert text.startswith(f"ranks 0-1 failed: AssertionError: no sum (False)\n{hint}"), text


def test_a_failure_with_no_call_open_is_told_without_a_hint() -> None:
    def waits(rank: int) -> None:
        x = torch.tensor([1.0 + rank])
        dist.all_reduce(x, async_op=True).wait()
        assert x.item() == 4.0

    assert "outputs hold" not in rankloom.torch.run(waits, 2, seed=1).text
    # Without poison there is no NaN to be explained; nor is it the reason of a refused call.
    assert "outputs hold" not in rankloom.torch.run(_reads_early, 2, seed=1, poison=False).text

    def refused(rank: int) -> None:
        x = torch.ones(4)
        work = dist.all_reduce(x, async_op=True)
        dist.all_reduce(x)
        work.wait()

    text = rankloom.torch.run(refused, 2, seed=1).text
    assert "its output overlaps that of" in text and "outputs hold" not in text, text


def _reuses(rank: int) -> None:
    if rank == 0:
        buffer = torch.zeros(4)
        works = []
        for i in range(3):
            buffer.fill_(i)
            works.append(dist.isend(buffer, dst=1))
        for work in works:
            work.wait()
    else:
        got = torch.empty(4)
        for _ in range(3):
            dist.recv(got, src=0)


def test_the_rank_that_reuses_a_buffer_is_the_one_that_failed() -> None:
    texts = [rankloom.torch.run(_reuses, 2, seed=seed).text for seed in SEEDS]
    changed = [text for text in texts if "an input was changed" in text]
    assert changed, texts
    for text in changed:
        # Noticed by the bytes when it completes, or by torch's counter before.
        head = r"rank 0 failed: InvalidArgument: rank 0, group 0, send to rank 1: an input was changed (or freed )?between the call \["
        assert re.match(head, text), text
        assert "\nrank 1 stopped for it\n" in text, text


def test_an_early_change_says_that_nobody_waits_for_the_work() -> None:
    def drops(rank: int) -> None:
        buffer = torch.zeros(4)
        if rank == 0:
            for i in range(3):
                buffer.fill_(i)
                dist.isend(buffer, dst=1)
        else:
            for _ in range(3):
                dist.recv(buffer, src=0)

    texts = [rankloom.torch.run(drops, 2, seed=seed).text for seed in SEEDS]
    changed = [text for text in texts if "an input was changed" in text]
    assert changed, texts
    for text in changed:
        assert "want it unchanged until wait(); nobody can wait for the call: its work was dropped\n" in text, text


def _doubles(rank: int) -> list[float]:
    gradients = torch.full((4,), 1.0 + rank)
    work = dist.all_reduce(gradients, async_op=True)  # called
    if rank == 0:
        gradients.mul_(2)
    work.wait()  # waited
    return gradients.tolist()


def _place(text: str) -> str:
    source = pathlib.Path(__file__).read_text().splitlines()
    return f"[test_reports.py:{next(number for number, line in enumerate(source, 1) if line.endswith(text))}]"


@pytest.mark.parametrize("options", [{}, {"parallel": True}, *({"seed": seed} for seed in range(8))])
def test_poison_that_is_doubled_is_an_early_write_in_every_gear(options: dict[str, int]) -> None:
    def first(rank: int) -> list[float]:
        if rank > 0:
            dist.recv(torch.empty(1), src=0, tag=rank)  # none comes: rank 0's wait is before the call is complete
            return _doubles(rank)
        gradients = torch.ones(4)
        work = dist.all_reduce(gradients, async_op=True)  # called first
        gradients.mul_(2)
        work.wait()  # waited first
        for other in (1, 2):
            dist.send(torch.ones(1), dst=other, tag=other)
        return gradients.tolist()

    report = rankloom.torch.run(first, 3, **options)
    assert report.text.startswith(
        f"rank 0 failed: InvalidArgument: rank 0, group 0, all_reduce seq 1: an output was written between the call {_place('# called first')} "
        f"and its completion, when rank 0 was at wait {_place('# waited first')}, want it left alone until wait()\n"
    ), report.text


def test_an_early_write_is_found_by_a_search() -> None:
    found = rankloom.torch.explore(_doubles, 2)
    assert found.failure is not None
    assert f"rank 0, group 0, all_reduce seq 1: an output was written between the call {_place('  # called')} and its" in found.text, found.text


def test_an_input_that_is_written_early_is_told_without_a_seed() -> None:
    report = rankloom.torch.run(_reuses, 2)
    said = "rank 0 failed: InvalidArgument: rank 0, group 0, send to rank 1: an input was changed between the call ["
    assert report.text.startswith(said), report.text


def test_writes_that_are_well_are_no_early_ones() -> None:
    """Each of these changes torch's counter of the tensor's memory, or looks as if it did, and loses nothing."""

    def program(rank: int) -> list[list[float]]:
        flat, other = torch.arange(8.0) + rank, torch.full((2, 3), 1.0 + rank)
        work = dist.all_reduce(flat[:4], async_op=True)
        flat[4:].mul_(2)  # the other half
        work.wait()
        work = dist.all_reduce(other, async_op=True)
        other.unsqueeze_(0)  # no data
        work.wait()
        work = dist.all_reduce(other.detach(), async_op=True)
        while not work.is_completed():
            pass
        other.add_(1)  # after it
        work.wait()
        works = [dist.all_reduce(x, async_op=True) for x in (flat[::2], flat[1::2])]  # copied aside, and back
        for work in works:
            work.wait()
        future = dist.all_reduce(flat, async_op=True)
        future.get_future().wait()
        flat.sub_(1)
        future.wait()
        with torch.inference_mode():
            inference = torch.ones(2) * rank
            work = dist.all_reduce(inference, async_op=True)
            inference.view(1, 2)
            work.wait()
        parameter = torch.nn.Parameter(torch.ones(2))
        work = dist.all_reduce(parameter.data, async_op=True)
        parameter.requires_grad_(False)
        work.wait()
        with dist._coalescing_manager(async_ops=True) as coalesced:
            dist.all_reduce(flat)
            dist.all_reduce(other)
        coalesced.wait()
        return [flat.tolist(), other.flatten().tolist(), inference.tolist(), parameter.tolist()]

    expected = rankloom.torch.run(program, 2, parallel=True)
    expected.raise_if_failed()
    for options in ({}, *({"seed": seed} for seed in SEEDS)):
        report = rankloom.torch.run(program, 2, **options)
        report.raise_if_failed()
        assert report.results == expected.results


def test_an_output_that_all_write_to_early_is_told_once() -> None:
    def writes(rank: int) -> None:
        gradients = torch.full((4,), 1.0 + rank)
        work = dist.all_reduce(gradients, async_op=True)
        gradients.zero_()
        dist.barrier()
        work.wait()

    texts = [rankloom.torch.run(writes, 3, seed=seed).text for seed in SEEDS]
    written = [text for text in texts if "an output was written" in text]
    assert written, texts
    for text in written:
        head = text.split("\nTraceback")[0]
        assert head.count("an output was written") == 1, text
        assert re.match(r"ranks? \S+( \d)? failed: InvalidArgument: .*group 0, all_reduce seq 1: an output was written", head), text


def test_the_kinds_of_errors_are_those_of_the_core() -> None:
    def waits(rank: int) -> None:
        if rank == 0:
            work = dist.irecv(torch.ones(1), src=1)
            assert work is not None
            work.wait(timeout=datetime.timedelta(seconds=2))
        dist.barrier()

    text = rankloom.torch.run(waits, 2, seed=1).text
    assert re.match(r"rank 0 failed: Timeout: rank 0, group 0, recv ", text) and "\nrank 1 stopped for it\n" in text, text

    def wraps(rank: int) -> None:
        try:
            dist.all_reduce(torch.ones(2), group=dist.group.WORLD, op=dist.ReduceOp.BAND)
        except Exception as error:
            raise RuntimeError("step 3") from error

    assert rankloom.torch.run(wraps, 2).text.startswith("ranks 0-1 failed: RuntimeError: step 3\n")  # another exception


MISMATCH = '''
import pytest, torch
import torch.distributed as dist

@pytest.mark.ranks(4)
def test_root(rank):
    config = torch.full((4,), rank)
    if rank == 0:
        dist.broadcast(config, src=1)  # the odd one
    else:
        dist.broadcast(config, src=0)
'''


def test_a_mismatch_shows_the_line_of_the_side_that_is_smaller(tmp_path: pathlib.Path) -> None:
    out = run_pytest(tmp_path, MISMATCH).stdout
    assert re.search(r"^>\s+dist\.broadcast\(config, src=1\)  # the odd one$", out, re.MULTILINE), out
    assert not re.search(r"^>\s+dist\.broadcast\(config, src=0\)$", out, re.MULTILINE), out


SHRUNK = '''
import pytest
import torch.distributed as dist

@pytest.mark.explore(runs=200, min_ranks=2)
@pytest.mark.ranks(3)
def test_count(rank, world_size):
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("count", "0")
    dist.barrier()
    store.set("count", str(int(store.get("count")) + 1))
    dist.barrier()
    assert int(store.get("count")) == world_size
'''


def test_a_search_that_made_a_test_smaller_is_replayed_as_small(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, SHRUNK, "-q", "test_it.py")
    replay = re.search(r"replay it: (RANKLOOM_RANKS=2 RANKLOOM_REPLAY=\S+ .*::test_count)\n", done.stdout)
    assert replay is not None, done.stdout
    again = subprocess.run(["sh", "-c", replay[1]], cwd=tmp_path, capture_output=True, text=True, timeout=120).stdout
    assert "rank 1 failed: AssertionError: assert 1 == 2" in again and "diverged" not in again, again
    rerun = re.search(r"run it again: (RANKLOOM_RANKS=2 RANKLOOM_ENGINE=\S+ RANKLOOM_SCHEDULE=.*::test_count)\n", done.stdout)
    assert rerun is not None, done.stdout
    again = subprocess.run(["sh", "-c", rerun[1]], cwd=tmp_path, capture_output=True, text=True, timeout=120).stdout
    assert "rank 1 failed: AssertionError: assert 1 == 2" in again and f"run it again: {rerun[1]}\n" in again, again
    # The failure leads in the summary, and not how the search went.
    assert "FAILED test_it.py::test_count - rank 1 failed: AssertionError: assert 1 == 2" in done.stdout, done.stdout


SIGNS = '''
import pytest
import torch.distributed as dist

@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["a b", "a_b"])
def test_x(rank, name):
    dist.barrier()
    assert rank == 0
'''


def test_each_test_has_a_trace_of_its_own(tmp_path: pathlib.Path) -> None:
    traces = {"RANKLOOM_TRACE_DIR": str(tmp_path / "traces"), "RANKLOOM_REPORT": str(tmp_path / "runs")}
    for project in ("one", "other"):
        (tmp_path / project).mkdir()
        out = run_pytest(tmp_path / project, SIGNS, "-q", f"--rootdir={tmp_path / project}", "test_it.py", env=traces).stdout
        assert len(re.findall(r"RANKLOOM_REPLAY=\S+/test_it\.py_test_x_a_b-[0-9a-f]{8}\.rltrace ", out)) == 2, out
    assert len(list((tmp_path / "traces").iterdir())) == len(list((tmp_path / "runs").iterdir())) == 4


RETURNS = '''
import pytest
import torch.distributed as dist

@pytest.mark.explore(runs=50)
@pytest.mark.ranks(2)
def test_returns(rank):
    return dist.distributed_c10d._get_default_store().add("n", 1)

@pytest.mark.explore(runs=50, compare=False)
@pytest.mark.ranks(2)
def test_not_compared(rank):
    return dist.distributed_c10d._get_default_store().add("n", 1)

@pytest.mark.ranks(2)
def test_without_a_search(rank):
    return rank
'''


def test_what_a_test_returns_is_compared(tmp_path: pathlib.Path) -> None:
    out = run_pytest(tmp_path, RETURNS, "-q", "test_it.py").stdout
    assert "1 failed, 2 passed in" in out, out
    assert re.search(r'results differ between schedules: rank \d\'s "return value" is \d here, and \d under ', out), out
    assert "FAILED test_it.py::test_returns - results differ between schedules: rank " in out, out


LOCK = '''
import threading
import pytest
import torch
import torch.distributed as dist

LOCK = threading.Lock()

@pytest.mark.ranks(3)
def test_lock(rank):
    x = torch.ones(1)
    with LOCK:
        dist.all_reduce(x)
'''


def test_a_lock_that_is_held_across_a_call_is_told_once(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, LOCK, "--ranks-stall=1", "test_it.py")
    out = done.stdout
    assert "1 failed in" in out, out + done.stderr
    assert "(a lock that another rank holds across a call of torch.distributed never comes free: " in out, out
    assert "parallel=True" not in out, out
    assert len(re.findall(r"^rank 1 failed: Stall: ", out, re.MULTILINE)) == 1, out
    assert "Report(" not in out and "pytest_plugin.py" not in out, out
    assert "Stall" not in done.stderr, done.stderr


def test_a_traceback_is_printed_once(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import rankloom.torch\n\ndef fails(rank):\n    raise ValueError('bad shard')\n\n"
        "rankloom.torch.CALL(fails, 2).raise_if_failed()\n"
    )
    source = program.read_text()
    for call in ("run", "explore"):
        program.write_text(source.replace("CALL", call))
        err = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120).stderr
        assert err.count("in fails\n") == 1, err
        assert "RankFailedError: " in err and re.search("rank 0 failed: ValueError: bad shard|ranks 0-1 failed", err), err


RUNS = """
import rankloom.torch
import torch
import torch.distributed as dist

def counts(rank):
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("count", "0")
    dist.barrier()
    store.set("count", str(int(store.get("count")) + 1))
    dist.barrier()
    assert int(store.get("count")) == dist.get_world_size(), "an update is lost"

def waits(rank):
    dist.barrier()

def fails(rank):
    dist.barrier()
    assert rank != 1, "planned"

first = rankloom.torch.run(waits, 3, seed=4)
print("first", first.schedule)
second = rankloom.torch.run(fails, 2, seed=5)
print("second", second.schedule, second.rerun)
third = rankloom.torch.explore(waits, 3, strategies=["exhaustive"])
print("third", third.summary)
fourth = rankloom.torch.explore(counts, 4, min_ranks=2, strategies=["exhaustive", "pct"])
print("fourth", fourth.failure.ranks, len(fourth.shares), fourth.failure.headline, fourth.failure.rerun)
"""


def _runs(folder: pathlib.Path, command: str) -> dict[str, str]:
    """The lines that the program above prints, by their first words."""
    done = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_a_rerun_line_is_for_one_run_of_a_program_and_that_of_a_rerun_is_the_same(tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text(RUNS)
    said = _runs(tmp_path, f"{sys.executable} program.py")
    assert said["first"] == "seeded:4" and said["third"].startswith("verified: "), said
    schedule, rerun = said["second"].split(" ", 1)
    assert schedule == "seeded:5" and rerun.startswith("RANKLOOM_REPLAY_RUN=2 RANKLOOM_ENGINE=threads RANKLOOM_SEED=5 "), said
    ranks, shares, failed = said["fourth"].split(" ", 2)
    headline, _, search = failed.partition(" RANKLOOM_REPLAY_RUN=")
    assert (ranks, headline) == ("2", "rank 1 failed: AssertionError: an update is lost"), said
    assert search.startswith("4 RANKLOOM_RANKS=2 RANKLOOM_ENGINE=threads RANKLOOM_SCHEDULE="), said
    # Of each: the run that is meant repeats, the others are as they were, and so is every line.
    assert _runs(tmp_path, rerun) == said
    again = _runs(tmp_path, f"RANKLOOM_REPLAY_RUN={search}")
    assert again == {**said, "fourth": f"2 1 {failed}"}
    assert shares == "1", said  # the first strategy finds it
    # The seed of one run is none of another's.
    other = _runs(tmp_path, f"RANKLOOM_REPLAY_RUN=2 RANKLOOM_SEED=77 {sys.executable} program.py")
    assert other["second"].startswith("seeded:77 RANKLOOM_REPLAY_RUN=2 "), other
    assert {**other, "second": ""} == {**said, "second": ""}


SECOND = '''
import rankloom.torch
import torch.distributed as dist

def fails(rank):
    dist.barrier()
    assert rank != 1, "planned"

def test_the_second_run():
    assert rankloom.torch.run(lambda rank: None, 3, seed=4).schedule == "seeded:4"
    rankloom.torch.run(fails, 2, seed=5).raise_if_failed()
'''


def test_a_rerun_line_of_a_test_counts_the_runs_of_that_test(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_before.py").write_text(SECOND.replace("the_second_run", "before"))
    out = run_pytest(tmp_path, SECOND, "-q", "test_before.py", "test_it.py").stdout
    lines = re.findall(r"run it again: (RANKLOOM_REPLAY_RUN=2 RANKLOOM_ENGINE=threads RANKLOOM_SEED=5 .*test_the_second_run)$", out, re.MULTILINE)
    assert lines, out
    again = subprocess.run(["sh", "-c", lines[0]], cwd=tmp_path, capture_output=True, text=True, timeout=120).stdout
    assert "1 failed" in again and f"run it again: {lines[0]}\n" in again, again


def test_a_stack_without_a_line_is_left_out() -> None:
    from rankloom.torch import _ranks

    done = threading.Event()
    begins = threading.Thread(target=done.wait)  # as a rank that has come to no line of the program's
    begins.start()
    try:
        assert _ranks._stacks([(2, begins.ident or 0)]) == ""
        stacks = _ranks._stacks([(1, threading.get_ident()), (2, begins.ident or 0)])
    finally:
        done.set()
        begins.join()
    assert re.match(r"  Python stack of rank 1:\n    ", stacks) and "rank 2" not in stacks, stacks


def test_a_send_that_nobody_receives_has_the_line_of_the_program() -> None:
    def sends(rank: int) -> None:
        if rank == 0:
            dist.isend(torch.ones(3), dst=1)

    text = rankloom.torch.run(sends, 2).text
    assert re.search(r"rank 0 waits in send seq 1 for rank 1 \(returned\) \[group 0, test_reports\.py:\d+\]", text), text
    assert "distributed_c10d.py" not in text, text


def _shares(rank: int, shared: list[int] = [], *, more: list[int] = []) -> None:  # noqa: B006
    shared.append(rank)
    more.append(rank)
    dist.barrier()


def test_the_summary_names_what_ranks_share() -> None:
    found = rankloom.torch.explore(_shares, 2, runs=10, strategies=["exhaustive"])
    unseen = "variables of Python that ranks share and change: more (a default of _shares), shared (a default of _shares)"
    assert re.fullmatch(
        r"no failure in \d+ runs \(the one schedule that rankloom can see; not verified because of: " + re.escape(unseen) + r"\)",
        found.summary,
    ), found.summary


@pytest.mark.parametrize(
    ("rows", "odd"),
    [
        (["root  | 1  | 0    | a.py:1", "      | 0  | 1-3  | a.py:2"], {0}),
        (["root  | 1  | 0    | a.py:1", "      | 0  | 1    | a.py:2"], set()),
        (["shape | [2] | 0, 2-3, 5 | a.py:1", "      | [3] | 1, 4 | a.py:2"], {1, 4}),
        (["shape | [2] | 0, 2, 4, ... (50 ranks) | a.py:1", "      | [3] | 1, 3, 5-40 | a.py:2"], {1, 3, 5}),
        (["op    | all_reduce | 0-2  | a.py:1", "      | barrier    | 3    | a.py:2", "other | x | y | z"], {3}),
    ],
)
def test_the_smaller_side_of_a_table(rows: list[str], odd: set[int]) -> None:
    from rankloom.torch import _run

    assert _run._odd_ranks("\n".join(["  field | value | ranks | call site", *rows])) == odd
