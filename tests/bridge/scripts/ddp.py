"""Trains a small classifier with DistributedDataParallel, and keeps a snapshot that a later run goes on from."""

import argparse
import os
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model: nn.Module, data: TensorDataset, arguments: argparse.Namespace) -> None:
        self.rank = int(os.environ["RANK"])
        self.snapshot = pathlib.Path(arguments.snapshot)
        self.begin = 0
        if self.snapshot.exists():
            kept = torch.load(self.snapshot)
            model.load_state_dict(kept["model"])
            self.begin = kept["epochs"]
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.sampler = DistributedSampler(data, seed=arguments.seed)
        self.loader = DataLoader(data, batch_size=8, sampler=self.sampler)
        self.every = arguments.save_every

    def epoch(self, number: int) -> float:
        self.sampler.set_epoch(number)
        total = torch.zeros(())
        for x, y in self.loader:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        return total.item() / len(self.loader) / dist.get_world_size()

    def train(self, epochs: int) -> None:
        for number in range(self.begin, epochs):
            loss = self.epoch(number)
            print(f"epoch {number}: loss {loss:.4f}, {len(self.sampler)} samples of mine")
            if self.rank == 0 and (number + 1) % self.every == 0:
                torch.save({"model": self.model.module.state_dict(), "epochs": number + 1}, self.snapshot)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("epochs", type=int)
    parser.add_argument("--save-every", type=int, default=1)
    parser.add_argument("--snapshot", default="snapshot.pt")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(arguments.seed)
    x = torch.randn(96, 6)
    data = TensorDataset(x, (x[:, :3].sum(1) > x[:, 3:].sum(1)).long())
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    Trainer(model, data, arguments).train(arguments.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
