#!/usr/bin/env python3
"""Measures PyTorch's own sum of 8 tensors on a GPU: what bench/cuda/gpu_bench.cc's all_reduce of 8 ranks stands beside.

    gpu_torch_sum.py [--device cuda] [--mib 64] [--tensors 8] [--json FILE]

Three ways, float32: tensor after tensor added to a first one; stacked and summed; and the first with the sum copied back to all, which
is all that an all_reduce does. Each is the median of 20 after 3 that do not count, by the device's own events.
Prints a line each, and with --json the list as gpu-bench writes its own. Exits with 77 where there is no torch, or no such device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--mib", type=float, default=64, help="of each tensor")
    parser.add_argument("--tensors", type=int, default=8)
    parser.add_argument("--json")
    return parser.parse_args()


def skip(why: str) -> int:
    print(f"gpu_torch_sum: nothing was measured: {why}", file=sys.stderr)
    return 77


def nanoseconds(torch: Any, body: Callable[[], None], on_gpu: bool) -> float:
    if not on_gpu:
        begin = time.perf_counter_ns()
        body()
        return time.perf_counter_ns() - begin
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    body()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e6


def main() -> int:
    arguments = parse()
    try:
        import torch
    except ImportError as error:
        return skip(str(error))
    on_gpu = arguments.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        return skip(f"torch {torch.__version__} sees no GPU")
    count = int(arguments.mib * 2**20) // 4
    tensors = [torch.full((count,), float(i + 1), device=arguments.device) for i in range(arguments.tensors)]
    total = torch.empty_like(tensors[0])
    want = arguments.tensors * (arguments.tensors + 1) / 2

    def add() -> None:
        torch.add(tensors[0], tensors[1], out=total)
        for tensor in tensors[2:]:
            total.add_(tensor)

    def stack() -> None:
        torch.sum(torch.stack(tensors), 0, out=total)

    def add_and_copy() -> None:
        add()
        for tensor in copies:
            tensor.copy_(total)

    copies = [torch.empty_like(total) for _ in tensors]
    rows = []
    shape = f"{arguments.tensors} x {arguments.mib:g} MiB"
    for name, body in [("one added to the other", add), ("stacked and summed", stack), ("added, and copied to all", add_and_copy)]:
        times = [nanoseconds(torch, body, on_gpu) for _ in range(23)][3:]
        if total.min().item() != want or total.max().item() != want:
            print(f"gpu_torch_sum: {name}: sums are {total.min().item()} to {total.max().item()}, want {want}", file=sys.stderr)
            return 1
        rows.append({"name": f"torch sum/{shape}, {name}", "ns_per_op": round(statistics.median(times), 1)})
        print(f"{rows[-1]['name']:52} {rows[-1]['ns_per_op'] / 1e3:12.1f} us")
    if arguments.json:
        where = torch.cuda.get_device_name() if on_gpu else "CPU"
        with open(arguments.json, "w") as file:
            json.dump({"torch": torch.__version__, "device": where, "benchmarks": rows}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
