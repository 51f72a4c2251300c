"""Estimates of steps in a fake world whose rank has a device. Figures are derived by hand from shapes and peaks."""

import copy
import dataclasses
import gc
import json
import math
import pathlib
import pickle
import sys
import textwrap
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rankloom.torch import Device, Estimate, FakeWorld, Link, across_nodes, devices, estimate, fake_world, links
from rankloom_command import record, run_file
from rankloom_command.text import show
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples" / "pytorch_trace"))
import plans
import published
import transformer

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

N = 1024
PRODUCT = 2 * N**3  # FLOPs of a product of two squares
SQUARE = 2 * N * N  # bytes of one, in bfloat16
PRODUCTS = Device("products", {"bfloat16": 1e12, "float32": 1e12}, 1e30)  # where only products take time
MEMORY = Device("memory", {"bfloat16": 1e30, "float32": 1e30}, 1e9)  # where only bytes do


def square() -> torch.Tensor:
    return torch.empty(N, N, dtype=torch.bfloat16, device="meta")


# ---- kernels


def test_a_kernel_takes_its_roofline() -> None:
    with fake_world(world_size=2, device="h100_sxm", efficiency=0.5) as world:
        x = square()
        world.clear()
        x @ x
        x + x
        torch.empty_like(x).copy_(x)
        x.zero_()
        x.view(-1)
    products, bytes_ = devices["h100_sxm"].flops["bfloat16"], devices["h100_sxm"].bytes_per_second
    expected = [("mm", 2 * PRODUCT / products), ("add", 3 * SQUARE / bytes_), ("copy_", 2 * SQUARE / bytes_), ("zero_", SQUARE / bytes_)]
    one = world.estimate().ranks[0]
    assert [(kernel.name, kernel.end - kernel.start) for kernel in one.slices] == [(name, pytest.approx(seconds)) for name, seconds in expected]
    assert [(call.op, call.is_compute) for call in world.calls] == [(name, True) for name, _ in expected]
    assert world.now == pytest.approx(sum(seconds for _, seconds in expected), rel=1e-4)  # the record counts nanoseconds
    assert (one.model_flops, one.hardware_flops) == (PRODUCT, PRODUCT)


def test_precision_is_that_of_the_operands_or_the_one_that_is_asked_for() -> None:
    device = Device("two", {"bfloat16": 1e12, "float8_e4m3fn": 2e12, "float32": 1e11, "tfloat32": 5e11}, 1e30)
    times = []
    for dtype, matmul_dtype in ((torch.bfloat16, None), (torch.bfloat16, torch.float8_e4m3fn), (torch.float32, None)):
        with fake_world(world_size=2, device=device, matmul_dtype=matmul_dtype) as world:
            x = square().to(dtype)
            world.clear()
            x @ x
        times.append(world.estimate().time)
    assert times == [pytest.approx(PRODUCT / peak) for peak in (1e12, 2e12, 1e11)]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with fake_world(world_size=2, device=device) as world:
            square().float() @ square().float()
        assert world.estimate().time == pytest.approx(PRODUCT / 5e11)
    finally:
        torch.set_float32_matmul_precision(before)


def test_converting_operands_to_eight_bits_takes_bytes() -> None:
    with fake_world(world_size=2, device=dataclasses.replace(MEMORY, flops={"bfloat16": 1e30, "float32": 1e30, "float8_e4m3fn": 1e30})) as world:
        x = square()
        world.clear()
        x @ x
    plain = world.estimate().time
    flops = {"bfloat16": 1e30, "float32": 1e30, "float8_e4m3fn": 1e30}
    with fake_world(world_size=2, device=dataclasses.replace(MEMORY, flops=flops), matmul_dtype="float8_e4m3fn") as world:
        x = square()
        world.clear()
        x @ x
    # Each of two operands: read for the largest value, read, and written as bytes.
    assert world.estimate().time - plain == pytest.approx(2 * (2 * SQUARE + N * N) / 1e9)


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_flops_are_those_of_torchs_counter(kind: str) -> None:
    config = transformer.Config(dim=64, layers=2, heads=4, kv_heads=4, hidden=128, vocabulary=256)

    def program() -> None:
        model = transformer.Transformer(config, 32)
        tokens = torch.zeros(2, 32, dtype=torch.int64)
        transformer.cross_entropy(model(tokens), tokens).backward()

    def within() -> Any:
        return FakeTensorMode() if kind == "fake" else torch.device("meta")

    with torch.device("cpu"), FlopCounterMode(display=False) as counter:
        model = transformer.Transformer(config, 32)
        tokens = torch.zeros(2, 32, dtype=torch.int64)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            transformer.cross_entropy(model(tokens), tokens).backward()
    with fake_world(world_size=2, device="h100_sxm") as world, within():
        program()
    # The kernel of attention computes scores a second time for its backward: 5 products instead of 4.
    scores = config.layers * 2 * (2 * 4 * 32 * 32 * 16)
    assert world.estimate().ranks[0].model_flops == counter.get_total_flops() + scores


def test_attention_is_one_kernel_that_skips_what_is_masked() -> None:
    shape, time = (2, 4, 256, 64), {}
    for causal in (False, True):
        with fake_world(world_size=2, device=PRODUCTS) as world:
            q, k, v = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for _ in range(3))
            world.clear()
            assert nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).shape == shape
        one = world.estimate().ranks[0]
        assert len(one.slices) == 1 and one.model_flops == 4 * 2 * 4 * 256 * 256 * 64
        time[causal] = one.time
    assert time[True] == pytest.approx(time[False] / 2)


