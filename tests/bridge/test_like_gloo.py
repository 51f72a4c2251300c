"""The questions that programs for PyTorch's own groups ask of a group beside the usual calls, and the answers there."""

import ast
import concurrent.futures
import datetime
import multiprocessing
import os
import pathlib
import re
import time
import warnings
from datetime import timedelta
from typing import Any

import pytest
import rankloom.torch
import torch
import torch.distributed as dist
from cases import run_case
from torch import nn
from torch.distributed import FileStore, HashStore, TCPStore  # PyTorch's own, bound before there are ranks

GEARS = [{"parallel": True}, {}, {"seed": 1}, {"seed": 2}]
gears = pytest.mark.parametrize("gear", GEARS, ids=["parallel", "fifo", "seed 1", "seed 2"])


def results(fn: Any, ranks: int, **options: Any) -> list[Any]:
    report = rankloom.torch.run(fn, ranks, **options)
    report.raise_if_failed()
    return report.results


def text_of(fn: Any, ranks: int, **options: Any) -> str:
    report = rankloom.torch.run(fn, ranks, **options)
    assert not report.ok
    return report.text


@gears
def test_several_tensors_of_a_rank_are_reduced_too(gear: dict[str, Any]) -> None:
    ops = dist.ReduceOp

    def body(rank: int) -> list[Any]:
        made = []
        for op in (ops.SUM, ops.PRODUCT, ops.MIN, ops.MAX):
            tensors = [torch.tensor([1 + rank]), torch.tensor([10 + rank]), torch.tensor([[5, 7], [9, 3]]).t()[1:, :1].view(1)]
            options = dist.AllreduceOptions()
            options.reduceOp = op
            dist.group.WORLD.allreduce(tensors, options).wait()
            made.append([t.item() for t in tensors])
        for op in (ops.BAND, ops.BOR, ops.BXOR):
            masks = [torch.tensor([(6, 11, 3)[rank]]), torch.tensor([(12, 13, 21)[rank]])]
            options = dist.AllreduceOptions()
            options.reduceOp = op
            dist.group.WORLD.allreduce(masks, options).wait()
            made.append([m.item() for m in masks])
        return made

    # 1 2 3, 10 11 12 and 7 three times
    product = 1 * 2 * 3 * 10 * 11 * 12 * 7**3
    assert results(body, 3, **gear) == [[[60] * 3, [product] * 3, [1] * 3, [12] * 3, [0, 0], [31, 31], [26, 26]]] * 3


@gears
def test_a_broadcast_of_several_tensors_sends_the_root_tensor(gear: dict[str, Any]) -> None:
    def body(rank: int) -> list[float]:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 1, 2
        tensors = [torch.tensor([10.0 * rank + i]) for i in range(3)]
        dist.group.WORLD.broadcast(tensors, options).wait()
        return [t.item() for t in tensors]

    assert results(body, 3, **gear) == [[12.0] * 3] * 3


@gears
def test_outputs_that_share_memory_are_written_in_order(gear: dict[str, Any]) -> None:
    def body(rank: int) -> list[Any]:
        x = torch.zeros(2)
        dist.all_gather([x] * 3, torch.tensor([rank + 1.0, -rank]))
        t = torch.tensor([1.0 + rank])
        dist.group.WORLD.allreduce_coalesced([t, t]).wait()
        wide = torch.zeros(4)  # rank 2's part over the second half of rank 1's
        dist.all_gather([wide[:2], wide[1:3], wide[2:]], torch.tensor([10.0 * rank, 10.0 * rank + 1]))
        return [x.tolist(), t.item(), wide.tolist()]

    assert results(body, 3, **gear) == [[[3.0, -2.0], 6.0, [0.0, 10.0, 20.0, 21.0]]] * 3

    def of_views(rank: int) -> list[Any]:
        square, row, other = torch.zeros(2, 2), torch.zeros(3), torch.zeros(3)
        part = torch.tensor([[10.0 * rank, 10.0 * rank + 1], [10.0 * rank + 2, 10.0 * rank + 3]])
        dist.all_gather([square.t(), square], part)
        dist.all_gather([row[::2], row[:2]], part[0])
        dist.all_gather([other[:2], other[::2]], part[0])
        both = torch.zeros(2, 2)
        world: Any = dist.group.WORLD
        world.allgather_coalesced([[both.t()], [both]], [part]).wait()
        return [square.tolist(), row.tolist(), other.tolist(), both.tolist()]

    last = [[10.0, 11.0], [12.0, 13.0]]
    assert results(of_views, 2, **gear) == [[last, [10.0, 11.0, 1.0], [10.0, 1.0, 11.0], last]] * 2


def test_a_group_asked_for_as_gloo_takes_no_other_shapes() -> None:
    two, column = torch.ones(2), torch.zeros(2, 1)
    calls: list[tuple[Any, str]] = [
        (lambda: dist.all_gather([torch.zeros(2), column], two), "all_gather: invalid tensor size at index 1: have [2, 1], want [2]: "),
        (lambda: dist.gather(two, [column, column], dst=0), "gather: invalid tensor size at index 0: have [2, 1], want [2]: "),
        (lambda: dist.scatter(column, [two, two], src=0), "scatter: invalid tensor size at index 0: have [2], want [2, 1]: "),
        (lambda: dist.reduce_scatter(column, [two, two]), "reduce_scatter: invalid tensor size at index 0: have [2], want [2, 1]: "),
        (lambda: dist.all_gather_into_tensor(torch.zeros(2, 2), two), "all_gather_into_tensor: invalid tensor size: have [2, 2] of all "),
        (lambda: dist.all_gather_into_tensor(torch.zeros(2), torch.tensor(1.0)), "all_gather_into_tensor: invalid tensor size: have [2] "),
        (lambda: dist.reduce_scatter_tensor(two, torch.ones(2, 2)), "reduce_scatter_tensor: invalid tensor size: have [2, 2] of all "),
        (lambda: coalesced(lambda: dist.all_gather_into_tensor(torch.zeros(2, 2), two)), "all_gather_into_tensor_coalesced: invalid "),
        (lambda: coalesced(lambda: dist.reduce_scatter_tensor(two, torch.ones(2, 2))), "reduce_scatter_tensor_coalesced: invalid "),
        (lambda: world().allgather_coalesced([[two], [column]], [torch.ones(2)]), "all_gather_coalesced: invalid tensor size at index 0: "),
    ]

    def world() -> Any:
        return dist.group.WORLD

    def coalesced(call: Any) -> None:
        with dist.distributed_c10d._coalescing_manager():
            call()

    def on_rank_0(call: Any) -> Any:
        return lambda rank: call() if rank == 0 else None

    for call, told in calls:
        assert f"rank 0, {told}" in text_of(on_rank_0(call), 2, backend="gloo"), told

    def others(rank: int) -> list[Any]:
        all_of = torch.zeros(2, 2)
        dist.all_gather_into_tensor(all_of, torch.tensor([rank, 10.0 + rank]))
        whole = torch.zeros(4, 1)
        dist.all_gather([whole[:2], whole[2:]], torch.tensor([rank, 20.0 + rank]))
        return [all_of.tolist(), whole.tolist()]

    want = [[[0.0, 10.0], [1.0, 11.0]], [[0.0], [20.0], [1.0], [21.0]]]
    assert results(others, 2, backend="nccl") == results(others, 2) == [want] * 2

    def well(rank: int) -> Any:
        all_of = torch.zeros(4, 1)
        dist.all_gather_into_tensor(all_of, torch.full((2, 1), float(rank)))
        return all_of.flatten().tolist()

    assert results(well, 2, backend="gloo") == [[0.0, 0.0, 1.0, 1.0]] * 2


