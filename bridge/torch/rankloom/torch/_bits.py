"""Bytes that tell values apart, by which explore() compares results between schedules."""

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
import zoneinfo
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

WANTED = "tensors, arrays, numbers, strings, dataclasses, modules, and lists, tuples, sets and dicts of them"

_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}

# Types, and none derived of them, whose repr() has all of a value.
TOLD = {
    bool, complex, type(None), type(Ellipsis), type(NotImplemented), range, decimal.Decimal, fractions.Fraction, uuid.UUID,
    datetime.date, datetime.timedelta, datetime.timezone, pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath,
    pathlib.PureWindowsPath, zoneinfo.ZoneInfo, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo,
}  # fmt: skip
_FLOATS_WITHOUT_GAPS = (2, 4, 8)  # bytes of numpy's floating-point numbers; longer ones have bits that mean nothing
_MOST = 2_000_000  # parts of a value that are looked at


class UnknownValueError(TypeError):
    """Raised for a value that no bytes tell apart from others of its type, where that is an error."""


def bits_of(
    value: Any, unknown: Callable[[type], None], tensor_bytes: Callable[[torch.Tensor], bytes]
) -> bytes:
    """unknown: called with the type of each part that no bytes tell apart from another of its type."""
    encoder = _Encoder(unknown, tensor_bytes)
    encoder.put(value)
    return b"".join(encoder.parts)


def _fast(value: Any, kind: type) -> bytes:
    if kind is float:
        return f"f{value.hex()};".encode()  # NaN is NaN, and 0.0 is not -0.0
    return f"i{value:x};".encode() if kind is int else f"s{len(value)}:{value};".encode(errors="surrogatepass")


def _scale(value: torch.Tensor) -> list[Any]:
    """The scale and zero point of a quantized tensor."""
    if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return [value.q_scale(), value.q_zero_point()]
    return [value.q_per_channel_scales(), value.q_per_channel_zero_points(), value.q_per_channel_axis()]


def _code_of(code: types.CodeType) -> list[Any]:
    """Values that differ where the code does, wherever it stands."""
    return [code.co_code, code.co_names, [_code_of(one) if isinstance(one, types.CodeType) else one for one in code.co_consts]]


