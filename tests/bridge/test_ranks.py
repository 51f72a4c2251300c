"""The state that is a rank's own: environment, random state, threads."""

import builtins
import os
import pathlib
import random
import subprocess
import sys
import threading
import unittest
from typing import Any

import pytest
import rankloom.torch
import torch
import torch.distributed as dist
from rankloom.torch import _ext, _ranks


def test_environment_of_a_rank() -> None:
    def body(rank: int) -> None:
        assert os.environ["RANK"] == os.environ["LOCAL_RANK"] == str(rank)
        assert os.getenv("WORLD_SIZE") == "3"
        assert "RANK" in os.environ and os.environ.copy()["RANK"] == str(rank)
        os.environ["RANK"] = "9"
        del os.environ["LOCAL_RANK"]
        assert "LOCAL_RANK" not in os.environ

    rankloom.torch.run(body, 3).raise_if_failed()
    assert "RANK" not in os.environ


OLD_NAMES = """
import collections.abc, os
for name in ("update", "pop", "popitem", "setdefault", "clear"):  # as Python 3.10 has them
    function = getattr(collections.abc.MutableMapping, name)
    function.__code__ = function.__code__.replace(co_filename="/usr/lib/python3.10/_collections_abc.py")
import rankloom.torch
from rankloom.torch import _ranks
def body():
    before = _ranks.environment_writes()
    os.environ.update(A="1")
    os.environ.pop("A")
    os.environ.setdefault("A", "2")
    os.environ["A"] = "3"
    return _ranks.environment_writes() - before
print(rankloom.torch.run(body, 1).results)
"""


def test_changes_of_the_environment_are_counted_in_every_python() -> None:
    done = subprocess.run([sys.executable, "-c", OLD_NAMES], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "[4]\n", done.stdout + done.stderr


def test_a_thread_that_could_not_tell_that_it_has_ended_is_joined() -> None:
    with _ranks.kept_threads() as make:
        thread: Any = make("rank 0", threading.Event().wait, 0.1)
        thread.start()
        thread._worker.retired = True
        worker = thread._worker
        worker.join(60)
        thread.ended.clear()
        waits = threading.Thread(target=thread.join, daemon=True)
        waits.start()
        waits.join(10)
        ended = not waits.is_alive()
        thread.ended.set()
        waits.join(10)
    assert ended


@pytest.mark.parametrize("seed", [None, 3])
def test_env_init(seed: int | None) -> None:
    def body(rank: int) -> None:
        dist.init_process_group("rankloom")
        assert dist.get_rank() == rank and dist.get_world_size() == 3
        dist.barrier()

    rankloom.torch.run(body, 3, backend=None, seed=seed).raise_if_failed()


def test_torchs_random_state_is_the_ranks_under_a_seed() -> None:
    before = torch.random.get_rng_state()

    def body(rank: int) -> torch.Tensor:
        torch.manual_seed(42)
        parts = []
        for _ in range(4):
            parts.append(torch.rand(3))
            dist.barrier()
        parts.append(torch.randn(3))
        return torch.cat(parts)

    report = rankloom.torch.run(body, 3, seed=11)
    report.raise_if_failed()
    assert torch.equal(report.results[0], report.results[1])
    assert torch.equal(report.results[0], report.results[2])
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"seed": 4}], ids=["fifo", "seed 3", "seed 4"])
def test_random_states_that_are_equal_for_a_while(options: dict[str, Any]) -> None:
    """Ranks begin alike, some draw and some do not, are alike again, and draw more."""

    def body(rank: int) -> None:
        torch.manual_seed(5)
        own = torch.Generator().manual_seed(5)
        for step in range(18):
            if step % 3 == rank or step > 12 or step == 7:
                drawn = torch.randn(3), torch.rand(2)  # of an odd number of the first one is kept for the next time
                want = torch.randn(3, generator=own), torch.rand(2, generator=own)
                assert all(map(torch.equal, drawn, want)), (step, drawn, want)
            if step == 10:
                torch.manual_seed(9)
                own.manual_seed(9)
            dist.barrier()

    before = torch.get_rng_state()
    report = rankloom.torch.run(body, 3, **options)
    report.raise_if_failed()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_random_state_is_the_ranks_behind_every_call_that_lets_others_run() -> None:
    def body(rank: int) -> bool:
        own = torch.Generator().manual_seed(rank)
        torch.manual_seed(rank)
        world: Any = dist.group.WORLD
        same = []

        def look() -> None:
            same.append(torch.equal(torch.rand(2), torch.rand(2, generator=own)))

        store = dist.TCPStore("here", 1234, is_master=rank == 0, wait_for_workers=False)
        for _ in range(3):
            dist.destroy_process_group(dist.new_group([0, 1]))
            look()
            work = dist.all_reduce(torch.ones(1), async_op=True)
            assert work.exception() is None
            look()
            work.wait()
            dist.all_reduce(torch.ones(1), async_op=True)  # its last handle goes
            look()
            kept, one = [torch.ones(2), torch.ones(2)], torch.ones(1)
            with pytest.raises(dist.DistBackendError, match="want size = 2"):
                world.allgather([[torch.ones(1), torch.ones(1)], [one]], [one, one])  # the first call is made, and goes
            look()
            for x in kept:  # the second one takes the place of what an exception has left of the first
                world._start_coalescing(torch.device("cpu"))
                world.allreduce([x])
            look()
            world._end_coalescing(torch.device("cpu")).wait()

            def of_callback(_: Any) -> None:
                store.add("n", 1)
                look()

            dist.all_reduce(torch.ones(1), async_op=True).get_future().then(of_callback).wait()
        group = dist.new_group([0, 1])
        assert group is not None
        group._get_backend(torch.device("cpu")).abort()
        look()
        return all(same) and len(same) == 19

    for seed in range(1, 9):
        report = rankloom.torch.run(body, 2, seed=seed)
        assert report.results == [True, True], (seed, report.text)


