"""A rank of a fake world: what programs of torch.distributed call there, with line and module. Counts are derived by hand."""

import contextlib
import gc
import json
import math
import os
import pathlib
import pickle
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import rankloom.torch
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from rankloom.torch import Call, FakeWorld, Link, _ext, _fake_world, expect_calls, fake_world, links, trace
from rankloom_command import run_file
from test_pytest_plugin import run_pytest
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.fx import _symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

pytestmark = pytest.mark.filterwarnings("ignore:.*have tensors with data", "ignore::FutureWarning")

WIDTH, LAYERS, BATCH = 16, 2, 3
WEIGHT = WIDTH * WIDTH  # elements


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wo = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wo(torch.relu(self.wq(x)))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(x)


class Model(nn.Module):
    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.out(x)


@contextlib.contextmanager
def tensors(kind: str) -> Any:
    """Tensors that are made within are real, on the meta device, or fake."""
    with FakeTensorMode() if kind == "fake" else torch.device("meta" if kind == "meta" else "cpu"):
        yield


def rows(world: FakeWorld) -> list[tuple[str, str, str]]:
    return [(call.op, call.group, call.module) for call in world.calls]


def code(*words: str) -> int:
    """The line of this file that has these words."""
    lines = pathlib.Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if all(word in line for word in words) and "code(" not in line)


# ---- programs


def test_ddp_reduces_all_gradients_once() -> None:
    with fake_world(rank=1, mesh={"dp": 4}) as world:
        model = nn.parallel.DistributedDataParallel(Model())
        with expect_calls(all_reduce=1, group="dp", exactly=True):
            model(torch.ones(BATCH, WIDTH)).sum().backward()
    last = world.calls[-1]
    assert last.inputs == [("float32", [(2 * LAYERS + 1) * WEIGHT])]
    assert (last.op, last.group, last.reduce_op, last.payload) == ("all_reduce", "dp", "sum", (2 * LAYERS + 1) * WEIGHT * 4)


def test_ddp_on_the_meta_device() -> None:
    with fake_world(rank=1, mesh={"dp": 4}) as world, torch.device("meta"):
        model = nn.parallel.DistributedDataParallel(Model(), init_sync=False)
        model(torch.ones(BATCH, WIDTH)).sum().backward()
    assert [(call.op, call.payload) for call in world.calls] == [("all_reduce", (2 * LAYERS + 1) * WEIGHT * 4)]


@pytest.mark.parametrize("kind", ["real", "fake", "meta"])
def test_ddp_has_its_buckets_from_the_second_step_on(kind: str) -> None:
    with fake_world(rank=1, mesh={"dp": 4}) as world, tensors(kind):
        model = nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=1e-4)
        made = [call.op for call in world.calls]
        steps = []
        for _ in range(3):
            world.clear()
            model(torch.ones(BATCH, WIDTH)).sum().backward()
            steps.append([(call.op, call.payload) for call in world.calls])
    assert made == ["all_gather", "broadcast", "broadcast"]  # shapes, and the model of rank 0
    reduced = [[size for op, size in step if op == "all_reduce"] for step in steps]
    whole = (2 * LAYERS + 1) * WEIGHT * 4
    assert reduced[1] == reduced[2] and len(reduced[1]) > len(reduced[0])
    assert [sum(sizes) for sizes in reduced] == [whole] * 3
    assert [op for op, _ in steps[1]][:2] == ["broadcast", "broadcast"]  # the new buckets
    assert all(op == "all_reduce" for op, _ in steps[0] + steps[2])


@pytest.mark.parametrize("kind", ["real", "fake"])
def test_fsdp2_gathers_and_scatters_each_module(kind: str) -> None:
    with fake_world(rank=3, mesh={"dp": 4, "tp": 2}) as world, tensors(kind):
        model = Model()
        for layer in model.layers:
            fully_shard(layer, mesh=world.mesh["dp"])
        fully_shard(model, mesh=world.mesh["dp"])
        model(torch.ones(BATCH, WIDTH)).sum().backward()
    gathers = [(call.module, call.payload) for call in world.calls if call.op == "all_gather_into_tensor"]
    # Forward: the root with `out`, then each layer. Backward, from the last layer on: each again, but for the root.
    layer, out = 2 * WEIGHT * 4, WEIGHT * 4
    assert gathers == [("Model", out), *[(f"layers.{i}", layer) for i in (0, 1, 1, 0)]]
    scatters = [(call.module, call.payload) for call in world.calls if call.op == "reduce_scatter_tensor"]
    assert sorted(scatters) == [("Model", out), ("layers.0", layer), ("layers.1", layer)]
    assert {call.group for call in world.calls} == {"dp"} and len(world.calls) == 8
    # Three passes over the sharded parameters, the root's once less, on a ring of 4.
    assert sum(call.ring_bytes for call in world.calls) == (3 * LAYERS * layer + 2 * out) * 3 // 4


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", ["real", "meta", "fake"])
def test_tensor_parallelism_has_the_module_in_forward_and_backward(kind: str, recompute: bool) -> None:
    with fake_world(rank=1, mesh={"dp": 4, "tp": 2}) as world, tensors(kind):
        model = Model(recompute)
        plan = {"attention.wq": ColwiseParallel(), "attention.wo": RowwiseParallel()}
        for layer in model.layers:
            parallelize_module(layer, world.mesh["tp"], plan)
        world.clear()  # parameters are scattered where they have data
        with set_checkpoint_early_stop(False):
            model(torch.ones(BATCH, WIDTH, requires_grad=True)).sum().backward()
    forward = [f"layers.{i}.attention.wo" for i in range(LAYERS)]
    backward = [f"layers.{i}.attention.wq" for i in reversed(range(LAYERS))]
    if recompute:
        backward = [name for i in reversed(range(LAYERS)) for name in (f"layers.{i}.attention.wo", f"layers.{i}.attention.wq")]
    assert rows(world) == [("all_reduce", "tp", name) for name in forward + backward]
    assert {call.payload for call in world.calls} == {BATCH * WIDTH * 4}
    assert all(call.waited for call in world.calls)


