#!/usr/bin/env python3
"""Times rankloom beside PyTorch's own test backends, in one process and one run.

    python bench/torch_bench.py [--json FILE]

Each figure is the best of several rounds, in microseconds per operation over all ranks; the two sides take turns. `floor`:
what the interpreter alone takes, since its lock makes the ranks' calls serial: ranks x one all_reduce of PyTorch's fake group.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Any

import rankloom.torch
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.testing._internal.distributed import fake_pg, multi_threaded_pg

torch.set_num_threads(1)


def on_threads(backend: str, ranks: int, body: Callable[[], Any]) -> list[Any]:
    """As PyTorch's MultiThreadedTestCase does it."""
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    multi_threaded_pg._install_threaded_pg()
    store = HashStore()
    results: list[Any] = [None] * ranks

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
    return results


def all_reduce_us(elements: int, times: int, rounds: int = 5) -> Callable[[], float]:
    def body() -> float:
        x = torch.ones(elements)
        for _ in range(20):
            dist.all_reduce(x)
        best = float("inf")
        for _ in range(rounds):
            dist.barrier()
            began = time.perf_counter()
            for _ in range(times):
                dist.all_reduce(x)
            best = min(best, (time.perf_counter() - began) / times)
        return best * 1e6

    return body


def fake_us(backend: str) -> float:
    dist.init_process_group(backend, rank=0, world_size=4, store=fake_pg.FakeStore())
    x = torch.ones(1024)
    best = float("inf")
    for _ in range(50):
        began = time.perf_counter()
        for _ in range(200):
            dist.all_reduce(x)
        best = min(best, (time.perf_counter() - began) / 200)
    dist.destroy_process_group()
    return best * 1e6


def in_turns(*measures: Callable[[], float], turns: int = 4) -> list[float]:
    best = [float("inf")] * len(measures)
    for _ in range(turns):
        for i, measure in enumerate(measures):
            best[i] = min(best[i], measure())
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def tell(name: str, us: float, floor: float | None = None) -> None:
        rows.append({"name": name, "us_per_op": us, "floor_us": floor})
        print(f"{name:48} {us:10.1f} us" + (f"   floor {floor:8.1f} us, x {us / floor:.2f}" if floor else ""), flush=True)

    theirs, ours = in_turns(lambda: fake_us("fake"), lambda: fake_us("rankloom_fake"))
    floor = theirs
    tell("fake all_reduce 1024, PyTorch's", theirs)
    tell("fake all_reduce 1024, rankloom", ours)
    print(f"  PyTorch's takes {theirs / ours:.2f} times as long")
    for ranks in (4, 16, 64):
        body = all_reduce_us(1024, max(20, 800 // ranks))
        theirs, ours = in_turns(
            lambda ranks=ranks, body=body: max(on_threads("threaded", ranks, body)),  # type: ignore[misc]
            lambda ranks=ranks, body=body: max(on_threads("rankloom", ranks, body)),  # type: ignore[misc]
        )
        tell(f"all_reduce 1024, {ranks} ranks, threaded", theirs, ranks * floor)
        tell(f"all_reduce 1024, {ranks} ranks, rankloom", ours, ranks * floor)
        print(f"  PyTorch's takes {theirs / ours:.2f} times as long")
    for ranks in (4, 64):
        for seed in (None, 7):
            best = float("inf")
            for _ in range(10):
                began = time.perf_counter()
                rankloom.torch.run(lambda: None, ranks, seed=seed).raise_if_failed()
                best = min(best, time.perf_counter() - began)
            gear = "free" if seed is None else "seed 7"
            tell(f"a world of {ranks} ranks, made and ended, {gear}", best * 1e6)
    if arguments.json:
        arguments.json.write_text(json.dumps({"benchmarks": rows}, indent=1))


if __name__ == "__main__":
    main()
