"""Objects that other ranks of a fake world would have sent: nobody is there who made them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_CALLS = ("broadcast_object_list", "scatter_object_list", "recv_object_list")


def _sender(call: str, arguments: dict[str, Any]) -> int | None:
    """Its global rank; None: any."""
    source, of_group = arguments.get("src"), arguments.get("group_src")
    if of_group is not None:
        return dist.get_global_rank(arguments.get("group") or distributed_c10d._get_default_group(), of_group)
    if source is None:
        return None if call == "recv_object_list" else 0  # torch's default
    return int(source)


def _broadcast_own(objects: list[Any], sender: int, group: Any, device: Any) -> None:
    """The two calls of a broadcast of these objects from another rank, which has the same; this one keeps its own."""
    group = distributed_c10d._group_or_default_group(group)
    where = device or distributed_c10d._get_object_coll_device(group)
    tensors, sizes = zip(*[distributed_c10d._object_to_tensor(one, where, group) for one in objects], strict=True)
    for tensor in (torch.cat(sizes), torch.cat(tensors)):
        dist.broadcast(tensor, src=sender, group=group)


def _answering(call: str, original: Callable[..., Any], rank: int, world_size: int) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def answer(*args: Any, **kwargs: Any) -> Any:
        try:
            arguments = signature.bind(*args, **kwargs).arguments
            if distributed_c10d._rank_not_in_group(arguments.get("group")):
                return original(*args, **kwargs)  # warns
            sender = _sender(call, arguments)
        except TypeError:
            return original(*args, **kwargs)  # says what is wrong
        if call != "recv_object_list" and sender == rank:
            return original(*args, **kwargs)
        whom = "any rank" if sender is None else f"rank {sender}"
        who = f"rank {rank} of a fake world of {world_size}: {call} from {whom}: nobody is there who made the objects"
        if call != "broadcast_object_list":
            raise RuntimeError(f"{who}, want the rank to make its own, without the call")
        objects = arguments["object_list"]
        if not objects or any(one is None for one in objects):
            raise RuntimeError(f"{who}, want the rank's own in the list, which it keeps (have {objects!r})")
        assert sender is not None
        return _broadcast_own(objects, sender, arguments.get("group"), arguments.get("device"))

    return answer


@contextlib.contextmanager
def answered(rank: int, world_size: int) -> Iterator[None]:
    """Within: torch.distributed's calls that would receive objects of other ranks keep the rank's own, or raise RuntimeError."""
    with contextlib.ExitStack() as exits:
        for call in _CALLS:
            answer = _answering(call, getattr(distributed_c10d, call), rank, world_size)
            for module in (dist, distributed_c10d):
                exits.enter_context(unittest.mock.patch.object(module, call, answer))
        yield
