#!/usr/bin/env python3
"""Estimates beside published steps, and the error of each, with one constant of efficiency for all.

    python examples/pytorch_trace/published.py [--only NAME,...] [--efficiency 0.5]

Without --efficiency: the constant for which the largest error of those points is least. Beside each estimate stands the constant
that would have this point alone come out: how far apart these are is what one constant for all cannot know. A point says where its
figure is from and what of its plan is not published, and taken for granted here.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings
from collections.abc import Sequence

from plans import Plan, estimate_of
from rankloom.torch import Estimate

_TITAN = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
_NEMO = "NVIDIA NeMo 24.12, performance summary, FP8"
_LLAMA = "The Llama 3 Herd of Models, arXiv 2407.21783, table 4"
_8B = Plan("llama3-8b", {"dp": 128}, 2, 8192, "selective", device="h100_sxm_hbm2e")
_405B = Plan("llama3-405b", {"pp": 8, "dp": 8, "tp": 8}, 32, 8192, "full", 8, device="h100_sxm_hbm2e", float8=True, compiled=True)
_405B_8192 = Plan("llama3-405b", {"pp": 16, "dp": 64, "tp": 8}, 32, 8192, "none", 32, "Interleaved1F1B", 8, compiled=True)
_175B = Plan("gpt3-175b", {"pp": 8, "dp": 16, "tp": 4}, 128, 2048, "none", 64, "Interleaved1F1B", 6, float8=True, compiled=True)


@dataclasses.dataclass(frozen=True)
class Point:
    plan: Plan
    tokens_per_second: float  # of a GPU
    source: str
    assumed: str = ""
    memory: float = 0  # the most of all ranks, in GiB; 0: it is not published

    @property
    def time(self) -> float:
        """Of a step, in seconds."""
        return self.plan.tokens / self.plan.ranks / self.tokens_per_second


POINTS = {
    "8b": Point(_8B, 5605, f"{_TITAN}, table 3", "sequences of 8192", 67.0),
    "8b-compile": Point(dataclasses.replace(_8B, compiled=True), 6514, f"{_TITAN}, table 3", "sequences of 8192", 62.0),
    "8b-float8": Point(dataclasses.replace(_8B, compiled=True, float8=True), 8380, f"{_TITAN}, table 3", "sequences of 8192", 61.8),
    "405b-1f1b": Point(
        _405B,
        100,
        f"{_TITAN}, table 5",
        "sequences of 8192, 8 microbatches; the figure has asynchronous TP, which is not modelled",
        82.5,
    ),
    "405b-interleaved": Point(
        dataclasses.replace(_405B, schedule="Interleaved1F1B", stages_per_rank=2),
        128,
        f"{_TITAN}, table 5",
        "as before, 2 stages a rank",
        72.7,
    ),
    "405b-8192": Point(
        _405B_8192,
        430e12 / (6 * _405B_8192.config.parameters),
        f"{_LLAMA}: 430 TFLOP/s",
        "430 TFLOP/s are 6 FLOPs a parameter and token (6ND), without attention; 8 stages a rank with a layer each but for the first "
        "and the last, microbatches of one sequence, no recomputation",
    ),
    "175b": Point(_175B, 825, _NEMO, "no recomputation; FSDP instead of a sharded optimizer; overlap of TP is not modelled"),
}


def error(step: Estimate, point: Point) -> float:
    return step.time / point.time - 1


@dataclasses.dataclass(frozen=True)
class Line:
    """A step's time, fixed + slope / efficiency: as good as exact, since few kernels move from one side of the roofline to the other."""

    fixed: float
    slope: float

    def time(self, efficiency: float) -> float:
        return self.fixed + self.slope / efficiency

    def efficiency(self, time: float) -> float:
        return self.slope / (time - self.fixed) if time > self.fixed else float("inf")


def line(step: Estimate) -> Line:
    low, high = step.at(0.35).time, step.at(0.65).time
    slope = (low - high) / (1 / 0.35 - 1 / 0.65)
    return Line(low - slope / 0.35, slope)


def calibrated(lines: Sequence[tuple[Line, Point]]) -> float:
    """The efficiency of least largest error, to a thousandth: times fall as it grows."""

    def largest(efficiency: float) -> float:
        return max(abs(one.time(efficiency) / point.time - 1) for one, point in lines)

    return min((thousandths / 1000 for thousandths in range(100, 1000)), key=largest)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", metavar="NAME,...", help=f"some of {', '.join(POINTS)}")
    parser.add_argument("--efficiency", type=float)
    options = parser.parse_args()
    names = list(POINTS) if options.only is None else options.only.split(",")
    for name in names:
        if name not in POINTS:
            print(f"--only {name}: want some of {', '.join(POINTS)}", file=sys.stderr)
            return 2
    steps = {name: estimate_of(POINTS[name].plan, options.efficiency or 0.5) for name in names}
    lines = {name: line(step) for name, step in steps.items()}
    efficiency = options.efficiency or calibrated([(lines[name], POINTS[name]) for name in steps])
    columns = ("point", "GPUs", "published", "estimate", "error", "its own constant", "MFU", "exposed", "peak memory")
    print(f"efficiency {efficiency}\n\n| {' | '.join(columns)} |\n|" + " --- |" * len(columns))
    for name, traced in steps.items():
        step, point = traced.at(efficiency), POINTS[name]
        exposed = ", ".join(f"{dim} {seconds:.2f} s" for dim, seconds in step.exposed.items())
        print(
            f"| {name} | {point.plan.ranks} | {point.time:.2f} s | {step.time:.2f} s | {error(step, point):+.1%} "
            f"| {lines[name].efficiency(point.time):.3f} | {step.mfu:.1%} | {exposed} | {step.peak_bytes / 2**30:.1f} GiB |",
            flush=True,
        )
    if {"405b-1f1b", "405b-interleaved"} <= set(steps):
        for at in (efficiency, 1.0):
            ratio = steps["405b-1f1b"].at(at).time / steps["405b-interleaved"].at(at).time
            print(f"\n405B, 1F1B to interleaved, at {at}: {ratio:.3f}, published 1.28")
    for name in names:
        memory = f"; memory {POINTS[name].memory} GiB" if POINTS[name].memory else ""
        print(f"\n{name}: {POINTS[name].source}{memory}; taken for granted: {POINTS[name].assumed}")
    return 0


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)
    sys.exit(main())
