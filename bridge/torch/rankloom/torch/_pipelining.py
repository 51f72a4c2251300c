"""torch.distributed.pipelining in a fake world: stages ask each other for shapes, and no other rank is there to answer."""

from __future__ import annotations

import contextlib
import dataclasses
import unittest.mock
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from rankloom.torch._compute import Compute, Stretch, local, tensors_in

if TYPE_CHECKING:
    from rankloom.torch._fake_world import FakeWorld

# Shapes that stages of earlier fake worlds of this process told the next one: by number of stages, and stage.
_told: dict[tuple[int, int], Any] = {}


def forget() -> None:
    """Drops what stages of earlier worlds said."""
    _told.clear()


def _vote(self: Any, stages: list[Any], has_backward: bool, p2p_done: bool) -> None:
    """Instead of PipelineSchedule._warmup_p2p(), where ranks agree on whether shapes are given or asked for."""
    from torch.distributed.pipelining import stage

    for one in stages:
        if isinstance(one, stage.PipelineStage):
            asks = stage.InferenceMode.needs_dynamic(one._user_meta, has_backward)
            one._inference_mode = stage.InferenceMode.DYNAMIC if asks else stage.InferenceMode.STATIC


def _received(world: FakeWorld) -> Any:
    from torch.distributed.pipelining import stage

    def recv_meta(self: Any, source: int) -> Any:
        if source > self.stage_index:  # gradients have the shapes of what was sent
            return stage._StageBackwardMeta(backward_metas=stage._derive_grad_metas(self._stage_meta.outputs))
        if self._user_meta.inputs is not None:
            return stage._StageForwardMeta(forward_metas=self._user_meta.inputs)
        # A looped schedule's later stages come before the stages between: those are taken to send on what they get.
        told = next((_told[key] for key in ((self.num_stages, known) for known in range(source, -1, -1)) if key in _told), None)
        if told is None:
            have = f"rank {world.rank} of {world.world_size} alone"
            raise RuntimeError(
                f"fake_world: stage {self.stage_index} asks stage {source} of {self.num_stages} for shapes: have {have}, want "
                "PipelineStage(input_args=...), or fake worlds of the ranks with earlier stages before"
            )
        return told

    return recv_meta


def _sent(self: Any, meta: Any, target: int) -> None:
    if target > self.stage_index:
        _told[(self.num_stages, self.stage_index)] = meta


# ---- microbatches that are like one before

_SECOND = 1  # the first one gathers parameters, and makes gradients that others add to


@dataclasses.dataclass(frozen=True)
class _Like:
    """A tensor to be made once more."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    wrapped: Callable[[torch.Tensor], torch.Tensor]  # in a DTensor, if there was one

    def made(self) -> torch.Tensor:
        with torch.no_grad():
            tensor = self.wrapped(torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device))
        return tensor.requires_grad_(self.requires_grad)


def _like(value: Any) -> Any:
    """The same structure, with a _Like for each tensor."""
    if not isinstance(value, torch.Tensor):
        return value
    part = local(value)

    def wrapped(tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    spec = getattr(value, "_spec", None)
    if part is not value and spec is not None:
        from torch.distributed.tensor import DTensor

        def wrapped(tensor: torch.Tensor) -> torch.Tensor:
            shape, stride = spec.tensor_meta.shape, spec.tensor_meta.stride
            return DTensor.from_local(tensor, spec.mesh, spec.placements, run_check=False, shape=shape, stride=stride)

    return _Like(tuple(part.shape), part.stride(), part.dtype, part.device, value.requires_grad, wrapped)


def _shapes(values: Any) -> list[tuple[Any, ...]]:
    return [(tuple(tensor.shape), tensor.dtype) for tensor in tensors_in(values)]


@dataclasses.dataclass(frozen=True)
class _Part:
    """The forward of a stage's second microbatch, its loss, or its backward."""

    shapes: list[tuple[Any, ...]]  # of what is given
    stretch: Stretch
    results: Any  # a _Like for each tensor


def _traced(compute: Compute, key: object, given: Any, run: Callable[[], Any]) -> Any:
    begin = compute.begin()
    results = run()
    compute.known[key] = _Part(_shapes(given), compute.end(begin, results), tree_map(_like, results))
    return results


def _repeated(compute: Compute, part: _Part, copy: object, ends: bool = False) -> Any:
    compute.again(part.stretch, copy, ends)
    return tree_map(lambda one: one.made() if isinstance(one, _Like) else one, part.results)


def _whole(compute: Compute, run: Callable[[], Any]) -> Any:
    """A microbatch's kernels are no one kernel with others', traced or repeated."""
    compute.flush()
    results = run()
    compute.flush()
    return results


def _repeats(schedule: Any, stage: Any) -> bool:
    """Whether its microbatches are alike: backward is one, and DDP does not reduce in the last one's."""
    from torch.distributed.pipelining import schedules

    kinds = (schedules.ScheduleGPipe, schedules.Schedule1F1B, schedules.ScheduleInterleaved1F1B)
    return isinstance(schedule, kinds) and not isinstance(stage.submod, torch.nn.parallel.DistributedDataParallel)


