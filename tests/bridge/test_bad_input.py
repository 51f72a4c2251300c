"""Failures outside of a collective's shapes: devices, interrupts, exits. All threads are gone then, and the next run
is as clean as the first. (conftest.py looks for threads that are left.)
"""

import re
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from typing import Any

import pytest
import rankloom.torch
import torch
import torch.distributed as dist


def still_works(seed: int | None) -> None:
    def body(rank: int) -> None:
        x = torch.tensor([float(rank)])
        dist.all_reduce(x)
        assert x.item() == 3

    rankloom.torch.run(body, 3, seed=seed).raise_if_failed()


def test_a_device_that_is_none_of_ours() -> None:
    def body() -> None:
        work = dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([torch.ones(2, device="meta")])
        work.wait()

    report = rankloom.torch.run(body, 2)
    assert "all_reduce: a tensor is on meta, want cpu or cuda" in report.text


def test_an_interrupt_in_the_main_thread(seed: int | None) -> None:
    main = threading.get_ident()

    def body(rank: int) -> None:
        if rank == 0:
            signal.pthread_kill(main, signal.SIGINT)
        for _ in range(10**9):
            dist.barrier()

    with pytest.raises(KeyboardInterrupt):
        rankloom.torch.run(body, 3, seed=seed)
    report = rankloom.torch.last_report()
    assert report is not None and "KeyboardInterrupt in the main thread" in report.text
    still_works(seed)


def test_a_rank_that_leaves_with_sys_exit(seed: int | None) -> None:
    def body(rank: int) -> None:
        if rank == 2:
            sys.exit("enough")
        dist.barrier()

    report = rankloom.torch.run(body, 3, seed=seed)
    assert report.first_failed == 2 and "SystemExit: enough" in report.text
    still_works(seed)


def test_an_error_below_a_collective_is_the_ranks_own(seed: int | None) -> None:
    def body(rank: int) -> None:
        if rank == 1:
            dist.all_gather_into_tensor(torch.empty(7), torch.empty(2))
        dist.barrier()

    report = rankloom.torch.run(body, 3, seed=seed)
    assert report.first_failed == 1
    assert "output has 7 elements, want size * input = 3 * 2 = 6" in report.text
    still_works(seed)


def test_a_timeout_of_a_call() -> None:
    def body(rank: int) -> None:
        if rank == 0:
            dist.all_reduce(torch.ones(1), async_op=True).wait(timedelta(minutes=30))
        else:
            dist.distributed_c10d._get_default_store().wait(["never"], timedelta(hours=1))

    report = rankloom.torch.run(body, 2, seed=1)
    assert "Timeout" in report.text and "timed out after 30m" in report.text
    assert "rank 1" in report.text


def comes_late() -> None:
    dist.distributed_c10d._get_default_store().wait(["never"], timedelta(hours=1))


@pytest.mark.parametrize("async_op", [True, False])
def test_a_timeout_in_the_options_of_a_call(async_op: bool) -> None:
    def body(rank: int) -> None:
        wish = dist.AllreduceOptions()
        wish.timeout, wish.asyncOp = timedelta(seconds=0.2), async_op
        if rank == 1:
            comes_late()
        work = dist.group.WORLD.allreduce([torch.tensor([rank, 5])], wish)
        if async_op:
            work.wait()

    report = rankloom.torch.run(body, 2, seed=1)
    assert "rank 0, group 0, all_reduce seq 1: timed out after 200ms waiting for rank 1 [" in report.text, report.text


def test_a_timeout_of_a_barrier() -> None:
    def body(rank: int) -> None:
        if rank == 1:
            comes_late()
        dist.group.WORLD.barrier(timeout=timedelta(seconds=0.2)).wait()

    report = rankloom.torch.run(body, 2, seed=1)
    assert "rank 0, group 0, barrier seq 1: timed out after 200ms waiting for rank 1 [" in report.text, report.text


