"""A feed-forward block, its first layer cut by columns and its second by rows, trained beside a whole one."""

import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(6, 24)
        self.narrow = nn.Linear(24, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(torch.relu(self.wide(x)))


def main() -> None:
    kind = "cuda" if torch.cuda.device_count() > 1 else "cpu"
    mesh = init_device_mesh(kind, (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("tp",))
    torch.manual_seed(3)
    whole = Block().to(kind)
    cut = parallelize_module(copy.deepcopy(whole), mesh["tp"], {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (whole, cut)]
    for step in range(4):
        torch.manual_seed(step)  # all ranks have the same batch
        x = torch.rand(5, 6, device=kind)
        losses = [net(x).pow(2).sum() for net in (whole, cut)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(losses[0], losses[1])
        print(f"step {step}: {losses[1].item():.4f}, {cut.wide.weight.to_local().shape[0]} of 24 columns here")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