def _microbatches(compute: Compute) -> list[tuple[Any, str, Any]]:
    """Patches by which microbatches after the second are not computed, where the world wants that."""
    from torch.distributed.pipelining import schedules, stage

    base, schedule = stage._PipelineStageBase, schedules._PipelineSchedule
    forward_chunk, backward_chunk = base.forward_one_chunk, base.backward_one_chunk
    forward, backward, compute_loss = base.forward_maybe_with_nosync, base.backward_maybe_with_nosync, schedule._compute_loss

    def forward_one_chunk(self: Any, number: int, *args: Any, **kwargs: Any) -> Any:
        self._rankloom_chunk = number
        return forward_chunk(self, number, *args, **kwargs)

    def backward_one_chunk(self: Any, number: int, *args: Any, **kwargs: Any) -> Any:
        self._rankloom_chunk = number
        return backward_chunk(self, number, *args, **kwargs)

    def forward_maybe_with_nosync(self: Any, *args: Any, **kwargs: Any) -> Any:
        def run() -> Any:
            return forward(self, *args, **kwargs)

        number, key = self._rankloom_chunk, (self.stage_index, "forward")
        if number < _SECOND or not getattr(self, "_rankloom_repeats", False):
            return _whole(compute, run)
        part = compute.known.get(key)
        repeats = number > _SECOND and part is not None and part.shapes == _shapes((args, kwargs))
        if number > _SECOND and not repeats:
            return _whole(compute, run)
        copy = (self.stage_index, number)
        results = _repeated(compute, part, copy) if repeats and part is not None else _traced(compute, key, (args, kwargs), run)
        if repeats:
            compute.known[copy] = True
        for tensor in tensors_in(results):
            tensor._rankloom_chunk = copy  # type: ignore[attr-defined]
        return results

    def _compute_loss(self: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        def run() -> Any:
            return compute_loss(self, output, *args, **kwargs)

        copy = next((tensor._rankloom_chunk for tensor in tensors_in(output) if hasattr(tensor, "_rankloom_chunk")), None)
        if copy is None:
            return _whole(compute, run)
        key = (copy[0], "loss")
        return _repeated(compute, compute.known[key], copy) if copy in compute.known else _traced(compute, key, output, run)

    def backward_maybe_with_nosync(self: Any, *args: Any, **kwargs: Any) -> Any:
        def run() -> Any:
            return backward(self, *args, **kwargs)

        copy, key = (self.stage_index, self._rankloom_chunk), (self.stage_index, "backward")
        if copy in compute.known:
            del compute.known[copy]
            return _repeated(compute, compute.known[key], copy, ends=True)
        if copy[1] == _SECOND and getattr(self, "_rankloom_repeats", False):
            return _traced(compute, key, (), run)
        return _whole(compute, run)

    return [
        (base, "forward_one_chunk", forward_one_chunk),
        (base, "backward_one_chunk", backward_one_chunk),
        (base, "forward_maybe_with_nosync", forward_maybe_with_nosync),
        (base, "backward_maybe_with_nosync", backward_maybe_with_nosync),
        (schedule, "_compute_loss", _compute_loss),
    ]


@contextlib.contextmanager
def stages(world: FakeWorld) -> Iterator[None]:
    """While it is open, stages know shapes from input_args and from worlds that were open before."""
    from torch.distributed.pipelining import schedules, stage  # here, since it takes a second that others need not wait

    names = [(schedules, "_PipelineSchedule", "_warmup_p2p"), (schedules, "_PipelineSchedule", "_initialize_pp_stages")]
    names += [(stage, "PipelineStage", "_recv_meta"), (stage, "PipelineStage", "_send_meta")]
    names += [(schedules, "_PipelineSchedule", "_compute_loss")]
    names += [(stage, "_PipelineStageBase", f"{way}_{what}") for way in ("forward", "backward") for what in ("one_chunk", "maybe_with_nosync")]
    if not all(hasattr(getattr(module, owner, None), name) for module, owner, name in names):
        yield  # another version of torch: its stages answer as well as they can
        return
    original = schedules._PipelineSchedule._initialize_pp_stages

    def initialize(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A forward and a backward for shapes, once: no part of a step.
        compute = world._compute
        for one in getattr(self, "_stages", None) or [self._stage]:
            one._rankloom_repeats = compute is not None and compute.repeats and _repeats(self, one)
        with (
            compute.paused() if compute is not None else contextlib.nullcontext(),
            unittest.mock.patch.object(torch.random, "fork_rng", lambda **_: contextlib.nullcontext()),  # wants a device that computes
        ):
            return original(self, *args, **kwargs)

    patches: list[tuple[Any, str, Any]] = [
        (schedules._PipelineSchedule, "_warmup_p2p", _vote),
        (schedules._PipelineSchedule, "_initialize_pp_stages", initialize),
        (stage.PipelineStage, "_recv_meta", _received(world)),
        (stage.PipelineStage, "_send_meta", _sent),
    ]
    if world._compute is not None:
        patches += _microbatches(world._compute)
    with contextlib.ExitStack() as exits:
        for owner, name, function in patches:
            exits.enter_context(unittest.mock.patch.object(owner, name, function))
        yield
