#!/usr/bin/env python3
"""Times rankloom beside PyTorch's own test backends, in one process and one run.

    python bench/torch_bench.py [--json FILE] [--table FILE] [--turns N] [--large RANKS]

Each figure is the best of several rounds, over all ranks; the processor's time is that of all threads; the sides of a comparison
take turns. `floor`: the time that the interpreter alone takes, since its lock makes the ranks' calls serial: ranks x one all_reduce
of PyTorch's fake group. Worlds, steps of DDP and runs of explore() have no peer: they are told alone. --table: the rows as a table
in Markdown. --large: how many ranks as threads make the one step of DDP (1024; 0: none). Figures of a machine that does other
things as well say little; the load at the beginning and at the end is printed.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import rankloom.torch
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.testing._internal.distributed import fake_pg, multi_threaded_pg

torch.set_num_threads(1)


def on_threads(backend: str, ranks: int, body: Callable[[], float], schedule: str = "fifo") -> float:
    """The most of what the ranks return. As PyTorch's MultiThreadedTestCase does it; schedule: of rankloom's ranks."""
    os.environ["RANKLOOM_SCHEDULE"] = schedule
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    multi_threaded_pg._install_threaded_pg()
    store = HashStore()
    results = [0.0] * ranks

    def main(rank: int) -> None:
        dist.init_process_group(backend, rank=rank, world_size=ranks, store=store)
        results[rank] = body()
        dist.destroy_process_group()

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    multi_threaded_pg._uninstall_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(False)
    del os.environ["RANKLOOM_SCHEDULE"]
    return max(results)


def all_reduce_us(elements: int, times: int, rounds: int = 20, clock: Callable[[], float] = time.perf_counter) -> Callable[[], float]:
    def body() -> float:
        x = torch.ones(elements)
        for _ in range(20):
            dist.all_reduce(x)
        best = float("inf")
        for _ in range(rounds):
            dist.barrier()
            began = clock()
            for _ in range(times):
                dist.all_reduce(x)
            best = min(best, (clock() - began) / times)
        return best * 1e6

    return body


def alone_us() -> float:
    x = torch.ones(1024)
    best = float("inf")
    for _ in range(50):
        began = time.perf_counter()
        for _ in range(200):
            dist.all_reduce(x)
        best = min(best, (time.perf_counter() - began) / 200)
    return best * 1e6


def fake_us(backend: str) -> float:
    dist.init_process_group(backend, rank=0, world_size=4, store=fake_pg.FakeStore())
    us = alone_us()
    dist.destroy_process_group()
    return us


def recorded_us() -> float:
    """Of a fake world's rank, which records each call with its line, module and cost."""
    with warnings.catch_warnings(), rankloom.torch.fake_world(world_size=4, cost="nvlink4", outputs="shapes_only"):
        warnings.simplefilter("ignore")  # of tensors with data
        return alone_us()


def world_us(ranks: int, seed: int | None) -> float:
    began = time.perf_counter()
    rankloom.torch.run(lambda: None, ranks, seed=seed).raise_if_failed()
    return (time.perf_counter() - began) * 1e6


def explored_us(ranks: int, calls: int, clock: Callable[[], float] = time.perf_counter, runs: int = 300) -> float:
    """Of one run among many under other schedules."""

    def program() -> None:
        x = torch.ones(4)
        for _ in range(calls):
            dist.all_reduce(x)

    began = clock()
    found = rankloom.torch.explore(program, ranks, runs=runs, seconds=None, strategies=["random"])
    found.raise_if_failed()
    return (clock() - began) / found.runs * 1e6


def ddp_step_us(ranks: int) -> tuple[float, float]:
    """By the clock, and of the processor. A model wrapped by DistributedDataParallel on each rank, forward and backward once."""

    def program(rank: int) -> float:
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
        model(torch.full((2, 8), float(rank))).sum().backward()
        return model.module.weight.grad[0, 0].item()  # type: ignore[no-any-return, union-attr, index]

    began = time.perf_counter(), time.process_time()
    report = rankloom.torch.run(program, ranks)
    report.raise_if_failed()
    assert set(report.results) == {float(ranks - 1)}  # 2 rows, their mean over the ranks
    return (time.perf_counter() - began[0]) * 1e6, (time.process_time() - began[1]) * 1e6


