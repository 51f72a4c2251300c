"""torch's context parallelism in a fake world: its ring of attention knows the kernels of GPUs, and not that of the CPU."""

from __future__ import annotations

import contextlib
import importlib
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

import torch

_aten = torch.ops.aten
_SEQUENCE = 2  # the dimension of queries, keys and values that the ring is along: [batch, heads, sequence, width]


def _wrapped(tensor: torch.Tensor, like: Any, shape: torch.Size) -> Any:
    """`tensor` as this rank's part of a DTensor of that shape, cut as `like` is."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    stride = torch.empty(shape, device="meta").stride()
    spec = DTensorSpec(like.device_mesh, like.placements, TensorMeta(shape, stride, tensor.dtype))
    return DTensor(tensor, spec, requires_grad=False)


def _forward(ring: Callable[..., Any]) -> Callable[..., Any]:
    def handler(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        query, key, value, dropout, causal = [*args, 0.0, False][:5] if len(args) < 5 else args
        group, parts = query.device_mesh.get_group(), [tensor._local_tensor for tensor in (query, key, value)]
        out, sums = ring(group, _SEQUENCE, op, *parts, is_causal=causal, dropout_p=dropout, scale=kwargs.get("scale"))
        return _wrapped(out, query, query.shape), _wrapped(sums, query, query.shape[:3])

    return handler


def _backward(ring: Callable[..., Any]) -> Callable[..., Any]:
    def handler(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        *tensors, dropout, causal = args
        names = ("grad_out", "query", "key", "value", "out", "logsumexp")
        parts = {name: tensor._local_tensor for name, tensor in zip(names, tensors, strict=True)}
        group = tensors[1].device_mesh.get_group()
        grads = ring(
            group, _SEQUENCE, op, grad_out_name="grad_out", is_causal=causal, dropout_p=dropout, scale=kwargs.get("scale"), **parts
        )
        return tuple(_wrapped(grad, tensor, tensor.shape) for grad, tensor in zip(grads, tensors[1:4], strict=True))

    return handler


@contextlib.contextmanager
def rings() -> Iterator[None]:
    """While it is open, context_parallel() has attention on the CPU go round, of FakeTensors, too."""
    try:
        attention = importlib.import_module("torch.distributed.tensor.experimental._context_parallel._attention")
        forward, backward = attention._templated_ring_attention, attention._templated_ring_attention_backward
        known: dict[Any, Any] = attention.custom_ops
    except (ImportError, AttributeError):  # another version of torch
        yield
        return
    handlers = {
        _aten._scaled_dot_product_flash_attention_for_cpu.default: _forward(forward),
        _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _backward(backward),
    }
    with unittest.mock.patch.dict(known, handlers):
        yield