def test_a_calls_timeout_that_is_its_groups_does_not_keep_a_stuck_job_alive(seed: int | None) -> None:
    def body(rank: int, timeout: timedelta) -> None:
        if rank == 0:
            dist.group.WORLD.barrier(timeout=timeout).wait()

    report = rankloom.torch.run(lambda rank: body(rank, timedelta(seconds=60)), 2, seed=seed, timeout=60)
    text = "Deadlock: no rank can move\n  rank 0 waits in barrier seq 1 for rank 1 (returned)"
    assert report.text.startswith(text), report.text
    report = rankloom.torch.run(lambda rank: body(rank, timedelta(seconds=0.2)), 2, seed=seed, timeout=60)
    text = "rank 0 failed: Timeout: rank 0, group 0, barrier seq 1: timed out after 200ms"
    assert report.text.startswith(text), report.text


def test_monitored_barrier_names_who_did_not_come(seed: int | None) -> None:
    rankloom.torch.install("gloo")  # torch.distributed has it for gloo only

    def body(rank: int) -> None:
        dist.monitored_barrier(timeout=timedelta(seconds=30))
        if rank in (1, 3):
            return
        want = (
            "Ranks 1, 3 failed to pass monitoredBarrier in 2000 ms"
            if rank == 0
            else "Rank 2 successfully reached monitoredBarrier, but received errors"
        )
        with pytest.raises(dist.DistBackendError, match=want):
            dist.monitored_barrier(timeout=timedelta(seconds=2), wait_all_ranks=True)

    rankloom.torch.run(body, 4, seed=seed, backend="gloo").raise_if_failed()


def test_debug_detail_checks_over_a_group_of_ours(seed: int | None) -> None:
    def body(rank: int) -> None:
        dist.init_process_group("rankloom")
        x = torch.tensor([float(rank)])
        dist.all_reduce(x)
        assert x.item() == 3
        with pytest.raises(RuntimeError, match="Detected mismatch between collectives on ranks"):
            dist.all_reduce(torch.ones(2 + rank))

    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        rankloom.torch.run(body, 3, seed=seed, backend=None).raise_if_failed()
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


