"""The state that ranks share in Python: the variables that a program captures or finds in its module. No scheduler sees them."""

from __future__ import annotations

import argparse
import array
import asyncio
import collections
import concurrent.futures
import contextlib
import ctypes
import decimal
import enum
import functools
import io
import itertools
import os
import queue
import random
import sys
import threading
import types
import warnings
import weakref
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from rankloom.torch import _ranks

_MOST = 100_000  # objects looked at
_PLAIN_FOR_ONE = 10  # numbers and the like count as one object
_DEEP = 30


class Variables:
    """Those that a program's code names: of its closures, its module, and of the callers' functions and classes that it uses.

    roots: what can be called, and further variables as (name, value).
    """

    def __init__(self, roots: Iterable[Any], *, swap_random: bool) -> None:
        self._roots = list(roots)
        self._swap_random = swap_random  # the states of random and numpy.random are each rank's own
        self._before = self._marks()
        self._changed: list[str] = []

    def changed(self) -> list[str]:
        """The names of those that are not what they were."""
        now = self._marks()
        names = {name for name in {**self._before, **now} if self._before.get(name) != now.get(name)}
        self._changed = sorted({*self._changed, *names})
        self._before = now
        return self._changed

    def _marks(self) -> dict[str, Any]:
        left: list[Any] = [_PLAIN_FOR_ONE * _MOST, {}]
        marks: dict[str, Any] = {}
        for name, value in _named(self._roots):  # two functions may each have a variable of that name
            marks.setdefault(name, []).append(_mark(value, _DEEP, left))
        if left[0] <= 0:  # not told apart from before: the rest may be anything
            marks[f"some of more than {_MOST:,} objects, which are not all looked at"] = object()
        return {**marks, **_of_process(self._swap_random)}


def _of_process(swap_random: bool) -> dict[str, Any]:
    """State that a process has once, whatever a program calls it by."""
    marks: dict[str, Any] = {
        "os.environ": _ranks.environment_writes(),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's choice of deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
    }
    if not swap_random:
        marks["the state of random (want swap_random=True)"] = random.getstate()
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            marks["the state of numpy.random (want swap_random=True)"] = repr(numpy.random.get_state())
    return marks


def _named(roots: list[Any]) -> Iterator[tuple[str, Any]]:
    seen: dict[int, Any] = {}  # kept, since the number of an object that is gone is that of another one soon
    looked_at: dict[int, Any] = {}  # containers of which the code was taken
    waiting = list(roots)
    while waiting:
        at = waiting.pop()
        if id(at) in seen:
            continue
        seen[id(at)] = at
        if isinstance(at, tuple) and len(at) == 2 and isinstance(at[0], str):
            name, value = at
            if type(value) in weakref.ProxyTypes:
                continue
            if isinstance(value, _CODE):
                waiting.append(value)
            elif not isinstance(value, types.ModuleType):
                waiting += _code_within(value, looked_at)
                yield name, value
        elif isinstance(at, functools.partial):
            arguments = [*enumerate(at.args), *at.keywords.items()]
            waiting += [at.func, *((f"argument {name} of a partial", value) for name, value in arguments)]
        elif isinstance(at, types.MethodType):
            waiting += [at.__func__, (f"{type(at.__self__).__name__} (self)", at.__self__)]
        elif isinstance(at, types.BuiltinMethodType):  # list.append of a list; functions have their module there
            waiting.append((f"{type(at.__self__).__name__} (self)", at.__self__))
        elif isinstance(at, functools._lru_cache_wrapper):
            waiting.append(at.__wrapped__)
            if isinstance(at.__wrapped__, types.FunctionType) and _is_callers_function(at.__wrapped__):
                yield f"{at.__name__} (its cache)", _Members(zip(("hits", "misses", "", "entries"), at.cache_info(), strict=True))
        elif isinstance(at, types.FunctionType):
            waiting += [getattr(at, "__wrapped__", None), *_defaults(at), *_handlers(at)]
            if not _is_callers_function(at):
                continue
            own = {key: value for key, value in vars(at).items() if key != "__wrapped__"}
            if own:
                yield f"{at.__name__} (its attributes)", _Members(own)
            waiting += _variables(at)
        elif isinstance(at, type):
            for kind in filter(_of_caller, at.__mro__):
                waiting += filter(None, map(_function_of, vars(kind).values()))
                if not issubclass(kind, enum.Enum):  # which makes members of flags when they are asked for
                    yield kind.__name__, _Members({name: held for name, held in vars(kind).items() if not name.startswith("__") and _is_state(held)})
        elif callable(at):
            waiting.append((f"{type(at).__name__} (self)", at))


