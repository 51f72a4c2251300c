"""Bytes of a value that differ if the value does: what explore() compares between schedules."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import types
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import torch

WANTED = "tensors, arrays, numbers, strings, dataclasses, and lists, tuples, sets and dicts of them"

_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}

# Values whose repr() says all of them.
_TOLD = (
    bool, complex, type(None), type(Ellipsis), type(NotImplemented), range, slice, decimal.Decimal, fractions.Fraction, uuid.UUID,
    datetime.date, datetime.time, datetime.timedelta, datetime.timezone, pathlib.PurePath, torch.dtype, torch.device, torch.layout,
    torch.memory_format, torch.finfo, torch.iinfo,
)  # fmt: skip


def bits_of(
    value: Any, unknown: Callable[[type], None], tensor_bytes: Callable[[torch.Tensor], bytes]
) -> bytes:
    """unknown: called with the type of each part that no bytes tell apart from another of its type."""
    encoder = _Encoder(unknown, tensor_bytes)
    encoder.put(value)
    return b"".join(encoder.parts)


def text_of(value: Any) -> str:
    """Its repr(), where that can be had and printed."""
    try:
        text = repr(value)
    except Exception as wrong:
        text = f"<{type(value).__name__}: its repr() raised {type(wrong).__name__}>"
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


class _Encoder:
    def __init__(self, unknown: Callable[[type], None], tensor_bytes: Callable[[torch.Tensor], bytes]) -> None:
        self.parts: list[bytes] = []
        self._unknown = unknown
        self._tensor_bytes = tensor_bytes
        self._within: list[int] = []  # which objects hold what is put

    def put(self, value: Any) -> None:
        kind = type(value)
        self.parts.append(f"{kind.__module__}.{kind.__qualname__}:".encode())
        if id(value) in self._within:  # a list that holds itself
            self.parts.append(f"{self._within.index(id(value))};".encode())
            return
        self._within.append(id(value))
        try:
            if not (self._plain(value) or self._container(value) or self._object(value)):
                self._unknown(kind)
        except RecursionError:
            self._unknown(kind)
        finally:
            self._within.pop()
        self.parts.append(b";")

    def _all(self, values: Iterable[Any]) -> bool:
        listed = list(values)
        self.parts.append(f"{len(listed)}:".encode())
        for value in listed:
            self.put(value)
        return True

    def _bytes(self, value: bytes) -> bool:
        self.parts += [f"{len(value)}:".encode(), value]
        return True

    def _plain(self, value: Any) -> bool:
        if isinstance(value, enum.Enum):
            self.put(value.value)
            return True
        if isinstance(value, _TOLD):
            return self._bytes(repr(value).encode())
        if isinstance(value, float):
            return self._bytes(float.hex(value).encode())  # NaN is NaN, and 0.0 is not -0.0
        if isinstance(value, int):
            return self._bytes(format(int(value), "x").encode())
        if isinstance(value, str):
            return self._bytes(value.encode(errors="surrogatepass"))
        if isinstance(value, (bytes, bytearray, memoryview, array.array)):
            return self._bytes(bytes(value))
        return False

    def _container(self, value: Any) -> bool:
        if isinstance(value, (list, tuple, collections.deque, collections.UserList)):
            return self._all(value)
        if isinstance(value, (dict, collections.UserDict, types.MappingProxyType)):
            return self._sorted([(key, item) for key, item in value.items()])
        if isinstance(value, (set, frozenset)):
            return self._sorted(list(value))
        return False

    def _sorted(self, values: list[Any]) -> bool:
        outer, encoded = self.parts, []
        for value in values:
            self.parts = []
            self.put(value)
            encoded.append(b"".join(self.parts))
        self.parts = outer
        self.parts += [f"{len(values)}:".encode(), *sorted(encoded)]
        return True

    def _object(self, value: Any) -> bool:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if kind.__module__ == "numpy" and hasattr(value, "tobytes"):
            self.parts.append(f"{value.dtype} {value.shape}:".encode())
            return self._all([value.tolist()]) if value.dtype.hasobject else self._bytes(value.tobytes())
        if isinstance(value, torch.nn.Module):
            named = [*value.named_parameters(remove_duplicate=False), *value.named_buffers(remove_duplicate=False)]
            return self._all([value.training, *named])
        if isinstance(value, torch.Generator):
            return self._tensor(value.get_state())
        if isinstance(value, functools.partial):
            return self._all([value.func, value.args, value.keywords])
        if isinstance(value, types.MethodType):
            return self._all([value.__func__, value.__self__])
        if isinstance(value, types.SimpleNamespace):
            return self._all([vars(value)])
        if isinstance(value, BaseException):
            return self._all(value.args)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [field.name for field in dataclasses.fields(value)]
            return self._all([(name, getattr(value, name)) for name in fields if hasattr(value, name)])
        if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType, types.FunctionType)):
            name = getattr(value, "__qualname__", value.__name__)
            self._bytes(f"{getattr(value, '__module__', '')}.{name}".encode())
            owner = getattr(value, "__self__", None)  # of a list's append(), the list
            return not getattr(value, "__closure__", None) and (owner is None or isinstance(owner, (type, types.ModuleType)))
        return kind is object

    def _tensor(self, value: torch.Tensor) -> bool:
        if hasattr(value, "trigger_wait"):  # of a functional collective
            return self._all([value.trigger_wait()])
        if hasattr(value, "__tensor_flatten__"):  # a tensor that holds others: a DTensor, say
            names, _ = value.__tensor_flatten__()
            return self._all([repr(getattr(value, "placements", "")), *(getattr(value, name) for name in names)])
        self.parts.append(f"{value.layout} {value.dtype}:".encode())
        if value.is_nested:
            return self._all(value.detach().unbind())
        self.parts.append(f"{tuple(value.shape)}:".encode())
        value = value.detach()
        if value.is_meta:
            return True
        if value.layout == torch.sparse_coo:
            value = value.coalesce()
            held = [value.indices(), value.values()]
        elif value.layout in _COMPRESSED:
            held = [getattr(value, name)() for name in _COMPRESSED[value.layout]] + [value.values()]
        elif value.layout == torch.strided:
            held = [value]
        else:
            return False
        for tensor in held:
            self.parts.append(f"{tensor.dtype} {tuple(tensor.shape)}:".encode())
            self._bytes(self._tensor_bytes(tensor.resolve_conj().resolve_neg()))
        return True