def test_a_pipeline_traces_one_rank_after_the_other(tmp_path: pathlib.Path) -> None:
    worlds = []
    for stage in range(3):
        with fake_world(rank=stage, mesh={"pp": 3}, cost="nvlink4") as world, torch.device("meta"):
            activations = torch.empty(BATCH, WIDTH)
            ops = []
            if stage > 0:
                ops.append(dist.P2POp(dist.irecv, activations, stage - 1))
            if stage < 2:
                ops.append(dist.P2POp(dist.isend, activations, stage + 1))
            for work in dist.batch_isend_irecv(ops):
                work.wait()
        worlds.append(world)
    assert [[(call.op, call.peer) for call in world.calls] for world in worlds] == [
        [("send", 1)],
        [("recv", 0), ("send", 2)],
        [("recv", 1)],
    ]
    worlds[0].write_perfetto(tmp_path / "new" / "all.json", *worlds[1:])
    events = json.loads((tmp_path / "new" / "all.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1, 2}
    assert sum(event["ph"] == "s" for event in events) == 2  # an arrow from each send to its recv
    with pytest.raises(ValueError, match=r"^fake_world: rank 0 of 3: rank 1 is there twice, want the worlds of different ranks$"):
        worlds[0].write_perfetto(tmp_path / "all.json", worlds[1], worlds[1])


def test_ranks_are_traced_in_one_go(tmp_path: pathlib.Path) -> None:
    def program(world: FakeWorld) -> Callable[[], object]:
        stage, x = world.mesh["pp"].get_local_rank(), torch.empty(BATCH, WIDTH)
        dist.barrier()  # no part of the step

        def step() -> None:
            if stage > 0:
                dist.recv(x, dist.get_rank() - 2)
            if stage < 2:
                dist.send(x, dist.get_rank() + 2)

        return step

    worlds = trace(program, mesh={"pp": 3, "dp": 2}, cost="nvlink4")
    assert [world.rank for world in worlds] == [0, 2, 4]
    assert [[(call.op, call.peer) for call in world.calls] for world in worlds] == [
        [("send", 2)],
        [("recv", 0), ("send", 4)],
        [("recv", 2)],
    ]
    assert [world.rank for world in trace(program, ranks=[3, 5], mesh={"pp": 3, "dp": 2})] == [3, 5]
    for arguments, text in (
        ({"ranks": 1}, "trace: ranks is 1, want a list of ranks"),
        ({"ranks": "01"}, "trace: ranks is '01', want a list of ranks"),
        ({"ranks": []}, "trace: have no ranks, want one or more"),
        ({"rank": 1}, r"trace: have rank=1, want ranks=\[...\]"),
    ):
        with pytest.raises(ValueError, match=f"^{text}$"):
            trace(program, mesh={"pp": 3, "dp": 2}, **arguments)  # type: ignore[arg-type]
    assert gc.get_freeze_count() == 0
    with pytest.raises(ValueError, match=r"^trace: the program is None, want a function of a world that returns one that does a step$"):
        trace(None, mesh={"dp": 2})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^trace: the program returned None, want a function that does a step$"):
        trace(lambda world: None, mesh={"dp": 2})  # type: ignore[arg-type, return-value]


class Queries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.wq(x).unflatten(2, (4, -1)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)


@pytest.mark.parametrize("rotation", ["allgather", "alltoall"])
@pytest.mark.parametrize("device", [None, "h100_sxm"])
@pytest.mark.parametrize("kind", ["real", "fake"])
def test_context_parallelism_sends_keys_and_values_round(kind: str, device: str | None, rotation: str) -> None:
    cp, sequence = 4, 64
    with fake_world(rank=1, mesh={"cp": cp}, device=device) as world, tensors(kind):
        model, x = Queries(), torch.ones(BATCH, sequence, WIDTH)
        world.clear()
        set_rotate_method(rotation)
        try:
            with context_parallel(world.mesh, buffers=[x], buffer_seq_dims=[1]):
                out = model(x)
                assert out.shape == (BATCH, 4, sequence // cp, WIDTH // 4)
                out.sum().backward()
        finally:
            set_rotate_method("allgather")
    keys_and_values = 2 * BATCH * sequence // cp * WIDTH * 4
    gathered = [("all_gather_into_tensor_coalesced", cp * keys_and_values)]
    sent = [("all_to_all_single", keys_and_values)]
    # Forward and backward want those of all others, and gradients go all the way round.
    others = gathered if rotation == "allgather" else (cp - 1) * sent
    calls = [(call.op, call.payload) for call in world.calls if not call.is_compute]
    assert sorted(calls) == sorted(2 * others + cp * sent)
    assert {(call.group, call.module) for call in world.calls if not call.is_compute} == {("cp", "Queries")}


def calls_of_all_kinds(world: FakeWorld) -> None:
    n, mesh = 4, world.mesh
    tp = mesh.get_group("tp")
    x, wide = torch.ones(2, WIDTH), torch.ones(2 * n, WIDTH)
    dist.all_reduce(x, op=dist.ReduceOp.MAX, group=tp)
    dist.broadcast(x, src=dist.get_global_rank(tp, 1), group=tp)
    dist.reduce(x, dst=dist.get_global_rank(tp, 0), group=tp)
    dist.all_gather_into_tensor(wide, x, group=tp)
    dist.all_gather([torch.empty(2, WIDTH) for _ in range(n)], x, group=tp)
    dist.reduce_scatter_tensor(x, wide, group=tp)
    dist.all_to_all_single(torch.empty_like(wide), wide, group=tp)
    dist.send(x, dist.get_global_rank(tp, 0), group=tp, tag=3)
    dist.recv(x, dist.get_global_rank(tp, 0), group=tp)
    dist.barrier(tp)
    assert (funcol.all_reduce(x, "sum", tp) + 1).shape == (2, WIDTH)
    assert (funcol.all_gather_tensor(x, 0, tp) + 1).shape == (2 * n, WIDTH)
    assert (funcol.reduce_scatter_tensor(wide, "avg", 0, tp) + 1).shape == (2, WIDTH)
    assert (funcol.all_to_all_single(wide, None, None, tp) + 1).shape == (2 * n, WIDTH)
    assert (funcol.broadcast(x, 0, tp) + 1).shape == (2, WIDTH)


def without_times(call: Call) -> dict[str, Any]:
    return {name: value for name, value in vars(call).items() if name not in ("issued", "start")}


def test_calls_are_recorded_alike_whatever_tensors_are() -> None:
    recorded = []
    for kind in ("real", "meta", "fake"):
        with fake_world(rank=6, mesh={"dp": 2, "tp": 4}, cost="nvlink4") as world, tensors(kind):
            calls_of_all_kinds(world)
        recorded.append(world.calls)
    real, meta, fake = ([without_times(call) for call in calls] for calls in recorded)
    assert real == meta == fake
    assert [call["op"] for call in real][:10] == [
        "all_reduce", "broadcast", "reduce", "all_gather_into_tensor", "all_gather", "reduce_scatter_tensor",
        "all_to_all_single", "send", "recv", "barrier",
    ]  # fmt: skip
    assert len(real) == 15 and all(call["waited"] and call["group"] == "tp" for call in real)
    assert [real[i]["reduce_op"] for i in (0, 2, 3)] == ["max", "sum", None]
    assert [real[i]["root"] for i in (1, 2)] == [5, 4] and (real[7]["peer"], real[7]["tag"]) == (4, 3)
    assert [(os.path.basename(call["file"]), call["line"]) for call in real[:2]] == [
        ("test_fake_world.py", code("dist.all_reduce(x, op=dist.ReduceOp.MAX")),
        ("test_fake_world.py", code("dist.broadcast(x, src=dist")),
    ]


def test_make_fx_traces_the_calls_once() -> None:
    with fake_world(rank=0, mesh={"tp": 4}) as world:
        graph = make_fx(lambda x: funcol.all_reduce(x, "sum", "0") + 1, tracing_mode="fake")(torch.ones(4))
        assert [call.op for call in world.calls] == ["all_reduce"]
        assert "all_reduce" in graph.code


def test_make_fx_knows_modules() -> None:
    with fake_world(rank=0, mesh={"tp": 4}) as world, FakeTensorMode():
        model = Model()
        for layer in model.layers:
            parallelize_module(layer, world.mesh["tp"], {"attention.wq": ColwiseParallel(), "attention.wo": RowwiseParallel()})
        world.clear()
        graph = make_fx(model)(torch.ones(BATCH, WIDTH))
    assert rows(world) == [("all_reduce", "tp", f"layers.{i}.attention.wo") for i in range(LAYERS)]
    assert {call.line for call in world.calls} == {code("return self.wo(torch.relu")}
    assert sum("all_reduce" in str(node.target) for node in graph.graph.nodes) == LAYERS


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("kind", ["real", "fake"])
def test_calls_of_a_compiled_model_are_those_of_all_of_it(kind: str, backend: str) -> None:
    with fake_world(rank=0, mesh={"tp": 4}) as world, tensors(kind):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False))
        parallelize_module(model, world.mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        world.clear()
        torch.compile(model, backend=backend)(torch.ones(BATCH, WIDTH))
    assert [(*row, call.payload) for row, call in zip(rows(world), world.calls, strict=True)] == [
        ("all_reduce", "tp", "Sequential", BATCH * WIDTH * 4)
    ]


def test_a_compiled_program_is_recorded_when_it_runs() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    with fake_world(rank=0, mesh={"tp": 4}, outputs="uniform_ranks") as world:
        compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
        for count in (1, 2):
            assert compiled(torch.ones(3)).tolist() == [9.0] * 3
            assert [call.op for call in world.calls] == ["all_reduce"] * count


def test_a_compiled_module_is_one() -> None:
    with fake_world(rank=0, mesh={"dp": 4}) as world:
        model = nn.parallel.DistributedDataParallel(Model())
        compiled = torch.compile(model, backend="eager")
        with expect_calls(all_reduce=1):
            compiled(torch.ones(BATCH, WIDTH)).sum().backward()
    assert world.calls[-1].payload == (2 * LAYERS + 1) * WEIGHT * 4


def test_the_program_of_the_docs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = (pathlib.Path(__file__).parents[2] / "docs" / "fake.md").read_text()
    program = text.split("## From Python")[1].split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "program.py", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:4] == ["dp", "2048", "all_gather_into_tensor", "8"]  # 4 forward, 4 backward
    assert lines[2].split()[:4] == ["dp", "2048", "reduce_scatter_tensor", "4"]
    assert any(line.startswith("all_gather_into_tensor dp 3 program.py:") for line in lines)
    assert (tmp_path / "step.json").stat().st_size > 1000


def test_the_stages_of_the_docs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (pathlib.Path(__file__).parents[2] / "docs" / "fake.md").read_text()
    program = text.split("Several ranks in one go")[1].split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "program.py", "exec"), {})
    events = json.loads((tmp_path / "stages.json").read_text())["traceEvents"]
    assert [(event["pid"], event["name"]) for event in events if event["ph"] == "X"] == [
        (0, "send"), (8, "recv"), (8, "send"), (16, "recv"), (16, "send"), (24, "recv"),
    ]  # fmt: skip


