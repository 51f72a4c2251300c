"""The libraries that PyTorch builds on collectives, in PyTorch's own multi-threaded test classes, with rankloom behind them."""

import copy
import pathlib
import tempfile
import unittest
from typing import Any

import pytest
import rankloom.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cases import run_case
from models import numbered
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.common_distributed import MultiThreadedTestCase, spawn_threads_and_init_comms
from torch.testing._internal.common_fsdp import FSDPTestMultiThread
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorOpTestBase


@pytest.fixture(autouse=True)
def on_rankloom(seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed is not None:
        monkeypatch.setenv("RANKLOOM_SEED", str(seed))
    rankloom.torch.install()


def passes(case: type[unittest.TestCase], tests: int = 1) -> None:
    result = run_case(case)
    assert result.testsRun == tests and not result.skipped
    assert result.wasSuccessful(), "\n".join(text for _, text in result.errors + result.failures)


def net() -> Any:
    return numbered(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))


def test_dtensor() -> None:
    class Case(DTensorOpTestBase):  # type: ignore[misc]
        @property
        def world_size(self) -> int:
            return 4

        def build_device_mesh(self) -> DeviceMesh:
            return init_device_mesh("cpu", (4,))

        def test_redistribute(self) -> None:
            mesh = self.build_device_mesh()
            x = torch.arange(64.0).view(8, 8)
            rows = distribute_tensor(x, mesh, [Shard(0)])
            mine = slice(2 * self.rank, 2 * self.rank + 2)
            self.assertEqual(rows.to_local(), x[mine])
            self.assertEqual(rows.redistribute(mesh, [Shard(1)]).to_local(), x[:, mine])
            self.assertEqual(rows.full_tensor(), x)
            partial = DTensor.from_local(x * (self.rank + 1), mesh, [Partial()])
            self.assertEqual(partial.redistribute(mesh, [Shard(0)]).to_local(), 10 * x[mine])
            weights = distribute_tensor(torch.arange(32.0).view(8, 4), mesh, [Replicate()])
            self.assertEqual((rows @ weights).full_tensor(), x @ torch.arange(32.0).view(8, 4))

    passes(Case)


def test_tensor_parallel() -> None:
    class Case(DTensorOpTestBase):  # type: ignore[misc]
        @property
        def world_size(self) -> int:
            return 2

        def build_device_mesh(self) -> DeviceMesh:
            return init_device_mesh("cpu", (2,))

        def test_forward_and_backward(self) -> None:
            plain = net()
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            parallel = parallelize_module(copy.deepcopy(plain), self.build_device_mesh(), plan)  # type: ignore[arg-type]
            x = torch.linspace(-1, 1, 32).view(4, 8)
            self.assertEqual(parallel(x), plain(x))
            for module in (plain, parallel):
                module(x).square().sum().backward()
            for a, b in zip(plain.parameters(), parallel.parameters(), strict=True):
                gradient: Any = b.grad
                self.assertEqual(gradient.full_tensor(), a.grad)

    passes(Case)


def test_fully_shard() -> None:
    class Case(FSDPTestMultiThread):  # type: ignore[misc]
        @property
        def world_size(self) -> int:
            return 2

        def test_trains_as_one(self) -> None:
            mesh = init_device_mesh("cpu", (2,))
            plain, sharded = net(), net()
            for layer in (sharded[0], sharded[2], sharded):
                fully_shard(layer, mesh=mesh)
            batches = torch.rand(3, 4, 8, generator=torch.Generator().manual_seed(2))
            models = (plain, slice(None)), (sharded, slice(2 * self.rank, 2 * self.rank + 2))
            optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model, _ in models]
            for batch in batches:
                for (model, rows), optimizer in zip(models, optimizers, strict=True):
                    optimizer.zero_grad()
                    model(batch[rows]).square().mean().backward()
                    optimizer.step()
            for a, b in zip(plain.parameters(), sharded.parameters(), strict=True):
                self.assertEqual(b.full_tensor(), a)

    passes(Case)


class _OnThreads(MultiThreadedTestCase):  # type: ignore[misc]
    __test__ = False

    @property
    def world_size(self) -> int:
        return 3

    def setUp(self) -> None:
        super().setUp()
        self._spawn_threads()


def test_checkpoint() -> None:
    with tempfile.TemporaryDirectory() as folder:

        class Case(_OnThreads):
            def test_saves_and_loads(self) -> None:
                mesh = init_device_mesh("cpu", (3,))
                x = torch.arange(9.0)
                state = {"sharded": distribute_tensor(x, mesh, [Shard(0)]), "whole": torch.tensor([5.0])}
                dcp.save(state, checkpoint_id=folder)
                loaded: Any = {
                    "sharded": distribute_tensor(torch.zeros(9), mesh, [Shard(0)]),
                    "whole": torch.zeros(1),
                }
                dcp.load(loaded, checkpoint_id=folder)
                self.assertEqual(loaded["sharded"].full_tensor(), x)
                self.assertEqual(loaded["whole"], torch.tensor([5.0]))

        passes(Case)
        assert (pathlib.Path(folder) / ".metadata").exists()


def test_objects() -> None:
    class Case(_OnThreads):
        def test_all_of_them(self) -> None:
            rank = self.rank
            gathered: list[Any] = [None] * 3
            dist.all_gather_object(gathered, {"rank": rank})
            self.assertEqual(gathered, [{"rank": r} for r in range(3)])
            at_root = [None] * 3 if rank == 2 else None
            dist.gather_object(("x", rank), at_root, dst=2)
            self.assertEqual(at_root, [("x", 0), ("x", 1), ("x", 2)] if rank == 2 else None)
            mine: list[Any] = [None]
            dist.scatter_object_list(mine, [10, "twenty", 30.0] if rank == 0 else None, src=0)
            self.assertEqual(mine, [[10, "twenty", 30.0][rank]])
            told = [rank, str(rank)]
            dist.broadcast_object_list(told, src=1)
            self.assertEqual(told, [1, "1"])
            if rank == 0:
                dist.send_object_list(["from 0"], 2)
            elif rank == 2:
                got: list[Any] = [None]
                dist.recv_object_list(got, 0)
                self.assertEqual(got, ["from 0"])

    passes(Case)


def test_the_decorator() -> None:
    class Case(unittest.TestCase):
        @spawn_threads_and_init_comms(world_size=3)
        def test_sum(self) -> None:
            x = torch.tensor([float(dist.get_rank())])
            dist.all_reduce(x)
            self.assertEqual(x.item(), 3)

    passes(Case)


def test_stores() -> None:
    class Case(_OnThreads):
        def test_of_the_default_group(self) -> None:
            store = dist.distributed_c10d._get_default_store()
            store.add("sum", self.rank)
            dist.barrier()
            self.assertEqual(store.add("sum", 0), 3)
            store.set(f"key {self.rank}", f"value {self.rank}")
            store.wait([f"key {r}" for r in range(3)])
            self.assertEqual(store.multi_get(["key 0", "key 2"]), [b"value 0", b"value 2"])
            self.assertEqual(store.get("key 1"), b"value 1")
            self.assertTrue(store.check(["key 1"]))
            self.assertFalse(store.check(["key 3"]))
            dist.barrier()
            if self.rank == 0:
                self.assertEqual(store.compare_set("key 0", "value 0", "other"), b"other")
                self.assertEqual(store.compare_set("key 0", "value 0", "third"), b"other")
                self.assertTrue(store.delete_key("key 1"))
                self.assertFalse(store.delete_key("key 1"))
                store.append("key 2", " and more")
                self.assertEqual(store.get("key 2"), b"value 2 and more")

    passes(Case)