def test_neighbours_are_one_kernel_if_compiled() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.relu((x * 2 + 1) * x) @ x

    times = {}
    for compiled in (False, True):
        with fake_world(world_size=2, device=MEMORY, compiled=compiled) as world:
            x = square()
            world.clear()
            program(x)
        one = world.estimate().ranks[0]
        times[compiled] = (one.time, [kernel.name for kernel in one.slices])
    product = 3 * SQUARE
    assert times[False] == (pytest.approx((2 + 2 + 3 + 2) * SQUARE / 1e9 + product / 1e9), ["mul", "add", "mul", "relu", "mm"])
    assert times[True] == (pytest.approx(2 * SQUARE / 1e9 + product / 1e9), ["fused", "mm"])


def test_recomputation_is_hardware_flops_only() -> None:
    with fake_world(world_size=2, device=PRODUCTS) as world, torch.device("meta"):
        layer = nn.Linear(N, N, bias=False, dtype=torch.bfloat16)
        x = square().requires_grad_()
        world.clear()
        checkpoint(lambda x: torch.relu(layer(x)) * 2, x, use_reentrant=False).sum().backward()
    step = world.estimate()
    one = step.ranks[0]
    assert (one.model_flops, one.hardware_flops) == (3 * PRODUCT, 4 * PRODUCT)
    assert one.by_phase["recompute"] == pytest.approx(PRODUCT / 1e12) and one.by_phase["backward"] == pytest.approx(2 * PRODUCT / 1e12)
    assert (step.mfu, step.hfu) == (pytest.approx(0.75), pytest.approx(1))


# ---- streams


def test_a_call_that_is_waited_for_at_once_is_exposed() -> None:
    link = Link(latency=0, bytes_per_second=1e9)
    with fake_world(mesh={"dp": 2, "tp": 2}, cost={"dp": link, "tp": link}, device=PRODUCTS) as world:
        x = square()
        world.clear()
        x @ x
        dist.all_reduce(x, group=world.mesh.get_group("tp"))
        x @ x
    step, product, call = world.estimate(), PRODUCT / 1e12, SQUARE / 1e9
    assert step.time == pytest.approx(2 * product + call)
    assert step.compute == pytest.approx(2 * product) and step.exposed == {"tp": pytest.approx(call)} and step.idle == pytest.approx(0)


def test_a_call_is_hidden_behind_kernels_until_it_is_waited_for() -> None:
    product = PRODUCT / 1e12
    for seconds, exposed in ((0.5 * product, 0), (1.75 * product, 0.75 * product)):
        cost = Link(latency=0, bytes_per_second=SQUARE / seconds)
        with fake_world(mesh={"dp": 2}, cost=cost, device=PRODUCTS) as world:
            x = square()
            world.clear()
            work = dist.all_reduce(x, async_op=True)
            x @ x
            work.wait()
            x @ x
        step = world.estimate()
        assert step.time == pytest.approx(2 * product + exposed)
        assert step.at(0.5).time == pytest.approx(4 * product + max(0, seconds - 2 * product)) and step.at(0.5).efficiency == 0.5
        assert step.exposed["dp"] == pytest.approx(exposed) and step.communication["dp"] == pytest.approx(seconds)


def test_two_groups_share_what_both_expose() -> None:
    link = Link(latency=0, bytes_per_second=1e9)
    with fake_world(mesh={"dp": 2, "tp": 2}, cost={"dp": link, "tp": link}, device=PRODUCTS) as world:
        x = square()
        world.clear()
        works = [dist.all_reduce(x, group=world.mesh.get_group(dim), async_op=True) for dim in ("dp", "tp")]
        for work in works:
            work.wait()
        x @ x
    step, call = world.estimate(), SQUARE / 1e9
    assert step.time == pytest.approx(PRODUCT / 1e12 + call)
    assert step.exposed == {"dp": pytest.approx(call / 2), "tp": pytest.approx(call / 2)}


def sharded(world: FakeWorld, layers: int, width: int = N) -> nn.Module:
    model = nn.Sequential(*(nn.Linear(width, width, bias=False, dtype=torch.bfloat16) for _ in range(layers)))
    for layer in model:
        fully_shard(layer, mesh=world.mesh["dp"])
    return fully_shard(model, mesh=world.mesh["dp"])


@pytest.mark.parametrize("slower", [0.5, 4])
def test_fsdp2s_own_streams_hide_gathers_and_scatters(slower: float) -> None:
    """slower: how long a gather takes, in products."""
    layers, product = 4, PRODUCT / 1e12
    seconds = slower * product
    cost = Link(latency=0, bytes_per_second=SQUARE / 2 / seconds)  # of two ranks, one sends half
    with fake_world(mesh={"dp": 2}, cost=cost, device=PRODUCTS) as world, FakeTensorMode():
        model = sharded(world, layers)
        x = torch.empty(N, N, dtype=torch.bfloat16, requires_grad=True)
        world.clear()
        model(x).sum().backward()
    step = world.estimate()
    gathers = [one for one in step.ranks[0].slices if one.name == "all_gather_into_tensor"]
    assert [one.module for one in gathers] == [str(i) for i in (0, 1, 2, 3, 3, 2, 1, 0)]
    assert step.compute == pytest.approx(3 * layers * product)
    if slower < 1:
        # The first gather, and the last layer's scatter; all others run beside products.
        assert step.time == pytest.approx(3 * layers * product + 2 * seconds)
        assert step.exposed["dp"] == pytest.approx(2 * seconds)
    else:
        # One call after the other without a pause, and products beside all of them.
        assert step.time == pytest.approx(3 * layers * seconds)
        assert step.exposed["dp"] == pytest.approx(step.time - step.compute)


