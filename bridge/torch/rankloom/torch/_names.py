"""The names of PyTorch's built-in backends, as ours."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from rankloom.torch import _ext

BUILT_IN = ("gloo", "nccl", "xccl", "ucc", "mpi")

_mu = threading.Lock()
_taken: collections.Counter[str] = collections.Counter()
_users = 0
_original: Any = None


def enter(names: Iterable[str] = ()) -> None:
    """Ranks' groups of built-in backends, and all groups of `names`, are made by rankloom until as many leave()."""
    global _users, _original
    with _mu:
        _users += 1
        _taken.update(name.lower() for name in names)
        if _users == 1:
            _original = distributed_c10d._new_process_group_helper
            distributed_c10d._new_process_group_helper = _helper  # type: ignore[assignment]


def leave(names: Iterable[str] = ()) -> None:
    global _users
    with _mu:
        _users -= 1
        _taken.subtract(name.lower() for name in names)
        if _users == 0:
            distributed_c10d._new_process_group_helper = _original


def _is_ours(name: str) -> bool:
    return _taken[name] > 0 or (name in BUILT_IN and _ext.current() is not None)


def _renamed(backend: Any) -> Any:
    text = str(backend).lower()
    if _is_ours(text) or (text == "undefined" and _is_ours("gloo")):
        return dist.Backend("rankloom")
    parts = [part.split(":") for part in text.split(",") if ":" in part]
    if not parts:
        return backend
    return ",".join(f"{device}:{'rankloom' if _is_ours(name) else name}" for device, name in parts)


def _helper(group_size: int, group_rank: int, global_ranks: list[int], backend: Any, *args: Any, **kwargs: Any) -> Any:
    current = _ext.current()
    if group_size == -1 and current is not None:
        # MPI knows its ranks, and needs no store.
        group_size, group_rank = current[0].world_size, current[1]
        args = (_ext.make_hash_store(), *args[1:])
    renamed = _renamed(backend)
    pg, store = _original(group_size, group_rank, global_ranks, renamed, *args, **kwargs)
    if pg in distributed_c10d._world.pg_map and renamed != backend:
        # get_backend() and DDP's logger answer what was asked for.
        distributed_c10d._world.pg_map[pg] = (dist.Backend(str(backend)), store)
        kind = dist.Backend.backend_type_map.get(str(backend).lower())
        if kind is not None:
            cpu = torch.device("cpu")
            pg._register_backend(cpu, kind, pg._get_backend(cpu))
            pg._set_default_backend(kind)
    return pg, store