def test_a_group_that_cannot_end_well_tells_so_as_other_calls_do() -> None:
    def body(rank: int) -> str:
        group = dist.new_group([0, 1])
        # The work is kept: the call fails, and its group, when the last member comes.
        work = dist.all_reduce(torch.zeros(2 + rank), group=group, async_op=True)
        with pytest.raises(dist.DistBackendError, match="Mismatch"):
            dist.destroy_process_group(group)
        assert work.is_completed() and not work.is_success()
        return "told"

    assert rankloom.torch.run(body, 2, seed=1).results == ["told", "told"]


def test_the_random_state_of_a_thread_beside_the_ranks_is_its_own() -> None:
    held: list[Any] = []

    def body(rank: int) -> None:
        torch.manual_seed(rank)
        group = dist.new_group([0, 1])
        assert group is not None
        held.append(group._get_backend(torch.device("cpu")))
        torch.rand(1)
        dist.barrier()

    rankloom.torch.run(body, 2, seed=1).raise_if_failed()
    torch.manual_seed(5)
    want = torch.rand(1, generator=torch.Generator().manual_seed(5))
    for backend in held:
        backend.shutdown()
    assert torch.equal(torch.rand(1), want)


def test_whose_message_a_work_is_can_be_asked_before_it_is_there() -> None:
    def body(rank: int) -> list[int]:
        if rank == 1:
            dist.send(torch.ones(1), 0)
            return []
        work = dist.irecv(torch.zeros(1))
        assert work is not None
        asked = [work._source_rank() for _ in range(9)]
        work.wait()
        return [asked[0], work._source_rank()]

    for seed in range(1, 6):
        report = rankloom.torch.run(body, 2, seed=seed, stall=10)
        assert report.ok and report.results[0] in ([-1, 1], [1, 1]), report.text


def test_pythons_random_states_on_request() -> None:
    numpy = pytest.importorskip("numpy")

    def body() -> list[float]:
        random.seed(1)
        numpy.random.seed(1)
        values = []
        for _ in range(4):
            values += [random.random(), float(numpy.random.rand())]
            dist.barrier()
        return values

    report = rankloom.torch.run(body, 3, seed=11, swap_random=True)
    report.raise_if_failed()
    assert report.results[0] == report.results[1] == report.results[2]


def test_pythons_random_states_begin_alike_and_are_put_back() -> None:
    numpy = pytest.importorskip("numpy")

    def body() -> list[float]:
        values = []
        for _ in range(4):
            values += [random.random(), float(numpy.random.rand())]
            dist.barrier()
        return values

    random.seed(5)
    numpy.random.seed(5)
    want = [[random.random(), float(numpy.random.rand())] for _ in range(4)]
    random.seed(5)
    numpy.random.seed(5)
    for seed in (1, 2):
        report = rankloom.torch.run(body, 3, seed=seed, swap_random=True)
        report.raise_if_failed()
        assert report.results == [[value for pair in want for value in pair]] * 3
    assert [random.random(), float(numpy.random.rand())] == want[0]
    found = rankloom.torch.explore(body, 2, swap_random=True, runs=20)
    assert found.ok, found.text
    assert not _ranks._random