def test_an_optimizer_waits_for_calls_that_nobody_waited_for() -> None:
    cost = Link(latency=1.0, bytes_per_second=1e30)
    with fake_world(mesh={"dp": 2}, cost=cost, device=PRODUCTS) as world, torch.device("meta"):
        layer = nn.Linear(N, N, bias=False, dtype=torch.bfloat16)
        model = nn.parallel.DistributedDataParallel(layer, init_sync=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        world.clear()
        model(square()).sum().backward()
        optimizer.step()
    step = world.estimate()
    all_reduce = 2.0  # two steps of a ring of two
    assert step.time == pytest.approx(2 * PRODUCT / 1e12 + all_reduce) and step.exposed["dp"] == pytest.approx(all_reduce)
    assert next(one for one in step.ranks[0].slices if one.phase == "optimizer").start >= all_reduce


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adagrad])
@pytest.mark.parametrize("fused", [False, True])
def test_the_first_step_takes_what_later_ones_take(optimizer: Any, fused: bool) -> None:
    def program(world: FakeWorld, before: int) -> Callable[[], object]:
        model = nn.Sequential(nn.Linear(N, N, bias=False), nn.Linear(N, N, bias=False))
        own = optimizer(model.parameters(), fused=fused)

        def step() -> None:
            model(torch.empty(N, N)).sum().backward()
            own.step()
            own.zero_grad()

        for _ in range(before):
            step()
        return step

    steps = [
        estimate(lambda world, before=before: program(world, before), mesh={"dp": 2}, cost="nvlink4", device="h100_sxm")
        for before in range(3)
    ]
    assert steps[0].time == steps[1].time == steps[2].time > 0
    assert steps[0].peak_memory == steps[1].peak_memory == steps[2].peak_memory


def test_zeros_like_reads_nothing() -> None:
    with fake_world(world_size=2, device="h100_sxm") as world, FakeTensorMode():
        torch.zeros_like(torch.empty(N, N))
    assert [(one.name, one.bytes) for one in world.estimate().ranks[0].slices] == [("zeros_like", 4 * N * N)]


def test_what_a_step_was_taken_for_is_said() -> None:
    device = Device("products", {"float32": 1e12}, 1e30)
    told = []
    with fake_world(mesh={"dp": 2}, device=device) as world, FakeTensorMode():
        model = nn.parallel.DistributedDataParallel(nn.Linear(N, N, bias=False, dtype=torch.float16))
        x = torch.empty(N, N, dtype=torch.float16)
        for _ in range(2):
            world.clear()
            model(x).sum().backward()
            told.append(world.estimate().not_modelled)
    first_step = [text for text in told[0] if text not in told[1]]
    assert first_step == [
        "a later step of DistributedDataParallel: in its first one a model reduces when backward is over, from the second on beside it"
        " (do one step before the one that counts)"
    ]
    with fake_world(mesh={"dp": 2}, cost="nvlink4", device=device) as world, FakeTensorMode():
        old, new = (nn.parallel.DistributedDataParallel(nn.Linear(N, N, bias=False)) for _ in range(2))
        for _ in range(2):
            old(torch.empty(N, N)).sum().backward()
        world.clear()
        for model in (new, old):
            model(torch.empty(N, N)).sum().backward()
    assert [text for text in world.estimate().not_modelled if "DistributedDataParallel" in text] == first_step
    assert told[1][:2] == [
        "the peak of float16, which the device does not have: that of float32 is taken",
        "what calls take: cost is not given, and all of them take no time (cost='infiniband_ndr' or the like)",
    ]
    with fake_world(mesh={"dp": 2}, cost="nvlink4", device=device) as world, FakeTensorMode():
        dist.all_reduce(nn.Linear(N, N)(torch.empty(N, N)))
    assert not [text for text in world.estimate().not_modelled if "DistributedDataParallel" in text or "peak of" in text or "cost" in text]


# ---- memory


def test_memory_by_kind() -> None:
    size = 4 * N * N
    with fake_world(world_size=2, device="h100_sxm") as world, torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(N, N, bias=False) for _ in range(3)))
        model.register_buffer("mask", torch.empty(N, N))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = torch.empty(N, N)
        world.clear()
        model(x).sum().backward()
        optimizer.step()
        step = world.estimate()
    assert step.peak_memory["parameters"] == 3 * size and step.peak_memory["buffers"] == size
    assert step.peak_memory["optimizer"] == 3 * size  # there from the beginning, as in all steps but the first
    # At the end of backward, or in it: what was saved goes as gradients come. x and the gradient that passes are there.
    gradients, activations = step.peak_memory["gradients"], step.peak_memory["activations"]
    assert gradients + activations >= 4 * size and gradients <= 3 * size
    at_end = step.ranks[0].memory[-1][1]
    assert at_end["gradients"] == 3 * size and at_end["activations"] == size
    assert step.fits and step.peak_bytes == sum(step.peak_memory.values())


def test_memory_of_sharded_parameters() -> None:
    layers, world_size = 4, 8
    with fake_world(mesh={"dp": world_size}, device="h100_sxm") as world, FakeTensorMode():
        model = sharded(world, layers)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.empty(16, N, dtype=torch.bfloat16)
        world.clear()
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step = world.estimate()
    shard = layers * SQUARE // world_size
    assert step.ranks[0].memory[0][1]["parameters"] == shard
    assert step.peak_memory["optimizer"] // (2 * shard) == 1  # and a count of steps for each
    # A layer whose parameters are gathered, and the next one.
    most = max(kinds["parameters"] for _, kinds in step.ranks[0].memory)
    assert shard + SQUARE <= most <= shard + 2 * SQUARE
    assert step.ranks[0].memory[-1][1]["parameters"] == shard


# ---- pipelines

STAGES = 4


