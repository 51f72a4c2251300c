"""Features of torch.distributed beside the plain collectives, in every gear. Data differs by rank."""

import inspect
import pathlib
import warnings
from datetime import timedelta
from typing import Any

import pytest
import rankloom.torch
import torch
import torch.distributed as dist
from models import numbered
from torch import nn
from torch.distributed._tools.mod_tracker import ModTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.parallel import DistributedDataParallel


def results(fn: Any, ranks: int, **options: Any) -> list[Any]:
    report = rankloom.torch.run(fn, ranks, **options)
    report.raise_if_failed()
    return report.results


def test_batches_of_sends_and_receives(seed: int | None) -> None:
    def body(rank: int) -> list[float]:
        size = dist.get_world_size()
        sent, got = torch.tensor([rank + 0.5]), [torch.zeros(1), torch.zeros(1)]
        ops = [dist.P2POp(dist.irecv, got[0], (rank - 1) % size), dist.P2POp(dist.irecv, got[1], (rank + 1) % size)]
        ops += [dist.P2POp(dist.isend, sent, (rank + 1) % size), dist.P2POp(dist.isend, sent, (rank - 1) % size)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return [value.item() for value in got]

    assert results(body, 3, seed=seed) == [[2.5, 1.5], [0.5, 2.5], [1.5, 0.5]]


@pytest.mark.parametrize(("backend", "works"), [("gloo", 2), ("nccl", 1), ("rankloom", 1)])
def test_a_batch_has_as_many_works_as_there(backend: str, works: int) -> None:
    def body(rank: int) -> tuple[int, float]:
        got = torch.zeros(1)
        ops = [dist.P2POp(dist.isend, torch.tensor([rank + 0.5]), 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
        batch = dist.batch_isend_irecv(ops)
        for work in batch:
            work.wait()
        return len(batch), got.item()

    assert results(body, 2, backend=backend) == [(works, 1.5), (works, 0.5)]


def test_a_tensor_that_a_batch_sends_is_the_batchs_until_it_is_done() -> None:
    def body(rank: int) -> None:
        x = torch.ones(4)
        op = dist.isend if rank == 0 else dist.irecv
        works = dist.batch_isend_irecv([dist.P2POp(op, x, 1 - rank)])
        if rank == 0:
            x.add_(1)
        for work in works:
            work.wait()

    report = rankloom.torch.run(body, 2)
    text = "rank 0 failed: InvalidArgument: rank 0, group 0, send seq 1: an input was changed between the call [test_features.py:"
    assert report.text.startswith(text), report.text


def test_messages_to_oneself(seed: int | None) -> None:
    def body(rank: int) -> list[float]:
        sent, got = [torch.tensor([10.0 * rank + i]) for i in range(3)], [torch.zeros(1) for _ in range(3)]
        work = dist.isend(sent[0], rank)
        dist.irecv(got[0], rank).wait()
        work.wait()
        receive = dist.irecv(got[1], rank, tag=3)  # the other way round
        dist.isend(sent[1], rank, tag=3).wait()
        receive.wait()
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent[2], rank), dist.P2POp(dist.irecv, got[2], rank)]):
            work.wait()
        return [value.item() for value in got]

    assert results(body, 3, seed=seed) == [[10.0 * rank + i for i in range(3)] for rank in range(3)]


def test_pytorch_refuses_a_message_to_oneself_that_would_block(seed: int | None) -> None:
    def body(rank: int) -> list[str | float]:
        with pytest.raises(ValueError) as caught:
            dist.send(torch.ones(1), rank)
        work, got = dist.isend(torch.tensor([rank + 0.5]), rank), torch.zeros(1)
        assert dist.recv(got, rank) == rank  # that one is allowed: the message may be on its way
        work.wait()
        with pytest.raises(ValueError) as from_any:
            work = dist.isend(torch.ones(1), rank)
            dist.recv(got)
        return [got.item(), str(caught.value), str(from_any.value)]

    rest = "rank should not be the same as the rank of the current process."
    want = [f"Invalid destination rank: destination {rest}", f"Invalid source rank: source {rest}"]
    assert results(body, 2, seed=seed) == [[1.0, *want]] * 2