def test_threads_are_fresh() -> None:
    local = threading.local()

    def body() -> None:
        assert not hasattr(local, "seen")
        local.seen = True

    for _ in range(2):
        rankloom.torch.run(body, 3).raise_if_failed()


def test_a_skip_of_one_rank_skips() -> None:
    def body(rank: int) -> None:
        if rank == 1:
            raise unittest.SkipTest("not on this machine")
        dist.barrier()

    with pytest.raises(unittest.SkipTest, match="not on this machine"):
        rankloom.torch.run(body, 3)


def test_a_skip_hides_no_failure_before_it() -> None:
    def body(rank: int) -> None:
        dist.barrier()
        if rank == 0:
            raise AssertionError("a real bug")
        try:
            dist.barrier()
        except RuntimeError as error:
            raise unittest.SkipTest(f"no barrier: {error}") from None

    report = rankloom.torch.run(body, 2)
    assert not report.ok and report.text.startswith("rank 0 failed: AssertionError: a real bug"), report.text
    explored = rankloom.torch.explore(body, 2, runs=20)
    assert explored.failure is not None and "a real bug" in explored.failure.text


def test_a_skip_is_not_hidden_by_what_it_brings_about() -> None:
    def body(rank: int) -> None:
        if rank == 1:
            raise unittest.SkipTest("not on this machine")
        try:
            dist.barrier()
        except RuntimeError:
            raise ValueError("no sync") from None

    for options in ({}, {"seed": 3}, {"parallel": True}):
        with pytest.raises(unittest.SkipTest, match="not on this machine"):
            rankloom.torch.run(body, 2, **options)  # type: ignore[arg-type]


def test_the_hook_for_exceptions_stays() -> None:
    before = sys.excepthook
    rankloom.torch.run(lambda: dist.barrier(), 3).raise_if_failed()
    assert sys.excepthook is before


def test_built_in_backends_are_ours() -> None:
    def body() -> str:
        dist.barrier()
        world: Any = dist.group.WORLD
        return str(type(world._get_backend(torch.device("cpu"))))

    report = rankloom.torch.run(body, 2, backend="gloo", seed=1)
    report.raise_if_failed()
    assert report.results == ["<class 'rankloom.torch._ext.Backend'>"] * 2


def test_a_coroutine_function_runs() -> None:
    async def body(rank: int) -> int:
        dist.barrier()
        return rank

    assert rankloom.torch.run(body, 2, seed=1).results == [0, 1]


def test_fibers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKLOOM_ENGINE", "fibers")
    with pytest.raises(ValueError, match='RANKLOOM_ENGINE is "fibers", want threads'):
        rankloom.torch.run(lambda: None, 2)


def test_a_job_reports_at_any_time() -> None:
    job = rankloom.torch._ext.Job(1)
    assert job.report()["text"].startswith("some ranks have not ended")
    job.attach(0)
    assert job.report()["outcomes"] == [("running", "")]
    rankloom.torch._ext.detach()
    told = job.report()
    assert told["ok"] and told == {**job.report(), "_run": told["_run"]}


def test_the_last_report() -> None:
    rankloom.torch.run(lambda: dist.barrier(), 2, seed=4)
    report = rankloom.torch.last_report()
    assert report is not None and report.ok and report.schedule == "seeded:4"


def test_the_flight_records(tmp_path: pathlib.Path) -> None:
    def body(rank: int) -> None:
        dist.all_reduce(torch.ones(2, 3))
        if rank == 0:
            dist.barrier()

    report = rankloom.torch.run(body, 2, seed=4)
    assert not report.ok
    first = [(e["profiling_name"], e["collective_seq_id"], e["state"]) for e in report.flight_records(0)["entries"]]
    assert first[-2:] == [("gloo:all_reduce", 1, "completed"), ("gloo:barrier", 2, "scheduled")]
    (call,) = (e for e in report.flight_records(1)["entries"] if e["profiling_name"] == "gloo:all_reduce")
    assert call["input_sizes"] == [[2, 3]] and call["input_dtypes"] == ["Float"]
    assert call["frames"][0]["filename"].endswith("test_ranks.py")
    last = rankloom.torch.last_report()
    assert last is not None and last.flight_records(0)["entries"] == report.flight_records(0)["entries"]
    report.dump_flight_records(tmp_path / "not" / "there")
    assert sorted(p.name for p in (tmp_path / "not" / "there").iterdir()) == ["fr_0", "fr_1"]


