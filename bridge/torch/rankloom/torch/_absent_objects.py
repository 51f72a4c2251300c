"""Objects that other ranks of a fake world would have sent: nobody is there who made them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

_CALLS = ("broadcast_object_list", "scatter_object_list", "recv_object_list")


def _sender(call: str, arguments: dict[str, Any]) -> int | None:
    """Its global rank; None: the call names nobody."""
    source, of_group = arguments.get("src"), arguments.get("group_src")
    if of_group is not None:
        return dist.get_global_rank(arguments.get("group") or distributed_c10d._get_default_group(), of_group)
    return source if source is None or call == "recv_object_list" else int(source)


def _refusing(call: str, original: Callable[..., Any], rank: int, world_size: int) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            sender = _sender(call, signature.bind(*args, **kwargs).arguments)
        except TypeError:
            return original(*args, **kwargs)  # says what is wrong
        if call == "recv_object_list" or sender not in (None, rank):
            whom = "any rank" if sender is None else f"rank {sender}"
            raise RuntimeError(
                f"rank {rank} of a fake world of {world_size}: {call} from {whom}: nobody is there who made the objects, want the "
                "rank to make them itself"
            )
        return original(*args, **kwargs)

    return checked


@contextlib.contextmanager
def refused(rank: int, world_size: int) -> Iterator[None]:
    """Within: calls of torch.distributed that would receive objects of other ranks raise RuntimeError."""
    with contextlib.ExitStack() as exits:
        for call in _CALLS:
            checked = _refusing(call, getattr(distributed_c10d, call), rank, world_size)
            for module in (dist, distributed_c10d):
                exits.enter_context(unittest.mock.patch.object(module, call, checked))
        yield