@gears
@pytest.mark.parametrize("backend", ["rankloom", "gloo"])
def test_several_sparse_tensors(backend: str, gear: dict[str, Any]) -> None:
    def body(rank: int) -> list[Any]:
        mine = torch.sparse_coo_tensor([[rank, 2]] if rank == 0 else [[rank]], [1.0, 10.0][: 2 - rank], (4,))
        other = torch.sparse_coo_tensor([[3]], [100.0 + rank], (4,))
        dist.group.WORLD.allreduce([mine, other]).wait()
        return [mine.to_dense().tolist(), other.to_dense().tolist()]

    assert results(body, 2, backend=backend, **gear) == [[[1.0, 1.0, 10.0, 201.0]] * 2] * 2


REFUSED = [
    (lambda pg, o: pg.broadcast([torch.ones(1)], o), dist.BroadcastOptions, {"rootRank": -1},
     "rank 0, broadcast: invalid root rank: -1, want 0 <= root rank < 2"),
    (lambda pg, o: pg.broadcast([torch.ones(1)], o), dist.BroadcastOptions, {"rootTensor": 1},
     "rank 0, broadcast: invalid root tensor: 1, want 0 <= root tensor < 1"),
    (lambda pg, o: pg.reduce([torch.ones(1)], o), dist.ReduceOptions, {"rootRank": 2},
     "rank 0, reduce: invalid root rank: 2, want 0 <= root rank < 2"),
    (lambda pg, o: pg.gather([], [torch.ones(1)], o), dist.GatherOptions, {"rootRank": 3},
     "rank 0, gather: invalid root rank: 3, want 0 <= root rank < 2"),
    (lambda pg, o: pg.scatter([torch.ones(1)], [], o), dist.ScatterOptions, {"rootRank": -2},
     "rank 0, scatter: invalid root rank: -2, want 0 <= root rank < 2"),
    (lambda pg, o: pg.allreduce([torch.ones(1), torch.ones(2)], o), dist.AllreduceOptions, {},
     "all_reduce: invalid tensor size at index 1: have [2], want [1] as at index 0"),
    (lambda pg, o: pg.allreduce([torch.ones(1), torch.ones(1, dtype=torch.int)], o), dist.AllreduceOptions, {},
     "all_reduce: invalid tensor type at index 1: have Int, want Float as at index 0"),
    (lambda pg, o: pg.allreduce([torch.ones(1)] * 2, o), dist.AllreduceOptions, {"reduceOp": dist.ReduceOp.AVG},
     "all_reduce: several tensors of a rank are reduced, too, with SUM, PRODUCT, MIN, MAX, BAND, BOR or BXOR: "
     "want one tensor a call for others"),
    (lambda pg, o: pg.allreduce([torch.ones(1).to_sparse(), torch.ones(1)], o), dist.AllreduceOptions, {},
     "all_reduce: invalid tensor layout at index 1: have Strided, want Sparse as at index 0"),
    (lambda pg, o: pg.send([torch.ones(1)], 2, 0), dist.AllreduceOptions, {},
     "rank 0, group 0, send: destination is 2, want 0 <= destination < size = 2"),
]  # fmt: skip


@gears
@pytest.mark.parametrize("call, options, fields, text", REFUSED, ids=[text[:40] for *_, text in REFUSED])
def test_refused(gear: dict[str, Any], call: Any, options: Any, fields: dict[str, Any], text: str) -> None:
    def body(rank: int) -> None:
        if rank > 0:
            return
        asked = options()
        for name, value in fields.items():
            setattr(asked, name, value)
        call(dist.group.WORLD, asked)

    assert text in text_of(body, 2, **gear)


@gears
def test_a_future_of_gloos_all_gather_holds_the_list(gear: dict[str, Any]) -> None:
    def body(rank: int) -> list[Any]:
        outputs = [[torch.zeros(2), torch.zeros(2)]]
        future = dist.group.WORLD.allgather(outputs, [torch.full((2,), rank + 1.0)]).get_future()
        return [value.tolist() for value in future.wait()]

    assert results(body, 2, backend="gloo", **gear) == [[[1.0, 1.0], [2.0, 2.0]]] * 2
    assert results(body, 2, backend="nccl", **gear) == [[[[1.0, 1.0], [2.0, 2.0]]]] * 2


@gears
def test_a_monitored_barrier_names_all_who_are_missing(gear: dict[str, Any]) -> None:
    def body(rank: int) -> str:
        if rank in (1, 3):
            return ""
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=3), wait_all_ranks=rank >= 0)
        except RuntimeError as error:
            return str(error).split("\n")[0]
        return "passed"

    found = results(body, 4, backend="gloo", **gear)
    assert found[0] == "Ranks 1, 3 failed to pass monitoredBarrier in 3000 ms"
    assert found[2].startswith("Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv")

    def one(rank: int) -> str:
        if rank == 1:
            return ""
        try:
            dist.monitored_barrier(timeout=timedelta(milliseconds=300), wait_all_ranks=True)
        except RuntimeError as error:
            return str(error).split("\n")[0]
        return "passed"

    assert results(one, 2, backend="gloo", **gear)[0] == "Ranks 1 failed to pass monitoredBarrier in 300 ms"


