"""DistributedDataParallel, its communication hooks, differentiable collectives and FSDP over rankloom."""

import copy
from typing import Any

import pytest
import rankloom.torch
import torch
import torch.distributed as dist
import torch.distributed.nn
from models import numbered
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


@pytest.fixture(params=[None, 5], ids=["free", "seed5"])
def seed(request: pytest.FixtureRequest) -> int | None:
    return request.param  # type: ignore[no-any-return]


def model() -> nn.Module:
    return numbered(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))  # type: ignore[no-any-return]


def batch() -> torch.Tensor:
    return torch.rand(RANKS * 4, 6, generator=torch.Generator().manual_seed(2))


def mine(x: torch.Tensor, rank: int) -> torch.Tensor:
    return x[rank * 4 : (rank + 1) * 4]


def gradients(of: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in of.parameters() if p.grad is not None]


@pytest.mark.parametrize("views", [False, True])
def test_ddp_trains_as_the_whole_batch(seed: int | None, views: bool) -> None:
    def body(rank: int) -> None:
        plain = model()
        ddp = DistributedDataParallel(copy.deepcopy(plain), bucket_cap_mb=0.0001, gradient_as_bucket_view=views)
        for _ in range(3):
            for which, x in ((plain, batch()), (ddp, mine(batch(), rank))):
                which.zero_grad()
                which(x).square().mean().backward()
            for a, b in zip(gradients(plain), gradients(ddp), strict=True):
                torch.testing.assert_close(a, b)

    rankloom.torch.run(body, RANKS, seed=seed).raise_if_failed()


def test_ddp_steps_on_1024_ranks() -> None:
    def body(rank: int) -> float:
        ddp = DistributedDataParallel(numbered(nn.Linear(8, 4)))
        ddp(torch.full((2, 8), float(rank))).sum().backward()
        return ddp.module.weight.grad[0, 0].item()  # type: ignore[no-any-return, union-attr, index]

    report = rankloom.torch.run(body, 1024)
    report.raise_if_failed()
    assert report.results == [1023.0] * 1024  # of 2 rows, the mean over the ranks


def test_an_lstm_trains(seed: int | None) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(6, 8, 2, batch_first=True)
            self.out = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> Any:
            self.lstm.flatten_parameters()
            return self.out(self.lstm(x)[0])

    def body(rank: int) -> None:
        generator = torch.Generator().manual_seed(3)
        plain = Net()
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter.copy_(torch.rand(parameter.shape, generator=generator) - 0.5)
        ddp = DistributedDataParallel(copy.deepcopy(plain))
        x = torch.rand(RANKS * 4, 5, 6, generator=generator)
        for _ in range(2):
            for which, rows in ((plain, x), (ddp, mine(x, rank))):
                which.zero_grad()
                which(rows).square().mean().backward()
            for a, b in zip(gradients(plain), gradients(ddp), strict=True):
                torch.testing.assert_close(a, b)

    rankloom.torch.run(body, RANKS, seed=seed).raise_if_failed()


@pytest.mark.parametrize(
    "hook",
    [
        DDPCommHookType.ALLREDUCE,
        DDPCommHookType.FP16_COMPRESS,
        DDPCommHookType.QUANTIZE_PER_TENSOR,
        DDPCommHookType.QUANTIZE_PER_CHANNEL,
    ],
)
def test_ddp_hooks(seed: int | None, hook: DDPCommHookType) -> None:
    def body(rank: int) -> None:
        plain = model()
        ddp = DistributedDataParallel(copy.deepcopy(plain))
        register_ddp_comm_hook(hook, ddp, dist.group.WORLD)
        plain(batch()).square().mean().backward()
        ddp(mine(batch(), rank)).square().mean().backward()
        for a, b in zip(gradients(plain), gradients(ddp), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)

    rankloom.torch.run(body, RANKS, seed=seed).raise_if_failed()


def test_a_peer_that_raises_ends_a_backward(seed: int | None) -> None:
    def body(rank: int) -> None:
        ddp = DistributedDataParallel(model())
        out = ddp(mine(batch(), rank)).sum()
        if rank == 1:
            raise ValueError("before backward")
        out.backward()

    report = rankloom.torch.run(body, RANKS, seed=seed)
    assert report.first_failed == 1
    assert report.outcomes[0][0] == "stopped"
    assert "ValueError: before backward" in report.text


def test_a_backward_without_its_peer_is_a_deadlock_under_a_seed() -> None:
    def body(rank: int) -> None:
        ddp = DistributedDataParallel(model())
        out = ddp(mine(batch(), rank)).sum()
        if rank == 0:
            out.backward()

    report = rankloom.torch.run(body, RANKS, seed=5)
    assert "rank 0 waits in all_reduce" in report.text and "for rank 1 (returned)" in report.text


