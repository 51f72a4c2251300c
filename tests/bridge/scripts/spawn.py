"""The same main function on every rank, started by torch.multiprocessing.spawn()."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def main(rank: int, size: int, start: torch.Tensor) -> None:
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29617"
    dist.init_process_group("gloo", rank=rank, world_size=size)
    torch.manual_seed(rank)
    x = torch.rand(2) + start
    dist.all_reduce(x)
    if rank == 0:
        print("sum", *[f"{value:.4f}" for value in x.tolist()])
    dist.destroy_process_group()


if __name__ == "__main__":
    size = int(sys.argv[1])
    mp.spawn(main, args=(size, torch.ones(2)), nprocs=size, join=True)
