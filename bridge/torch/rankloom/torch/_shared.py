"""The state that ranks share in Python: the variables that a program captures or finds in its module. No scheduler sees them."""

from __future__ import annotations

import argparse
import array
import asyncio
import collections
import concurrent.futures
import contextlib
import ctypes
import datetime
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
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.weak import TensorWeakRef

from rankloom.torch import _bits, _ext, _ranks

_MOST = 100_000  # objects looked at
_PLAIN_FOR_ONE = 10  # numbers and the like count as one object
_LONG = 1000  # characters of a text of which its hash is kept; items of a tuple that are not looked at one by one
_SMALL = 1 << 20  # bytes of an array that are kept
_NESTED = 30  # iterators within each other


_Known = tuple[Any, int]  # an object that was looked at, weakly where Python can do that, and its number
_numbers = itertools.count()


class Variables:
    """Those that a program's code names: of its closures, its module, and of the callers' functions and classes that it uses.

    roots: what can be called, and further variables as (name, value).
    """

    def __init__(self, roots: Iterable[Any], *, swap_random: bool) -> None:
        self._roots = list(roots)
        self._swap_random = swap_random  # the states of random and numpy.random are each rank's own
        self._changed: set[str] = set()
        self._last = _Look(self._roots, swap_random, {})

    def changed(self) -> list[str]:
        """The names of those that have not stayed what they were from call to call."""
        look = _Look(self._roots, self._swap_random, self._last.objects)
        self._changed |= look.differs_from(self._last)
        self._last = look
        return sorted(self._changed)

    @property
    def objects(self) -> int:
        """How many there are, which says what a call takes."""
        return len(self._last.objects)


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
            name, keys, *state = numpy.random.get_state()
            marks["the state of numpy.random (want swap_random=True)"] = (name, keys.tobytes(), *state)
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


class _Which:
    """An object of which it only matters which one it is."""

    def __init__(self, value: Any) -> None:
        self.value = value


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
        if issubclass(type(value), (*_PLAIN, _Which, *weakref.ProxyTypes)) or id(value) in seen:
            continue
        seen[id(value)] = value
        if issubclass(type(value), _CODE):
            yield value
            continue
        with contextlib.suppress(Exception):  # of a container that was never filled
            waiting += itertools.islice(_held_by(value), _MOST)
            if _module_of(value) != "numpy" and any(map(_of_caller, type(value).__mro__)):
                yield type(value)
                waiting += _members(value).values()


def _held_by(value: Any) -> Iterable[Any]:
    """The items of a container or a module, without a step of the program's own code: it may be of a class of that one's."""
    kind = type(value)
    if issubclass(kind, (collections.UserList, collections.UserDict, collections.ChainMap)):
        value = _members(value).get("maps" if issubclass(kind, collections.ChainMap) else "data")
    elif issubclass(kind, torch.nn.Module):
        value = _members(value).get("_modules")
    return dict.values(value) if isinstance(value, dict) else _items(value)


def _items(value: Any) -> Iterable[Any]:
    for kind in (list, tuple, collections.deque, set, frozenset):
        if issubclass(type(value), kind):
            return kind.__iter__(value)
    return ()


