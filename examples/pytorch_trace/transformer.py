"""Transformers and the plans that train them: FSDP2, tensor and sequence parallelism, pipelines, as torchtitan applies them.

Written for tensors without data: parameters are not initialised.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


@dataclasses.dataclass(frozen=True)
class Config:
    dim: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int  # of the feed-forward network
    vocabulary: int
    gated: bool = True  # SwiGLU, RMSNorm and rotary positions; else GELU, LayerNorm and learned positions
    positions: int = 0  # of learned ones

    @property
    def parameters(self) -> int:
        attention = 2 * self.dim * self.dim + 2 * self.dim * self.dim * self.kv_heads // self.heads
        norms = 2 * self.dim * (1 if self.gated else 2)
        feed_forward = (3 if self.gated else 2) * self.dim * self.hidden
        ends = 2 * self.vocabulary * self.dim + norms // 2 + self.positions * self.dim
        return self.layers * (attention + norms + feed_forward) + ends

    def flops_per_token(self, sequence: int) -> int:
        """6 a parameter that multiplies, and attention without regard to its mask, as published figures have it."""
        embeddings = (self.vocabulary + self.positions) * self.dim
        return 6 * (self.parameters - embeddings) + 12 * self.layers * self.dim * sequence


CONFIGS = {
    "llama3-8b": Config(4096, 32, 32, 8, 14336, 128256),
    "llama3-70b": Config(8192, 80, 64, 8, 28672, 128256),
    "llama3-405b": Config(16384, 126, 128, 8, 53248, 128256),
    "gpt3-175b": Config(12288, 96, 96, 96, 49152, 51200, gated=False, positions=2048),
}


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """x: [batch, sequence, heads, width]; angles: complex, [sequence, width / 2]."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[None, : x.shape[1], None, :]).flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.width = config.dim // config.heads
        self.wq = nn.Linear(config.dim, config.dim, bias=False)
        self.wk = nn.Linear(config.dim, config.kv_heads * self.width, bias=False)
        self.wv = nn.Linear(config.dim, config.kv_heads * self.width, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor | None) -> torch.Tensor:
        batch, sequence, _ = x.shape
        q, k, v = (w(x).view(batch, sequence, -1, self.width) for w in (self.wq, self.wk, self.wv))
        if angles is not None:
            q, k = rotated(q, angles), rotated(k, angles)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return self.wo(heads.transpose(1, 2).reshape(batch, sequence, -1))


class FeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.hidden, bias=False)
        self.w2 = nn.Linear(config.hidden, config.dim, bias=False)
        self.w3 = nn.Linear(config.dim, config.hidden, bias=False) if config.gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(nn.functional.gelu(self.w1(x)) if self.w3 is None else nn.functional.silu(self.w1(x)) * self.w3(x))


def norm(config: Config) -> nn.Module:
    return nn.RMSNorm(config.dim) if config.gated else nn.LayerNorm(config.dim)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = norm(config), norm(config)
        self.attention, self.feed_forward = Attention(config), FeedForward(config)

    def forward(self, x: torch.Tensor, angles: torch.Tensor | None) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    """The layers of a stage, all by default, with the embedding before them in the first stage and the output in the last one."""

    def __init__(
        self, config: Config, sequence: int, layers: range | None = None, is_first: bool = True, is_last: bool = True
    ) -> None:
        super().__init__()
        layers = range(config.layers) if layers is None else layers
        self.tok_embeddings = nn.Embedding(config.vocabulary, config.dim) if is_first else None
        self.positions = nn.Embedding(config.positions, config.dim) if is_first and config.positions else None
        self.layers = nn.ModuleDict({str(i): Block(config) for i in layers})
        self.norm = norm(config) if is_last else None
        self.output = nn.Linear(config.dim, config.vocabulary, bias=False) if is_last else None
        angles = torch.empty(sequence, config.dim // config.heads // 2, dtype=torch.complex64) if config.gated else None
        self.register_buffer("angles", angles, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.tok_embeddings is not None:
            tokens, x = x, self.tok_embeddings(x)
            if self.positions is not None:
                x = x + self.positions(torch.arange(tokens.shape[1]).expand_as(tokens))
        for layer in self.layers.values():
            x = layer(x, self.angles)
        return x if self.output is None or self.norm is None else self.output(self.norm(x))


# ---- plans


def apply_tensor_parallel(model: Transformer, mesh: DeviceMesh) -> None:
    """With sequence parallelism: between the blocks' products, activations are sharded along the sequence."""
    ends: dict[str, Any] = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, {name: style for name, style in ends.items() if getattr(model, name) is not None})
    for block in model.layers.values():
        plan: dict[str, Any] = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        }
        if block.feed_forward.w3 is not None:
            plan["feed_forward.w3"] = ColwiseParallel()
        parallelize_module(block, mesh, plan)


_SAVED = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


def _selective() -> Any:
    """Products are saved, every second one of them, and attention; what is cheap is computed again."""
    products: collections.Counter[bool] = collections.Counter()

    def policy(context: Any, func: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        if func == torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            if products[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if func in _SAVED else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def apply_recomputation(model: Transformer, mode: str) -> None:
    """mode: "full", "selective" or "none"."""
    for name, block in model.layers.items():
        if mode == "full":
            model.layers[name] = checkpoint_wrapper(block, preserve_rng_state=False)
        elif mode == "selective":
            model.layers[name] = checkpoint_wrapper(block, context_fn=_selective, preserve_rng_state=False)


def apply_fsdp(model: Transformer, mesh: DeviceMesh, pipelined: bool) -> None:
    """A group a block. In a pipeline parameters stay gathered between microbatches."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    blocks = list(model.layers.values())
    for i, block in enumerate(blocks):
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=not pipelined and i < len(blocks) - 1)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=not pipelined)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def parallelized(model: Transformer, mesh: DeviceMesh, recompute: str = "none") -> Transformer:
    """The mesh has dimensions of the names "tp" and "dp", or one of them; "pp" is up to the caller."""
    dims = mesh.mesh_dim_names or ()
    if "tp" in dims:
        apply_tensor_parallel(model, mesh["tp"])
    apply_recomputation(model, recompute)
    if "dp" in dims:
        apply_fsdp(model, mesh["dp"], "pp" in dims)
    return model


def layers_of_stages(layers: int, stages: int) -> list[int]:
    """How many each stage has: equally many, and those that are left go to stages that have no embedding or output."""
    more = layers % stages  # fewer than there are stages beside the first
    return [layers // stages + (0 < stage <= more) for stage in range(stages)]


__all__ = ["CONFIGS", "Config", "Transformer", "cross_entropy", "layers_of_stages", "loss_parallel", "parallelized"]
