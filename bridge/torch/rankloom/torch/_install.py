"""The backends' names: our own, and PyTorch's when they are put behind ours."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import unittest
import warnings
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d, rendezvous

# PyTorch's own test backends register their names when they are imported: before ours, or they would take them back.
from torch.testing._internal.distributed import fake_pg, multi_threaded_pg

from rankloom.torch import _ext, _ranks

_DEVICES = ["cpu", "cuda"]
_DEFAULT_TIMEOUT = timedelta(minutes=30)


def _make(name: str, options: Any) -> Any:
    backend = _ext.make_backend(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        name,
        options.group_id,
        list(options.global_ranks_in_group),
    )
    current = _ext.current()
    if current is not None:
        _ranks.keep_world(*current)
    return backend


def _make_rankloom(options: Any, backend_options: Any) -> Any:
    return _make("rankloom", options)


def _make_threaded(options: Any, backend_options: Any) -> Any:
    return _make("threaded", options)


def _make_fake_named(name: str, options: Any, backend_options: Any) -> Any:
    return _ext.make_fake_backend(
        options.group_rank,
        options.group_size,
        name,
        bool(getattr(backend_options, "error_on_collective", False)),
        options.timeout or _DEFAULT_TIMEOUT,
    )


def _make_rankloom_fake(options: Any, backend_options: Any) -> Any:
    return _make_fake_named("rankloom_fake", options, backend_options)


def _make_fake(options: Any, backend_options: Any) -> Any:
    return _make_fake_named("fake", options, backend_options)


class _StoreType(type):
    """Our stores are of c10d's own type, so a class of ours can only make them and know them again."""

    make: Any
    original: Any = None

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.make(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return type(instance) is dist.Store or (cls.original is not None and isinstance(instance, cls.original))


class HashStore(metaclass=_StoreType):
    """A store in memory for ranks as threads. Waits are scheduling points, so a key that never comes is a deadlock."""

    original = dist.HashStore

    @staticmethod
    def make() -> dist.Store:
        return _ext.make_hash_store()


class FakeStore(metaclass=_StoreType):
    """Answers at once and holds nothing: for a fake group, as PyTorch's class of this name."""

    original = fake_pg.FakeStore

    @staticmethod
    def make() -> dist.Store:
        return _ext.make_fake_store()


_named: dict[tuple[Any, ...], dist.Store] = {}
_named_mu = threading.Lock()


def _named_store(*key: Any) -> dist.Store:
    with _named_mu:
        return _named.setdefault(key, _ext.make_hash_store())


def _in_memory() -> bool:
    """Whether ranks meet through memory here: a rank under the baton must not poll a file or sit in a socket."""
    return _ext.current() is not None or any(
        name in os.environ for name in ("RANKLOOM_SEED", "RANKLOOM_SCHEDULE", "RANKLOOM_REPLAY")
    )


class FileStore(metaclass=_StoreType):
    original = dist.FileStore

    @staticmethod
    def make(*args: Any, **kwargs: Any) -> dist.Store:
        if not _in_memory():
            return FileStore.original(*args, **kwargs)
        return _named_store("file", os.path.abspath(args[0] if args else kwargs["file_name"]))


class TCPStore(metaclass=_StoreType):
    original = dist.TCPStore

    @staticmethod
    def make(*args: Any, **kwargs: Any) -> dist.Store:
        if not _in_memory():
            return TCPStore.original(*args, **kwargs)
        host = args[0] if args else kwargs["host_name"]
        port = args[1] if len(args) > 1 else kwargs.get("port", 0)
        return _named_store("tcp", host, port)


_STORES: list[tuple[Any, str, Any]] = [
    (dist, "HashStore", HashStore),
    (dist, "FileStore", FileStore),
    (dist, "TCPStore", TCPStore),
    (rendezvous, "FileStore", FileStore),
    (rendezvous, "TCPStore", TCPStore),
]


def _exception_handle(cls: Any, exc: BaseException) -> None:
    current = _ext.current()
    if current is None:
        _originals["exception_handle"](exc)
        return
    job, rank = current
    if isinstance(exc, unittest.SkipTest):
        job.skip(str(exc))
    elif isinstance(exc, SystemExit):
        job.skip(f"rank {rank} left with exit code {exc.code}")
    else:
        job.fail(rank, f"{type(exc).__name__}: {exc}")


def _reset(cls: Any) -> None:
    _originals["reset"]()


_originals: dict[str, Any] = {}
_patched: list[tuple[Any, str, Any]] = []
_plugins: dict[str, Any] = {}


def _patch(owner: Any, name: str, value: Any) -> None:
    _patched.append((owner, name, owner.__dict__[name]))
    setattr(owner, name, value)


def installed() -> bool:
    return bool(_plugins)


def install(*also: str) -> None:
    """Puts rankloom behind "threaded" and "fake", until uninstall(). A second call does nothing but add to `also`.

    also: names of built-in backends, such as "gloo" and "nccl", that are answered by rankloom as well.
    """
    if not installed():
        backends = dist.Backend._plugins
        for name, creator in (("THREADED", _make_threaded), ("FAKE", _make_fake)):
            _plugins[name] = backends[name]
            backends[name] = dist.Backend._BackendPlugin(creator, True)
        group = multi_threaded_pg.ProcessLocalGroup
        _originals["exception_handle"] = group.exception_handle
        _originals["reset"] = group.reset
        _patch(group, "exception_handle", classmethod(_exception_handle))
        _patch(group, "reset", classmethod(_reset))
        _patch(multi_threaded_pg.ThreadLocalWorld, "_get_world", _ranks._get_world)
        for owner, name, store in _STORES:
            _patch(owner, name, store)
        _patch(fake_pg, "FakeStore", FakeStore)
    if also:
        _answer_for(also)


def _answer_for(names: tuple[str, ...]) -> None:
    taken = {name.lower() for name in names}
    original = distributed_c10d._new_process_group_helper

    def renamed(backend: Any) -> Any:
        text = str(backend).lower()
        if text in taken or (text == "undefined" and "gloo" in taken):
            return dist.Backend("rankloom")
        parts = [part.split(":") for part in text.split(",") if ":" in part]
        if not parts:
            return backend
        return ",".join(f"{device}:{'rankloom' if name in taken else name}" for device, name in parts)

    def helper(
        group_size: int, group_rank: int, global_ranks: list[int], backend: Any, *args: Any, **kwargs: Any
    ) -> Any:
        pg, store = original(group_size, group_rank, global_ranks, renamed(backend), *args, **kwargs)
        if pg in distributed_c10d._world.pg_map:
            # get_backend() answers what was asked for.
            distributed_c10d._world.pg_map[pg] = (dist.Backend(str(backend)), store)
        return pg, store

    _patch(distributed_c10d, "_new_process_group_helper", helper)


def uninstall() -> None:
    """Undoes install()."""
    dist.Backend._plugins.update(_plugins)
    _plugins.clear()
    for owner, name, value in reversed(_patched):
        setattr(owner, name, value)
    _patched.clear()
    _originals.clear()


def _register() -> None:
    for name, creator in (("rankloom", _make_rankloom), ("rankloom_fake", _make_rankloom_fake)):
        with warnings.catch_warnings(), contextlib.suppress(AttributeError):
            warnings.simplefilter("ignore")
            dist.Backend.register_backend(name, creator, extended_api=True, devices=_DEVICES)


_register()
assert sys.modules["torch.testing._internal.distributed.multi_threaded_pg"] is multi_threaded_pg