def test_a_rank_that_waits_for_its_own_message_is_stuck(seed: int | None) -> None:
    def receives(rank: int) -> None:
        if rank == 1:
            dist.recv(torch.zeros(1), rank)

    def sends(rank: int) -> None:
        if rank == 1:
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(2), rank)]):
                work.wait()
            dist.irecv(torch.zeros(2), rank).wait()

    for body, call in ((receives, "recv"), (sends, "send")):
        report = rankloom.torch.run(body, 2, seed=seed)
        assert not report.ok and report.text.startswith("Deadlock: no rank can move\n"), report.text
        place = inspect.getsourcelines(body)
        line = place[1] + next(i for i, line in enumerate(place[0]) if "dist.recv" in line or ".wait()" in line)
        assert f"  rank 1 waits in {call} seq 1 for rank 1 [group 0, test_features.py:{line}]\n" in report.text, report.text
        assert "cycle: rank 1 -> rank 1\n" in report.text, report.text


def test_objects(seed: int | None) -> None:
    def body(rank: int) -> Any:
        mine = {"rank": rank, "list": [str(rank)] * (rank + 1)}
        every: list[Any] = [None] * 3
        dist.all_gather_object(every, mine)
        at_one: list[Any] | None = [None] * 3 if rank == 1 else None
        dist.gather_object(mine["rank"], at_one, dst=1)
        shared = [mine, rank] if rank == 2 else [None, None]
        dist.broadcast_object_list(shared, src=2)
        part: list[Any] = [None]
        dist.scatter_object_list(part, ["a", ("b",), {"c"}] if rank == 0 else None, src=0)
        if rank == 0:
            dist.send_object_list([("to", 2)], dst=2)
        received: list[Any] = [None]
        if rank == 2:
            dist.recv_object_list(received, src=0)
        return [len(one["list"]) for one in every], at_one, shared[0]["rank"], part[0], received[0]

    made = results(body, 3, seed=seed)
    assert [one[0] for one in made] == [[1, 2, 3]] * 3
    assert [one[1] for one in made] == [None, [0, 1, 2], None]
    assert [one[2:] for one in made] == [(2, "a", None), (2, ("b",), None), (2, {"c"}, ("to", 2))]


@pytest.mark.parametrize("backend", ["rankloom", "nccl", "gloo"])
def test_a_monitored_barrier_under_any_name(seed: int | None, backend: str) -> None:
    def body(rank: int) -> str:
        dist.monitored_barrier()
        if rank == 2:
            return "left out"
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=2))
        except RuntimeError as error:
            return str(error).split("\n")[0]
        return "passed"

    made = results(body, 3, seed=seed, backend=backend)
    assert made[0] == "Rank 2 failed to pass monitoredBarrier in 2000 ms" and made[2] == "left out"
    assert made[1].startswith("Rank 1 successfully reached monitoredBarrier")


def test_a_group_is_destroyed_once(seed: int | None) -> None:
    def body(rank: int) -> str:
        dist.barrier()
        dist.destroy_process_group()
        try:
            dist.destroy_process_group()
        except (AssertionError, ValueError) as error:
            return type(error).__name__
        return "passed"

    assert set(results(body, 2, seed=seed)) <= {"AssertionError", "ValueError"}


def test_groups_made_by_their_members_alone(seed: int | None) -> None:
    def body(rank: int) -> float:
        ranks = [0, 2] if rank % 2 == 0 else [1, 3]
        group = dist.new_group(ranks, use_local_synchronization=True)
        x = torch.tensor([10.0**rank])
        dist.all_reduce(x, group=group)
        return x.item()

    assert results(body, 4, seed=seed) == [101.0, 1010.0, 101.0, 1010.0]