def test_a_trace_replays(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> None:
        for _ in range(3):
            dist.all_reduce(torch.ones(1))

    first = rankloom.torch.run(body, 3, seed=4)
    first.save_trace(tmp_path / "trace")
    monkeypatch.setenv("RANKLOOM_REPLAY", str(tmp_path / "trace"))
    monkeypatch.setenv("RANKLOOM_REPLAY_RUN", str(_ext.runs_begun() + 1))  # other tests of this process have made runs
    again = rankloom.torch.run(body, 3)
    again.raise_if_failed()
    assert again.trace == first.trace


def test_autograd_stays_on_the_ranks_thread() -> None:
    def body() -> None:
        x = torch.ones(2, requires_grad=True)
        threads = []
        x.register_hook(lambda grad: threads.append(threading.get_ident()))
        (x * 2).sum().backward()
        assert threads == [threading.get_ident()]

    rankloom.torch.run(body, 2).raise_if_failed()


def test_torchs_random_state_is_each_ranks_own_unless_all_run_at_once() -> None:
    def body(rank: int) -> list[float]:
        torch.manual_seed(rank)
        drawn = [torch.rand(1).item()]
        for _ in range(3):
            dist.barrier()
            drawn.append(torch.rand(1).item())
        return drawn

    def alone(rank: int) -> list[float]:
        generator = torch.Generator().manual_seed(rank)
        return [torch.rand(1, generator=generator).item() for _ in range(4)]

    want = [alone(rank) for rank in range(3)]
    for options in ({}, {"schedule": "fifo"}, {"seed": 5}, {"schedule": "pct:3:2"}):
        report = rankloom.torch.run(body, 3, **options)  # type: ignore[arg-type]
        report.raise_if_failed()
        assert report.results == want, options
    for shared in ({"parallel": True}, {"schedule": "free"}):
        report = rankloom.torch.run(body, 3, **shared)  # type: ignore[arg-type]
        assert report.ok and report.schedule == "free"
    assert rankloom.torch.run(body, 3).schedule == "fifo"


def test_parallel_and_a_schedule_are_refused() -> None:
    for options, text in (({"seed": 3}, "seed=3"), ({"schedule": "fifo"}, "schedule='fifo'")):
        with pytest.raises(ValueError, match=f"parallel=True and {text}: want one of them"):
            rankloom.torch.run(lambda: None, 2, parallel=True, **options)  # type: ignore[arg-type]


class TooLargeError(Exception):
    """Formats what it holds when it is printed."""

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.x = x

    def __str__(self) -> str:
        return f"too large: {self.x}"


@pytest.mark.parametrize("seed", [None, 3])
def test_what_a_rank_raised_says_the_same_for_ever(seed: int | None) -> None:
    shared = torch.tensor([1.0])

    def body(rank: int) -> None:
        dist.barrier()
        if rank == 1:
            try:
                raise ValueError("of", [shared])
            except ValueError as cause:
                raise TooLargeError(shared) from cause
        try:
            dist.barrier()
        finally:
            shared.fill_(99)

    report = rankloom.torch.run(body, 2, seed=seed)
    assert shared.item() == 99
    assert report.text.startswith("rank 1 failed: TooLargeError: too large: tensor([1.])\n"), report.text
    assert "ValueError: ('of', [tensor([1.])])" in report.text and "tensor([99.])" not in report.text, report.text
    raised = report.exceptions[1]
    assert isinstance(raised, TooLargeError) and str(raised) == "too large: tensor([1.])"
    assert str(raised.__cause__) == "('of', [tensor([1.])])"
    with pytest.raises(rankloom.torch.RankFailedError) as failed:
        report.raise_if_failed()
    assert str(failed.value.__cause__) == "too large: tensor([1.])"


def test_what_python_tells_of_an_exception_is_in_the_text() -> None:
    def text_of(error: BaseException) -> str:
        def body(rank: int) -> None:
            if rank == 1:
                raise error

        return rankloom.torch.run(body, 2, seed=1).text

    noted = ValueError("bad\nand worse")
    if sys.version_info >= (3, 11):
        noted.add_note("of shard 3")
        assert text_of(noted).endswith("\nValueError: bad\nof shard 3\n")
        group = text_of(vars(builtins)["ExceptionGroup"]("two", [ValueError("a"), KeyError("b")]))
        assert group.count("ExceptionGroup: two (2 sub-exceptions)") == 2, group  # as headline, and within
        assert group.endswith("\n    | KeyError: 'b'\n    +------------------------------------\n"), group
    else:
        assert text_of(noted).endswith("\nValueError: bad\n")
    wrong = text_of(SyntaxError("no such word", ("train.cfg", 3, 1, "lern = 0.1\n")))
    assert "\n    lern = 0.1\n    ^\nSyntaxError: no such word\n" in wrong, wrong
