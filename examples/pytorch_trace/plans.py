"""A training plan as data, and the program that follows it on one rank of a fake world."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from rankloom.torch import Estimate, FakeWorld, Link, across_nodes, estimate, links
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from transformer import CONFIGS, Config, Transformer, cross_entropy, layers_of_stages, loss_parallel, parallelized


@dataclasses.dataclass(frozen=True)
class Plan:
    model: str
    mesh: dict[str, int]  # "pp", "dp", "tp", in this order; what is not there is 1
    batch: int  # sequences of one data-parallel rank and step
    sequence: int
    recompute: str = "none"
    microbatches: int = 1
    schedule: str = "1F1B"
    stages_per_rank: int = 1
    device: str = "h100_sxm"
    per_node: int = 8
    float8: bool = False  # linear layers multiply in it
    compiled: bool = False

    @property
    def config(self) -> Config:
        return CONFIGS[self.model]

    @property
    def ranks(self) -> int:
        return math.prod(self.mesh.values())

    @property
    def tokens(self) -> int:
        """Of all ranks in a step."""
        return self.batch * self.sequence * self.mesh.get("dp", 1)

    def cost(self) -> dict[str, Link]:
        """NVLink within a node, where tensor parallelism is; a network card for each rank."""
        within = self.mesh.get("tp", 1)
        cost = {dim: links["infiniband_ndr"] for dim in self.mesh}
        if "tp" in cost:
            cost["tp"] = links["nvlink4"]
        if "dp" in cost and within < self.per_node:
            cost["dp"] = across_nodes("nvlink4", "infiniband_ndr", per_node=self.per_node // within)
        return cost


def _optimizer(models: list[Transformer]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for model in models for p in model.parameters()], fused=True)


def _pipelined(plan: Plan, world: FakeWorld) -> Callable[[], object]:
    pipeline, size = world.mesh["pp"], plan.mesh["pp"]
    place, count = pipeline.get_local_rank(), size * plan.stages_per_rank
    layers = layers_of_stages(plan.config.layers, count)
    models, stages = [], []
    for number in range(place, count, size):
        first = sum(layers[:number])
        mine = range(first, first + layers[number])
        model = Transformer(plan.config, plan.sequence, mine, is_first=number == 0, is_last=number == count - 1)
        models.append(parallelized(model, world.mesh, plan.recompute))
        stages.append(PipelineStage(model, number, count, torch.device("cpu"), group=pipeline.get_group()))
    kind: Any = get_schedule_class(plan.schedule)
    looped = issubclass(kind, PipelineScheduleMulti)
    schedule = kind(stages if looped else stages[0], plan.microbatches, loss_fn=cross_entropy)
    optimizer = _optimizer(models)
    tokens = torch.zeros(plan.batch, plan.sequence, dtype=torch.int64)
    given = (tokens,) if place == 0 else ()
    target = {"target": tokens} if place == size - 1 else {}

    def step() -> None:
        with loss_parallel() if "tp" in plan.mesh else contextlib.nullcontext():
            schedule.step(*given, **target, return_outputs=False)
        _finish(models, optimizer)

    return step


def _finish(models: list[Transformer], optimizer: torch.optim.Optimizer) -> None:
    for model in models:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad()


def program_of(plan: Plan) -> Callable[[FakeWorld], Callable[[], object]]:
    """For rankloom.torch.estimate()."""

    def program(world: FakeWorld) -> Callable[[], object]:
        if plan.mesh.get("pp", 1) > 1:
            return _pipelined(plan, world)
        model = parallelized(Transformer(plan.config, plan.sequence), world.mesh, plan.recompute)
        optimizer = _optimizer([model])
        tokens = torch.zeros(plan.batch // plan.microbatches, plan.sequence, dtype=torch.int64)

        def step() -> None:
            for _ in range(plan.microbatches):
                with loss_parallel() if "tp" in plan.mesh else contextlib.nullcontext():
                    cross_entropy(model(tokens), tokens).backward()
            _finish([model], optimizer)

        return step

    return program


def estimate_of(plan: Plan, efficiency: float, **arguments: Any) -> Estimate:
    return estimate(
        program_of(plan),
        mesh=plan.mesh,
        cost=plan.cost(),
        device=plan.device,
        efficiency=efficiency,
        matmul_dtype="float8_e4m3fn" if plan.float8 else None,
        compiled=plan.compiled,
        **arguments,
    )