def test_a_group_that_is_split(seed: int | None) -> None:
    def body(rank: int) -> Any:
        mine = [0, 3] if rank in (0, 3) else [1, 2]
        group: Any = dist.group.WORLD.split_group(mine, group_name=f"part {mine}")  # type: ignore[union-attr]
        x = torch.tensor([10.0**rank])
        group.allreduce([x]).wait()
        return x.item(), group.rank(), group.size()

    assert results(body, 4, seed=seed) == [(1001.0, 0, 2), (110.0, 0, 2), (110.0, 1, 2), (1001.0, 1, 2)]


def part_of_a_part(**options: Any) -> Any:
    """Ranks 1 and 3, which are 0 and 2 of a group of ranks 1 to 3; None on the others."""
    group: Any = dist.new_group([3, 2, 1], timeout=timedelta(seconds=9))  # torch sorts them
    return group.split_group([0, 2], group_name="s", **options) if dist.get_rank() in (1, 3) else None


def test_a_split_of_a_part_has_the_ranks_of_the_part(seed: int | None) -> None:
    def body(rank: int) -> Any:
        group = part_of_a_part()
        if group is None:
            return None
        x = torch.tensor([10.0**rank])
        group.allreduce([x]).wait()
        return x.item(), group.rank(), group._get_backend(torch.device("cpu")).options.global_ranks_in_group

    assert results(body, 4, seed=seed) == [None, (1010.0, 0, [1, 3]), None, (1010.0, 1, [1, 3])]


def test_a_split_group_has_the_timeout_that_it_is_given_or_its_parents() -> None:
    def body(rank: int, **options: Any) -> Any:
        group = part_of_a_part(**options)
        return group._get_backend(torch.device("cpu")).options._timeout.total_seconds() if group is not None else None

    assert results(lambda rank: body(rank, timeout=timedelta(seconds=7)), 4) == [None, 7.0, None, 7.0]
    assert results(body, 4) == [None, 9.0, None, 9.0]


def test_calls_of_a_split_group_end_after_its_timeout() -> None:
    def body(rank: int) -> None:
        group = part_of_a_part(timeout=timedelta(seconds=7))
        if rank == 3:
            dist.distributed_c10d._get_default_store().wait(["never"], timedelta(hours=1))
        if group is not None:
            group.allreduce([torch.tensor([rank])]).wait()

    report = rankloom.torch.run(body, 4, seed=1)
    assert "rank 1, group s, all_reduce seq 1: timed out after 7s waiting for rank 3 [" in report.text, report.text


def test_a_split_by_a_rank_that_the_group_lacks_is_refused(seed: int | None) -> None:
    def body(rank: int) -> None:
        if rank == 0:
            dist.group.WORLD.split_group([0, 5], group_name="s")  # type: ignore[union-attr]

    report = rankloom.torch.run(body, 2, seed=seed)
    text = "rank 0 failed: RuntimeError: split: rank 5 of a group of 2, want 0 <= rank < size"
    assert report.text.startswith(text), report.text


def test_a_mesh_of_four_dimensions(seed: int | None) -> None:
    def body(rank: int) -> Any:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (2, 2, 2, 2), mesh_dim_names=("pp", "dp", "cp", "tp"))
        sums = []
        for name in ("pp", "dp", "cp", "tp"):
            x = torch.tensor([rank])
            dist.all_reduce(x, group=mesh[name].get_group())
            sums.append(x.item() - rank)
        flat = mesh["dp", "cp"]._flatten("dp_cp")
        x = torch.tensor([rank])
        dist.all_reduce(x, group=flat.get_group())
        return sums, mesh.get_coordinate(), x.item()

    for rank, (peers, coordinate, total) in enumerate(results(body, 16, seed=seed)):
        assert peers == [rank ^ 8, rank ^ 4, rank ^ 2, rank ^ 1]
        assert list(coordinate) == [rank >> 3 & 1, rank >> 2 & 1, rank >> 1 & 1, rank & 1]
        assert total == sum((rank & 0b1001) | middle << 1 for middle in range(4))