def test_the_test_file_of_the_docs(tmp_path: pathlib.Path) -> None:
    text = (pathlib.Path(__file__).parents[2] / "docs" / "fake.md").read_text()
    source, told = text.split("such as this file for pytest:")[1].split("```python\n")[1].split("```", 1)
    done = run_pytest(tmp_path, source)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 1 passed" in done.stdout
    done = run_pytest(tmp_path, source.replace("=1, group", "=3, group"))
    assert done.returncode == 1, done.stdout + done.stderr
    want = [line.strip() for line in told.split("\n\n")[2].strip().splitlines()]
    assert [line for line in (line[2:].strip() for line in done.stdout.splitlines() if line[:2] == "E ")] == want


def test_objects_and_blocks_of_calls() -> None:
    with fake_world(world_size=4, mesh={"tp": 4}) as world:
        objects: list[object] = [None] * 4
        dist.all_gather_object(objects, {"rank": "mine"})
        assert objects == [{"rank": "mine"}] * 4
        world.clear()
        for device in ("cpu", "meta"):
            x = torch.ones(2, device=device)
            with dist._coalescing_manager(device=torch.device(device)):
                for _ in range(3):
                    dist.all_gather_into_tensor(torch.empty(8, device=device), x)
    assert [(call.op, call.inputs) for call in world.calls] == [("all_gather_into_tensor_coalesced", [("float32", [2])] * 3)] * 2


def test_objects_of_ranks_that_are_not_there() -> None:
    before = dist.broadcast_object_list
    with fake_world(world_size=4, rank=1) as world:
        own = dist.new_group([1, 3])
        calls: dict[str, tuple[Callable[[], object], str]] = {
            "broadcast_object_list from rank 0": (lambda: dist.broadcast_object_list([None]), "rank's own in the list, which it keeps (have [None])"),
            "broadcast_object_list from rank 3": (
                lambda: dist.broadcast_object_list([7, None], group=own, group_src=1), "rank's own in the list, which it keeps (have [7, None])"
            ),
            "scatter_object_list from rank 2": (lambda: dist.scatter_object_list([None], None, src=2), "rank to make its own, without the call"),
            "recv_object_list from rank 2": (lambda: dist.recv_object_list([7], src=2), "rank to make its own, without the call"),
            "recv_object_list from any rank": (lambda: dist.recv_object_list([7]), "rank to make its own, without the call"),
        }  # fmt: skip
        for call, (make, want) in calls.items():
            with pytest.raises(RuntimeError) as error:
                make()
            assert str(error.value) == f"rank 1 of a fake world of 4: {call}: nobody is there who made the objects, want the {want}"
        with pytest.warns(UserWarning, match="Running broadcast_object_list on global rank 1 which does not belong to the given group"):
            dist.broadcast_object_list([None], src=0, group=dist.new_group([0, 2]))
        world.clear()
        config = [{"lr": 0.1}, "adam"]
        dist.broadcast_object_list(config, src=3, group=own)
        assert config == [{"lr": 0.1}, "adam"]
        mine, out = ["x"], list[object]([None])
        dist.broadcast_object_list(mine, src=1)
        dist.scatter_object_list(out, [0, "mine", 2, 3], src=1)
        assert mine == ["x"] and out == ["mine"]
    calls_made = [(call.op, call.root, call.group_size, (call.inputs or call.outputs)[0][0]) for call in world.calls[:4]]
    assert calls_made == [("broadcast", 3, 2, "int64"), ("broadcast", 3, 2, "uint8"), ("broadcast", 1, 4, "int64"), ("broadcast", 1, 4, "uint8")]
    assert dist.broadcast_object_list is before


# ---- time and totals


def test_times_are_those_of_the_links() -> None:
    cost = {"dp": Link(latency=1e-3, bytes_per_second=1e6), "tp": "nvlink4"}
    with fake_world(rank=0, mesh={"dp": 4, "tp": 2}, cost=cost) as world:
        x = torch.empty(1000, device="meta")
        dist.all_reduce(x, group=world.mesh.get_group("dp"))
        assert world.now == pytest.approx(6 * 1e-3 + 4000 * 6 / 4 / 1e6)
        dist.all_reduce(x, group=world.mesh.get_group("tp"))
        assert world.calls[1].duration == pytest.approx(2 * 3.4e-6 + 4000 / 450e9, abs=1e-9)
        # Of the whole world: the slowest link of those that are named.
        dist.all_reduce(x)
        assert world.calls[2].duration == pytest.approx(14 * 1e-3 + 4000 * 14 / 8 / 1e6)
    assert links["nvlink4"] == Link(3.4e-6, 450e9, "nvlink4", "NVIDIA H100 data sheet: 900 GB/s in both directions")


def test_the_faster_algorithm_and_a_link_for_the_others() -> None:
    cost = {"*": Link(latency=1.0, bytes_per_second=1e12)}
    for algorithm, steps in (("ring", 14), ("tree", 6), ("faster", 6)):
        with fake_world(rank=0, world_size=8, cost=cost, algorithm=algorithm) as world:
            dist.all_reduce(torch.empty(1, device="meta"))
        assert world.now == pytest.approx(steps)


def test_computation_hides_a_call_that_is_not_waited_for() -> None:
    with fake_world(rank=0, world_size=2, cost=Link(latency=1.0, bytes_per_second=1e9)) as world:
        x = torch.empty(250, device="meta")
        work = dist.all_reduce(x, async_op=True)
        assert (world.live_buffer_bytes, world.now) == (1000, 0)
        world.compute(5, "forward")
        work.wait()
        assert (world.live_buffer_bytes, world.now, world.end) == (0, 5, 5)
    assert [(call.op, call.is_compute, call.start) for call in world.calls] == [("all_reduce", False, 0), ("forward", True, 0)]
    assert world.peak_buffer_bytes == 1000


