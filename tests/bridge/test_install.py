"""rankloom behind PyTorch's own names, in PyTorch's own test classes."""

import unittest
from typing import Any

import pytest
import rankloom.torch
import torch
import torch.distributed as dist
from cases import run_case
from rankloom.torch import _ext


def torchs_class() -> Any:
    from torch.testing._internal.common_distributed import MultiThreadedTestCase

    return MultiThreadedTestCase


def test_torchs_own_test_class_runs_on_rankloom(seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed is not None:
        monkeypatch.setenv("RANKLOOM_SEED", str(seed))
    rankloom.torch.install()

    class Case(torchs_class()):  # type: ignore[misc]
        @property
        def world_size(self) -> int:
            return 4

        def setUp(self) -> None:
            super().setUp()
            self._spawn_threads()

        def test_sum(self) -> None:
            x = torch.full((3,), float(dist.get_rank()))
            dist.all_reduce(x)
            self.assertEqual(x, torch.full((3,), 6.0))
            self.assertEqual(dist.get_backend(), "threaded")
            y = torch.tensor([1.0])
            dist.reduce(y, dst=0)  # PyTorch's threaded group has no reduce

        def test_failure(self) -> None:
            if self.rank == 2:
                raise ValueError("rank 2 gives up")
            dist.barrier()

        def test_skip(self) -> None:
            if self.rank == 2:
                raise unittest.SkipTest("not here")
            dist.barrier()

    result = run_case(Case)
    assert result.testsRun == 3
    assert len(result.skipped) == 1
    ((failed, text),) = result.errors
    assert failed.id().endswith("test_failure")
    assert "ValueError: rank 2 gives up" in text
    report = rankloom.torch.last_report()
    assert report is not None


def test_a_fake_group_with_options() -> None:
    from torch._C._distributed_c10d import FakeProcessGroup

    rankloom.torch.install()
    options = FakeProcessGroup.Options()
    options.error_on_collective = True
    dist.init_process_group("fake", rank=1, world_size=1024, store=rankloom.torch.FakeStore(), pg_options=options)
    try:
        for call in (
            lambda: dist.all_reduce(torch.ones(3, 3)),
            lambda: dist.broadcast(torch.ones(3, 3), 0),
            lambda: dist.barrier(),
        ):
            with pytest.raises(RuntimeError, match=r"FakeProcessGroup collective operation error: .*rank 1, group 0"):
                call()
    finally:
        dist.destroy_process_group()


def test_a_fake_group_fills_its_outputs() -> None:
    rankloom.torch.install()
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=1, world_size=3, store=FakeStore())
    try:
        out = [torch.zeros(2) for _ in range(3)]
        dist.all_gather(out, torch.ones(2))
        assert all(torch.equal(t, torch.ones(2)) for t in out)
        single = torch.zeros(6)
        dist.all_gather_into_tensor(single, torch.tensor([1.0, 2.0]))
        assert single.tolist() == [1, 2, 1, 2, 1, 2]
        part = torch.zeros(2)
        dist.reduce_scatter_tensor(part, torch.arange(6.0))
        assert part.tolist() == [2, 3]
        with pytest.raises(RuntimeError, match="want size \\* input = 3 \\* 2 = 6"):
            dist.all_gather_into_tensor(torch.zeros(5), torch.ones(2))
    finally:
        dist.destroy_process_group()


def test_uninstall_puts_torch_back() -> None:
    from torch.testing._internal.distributed import fake_pg, multi_threaded_pg

    creator = dist.Backend._plugins["THREADED"].creator_fn
    store, handle = dist.HashStore, multi_threaded_pg.ProcessLocalGroup.__dict__["exception_handle"]
    rankloom.torch.install()
    assert rankloom.torch.installed()
    assert dist.Backend._plugins["THREADED"].creator_fn is not creator
    rankloom.torch.install()
    rankloom.torch.uninstall()
    assert not rankloom.torch.installed()
    assert dist.Backend._plugins["THREADED"].creator_fn is creator is multi_threaded_pg._create_threaded_pg
    assert dist.HashStore is store
    assert multi_threaded_pg.ProcessLocalGroup.__dict__["exception_handle"] is handle
    assert fake_pg.FakeStore.__module__ == fake_pg.__name__


def test_gloo_answered_by_rankloom() -> None:
    rankloom.torch.install("gloo", "nccl")

    def body(rank: int) -> None:
        dist.init_process_group("cpu:gloo,cuda:nccl", rank=rank, world_size=2, store=store)
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == 2
        assert dist.get_backend() == "cpu:gloo,cuda:nccl"
        assert type(dist.group.WORLD._get_backend(torch.device("cpu"))) is _ext.Backend  # type: ignore[union-attr]

    store = rankloom.torch.HashStore()
    rankloom.torch.run(body, 2, backend=None).raise_if_failed()


def test_a_single_rank_in_the_main_thread() -> None:
    dist.init_process_group("rankloom", rank=0, world_size=1, store=dist.HashStore())
    try:
        x = torch.ones(2)
        dist.all_reduce(x)
        assert x.tolist() == [1, 1]
    finally:
        dist.destroy_process_group()