def test_a_checkpoint(seed: int | None, tmp_path: pathlib.Path) -> None:
    def body(rank: int) -> Any:
        import torch.distributed.checkpoint as checkpoint
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (4,))
        whole = torch.arange(24.0).view(8, 3)
        saved = {"w": distribute_tensor(whole, mesh, [Shard(0)]), "step": 7}
        checkpoint.save(saved, checkpoint_id=str(tmp_path / "saved"))
        loaded = {"w": distribute_tensor(torch.zeros(8, 3), mesh, [Shard(0)]), "step": 0}
        checkpoint.load(loaded, checkpoint_id=str(tmp_path / "saved"))
        return loaded["w"].to_local().tolist(), loaded["step"]

    whole = torch.arange(24.0).view(8, 3)
    assert results(body, 4, seed=seed) == [(whole[2 * rank :][:2].tolist(), 7) for rank in range(4)]


def test_join(seed: int | None) -> None:
    """Ranks with different numbers of inputs; the gradient is the mean over those that still have one, by size."""

    def body(rank: int) -> Any:
        from torch.distributed.algorithms.join import Join

        model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
        steps = []
        with Join([model], divide_by_initial_world_size=False):
            for _ in range(rank + 1):
                model.zero_grad()
                model(torch.tensor([[rank + 1.0]])).sum().backward()
                steps.append(model.module.weight.grad.item())
        return steps

    assert results(body, 3, seed=seed) == [[2.0], [2.0, 2.5], [2.0, 2.5, 3.0]]


def test_join_with_a_hook(seed: int | None) -> None:
    """A rank that has joined has its hook called outside of a backward pass."""

    def body(rank: int) -> Any:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
        model.register_comm_hook(None, allreduce_hook)
        steps = []
        with model.join():
            for _ in range(rank + 1):
                model.zero_grad()
                model(torch.tensor([[rank + 1.0]])).sum().backward()
                steps.append(model.module.weight.grad.item())
        return steps

    # The hook divides by all ranks.
    assert results(body, 2, seed=seed) == [[1.5], [1.5, 1.0]]


def test_fsdp_gathers_the_optimizers_state(seed: int | None) -> None:
    """torch measures that in a set of a class, which several ranks of a process would each add to and remove from."""

    def body(rank: int) -> Any:
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(nn.Linear(4, 8), device_id=torch.device("cpu"))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.full((1, 4), rank + 1.0)).sum().backward()
        optimizer.step()
        state = FullyShardedDataParallel.optim_state_dict(model, optimizer)["state"]
        # A step of Adam keeps a tenth of the gradient: the mean of the inputs.
        return {name: value["exp_avg"].unique().tolist() for name, value in state.items()} if rank == 0 else None

    whole = results(body, 2, seed=seed)[0]
    assert {name: [round(number, 4) for number in numbers] for name, numbers in whole.items()} == {"weight": [0.15], "bias": [0.1]}


def test_context_managers_that_ranks_leave_in_any_order_leave_the_process_as_it_was() -> None:
    before = list(warnings.filters), warnings.showwarning, torch.backends.cuda.flash_sdp_enabled(), torch.get_default_dtype()

    def body(rank: int) -> Any:
        with warnings.catch_warnings(record=True), nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH), \
                torch.autograd.set_detect_anomaly(True):
            torch.set_default_dtype(torch.float64)
            dist.barrier()
            warnings.simplefilter("ignore")
            dist.barrier()

    results(body, 3, seed=None)
    now = list(warnings.filters), warnings.showwarning, torch.backends.cuda.flash_sdp_enabled(), torch.get_default_dtype()
    assert now == before and not torch.is_anomaly_enabled()
    with pytest.warns(UserWarning, match="is it shown"):
        warnings.warn("is it shown", stacklevel=1)


