#!/usr/bin/env python3
"""Estimates a step of torchtitan's own Llama 3.1, with torchtitan's own plan of FSDP2 and selective recomputation.

    pip install torchtitan==0.3.0 triton        # its models import Triton, which torch for CPUs comes without
    python examples/pytorch_trace/torchtitan_step.py --model 8B --ranks 128 --batch 2 --efficiency 0.49

Beside it trace_step.py has the example's model with the same plan. Two things are not torchtitan's own: attention is
scaled_dot_product_attention(), since its models' is compiled for a GPU, and the loss is computed at once, not in parts.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable

import torch
from rankloom.torch import FakeWorld, across_nodes, devices, estimate
from torch.nn.functional import cross_entropy
from torchtitan.config.configs import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims, parallel_dims, utils
from torchtitan.distributed.activation_checkpoint import SelectiveAC
from torchtitan.models.common import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.models.llama3.sharding import set_llama3_sharding_config

BACKEND = "partial_dtensor"  # of torchtitan's three it is the one of FSDP2 alone


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=("debugmodel", "1B", "3B", "8B", "70B", "405B"), default="8B")
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--batch", type=int, default=2, help="sequences of one rank and step (2)")
    parser.add_argument("--sequence", type=int, default=8192, help="tokens of a sequence (8192)")
    parser.add_argument("--device", choices=devices, default="h100_sxm_hbm2e")
    parser.add_argument("--efficiency", type=float, default=0.5, help="the part of its peak FLOP/s that kernels reach (0.5)")
    return parser.parse_args()


def program_of(options: argparse.Namespace) -> Callable[[FakeWorld], Callable[[], object]]:
    """For rankloom.torch.estimate()."""
    batch, sequence = options.batch, options.sequence

    def program(world: FakeWorld) -> Callable[[], object]:
        utils.set_spmd_backend(BACKEND)
        spec = model_registry(options.model)
        for layer in spec.model.layers:
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
            layer.attention.rope.max_seq_len = sequence
        set_llama3_sharding_config(spec.model, enable_sp=False)
        size = world.world_size
        dims = ParallelDims(dp_replicate=1, dp_shard=size, cp=1, tp=1, pp=1, ep=1, world_size=size, spmd_backend=BACKEND)
        dims.build_mesh()
        model = spec.parallelize_fn(
            spec.model.build(),
            parallel_dims=dims,
            training=TrainingConfig(local_batch_size=batch, seq_len=sequence),
            parallelism=ParallelismConfig(spmd_backend=BACKEND),
            compile_config=CompileConfig(enable=False),
            ac_config=SelectiveAC.Config(),
            dump_folder="",
        )
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        tokens = torch.zeros(batch, sequence, dtype=torch.int64)
        positions = torch.arange(sequence).expand(batch, sequence)

        def step() -> None:
            logits = model(tokens, positions=positions)
            cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return program


def main() -> int:
    options = parsed()
    parallel_dims.device_type = "cpu"  # of its meshes: it finds no other here
    step = estimate(
        program_of(options),
        mesh={"dp": options.ranks},
        cost=across_nodes("nvlink4", "infiniband_ndr"),
        device=options.device,
        efficiency=options.efficiency,
    )
    print(step)
    print(f"tokens/s/GPU {options.batch * options.sequence / step.time:.0f}")
    return 0


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)
    sys.exit(main())