@gears
def test_in_detail_mode_a_missing_rank_is_told_at_once(gear: dict[str, Any]) -> None:
    def body(rank: int) -> None:
        dist.init_process_group("gloo", rank=rank, world_size=2, init_method="tcp://127.0.0.1:29888")
        if rank == 0:
            dist.all_reduce(torch.ones(1))

    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        text = text_of(body, 2, backend=None, **gear)
    finally:
        dist.set_debug_level(before)
    assert "rank 0 waits in monitored_barrier seq 1 for rank 1 (returned)" in text
    assert "no rank can move" in text


@gears
def test_ddp_under_a_group_named_gloo_leaves_foreign_memory_alone(gear: dict[str, Any]) -> None:
    def body(rank: int) -> Any:
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
        model(torch.full((1, 4), rank + 1.0)).sum().backward()
        weight = model.module.weight.grad
        assert weight is not None
        data = model._get_ddp_logging_data()
        return dist.get_backend(), dist.group.WORLD._get_backend(torch.device("cpu")).name(), weight[0, 0].item(), data.get("gloo_num_threads")

    for level in (dist.DebugLevel.OFF, dist.DebugLevel.DETAIL):
        dist.set_debug_level(level)
        try:
            assert results(body, 2, backend="gloo", **gear) == [("gloo", "gloo", 1.5, None)] * 2
        finally:
            dist.set_debug_level(dist.DebugLevel.OFF)


def test_a_backend_makes_devices_as_gloos_does() -> None:
    def body(rank: int) -> str:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        return type(backend.create_device(interface="lo")).__name__

    assert results(body, 2, backend="gloo") == ["Device", "Device"]