def test_zero_redundancy(seed: int | None) -> None:
    def body(rank: int) -> Any:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        model = DistributedDataParallel(numbered(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))))
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.full((2, 4), rank + step + 1.0)).pow(2).mean().backward()
            optimizer.step()
        owned = sum(len(group["params"]) for group in optimizer.optim.param_groups)
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist(), owned

    def alone() -> list[float]:
        model = numbered(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            (sum(model(torch.full((2, 4), rank + step + 1.0)).pow(2).mean() for rank in range(2)) / 2).backward()  # type: ignore[union-attr]
            optimizer.step()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()

    made = results(body, 2, seed=seed)
    want = alone()
    for values, owned in made:
        assert values == pytest.approx(want, rel=1e-3, abs=1e-4) and 0 < owned < 4
    assert made[0][0] == made[1][0] and made[0][1] + made[1][1] == 4


def test_power_sgd(seed: int | None) -> None:
    def body(rank: int) -> Any:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        model = DistributedDataParallel(nn.Linear(16, 16, bias=False))
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for _ in range(4):
            model.zero_grad()
            model(torch.arange(16.0).view(1, 16) * (rank + 1)).sum().backward()
        return model.module.weight.grad.reshape(-1).tolist(), state.iter

    # The gradient has rank 1, so nothing is lost.
    want = (torch.arange(16.0) * 1.5).repeat(16)
    for values, steps in results(body, 2, seed=seed):
        assert steps >= 2 and torch.allclose(torch.tensor(values), want, rtol=1e-3, atol=1e-3)


def test_detail_mode(seed: int | None) -> None:
    def body(rank: int) -> Any:
        dist.init_process_group("gloo", rank=rank, world_size=2, init_method="tcp://localhost:29555")
        x = torch.tensor([rank + 1.0])
        dist.all_reduce(x)
        try:
            dist.all_reduce(torch.ones(2 + rank))
        except RuntimeError as error:
            return x.item(), str(error).split("\n")[0]
        return x.item(), "passed"

    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        made = results(body, 2, seed=seed, backend=None)
    finally:
        dist.set_debug_level(before)
    assert [value for value, _ in made] == [3.0, 3.0]
    assert all("Detected mismatch between collectives on ranks" in text for _, text in made), made


def test_loss_parallel(seed: int | None) -> None:
    def body(rank: int) -> Any:
        mesh = init_device_mesh("cpu", (2,))
        whole = torch.arange(12.0).reshape(3, 4).sin().requires_grad_()
        target = torch.tensor([3, 0, 2])
        cut = distribute_tensor(whole.detach().clone(), mesh, [Shard(1)]).requires_grad_()
        for _ in range(2):
            with loss_parallel():
                loss = nn.functional.cross_entropy(cut, target)
                loss.backward()
        reference = nn.functional.cross_entropy(whole, target)
        reference.backward()
        return loss.full_tensor().item() - reference.item(), cut.grad.to_local(), whole.grad

    for rank, (difference, cut, whole) in enumerate(results(body, 2, seed=seed)):
        assert abs(difference) < 1e-6
        torch.testing.assert_close(cut, 2 * whole.chunk(2, 1)[rank])


def test_a_module_tracker_is_of_its_rank(seed: int | None) -> None:
    class Part(nn.Module):
        def __init__(self, seen: list[Any], tracker: ModTracker) -> None:
            super().__init__()
            self.seen, self.tracker = seen, tracker

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dist.barrier()
            self.seen.append(sorted(self.tracker.parents))
            dist.barrier()
            return x

    def body(rank: int) -> list[Any]:
        tracker, seen = ModTracker(), list[Any]()
        name = f"Net{rank}"
        net = type(name, (nn.Sequential,), {})(Part(seen, tracker))
        with tracker:
            net(torch.ones(1))
        return seen

    assert results(body, 3, seed=seed) == [[["Global", f"Net{rank}", f"Net{rank}.0"]] for rank in range(3)]
