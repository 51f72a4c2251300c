"""A small transformer, cut within each pair of GPUs, and sharded by FSDP2 over the pairs."""

import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

WORDS, WIDTH, HEADS = 32, 16, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [layer(x).unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.between, self.wide, self.narrow = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.narrow(torch.relu(self.wide(self.between(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Block() for _ in range(2))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


OUTER = {
    "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}
INNER = {
    "before": SequenceParallel(),
    "attention": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
    **{f"attention.{name}": ColwiseParallel(use_local_output=False) for name in ("query", "key", "value")},
    "attention.out": RowwiseParallel(output_layouts=Shard(1)),
    "between": SequenceParallel(),
    "wide": ColwiseParallel(input_layouts=Shard(1)),
    "narrow": RowwiseParallel(output_layouts=Shard(1)),
}


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]) // 2, 2), mesh_dim_names=("pairs", "pair"))
    torch.manual_seed(0)
    whole = Net().cuda()
    net = parallelize_module(copy.deepcopy(whole), mesh["pair"], OUTER)
    for block in net.blocks:
        parallelize_module(block, mesh["pair"], INNER)
        fully_shard(block, mesh=mesh["pairs"])
    fully_shard(net, mesh=mesh["pairs"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    for model in (net, whole):
        model(torch.arange(8, device="cuda").reshape(2, 4)).square().sum().backward()
    for name in ("words", "blocks.0.attention.query", "blocks.1.narrow"):
        weights = net.get_submodule(name).weight, whole.get_submodule(name).weight
        torch.testing.assert_close(weights[0].grad.full_tensor(), weights[1].grad)
    optimizer.zero_grad()
    torch.manual_seed(mesh["pairs"].get_local_rank())  # both of a pair have the same batch
    tokens = torch.randint(WORDS, (2, 9), device="cuda")
    losses = []
    for _ in range(5):
        loss = nn.functional.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    print(f"pair {mesh['pairs'].get_local_rank()}, half {mesh['pair'].get_local_rank()}: loss {losses[-1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