def test_the_ddp_of_replicate_is_the_ranks_own() -> None:
    from torch.distributed._composable.replicate import replicate
    from torch.nn.parallel import DistributedDataParallel

    class Meets(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dist.barrier()
            active[dist.get_rank()] = DistributedDataParallel._get_active_ddp_module()
            return super().forward(x)

    active: dict[int, Any] = {}

    def body() -> Any:
        replicate(Meets(2, 2))(torch.ones(1, 2))
        return DistributedDataParallel._get_active_ddp_module()

    assert results(body, 3, seed=1) == [None] * 3
    assert len({id(ddp) for ddp in active.values()}) == 3
    assert all(isinstance(ddp, DistributedDataParallel) for ddp in active.values())


@gears
def test_the_ddp_whose_forward_runs_is_the_ranks_own(gear: dict[str, Any]) -> None:
    from torch.nn.parallel import DistributedDataParallel

    class Meets(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dist.barrier()  # all forwards are on their way
            active.append(DistributedDataParallel._get_active_ddp_module())
            # Ranks leave in their order, which is that in which they came, or not.
            for rank in range(3):
                if rank == dist.get_rank():
                    return super().forward(x)
                dist.barrier()
            raise AssertionError("no rank is left")

    active: list[Any] = []

    def body(rank: int) -> Any:
        ddp = DistributedDataParallel(Meets(2, 2))
        ddp(torch.ones(1, 2))
        for _ in range(2 - rank):
            dist.barrier()
        return ddp, DistributedDataParallel._get_active_ddp_module()

    found = results(body, 3, **gear)
    assert {id(ddp) for ddp, _ in found} == {id(ddp) for ddp in active}
    assert [after for _, after in found] == [None] * 3
    assert DistributedDataParallel._get_active_ddp_module() is None


@gears
def test_hooks_on_all_modules_are_the_ranks_that_set_them(gear: dict[str, Any]) -> None:
    from torch.distributed.tensor.debug import CommDebugMode

    def body(rank: int) -> Any:
        seen: list[Any] = []
        handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append((rank, type(module).__name__)))
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        with CommDebugMode() as counts:
            y = model(torch.ones(1, 4))
            dist.barrier()
            dist.all_reduce(y.detach())
            y.sum().backward()
        handle.remove()
        model(torch.ones(1, 4))
        return seen, counts.get_total_counts()

    for rank, (seen, calls) in enumerate(results(body, 3, **gear)):
        assert seen == [(rank, "Linear"), (rank, "Linear"), (rank, "Sequential")]
        assert calls == 1
    assert not nn.modules.module._global_forward_hooks


@gears
def test_one_failure_of_a_threaded_test_case_is_told_once(gear: dict[str, Any]) -> None:
    from torch.testing._internal import common_distributed

    class Test(common_distributed.MultiThreadedTestCase):
        world_size = 4  # type: ignore[assignment]

        def setUp(self) -> None:
            super().setUp()
            self._spawn_threads()

        def test_it(self) -> None:
            if self.rank == 2:
                raise KeyError("boom")
            dist.barrier()

    rankloom.torch.install()
    with pytest.MonkeyPatch.context() as patch:
        if "seed" in gear:
            patch.setenv("RANKLOOM_SEED", str(gear["seed"]))
        elif "parallel" in gear:
            patch.setenv("RANKLOOM_SCHEDULE", "free")
        result = run_case(Test)
    assert len(result.errors) == 1
    text = result.errors[0][1]
    assert re.findall(r"Thread \d exited with exception", text) == ["Thread 2 exited with exception"]
    assert "KeyError: 'boom" in text and "ranks 0-1, 3 stopped for it" in text


@gears
def test_named_stores_are_as_real_ones(gear: dict[str, Any]) -> None:
    def body(rank: int) -> Any:
        if rank > 0:
            store = dist.TCPStore("localhost", 29500, 2, False)
            store.wait(["server"])
            return store.get("server").decode(), store.num_keys()
        first = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        second = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        first.set("k", "v")
        assert first.port != second.port and first.host == "localhost" and first.num_keys() == 1
        assert not second.check(["k"]) and second.num_keys() == 0
        client = dist.TCPStore("localhost", first.port, is_master=False, wait_for_workers=False)
        assert client.get("k") == b"v" and client.port == first.port
        for store in (first, client, first.clone()):
            assert isinstance(store, dist.TCPStore) and not isinstance(store, (dist.HashStore, dist.FileStore))
        assert isinstance(dist.HashStore(), dist.HashStore) and not isinstance(dist.HashStore(), dist.TCPStore)
        file = dist.FileStore("/nowhere/there", 1)
        assert isinstance(file, dist.FileStore) and file.path == "/nowhere/there"  # type: ignore[attr-defined]
        with pytest.raises(dist.DistNetworkError, match=rf"port: {first.port}, .* name: EADDRINUSE"):
            dist.TCPStore("localhost", first.port, is_master=True, wait_for_workers=False)
        dist.TCPStore("localhost", first.port, is_master=True, wait_for_workers=False, multi_tenant=True)
        port = first.port
        del first, client, store
        again = dist.TCPStore("localhost", port, is_master=True, wait_for_workers=False)
        assert again.num_keys() == 0
        with pytest.raises(ValueError, match="TCPStore: port is 0, want the port where the master listens"):
            dist.TCPStore("localhost", 0, is_master=False)
        server = dist.TCPStore("localhost", 29500, 2, True)
        server.set("server", "up")
        return "up", server.num_keys()

    for _ in range(2):
        assert results(body, 2, backend=None, **gear) == [("up", 2), ("up", 2)]


@gears
def test_a_future_is_there_before_the_others_come(gear: dict[str, Any]) -> None:
    def body(rank: int) -> tuple[float, float]:
        x, y = torch.full((2,), 1.0 + rank), torch.full((1,), 5.0 + rank)
        if rank == 0:
            future = dist.all_reduce(x, async_op=True).get_future()
            dist.send(y, 1)
            assert future.wait()[0] is not None
        else:
            dist.recv(y, 0)
            dist.all_reduce(x)
        return x[0].item(), y.item()

    assert results(body, 2, backend="gloo", **gear) == [(3, 5), (3, 5)]

    def crosswise(rank: int) -> list[list[float]]:
        groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        tensors = [torch.full((1,), 1.0 + rank), torch.full((1,), 10.0 + rank)]
        order = (0, 1) if rank == 0 else (1, 0)
        futures = [dist.all_reduce(tensors[i], group=groups[i], async_op=True).get_future().then(lambda f: f.value()[0] + 0) for i in order]
        return [f.wait().tolist() for f in futures]

    assert results(crosswise, 2, backend="gloo", **gear) == [[[3], [21]], [[21], [3]]]


@gears
def test_a_work_is_done_once_its_futures_are(gear: dict[str, Any]) -> None:
    def body(rank: int) -> tuple[float, list[int]]:
        x = torch.full((1,), 1.0 + rank)
        seen: list[int] = []
        work = dist.all_reduce(x, async_op=True)
        future = work.get_future()
        future.then(lambda f: seen.append(int(f.value()[0].item())))
        work.wait()
        first = future.value()[0].item()
        y = torch.full((1,), 10.0 + rank)
        work = dist.all_reduce(y, async_op=True)
        future = work.get_future()
        future.then(lambda f: seen.append(int(f.value()[0].item())))
        while not work.is_completed():
            pass
        assert future.done() and future.value()[0].item() == 33
        return first, seen

    assert results(body, 3, backend="gloo", **gear) == [(6, [6, 33])] * 3


@gears
def test_a_callback_waits_for_a_later_future(gear: dict[str, Any]) -> None:
    def body(rank: int) -> float:
        works = [dist.all_reduce(torch.full((n,), 1.0 + rank), async_op=True) for n in (1, 2)]
        first, second = [work.get_future() for work in works]
        return float(first.then(lambda f: f.value()[0].item() + 10 * second.wait()[0].sum().item()).wait())

    assert results(body, 2, backend="gloo", **gear) == [63, 63]


def test_futures_of_all_gather_into_tensor_hold_what_a_real_ones_do() -> None:
    def parts(rank: int) -> list[list[float]]:
        out, x = torch.zeros(4), torch.tensor([1.0 + rank, 10.0 + rank])
        return [part.tolist() for part in dist.all_gather_into_tensor(out, x, async_op=True).get_future().wait()]

    assert results(parts, 2, backend="gloo") == [[[1, 10], [2, 11]]] * 2
    assert results(parts, 2, backend="nccl") == [[[1, 10, 2, 11]]] * 2


@pytest.mark.parametrize("backend", ["gloo", None, "cpu:gloo,cuda:nccl", "cpu:gloo", "nccl", "ucc"])
def test_names_of_groups_are_those_of_real_ones(backend: str | None) -> None:
    def body(rank: int) -> list[Any]:
        dist.init_process_group(backend)
        half = dist.new_group([0])
        world: Any = dist.group.WORLD
        told = [world.name(), dist.get_backend(), dist.get_backend_config()]
        if rank == 0:
            assert isinstance(half, dist.ProcessGroup) and half.name() == told[0] and dist.get_backend_config(half) == told[2]
        dist.all_reduce(torch.ones(2))
        return [*told, world._get_sequence_number_for_group() > 0]

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        told = results(body, 2, backend=None)
    assert told[0] == told[1] and not [w for w in warned if "No backend of type" in str(w.message)]
    cuda = torch.cuda.is_available()
    config = str(dist.distributed_c10d.BackendConfig(dist.Backend(backend or "undefined")))
    name = "nccl" if backend in ("nccl", "cpu:gloo,cuda:nccl") or (backend is None and cuda) else backend if backend == "ucc" else "gloo"
    assert told[0] == [name, backend or "undefined", config, True]
    if backend == "gloo":
        assert config == "cpu:gloo,cuda:gloo"


def test_a_group_has_its_name_everywhere() -> None:
    def body(rank: int) -> list[str]:
        pg: Any = dist.group.WORLD
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            told = [pool.submit(pg.name).result()]
        dist.destroy_process_group()
        return [*told, pg.name()]

    assert results(body, 2, backend="gloo") == [["gloo", "gloo"]] * 2


@gears
def test_a_timeout_that_is_set_later_counts(gear: dict[str, Any]) -> None:
    def body(rank: int) -> None:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.25))
        if rank == 0:
            dist.barrier()
        else:
            dist.TCPStore("localhost", 29533, 1, True).wait(["never"], timedelta(seconds=20))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = text_of(body, 2, backend="gloo", timeout=60, **gear)
    assert "barrier seq 1: timed out after 250ms" in told, told

    def asked(rank: int) -> list[timedelta]:
        group: Any = dist.new_group([0, 1])
        before = group._get_backend(torch.device("cpu")).options._timeout
        with pytest.raises(RuntimeError, match="timeout"):
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=-7), group)
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=7), group)
        return [before, group._get_backend(torch.device("cpu")).options._timeout]

    assert [told[1] for told in results(asked, 2, backend="gloo", **gear)] == [timedelta(seconds=7)] * 2


@gears
def test_a_client_without_a_server_fails_as_a_real_one(gear: dict[str, Any]) -> None:
    def body(rank: int) -> str:
        with pytest.raises(dist.DistNetworkError) as caught:
            dist.TCPStore("localhost", 29577, 2, False, timeout=timedelta(seconds=0.25))
        return str(caught.value)

    for text in results(body, 2, backend=None, **gear):
        assert "timed out after 250ms" in text and "the master of the TCPStore at port 29577" in text

    def told(rank: int) -> None:
        dist.TCPStore("localhost", 29577, 2, False, timeout=timedelta(seconds=0.25))

    assert re.search(r"rank [01] failed: Timeout: .*port 29577", text_of(told, 2, backend=None, **gear))


