"""A token goes round a ring by send and recv, then an all-reduce of one's own by isend and irecv."""

import os
import random

import torch
import torch.distributed as dist


def go_round(rank: int, size: int) -> torch.Tensor:
    token = torch.zeros(1)
    if rank == 0:
        dist.send(token + 1, dst=1 % size)
        dist.recv(token, src=size - 1)
    else:
        dist.recv(token, src=rank - 1)
        dist.send(token + rank + 1, dst=(rank + 1) % size)
    return token


def all_reduce(mine: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    total, passing = mine.clone(), mine.clone()
    for _ in range(size - 1):
        came = torch.empty_like(passing)
        sent = dist.isend(passing, (rank + 1) % size)
        dist.irecv(came, (rank - 1) % size).wait()
        sent.wait()
        total += came
        passing = came
    return total


if __name__ == "__main__":
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=size)
    print(f"rank {rank} of {size} got the token as {go_round(rank, size).item():.0f}")
    random.seed(rank)
    torch.manual_seed(rank)
    mine = torch.rand(3) * random.randint(1, 9)
    total = all_reduce(mine, rank, size)
    whole = mine.clone()
    dist.all_reduce(whole)
    torch.testing.assert_close(total, whole)
    print(f"rank {rank} drew {', '.join(f'{x:.4f}' for x in mine.tolist())}; all {total.sum().item():.4f}")
    dist.destroy_process_group()
