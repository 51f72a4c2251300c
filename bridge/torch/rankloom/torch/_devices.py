"""GPUs that a script asks for, on the CPU: tensors that it puts on a GPU stay in host memory, and are computed there.

A rank finds as many GPUs as there are ranks on its node. torch itself, which asks the same functions, finds what is there.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d
from torch.overrides import TorchFunctionMode
from torch.utils import _device

_CPU = torch.device("cpu")
_count = 0  # of GPUs; 0: none is stood in for
_local = threading.local()


def stood_in_for() -> bool:
    """Whether the CPU stands in for GPUs."""
    return _count > 0


def _index(device: Any) -> int | None:
    """Of the GPU that `device` names; None: another device, or a GPU without a number.

    Errors: RuntimeError, there is no such GPU.
    """
    if isinstance(device, str) and device.partition(":")[0] == "cuda":
        number = device.partition(":")[2]
        index = int(number) if number.isdecimal() else None
    elif isinstance(device, torch.device):
        index = device.index if device.type == "cuda" else None
    else:
        index = device if isinstance(device, int) and not isinstance(device, bool) else None
    if index is not None and not 0 <= index < _count:
        raise RuntimeError(f"cuda:{index}: invalid device ordinal, this node has {_count} GPUs, which the CPU stands in for")
    return index


def _on_cpu(device: Any) -> Any:
    """The CPU for a GPU, by name, number or torch.device; anything else as it is."""
    if _index(device) is not None:
        return _CPU
    kind = device.type if isinstance(device, torch.device) else device if isinstance(device, str) else ""
    return _CPU if kind == "cuda" else device


def _current() -> int:
    return getattr(_local, "index", 0)


def _set(device: Any) -> None:
    index = _index(device)
    if index is not None:
        _local.index = index


_TO: tuple[Any, ...] = (torch.Tensor.to, torch._C._nn._parse_to)
_STAYS = (torch.Tensor.cuda, torch.Tensor.pin_memory)


class _OnCpu(TorchFunctionMode):
    """Of one thread: each call of torch that names a GPU gets the CPU."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.device:
            return self._device(args, kwargs or {})
        if function in _STAYS:
            memory_format = (kwargs or {}).get("memory_format")
            _index(args[1] if len(args) > 1 else (kwargs or {}).get("device"))
            return args[0] if memory_format is None else args[0].contiguous(memory_format=memory_format)
        if function in _TO:
            at = 0 if function is _TO[1] else 1
            args = (*args[:at], *map(_on_cpu, args[at : at + 1]), *args[at + 1 :])
        if kwargs:
            if "device" in kwargs:
                kwargs["device"] = _on_cpu(kwargs["device"])
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            return function(*args, **kwargs)
        return function(*args)

    def _device(self, args: Any, kwargs: Any) -> Any:
        """torch.device(0), which a torch without GPUs refuses, is cuda:0."""
        if len(args) == 1 and not kwargs and isinstance(args[0], int):
            return torch.device("cuda", args[0])
        return torch.device(*args, **kwargs)


@contextlib.contextmanager
def on_thread() -> Iterator[None]:
    """While open, what the calling thread puts on a GPU is on the CPU, if gpus_on_cpu() is open. Its current GPU is number 0."""
    if _count == 0:
        yield
        return
    _local.index = 0
    with _OnCpu():
        yield


class _Device:
    """torch.cuda.device and torch.accelerator.device_index."""

    def __init__(self, device: Any = None, /) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._before = _current()
        _set(self._device)

    def __exit__(self, *raised: object) -> None:
        _local.index = self._before


class _Stream:
    """Work of the CPU is done when its call returns, so that there is nothing to wait for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cuda", _current())

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        event = event if event is not None else _Event()
        event.record(self)
        return event

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *raised: object) -> None: ...


class _Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._at = 0.0

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: _Event) -> float:
        """In ms."""
        return (end._at - self._at) * 1000


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free_memory() -> tuple[int, int]:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"), _memory()


def _properties(device: Any = None) -> Any:
    return types.SimpleNamespace(name="CPU", major=0, minor=0, total_memory=_memory(), multi_processor_count=os.cpu_count() or 1)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Nothing is on a GPU."""


def _seed(seed: int) -> None:
    """Random numbers of a GPU come from the CPU's generator."""
    torch.default_generator.manual_seed(int(seed))


# Answers to a script. Of torch.cuda:
_CUDA: dict[str, Any] = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "device_count": lambda: _count,
    "current_device": _current,
    "set_device": _set,
    "init": _nothing,
    "synchronize": _nothing,
    "empty_cache": _nothing,
    "ipc_collect": _nothing,
    "reset_peak_memory_stats": _nothing,
    "reset_max_memory_allocated": _nothing,
    "mem_get_info": lambda device=None: _free_memory(),
    "get_device_name": lambda device=None: "CPU",
    "get_device_capability": lambda device=None: (0, 0),
    "get_device_properties": _properties,
    "is_bf16_supported": lambda including_emulation=True: True,
    "manual_seed": _seed,
    "manual_seed_all": _seed,
    "get_rng_state": lambda device="cuda": torch.get_rng_state(),
    "get_rng_state_all": lambda: [torch.get_rng_state()],
    "set_rng_state": lambda state, device="cuda": torch.set_rng_state(state),
    "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
    "device": _Device,
    "stream": lambda stream: contextlib.nullcontext(),
    "set_stream": _nothing,
    "current_stream": lambda device=None: _Stream(),
    "default_stream": lambda device=None: _Stream(),
    "Stream": _Stream,
    "Event": _Event,
}
# Of torch.accelerator:
_ACCELERATOR: dict[str, Any] = {
    "is_available": lambda: True,
    "device_count": lambda: _count,
    "current_accelerator": lambda check_available=False: torch.device("cuda"),
    "current_device_index": _current,
    "current_device_idx": _current,
    "set_device_index": _set,
    "set_device_idx": _set,
    "device_index": _Device,
    "synchronize": _nothing,
    "empty_cache": _nothing,
    "reset_peak_memory_stats": _nothing,
    "get_memory_info": lambda device=None: _free_memory(),
    "current_stream": lambda device=None: _Stream(),
    "set_stream": _nothing,
}


