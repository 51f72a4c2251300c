"""Chakra's traces of programs of torch.distributed, read by the reader of the core's tests, which knows what ASTRA-sim asks for."""

import pathlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import rankloom.torch
import torch
import torch.distributed as dist
from cases import needs_chakra, read_traces
from rankloom.torch import FakeWorld, fake_world, trace
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

WIDTH, BATCH, LAYERS = 64, 8, 2
# The collectives that ASTRA-sim runs.
SIMULATED = (read_traces.ALL_REDUCE, read_traces.ALL_GATHER, read_traces.ALL_TO_ALL, read_traces.REDUCE_SCATTER)
ANY = range(10)


@pytest.fixture(autouse=True)
def chakra() -> None:
    needs_chakra()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def sharded(world: FakeWorld) -> nn.Module:
    """By tensor parallelism, and by FSDP2 along "dp"."""
    model = nn.Sequential(*(Layer() for _ in range(LAYERS)))
    for layer in model:
        parallelize_module(layer, world.mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=world.mesh["dp"])
    return fully_shard(model, mesh=world.mesh["dp"])


def step_of_fsdp_and_tp(world: FakeWorld) -> Callable[[], object]:
    model, x = sharded(world), torch.empty(BATCH, WIDTH)
    loss = torch.empty(1)

    def step() -> None:
        model(x).sum().backward()
        dist.reduce(loss, dst=0)  # calls that no simulator runs as they are
        dist.broadcast(loss, src=0)
        dist.barrier()

    return step


def step_of_a_pipeline(kind: Any) -> Callable[[FakeWorld], Callable[[], object]]:
    def program(world: FakeWorld) -> Callable[[], object]:
        place, stages = world.mesh["pp"].get_local_rank(), world.mesh["pp"].size()
        stage = PipelineStage(sharded(world), place, stages, torch.device("cpu"), group=world.mesh.get_group("pp"))
        schedule = kind(stage, 4, loss_fn=lambda y, _: y.sum())
        x = torch.empty(BATCH, WIDTH)
        given, target = ((x,) if place == 0 else ()), ({"target": x} if place == stages - 1 else {})
        return lambda: schedule.step(*given, **target)

    return program


PLANS: dict[str, tuple[Callable[[FakeWorld], Callable[[], object]], dict[str, int]]] = {
    "FSDP2 and tensor parallelism": (step_of_fsdp_and_tp, {"dp": 2, "tp": 2}),
    "GPipe": (step_of_a_pipeline(ScheduleGPipe), {"pp": 2, "dp": 2, "tp": 2}),
    "1F1B": (step_of_a_pipeline(Schedule1F1B), {"pp": 4, "dp": 1, "tp": 2}),
}


@pytest.mark.parametrize("device", [None, "h100_sxm"])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("plan", PLANS)
def test_the_ranks_of_a_plan_play_against_each_other(plan: str, lower: bool, device: str | None, tmp_path: pathlib.Path) -> None:
    program, mesh = PLANS[plan]
    ranks = range(torch.Size(mesh.values()).numel())
    first, *others = worlds = trace(program, ranks=ranks, mesh=mesh, cost="nvlink4", device=device)
    paths = first.write_chakra(tmp_path / "step", *others, lower=lower)
    assert paths == [str(tmp_path / f"step.{rank}.et") for rank in ranks]
    files = [read_traces.read_chakra(pathlib.Path(path)) for path in paths]

    for rank, (metadata, nodes) in enumerate(files):
        assert (metadata["attr"]["rank"], metadata["attr"]["world_size"]) == (rank, len(ranks))
        calls = [node for node in nodes if node["type"] != read_traces.COMPUTE]
        recorded = [call for call in worlds[rank].calls if not call.is_compute]
        assert [node["name"] for node in calls] == [call.op for call in recorded]
        assert (len(nodes) > len(calls)) == (device is not None)
        # No call moves nothing where it is lowered.
        for node, call in zip(calls, recorded, strict=True):
            attributes = node["attr"]
            if node["type"] == read_traces.COLLECTIVE:
                assert not lower or (attributes["comm_type"] in SIMULATED and attributes["comm_size"] > 0), node
            else:
                assert attributes["comm_size"] == call.payload > 0
                assert call.peer in (attributes["comm_src"], attributes["comm_dst"])
        names = {metadata["attr"][f"process_group {node['attr']['pg_name']}"][0] for node in calls if node["type"] == read_traces.COLLECTIVE}
        assert names <= set(ranks)
    # Each send has its recv.
    messages: dict[int, Counter[tuple[int, int, int]]] = {}
    for kind in (read_traces.SEND, read_traces.RECV):
        messages[kind] = Counter(
            tuple(node["attr"][f"comm_{name}"] for name in ("src", "dst", "tag")) for _, nodes in files for node in nodes if node["type"] == kind
        )
    assert messages[read_traces.SEND] == messages[read_traces.RECV] and bool(messages[read_traces.SEND]) == ("pp" in mesh)

    ends = read_traces.simulated([pathlib.Path(path) for path in paths], SIMULATED if lower else ANY)
    # Ranks of one stage do the same.
    of_stage = len(ranks) // mesh.get("pp", 1)
    for stage in range(mesh.get("pp", 1)):
        assert len({round(end, 6) for end in ends[stage * of_stage : (stage + 1) * of_stage]}) == 1 and ends[stage * of_stage] > 0


def test_without_lowering_a_simulator_refuses_a_barrier(tmp_path: pathlib.Path) -> None:
    """The check above has teeth."""
    first, *others = trace(step_of_fsdp_and_tp, ranks=range(4), mesh={"dp": 2, "tp": 2})
    paths = [pathlib.Path(path) for path in first.write_chakra(tmp_path / "step", *others)]
    with pytest.raises(SystemExit, match="no simulator runs"):
        read_traces.simulated(paths, SIMULATED)
    with pytest.raises(SystemExit, match="nodes that wait for ever"):
        read_traces.simulated(paths[:3], ANY)


def test_a_trace_has_the_module(tmp_path: pathlib.Path) -> None:
    with fake_world(rank=1, mesh={"dp": 1, "tp": 2}) as world, torch.device("meta"):
        parallelize_module(layer := Layer(), world.mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        layer(torch.empty(BATCH, WIDTH))
    assert world.write_chakra(tmp_path / "c" / "step") == [str(tmp_path / "c" / "step.1.et")]
    _, nodes = read_traces.read_chakra(tmp_path / "c" / "step.1.et")
    assert [(node["name"], node["attr"]["module"]) for node in nodes] == [("all_reduce", "down")]


def test_a_barrier_is_a_byte_a_member_where_it_is_lowered(tmp_path: pathlib.Path) -> None:
    with fake_world(rank=1, mesh={"tp": 3}) as world:
        dist.barrier()
    kinds = []
    for lower in (False, True):
        world.write_chakra(tmp_path / "barrier", lower=lower)
        _, [node] = read_traces.read_chakra(tmp_path / "barrier.1.et")
        kinds.append((node["name"], node["attr"]["comm_type"], node["attr"]["comm_size"]))
    assert kinds == [("barrier", read_traces.BARRIER, 0), ("barrier", read_traces.ALL_REDUCE, 3)]


def test_a_build_without_protobuf_says_so(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rankloom.torch._ext, "has_chakra", False)
    world = fake_world(world_size=2)
    text = r"^write_chakra: this rankloom was built without protobuf, want one built with libprotobuf-dev$"
    with pytest.raises(RuntimeError, match=text):
        world.write_chakra(tmp_path / "step")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="Chakra's traces are not tested"):
        needs_chakra()