def sums(rank: int, ranks: list[int]) -> list[float]:
    """Of the default group, of the group of two of its ranks if the caller is one, and what the neighbour has sent."""
    x = torch.tensor([10.0**rank])
    dist.all_reduce(x)
    last = dist.new_group([len(ranks) - 2, len(ranks) - 1])
    y = torch.tensor([10.0**rank])
    if dist.get_rank() >= len(ranks) - 2:
        dist.all_reduce(y, group=last)
    z, (me, n) = torch.zeros(1), (dist.get_rank(), dist.get_world_size())
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.tensor([10.0**rank]), (me + 1) % n), dist.P2POp(dist.irecv, z, (me - 1) % n)]):
        work.wait()
    return [x.item(), y.item(), z.item()]


@gears
def test_a_job_goes_on_with_some_of_its_ranks(gear: dict[str, Any]) -> None:
    def body(rank: int) -> list[float]:
        dist.init_process_group("gloo", rank=rank, world_size=4)
        told = sums(rank, [0, 1, 2, 3])
        dist.destroy_process_group()
        os.environ["MASTER_PORT"] = "29501"
        if rank != 1:  # in an order of their own
            ranks = [3, 0, 2]
            dist.init_process_group("gloo", rank=ranks.index(rank), world_size=3)
            assert dist.get_rank() == ranks.index(rank) and dist.get_world_size() == 3
            told += sums(rank, ranks)
            dist.destroy_process_group()
            os.environ["MASTER_PORT"] = "29502"
        else:
            os.environ["MASTER_PORT"] = "29502"
        dist.init_process_group("gloo", rank=rank, world_size=4)
        told += sums(rank, [0, 1, 2, 3])
        dist.destroy_process_group()
        return told

    whole = [[1111, 1, 1000], [1111, 10, 1], [1111, 1100, 10], [1111, 1100, 100]]
    some = {3: [1101, 1000, 100], 0: [1101, 101, 1000], 2: [1101, 101, 1]}
    assert results(body, 4, backend=None, **gear) == [whole[rank] + some.get(rank, []) + whole[rank] for rank in range(4)]


@gears
def test_a_port_is_free_once_its_server_has_gone(gear: dict[str, Any]) -> None:
    def spare(rank: int) -> list[float]:
        dist.init_process_group("gloo", rank=rank, world_size=4)
        ready = dist.TCPStore("localhost", 29700, 4, rank == 0)
        told = sums(rank, [0, 1, 2, 3])
        dist.destroy_process_group()
        if rank > 0:
            ready.wait(["server has gone"])
        else:
            ready.set("server has gone", "")
        for ranks in ([0, 1, 2], [0, 1, 3]):
            if rank in ranks:
                dist.init_process_group("gloo", rank=ranks.index(rank), world_size=3)
                told += sums(rank, ranks)
                dist.destroy_process_group()
            if ready.add(f"left {ranks}", 1) == 4:
                ready.set(f"all left {ranks}", "")
            ready.wait([f"all left {ranks}"])
        return told

    whole = [[1111, 1, 1000], [1111, 10, 1], [1111, 1100, 10], [1111, 1100, 100]]
    first = {0: [111, 1, 100], 1: [111, 110, 1], 2: [111, 110, 10]}
    second = {0: [1011, 1, 1000], 1: [1011, 1010, 1], 3: [1011, 1010, 10]}
    expected = [whole[rank] + first.get(rank, []) + second.get(rank, []) for rank in range(4)]
    assert results(spare, 4, backend=None, **gear) == expected

    def one_store(rank: int) -> list[float]:
        told: list[float] = []
        for i, ranks in enumerate(([0, 1], [1, 2], [2, 0])):
            if i > 0:
                store.wait([f"{i - 1} has ended"])
            if rank in ranks:
                dist.init_process_group("gloo", rank=ranks.index(rank), world_size=2, store=store)
                told += sums(rank, ranks)
                dist.destroy_process_group()
                if store.add(f"ended {i}", 1) == 2:
                    store.set(f"{i} has ended", "")
        return told

    store = rankloom.torch.HashStore()
    assert results(one_store, 3, backend=None, **gear)[0] == [11, 11, 10, 101, 101, 100]