def test_pytorchs_modules_may_be_imported_after_install() -> None:
    program = """
import rankloom.torch
rankloom.torch.install()
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg, multi_threaded_pg
import importlib
importlib.import_module("torch.testing._internal.common_distributed")
for name in ("THREADED", "FAKE"):
    assert dist.Backend._plugins[name].creator_fn.__module__ == "rankloom.torch._install", name
dist.init_process_group("fake", rank=0, world_size=2, store=fake_pg.FakeStore())
backend = dist.group.WORLD._get_backend(__import__("torch").device("cpu"))
assert type(backend).__name__ == "Backend", type(backend)
print("rankloom's")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout == "rankloom's\n", done.stdout + done.stderr


def test_ranks_of_different_groups_make_them_at_the_same_time(seed: int | None) -> None:
    def body(rank: int) -> None:
        pairs = [[0, 1], [2, 3]]
        for turn in range(5):
            mine = pairs[rank // 2]
            group: Any = dist.new_group(mine, use_local_synchronization=True, group_desc=f"pair {turn}")
            x = torch.tensor([float(rank)])
            dist.all_reduce(x, group=group)
            assert x.item() == sum(mine)
            dist.destroy_process_group(group)

    rankloom.torch.run(body, 4, seed=seed).raise_if_failed()


def test_an_object_that_cannot_be_pickled(seed: int | None) -> None:
    def body(rank: int) -> None:
        every: list[Any] = [None] * 3
        dist.all_gather_object(every, (lambda: rank) if rank == 1 else rank)

    report = rankloom.torch.run(body, 3, seed=seed)
    assert not report.ok
    lines = report.text.splitlines()
    assert re.fullmatch(r"rank 1 failed: \w+Error: Can't (pickle|get) local object .*body\.<locals>\.<lambda>.*", lines[0]), report.text
    assert lines[1] == "ranks 0, 2 stopped for it"
    still_works(seed)


def test_what_a_rank_returns_need_not_be_picklable(seed: int | None) -> None:
    report = rankloom.torch.run(lambda rank: lambda: rank, 2, seed=seed)
    assert [made() for made in report.results] == [0, 1]


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError("no text")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UnprintableError(), "rank 1 failed: UnprintableError: <its str() raised ZeroDivisionError>"),
        (ValueError("a file \udcff"), "rank 1 failed: ValueError: a file \\udcff"),
    ],
)
def test_an_exception_whose_text_is_none(error: Exception, told: str, seed: int | None) -> None:
    def body(rank: int) -> None:
        if rank == 1:
            raise error
        dist.barrier()

    report = rankloom.torch.run(body, 3, seed=seed)
    assert report.text.startswith(told), report.text
    assert report.exceptions[1] is error
    with pytest.raises(rankloom.torch.RankFailedError):
        report.raise_if_failed()
    still_works(seed)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"ranks": 0}, "ranks is 0, want a whole number from 1 on"),
        ({"ranks": 1.5}, "ranks is 1.5, want a whole number from 1 on"),
        ({"seed": -1}, "seed is -1, want a whole number from 0 on"),
        ({"seed": "7"}, "seed is '7', want a whole number from 0 on"),
        ({"timeout": float("nan")}, "timeout is nan, want seconds, 0 or more"),
        ({"stall": -1}, "stall is -1, want seconds, 0 or more"),
        ({"timeout": float("inf")}, "timeout is inf, want seconds that have an end"),
        ({"stall": 1e300}, "stall is 1e+300, want seconds that have an end"),
        ({"stall": 0}, "stall is 0, want more seconds, or None for no limit"),
    ],
)
def test_options_that_no_run_can_have(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        rankloom.torch.run(lambda: None, **options)
    if "seed" in options:
        options = {"first_seed": options["seed"]}
    with pytest.raises(ValueError, match=re.escape(told)):
        rankloom.torch.explore(lambda: None, **options)


def test_a_generator_function_is_refused() -> None:
    def body() -> Any:
        yield dist.get_rank()

    for call in (rankloom.torch.run, rankloom.torch.explore):
        with pytest.raises(ValueError, match="body is a generator function: a call of it runs nothing of its body"):
            call(body, 2)
        with pytest.raises(ValueError, match="is a generator function: a call of it runs nothing of its body"):
            call(Yields(), 2)
    # Of a call that gives a generator the body has not run either.
    report = rankloom.torch.run(lambda: body(), 2)
    want = "ranks 0-1 failed: ValueError: the program returns a generator that has not begun: nothing of the body of "
    assert report.text.startswith(want), report.text


class Yields:
    def __call__(self) -> Any:
        yield dist.get_rank()


def test_a_seed_beside_a_schedule_is_refused() -> None:
    text = 'seed is 3 and schedule is "fifo": want one of them, since a schedule that has a seed names it'
    for call in (rankloom.torch.run, rankloom.torch.spawn):
        with pytest.raises(ValueError, match=text):
            call(lambda *_: None, nprocs=2, **SEEDED) if call is rankloom.torch.spawn else call(lambda: None, 2, **SEEDED)


SEEDED: dict[str, Any] = {"seed": 3, "schedule": "fifo"}


@pytest.mark.parametrize("name", ["rank", "seq", "nth"])
def test_a_fault_of_a_negative_number_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"Fault: {name} is -1, want 0 or more, or None for any"):
        rankloom.torch.Fault("crash", **{name: -1})  # type: ignore[arg-type]


def test_a_text_with_a_nul_is_told_to_its_end() -> None:
    def body() -> None:
        raise ValueError("before\0after")

    assert r"before\0after" in rankloom.torch.run(body, 1).text


IMPORTS_ON_A_RANK = """
import sys, torch, torch.distributed as dist, rankloom.torch

def body(rank):
    import torch.distributed.nn.functional as functional
    x = torch.tensor([1.0 + rank], requires_grad=True)
    functional.all_reduce(x * x).sum().backward()
    return x.grad.item()

print(rankloom.torch.run(body, 2, seed=7).results)
"""


def test_functions_that_keep_the_group_of_their_import() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", IMPORTS_ON_A_RANK], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[4.0, 8.0]\n", done.stdout + done.stderr
