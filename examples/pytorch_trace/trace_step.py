#!/usr/bin/env python3
"""Traces a training step of a transformer on any number of GPUs, on a laptop without one, and says what it takes.

    python examples/pytorch_trace/trace_step.py --model llama3-8b --mesh dp=128 --batch 2 --recompute selective
    python examples/pytorch_trace/trace_step.py --model llama3-405b --mesh pp=8,dp=8,tp=8 --batch 32 --microbatches 8 \\
        --recompute full --float8 --compiled --trace step.json

No tensor has data: models are FakeTensors. One rank of each pipeline stage is traced, by PyTorch's own FSDP2, tensor
parallelism and pipeline schedules; the table at the end is of rankloom.torch.estimate(), the trace for ui.perfetto.dev.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

import rankloom.torch
from plans import Plan, estimate_of
from transformer import CONFIGS


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=CONFIGS, default="llama3-8b")
    parser.add_argument("--mesh", default="dp=128", help="pp, dp and tp, in this order: pp=8,dp=8,tp=8 (dp=128)")
    parser.add_argument("--batch", type=int, default=2, help="sequences of one data-parallel rank and step (2)")
    parser.add_argument("--sequence", type=int, default=8192, help="tokens of a sequence (8192)")
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--schedule", default="1F1B", help="of torch.distributed.pipelining: 1F1B, Interleaved1F1B, GPipe")
    parser.add_argument("--stages-per-rank", type=int, default=1)
    parser.add_argument("--recompute", choices=("none", "selective", "full"), default="none")
    parser.add_argument("--device", choices=rankloom.torch.devices, default="h100_sxm")
    parser.add_argument("--efficiency", type=float, default=0.5, help="the part of its peak FLOP/s that kernels reach (0.5)")
    parser.add_argument("--float8", action="store_true", help="linear layers multiply in float8")
    parser.add_argument("--compiled", action="store_true", help="neighbouring kernels are one")
    parser.add_argument("--trace", metavar="FILE", help="for ui.perfetto.dev")
    return parser.parse_args()


def main() -> int:
    options = parsed()
    try:
        mesh = {dim: int(size) for dim, size in (part.split("=") for part in options.mesh.split(","))}
    except ValueError:
        print(f"--mesh {options.mesh}: want DIM=SIZE with commas between", file=sys.stderr)
        return 2
    if list(mesh) != [dim for dim in ("pp", "dp", "tp") if dim in mesh]:
        print(f"--mesh {options.mesh}: want pp, dp and tp, in this order", file=sys.stderr)
        return 2
    plan = Plan(
        options.model, mesh, options.batch, options.sequence, options.recompute, options.microbatches, options.schedule,
        options.stages_per_rank, options.device, float8=options.float8, compiled=options.compiled,
    )  # fmt: skip
    began = time.perf_counter()
    step = estimate_of(plan, options.efficiency)
    print(step)
    flops = plan.config.flops_per_token(plan.sequence) * plan.tokens / plan.ranks / step.time
    print(f"tokens/s/GPU {plan.tokens / plan.ranks / step.time:.0f}, {flops / 1e12:.0f} TFLOP/s/GPU by 6N and attention")
    print(f"traced {len(step.ranks)} of {plan.ranks} ranks in {time.perf_counter() - began:.1f} s", file=sys.stderr)
    if options.trace:
        step.write_perfetto(options.trace)
    return 0


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)
    sys.exit(main())
