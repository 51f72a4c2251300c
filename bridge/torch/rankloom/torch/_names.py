"""The names of PyTorch's built-in backends, as ours."""

from __future__ import annotations

import collections
import contextlib
import datetime
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from rankloom.torch import _devices, _ext

_KINDS = dist.ProcessGroup.BackendType
BUILT_IN = ("gloo", "nccl", "xccl", "ucc", "mpi")

_mu = threading.Lock()
_taken: collections.Counter[str] = collections.Counter()
_users = 0
_original: Any = None
_asked = threading.local()


def enter(names: Iterable[str] = ()) -> None:
    """Ranks' groups of built-in backends, and all groups of `names`, are made by rankloom until as many leave()."""
    global _users, _original
    with _mu:
        _users += 1
        _taken.update(name.lower() for name in names)
        if _users == 1:
            _original = distributed_c10d._new_process_group_helper
            distributed_c10d._new_process_group_helper = _helper  # type: ignore[assignment]
            distributed_c10d._get_default_timeout = _default_timeout
            distributed_c10d._set_pg_timeout = _set_pg_timeout
            dist.ProcessGroup.name = _name_of  # type: ignore[assignment, method-assign]
            dist.monitored_barrier = distributed_c10d.monitored_barrier = _monitored_barrier


def leave(names: Iterable[str] = ()) -> None:
    global _users
    with _mu:
        _users -= 1
        _taken.subtract(name.lower() for name in names)
        if _users == 0:
            distributed_c10d._new_process_group_helper = _original
            distributed_c10d._get_default_timeout = _original_timeout
            distributed_c10d._set_pg_timeout = _original_set_timeout
            dist.ProcessGroup.name = _original_name  # type: ignore[method-assign]
            dist.monitored_barrier = distributed_c10d.monitored_barrier = _original_barrier


_original_barrier = distributed_c10d.monitored_barrier
_original_timeout = distributed_c10d._get_default_timeout
_original_set_timeout = distributed_c10d._set_pg_timeout
_original_name = dist.ProcessGroup.name


def _default_timeout(backend: Any) -> datetime.timedelta:
    """torch.distributed's warns where a torch without NCCL is asked for nccl's."""
    if distributed_c10d.default_pg_nccl_timeout is None and _is_ours(str(backend).lower()):
        return distributed_c10d.default_pg_timeout
    return _original_timeout(backend)


def _monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
    """torch.distributed's has it for groups that are called gloo."""
    pg: Any = group if group is not None else distributed_c10d._get_default_group()
    # Not a group of ours, or the call of a rank that is no member.
    if (_ext.current() is None and _fake_world is None) or pg is dist.GroupMember.NON_GROUP_MEMBER:
        return _original_barrier(group, timeout, wait_all_ranks)
    if isinstance(timeout, (int, float)):
        timeout = datetime.timedelta(seconds=timeout)
    if timeout is not None:
        distributed_c10d._check_valid_timeout(timeout)
    if timeout is None:
        timeout = distributed_c10d.default_pg_timeout
    return pg.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)


def _set_pg_timeout(timeout: datetime.timedelta, group: Any = None) -> None:
    """torch.distributed's has it for backends of the classes of gloo and NCCL."""
    pg: Any = group if group is not None else distributed_c10d._get_default_group()
    if not isinstance(pg, dist.ProcessGroup):
        return _original_set_timeout(timeout, group)
    ours = {backend for backend in map(pg._get_backend, pg._device_types) if isinstance(backend, _ext.Backend)}
    if not ours:
        return _original_set_timeout(timeout, group)
    distributed_c10d._check_valid_timeout(timeout)
    for backend in ours:
        backend._set_default_timeout(timeout)


def _name_of(group: dist.ProcessGroup) -> str:
    """That of the default backend, which torch.distributed makes of its kind."""
    found = distributed_c10d._world.pg_map.get(group)
    if found is not None and _all_built_in(text := str(found[0]).lower()):
        return _default_backend(text)
    # A group that was destroyed, or a thread that is no rank and knows of none.
    own = group._get_backend(group._device_types[0]) if group._device_types else None
    return own.name() if isinstance(own, _ext.Backend) and own.name() in BUILT_IN else _original_name(group)


def _all_built_in(text: str) -> bool:
    return all(part.split(":")[-1] in (*BUILT_IN, "undefined") for part in text.split(","))


def _default_backend(text: str) -> str:
    """Of a backend as init_process_group() takes it, in small letters: the name of the one that torch.distributed has for default."""
    text = _config(text)
    if ":" in text:
        return "nccl" if any(part.endswith(":nccl") for part in text.split(",")) else "gloo"
    return text