def test_totals_table_and_counts() -> None:
    with fake_world(rank=5, world_size=16384, mesh={"dp": 2048, "tp": 8}) as world:
        assert repr(world) == "<fake world: rank 5 of 16384, 0 calls>"
        assert (world.mesh.shape, world.mesh.mesh_dim_names) == ((2048, 8), ("dp", "tp"))
        for _ in range(3):
            dist.all_gather_into_tensor(
                torch.empty(8, 4, device="meta"), torch.empty(1, 4, device="meta"), group=world.mesh.get_group("tp")
            )
        dist.all_reduce(torch.empty(10, device="meta"), group=world.mesh.get_group("dp"))
    assert world.text() == "1 x all_reduce on dp\n3 x all_gather_into_tensor on tp"
    tp = world.totals[1]
    assert (tp.op, tp.group, tp.group_size, tp.calls, tp.payload, tp.ring_bytes) == (
        "all_gather_into_tensor", "tp", 8, 3, 3 * 128, 3 * 112,
    )  # fmt: skip
    assert [world.count("all_gather"), world.count("all_gather", "dp"), world.count("all_reduce", "dp")] == [3, 0, 1]
    assert world.table().splitlines()[1].split()[:5] == ["dp", "2048", "all_reduce", "1", "40"]


def test_groups_are_labelled_by_the_dimension_that_they_are_along() -> None:
    with fake_world(rank=5, mesh={"dp": 2, "cp": 2, "tp": 2}) as world:
        x = torch.ones(4, device="meta")
        for ranks in ([4, 5], [5, 7], [1, 5], [0, 5], [4, 5, 6, 7]):
            dist.all_reduce(x, group=dist.new_group(ranks))
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
        dist.all_reduce(x, group=mesh["dp", "cp"]._flatten("dp_cp").get_group())
        dist.all_reduce(x)
    groups = [call.group for call in world.calls]
    assert groups[:3] == ["tp", "cp", "dp"] and groups[5:] == ["dp_cp", "0"]
    assert groups[3:5] == [call.group_name for call in world.calls[3:5]]


def test_rows_become_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}

    def frame(data: list[dict[str, Any]], columns: list[str]) -> str:
        made.update(data=data, columns=columns)
        return "the frame"

    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=frame))
    with fake_world(world_size=2) as world:
        dist.barrier()
    assert world.frame() == "the frame"
    assert made["data"][0]["op"] == "barrier" and made["columns"][:4] == ["op", "issued", "start", "duration"]


# ---- traces


class OneCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"deep": Reducing()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner["deep"](x)


class Reducing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)  # in Reducing
        return x


def test_traces_have_the_module(tmp_path: pathlib.Path) -> None:
    with fake_world(rank=1, mesh={"tp": 2}) as world:
        OneCall()(torch.ones(4, device="meta"))
    assert rows(world) == [("all_reduce", "tp", "inner.deep")]
    assert world.calls[0].line == code("dist.all_reduce(x)  # in Reducing")
    world.write_perfetto(tmp_path / "a" / "p.json")
    events = json.loads((tmp_path / "a" / "p.json").read_text())["traceEvents"]
    assert [event["args"]["Module"] for event in events if event["name"] == "all_reduce"] == ["inner.deep"]
    world.write_pytorch_trace(tmp_path / "b" / "t.json")
    nodes = json.loads((tmp_path / "b" / "t.json").read_text())["nodes"]
    attributes = {attribute["name"]: attribute["value"] for attribute in nodes[-1]["attrs"]}
    assert (attributes["module"], attributes["pg_desc"]) == ("inner.deep", "mesh_tp")


def test_a_run_file_has_the_calls_and_totals_of_each_rank(tmp_path: pathlib.Path) -> None:
    worlds = []
    for rank in (2, 5):
        with fake_world(rank=rank, mesh={"dp": 2, "tp": 3}, cost=rankloom.torch.Link(0.0, 1e9)) as world:
            mesh = world.mesh
            x = torch.empty(60 + rank, dtype=torch.bfloat16, device="meta")
            for _ in range(rank):
                dist.all_reduce(x, group=mesh.get_group("tp"))
            world.compute(0.25, "forward")
            dist.broadcast(x, 2, group=mesh.get_group("dp"))
        worlds.append(world)
    worlds[0].write_run(tmp_path / "new" / "step.rlrun", worlds[1])
    run = run_file.read(str(tmp_path / "new" / "step.rlrun"))
    assert run.fake is not None and run.fake["world_size"] == 6
    totals = [[(of["op"], of["calls"], of["payload"]) for of in rank["totals"]] for rank in run.fake["ranks"]]
    assert totals == [[(sums.op, sums.calls, sums.payload) for sums in world.totals] for world in worlds]
    assert totals == [[("broadcast", 1, 124), ("all_reduce", 2, 2 * 124)], [("broadcast", 1, 130), ("all_reduce", 5, 5 * 130)]]
    assert [rank["compute_ns"] for rank in run.fake["ranks"]] == [250_000_000] * 2
    assert [rank["end_ns"] for rank in run.fake["ranks"]] == [round(world.end * 1e9) for world in worlds]
    assert run.run["lanes"] == ["2 compute", "2 dp", "2 tp", "5 compute", "5 dp", "5 tp"]
    line = code("dist.broadcast(x, 2, group=mesh")
    assert {(os.path.basename(kind["file"]), kind["line"]) for kind in run.kinds if kind["op"] == "broadcast"} == {(os.path.basename(__file__), line)}


@pytest.mark.parametrize(("shape", "dim"), [((7, 3), 0), ((8, 3), 0), ((3, 10), 1), ((1,), 0), ((130, 2), 0)])
def test_parts_of_a_parameter_are_those_of_fsdp2(shape: tuple[int, ...], dim: int) -> None:
    original = _fsdp_param._chunk_with_empty
    with fake_world(world_size=2):
        lazily = _fsdp_param._chunk_with_empty
    whole = torch.arange(float(math.prod(shape))).view(shape)
    for count in (1, 2, 3, 4, 5, 8, 200):
        want, have = original(whole, count, dim), lazily(whole, count, dim=dim)
        assert [part.tolist() for part in have] == [part.tolist() for part in want]
        assert [part.stride() for part in have] == [part.stride() for part in want]
        assert len(have) == count and have[-1].shape == want[-1].shape
    assert _fsdp_param._chunk_with_empty is original


def test_a_world_that_was_never_open_has_no_trace(tmp_path: pathlib.Path) -> None:
    world = fake_world(world_size=2)
    assert (world.calls, world.text(), world.now) == ([], "no calls", 0)
    for write in (world.write_perfetto, world.write_run, world.write_pytorch_trace):
        with pytest.raises(ValueError, match=r"^fake_world: rank 0 of 2: it was never open, and a trace is of what is called"):
            write(tmp_path / "trace")


def test_worlds_of_other_sizes_have_no_common_trace(tmp_path: pathlib.Path) -> None:
    worlds = []
    for size in (2, 4):
        with fake_world(rank=size - 1, world_size=size) as world:
            dist.barrier()
        worlds.append(world)
    with pytest.raises(ValueError, match=r"^fake_world: rank 1 of 2: rank 3 is of 4 ranks, want worlds of 2$"):
        worlds[0].write_perfetto(tmp_path / "trace", worlds[1])