@gears
def test_two_jobs_in_one(gear: dict[str, Any]) -> None:
    def body(rank: int) -> list[float]:
        os.environ["MASTER_PORT"] = f"{29501 + rank % 2}"
        dist.init_process_group("gloo", rank=rank // 2, world_size=2)
        return sums(rank, [rank % 2, rank % 2 + 2])

    assert results(body, 4, backend=None, **gear) == [[101, 101, 100], [1010, 1010, 1000], [101, 101, 1], [1010, 1010, 10]]

    def alone(rank: int) -> list[float]:
        os.environ["MASTER_PORT"] = f"{29501 + rank}"
        dist.init_process_group("gloo", rank=0, world_size=1)
        x = torch.tensor([10.0**rank])
        dist.all_reduce(x)
        return [x.item()]

    assert results(alone, 3, backend=None, **gear) == [[1], [10], [100]]


@gears
def test_a_rank_may_make_its_default_group_again_at_one_port(gear: dict[str, Any]) -> None:
    """Whichever rank comes first again: the one that listens closes its server at some time after the others have gone on."""

    def body(rank: int) -> list[float]:
        sums = []
        for turn in range(4):
            dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29535", rank=rank, world_size=2)
            x = torch.tensor([turn + 10.0**rank])
            dist.all_reduce(x)
            dist.destroy_process_group()
            sums.append(x.item())
        return sums

    assert results(body, 2, backend=None, **gear) == [[11, 13, 15, 17]] * 2


@gears
def test_a_rank_that_no_server_answered_meets_it_at_the_next_try(gear: dict[str, Any], tmp_path: pathlib.Path) -> None:
    def body(rank: int) -> float:
        told = dist.FileStore(f"{tmp_path}/told", 2)
        meet: dict[str, Any] = {"init_method": "tcp://127.0.0.1:29536", "rank": rank, "world_size": 2}
        if rank == 1:
            with pytest.raises(dist.DistNetworkError, match=r"Timeout: .*the master of the TCPStore at port 29536"):
                dist.init_process_group("gloo", timeout=datetime.timedelta(milliseconds=50), **meet)
            told.set("failed", "1")
        told.wait(["failed"])
        dist.init_process_group("gloo", **meet)
        x = torch.tensor([10.0**rank])
        dist.all_reduce(x)
        dist.destroy_process_group()
        return x.item()

    assert results(body, 2, backend=None, **gear) == [11, 11]


@pytest.mark.parametrize("seed", range(30))
def test_a_rank_that_no_server_answered_meets_it_whatever_comes_first(seed: int) -> None:
    def body(rank: int) -> float:
        meet: dict[str, Any] = {"init_method": "tcp://127.0.0.1:29537", "rank": rank, "world_size": 2}
        if rank == 1:
            try:
                dist.init_process_group("gloo", timeout=timedelta(milliseconds=50), **meet)
            except dist.DistNetworkError:
                dist.init_process_group("gloo", **meet)
        else:
            dist.init_process_group("gloo", **meet)
        x = torch.tensor([10.0**rank])
        dist.all_reduce(x)
        dist.destroy_process_group()
        return x.item()

    assert results(body, 2, backend=None, seed=seed) == [11, 11]


def test_a_rank_comes_again_to_a_server_that_has_come_meanwhile() -> None:
    def body(rank: int) -> float:
        meet: dict[str, Any] = {"init_method": "tcp://127.0.0.1:29538", "rank": rank, "world_size": 2}
        if rank == 1:
            with pytest.raises(dist.DistNetworkError, match="Timeout: "):
                dist.init_process_group("gloo", timeout=timedelta(milliseconds=50), **meet)
        time.sleep(2 if rank == 1 else 1)
        dist.init_process_group("gloo", **meet)
        x = torch.tensor([10.0**rank])
        dist.all_reduce(x)
        dist.destroy_process_group()
        return x.item()

    assert results(body, 2, backend=None, parallel=True) == [11, 11]


@pytest.mark.parametrize("waits", [0, 1])
def test_a_rank_that_waited_too_long_at_a_file_comes_again(waits: int, tmp_path: pathlib.Path) -> None:
    """Twice, since a file may serve one group after the other. While the other one stands in its own code, a wait has its timeout."""

    def body(rank: int) -> list[float]:
        meet: dict[str, Any] = {"init_method": f"file://{tmp_path}/meet", "rank": rank, "world_size": 2}
        sums = []
        for _ in range(2):
            if rank == waits:
                with pytest.raises(dist.DistStoreError, match="Timeout: "):
                    dist.init_process_group("gloo", timeout=timedelta(milliseconds=100), **meet)
            else:
                time.sleep(1)
            dist.init_process_group("gloo", **meet)
            x = torch.tensor([10.0**rank])
            dist.all_reduce(x)
            dist.destroy_process_group()
            sums.append(x.item())
        return sums

    assert results(body, 2, backend=None, parallel=True) == [[11, 11], [11, 11]]


@gears
def test_groups_of_several_sizes_meet_in_one_file(gear: dict[str, Any], tmp_path: pathlib.Path) -> None:
    """One after the other, and whoever comes first: a rank that is in the second only may be there before the first."""

    def body(rank: int) -> list[float]:
        sums = []
        for size in (2, 3, 2):
            if rank < size:
                dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=rank, world_size=size)
                x = torch.tensor([10.0**rank])
                dist.all_reduce(x)
                dist.destroy_process_group()
                sums.append(x.item())
        return sums

    assert results(body, 3, backend=None, **gear) == [[11, 111, 11], [11, 111, 11], [111]]


@gears
def test_ranks_meet_in_one_file(gear: dict[str, Any], tmp_path: pathlib.Path) -> None:
    def body(rank: int, files: int) -> float:
        folder = tmp_path / str(rank % files)
        folder.mkdir(exist_ok=True)
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
        x = torch.tensor([10.0**rank])
        dist.all_reduce(x)
        dist.destroy_process_group()
        return x.item()

    assert results(lambda rank: body(rank, 1), 2, backend=None, **gear) == [11, 11]
    report = rankloom.torch.run(lambda rank: body(rank, 2), 2, backend=None, **gear)
    assert report.text.startswith("Deadlock: no rank can move\n"), report.text
    for rank in range(2):
        waits = rf'rank {rank} waits in store wait key "default_pg/0//cpu//rankloom/2 ranks in \.\.\.\S*/{rank}/meet"'
        assert re.search(waits, report.text), report.text


