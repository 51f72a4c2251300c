"""Starts a rank for each GPU that it finds, by torch.multiprocessing.spawn()."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def worker(gpu: int, gpus: int, steps: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29631")
    with torch.cuda.device(gpu):
        dist.init_process_group("nccl", rank=gpu, world_size=gpus)
        torch.manual_seed(gpu)
        net = nn.parallel.DistributedDataParallel(nn.Linear(4, 2, device="cuda"), [torch.cuda.current_device()])
        for _ in range(steps):
            net(torch.rand(3, 4, device="cuda")).square().sum().backward()
        total = torch.zeros((), device=gpu)
        total += net.module.weight.grad.norm()
        dist.all_reduce(total)
        print(f"GPU {torch.cuda.current_device()}: {total.item() / gpus:.4f}")
        dist.destroy_process_group()


if __name__ == "__main__":
    number = torch.cuda.device_count()
    assert number > 1, "want two GPUs"
    mp.spawn(worker, (number, int(sys.argv[1])), number)