def _pairs(value: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    return collections.OrderedDict.items(value) if isinstance(value, collections.OrderedDict) else dict.items(value)


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
        plain = {name: value if issubclass(type(value), _PLAIN) else _Which(value) for name, value in function.__globals__.items()}
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


class _Look:
    """The values of variables at a time, and of the objects that are found by them, each once.

    An object has a number, the same in one look after the other as long as it lives. Its state is told by what is plain, and by the
    numbers of the objects that it holds.
    """

    def __init__(self, roots: list[Any], swap_random: bool, known: dict[int, _Known]) -> None:
        """known: objects of the last look."""
        self.objects: dict[int, _Known] = {}  # by id()
        self._known = known
        self._held: list[Any] = []  # those objects: the id() of one that is gone is that of another one soon
        self._states: dict[int, tuple[str, Any]] = {}  # by number: by which variable the object was found, and its state
        self._waiting: collections.deque[tuple[str, int, Any]] = collections.deque()  # objects that have no state yet
        self._left = _PLAIN_FOR_ONE * _MOST
        self._name = ""  # of the variable that is looked at
        self._marks: dict[str, Any] = {}  # by variable
        for self._name, value in _named(roots):  # two functions may each have a variable of that name
            self._marks.setdefault(self._name, []).append(self._mark(value))
        while self._waiting and self._left > 0:
            self._name, number, value = self._waiting.popleft()
            self._states[number] = (self._name, self._state(value))
        if self._left <= 0:  # not told apart from before: the rest may be anything
            self._marks[f"some of more than {_MOST:,} objects, which are not all looked at"] = object()
        self._marks |= _of_process(swap_random)
        self._held, self._known = [], {}

    def differs_from(self, last: _Look) -> set[str]:
        """The names of variables of which that is so."""
        names = {name for name in {**last._marks, **self._marks} if last._marks.get(name) != self._marks.get(name)}
        both = ((name, state, last._states[number][1]) for number, (name, state) in self._states.items() if number in last._states)
        return names | {name for name, state, before in both if state != before}

    def _mark(self, value: Any) -> Any:
        """Something that differs if the value does: of an object its number. Its state comes later."""
        kind = type(value)
        if kind is int:
            self._left -= 1
            return value
        if kind is _Members:
            return [(self._mark(key), self._mark(item)) for key, item in value.items()]
        if kind is _Which:
            return (self._number(value.value),)
        if issubclass(kind, _PLAIN_VALUES):
            self._left -= 1
            return _plain(value)
        if id(kind) in _TOLD:
            with contextlib.suppress(Exception):  # a number in it is too long for a text, its time zone is the program's own
                self._left -= 1
                return (kind.__name__, repr(value))
        number = self._number(value)
        if number not in self._states:
            self._left -= _PLAIN_FOR_ONE
            self._states[number] = (self._name, None)
            self._waiting.append((self._name, number, value))
        return (number,)

    def _number(self, value: Any) -> int:
        here = self.objects.get(id(value))
        if here is None:
            here = self._known.get(id(value))
            if here is None or (here[0][0] if isinstance(here[0], tuple) else here[0]()) is not value:
                here = (_reference(value), next(_numbers))
            self.objects[id(value)] = here
            self._held.append(value)
        return here[1]

    def _state(self, value: Any) -> Any:
        """None: nothing of it is known but which object it is."""
        try:
            state = self._content(value)
            if issubclass(type(value), (torch.nn.Module, types.SimpleNamespace)) or _of_caller(type(value)):
                return (state, self._mark(_members(value)))
            return state
        except Exception:  # a view that was released, the program's own code
            return None

    def _content(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._of_tensor(value)
        if isinstance(value, (list, tuple, collections.deque)):
            return self._all(_items(value))
        if isinstance(value, (collections.UserDict, collections.UserList, collections.UserString)):
            return self._mark(_members(value).get("data"))
        if isinstance(value, collections.ChainMap):
            return self._mark(_members(value).get("maps"))
        if isinstance(value, dict):
            return [(self._mark(key), self._mark(item)) for key, item in itertools.islice(_pairs(value), self._left)]
        if isinstance(value, (set, frozenset)):
            return sorted(map(repr, self._all(_items(value))))
        if isinstance(value, (bytearray, array.array, memoryview)):
            return bytes(value)
        if isinstance(value, io.IOBase):
            return _of_file(value)
        if isinstance(value, itertools.count):
            return repr(value)
        if isinstance(value, (types.GeneratorType, types.CoroutineType)):
            return self._of_generator(value)
        if _is_plain_iterator(value):
            return _of_iterator(value, _NESTED)
        if isinstance(value, random.Random) and value is not getattr(random, "_inst", None):  # that one's functions are the module's
            return value.getstate()
        if isinstance(value, dist.Store):
            return object()  # of no run: nothing tells a search what ranks do with it
        if isinstance(value, _HELD):
            return self._mark(_Members(vars(value), args=getattr(value, "args", None)))
        if isinstance(value, (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)):
            return [(self._mark(key), self._mark(item)) for key, item in value.items()]
        if isinstance(value, (ctypes._SimpleCData, ctypes.Array, ctypes.Structure)):
            return bytes(value)
        if isinstance(value, types.CellType):
            return self._mark(value.cell_contents)
        if isinstance(value, decimal.Context):
            return repr(value)
        if type(value).__module__ == "torch.utils.data.dataloader" and hasattr(value, "_num_yielded"):
            return value._num_yielded
        if isinstance(value, torch.Generator):
            return bytes(value.get_state().tolist())
        if isinstance(value, (queue.Queue, queue.SimpleQueue)):
            return self._mark(getattr(value, "queue", value.qsize()))
        if isinstance(value, sys.modules["numpy"].ndarray if "numpy" in sys.modules else ()) or _module_of(value) == "numpy":
            return self._of_numpy(value)
        if isinstance(value, torch.optim.Optimizer):
            return self._mark(_Members(groups=value.param_groups, state=_Members(value.state)))
        return None

    def _all(self, values: Iterable[Any]) -> list[Any]:
        return [self._mark(value) for value in itertools.islice(values, self._left)]

    def _of_tensor(self, value: torch.Tensor) -> Any:
        grad = self._mark(value.grad) if value.is_leaf else None
        is_plain = value.layout == torch.strided and type(value) in (torch.Tensor, torch.nn.Parameter)
        return (_version(value), value.data_ptr() if is_plain else 0, grad, self._mark(_Members(getattr(value, "__dict__", {}))))

    def _of_generator(self, value: Any) -> Any:
        """Tells how far it has come."""
        frame, within = (
            (value.gi_frame, value.gi_yieldfrom) if isinstance(value, types.GeneratorType) else (value.cr_frame, value.cr_await)
        )
        if frame is None:
            return None
        held = [item for name, item in frame.f_locals.items() if not name.startswith("__")]
        return (frame.f_lasti, self._all(held), self._mark(within))

    def _of_numpy(self, value: Any) -> Any:
        if hasattr(value, "tobytes") and hasattr(value, "ravel"):
            if value.dtype.hasobject:
                return self._all(value.ravel().tolist())
            if type(value).__name__ == "memmap":
                return (value.ctypes.data, value.shape)  # of a file that may be larger than memory
            if value.nbytes < _SMALL:
                return value.tobytes()
            return zlib.crc32(memoryview(value).cast("B") if value.flags.c_contiguous else value.tobytes())
        if hasattr(value, "get_state"):  # a RandomState
            return repr(value.get_state())
        if type(value).__name__ in ("flatiter", "ndenumerate"):
            return getattr(getattr(value, "iter", value), "index", None)
        state = getattr(getattr(value, "bit_generator", value), "state", None)  # a Generator's is that of its bits
        return repr(state) if isinstance(state, dict) else None


# By id(): besides plain values, the types of those of which it does not matter which object they are.
_TOLD = {*map(id, (*_bits.TOLD, datetime.datetime, datetime.time))}


def _plain(value: Any) -> Any:
    """Without a step of the program's own code, of whose class it may be."""
    if isinstance(value, int):
        return int.__index__(value)
    for kind in (float, complex):
        if isinstance(value, kind):
            return kind.__repr__(value)
    texts: list[Any] = [str, bytes]
    for text in texts:
        if isinstance(value, text):
            length = text.__len__(value)
            return text.__repr__(value) if length < _LONG else (text.__name__, length, text.__hash__(value))
    return None


def _reference(value: Any) -> tuple[Any] | Callable[[], Any]:
    try:
        return TensorWeakRef(value) if isinstance(value, torch.Tensor) else weakref.ref(value)
    except Exception:  # a container of Python's, say
        return (value,)


def _version(value: torch.Tensor) -> Any:
    """Tells whether the tensor has been written to."""
    if not value.is_inference():
        return value._version
    if value.layout == torch.strided and value.nbytes < _SMALL:
        return _ext.tensor_bytes(value)
    return object()  # of no run: nothing counts what is written to it


def _of_file(value: Any) -> Any:
    for name in ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__"):
        stream = getattr(sys, name, None)
        if value is stream or value is getattr(stream, "buffer", None):
            return None  # a program prints
    if value.closed:
        return None
    if isinstance(value, (io.StringIO, io.BytesIO)):
        return value.getvalue()
    return value.tell() if value.seekable() else None


def _module_of(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _is_plain_iterator(value: Any) -> bool:
    return isinstance(value, Iterator) and _module_of(value) in ("builtins", "itertools", "collections", "_collections", "_csv")


def _of_iterator(value: Any, depth: int) -> Any:
    """Tells how far it has come."""
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
    return [_of_part(item, depth - 1) for item in (*arguments, *state)]


def _of_part(value: Any, depth: int) -> Any:
    """Of an iterator's state, some of which is made anew each time."""
    if depth <= 0:
        return object()
    if _is_plain_iterator(value):
        return _of_iterator(value, depth)
    if isinstance(value, tuple) and len(value) < _LONG:
        return [_of_part(item, depth - 1) for item in value]
    return repr(value) if isinstance(value, (int, str, range)) else len(value) if isinstance(value, (list, tuple)) else None