# Types of libraries whose attributes are what they hold.
_HELD = (
    argparse.Namespace, BaseException, concurrent.futures.Future, threading.Condition, threading.Event, threading.Semaphore,
    threading.Barrier, asyncio.Queue, torch.optim.lr_scheduler.LRScheduler,
)  # fmt: skip
_PLAIN_VALUES = (int, float, complex, str, bytes, type(None))
_PLAIN = (int, float, complex, str, bytes, type(None), torch.Tensor, torch.dtype, types.ModuleType)
_CODE = (
    types.FunctionType, types.MethodType, types.BuiltinMethodType, functools.partial, functools._lru_cache_wrapper, type
)  # fmt: skip


def _code_within(root: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Functions and the like in containers and attributes, which a program calls from there, and the callers' types of objects."""
    waiting = [root]
    while waiting and len(seen) < _MOST:
        value = waiting.pop()
        try:
            if isinstance(value, _PLAIN) or id(value) in seen:
                continue
        except ReferenceError:  # of a proxy whose object has gone
            continue
        seen[id(value)] = value
        if isinstance(value, _CODE):
            yield value
            continue
        if isinstance(value, torch.nn.Module):
            waiting += value._modules.values()
        elif isinstance(value, (list, tuple, set, frozenset, collections.deque, collections.UserList)):
            waiting += itertools.islice(value, _MOST)
        elif isinstance(value, (dict, collections.UserDict)):
            waiting += itertools.islice(value.values(), _MOST)
        if _module_of(value) != "numpy" and any(map(_of_caller, type(value).__mro__)):
            yield type(value)
            waiting += _members(value).values()


def _function_of(member: Any) -> Any:
    """Of a class: a function, one whose results are kept, or a class within."""
    member = getattr(member, "fget", None) if isinstance(member, property) else getattr(member, "__func__", member)
    if isinstance(member, functools.partialmethod):
        member = member.func
    return member if isinstance(member, (types.FunctionType, functools._lru_cache_wrapper, type)) else None


def _handlers(function: types.FunctionType) -> list[Any]:
    """Of functools.singledispatch."""
    registry = getattr(function, "registry", None)
    return list(registry.values()) if isinstance(registry, types.MappingProxyType) else []


def _defaults(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    for name, value in [*zip(names, values, strict=True), *(function.__kwdefaults__ or {}).items()]:
        yield f"{name} (a default of {function.__name__})", value


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue
    names = list(_names(function.__code__))
    if "globals" in names:
        plain = {name: value if isinstance(value, _PLAIN) else id(value) for name, value in function.__globals__.items()}
        yield f"globals() of {function.__module__}", _Members(plain)
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, types.ModuleType) and not _ranks.is_installed(getattr(value, "__file__", None) or os.__file__):
            yield from ((f"{name}.{member}", vars(value)[member]) for member in names if member in vars(value))


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _of_caller(kind: type) -> bool:
    return _is_callers(getattr(sys.modules.get(kind.__module__), "__file__", None), kind.__module__)


def _is_callers_function(function: types.FunctionType) -> bool:
    file = function.__code__.co_filename
    names = function.__globals__
    return _is_callers(names.get("__file__") if file.startswith("<") else file, names.get("__name__", ""))


def _is_callers(file: str | None, module: str) -> bool:
    if file is None or file.startswith("<"):  # a program that is typed in, or comes from a pipe
        return module == "__main__"
    return _ranks.is_callers(file)


class _Members(dict[Any, Any]):
    """Members of an object, gathered for a mark: which dict it is means nothing."""


def _members(value: Any) -> _Members:
    members = _Members()
    with contextlib.suppress(AttributeError):  # none of the program's own __getattr__()
        members.update(object.__getattribute__(value, "__dict__"))
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, types.MemberDescriptorType) and name not in ("__dict__", "__weakref__"):
                with contextlib.suppress(AttributeError):  # a slot that is empty; no code of the program's runs
                    members[name] = slot.__get__(value)
    return members


