"""DistributedDataParallel in a fake world: what its reducer tells the other ranks has data, also where the model's tensors have none.

When it is made, the reducer compares shapes with the other ranks. Before the second forward pass it makes its buckets anew, in the order
in which gradients came, and rank 0 tells all of them: from then on reductions run beside backward. The numbers in both are of its own.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parallel import distributed
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

_c10d: Any = torch._C._distributed_c10d


class _Numbers(TorchDispatchMode):
    """Numbers are on the CPU and have data, the buckets themselves are what the modes below make of them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        numbers = not any(isinstance(each, FakeTensor) or each.is_meta for each in tensors)
        if not numbers or (not tensors and kwargs.get("dtype") not in (torch.int32, torch.int64)):
            return func(*args, **kwargs)
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        with _disable_current_modes():
            return func(*args, **kwargs)


@contextlib.contextmanager
def with_data(first: set[int]) -> Iterator[None]:
    """first gets the reducers, by id(), that pass forward with their first buckets; it loses one when the buckets are made anew."""
    rebuilt: weakref.WeakSet[Any] = weakref.WeakSet()

    def telling_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with _Numbers():
                return function(*args)

        return call

    def rebuilding(rebuild: Callable[..., bool]) -> Callable[..., bool]:
        def call(reducer: Any) -> bool:
            made = rebuild(reducer)
            if made:
                rebuilt.add(reducer)
                first.discard(id(reducer))
            elif reducer not in rebuilt:
                first.add(id(reducer))
            return made

        return call

    with contextlib.ExitStack() as exits:
        for owner, name, wrap in (
            (distributed, "_verify_param_shape_across_processes", telling_numbers),
            (_c10d.Reducer, "_rebuild_buckets", lambda rebuild: rebuilding(telling_numbers(rebuild))),
        ):
            original = getattr(owner, name, None)
            if original is not None:  # or another version of torch
                setattr(owner, name, wrap(original))
                exits.callback(setattr, owner, name, original)
        yield