def _answer(ours: Any, original: Any) -> Any:
    """ours, but the original for torch's own code; a class is ours for all."""
    if isinstance(ours, type):
        return ours

    @functools.wraps(original, updated=())
    def either(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return (original if caller == "torch" or caller.startswith("torch.") else ours)(*args, **kwargs)

    return either


def _mapped(name: str, at: int, original: Any) -> Any:
    """original, with the device that is its argument `name`, or its argument number `at`, on the CPU."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if name in kwargs:
            kwargs[name] = _on_cpu(kwargs[name])
        elif len(args) > at:
            args = (*args[:at], _on_cpu(args[at]), *args[at + 1 :])
        return original(*args, **kwargs)

    return call


def _without(name: str, original: Any) -> Any:
    """original, without the keyword argument that names a GPU."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        _check(kwargs.pop(name, None))
        return original(*args, **kwargs)

    return call


def _check(devices: Any) -> None:
    for device in devices if isinstance(devices, (list, tuple)) else [devices]:
        _index(device)


def _ddp(original: Any) -> Any:
    """DistributedDataParallel.__init__, for which a module on the CPU has no device_ids."""

    @functools.wraps(original)
    def init(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any) -> None:
        _check(device_ids)
        _check(output_device)
        original(self, module, None, None, *args, **kwargs)

    return init


def _fsdp(original: Any) -> Any:
    """FullyShardedDataParallel.__init__, which takes the CPU if it is asked for."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, device_id: Any = None, **kwargs: Any) -> None:
        _check(device_id)
        original(self, *args, device_id=_CPU, **kwargs)

    return init


def _mesh(original: Any) -> Any:
    """DeviceMesh.__init__: of the CPU, also where the type is "cuda"."""

    @functools.wraps(original)
    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        original(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return init


def _places() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """All that is replaced: owner, name, and the function that makes the new one of the old."""
    for owner, answers in ((torch.cuda, _CUDA), (torch.accelerator, _ACCELERATOR)):
        for name, ours in answers.items():
            if hasattr(owner, name):
                yield owner, name, functools.partial(_answer, ours)
    yield _device.DeviceContext, "__init__", functools.partial(_mapped, "device", 1)
    yield device_mesh.DeviceMesh, "__init__", _mesh
    yield torch.Tensor, "record_stream", lambda inherited: _nothing
    yield torch, "load", functools.partial(_mapped, "map_location", 1)
    for owner in (dist, distributed_c10d):
        yield owner, "init_process_group", functools.partial(_without, "device_id")
    yield torch.nn.parallel.DistributedDataParallel, "__init__", _ddp
    fsdp = importlib.import_module("torch.distributed.fsdp")
    yield fsdp.FullyShardedDataParallel, "__init__", _fsdp


def _cut_attention() -> None:
    """Attention on DTensors, cut by batches or by heads: torch has the rule for a GPU's kernel, and for the CPU's none. For good."""
    tensors, aten = importlib.import_module("torch.distributed.tensor"), torch.ops.aten
    experimental = importlib.import_module("torch.distributed.tensor.experimental")
    known = tensors.DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
    placements = (tensors.Replicate(), tensors.Shard(0), tensors.Shard(1))
    for op, outputs, inputs in (
        (aten._scaled_dot_product_flash_attention_for_cpu.default, 2, 3),
        (aten._scaled_dot_product_flash_attention_for_cpu_backward.default, 3, 6),
    ):

        def rule(*args: Any, outputs: int = outputs, inputs: int = inputs, **kwargs: Any) -> list[tuple[list[Any], list[Any]]]:
            return [([each] * outputs, [each] * inputs + [None] * (len(args) - inputs)) for each in placements]

        if op not in known:
            experimental.register_sharding(op)(rule)


_inherited = object()


@contextlib.contextmanager
def gpus_on_cpu(count: int) -> Iterator[None]:
    """While open, scripts find `count` GPUs, and threads that are in on_thread() have them on the CPU. count 0: does nothing."""
    global _count
    if count == 0:
        yield
        return
    restore: list[tuple[Any, str, Any]] = []
    with warnings.catch_warnings():
        # torch finds what is there, and would tell that the script asks for more.
        warnings.filterwarnings("ignore", message="'pin_memory' argument is set as true but no accelerator is found")
        warnings.filterwarnings("ignore", message="Attempted to get default timeout for nccl backend")
        try:
            _count = count
            _cut_attention()
            for owner, name, make in _places():
                old = vars(owner).get(name, _inherited)
                restore.append((owner, name, old))
                setattr(owner, name, make(old))
            yield
        finally:
            _count = 0
            for owner, name, old in reversed(restore):
                if old is _inherited:
                    delattr(owner, name)
                else:
                    setattr(owner, name, old)
