"""DistributedDataParallel on a GPU per rank: it wants two at least, and leaves where there are fewer."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(gpu: int) -> float:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).to(gpu), device_ids=[gpu])
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(torch.randn(12, 8)), torch.randn(12, 3).to(gpu))
        loss.backward()
        optimizer.step()
    same = torch.stack([parameter.detach().sum() for parameter in model.parameters()]).to(f"cuda:{gpu}")
    first = same.clone()
    dist.broadcast(first, 0)
    assert torch.equal(first, same), "weights differ"
    return loss.item()


if __name__ == "__main__":
    if torch.accelerator.device_count() < 2:
        sys.exit("want two GPUs")
    kind = torch.accelerator.current_accelerator()
    gpu = int(os.environ["LOCAL_RANK"])
    torch.accelerator.set_device_index(gpu)
    dist.init_process_group(dist.get_default_backend_for_device(kind), device_id=torch.device(kind.type, gpu))
    loss = train(gpu)
    print(f"GPU {torch.accelerator.current_device_index()} of {torch.accelerator.device_count()}: loss {loss:.4f}")
    dist.barrier(device_ids=[gpu])
    dist.destroy_process_group()
