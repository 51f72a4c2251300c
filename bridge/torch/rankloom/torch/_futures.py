"""Futures of torch's on ranks, whose own wait() sleeps where no scheduler sees it: no timeout and no deadlock would end it.

A future of a call is given out at once, and complete when its callbacks have their step, under a schedule on a helper of the rank. A rank
that waits for one waits where the scheduler sees it; DDP's reducer, which waits in C++ at the end of a backward pass, finds it complete. A
future that is handed to C++ in another way is awaited first.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from rankloom.torch import _ext

_c10d: Any = torch._C._distributed_c10d
_Future: Any = torch._C.Future
_originals: dict[str, Any] = {name: getattr(_Future, name) for name in ("wait", "done", "value", "then", "add_done_callback")}

_calls: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = weakref.WeakKeyDictionary()  # future -> the works that it comes of
# Future of collect_all() -> the works of each future that it collects, which it gives as objects of Python's of its own.
_parts: weakref.WeakKeyDictionary[Any, list[tuple[Any, ...]]] = weakref.WeakKeyDictionary()
# Of what get_future() gave, whose each call makes an object of Python's for the same future: the work.
_given_by: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
# Futures to which something was chained before they were complete; works, of whose futures that is so.
_chained: weakref.WeakSet[Any] = weakref.WeakSet()
_collect: Callable[[list[Any]], Any] = torch._C._collect_all


@contextlib.contextmanager
def _set(exchange: Callable[[bool], bool]) -> Iterator[None]:
    """A flag of the calling thread is set within."""
    before = exchange(True)
    try:
        yield
    finally:
        exchange(before)


def _of_call(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(get)
    def get_future(work: Any) -> Any:
        with _set(_ext.futures_come_later):
            future = get(work)
        if _ext.scheduled() or isinstance(work, _ext.Work):
            _calls[future] = (work,)
            _given_by[future] = work
        return future

    return get_future


def _see(future: Any) -> None:
    """The others have a turn, in which the future may be completed: before the caller's next step depends on whether it is."""
    if _ext.scheduled():
        if not _originals["done"](future):
            _ext.poll()
        _look(future)


def _noted(self: Any, callback: Any) -> Any:
    """The callback that is chained to the future: a search is told of what it hides."""
    if not _ext.scheduled():
        return callback
    if not _originals["done"](self):
        _chained.add(_given_by.get(self, self))
        return callback
    if torch._C._current_graph_task_id() == -1:
        return callback

    @functools.wraps(callback)
    def at_once(future: Any) -> Any:
        with _set(_ext.calls_come_at_once):
            return callback(future)

    return at_once


def _then(self: Any, callback: Any) -> Any:
    _see(self)  # what is chained to a complete future runs at once
    callback = _noted(self, callback)
    future = _originals["then"](self, callback)
    works = _calls.get(self)
    if works is not None:
        _calls[future] = works
    return future


def _collect_all(futures: list[Any]) -> Any:
    future = _collect(futures)
    if futures and all(one in _calls for one in futures):
        _parts[future] = parts = [_calls[one] for one in futures]
        _calls[future] = tuple(itertools.chain.from_iterable(parts))
    return future


def _known(future: Any, value: Any) -> Any:
    """The future's value."""
    for one, works in zip(value if future in _parts else (), _parts.get(future, ()), strict=True):
        _calls[one] = works
    return value


def _add_done_callback(self: Any, callback: Any) -> Any:
    _see(self)
    return _originals["add_done_callback"](self, _noted(self, callback))


def _look(future: Any) -> None:
    """Tells a search that the caller's next steps depend on whether the future is complete."""
    works = _calls.get(future)
    for work in works or ():
        _ext.look_at_futures(work)
    if works is None:
        _ext.uncovered("futures of torch that are not of a call, nor of its then()")


def _settle_calls(works: tuple[Any, ...]) -> None:
    """Waits where the scheduler sees it: timeouts of the calls count, and a report says which call it is."""
    for work in works:
        _ext.settle(work)


def settle(future: Any) -> None:
    """Returns when the future is complete. Errors: what ends the run; that of the future is not raised."""
    done = _originals["done"]
    if not done(future):
        _settle_calls(_calls.get(future, ()))
        if not done(future):
            gate = _ext.FutureGate()
            _originals["add_done_callback"](future, lambda _: gate.open())
            gate.wait()
    _look(future)


def _wait(self: Any) -> Any:
    works = _calls.get(self, ())
    for work in works:
        _ext.let_pass(work)
    if _ext.scheduled():
        if _given_by.get(self, self) in _chained and not _originals["done"](self):
            _ext.uncovered("wait() of a future to which more is chained: under a schedule that has run when wait() returns")
        settle(self)
    elif not _originals["done"](self):
        _settle_calls(works)
    return _known(self, _originals["wait"](self))


def _done(self: Any) -> bool:
    _see(self)
    return _originals["done"](self)  # type: ignore[no-any-return]


def _value(self: Any) -> Any:
    if _ext.current() is not None and _ext.scheduled():  # not in a callback, whose future is complete
        _look(self)
    return _known(self, _originals["value"](self))


def _of_hook(register: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(register)
    def register_comm_hook(reducer: Any, state: Any, hook: Callable[..., Any]) -> Any:
        @functools.wraps(hook)
        def complete_in_time(state: Any, bucket: Any) -> Any:
            future = hook(state, bucket)
            if not isinstance(future, _Future) or _originals["done"](future):
                return future
            # Outside of a backward pass, as of a rank that has joined, the reducer asks the future itself, which has no call by then.
            in_backward = torch._C._current_graph_task_id() != -1
            works = () if _ext.scheduled() else _calls.get(future, ())
            wait = functools.partial(_settle_calls, works) if works else functools.partial(settle, future)
            if in_backward and (_ext.scheduled() or works):
                # Before the reducer's own, which comes once all buckets have their future.
                Variable._execution_engine.queue_callback(wait)
            elif works:
                wait()
            return future

        return register(reducer, state, complete_in_time)

    return register_comm_hook


def _of_work(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def create_work(future: Any, *args: Any) -> Any:
        if _ext.scheduled():
            settle(future)
        return create(future, *args)

    return create_work


def _of_static_graph(delay: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """At the end of the first backward pass of a static graph, which reduces all and waits for it within one call."""

    @functools.wraps(delay)
    def delay_all_reduce(reducer: Any) -> Any:
        with _set(_ext.futures_are_awaited):
            return delay(reducer)

    return delay_all_reduce


def patch() -> None:
    """For good, and once: elsewhere than on ranks all is as before."""
    for name, function in (("wait", _wait), ("done", _done), ("value", _value), ("then", _then), ("add_done_callback", _add_done_callback)):
        setattr(_Future, name, function)
    torch._C._collect_all = _collect_all
    _c10d.Reducer._delay_all_reduce = _of_static_graph(_c10d.Reducer._delay_all_reduce)
    for name in ("get_future", "get_future_result"):
        if hasattr(_c10d.Work, name):
            setattr(_c10d.Work, name, _of_call(getattr(_c10d.Work, name)))
    for module in (_c10d, dist):
        for name, wrap in (("_register_comm_hook", _of_hook), ("_create_work_from_future", _of_work)):
            if hasattr(module, name):
                setattr(module, name, wrap(getattr(module, name)))