def text_of(value: Any) -> str:
    """The repr(), where that can be had and printed."""
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
        self._within: list[int] = []  # objects that hold the one that is put
        self._left = _MOST

    def put(self, value: Any) -> None:
        kind = type(value)
        if kind is float or kind is int or kind is str:
            self.parts.append(_fast(value, kind))
            return
        self.parts.append(f"{kind.__module__}.{kind.__qualname__}:".encode())
        if id(value) in self._within:  # a list that holds itself
            self.parts.append(f"{self._within.index(id(value))};".encode())
            return
        self._within.append(id(value))
        self._left -= 1
        try:
            known = self._left > 0 and (self._plain(value) or self._container(value) or self._object(value))
        except UnknownValueError:
            raise
        except Exception:  # a program's own code, or torch's of a tensor that has no data yet
            known = False
        finally:
            self._within.pop()
        if not known:
            self._unknown(kind)
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

    def _with_members(self, value: Any, known: set[type]) -> bool:
        """Attributes, which those of a type derived of the known ones have as well."""
        return type(value) in known or self._all([getattr(value, "__dict__", {})])

    def _plain(self, value: Any) -> bool:
        kind = type(value)
        if kind in TOLD:
            return self._bytes(repr(value).encode())
        if isinstance(value, enum.Enum):
            return self._all([value._value_] if value._name_ is None else [value._name_])  # sums of flags may have none
        if isinstance(value, float):
            return self._bytes(float.hex(value).encode())
        if isinstance(value, int):
            return self._bytes(format(int(value), "x").encode())
        if isinstance(value, str):
            return self._bytes(value.encode(errors="surrogatepass"))
        if isinstance(value, (bytes, bytearray)):
            return self._bytes(bytes(value))
        if isinstance(value, array.array):
            return self._all([value.typecode, value.tobytes()])
        if isinstance(value, memoryview):
            return self._all([value.format, value.shape, value.tobytes()])
        if kind is slice:
            return self._all([value.start, value.stop, value.step])
        if kind in (datetime.datetime, datetime.time):
            return self._all([value.replace(tzinfo=None).isoformat(), value.fold, value.tzinfo])
        return False

    def _container(self, value: Any) -> bool:
        if isinstance(value, collections.deque):
            return self._all([value.maxlen, *value]) and self._with_members(value, {collections.deque})
        if isinstance(value, collections.UserList):
            return self._all(value.data)
        if isinstance(value, (list, tuple)):
            return self._all(value) and self._with_members(value, {list, tuple, torch.Size})
        if isinstance(value, collections.OrderedDict):  # whose order counts
            return self._all(value.items()) and self._with_members(value, {collections.OrderedDict})
        if isinstance(value, collections.defaultdict):
            self.put(value.default_factory)
        if isinstance(value, dict):
            known: set[type] = {dict, collections.defaultdict, collections.Counter}
            return self._sorted(list(value.items())) and self._with_members(value, known)
        if isinstance(value, (collections.UserDict, types.MappingProxyType)):
            return self._sorted([(key, value[key]) for key in value])
        if isinstance(value, (set, frozenset)):
            return self._sorted(list(value)) and self._with_members(value, {set, frozenset})
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
        if kind.__module__.partition(".")[0] == "numpy" and hasattr(value, "tobytes"):
            return self._numpy(value)
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        if isinstance(value, DeviceMesh):
            return self._all([value.device_type, value.mesh, value.mesh_dim_names])
        if isinstance(value, torch.Generator):
            return self._tensor(value.get_state())
        if isinstance(value, functools.partial):
            return self._all([value.func, value.args, value.keywords])
        if isinstance(value, types.MethodType):
            return self._all([value.__func__, value.__self__])
        if isinstance(value, types.SimpleNamespace):
            return self._all([vars(value)])
        if isinstance(value, BaseException):
            of_file = [value.errno, value.filename, value.filename2] if isinstance(value, OSError) else []
            return self._all([value.args, *of_file, vars(value)])
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [field.name for field in dataclasses.fields(value)]
            self._all([(name, getattr(value, name)) for name in fields if hasattr(value, name)])
            return self._all([{name: held for name, held in getattr(value, "__dict__", {}).items() if name not in fields}])
        if isinstance(value, types.FunctionType):
            self._all([value.__module__, value.__qualname__, value.__defaults__, value.__kwdefaults__, *_code_of(value.__code__)])
            return not value.__closure__
        if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
            owner = getattr(value, "__self__", None)  # of a list's append(), the list
            self._all([getattr(value, "__module__", ""), getattr(value, "__qualname__", value.__name__)])
            return owner is None or isinstance(owner, (type, types.ModuleType))
        return False

    def _module(self, value: torch.nn.Module) -> bool:
        named = [*value.named_parameters(remove_duplicate=False), *value.named_buffers(remove_duplicate=False)]
        return self._all([*named, *(module.training for module in value.modules())])

    def _numpy(self, value: Any) -> bool:
        self.parts.append(f"{value.dtype} {value.shape}:".encode())
        if value.dtype.names:
            self._all([value[name] for name in value.dtype.names])
        elif value.dtype.hasobject:
            self._all([value.tolist()])
        elif value.dtype.kind in "fc" and value.dtype.itemsize // (2 if value.dtype.kind == "c" else 1) not in _FLOATS_WITHOUT_GAPS:
            self._bytes(" ".join(map(repr, value.ravel())).encode())
        else:
            self._bytes(value.tobytes())
        return self._all([getattr(value, "__dict__", {})])  # of a masked array its mask

    def _tensor(self, value: torch.Tensor) -> bool:
        if hasattr(value, "trigger_wait"):  # of a functional collective
            return self._all([value.trigger_wait()])
        if hasattr(value, "__tensor_flatten__"):  # a tensor that holds others: a DTensor, say
            names, _ = value.__tensor_flatten__()
            return self._all([value.shape, repr(getattr(value, "placements", "")), *(getattr(value, name) for name in names)])
        self.parts.append(f"{value.layout} {value.dtype} {value.requires_grad}:".encode())
        self._all({name: held for name, held in getattr(value, "__dict__", {}).items() if not name.startswith("_")}.items())
        if value.is_leaf and value.grad is not None:
            self.put(value.grad)
        if value.is_quantized:
            return self._all([value.qscheme() == torch.per_tensor_affine, value.dequantize(), *_scale(value)])
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
            for dim, stride in enumerate(value.stride()):
                if stride == 0 and value.shape[dim] > 1:  # expanded: one element, many times
                    value = value.narrow(dim, 0, 1)
            held = [value]
        else:
            return False
        for tensor in held:
            self.parts.append(f"{tensor.dtype} {tuple(tensor.shape)}:".encode())
            self._bytes(self._tensor_bytes(tensor.resolve_conj().resolve_neg()))
        return True