class Stage(nn.Module):
    """One product forward and two backward, the first stage's too."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(1, dtype=torch.bfloat16))
        self.linear = nn.Linear(N, N, bias=False, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x * self.scale)


def pipeline(kind: Any, microbatches: int, of_rank: int = 1, **stage: Any) -> Callable[[FakeWorld], Callable[[], object]]:
    def program(world: FakeWorld) -> Callable[[], object]:
        group = world.mesh.get_group("pp")
        place = world.mesh["pp"].get_local_rank()
        numbers = range(place, STAGES * of_rank, STAGES)
        stages = [PipelineStage(Stage(), i, STAGES * of_rank, torch.device("cpu"), group=group, **stage) for i in numbers]
        schedule = kind(stages if of_rank > 1 else stages[0], microbatches, loss_fn=lambda y, _: y.sum())
        x = torch.empty(microbatches * N, N, dtype=torch.bfloat16)
        arguments = (x,) if place == 0 else ()
        target = {"target": x} if place == STAGES - 1 else {}
        return lambda: schedule.step(*arguments, **target)

    return program


@pytest.mark.parametrize("microbatches", [4, 8])
@pytest.mark.parametrize("kind", [ScheduleGPipe, Schedule1F1B])
def test_the_bubble_of_a_pipeline(kind: Any, microbatches: int) -> None:
    step = estimate(pipeline(kind, microbatches), mesh={"pp": STAGES}, cost=Link(0, 1e30), device=PRODUCTS)
    product = PRODUCT / 1e12
    assert [rank.rank for rank in step.ranks] == [0, 1, 2, 3]
    assert [rank.compute for rank in step.ranks] == [pytest.approx(3 * microbatches * product)] * STAGES
    assert step.time == pytest.approx(3 * (microbatches + STAGES - 1) * product)
    assert step.idle == pytest.approx(3 * (STAGES - 1) * product)
    assert step.mfu == pytest.approx(microbatches / (microbatches + STAGES - 1))
    for rank in step.ranks:
        sends = [one for one in rank.slices if one.name == "send"]
        assert len(sends) == microbatches * (1 if rank.rank in (0, STAGES - 1) else 2)
        assert {one.bytes for one in sends} == {SQUARE}


def test_an_interleaved_pipeline_has_a_smaller_bubble() -> None:
    microbatches, of_rank, product = 8, 2, PRODUCT / 1e12
    program = pipeline(ScheduleInterleaved1F1B, microbatches, of_rank)
    step = estimate(program, mesh={"pp": STAGES}, cost=Link(0, 1e30), device=PRODUCTS)
    assert step.compute == pytest.approx(3 * microbatches * of_rank * product)
    assert step.time == pytest.approx(3 * (microbatches * of_rank + STAGES - 1) * product)


def slices_of(step: Estimate) -> list[list[tuple[Any, ...]]]:
    """Of each rank, with times in nanoseconds."""
    return [[(*one[:2], round(one.start * 1e9), round(one.end * 1e9), *one[4:]) for one in rank.slices] for rank in step.ranks]


@pytest.mark.parametrize(("kind", "of_rank"), [(ScheduleGPipe, 1), (Schedule1F1B, 1), (ScheduleInterleaved1F1B, 2)])
def test_microbatches_after_the_second_are_repeated_and_not_traced(kind: Any, of_rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, forwards, steps = Stage.forward, [0], []

    def counted(self: Stage, x: torch.Tensor) -> torch.Tensor:
        forwards[0] += 1
        return forward(self, x)

    monkeypatch.setattr(Stage, "forward", counted)
    seconds = 0.25 * PRODUCT / 1e12
    for every, traced in ((True, 8), (False, 2)):
        forwards[0] = 0
        program = pipeline(kind, 8, of_rank)
        step = estimate(program, every_microbatch=every, mesh={"pp": STAGES}, cost=Link(0, SQUARE / seconds), device=PRODUCTS)
        assert forwards[0] == STAGES * of_rank * (1 + traced)  # once for shapes
        steps.append(step)
    whole, repeated = steps
    assert slices_of(repeated) == slices_of(whole)
    for name in ("time", "mfu", "hfu", "exposed", "communication", "idle"):
        assert getattr(repeated, name) == getattr(whole, name)
    assert repeated.peak_memory == pytest.approx(whole.peak_memory, abs=8)  # a scalar lives some kernels longer
    assert [one for one in repeated.not_modelled if one not in whole.not_modelled] == [
        "how microbatches differ: from the third on they are taken to be like the second (every_microbatch=True traces all)"
    ]
    assert repeated.at(0.5).time == whole.at(0.5).time > whole.time


def test_microbatches_of_other_shapes_are_traced() -> None:
    def program(world: FakeWorld) -> Callable[[], object]:
        group, place = world.mesh.get_group("pp"), world.mesh["pp"].get_local_rank()
        stage = PipelineStage(Stage(), place, 2, torch.device("cpu"), group=group)
        schedule = ScheduleGPipe(stage, 4)
        x = torch.empty(4 * N - 3, N, dtype=torch.bfloat16)  # the last microbatch has three rows less
        return lambda: schedule._step_microbatches([(one,) for one in x.chunk(4)] if place == 0 else None)

    flops = [
        estimate(program, ranks=[0], every_microbatch=every, mesh={"pp": 2}, device=PRODUCTS).ranks[0].model_flops for every in (True, False)
    ]
    assert flops[0] == flops[1] > 0


def test_a_schedule_that_splits_backward_is_traced_whole() -> None:
    program = pipeline(ScheduleInterleavedZeroBubble, 8, 2)
    step = estimate(program, mesh={"pp": STAGES}, cost=Link(0, 1e30), device=PRODUCTS)
    assert step.compute == pytest.approx(3 * 8 * 2 * PRODUCT / 1e12) and "microbatches" not in str(step.not_modelled)


def test_a_transfer_delays_the_stages_behind() -> None:
    seconds = 0.25 * PRODUCT / 1e12
    cost = Link(0, SQUARE / seconds)
    step = estimate(pipeline(ScheduleGPipe, 4), mesh={"pp": STAGES}, cost=cost, device=PRODUCTS)
    product = PRODUCT / 1e12
    # To the last stage, and back to the first; and since this schedule comes to a recv when the product before is done, for each
    # microbatch after the first.
    assert step.time == pytest.approx(3 * (4 + STAGES - 1) * product + 2 * (4 - 1 + STAGES - 1) * seconds)


def test_one_stage_alone_wants_shapes() -> None:
    program = pipeline(Schedule1F1B, 4)
    text = (
        r"^fake_world: stage 2 asks stage 1 of 4 for shapes: have rank 2 of 4 alone, want PipelineStage\(input_args=...\), or fake "
        r"worlds of the ranks with earlier stages before$"
    )
    with pytest.raises(RuntimeError, match=text):
        estimate(program, ranks=[2], mesh={"pp": STAGES}, device=PRODUCTS)
    shape = square().requires_grad_()
    given = pipeline(Schedule1F1B, 4, input_args=(shape,), output_args=(shape,))
    step = estimate(given, ranks=[2], mesh={"pp": STAGES}, device=PRODUCTS)
    assert step.time == pytest.approx(3 * 4 * PRODUCT / 1e12)
    assert "the wait for what ranks 1, 3 send: they are not among these" in step.not_modelled


def test_ranks_that_wait_for_a_send_that_is_not_there() -> None:
    worlds = []
    for rank in range(2):
        with fake_world(rank, 2, device=PRODUCTS) as world:
            dist.recv(square(), src=1 - rank)
        worlds.append(world)
    with pytest.raises(RuntimeError, match=r"^estimate: ranks 0, 1 wait for sends that were not recorded, want worlds of one and the same"):
        worlds[0].estimate(worlds[1])


# ---- volumes


def test_volumes_of_a_plan_are_the_formulas() -> None:
    """FSDP2 over tensor and sequence parallelism: bytes by dimension, to the byte."""
    dp, tp, batch, sequence = 4, 2, 3, 16
    config = transformer.Config(dim=32, layers=3, heads=4, kv_heads=2, hidden=64, vocabulary=128)

    with fake_world(mesh={"dp": dp, "tp": tp}, device="h100_sxm") as world, FakeTensorMode():
        model = transformer.parallelized(transformer.Transformer(config, sequence), world.mesh)
        tokens = torch.zeros(batch, sequence, dtype=torch.int64)
        world.clear()
        with transformer.loss_parallel():
            transformer.cross_entropy(model(tokens), tokens).backward()

    def sums(dim: str) -> dict[str, tuple[int, int]]:
        return {row.op: (row.calls, row.ring_bytes) for row in world.totals if row.group == dim}

    # Parameters: those of products and of the embedding are a tp-th part, norms whole; groups are the blocks and the rest.
    d, hidden, width = config.dim, config.hidden, config.dim // config.heads
    block = (2 * d * d + 2 * d * config.kv_heads * width + 3 * d * hidden) // tp + 2 * d
    rest = 2 * config.vocabulary * d // tp + d
    assert config.parameters == config.layers * ((block - 2 * d) * tp + 2 * d) + (rest - d) * tp + d
    # bfloat16 is gathered: each block forward and backward, but the last one, which stays; the rest once, as FSDP2 keeps a root.
    gathered = (2 * config.layers - 1) * block + 2 * rest
    scattered = config.layers * block + rest
    assert sums("dp") == {
        "all_gather_into_tensor": (2 * config.layers - 1 + 2, 2 * gathered * (dp - 1) // dp),
        "reduce_scatter_tensor": (config.layers + 1, 4 * scattered * (dp - 1) // dp),
    }
    # Activations: two gathers and two scatters a block, one of each for the ends, and backward the other way round.
    pairs, one = 2 * (2 * config.layers + 1), 2 * batch * sequence * d * (tp - 1) // tp
    # Norms' gradients are sums over the sequence's parts; the loss of a sharded vocabulary wants three numbers a token.
    norms, tokens_ = (2 * config.layers + 1) * 2 * d, 3 * 4 * batch * sequence
    assert sums("tp") == {
        "all_gather_into_tensor_coalesced": (pairs, pairs * one),
        "reduce_scatter_tensor_coalesced": (pairs, pairs * one),
        "all_reduce": (2 * config.layers + 1 + 3, (norms + tokens_) * 2 * (tp - 1) // tp),
    }


def test_stages_without_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(transformer.CONFIGS, "tiny", transformer.Config(32, 6, 4, 4, 64, 128))
    plan = plans.Plan("tiny", {"pp": 2, "dp": 2}, 2, 16, "none", 2, "Interleaved1F1B", 4)
    step = plans.estimate_of(plan, 0.5)
    products = [{one.module for one in rank.slices if one.name == "mm" and one.phase == "forward"} for rank in step.ranks]
    layers = [{name.split(".")[1] for name in names if name.startswith("layers.")} for names in products]
    assert layers == [{"1", "3", "5"}, {"0", "2", "4"}]  # of eight stages in turn, the first and the last without one
    assert "output" in products[1] and "output" not in products[0]


@pytest.mark.parametrize("gated", [True, False])
def test_the_plans_of_the_example(gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, microbatches, sequence = 4, 4, 16
    config = transformer.Config(32, layers, 4, 4, 64, 128, gated=gated, positions=0 if gated else sequence)
    monkeypatch.setitem(transformer.CONFIGS, "tiny", config)
    mesh = {"pp": 2, "dp": 2, "tp": 2}
    times = {}
    for schedule, of_rank in (("1F1B", 1), ("Interleaved1F1B", 2)):
        plan = plans.Plan("tiny", mesh, 8, sequence, "full", microbatches, schedule, of_rank, compiled=True)
        step = plans.estimate_of(plan, 0.5)
        times[schedule] = step.time
        assert [rank.rank for rank in step.ranks] == [0, 4] and plan.tokens == 2 * 8 * 16
        for rank in step.ranks:
            # Of 2 * of_rank stages in turn: over each border one send forward and one backward.
            sends = sum(one.name == "send" for one in rank.slices)
            assert sends == microbatches * (2 * of_rank - 1)
            # A microbatch of two sequences, each rank of tensor parallelism its half of the tokens, in bfloat16.
            assert {one.bytes for one in rank.slices if one.name == "send"} == {2 * sequence // 2 * config.dim * 2}
            assert rank.hardware_flops > rank.model_flops > 0 and {"tp", "dp"} <= set(rank.communication)
    assert times["Interleaved1F1B"] < 2 * times["1F1B"]


def test_points_that_are_published() -> None:
    assert published.POINTS["8b"].time == pytest.approx(2 * 8192 / 5605) and published.POINTS["405b-1f1b"].time == pytest.approx(40.96)
    assert transformer.CONFIGS["llama3-8b"].parameters == 8_030_261_248
    assert transformer.CONFIGS["llama3-405b"].parameters == 405_853_388_800
    assert transformer.layers_of_stages(126, 8) == [15, 16, 16, 16, 16, 16, 16, 15]
    assert transformer.layers_of_stages(126, 16) == [7, *[8] * 14, 7]
    assert transformer.layers_of_stages(126, 128) == [0, *[1] * 126, 0]
    assert published.POINTS["405b-8192"].plan.ranks == 8192 and published.POINTS["405b-8192"].time == pytest.approx(11.6, abs=0.005)
    assert published.POINTS["175b"].plan.ranks == 512 and published.POINTS["175b"].time == pytest.approx(9.93, abs=0.005)


def published_rows(*columns: str) -> dict[str, list[str]]:
    """Of the table in docs/fake.md whose first columns are these, by their points."""
    text = (pathlib.Path(__file__).parents[2] / "docs" / "fake.md").read_text().split("### Against published steps")[1]
    table = text.split(f"\n| {' | '.join(columns)} |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {row[0]: row[1:] for row in rows}


def test_the_table_of_the_docs_is_of_these_points() -> None:
    rows = published_rows("point", "GPUs")
    assert list(rows) == list(published.POINTS)
    for name, (ranks, time, estimated, error, *_) in rows.items():
        point = published.POINTS[name]
        assert (int(ranks), time) == (point.plan.ranks, f"{point.time:.2f} s")
        assert float(error.rstrip("%")) / 100 == pytest.approx(float(estimated.rstrip(" s")) / point.time - 1, abs=0.004)


def test_the_docs_compare_the_memory_that_is_published() -> None:
    rows, estimates = published_rows("point", "published"), published_rows("point", "GPUs")
    assert list(rows) == [name for name, point in published.POINTS.items() if point.memory]
    for name, (memory, estimated, error) in rows.items():
        assert (memory, estimated) == (f"{published.POINTS[name].memory} GiB", estimates[name][-1])
        assert error == f"{float(estimated.split()[0]) / published.POINTS[name].memory - 1:+.0%}"


def test_the_docs_name_all_that_a_point_takes_for_granted() -> None:
    said = {one: row for names, row in published_rows("point", "source").items() for one in names.split(", ")}
    assert list(said) == list(published.POINTS)
    for name, (source, assumed) in said.items():
        point = published.POINTS[name]
        assert assumed == point.assumed and source.replace("the same", published._TITAN) == point.source


def test_one_constant_for_all_points() -> None:
    first, second = published.Line(1.0, 1.0), published.Line(0.5, 0.5)  # seconds, at an efficiency of 1: 2 and 1
    plan = published.POINTS["8b"].plan
    points = [published.Point(plan, plan.tokens / plan.ranks / time, "") for time in (3.0, 1.5)]
    assert first.efficiency(3.0) == second.efficiency(1.5) == 0.5
    assert published.calibrated(list(zip((first, second), points, strict=True))) == 0.5
    # One of them too slow by as much as the other one is too fast.
    points = [published.Point(plan, plan.tokens / plan.ranks / time, "") for time in (3.3, 1.35)]
    best = published.calibrated(list(zip((first, second), points, strict=True)))
    errors = [one.time(best) / point.time - 1 for one, point in zip((first, second), points, strict=True)]
    assert errors[0] == pytest.approx(-errors[1], abs=0.005) and errors[0] < 0


def test_across_nodes() -> None:
    link = across_nodes("nvlink4", "infiniband_ndr", per_node=8)
    assert link.bytes_per_second == 8 * 50e9 and link.latency == pytest.approx((7 * 3.4e-6 + 9.6e-6) / 8)
    assert across_nodes("nvlink4", "infiniband_ndr", per_node=16).bytes_per_second == links["nvlink4"].bytes_per_second
    one = across_nodes(per_node=1)
    assert (one.latency, one.bytes_per_second) == (links["infiniband_ndr"].latency, links["infiniband_ndr"].bytes_per_second)
    with pytest.raises(ValueError, match=r"^across_nodes: per_node is 0, want a number of at least 1$"):
        across_nodes(per_node=0)


# ---- what is told


def step_of(world: FakeWorld) -> Callable[[], object]:
    layer = nn.Linear(N, N, bias=False, dtype=torch.bfloat16)
    x = torch.empty(N, N, dtype=torch.bfloat16)

    def step() -> None:
        layer(x).sum().backward()
        dist.all_reduce(layer.weight.grad)

    return step


def test_the_table_and_the_trace(tmp_path: pathlib.Path) -> None:
    step = estimate(step_of, mesh={"dp": 4}, cost="nvlink4", device="h100_sxm", efficiency=0.7)
    lines = str(step).splitlines()
    assert lines[0] == "step of rank 0 on h100_sxm, at 70.0% of its peak"
    assert [line.split("  ")[1].strip() for line in lines[1:7]] == ["time", "MFU", "HFU", "compute", "exposed dp", "idle"]
    assert f"    - {step.not_modelled[0]}" in lines and "torch.compile" in str(step)
    step.write_perfetto(tmp_path / "new" / "step.json")
    events = json.loads((tmp_path / "new" / "step.json").read_text())["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert set(lanes.values()) == {"compute", "dp"}
    products = [event for event in events if event["name"] == "mm"]
    assert [(lanes[event["tid"]], event["args"]["phase"], event["args"]["FLOPs"]) for event in products] == [
        ("compute", "forward", PRODUCT),
        ("compute", "backward", PRODUCT),
    ]
    assert products[0]["args"]["Module"] == "Linear"
    memory = [event["args"] for event in events if event["ph"] == "C"]
    assert memory and set(memory[0]) == {"parameters", "gradients", "optimizer", "activations", "buffers"}
    shown = show(record.read(str(tmp_path / "new" / "step.json")), 0)
    assert shown.startswith("Estimate of a step: kernels and calls of 1 rank\n2 lanes, each a group of a rank: 0 compute, 0 dp\n")
    assert "  calls of rank 0, dp:\n    all_reduce seq 1 [group dp] (completed, " in shown
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"^write_perfetto: .*file/step.json: (File exists|Not a directory)$"):
        step.write_perfetto(tmp_path / "file" / "step.json")


def test_a_stream_that_others_left_is_not_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = estimate(step_of, mesh={"dp": 4}, cost="nvlink4", device="h100_sxm")
    left = torch.cpu.Stream()
    monkeypatch.setattr(torch.cpu, "_current_stream", left)
    assert estimate(step_of, mesh={"dp": 4}, cost="nvlink4", device="h100_sxm") == expected
    assert torch.cpu._current_stream is left


def test_small_shares_of_the_peak_have_digits() -> None:
    def small(world: FakeWorld) -> Callable[[], object]:
        layer, x = nn.Linear(32, 32), torch.empty(4, 32)
        return lambda: (layer(x).sum().backward(), dist.all_reduce(layer.weight.grad))

    step = estimate(small, mesh={"dp": 4}, cost="nvlink4", device="h100_sxm", efficiency=0.0004)
    assert 0 < step.mfu < 0.0005
    lines = str(step).splitlines()
    assert lines[0].endswith("at 0.04% of its peak")
    for line, share in zip(lines[2:4], (step.mfu, step.hfu), strict=True):
        told = float(line.split()[1].removesuffix("%")) / 100
        assert abs(told - share) <= 0.05 * share, line


def test_an_estimate_can_be_kept() -> None:
    step = estimate(step_of, mesh={"dp": 4}, cost="nvlink4", device="h100_sxm")
    for kept in (pickle.loads(pickle.dumps(step)), copy.deepcopy(step)):
        assert kept == step and str(kept) == str(step)
        with pytest.raises(RuntimeError, match=r"^at: this is a copy of an estimate, without its trace: want the one that estimate\(\) returned$"):
            kept.at(0.5)
    written = json.loads(json.dumps(dataclasses.asdict(step)))
    assert written["time"] == step.time and written["ranks"][0]["memory"][0][0] == 0
    assert step.at(0.5).time > step.time


def test_the_program_of_the_docs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = (pathlib.Path(__file__).parents[2] / "docs" / "fake.md").read_text()
    program = text.split("## Estimates")[1].split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(program, "program.py", "exec"), names)
    step = names["step"].ranks[0]
    # Forward, and backward of what was before it: of the first layer by its weight alone.
    assert step.model_flops == (3 * 8 - 1) * 2 * 16384 * 8192 * 8192
    assert "not modelled:" in capsys.readouterr().out and (tmp_path / "step.json").stat().st_size > 1000


def test_the_tool_of_the_docs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    section = (pathlib.Path(__file__).parents[2] / "docs" / "fake.md").read_text().split("### A tool of one's own")[1]
    program, shown = section.split("```python\n")[1].split("\n- ")[0].split("```\n")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(program, "tool.py", "exec"), names)
    assert capsys.readouterr().out == textwrap.dedent(shown).strip() + "\n"
    # Of a block's float32 parameters, cut in 8 by tensor parallelism but for the last bias, a ring of 4 brings three parts.
    block = 4 * (2 * 1024 * 4096 // 8 + 4096 // 8 + 1024)
    gathers = [call for call in names["first"].calls if call.op == "all_gather_into_tensor" and call.module == "0"]
    assert {call.payload for call in gathers} == {block} and {call.ring_bytes for call in gathers} == {block * 3 // 4}
    run = run_file.read(str(tmp_path / "step.rlrun"))
    assert run.fake is not None and [rank["rank"] for rank in run.fake["ranks"]] == [0, 32]


def test_a_model_with_data_is_told_of_once() -> None:
    with fake_world(rank=1, world_size=2, device="h100_sxm") as world, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            nn.Linear(4, 4)(torch.ones(4, 4))  # real
    texts = [str(one.message) for one in caught]
    assert len(texts) == 1 and texts[0].startswith(
        "fake_world: rank 1 of 2, addmm: have tensors with data, so that it is computed, which takes its time and memory; "
        "the meta device and FakeTensorMode need neither [test_estimate.py:"
    )
    assert world.estimate().ranks[0].model_flops == 2 * 2 * 4 * 4 * 4


def test_what_was_patched_is_as_before() -> None:
    def state() -> list[object]:
        names = ("wait_stream", "record_event", "wait_event")
        attributes = [vars(torch.cpu.Stream)[name] for name in names] + [torch.cpu.Event.record, torch.UntypedStorage.resize_]
        return [*attributes, PipelineStage._recv_meta, PipelineStage._send_meta]

    before = state()
    with pytest.raises(KeyError), fake_world(world_size=2, device="h100_sxm"):
        assert state() != before
        raise KeyError
    assert state() == before
    gc.collect()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"device": "h1000"},
            "fake_world: device is 'h1000', want a Device or one of the presets a100_sxm_80gb, b200, h100_sxm, h100_sxm_hbm2e, h200_sxm, mi300x",
        ),
        ({"device": 5}, "fake_world: device is 5, want a Device or the name of a preset (a100_sxm_80gb, "),
        ({"device": Device("own", {"float32": 0}, 1)}, "fake_world: device own has 0 FLOP/s of float32, want more than 0"),
        ({"device": Device("own", {"float16": 1}, 1)}, "fake_world: device own has peaks of float16, want one of float32 among them"),
        ({"device": Device("own", {"float32": 1}, 0)}, "fake_world: device own has 0 bytes per second, want more than 0"),
        ({"device": Device("own", {"float32": 1}, math.nan)}, "fake_world: device own has nan bytes per second, want more than 0"),
        ({"device": Device("own", {"float32": 1}, 1, -1)}, "fake_world: device own has -1 bytes of memory, want 0 or more"),
        ({"device": Device("own", {"float32": "1"}, 1)}, "fake_world: device own has '1' FLOP/s of float32, want more than 0"),
        ({"device": Device("own", 1e12, 1)}, "fake_world: device own has peaks 1000000000000.0, want FLOP/s by dtype, such as {'float32': 1e12}"),
        ({"device": "h100_sxm", "efficiency": 0}, "fake_world: efficiency is 0, want 0 < efficiency <= 1, a part of the peak"),
        ({"device": "h100_sxm", "efficiency": math.nan}, "fake_world: efficiency is nan, want 0 < efficiency <= 1"),
        (
            {"device": "a100_sxm_80gb", "matmul_dtype": torch.float8_e4m3fn},
            "fake_world: matmul_dtype is 'float8_e4m3fn', want one that device a100_sxm_80gb has a peak of: bfloat16, float16, tfloat32, float32",
        ),
        ({"compiled": True}, "fake_world: have efficiency, matmul_dtype or compiled, and no device: want device='h100_sxm' or the like"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        fake_world(world_size=2, **arguments)
    assert str(caught.value).startswith(text)


def test_what_cannot_be_estimated() -> None:
    with fake_world(rank=1, world_size=2) as plain:
        dist.barrier()
    with pytest.raises(RuntimeError, match=r"^fake_world: rank 1 of 2: it has no device, want fake_world\(device='h100_sxm'\) for an estimate$"):
        plain.estimate()
    with fake_world(world_size=2, device="h100_sxm") as world:
        dist.barrier()
    with pytest.raises(ValueError, match=r"^fake_world: rank 0 of 2: rank 0 is there twice, want the worlds of different ranks$"):
        world.estimate(world)
    with fake_world(rank=1, world_size=2, device="b200") as other:
        dist.barrier()
    with pytest.raises(ValueError, match=r"^estimate: rank 1 is on b200 at 100%, want h100_sxm at 100% as of rank 0$"):
        world.estimate(other)
    with pytest.raises(ValueError, match=r"^at: efficiency is 2, want 0 < efficiency <= 1"):
        world.estimate().at(2)
    with pytest.raises(ValueError, match=r"^estimate: have no device, want a Device or one of the presets a100_sxm_80gb, "):
        estimate(step_of, mesh={"dp": 2})
    with pytest.raises(ValueError, match=r"^estimate: have no ranks, want one or more$"):
        estimate(step_of, ranks=[], mesh={"dp": 2}, device="b200")
    with pytest.raises(ValueError, match=r"^estimate: the program returned None, want a function that does a step$"):
        estimate(lambda world: None, mesh={"dp": 2}, device="b200")  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match=r"^estimate: rank is 2, want 0 <= rank < world_size = 2$"):
        estimate(step_of, ranks=[2], mesh={"dp": 2}, device="b200")


def test_lookups_of_rows_move_these_rows() -> None:
    with fake_world(world_size=2, device=MEMORY) as world:
        table = torch.empty(100_000, N, dtype=torch.bfloat16, device="meta")
        tokens = torch.zeros(8, dtype=torch.int64, device="meta")
        world.clear()
        nn.functional.embedding(tokens, table), table[tokens], table.index_select(0, tokens)
    assert [(one.name, one.bytes) for one in world.estimate().ranks[0].slices] == [
        (name, 2 * 8 * 2 * N) for name in ("embedding", "index", "index_select")
    ]


def test_whether_a_step_fits_is_known_of_devices_with_memory() -> None:
    def step_on(memory: int) -> Estimate:
        with fake_world(world_size=2, device=dataclasses.replace(MEMORY, memory=memory)) as world:
            x = square()
            x + x
        return world.estimate()

    unknown = step_on(0)
    assert unknown.fits is None
    assert " of " not in next(line for line in str(unknown).splitlines() if "peak memory" in line)
    assert (step_on(unknown.peak_bytes).fits, step_on(unknown.peak_bytes - 1).fits) == (True, False)