def test_a_file_that_cannot_be_written_is_named(tmp_path: pathlib.Path) -> None:
    with fake_world(world_size=2) as world:
        dist.barrier()
    (tmp_path / "file").write_text("")
    for write in (world.write_perfetto, world.write_run, world.write_pytorch_trace):
        with pytest.raises(ValueError, match=r"write_\w+: .*file/trace.*test_fake_world.py"):
            write(tmp_path / "file" / "trace")
        with pytest.raises(ValueError, match=r"write_\w+: .*/dev/full.*: No space left on device"):
            write("/dev/full")


def test_modules_are_named_below_what_wraps_them() -> None:
    with fake_world(world_size=2) as world:
        model = OneCall()
        nn.parallel.DistributedDataParallel(nn.Sequential(model, nn.Linear(4, 4)))(torch.ones(4))
        model.inner["deep"](torch.ones(4))  # known by its name from before
        Reducing()(torch.ones(4))
        dist.all_reduce(torch.ones(4))
    modules = [call.module for call in world.calls if call.op == "all_reduce"]
    assert modules == ["0.inner.deep", "0.inner.deep", "Reducing", ""]


def test_a_module_that_raises_is_left() -> None:
    class Failing(nn.Module):
        def forward(self) -> None:
            raise KeyError("here")

    with fake_world(world_size=2) as world:
        with pytest.raises(KeyError):
            Failing()()
        dist.barrier()
    assert rows(world) == [("barrier", "0", "")]


# ---- outputs


@pytest.mark.parametrize(
    ("outputs", "gathered", "reduced", "scattered"),
    [
        ("shapes_only", [0, 0, 0, 0], [1, 2], [0]),
        ("pass_through", [1, 2, 1, 2], [1, 2], [2]),
        ("uniform_ranks", [1, 2, 1, 2], [2, 4], [4]),
    ],
)
def test_outputs(outputs: str, gathered: list[float], reduced: list[float], scattered: list[float]) -> None:
    with fake_world(rank=1, world_size=2, outputs=outputs) as world:
        x, wide, part = torch.tensor([1.0, 2.0]), torch.zeros(4), torch.zeros(1)
        dist.all_gather_into_tensor(wide, x)
        dist.reduce_scatter_tensor(part, x)
        dist.all_reduce(x)
        strided = torch.zeros(2, 4)[:, ::2]
        dist.all_gather(list(strided), torch.tensor([7.0, 8.0]))
        dist.all_reduce(torch.ones(4, device="meta"))
    assert (wide.tolist(), x.tolist(), part.tolist()) == (gathered, reduced, scattered)
    assert strided.tolist() == ([[0, 0]] * 2 if outputs == "shapes_only" else [[7, 8]] * 2)
    assert world.calls[0].duration == 0


def test_tensors_with_data_are_told_of_once() -> None:
    with fake_world(rank=1, world_size=2) as world, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.barrier()
        dist.all_reduce(torch.ones(2, dtype=torch.int64))  # programs exchange numbers of their own
        for _ in range(2):
            dist.all_reduce(torch.ones(2))  # real
    texts = [str(warning.message) for warning in caught if "with data" in str(warning.message)]
    assert len(texts) == 1 and world.count("all_reduce") == 3
    assert texts[0].startswith(
        "fake_world: rank 1 of 2, all_reduce: have tensors with data, and no other rank does: outputs hold what this rank gave "
        "(outputs='pass_through')"
    )
    assert texts[0].endswith(f"[test_fake_world.py:{code('dist.all_reduce(torch.ones(2))  # real')}]")


@pytest.mark.parametrize("real", ["input", "output"])
@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_real_and_other_tensors_in_one_call_are_refused(kind: str, real: str) -> None:
    with fake_world(rank=1, mesh={"tp": 2}) as world:
        tp = world.mesh.get_group()
        with FakeTensorMode() if kind == "fake" else torch.device("meta"):
            other = torch.ones(2 if real == "output" else 4)
        with_data = torch.ones(4 if real == "output" else 2)
        out, given = (with_data, other) if real == "output" else (other, with_data)
        for op, call in (
            ("all_gather_into_tensor", lambda: dist.all_gather_into_tensor(out, given, group=tp)),
            ("all_gather", lambda: dist.all_gather([out[:2], given], given, group=tp)),
            ("all_to_all_single", lambda: dist.all_to_all_single(out[:2], given[:2], group=tp)),
        ):
            text = rf"^rank 1, group tp, {op}: have tensors with data and fake or meta ones in one call, want all of one kind"
            with pytest.raises(RuntimeError, match=text):
                call()
        assert world.calls == []


def test_a_future_of_fake_tensors_of_a_device_that_torch_has_not() -> None:
    with fake_world(world_size=4), FakeTensorMode():
        x = torch.ones(2, device="cuda")
        future = dist.all_reduce(x, async_op=True).get_future()
        future.wait()
        assert future.value()[0].device.type == "cuda"


# The sizes that the real group takes: as many elements, whatever their shapes and strides.
def test_parts_of_other_shapes_are_passed_on() -> None:
    def numbers(*sizes: int) -> torch.Tensor:
        return torch.arange(float(torch.Size(sizes).numel())).view(sizes)

    with fake_world(rank=1, world_size=2):
        for given, wide in (
            (numbers(4), torch.zeros(1, 8)),
            (numbers(6), torch.zeros(3, 4)),
            (numbers(4, 6).t(), torch.zeros(48)),
            (numbers(6), torch.zeros(4, 3).t()),
            (torch.tensor(3.0), torch.zeros(2)),
        ):
            dist.all_gather_into_tensor(wide, given)
            assert wide.reshape(2, -1).tolist() == [given.reshape(-1).tolist()] * 2
        in_place = numbers(6)
        dist.all_gather_into_tensor(in_place, in_place[3:])
        assert in_place.tolist() == [3, 4, 5] * 2
        for whole, part in ((numbers(1, 8), torch.zeros(4)), (numbers(3, 4), torch.zeros(2, 3)), (numbers(2, 4), torch.zeros(2, 2).t())):
            dist.reduce_scatter_tensor(part, whole)
            assert part.reshape(-1).tolist() == whole.reshape(2, -1)[1].tolist()
    with fake_world(rank=0, world_size=1):
        alone = torch.tensor(0.0)
        dist.all_gather_into_tensor(alone, torch.tensor(5.0))
        assert alone.item() == 5


@pytest.mark.parametrize("outputs", ["shapes_only", "pass_through", "uniform_ranks"])
def test_dtypes_that_no_real_group_reduces_are_refused(outputs: str) -> None:
    with fake_world(rank=1, world_size=2, outputs=outputs) as world:
        with pytest.raises(RuntimeError, match=r"^all_reduce: a tensor has dtype UInt16, want Half, BFloat16, Float, "):
            dist.all_reduce(torch.ones(2).to(torch.uint16))
        assert world.calls == []


def test_what_a_real_group_refuses_is_refused() -> None:
    with fake_world(rank=1, world_size=2) as world:
        with pytest.raises(dist.DistBackendError, match=r"rank 1, group 0, all_gather_into_tensor.*5 elements.*test_fake_world.py"):
            dist.all_gather_into_tensor(torch.ones(5, device="meta"), torch.ones(2, device="meta"))
        assert world.calls == []


# ---- the context