def _is_state(member: Any) -> bool:
    """Of a class: no method, nor what Python itself puts there."""
    descriptors = (property, classmethod, staticmethod, types.GetSetDescriptorType, types.MemberDescriptorType)
    return not callable(member) and not isinstance(member, descriptors)


def _mark(value: Any, depth: int, left: list[Any]) -> Any:
    """Something that differs if the value does, or what it holds. Of objects that are nobody's of the caller's: which one it is."""
    if isinstance(value, _PLAIN_VALUES):
        left[0] -= 1
    else:
        seen = left[1]
        if id(value) in seen:  # as when it was met first
            return seen[id(value)][0]
        left[0] -= _PLAIN_FOR_ONE
        seen[id(value)] = (len(seen), value)  # kept, since the number of an object that is gone is that of another one soon
    try:
        return _mark_of(value, depth, left)
    except Exception:  # a number that is too long for a text, a view that was released
        return id(value)


def _mark_of(value: Any, depth: int, left: list[Any]) -> Any:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, (float, complex, str, bytes, type(None))):
        return repr(value)
    if isinstance(value, torch.Tensor):
        grad = None if not value.is_leaf or value.grad is None else _mark(value.grad, 0, left)
        where = value.data_ptr() if value.layout == torch.strided and type(value) in (torch.Tensor, torch.nn.Parameter) else 0
        return (id(value), value._version, where, grad, _mark(_Members(getattr(value, "__dict__", {})), 1, left))
    if depth == 0 or left[0] <= 0:
        return 0 if isinstance(value, _Members) else id(value)
    if isinstance(value, (list, tuple, collections.deque)):
        return (id(value), [_mark(item, depth - 1, left) for item in itertools.islice(value, left[0])], len(value))
    if isinstance(value, (collections.UserDict, collections.UserList, collections.UserString)):
        return (id(value), _mark(value.data, depth - 1, left))
    if isinstance(value, collections.ChainMap):
        return (id(value), _mark(value.maps, depth - 1, left))
    if isinstance(value, dict):
        marks = [(_mark(key, 1, left), _mark(item, depth - 1, left)) for key, item in list(value.items())[: left[0]]]
        return (0 if isinstance(value, _Members) else id(value), marks, len(value))
    if isinstance(value, (set, frozenset)):
        return (id(value), sorted(repr(_mark(item, 1, left)) for item in list(value)[: left[0]]), len(value))
    if isinstance(value, (bytearray, array.array, memoryview)):
        return (id(value), bytes(value))
    if isinstance(value, (io.StringIO, io.BytesIO)):
        return (id(value), None if value.closed else value.getvalue())
    if isinstance(value, io.IOBase):
        return (id(value), None if value.closed or not value.seekable() else value.tell())
    if isinstance(value, itertools.count):
        return repr(value)
    if isinstance(value, (types.GeneratorType, types.CoroutineType)) or _is_plain_iterator(value):
        return (id(value), _mark_iterator(value, depth, left))
    if isinstance(value, random.Random) and value is not getattr(random, "_inst", None):  # that one's functions are the module's
        return (id(value), value.getstate())
    if isinstance(value, dist.Store):
        return object()  # of no run: nothing tells a search what ranks do with it
    if isinstance(value, _HELD):
        return (id(value), _mark(_Members(vars(value), args=getattr(value, "args", None)), depth - 1, left))
    if isinstance(value, (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)):
        return (id(value), _mark(_Members({id(key): item for key, item in value.items()}), depth - 1, left))
    if isinstance(value, (ctypes._SimpleCData, ctypes.Array, ctypes.Structure)):
        return (id(value), bytes(value))
    if isinstance(value, types.CellType):
        return (id(value), _mark(value.cell_contents, depth - 1, left))
    if isinstance(value, decimal.Context):
        return (id(value), repr(value))
    if type(value).__module__ == "torch.utils.data.dataloader" and hasattr(value, "_num_yielded"):
        return (id(value), value._num_yielded)
    if isinstance(value, torch.Generator):
        return (id(value), bytes(value.get_state().tolist()))
    if isinstance(value, (queue.Queue, queue.SimpleQueue)):
        return (id(value), _mark(getattr(value, "queue", value.qsize()), depth - 1, left))
    if isinstance(value, sys.modules["numpy"].ndarray if "numpy" in sys.modules else ()) or _module_of(value) == "numpy":
        return (id(value), _mark_of_numpy(value, depth, left))
    if isinstance(value, torch.optim.Optimizer):
        return (id(value), _mark(_Members(groups=value.param_groups, state=_Members(value.state)), depth - 1, left))
    if isinstance(value, (torch.nn.Module, types.SimpleNamespace)) or _of_caller(type(value)):
        return (id(value), _mark(_members(value), depth - 1, left))
    return id(value)


