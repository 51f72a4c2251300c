"""Calls on tensors without data. torch answers them by kernels that ask no group; while a fake world is open they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed import _functional_collectives as functional
from torch.utils import _pytree as pytree

try:
    from torch.distributed._meta_registrations import _META_FUNCTIONS
except ImportError:  # an older torch has none, and refuses meta tensors
    _META_FUNCTIONS = {}

# Those that torch has no kernel for, beside _META_FUNCTIONS.
_COALESCED = (
    "allreduce_coalesced_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "reduce_scatter_tensor_coalesced_",
)
_FUNCTIONAL = {
    "all_reduce": "_all_reduce_meta",
    "all_reduce_": "_all_reduce__meta",
    "all_reduce_coalesced": "_all_reduce_coalesced_meta",
    "all_reduce_coalesced_": "_all_reduce_coalesced__meta",
    "wait_tensor": "_wait_tensor_meta",
    "isend": "_isend_meta",
    "irecv": "_irecv_meta",
    "batch_p2p_ops": "_batch_p2p_ops_meta",
    "all_gather_into_tensor_out": "_all_gather_into_tensor_out_native_meta",
    "all_gather_into_tensor": "_all_gather_into_tensor_native_meta",
    "all_gather_into_tensor_coalesced": "_all_gather_into_tensor_coalesced_native_meta",
    "reduce_scatter_tensor": "_reduce_scatter_tensor_native_meta",
    "reduce_scatter_tensor_out": "_reduce_scatter_tensor_out_native_meta",
    "reduce_scatter_tensor_coalesced": "_reduce_scatter_tensor_coalesced_native_meta",
    "all_to_all_single": "_all_to_all_single_meta",
    "broadcast": "_broadcast_meta",
    "broadcast_": "_broadcast__meta",
}
_AUTOGRAD = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

_open = False
_libraries: list[torch.library.Library] = []


_validate: Any = FakeTensorMode.validate_and_convert_non_fake_tensors


def _validate_call(self: FakeTensorMode, func: Any, converter: Any, flat_args: Any, args_spec: Any) -> Any:
    """Without this torch refuses real tensors beside fake ones before a group sees the call, and names neither rank nor group."""
    if getattr(func, "namespace", None) in ("c10d", "_c10d_functional", "_c10d_functional_autograd"):
        kinds = {isinstance(tensor, FakeTensor) for tensor in _tensors(flat_args) if tensor.numel() > 0}
        if len(kinds) == 2 and not self.allow_non_fake_inputs:
            args, kwargs = pytree.tree_unflatten(flat_args, args_spec)
            func.redispatch(_CPU, *args, **kwargs)  # refuses it
    return _validate(self, func, converter, flat_args, args_spec)


def enter() -> None:
    global _open
    if not _libraries:
        _register()
    FakeTensorMode.validate_and_convert_non_fake_tensors = _validate_call  # type: ignore[method-assign]
    _open = True


def leave() -> None:
    global _open
    _open = False
    FakeTensorMode.validate_and_convert_non_fake_tensors = _validate  # type: ignore[method-assign]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _traces(args: tuple[Any, ...]) -> bool:
    """A compiler runs the call to learn shapes, and the compiled program will make it; or shapes are no numbers."""
    if TracingContext.try_get() is not None or torch.compiler.is_compiling():
        return True
    return any(isinstance(size, torch.SymInt) for tensor in _tensors(args) for size in tensor.shape)


def _by_group(namespace: str, name: str, original: Callable[..., Any] | None) -> Callable[..., Any]:
    packet = getattr(getattr(torch.ops, namespace), name)
    op = packet.default if "default" in packet.overloads() else getattr(packet, packet.overloads()[0])
    # On the meta device nothing is wrapped that would wait when it is used.
    waits = namespace != "c10d" and name != "wait_tensor"

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not _open or _traces(args):
            if original is None:
                raise NotImplementedError(f"{namespace}::{name}: torch has no kernel of it for meta tensors")
            return original(*args, **kwargs)
        result = op.redispatch(_CPU, *args, **kwargs)
        if waits and not any(isinstance(tensor, FakeTensor) for tensor in _tensors(args)):
            for tensor in _tensors(result):
                torch.ops._c10d_functional.wait_tensor.default.redispatch(_CPU, tensor)
        return result

    return kernel


def _register() -> None:
    """For good: a kernel that asks no group while no fake world is open."""
    plain: dict[str, Callable[..., Any] | None] = dict(_META_FUNCTIONS)
    plain.update(dict.fromkeys(_COALESCED))
    functions = {name: getattr(functional, original, None) for name, original in _FUNCTIONAL.items()}
    for namespace, kernels in (
        ("c10d", plain),
        ("_c10d_functional", functions),
        ("_c10d_functional_autograd", {name: functions[name] for name in _AUTOGRAD}),
    ):
        library = torch.library.Library(namespace, "IMPL")
        for name, original in kernels.items():
            if hasattr(getattr(torch.ops, namespace), name):
                library.impl(name, _by_group(namespace, name, original), "Meta")
        _libraries.append(library)