def test_the_program_makes_the_default_group_itself() -> None:
    with fake_world(rank=3, world_size=8) as world:
        init_process_group("gloo")  # by a name that was imported before
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (3, 8, "gloo")
        dist.barrier()
        with pytest.raises(ValueError, match="twice"):
            dist.init_process_group("gloo")
        dist.destroy_process_group()
        dist.init_process_group("cpu:gloo,cuda:nccl", init_method="tcp://localhost:1234", rank=3, world_size=8)
        dist.all_reduce(torch.ones(2, device="meta"))
        dist.monitored_barrier()
    assert [call.op for call in world.calls] == ["barrier", "all_reduce", "monitored_barrier"]
    with fake_world(rank=3, world_size=8) as world:
        dist.barrier()
        dist.init_process_group("nccl", rank=3, world_size=8)  # the world has made calls: its group stays
        assert world.count("barrier") == 1
    for used in (False, True):
        with fake_world(rank=3, world_size=8):
            if used:
                dist.barrier()
            with pytest.raises(ValueError, match=r"^init_process_group: have (rank 2 of 8|rank 2), want .*3"):
                dist.init_process_group("gloo", rank=2, world_size=8)


def test_the_environment_is_a_launchers() -> None:
    before = dict(os.environ)
    with fake_world(rank=3, world_size=8):
        assert [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")] == ["3", "3", "8", "8"]
        os.environ["RANK"] = "4"
    assert dict(os.environ) == before


def state() -> list[object]:
    calls = [nn.Module.__call__, _symbolic_trace._orig_module_call, dist.init_process_group, init_process_group, sys.excepthook]
    return [*calls, dict(os.environ), dist.is_initialized()]


def test_an_exception_leaves_nothing_behind() -> None:
    before = state()
    with pytest.raises(KeyError, match="in the program"), fake_world(rank=3, world_size=8) as world:
        dist.all_reduce(torch.ones(2, device="meta"))
        raise KeyError("in the program")
    assert state() == before and world.count("all_reduce") == 1
    with fake_world(rank=0, world_size=2):
        dist.destroy_process_group()
    assert state() == before
    report = rankloom.torch.run(lambda: dist.get_world_size(), ranks=2)
    assert report.results == [2, 2]


@pytest.mark.parametrize("device", [None, "h100_sxm"])
def test_a_world_that_nobody_keeps_is_freed(device: str | None) -> None:
    with fake_world(rank=1, mesh={"tp": 2}, device=device) as world:
        Reducing()(torch.ones(2, device="meta"))
        dist.all_reduce(torch.ones(2), group=world.mesh.get_group())
        world.clear()
    left = weakref.ref(world)
    del world
    gc.collect()
    assert left() is None


def test_what_is_kept_from_a_world_that_was_left_is_refused() -> None:
    with fake_world(rank=1, mesh={"tp": 2}) as world:
        group, x = dist.group.WORLD, torch.ones(2, device="meta")
        work = dist.all_reduce(x, async_op=True)
    assert work is not None and group is not None
    work.wait()
    text = r"all_reduce: the fake world of rank 1 of 2 was left, want calls within its context"
    with pytest.raises(dist.DistBackendError, match=text):
        group._get_backend(torch.device("cpu")).allreduce([torch.ones(2)])
    with pytest.raises(RuntimeError, match=r"^fake_world: rank 1 of 2: it was open before, want a new fake_world\(\)$"):
        world.__enter__()
    with pytest.raises(RuntimeError, match=r"^fake_world: rank 1 of 2: it is not open, want its mesh within its context$"):
        world.device_mesh()
    assert world.count("all_reduce") == 1 and world.calls[0].waited
    # Meta tensors are torch's own again.
    assert funcol.all_reduce(x, "sum", "0").shape == (2,)


def raised(program: Callable[[], object]) -> str:
    with pytest.raises(RuntimeError) as caught:
        program()
    return str(caught.value)


def test_one_world_at_a_time() -> None:
    with fake_world(rank=1, world_size=2):
        text = raised(lambda: fake_world(rank=0, world_size=4).__enter__())
        assert text.startswith("fake_world: rank 0 of 4: fake_world: rank 1 of 2 is open [test_fake_world.py:")
        dist.barrier()  # the world goes on
        texts: list[str] = []
        thread = threading.Thread(target=lambda: texts.append(raised(lambda: fake_world(world_size=4).__enter__())))
        thread.start()
        thread.join()
        assert "is open" in texts[0]
        text = raised(lambda: rankloom.torch.run(lambda: None, ranks=2))
        assert text.startswith("the fake world of rank 1 of 2 is open, where no rank is but that one")
    dist.init_process_group("fake", store=dist.HashStore(), rank=1, world_size=2)
    try:
        text = raised(lambda: fake_world(rank=0, world_size=4).__enter__())
    finally:
        dist.destroy_process_group()
    assert text == "fake_world: rank 0 of 4: have a default group already (fake, rank 1 of 2), want destroy_process_group() before"
    report = rankloom.torch.run(lambda: raised(lambda: fake_world(world_size=4).__enter__()), ranks=2)
    assert report.results == [
        f"fake_world: rank 0 of 4: this thread is rank {rank} of a run of 2, want it outside of runs" for rank in range(2)
    ]


@pytest.mark.parametrize("device", [None, "h100_sxm"])
def test_a_world_is_left_where_it_was_entered(device: str | None) -> None:
    world, texts = fake_world(rank=1, world_size=2, device=device), []
    with pytest.raises(RuntimeError, match=r"^fake_world: rank 1 of 2: it was never open, want `with fake_world\(...\)`$"):
        world.__exit__()
    world.__enter__()
    thread = threading.Thread(target=lambda: texts.append(raised(world.__exit__)))
    thread.start()
    thread.join()
    assert texts[0].startswith("fake_world: rank 1 of 2: it was entered on another thread [test_fake_world.py:")
    dist.barrier()
    world.__exit__()
    assert world.text() == "1 x barrier on 0" and not dist.is_initialized()
    world.__exit__()  # as files may be closed twice


def test_a_world_that_a_generator_holds_is_left_with_it() -> None:
    def program() -> Any:
        with fake_world(world_size=2) as world:
            yield world

    steps = program()
    world = next(steps)
    dist.barrier()
    steps.close()
    assert world.count("barrier") == 1 and not dist.is_initialized()


def test_a_world_that_torch_has_no_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    before = state()
    monkeypatch.setattr(_fake_world, "_available_memory", lambda: 2.0**30)
    text = r"^fake_world: rank 5 of 2147483647: torch keeps a list of all ranks, have 1.0 GiB of memory, want 200.0 GiB$"
    with pytest.raises(MemoryError, match=text), fake_world(rank=5, world_size=2**31 - 1):
        pass
    assert state() == before
    monkeypatch.undo()
    assert 2**20 < _fake_world._available_memory() < 2**60


def test_meshes_are_made_within_fake_tensor_mode() -> None:
    with fake_world(rank=5, world_size=8) as world, FakeTensorMode():
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
        assert mesh.get_coordinate() == (1, 1) and mesh["dp"].get_local_rank() == 1
        dist.all_reduce(torch.ones(2), group=mesh.get_group("tp"))
    assert [(call.op, call.group, call.group_size) for call in world.calls] == [("all_reduce", "tp", 4)]


def test_parts_of_a_mesh_share_its_ranks() -> None:
    with fake_world(rank=5, mesh={"dp": 2, "tp": 4}) as world:
        other = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
        assert world.mesh["tp"]._flatten_rank_map is other._flatten_rank_map
        assert other == world.mesh and hash(other) == hash(world.mesh) and other["dp"] != world.mesh["tp"]
        assert other != init_device_mesh("cpu", (8,)) and tuple(other._flatten_rank_map) == tuple(range(8))


def test_numbers_of_numpy_are_numbers() -> None:
    link = Link(numpy.float32(1.0), numpy.float64(1e9))
    with fake_world(rank=numpy.int64(3), mesh={"dp": numpy.int32(4)}, cost=link) as world:
        dist.barrier()
    assert (world.rank, world.world_size, world.dims) == (3, 4, {"dp": 4}) and world.now > 0


def test_threads_of_the_program_share_the_world() -> None:
    with fake_world(rank=1, world_size=2) as world:

        def many() -> None:
            for _ in range(200):
                dist.all_reduce(torch.ones(2, device="meta"))

        threads = [threading.Thread(target=many) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert world.count("all_reduce") == 800 and world.live_buffer_bytes == 0
    assert [call.seq for call in world.calls] == list(range(1, 801))


# ---- bad input


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"rank": 8, "world_size": 8}, "fake_world: rank is 8, want 0 <= rank < world_size = 8"),
        ({"rank": -1, "world_size": 8}, "fake_world: rank is -1, want 0 <= rank < world_size = 8"),
        ({"rank": 0.0, "world_size": 8}, "fake_world: rank is 0.0, want 0 <= rank < world_size = 8"),
        ({"world_size": 0}, "fake_world: world_size is 0, want 1 <= world_size <= 2^31 - 1 = 2147483647"),
        ({}, "fake_world: have neither world_size nor mesh, want one of them"),
        ({"world_size": 64, "mesh": {"dp": 4, "tp": 8}}, "fake_world: mesh has dp 4 * tp 8 = 32 ranks, want world_size = 64"),
        ({"mesh": {"dp": 0}}, "fake_world: mesh has 0 ranks along 'dp', want a number of at least 1"),
        ({"mesh": {"": 2}}, "fake_world: mesh has a dimension named '', want a text that is neither empty nor '*'"),
        ({"mesh": {"*": 2}}, "fake_world: mesh has a dimension named '*', want a text that is neither empty nor '*'"),
        ({"mesh": {"dp": "2"}}, "fake_world: mesh has '2' ranks along 'dp', want a number of at least 1"),
        ({"mesh": {"dp": 2**16, "tp": 2**16}}, "fake_world: world_size is 4294967296, want 1 <= world_size <= 2^31 - 1 = 2147483647"),
        ({"world_size": 2, "cost": Link(math.nan, 1)}, "fake_world: cost has a latency of nan s, want 0 or more"),
        ({"world_size": 2, "cost": Link("1", 1)}, "fake_world: cost has a latency of '1' s, want 0 or more"),
        ({"world_size": 2, "cost": Link(0, None)}, "fake_world: cost has None bytes per second, want more than 0"),
        ({"world_size": 2, "cost": Link(0, math.inf)}, "fake_world: cost has inf bytes per second, want more than 0"),
        ({"world_size": 2, "cost": {3: "nvlink4"}}, "fake_world: cost has a link for 3, want names of dimensions, or '*' for all others"),
        ({"mesh": (4, 2)}, "fake_world: mesh is (4, 2), want the sizes of dimensions by name, such as {'dp': 4, 'tp': 2}"),
        (
            {"world_size": 2, "cost": "nvlink9"},
            "fake_world: cost is 'nvlink9', want a Link or one of the presets ethernet_100g, infiniband_hdr, infiniband_ndr, "
            "nvlink3, nvlink4, nvlink5, pcie4, pcie5",
        ),
        ({"world_size": 2, "cost": 5}, "fake_world: cost is 5, want a Link or the name of a preset ("),
        ({"world_size": 2, "cost": {"tp": "nvlink"}}, "fake_world: cost of 'tp' is 'nvlink', want a Link or one of the presets"),
        ({"world_size": 2, "cost": Link(0, 0)}, "fake_world: cost has 0 bytes per second, want more than 0"),
        ({"world_size": 2, "cost": Link(-1, 1)}, "fake_world: cost has a latency of -1 s, want 0 or more"),
        (
            {"mesh": {"dp": 2, "tp": 2}, "cost": {"tp": "nvlink4"}},
            "fake_world: cost has no link for dimension 'dp' of the mesh: have 'tp', want one for each of 'dp', 'tp', or '*' for "
            "the others",
        ),
        (
            {"mesh": {"dp": 2, "tp": 2}, "cost": {"pp": "nvlink4", "*": "pcie4"}},
            "fake_world: cost names 'pp', which is no dimension of the mesh; want one for each of 'dp', 'tp', or '*'",
        ),
        ({"world_size": 2, "outputs": "nan"}, "fake_world: outputs is 'nan', want one of shapes_only, pass_through, uniform_ranks"),
        ({"world_size": 2, "algorithm": "star"}, "fake_world: algorithm is 'star', want one of ring, tree, faster"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        fake_world(**arguments)
    assert str(caught.value).startswith(text)


def test_costs_of_dimensions_that_were_made_one() -> None:
    fake_world(mesh={"dp": 2, "cp": 2, "tp": 2}, cost={"dp_cp": "nvlink3", "*": "nvlink4"})
    with pytest.raises(ValueError, match="'cp_dp', which is no dimension"):
        fake_world(mesh={"dp": 2, "cp": 2}, cost={"cp_dp": "nvlink3", "*": "nvlink4"})


def test_a_mesh_that_was_not_named() -> None:
    with fake_world(world_size=2) as world:
        text = r"^fake_world: rank 0 of 2: it has no mesh, want fake_world\(mesh={'dp': 4, 'tp': 2}\)$"
        with pytest.raises(RuntimeError, match=text):
            print(world.mesh)
        with pytest.raises(ValueError, match=r"^fake_world: rank 0 of 2: compute of nan s, want 0 or more$"):
            world.compute(float("nan"))
        with pytest.raises(ValueError, match=r"^count: there is no operation 'gather_all', want one of all_gather, "):
            world.count("gather_all")


def test_each_name_of_a_record_is_known() -> None:
    x, y = torch.ones(4, device="meta"), torch.ones(6, device="meta")
    with fake_world(rank=1, mesh={"dp": 2, "tp": 2}) as world:
        tp = world.mesh.get_group("tp")
        funcol.all_gather_into_tensor_coalesced([x, y], tp)
        funcol.reduce_scatter_tensor_coalesced([x, y, x], "sum", [0, 0, 0], tp)
        funcol.all_reduce_coalesced([x, y], "sum", tp)
        dist.all_reduce(x)
        dist.all_to_all_single(y, y, group=tp)
    names = [call.op for call in world.calls]
    assert names[:2] == ["all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced"]
    assert {world.count(name) for name in names[:2] + names[-1:]} == {1}
    assert [world.count(name) for name in ("all_reduce", "all_reduce_coalesced")] == [2, 1]
    for name in _ext.recorded_ops:
        assert world.count(name) >= names.count(name)
        with fake_world(world_size=2), expect_calls(**{name: 0}):
            pass


def test_a_group_that_is_not_there_is_named() -> None:
    with fake_world(rank=1, mesh={"dp": 2, "tp": 2}) as world:
        with pytest.raises(ValueError, match=r"^count: there is no group 'pp', have 0, dp, tp$"):
            world.count("all_reduce", "pp")
        tp, x = world.mesh.get_group("tp"), torch.ones(2, device="meta")
        dist.all_reduce(x)
        for _ in range(2):
            dist.all_reduce(x, group=tp)
        mine = dist.new_group([1, 2])
        for _ in range(3):
            dist.all_reduce(x, group=mine)
    assert [world.count("all_reduce", group) for group in (None, "0", "dp", "tp", tp.group_name, mine.group_name)] == [6, 1, 0, 2, 2, 3]
    with pytest.raises(ValueError, match=r"^count: there is no group 'no such group', have 0, "):
        world.count("all_reduce", "no such group")


def test_errors_name_the_function_that_was_called() -> None:
    def program(world: FakeWorld) -> Callable[[], None]:
        return dist.barrier

    for function in (trace, rankloom.torch.estimate):
        who = function.__name__
        for arguments, text in (
            ({"ranks": [0, 64], "world_size": 64}, f"{who}: rank is 64, want 0 <= rank < world_size = 64"),
            ({"mesh": {"dp": 0}}, f"{who}: mesh has 0 ranks along 'dp', want a number of at least 1"),
            ({"mesh": {"dp": 2}, "cost": "nvlink9"}, f"{who}: cost is 'nvlink9', want a Link or one of the presets "),
            ({"world_size": 2, "device": "h1000"}, f"{who}: device is 'h1000', want a Device or one of the presets "),
            ({"world_size": 2, "efficiency": 2}, f"{who}: efficiency is 2, want 0 < efficiency <= 1"),
        ):
            with pytest.raises(ValueError) as caught:
                function(program, **{"device": "h100_sxm", **arguments})  # type: ignore[operator]
            assert str(caught.value).startswith(text)
    with pytest.raises(ValueError, match=r"^across_nodes: between is 'tin cans', want a Link or one of the presets "):
        rankloom.torch.across_nodes("nvlink4", "tin cans")
    with fake_world(world_size=2), pytest.raises(RuntimeError, match=r"^trace: rank 1 of 4: fake_world: rank 0 of 2 is open "):
        trace(program, ranks=[1], world_size=4)
    (world,) = trace(program, ranks=[1], world_size=4)
    with pytest.raises(RuntimeError, match=r"^trace: rank 1 of 4: it has no device, want "):
        world.estimate()


def test_what_a_world_cannot_do_is_told() -> None:
    with fake_world(world_size=2, rank=1) as world:
        dist.barrier()
        for seconds in ("1", -1, float("nan"), True):
            with pytest.raises(ValueError, match=rf"^fake_world: rank 1 of 2: compute of {seconds!r} s, want 0 or more$"):
                world.compute(seconds)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^fake_world: rank 1 of 2: it cannot be copied or pickled, want its calls, or a file of write_run\(\)$"):
        pickle.dumps(world)
    for write in (world.write_perfetto, world.write_run, world.write_pytorch_trace, world.write_chakra):
        if write != world.write_chakra or rankloom.torch._ext.has_chakra:
            with pytest.raises(ValueError, match=r"^the file's name is empty, want one to write to$"):
                write("")


def test_writers_make_the_folder_of_their_file(tmp_path: pathlib.Path) -> None:
    with fake_world(world_size=2, device="h100_sxm") as world:
        dist.barrier()
    report = rankloom.torch.run(dist.barrier, ranks=2)
    writers: list[Callable[[pathlib.Path], object]] = [
        world.write_perfetto, world.write_run, world.write_pytorch_trace, world.estimate().write_perfetto,
        report.save_trace, report.write_run,
    ]  # fmt: skip
    for number, write in enumerate(writers):
        path = tmp_path / f"new{number}" / "deep" / "file.json"
        write(path)
        assert path.stat().st_size > 0
    report.dump_flight_records(tmp_path / "flight" / "deep")
    assert sorted(path.name for path in (tmp_path / "flight" / "deep").iterdir()) == ["fr_0", "fr_1"]
    if _ext.has_chakra:
        assert world.write_chakra(tmp_path / "chakra" / "deep" / "step") == [str(tmp_path / "chakra" / "deep" / "step.0.et")]


def test_outputs_that_hold_no_input_are_left_as_they_are() -> None:
    def filled(*sizes: int) -> list[torch.Tensor]:
        return [torch.full((size,), -1.0) for size in sizes]

    with fake_world(rank=1, world_size=3) as world:
        out = filled(2, 1, 2)
        dist.all_to_all(out, [torch.ones(size) for size in (2, 1, 5)])
        gathered = filled(4, 2, 3)
        dist.all_gather(gathered, torch.ones(2))
        scattered = filled(2)[0]
        dist.reduce_scatter(scattered, [torch.ones(size) for size in (4, 2, 3)])
    assert [each.tolist() for each in out] == [[1.0, 1.0], [1.0], [-1.0, -1.0]]
    assert [each.tolist() for each in gathered] == [[-1.0] * 4, [1.0] * 2, [-1.0] * 3]
    assert scattered.tolist() == [1.0, 1.0]
    assert [call.op for call in world.calls] == ["all_to_all", "all_gather", "reduce_scatter"]


def test_a_call_that_nobody_waited_for_says_so() -> None:
    with fake_world(world_size=2) as world:
        x = torch.ones(2, device="meta")
        held = dist.all_reduce(x, async_op=True)
        dist.all_reduce(x, async_op=True)
        dist.all_reduce(x)
    assert held is not None
    assert [(call.waited, call.waited_before) for call in world.calls] == [(False, -1), (False, -1), (True, 3)]


def test_calls_that_were_not_expected_are_listed() -> None:
    with fake_world(rank=1, mesh={"dp": 2, "tp": 2}) as world:
        tp, x = world.mesh.get_group("tp"), torch.ones(2, device="meta")
        with expect_calls(all_reduce=2, all_gather=0, group="tp"), expect_calls(all_reduce=3), expect_calls(barrier=0):
            dist.all_reduce(x)
            for _ in range(2):
                dist.all_reduce(x, group=tp)
        with pytest.raises(AssertionError) as caught, expect_calls(all_gather=3, group="tp"):
            funcol.all_gather_tensor(x, 0, tp)  # expected
        line = code("funcol.all_gather_tensor(x, 0, tp)  # expected")
        assert str(caught.value) == (
            "expect_calls: rank 1, group tp: have 1 x all_gather, want 3\n"
            f"  all_gather_into_tensor_coalesced on tp, float32[2] [test_fake_world.py:{line}]"
        )
        with pytest.raises(AssertionError) as caught, expect_calls(all_reduce=2, group="tp"):
            dist.all_reduce(x)  # of the world
            dist.barrier()
        line = code("dist.all_reduce(x)  # of the world")
        assert str(caught.value) == (
            "expect_calls: rank 1, group tp: have 0 x all_reduce, want 2\n"
            "  no calls\n"
            "  on other groups:\n"
            f"    all_reduce on 0, float32[2] [test_fake_world.py:{line}]"
        )
        text = r"^expect_calls: rank 1: have barrier, too, want no other operation\n  barrier on"
        with pytest.raises(AssertionError, match=text), expect_calls(all_reduce=0, exactly=True):
            dist.barrier()
        with pytest.raises(AssertionError, match=r"^expect_calls: rank 1: have 0 x send, want 1\n  no calls$"), expect_calls(send=1):
            pass
        with pytest.raises(ValueError, match=r"^expect_calls: there is no group 'pp', have 0, "), expect_calls(group="pp"):
            pass
        with pytest.raises(ValueError, match=r"^expect_calls: there is no operation 'reduce_all', want one of "), expect_calls(reduce_all=1):
            pass
        with pytest.raises(ValueError, match=r"^expect_calls: send is -1, want a number of calls$"), expect_calls(send=-1):
            pass
        with expect_calls(barrier=1, exactly=True):
            world.clear()
            dist.barrier()
        with pytest.raises(KeyError), expect_calls(send=1):  # what is raised within is told
            raise KeyError("first")
    with pytest.raises(RuntimeError, match=r"^expect_calls: there is no fake world, want it within fake_world\(\)$"), expect_calls():
        pass
