"""What belongs to a rank although Python keeps one of it: the environment, torch.distributed's world, random states."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import multi_threaded_pg

from rankloom.torch import _ext, _stores

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
# torch's tests are in its package, but they are a caller's code.
_TORCH_TESTS = os.path.join(_TORCH, "testing") + os.sep
_PLUMBING = tuple(os.path.dirname(os.path.abspath(m.__file__)) for m in (threading, contextlib) if m.__file__)

_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_local = threading.local()
_environments: dict[tuple[int, int], dict[str, str | None]] = {}
_worlds: weakref.WeakValueDictionary[tuple[int, int], Any] = weakref.WeakValueDictionary()


def _environment() -> dict[str, str | None] | None:
    own: dict[str, str | None] | None = getattr(_local, "environment", None)
    if own is not None or not _environments:
        return own
    return _environments.get(_ext.acts_for())


class _RankEnvironment(type(os.environ)):  # type: ignore[misc]
    """os.environ with a few variables per rank. C's getenv() does not see those."""

    def __getitem__(self, key: str) -> str:
        own = _environment()
        if own is not None and key in own:
            value = own[key]
            if value is None:
                raise KeyError(key)
            return value
        return super().__getitem__(key)  # type: ignore[no-any-return]

    def __setitem__(self, key: str, value: str) -> None:
        own = _environment()
        if own is not None and key in _RANK_VARIABLES:
            own[key] = str(value)
        else:
            super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        own = _environment()
        if own is not None and key in own:
            if own[key] is None:
                raise KeyError(key)
            own[key] = None
        else:
            super().__delitem__(key)

    def __iter__(self) -> Iterator[str]:
        own = _environment() or {}
        for key in super().__iter__():
            if own.get(key, "") is not None:
                yield key
        for key, value in own.items():
            if value is not None and self.encodekey(key) not in self._data:
                yield key

    def __contains__(self, key: object) -> bool:
        own = _environment()
        if own is not None and key in own:
            return own[key] is not None
        return bool(super().__contains__(key))


@contextlib.contextmanager
def rank_scope(job: _ext.Job, rank: int) -> Iterator[None]:
    """The calling thread is `rank` of `job`: attached, with its own environment. A failure ends the other ranks' waits."""
    os.environ.__class__ = _RankEnvironment
    size = str(job.world_size)
    _local.environment = _environments[(job.id, rank)] = {
        "RANK": str(rank),
        "WORLD_SIZE": size,
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": f"rankloom-job-{job.id}",
        "MASTER_PORT": "29500",
    }
    failure = ""
    try:
        job.attach(rank)
        yield
    except BaseException as error:
        failure = f"{type(error).__name__}: {error}"
        raise
    finally:
        _ext.detach(failure)
        _local.environment = None
        _environments.pop((job.id, rank), None)


class RankThread(threading.Thread):
    """Tells by itself when it is done: in CPython before 3.13, a join() that is interrupted takes the thread for ended."""

    def __init__(self, name: str, target: Callable[..., None], *args: Any) -> None:
        super().__init__(name=name, target=target, args=args)
        self.ended = threading.Event()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.ended.set()


def start_threads(job: _ext.Job, threads: Sequence[RankThread]) -> None:
    begun = []
    try:
        for thread in threads:
            begun.append(thread)
            thread.start()
    except BaseException as error:
        _give_up(job, begun, error)
        raise


def join_threads(job: _ext.Job, threads: Sequence[RankThread], timeout: float | None = None) -> None:
    """Returns when all have ended, also by an exception of the calling thread. timeout: in seconds, of each."""
    try:
        for thread in threads:
            if not thread.ended.wait(timeout):
                job.abort(f"a rank did not end within {timeout} seconds")
                break
        for thread in threads:
            thread.ended.wait()
            thread.join()
    except BaseException as error:
        _give_up(job, threads, error)
        raise


def _give_up(job: _ext.Job, threads: Sequence[RankThread], error: BaseException) -> None:
    job.abort(f"{type(error).__name__} in the main thread")
    for thread in threads:
        if thread.ident is None and not thread.ended.wait(1):
            continue  # it was interrupted before it began
        thread.ended.wait()
        thread.join()


def keep_world(job: _ext.Job, rank: int) -> None:
    """Threads that act for this rank (a future's callback) see its process groups."""
    world = dist.distributed_c10d._world
    if isinstance(world, multi_threaded_pg.ThreadLocalWorld):
        _worlds[(job.id, rank)] = world._get_world()


def _get_world(self: multi_threaded_pg.ThreadLocalWorld) -> Any:
    local = multi_threaded_pg.ThreadLocalWorld._world
    if not hasattr(local, "world"):
        key = _ext.acts_for()
        if key[0] >= 0 and _ext.current() is None:
            world = _worlds.get(key)
            if world is not None:
                return world
        local.world = multi_threaded_pg.WorldData(None, {}, {}, {}, {}, 0, {}, {}, {}, [])  # type: ignore[arg-type]
    return local.world


def share_worlds() -> None:
    """Idempotent. Without a rank's helper thread, the same as before."""
    multi_threaded_pg.ThreadLocalWorld._get_world = _get_world  # type: ignore[method-assign]


class _Worlds:
    """torch.distributed keeps a world per thread while anybody runs ranks."""

    def __init__(self) -> None:
        self._mu = threading.Lock()
        self._users = 0
        self._before: Any = None

    def enter(self) -> None:
        with self._mu:
            self._users += 1
            if self._users == 1:
                _stores.enter()
                share_worlds()
                self._before = dist.distributed_c10d._world
                dist.distributed_c10d._world = multi_threaded_pg.ThreadLocalWorld()  # type: ignore[assignment]
                torch._C._distributed_c10d._set_thread_isolation_mode(True)  # type: ignore[attr-defined]

    def leave(self) -> None:
        with self._mu:
            self._users -= 1
            if self._users == 0:
                dist.distributed_c10d._world = self._before
                _stores.leave()
                torch._C._distributed_c10d._set_thread_isolation_mode(False)  # type: ignore[attr-defined]


worlds = _Worlds()


def _is_callers(filename: str) -> bool:
    if filename.startswith(_TORCH_TESTS):
        return "common_distributed" not in filename
    return not filename.startswith((_TORCH, _OURS, "<")) and os.path.dirname(filename) not in _PLUMBING


def _stacks(threads: list[tuple[int, int]]) -> str:
    frames = sys._current_frames()
    by_text: dict[str, list[int]] = {}
    for rank, thread in threads:
        frame = frames.get(thread)
        if frame is None:
            continue
        stack = [f for f in traceback.extract_stack(frame) if _is_callers(f.filename)]
        text = "".join(f"\n    {f.filename}:{f.lineno} in {f.name}: {f.line}" for f in stack[-8:])
        by_text.setdefault(text, []).append(rank)
    parts = []
    for text, ranks in by_text.items():
        who = f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))
        parts.append(f"  Python stack of {who}:{text}")
    return "\n".join(parts)


_random: dict[tuple[int, int], Any] = {}


def _swap_random(job: int, before: int, after: int) -> None:
    numpy = sys.modules.get("numpy")
    if before >= 0:
        _random[(job, before)] = (random.getstate(), numpy.random.get_state() if numpy else None)
    state = _random.pop((job, after), None)
    if state is not None:
        random.setstate(state[0])
        if numpy and state[1] is not None:
            numpy.random.set_state(state[1])


_ext.set_hooks(_stacks, _swap_random)
_ext.set_library_folders([_TORCH, _OURS], [_TORCH_TESTS])
