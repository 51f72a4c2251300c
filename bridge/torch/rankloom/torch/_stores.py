"""torch.distributed's stores, as ours: by their own names while anybody runs ranks."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed import fake_pg

from rankloom import _rerun
from rankloom.torch import _ext
from rankloom.torch._names import is_alone

_rendezvous = importlib.import_module("torch.distributed.rendezvous")  # the package has a function of this name


class _StoreType(type):
    """Our stores are of the extension's types, so a class of ours can only make them and know them again."""

    make: Any
    original: Any = None
    ours: Any = None

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.make(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return type(instance) is cls.ours or (cls.original is not None and isinstance(instance, cls.original))


class HashStore(metaclass=_StoreType):
    """A store in memory for ranks as threads. Waits are scheduling points, so a key that never comes is a deadlock."""

    original = dist.HashStore
    ours = _ext.Store

    @staticmethod
    def make() -> dist.Store:
        return _ext.make_hash_store()


class FakeStore(metaclass=_StoreType):
    """Answers at once and holds nothing: for a fake group, as PyTorch's class of this name."""

    original = fake_pg.FakeStore
    ours = _ext.Store

    @staticmethod
    def make() -> dist.Store:
        return _ext.make_fake_store()


class _Names:
    """The files and ports of one job."""

    FIRST_FREE_PORT = 49152

    def __init__(self) -> None:
        self._stores: dict[tuple[str, str | int], _ext.NamedStore] = {}
        # By store: the ranks whose default groups its server has brought together.
        self._met: weakref.WeakKeyDictionary[_ext.NamedStore, set[int]] = weakref.WeakKeyDictionary()
        self._next_port = self.FIRST_FREE_PORT

    def named(self, kind: str, name: str | int) -> _ext.NamedStore:
        """A new one where a server was that nobody holds any more, or a file that all who were to have held have let go."""
        found = self._stores.get((kind, name))
        if found is None or (found.had_server and not (found.has_server if kind == "port" else found.in_use)):
            found = self._stores[(kind, name)] = _ext.NamedStore()
        return found

    def at_port(self, port: int, rank: int) -> _ext.NamedStore:
        """For a default group of the rank's: a second one at a port is by the next server there, though the last may still listen."""
        found = self.named("port", port)
        if found.had_server and rank in self._met.get(found, ()):
            found = self._stores[("port", port)] = _ext.NamedStore()
        return found

    def note_met(self, store: _ext.NamedStore, rank: int) -> None:
        """The rank listens, or has found who does. One that gave up before may come again, and is to find this server."""
        self._met.setdefault(store, set()).add(rank)

    def free_port(self) -> int:
        while ("port", self._next_port) in self._stores:
            self._next_port += 1
        return self._next_port


_names: dict[int, _Names] = {}  # by job, -1: of no job
_names_mu = threading.Lock()
_local = threading.local()


def act_for(rank: tuple[int, int]) -> None:
    """The calling thread, which this rank of a job started, has the job's stores."""
    _local.rank = rank


def _acting() -> tuple[int, int] | None:
    """The job and the rank that the calling thread is, or acts for."""
    rank = _ext.acts_for()
    return rank if rank[0] >= 0 else getattr(_local, "rank", None)


def _names_of_job() -> _Names:
    _ext.uncovered("TCPStore and FileStore that ranks make by a name: whoever comes first makes the store")
    rank = _acting()
    return _names.setdefault(-1 if rank is None else rank[0], _Names())


def forget(job: int) -> None:
    """The next run that names one of this job's stores has a fresh one."""
    with _names_mu:
        _names.pop(job, None)


def _in_memory() -> bool:
    """Whether ranks meet through memory here: a rank under the baton must not poll a file or sit in a socket."""
    # The main thread is no rank among threads, though a group of one rank may have been left on it.
    is_rank = _acting() is not None and threading.current_thread() is not threading.main_thread()
    return is_rank or is_alone() or any(name in os.environ for name in _rerun.ONE_SCHEDULE)


def named_file(path: str, workers: int = -1) -> dist.Store:
    """Of the calling rank's job. workers: so many hold it, and the file goes with the last of them; negative: it stays."""
    with _names_mu:
        return _names_of_job().named("file", path).file(path, workers)


class FileStore(metaclass=_StoreType):
    original = dist.FileStore
    ours = _ext.FileStore

    @staticmethod
    def make(*args: Any, **kwargs: Any) -> dist.Store:
        if not _in_memory():
            own: dist.Store = FileStore.original(*args, **kwargs)
            return own
        if is_alone():
            return FakeStore.make()
        path = args[0] if args else kwargs["file_name"]
        workers = args[1] if len(args) > 1 else kwargs.get("world_size", -1)
        return named_file(os.path.realpath(path), -1 if workers is None else workers)


class TCPStore(metaclass=_StoreType):
    original = dist.TCPStore
    ours = _ext.TCPStore

    @staticmethod
    def make(*args: Any, **kwargs: Any) -> dist.Store:
        if not _in_memory():
            own: dist.Store = TCPStore.original(*args, **kwargs)
            return own
        if is_alone():
            return FakeStore.make()
        return _tcp_store(*args, **kwargs)


@contextlib.contextmanager
def default_group() -> Iterator[None]:
    """The calling rank makes its default group within. A try that fails is not counted: the count is the name of the next one, by which
    the rank meets others that have not failed."""
    try:
        yield
    except BaseException:
        if not dist.is_initialized():
            distributed_c10d._world.group_count = 0  # as after destroy_process_group()
        raise


class _TCPStoreOfRendezvous(metaclass=_StoreType):
    """The same for init_process_group(), which passes on a default timeout where its caller names none."""

    original = dist.TCPStore
    ours = _ext.TCPStore

    @staticmethod
    def make(*args: Any, **kwargs: Any) -> dist.Store:
        if not _in_memory() or is_alone():
            return TCPStore.make(*args, **kwargs)
        timeout: Any = kwargs.pop("timeout", None)
        is_default = timeout in (distributed_c10d.default_pg_timeout, distributed_c10d.default_pg_nccl_timeout)
        given = {**kwargs, "timeout": None if is_default else timeout, "of_group": True}
        with default_group():
            store = _tcp_store(*args, **given)
        if is_default:
            store.set_timeout(timeout)
        return store


def _tcp_store(
    host_name: str,
    port: int,
    world_size: int | None = None,
    is_master: bool = False,
    timeout: datetime.timedelta | None = None,
    wait_for_workers: bool = True,
    multi_tenant: bool = False,
    master_listen_fd: int | None = None,
    use_libuv: bool = True,
    of_group: bool = False,
) -> dist.Store:
    if port == 0 and not is_master:
        raise ValueError("TCPStore: port is 0, want the port where the master listens")
    with _names_mu:
        names = _names_of_job()
        port = port or names.free_port()
        rank = _acting() if of_group else None
        named = names.named("port", port) if rank is None else names.at_port(port, rank[1])
        if is_master and named.has_server and not multi_tenant:
            raise dist.DistNetworkError(
                "The server socket has failed to listen on any local network address. "
                f"port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
            )
        store = named.tcp(host_name, port, is_master)
    if timeout is not None:
        store.set_timeout(timeout)
    master = f"the master of the TCPStore at port {port}"  # a host has many names
    if is_master:
        named.workers.set(master, "")
    else:
        _connect(named, master, timeout)
    if rank is not None:
        with _names_mu:
            names.note_met(named, rank[1])
    if wait_for_workers and world_size is not None and world_size > 0:
        store.add("init/", 1)  # a key that num_keys() counts, as there
        all_came = f"all {world_size} workers of the TCPStore at port {port}"
        if named.workers.add("came", 1) == world_size:
            named.workers.set(all_came, "")
        if is_master:
            _await(named, all_came, timeout)
    return store


def _connect(named: _ext.NamedStore, master: str, timeout: datetime.timedelta | None) -> None:
    try:
        _await(named, master, timeout)
    except dist.DistStoreError as error:
        if timeout is None or not str(error).startswith("Timeout: "):
            raise
        raise dist.DistNetworkError(str(error)) from None


def _await(named: _ext.NamedStore, key: str, timeout: datetime.timedelta | None) -> None:
    """A timeout that was given is one of this wait; without it nobody's coming is a deadlock."""
    if timeout is None:
        named.workers.wait([key])
    else:
        named.workers.wait([key], timeout)


_STORES: list[tuple[Any, str, Any]] = [
    (dist, "HashStore", HashStore),
    (dist, "FileStore", FileStore),
    (dist, "TCPStore", TCPStore),
    (_rendezvous, "FileStore", FileStore),
    (_rendezvous, "TCPStore", _TCPStoreOfRendezvous),
]

_KINDS: list[Any] = [HashStore, FileStore, TCPStore]


def _new_of(kind: Any) -> Any:
    """PyTorch's class, by whatever name a module has it since its import, makes our store where ranks meet through memory."""
    original, make_own = kind.original, kind.original.__new__

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return kind.make(*args, **kwargs) if cls is original and _in_memory() else make_own(cls)

    return new


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
            for kind in _KINDS:
                kind.original.__new__ = _new_of(kind)


def leave() -> None:
    global _users
    with _mu:
        _users -= 1
        if _users == 0:
            for owner, name, store in _STORES:
                setattr(owner, name, store.original)
            for kind in _KINDS:
                del kind.original.__new__
