"""Stands in for PyTorch's test/distributed/test_c10d_spawn.py, which torch's wheel does not carry: written anew, with its
intent. Each body checks one differentiable collective of torch.distributed.nn, values and gradients, on two ranks.

The loss is the sum of sin(y) over the outputs y, so that the gradient, cos(y), differs from rank to rank.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed.nn
from rankloom.torch.testing import MultiProcessTestCase

_torch_dist_nn_available = True


class TestDistributedNNFunctions(MultiProcessTestCase):
    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    @property
    def world_size(self) -> int:
        return 2

    def _begin(self, backend: str) -> torch.Tensor:
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world_size)
        return (torch.ones(5, 5) + self.rank).requires_grad_()

    def _test_broadcast(self, backend: str) -> None:
        x = self._begin(backend)
        y = torch.distributed.nn.broadcast(x, 1)
        self.assertEqual(y, torch.full((5, 5), 2.0))
        y.sin().sum().backward()
        # The root's gradient is the sum of all ranks'.
        want = 2 * torch.full((5, 5), 2.0).cos() if self.rank == 1 else torch.zeros(5, 5)
        self.assertEqual(x.grad, want)

    def _test_reduce(self, backend: str) -> None:
        x = self._begin(backend)
        y = torch.distributed.nn.reduce(x, 1, op=dist.ReduceOp.SUM)
        if self.rank == 1:
            self.assertEqual(y, torch.full((5, 5), 3.0))
        y.sin().sum().backward()
        self.assertEqual(x.grad, torch.full((5, 5), 3.0).cos())

    def _test_allreduce(self, backend: str) -> None:
        x = self._begin(backend)
        y = torch.distributed.nn.all_reduce(x, op=dist.ReduceOp.SUM)
        self.assertEqual(y, torch.full((5, 5), 3.0))
        y.sin().sum().backward()
        self.assertEqual(x.grad, 2 * torch.full((5, 5), 3.0).cos())

    def _test_all_gather(self, backend: str) -> None:
        x = self._begin(backend)
        parts = torch.distributed.nn.all_gather(x)
        for i, part in enumerate(parts):
            self.assertEqual(part, torch.full((5, 5), i + 1.0))
        torch.stack(parts).sum(0).sin().sum().backward()
        self.assertEqual(x.grad, 2 * torch.full((5, 5), 3.0).cos())

    def _test_all_to_all(self, backend: str) -> None:
        self._begin(backend)
        mine = [(torch.full((5, 5), 10.0 * self.rank + i)).requires_grad_() for i in range(2)]
        out = torch.distributed.nn.all_to_all([torch.empty(5, 5) for _ in range(2)], mine)
        for i, part in enumerate(out):
            self.assertEqual(part, torch.full((5, 5), 10.0 * i + self.rank))
        torch.stack(list(out)).sum(0).sin().sum().backward()
        for i, x in enumerate(mine):
            self.assertEqual(x.grad, torch.full((5, 5), 10.0 + 2 * i).cos())

    def _test_all_to_all_single(self, backend: str) -> None:
        self._begin(backend)
        x = (torch.arange(6.0).view(2, 3) + 10 * self.rank).requires_grad_()
        y = torch.distributed.nn.all_to_all_single(torch.empty(2, 3), x)
        want = torch.stack([torch.arange(3.0) + 3 * self.rank + 10 * i for i in range(2)])
        self.assertEqual(y, want)
        y.sin().sum().backward()
        self.assertEqual(x.grad, x.detach().cos())