def test_differentiable_collectives(seed: int | None) -> None:
    def body(rank: int) -> None:
        x = (torch.ones(4) + rank).requires_grad_()
        dist.nn.all_reduce(x).sin().sum().backward()
        torch.testing.assert_close(x.grad, RANKS * torch.full((4,), 3.0).cos())
        y = (torch.arange(4.0) + 10 * rank).requires_grad_()
        parts = dist.nn.all_gather(y)
        torch.stack(parts).sum(0).sin().sum().backward()
        torch.testing.assert_close(y.grad, RANKS * (2 * torch.arange(4.0) + 10).cos())
        z = torch.full((2,), float(rank)).requires_grad_()
        dist.nn.broadcast(z, 1).sum().backward()
        assert z.grad is not None and z.grad.tolist() == ([2, 2] if rank == 1 else [0, 0])

    rankloom.torch.run(body, RANKS, seed=seed).raise_if_failed()


def test_functional_collectives(seed: int | None) -> None:
    import torch.distributed._functional_collectives as funcol

    def body(rank: int) -> None:
        x = torch.full((2,), float(rank))
        assert funcol.all_reduce(x, "sum", dist.group.WORLD).tolist() == [1, 1]
        assert funcol.all_gather_tensor(x, 0, dist.group.WORLD).tolist() == [0, 0, 1, 1]
        assert funcol.reduce_scatter_tensor(torch.arange(4.0), "sum", 0, dist.group.WORLD).tolist() == [
            4.0 * rank,
            4.0 * rank + 2,
        ]

    rankloom.torch.run(body, RANKS, seed=seed).raise_if_failed()


def test_fsdp_and_tensor_parallel_on_a_fake_mesh() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    dist.init_process_group("rankloom_fake", rank=0, world_size=4, store=rankloom.torch.FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        sharded: Any = parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(sharded, mesh=mesh["dp"])
        optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
        sharded(torch.rand(4, 8)).sum().backward()
        optimizer.step()
    finally:
        dist.destroy_process_group()


def test_device_mesh(seed: int | None) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    def body(rank: int) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=mesh.get_group("tp"))
        assert x.item() == (1 if rank < 2 else 5)
        dist.all_reduce(x, group=mesh.get_group("dp"))
        assert x.item() == 6

    rankloom.torch.run(body, 4, seed=seed).raise_if_failed()


def test_point_to_point(seed: int | None) -> None:
    def body(rank: int) -> None:
        x = torch.full((2,), float(rank))
        if rank == 0:
            dist.send(x, 1)
            got = torch.empty(2)
            assert dist.recv(got) == 1
            assert got.tolist() == [1, 1]
        else:
            got = torch.empty(2)
            dist.recv(got, 0)
            assert got.tolist() == [0, 0]
            dist.send(x, 0)
        out = torch.empty(2)
        ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, out, 1 - rank)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert out.tolist() == [1.0 - rank] * 2

    rankloom.torch.run(body, RANKS, seed=seed).raise_if_failed()


def test_coalescing(seed: int | None) -> None:
    def body(rank: int) -> None:
        a, b = torch.ones(2), torch.full((3,), float(rank))
        with dist._coalescing_manager(async_ops=True) as both:
            dist.all_reduce(a)
            dist.all_reduce(b)
        both.wait()
        assert a.tolist() == [2, 2] and b.tolist() == [1, 1, 1]

    rankloom.torch.run(body, RANKS, seed=seed).raise_if_failed()


def test_a_group_of_a_users_own() -> None:
    """DDP over a group written in Python, of one rank, as PyTorch's own tests have it."""

    class Lonely(dist.ProcessGroup):
        def getSize(self) -> int:
            return 1

        def getBackendName(self) -> str:
            return "lonely"

        def broadcast(self, tensors: Any, opts: Any) -> Any:
            return done(tensors)

        def allgather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
            for out, x in zip(outputs[0], inputs, strict=True):
                out.copy_(x)
            return done(outputs)

        def allreduce(self, tensors: Any, opts: Any) -> Any:
            return done(tensors)

    def done(result: Any) -> Any:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(result)
        return torch._C._distributed_c10d._create_work_from_future(future)

    def body() -> None:
        plain = model()
        ddp = DistributedDataParallel(copy.deepcopy(plain), process_group=Lonely(0, 1))
        for which in (plain, ddp):
            which(batch()).sum().backward()
        for a, b in zip(gradients(plain), gradients(ddp), strict=True):
            torch.testing.assert_close(a, b)

    rankloom.torch.run(body, 1).raise_if_failed()
