"""Stands in for PyTorch's test/distributed/test_c10d_common.py, which torch's wheel does not carry: written anew, with its
intent. DDP over some group must train as the bare model does on the whole batch.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layers(x), dim=1)


class CommonDistributedDataParallelTest:
    rank: int
    world_size: int

    def _test_ddp_with_process_group(
        self,
        process_group: Any,
        devices: list[torch.device],
        device_ids: Any,
        multi_device: bool = False,
        gradient_as_bucket_view: bool = False,
    ) -> None:
        generator = torch.Generator().manual_seed(1337)
        plain = Net().to(devices[0])
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter.copy_(torch.rand(parameter.shape, generator=generator) - 0.5)
        ddp = DistributedDataParallel(
            copy.deepcopy(plain),
            device_ids=device_ids,
            process_group=process_group,
            bucket_cap_mb=0.001,
            gradient_as_bucket_view=gradient_as_bucket_view,
        )
        size = process_group.size()
        each = 2
        batch = torch.rand(each * size, 4, generator=generator)
        target = torch.rand(each * size, 3, generator=generator)
        mine = slice(self.rank * each, (self.rank + 1) * each)

        for step in range(3):
            order = torch.randperm(len(batch), generator=generator)
            batch, target = batch[order], target[order]
            for model, rows in ((plain, slice(None)), (ddp, mine)):
                nn.functional.mse_loss(model(batch[rows]), target[rows]).backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        assert parameter.grad is not None, f"step {step}: a parameter has no gradient"
                        parameter -= parameter.grad
                        # With views into buckets, the gradient must stay where it is.
                        parameter.grad.zero_()
            for i, (a, b) in enumerate(zip(plain.parameters(), ddp.parameters(), strict=True)):
                torch.testing.assert_close(b, a, msg=lambda text, i=i, step=step: f"step {step}, parameter {i}: {text}")