def _config(text: str) -> str:
    """The meaning of no backend at all on this machine, where `text` is none."""
    return str(distributed_c10d.BackendConfig(dist.Backend(text))) if text == "undefined" else text


def asked() -> str | None:
    """The name that the caller gives to the backend that the calling thread is making, where we have that name."""
    return getattr(_asked, "name", None)


def _is_ours(name: str) -> bool:
    return _taken[name] > 0 or (name in BUILT_IN and _ext.current() is not None)


_alone = 0


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Groups of built-in backends are fake ones, and stores answer at once: the calling process has one rank of its world."""
    global _alone
    _alone += 1
    try:
        yield
    finally:
        _alone -= 1


def is_alone() -> bool:
    return _alone > 0


_fake_world: Any = None


@contextlib.contextmanager
def fake_world(world: Any) -> Iterator[None]:
    """All groups of the process are fake ones that write into the world's record."""
    global _fake_world
    names = (*BUILT_IN, "fake", "rankloom", "threaded")
    enter(names)
    try:
        with alone():
            _fake_world = world
            yield
    finally:
        _fake_world = None
        leave(names)


def refuse_in_fake_world() -> None:
    """Errors: RuntimeError if a fake world is open."""
    if _fake_world is not None:
        world = f"rank {_fake_world.rank} of {_fake_world.world_size}"
        raise RuntimeError(f"the fake world of {world} is open, where no rank is but that one: want ranks to run outside of it")


def fake_group_arguments(options: Any) -> tuple[Any, ...]:
    """The further arguments of make_fake_backend(), for the group that the calling thread is making."""
    return () if _fake_world is None else _fake_world.group_arguments(options, getattr(_asked, "description", None) or "undefined")


def _renamed(backend: Any) -> Any:
    ours = "rankloom_fake" if _alone else "rankloom"
    text = str(backend).lower()
    if _is_ours(text) or (text == "undefined" and _is_ours("gloo")):
        return dist.Backend(ours)
    parts = [part.split(":") for part in text.split(",") if ":" in part]
    if not parts:
        return backend
    return ",".join(f"{device}:{ours if _is_ours(name) else name}" for device, name in parts)


def _name_of_none() -> str:
    """Of a group that is asked for without a name: of GPUs, torch takes NCCL."""
    return "nccl" if _devices.stood_in_for() else "gloo"


def _helper(group_size: int, group_rank: int, global_ranks: list[int], backend: Any, *args: Any, **kwargs: Any) -> Any:
    current = _ext.current()
    if group_size == -1 and current is not None:
        # MPI knows its ranks, and needs no store.
        group_size, group_rank = current[0].world_size, current[1]
        args = (_ext.make_hash_store(), *args[1:])
    elif group_size == -1 and _fake_world is not None:
        group_size, group_rank = _fake_world.world_size, _fake_world.rank
        args = (_ext.make_fake_store(), *args[1:])
    renamed = _renamed(backend)
    text = str(backend).lower()
    name = _default_backend(text)
    # One backend has the tensors of all devices.
    parts = {part.split(":")[-1] for part in text.split(",")}
    _asked.name = None if renamed == backend or len(parts) > 1 else _name_of_none() if text == "undefined" else parts.pop()
    _asked.description = kwargs.get("group_desc")
    try:
        pg, store = _original(group_size, group_rank, global_ranks, renamed, *args, **kwargs)
    finally:
        _asked.name = _asked.description = None
    if _fake_world is not None and pg in distributed_c10d._world.pg_map:
        # Tensors without data, and what is sent of them in one block, go by the backend of the CPU.
        ours = pg._get_backend(pg._device_types[0])
        for device in ("cpu", "meta"):
            pg._register_backend(torch.device(device), _KINDS.CUSTOM, ours)
    if pg in distributed_c10d._world.pg_map and renamed != backend:
        # get_backend(), get_backend_config() and the groups' names answer what was asked for.
        distributed_c10d._world.pg_map[pg] = (dist.Backend(str(backend)), store)
        if _all_built_in(str(backend).lower()):
            distributed_c10d._world.pg_backend_config[pg] = str(distributed_c10d.BackendConfig(dist.Backend(str(backend))))
        cpu = torch.device("cpu")
        mine = pg._get_backend(cpu if cpu in pg._device_types else pg._device_types[0])
        kind = dist.Backend.backend_type_map.get(name)
        if kind == _KINDS.GLOO:
            # DDP's logger takes what is registered as GLOO for a ProcessGroupGloo, and reads its fields. Of the kinds that
            # have sequence numbers this one is read by nobody.
            kind = _KINDS.UCC
        if kind is not None:
            pg._register_backend(cpu, kind, mine)
            pg._set_default_backend(kind)
    return pg, store