def _module_of(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _is_plain_iterator(value: Any) -> bool:
    return isinstance(value, Iterator) and _module_of(value) in ("builtins", "itertools", "collections", "_collections", "_csv")


def _mark_iterator(value: Any, depth: int, left: list[Any]) -> Any:
    """Tells how far the iterator has come."""
    if isinstance(value, (types.GeneratorType, types.CoroutineType)):
        frame, within = (
            (value.gi_frame, value.gi_yieldfrom) if isinstance(value, types.GeneratorType) else (value.cr_frame, value.cr_await)
        )
        if frame is None:
            return None
        held = [item for name, item in frame.f_locals.items() if not name.startswith("__")]
        return (frame.f_lasti, [_mark(item, depth - 1, left) for item in held], _mark(within, depth - 1, left))
    if hasattr(value, "line_num"):  # a reader of csv
        return value.line_num
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # itertools deprecates this
            _, arguments, *state = value.__reduce_ex__(2)
    except Exception:
        return object()  # nothing tells how far it has come: an iterator that ranks share counts as changed
    if any(map(callable, arguments)) and not any(map(_is_plain_iterator, arguments)):
        return object()  # iter(function, sentinel)
    return [_mark_within(item, depth - 1, left) for item in (*arguments, *state)]


def _mark_within(value: Any, depth: int, left: list[Any]) -> Any:
    """A part of an iterator's state, some of which is made anew each time."""
    left[0] -= 1
    if depth <= 0 or left[0] <= 0:
        return None
    if _is_plain_iterator(value):
        return _mark_iterator(value, depth, left)
    if isinstance(value, tuple):
        return [_mark_within(item, depth - 1, left) for item in value]
    return repr(value) if isinstance(value, (int, str, range)) else len(value) if isinstance(value, list) else None


def _mark_of_numpy(value: Any, depth: int, left: list[Any]) -> Any:
    if hasattr(value, "tobytes") and hasattr(value, "ravel"):
        if value.dtype.hasobject:
            return [_mark(item, depth - 1, left) for item in value.ravel().tolist()[: left[0]]]
        if type(value).__name__ == "memmap":
            return (value.ctypes.data, value.shape)  # of a file that may be larger than memory
        if value.nbytes < 1 << 20:
            return value.tobytes()
        return zlib.crc32(memoryview(value).cast("B") if value.flags.c_contiguous else value.tobytes())
    if hasattr(value, "get_state"):  # a RandomState
        return repr(value.get_state())
    if type(value).__name__ in ("flatiter", "ndenumerate"):
        return getattr(getattr(value, "iter", value), "index", None)
    state = getattr(getattr(value, "bit_generator", value), "state", None)  # a Generator's is that of its bits
    return repr(state) if isinstance(state, dict) else None