def in_turns(turns: int, *measures: Callable[[], float]) -> list[float]:
    best = [float("inf")] * len(measures)
    for _ in range(turns):
        for i, measure in enumerate(measures):
            best[i] = min(best[i], measure())
    return best


def text_of(us: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} us"


class Table:
    """Rows of figures in microseconds, printed as they come."""

    COLUMNS = ("what", "rankloom", "rankloom, all at once", "PyTorch's", "floor", "PyTorch's / rankloom", "rankloom / floor")

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.lines = ["| " + " | ".join(self.COLUMNS) + " |", "| --- |" + " ---: |" * (len(self.COLUMNS) - 1)]
        print("\n".join(self.lines))

    def tell(self, name: str, ours: float, parallel: float | None = None, theirs: float | None = None, floor: float | None = None) -> None:
        self.rows.append({"name": name, "us": ours, "parallel_us": parallel, "peer_us": theirs, "floor_us": floor})
        times = [us and text_of(us) for us in (ours, parallel, theirs, floor)]
        ratios = [theirs and f"{theirs / ours:.3g}", floor and f"{ours / floor:.3g}"]
        self.lines.append("| " + " | ".join([name, *(cell or "-" for cell in [*times, *ratios])]) + " |")
        print(self.lines[-1], flush=True)


def load() -> str:
    return f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--large", type=int, default=1024)
    arguments = parser.parse_args()
    began = load()
    print(f"torch {torch.__version__}, {began}")
    table = Table()

    theirs, ours, recorded = in_turns(arguments.turns, lambda: fake_us("fake"), lambda: fake_us("rankloom_fake"), recorded_us)
    table.tell("fake all_reduce of 1,024 floats", ours, theirs=theirs)
    table.tell("fake all_reduce of 1,024 floats, recorded; PyTorch's is not", recorded, theirs=theirs)
    floor = theirs
    for ranks in (4, 16, 64):
        for clock, name in ((time.perf_counter, ""), (time.process_time, ", processor time")):
            body = all_reduce_us(1024, max(5, 200 // ranks), clock=clock)  # short rounds: few are disturbed
            theirs, ours, parallel = in_turns(
                arguments.turns,
                functools.partial(on_threads, "threaded", ranks, body),
                functools.partial(on_threads, "rankloom", ranks, body),
                functools.partial(on_threads, "rankloom", ranks, body, "free"),
            )
            table.tell(f"all_reduce of 1,024 floats, {ranks} ranks{name}", ours, parallel, theirs, ranks * floor)
    for ranks in (4, 64):
        for seed in (None, 7):
            [ours] = in_turns(10, functools.partial(world_us, ranks, seed))
            table.tell(f"a world of {ranks} ranks, made and ended" + ("" if seed is None else f", seed {seed}"), ours)
    for name, clock in (("explore(): a run of 4 ranks x 10 all_reduce", time.perf_counter), ("the same, processor time", time.process_time)):
        [ours] = in_turns(arguments.turns, functools.partial(explored_us, 4, 10, clock))
        table.tell(name, ours)
    if arguments.large > 0:
        ddp_step_us(2)  # imports
        by_clock, processor = ddp_step_us(arguments.large)
        table.tell(f"DDP of a linear layer, made, and a step, {arguments.large:,} ranks", by_clock)
        table.tell("the same, processor time", processor)
    print(f"{load()} at the end")
    if arguments.json:
        arguments.json.write_text(json.dumps({"begun": began, "torch": torch.__version__, "benchmarks": table.rows}, indent=1))
    if arguments.table:
        arguments.table.write_text("\n".join(table.lines) + "\n")


if __name__ == "__main__":
    main()
