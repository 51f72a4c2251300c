"""Trains on GPUs of several nodes, and goes on from the snapshot of an earlier run."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Job:
    def __init__(self, path: str) -> None:
        self.path = path
        self.rank, self.gpu = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
        self.done = 0
        net = nn.Linear(6, 1).cuda(self.gpu)
        if os.path.isfile(path):
            kept = torch.load(path, map_location=f"cuda:{self.gpu}")
            net.load_state_dict(kept["net"])
            self.done = kept["done"]
            print(f"rank {self.rank} goes on after {self.done} rounds")
        self.net = nn.parallel.DistributedDataParallel(net, device_ids=[self.gpu], output_device=self.gpu)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
        data = TensorDataset(torch.randn(64, 6), torch.randn(64, 1))
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=4, sampler=self.sampler, pin_memory=True)

    def round(self) -> None:
        self.sampler.set_epoch(self.done)
        for x, y in self.loader:
            x, y = x.to(self.gpu, non_blocking=True), y.to(self.gpu, non_blocking=True)
            self.optimizer.zero_grad(set_to_none=True)
            nn.functional.l1_loss(self.net(x), y).backward()
            self.optimizer.step()
        self.done += 1
        if self.rank == 0:
            torch.save({"net": self.net.module.state_dict(), "done": self.done}, self.path)
        print(f"rank {self.rank} on GPU {self.gpu}: {self.done} rounds of {len(self.loader)} batches")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", type=int)
    parser.add_argument("--path", default="net.pt")
    arguments = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend="nccl")
    job = Job(arguments.path)
    while job.done < arguments.rounds:
        job.round()
    dist.destroy_process_group()
