"""ZeroRedundancyOptimizer beside an optimizer that every rank holds whole."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def train(sharded: bool) -> list[float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*[nn.Linear(10, 10) for _ in range(4)]))
    if sharded:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(3):
        torch.manual_seed(10 * dist.get_rank() + step)
        loss = (model(torch.randn(4, 10)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if sharded:
        mine = optimizer.optim.state_dict()["state"]
        print(f"rank {dist.get_rank()} holds the state of {len(mine)} parameters of 8")
    return losses


dist.init_process_group("gloo")
whole, sharded = train(False), train(True)
assert whole == sharded, (whole, sharded)
print(f"rank {dist.get_rank()}: losses", *[f"{loss:.4f}" for loss in sharded])
dist.destroy_process_group()
