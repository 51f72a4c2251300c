#!/usr/bin/env python3
"""Trains a small classifier of handwritten digits with DistributedDataParallel, on ranks that are threads of this process.

    python examples/pytorch_ddp/train.py [--ranks 4] [--epochs 20] [--seed 7]

With --seed one rank runs at a time, in an order that the seed decides. Ends with the checks that all ranks hold the same
bits and that the test accuracy is above 0.94.
"""

from __future__ import annotations

import argparse
import copy
import csv
import functools
import pathlib
import sys

import rankloom.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

DATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "digits.csv"
TEST = 360  # images


def load() -> tuple[torch.Tensor, torch.Tensor]:
    """Images of 8 x 8 in 0..1, and their digits."""
    with DATA.open() as file:
        rows = [[int(x) for x in row] for row in csv.reader(file) if row and row[0].lstrip("-").isdigit()]
    table = torch.tensor(rows)[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))]
    return table[:, :64].float() / 16, table[:, 64]


def train(net: nn.Module, images: torch.Tensor, digits: torch.Tensor, epochs: int) -> float:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(copy.deepcopy(net))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    mine_images, mine_digits = images[:-TEST][rank::ranks], digits[:-TEST][rank::ranks]
    batch = 64 // ranks
    steps = (len(images) - TEST) // ranks // batch  # as many on every rank
    order = torch.Generator().manual_seed(rank)
    for epoch in range(epochs):
        total = torch.zeros(1)
        shuffled = torch.randperm(len(mine_images), generator=order)
        for step in range(steps):
            rows = shuffled[step * batch : (step + 1) * batch]
            loss = nn.functional.cross_entropy(model(mine_images[rows]), mine_digits[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total, dist.ReduceOp.AVG)
        if rank == 0:
            print(f"epoch {epoch + 1:2}  loss {total.item() / steps:.4f}")
    for parameter in model.parameters():
        copies = [torch.empty_like(parameter) for _ in range(ranks)]
        dist.all_gather(copies, parameter.detach())
        assert all(torch.equal(copy, copies[0]) for copy in copies), "ranks hold different weights"
    right = (model(images[-TEST:][rank::ranks]).argmax(1) == digits[-TEST:][rank::ranks]).sum()
    dist.all_reduce(right)
    return right.item() / TEST


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    images, digits = load()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    program = functools.partial(train, net, images, digits, arguments.epochs)
    report = rankloom.torch.run(program, arguments.ranks, seed=arguments.seed)
    report.raise_if_failed()
    accuracy = report.results[0]
    print(f"test accuracy {accuracy:.3f} on {arguments.ranks} ranks, all with the same weights")
    return 0 if accuracy > 0.94 else 1


if __name__ == "__main__":
    sys.exit(main())