@gears
def test_a_file_is_one_by_all_of_its_paths(gear: dict[str, Any], tmp_path: pathlib.Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")

    def body(rank: int) -> str:
        store = dist.FileStore(str(tmp_path / ("link" if rank == 0 else "folder") / "met"), 2)
        store.set(f"rank {rank}", f"from {rank}")
        return store.get(f"rank {1 - rank}").decode()

    assert results(body, 2, backend=None, **gear) == ["from 1", "from 0"]


@gears
def test_messages_of_a_gloo_group_are_contiguous(gear: dict[str, Any]) -> None:
    def body(rank: int) -> str:
        columns = torch.ones(2, 4)[:, ::2]
        group: Any = dist.distributed_c10d._get_default_group()
        calls = [lambda: dist.send(columns, 1 - rank), lambda: dist.recv(columns, 1 - rank), lambda: group.recv_anysource([columns], 0)]
        told = []
        for call in calls:
            with pytest.raises(RuntimeError) as caught:
                call()
            told.append(str(caught.value).split("\n")[0])
        return "; ".join(told)

    end = "tensor has to be contiguous: have sizes [2, 2] and strides [4, 2]: gloo copies none aside"
    ops = ("send: input", "recv: output", "recv_any: output")
    want = ["; ".join(f"rank {rank}, {op} {end}" for op in ops) for rank in range(2)]
    assert results(body, 2, backend="gloo", **gear) == want

    def others(rank: int) -> list[float]:
        columns = (torch.arange(8.0).view(2, 4) * (rank + 1))[:, ::2]
        dist.send(columns, 1) if rank == 0 else dist.recv(columns, 0)
        return columns.flatten().tolist()  # type: ignore[no-any-return]

    assert results(others, 2, **gear) == [[0, 2, 4, 6]] * 2


def versions(rank: int) -> dict[str, list[int]]:
    """Versions of outputs, as autograd counts writes to them, by call."""

    def made(count: int = 2) -> list[torch.Tensor]:
        return [torch.ones(2) for _ in range(count)]

    group: Any = dist.distributed_c10d._get_default_group()
    own, whole, found = torch.ones(2), torch.ones(4), {}
    outputs = made()
    dist.all_gather(outputs, own)
    found["all_gather"] = outputs
    strided = [torch.ones(2, 2)[:, 0] for _ in range(2)]
    dist.all_gather(strided, own)
    found["all_gather strided"] = strided
    dist.all_gather_into_tensor(whole, own)
    found["all_gather_into_tensor"] = [whole]
    lists = [made(), made()]
    dist.all_gather_coalesced(lists, made())
    found["all_gather_coalesced"] = [*lists[0], *lists[1]]
    outputs = made() if rank == 0 else []
    dist.gather(own, outputs or None)
    found["gather"] = outputs
    scattered = torch.ones(2)
    dist.scatter(scattered, made() if rank == 0 else None)
    found["scatter"] = [scattered]
    reduced = torch.ones(2)
    dist.reduce_scatter(reduced, made())
    found["reduce_scatter"] = [reduced]
    reduced = torch.ones(2)
    dist.reduce_scatter_tensor(reduced, torch.ones(4))
    found["reduce_scatter_tensor"] = [reduced]
    outputs = made()
    dist.all_to_all(outputs, made())
    found["all_to_all"] = outputs
    output = torch.ones(2)
    dist.all_to_all_single(output, torch.ones(2))
    found["all_to_all_single"] = [output]
    outputs = made()
    dist.all_reduce_coalesced(outputs)
    found["all_reduce_coalesced"] = outputs
    wholes = [torch.ones(4), torch.ones(4)]
    group.allgather_into_tensor_coalesced(wholes, made()).wait()
    found["all_gather_into_tensor_coalesced"] = wholes
    outputs = made()
    group.reduce_scatter_tensor_coalesced(outputs, [torch.ones(4), torch.ones(4)]).wait()
    found["reduce_scatter_tensor_coalesced"] = outputs
    dist.all_reduce(own)
    found["all_reduce"] = [own]
    reduced = torch.ones(2)
    dist.reduce(reduced, 0)
    found["reduce"] = [reduced]
    received = torch.ones(2)
    dist.broadcast(received, 0)
    found["broadcast"] = [received]
    received = torch.ones(2)
    dist.send(received, 1) if rank == 0 else dist.recv(received, 0)
    found["send and recv"] = [received]
    return {name: [output._version for output in outputs] for name, outputs in found.items()}


def versions_of_gloo(rank: int, file: str, told: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    pathlib.Path(f"{told}{rank}").write_text(repr(versions(rank)))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def real_versions(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[int]]]:
    """The same of real groups, by rank."""
    tmp_path = tmp_path_factory.mktemp("versions")
    processes = [
        multiprocessing.get_context("spawn").Process(target=versions_of_gloo, args=(rank, f"{tmp_path}/meet", f"{tmp_path}/told"))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    real = [ast.literal_eval((tmp_path / f"told{rank}").read_text()) for rank in range(2)]
    assert real[0]["all_gather"] == [1, 1] and real[0]["all_reduce"] == [0]
    return real


@gears
def test_a_backward_pass_needs_what_a_gloo_group_has_written_over(
    gear: dict[str, Any], real_versions: list[dict[str, list[int]]]
) -> None:
    """Gloo copies some results into the outputs, which counts as a write of theirs."""
    assert results(versions, 2, backend="gloo", **gear) == real_versions

    def trains(rank: int) -> None:
        weight = torch.ones(2, requires_grad=True)
        outputs = [torch.ones(2) for _ in range(2)]
        loss = (weight * outputs[1]).sum()
        dist.all_gather(outputs, torch.zeros(2))
        loss.backward()

    told = text_of(trains, 2, backend="gloo", **gear)
    assert "one of the variables needed for gradient computation has been modified by an inplace operation" in told


def test_ranks_that_do_not_fit_are_named() -> None:
    def swapped(rank: int) -> None:
        dist.init_process_group("gloo", rank=1 - rank, world_size=2)

    assert "init_process_group: rank 1 of 2, but this thread is rank 0 of 2" in text_of(swapped, 2, backend=None)

    def twice(rank: int) -> None:
        if rank < 2:
            dist.init_process_group("gloo", rank=0, world_size=2)

    told = text_of(twice, 3, backend=None)
    assert re.search(r'store get key "[^"]*rankloom/group [12] of 2 ranks: rank 1"', told) or "both want to be rank 0 of 2" in told, told


@gears
def test_queues_of_a_store_are_as_real_ones(gear: dict[str, Any]) -> None:
    def tries(store: dist.Store) -> list[Any]:
        store.queue_push("q", b"first")
        store.queue_push("q", b"second")
        got = [store.queue_len("q"), store.queue_pop("q", block=False), store.queue_pop("q"), store.queue_len("q")]
        for key in "q", "no queue":
            with pytest.raises(dist.DistStoreError) as caught:
                store.queue_pop(key, block=False)
            got += [type(caught.value), "queue" in str(caught.value)]
        return got

    def body(rank: int) -> list[Any]:
        got = tries(dist.PrefixStore(f"of {rank}", dist.TCPStore("localhost", 29500, 2, rank == 0)))
        if rank == 1:
            dist.TCPStore("localhost", 29500, 2, False).queue_push("to 0", b"from 1")
        else:
            got.append(dist.TCPStore("localhost", 29500, 2, False).queue_pop("to 0"))
        return got

    real = tries(TCPStore("localhost", 0, is_master=True, wait_for_workers=False))
    assert real == [2, b"first", b"second", 0, *[dist.QueueEmptyError, True] * 2]  # type: ignore[attr-defined]
    assert results(body, 2, backend=None, **gear) == [[*real, b"from 1"], real]

    def fails(rank: int) -> None:
        dist.TCPStore("localhost", 29500, 2, rank == 0).queue_pop("q", block=rank == 0)

    told = text_of(fails, 2, backend=None, **gear)
    assert re.search(r'StoreError: rank 1, \S+ queue_pop key "[^"]*q": the queue is empty: have 0 values, want 1 \[', told), told


@gears
def test_keys_that_are_set_together_and_listed_are_as_in_real_stores(gear: dict[str, Any]) -> None:
    def tries(store: dist.Store) -> list[Any]:
        store.set("a", "1")
        store.multi_set(["c", "d"], ["3", "4"])
        got = [store.get("c"), store.get("d"), sorted(store.list_keys()), store.num_keys()]
        store.delete_key("c")
        return [*got, sorted(store.list_keys())]

    def body(rank: int) -> list[Any]:
        tcp = dist.TCPStore("localhost", 29500 + rank, is_master=True, wait_for_workers=False)
        file, prefix = dist.FileStore(f"/nowhere/{rank}", 1), dist.PrefixStore("p", dist.HashStore())
        return [tries(store) for store in (dist.HashStore(), file, tcp, prefix)]

    real = tries(TCPStore("localhost", 0, is_master=True, wait_for_workers=False))
    assert real == [b"3", b"4", ["a", "c", "d"], 3, ["a", "d"]]
    assert tries(HashStore()) == tries(dist.PrefixStore("p", HashStore())) == real
    assert results(body, 2, backend=None, **gear) == [[real] * 4] * 2
    assert tries(rankloom.torch.HashStore()) == real


@gears
def test_keys_that_a_rank_sets_together_are_all_there_for_the_others(gear: dict[str, Any]) -> None:
    def body(rank: int) -> list[Any]:
        store = dist.TCPStore("localhost", 29500, is_master=rank == 0, wait_for_workers=False)
        store.multi_set([f"a{rank}", f"b{rank}"], [f"{rank}", f"{rank + 5}"])
        store.wait([f"b{1 - rank}"])
        return [store.multi_get([f"a{1 - rank}", f"b{1 - rank}"]), sorted(store.list_keys())]

    keys = ["a0", "a1", "b0", "b1"]
    assert results(body, 2, backend=None, **gear) == [[[b"1", b"6"], keys], [[b"0", b"5"], keys]]


def test_keys_without_a_value_each_are_refused() -> None:
    def body(rank: int) -> None:
        dist.HashStore().multi_set(["c", "d"], ["3"])

    assert "rank 0, HashStore multi_set: have 1 values, want one for each of 2 keys [" in text_of(body, 1, backend=None)
    with pytest.raises(dist.DistStoreError, match="multiSet keys and values vectors must be of same size"):
        TCPStore("localhost", 0, is_master=True, wait_for_workers=False).multi_set(["c", "d"], ["3"])


@gears
def test_stores_by_names_that_a_module_has_imported_are_those_of_ranks(gear: dict[str, Any]) -> None:
    def body(rank: int) -> list[bytes]:
        got = []
        for store in (FileStore("/nowhere/there", 2), TCPStore("localhost", 29501, 2, rank == 0)):
            if rank == 1:
                store.set("k", "v")
            store.wait(["k"])  # of rank 1, which runs only if this is a scheduling point
            got.append(store.get("k"))
        own = HashStore()
        own.set("mine", str(rank))
        return [*got, own.get("mine")]

    assert results(body, 2, **gear) == [[b"v", b"v", b"0"], [b"v", b"v", b"1"]]


def test_outside_of_ranks_stores_are_pytorchs_own(tmp_path: pathlib.Path) -> None:
    class Mine(FileStore):  # type: ignore[misc]
        pass

    def body(rank: int) -> str:
        return type(Mine(str(tmp_path / "mine"), 1)).__name__

    kinds = [type(FileStore(str(tmp_path / "before"), 1)), *results(body, 1), type(FileStore(str(tmp_path / "after"), 1))]
    assert kinds == [FileStore, "Mine", FileStore] and "__new__" not in vars(FileStore)


def test_a_server_waits_for_its_workers() -> None:
    def body(rank: int) -> int:
        store = dist.TCPStore("localhost", 29500, 2, rank == 0)
        return int(store.add("n", 1))

    for gear in GEARS:
        assert sorted(results(body, 2, backend=None, **gear)) == [1, 2]

    def alone(rank: int) -> None:
        if rank == 0:
            dist.TCPStore("localhost", 29500, 2, True)

    assert 'store wait key "all 2 workers of the TCPStore at port 29500"' in text_of(alone, 2, backend=None)


def test_clients_without_a_server_are_told() -> None:
    def body() -> None:
        dist.TCPStore("localhost", 29500, 2, False).add("n", 1)

    def by_other_names(rank: int) -> int:
        return int(dist.TCPStore(("0.0.0.0", "127.0.0.1")[rank], 29500, 2, rank == 0).add("n", 1))

    assert sorted(results(by_other_names, 2, backend=None)) == [1, 2]
    text = text_of(body, 2, backend=None)
    assert text.startswith("Deadlock: no rank can move") and 'store wait key "the master of the TCPStore at port 29500"' in text


@gears
def test_a_timeout_of_a_store_is_of_its_wait_for_workers(gear: dict[str, Any]) -> None:
    def body(rank: int) -> str:
        while rank == 1 and not alone:
            rankloom.torch.yield_now()
        if rank == 1:
            return "late"
        try:
            dist.TCPStore("localhost", 29500, 2, True, timeout=timedelta(seconds=0.05))
        except dist.DistStoreError as error:
            alone.append(str(error))
        return "alone"

    alone: list[str] = []
    assert results(body, 2, backend=None, **gear) == ["alone", "late"]
    assert "timed out after 50ms" in alone[0] and "all 2 workers of the TCPStore at port 29500" in alone[0]


@gears
def test_a_file_goes_with_the_last_of_its_workers(gear: dict[str, Any]) -> None:
    def body() -> list[int]:
        numbers = []
        for workers in (2, 2, -1, -1):
            store = dist.FileStore(f"/nowhere/{workers}", workers)
            numbers.append(store.add("n", 1))
            dist.barrier()
            del store
            dist.barrier()
        return numbers

    assert [sorted(of_ranks) for of_ranks in zip(*results(body, 2, **gear), strict=True)] == [[1, 2], [1, 2], [1, 2], [3, 4]]


def test_a_clone_says_its_stores_timeout() -> None:
    def body() -> None:
        for store in (dist.HashStore(), dist.FileStore("/nowhere/there", 1), dist.TCPStore("localhost", 0, 1, True)):
            store.set_timeout(timedelta(seconds=7))
            assert store.clone().timeout == store.timeout == timedelta(seconds=7)

    results(body, 1)


def test_a_client_waits_for_the_next_server_of_a_port() -> None:
    def body(rank: int) -> list[int]:
        numbers = []
        for round_ in range(3):
            if round_ > 0 and rank == 1:
                rankloom.torch.yield_now()
            store = dist.TCPStore("localhost", 29500, 2, rank == 1)
            numbers.append(int(store.add("n", 1)))
            dist.barrier()
            del store
            dist.barrier()
        return numbers

    for gear in GEARS:
        first, second = results(body, 2, **gear)
        assert [sorted(pair) for pair in zip(first, second, strict=True)] == [[1, 2]] * 3


def test_the_main_thread_is_no_rank_for_the_group_that_is_left_there() -> None:
    rankloom.torch.install("gloo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        store = dist.TCPStore("127.0.0.1", 0, 1, True)
        assert "torch._C" in type(store).__module__ and store.port > 0
    finally:
        dist.destroy_process_group()

