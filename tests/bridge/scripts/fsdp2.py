"""Trains a stack of layers that fully_shard() spreads over all ranks, beside the same stack that is whole."""

import argparse
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
arguments = parser.parse_args()

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (size,))

torch.manual_seed(0)
whole = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3)])
model = copy.deepcopy(whole)
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizers = [torch.optim.Adam(net.parameters(), lr=0.01) for net in (model, whole)]

torch.manual_seed(100)
batch = torch.randn(size * 4, 8)
for step in range(arguments.steps):
    mine = batch.chunk(size)[rank]
    loss = model(mine).square().mean()
    loss.backward()
    reference = whole(batch).square().mean()
    reference.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
    if dist.get_backend() != "nccl":
        mean /= size
    if rank == 0:
        print(f"step {step}: loss {mean.item():.5f}, whole {reference.item():.5f}")

for name, parameter in model.named_parameters():
    assert isinstance(parameter, DTensor)
    assert parameter.to_local().shape[0] * size == parameter.shape[0], name
    torch.testing.assert_close(parameter.full_tensor(), whole.get_parameter(name))
print(f"rank {rank} holds {sum(p.to_local().numel() for p in model.parameters())} of {sum(p.numel() for p in whole.parameters())}")
dist.destroy_process_group()
