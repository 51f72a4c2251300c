"""torch.distributed's stores, as ours: by their own names while anybody runs ranks."""

from __future__ import annotations

import importlib
import os
import threading
from typing import Any

import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg

from rankloom.torch import _ext

_rendezvous = importlib.import_module("torch.distributed.rendezvous")  # the package has a function of this name


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
            own: dist.Store = FileStore.original(*args, **kwargs)
            return own
        return _named_store("file", os.path.abspath(args[0] if args else kwargs["file_name"]))


class TCPStore(metaclass=_StoreType):
    original = dist.TCPStore

    @staticmethod
    def make(*args: Any, **kwargs: Any) -> dist.Store:
        if not _in_memory():
            own: dist.Store = TCPStore.original(*args, **kwargs)
            return own
        host = args[0] if args else kwargs["host_name"]
        port = args[1] if len(args) > 1 else kwargs.get("port", 0)
        return _named_store("tcp", host, port)


_STORES: list[tuple[Any, str, Any]] = [
    (dist, "HashStore", HashStore),
    (dist, "FileStore", FileStore),
    (dist, "TCPStore", TCPStore),
    (_rendezvous, "FileStore", FileStore),
    (_rendezvous, "TCPStore", TCPStore),
]

_mu = threading.Lock()
_users = 0


def enter() -> None:
    """The names above mean our stores, until as many leave() as enter()."""
    global _users
    with _mu:
        _users += 1
        if _users == 1:
            for owner, name, store in _STORES:
                setattr(owner, name, store)


def leave() -> None:
    global _users
    with _mu:
        _users -= 1
        if _users == 0:
            for owner, name, store in _STORES:
                setattr(owner, name, store.original)
