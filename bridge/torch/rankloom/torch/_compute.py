"""The computation of a fake world's rank between its calls: kernels with FLOPs and bytes, on streams, and the memory they hold.

A kernel's time is its roofline: the larger of FLOPs / (peak * efficiency) and bytes / bandwidth.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from rankloom.torch import _ext
from rankloom.torch._device_peaks import Device

_aten = torch.ops.aten

PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, BUFFERS = KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers")


class Kernel(NamedTuple):
    at: int  # the index of its stretch of compute() in the record
    stream: int  # 0: the default one
    flop_seconds: float  # at the device's peak
    byte_seconds: float
    flops: int  # as torch counts them: attention as if without a mask
    bytes: int
    name: str
    module: str
    phase: str  # "forward", "backward", "recompute" or "optimizer"
    dtype: str  # whose peak it was held against; empty: it has no FLOPs that count

    def seconds(self, efficiency: float) -> float:
        return max(self.byte_seconds, self.flop_seconds / efficiency)


class Issue(NamedTuple):
    """Calls of the record from `at` on are issued on this stream."""

    at: int
    stream: int


class EventRecord(NamedTuple):
    at: int
    stream: int
    event: int


class EventWait(NamedTuple):
    at: int
    stream: int
    event: int


class Join(NamedTuple):
    """All calls so far are through before the default stream goes on."""

    at: int


class Pause(NamedTuple):
    """The items that follow are no part of a step, until `on` is True."""

    at: int
    on: bool


class Memory(NamedTuple):
    """A block of memory has so many bytes from here on."""

    at: int
    block: int
    bytes: int
    gone: bool = False  # for good


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Items and calls of a part of the program that others are like."""

    items: range
    calls: range
    first_block: int  # blocks of memory that begin in the stretch have greater numbers
    made: frozenset[int]  # blocks of its results, which whoever repeats the stretch makes for real


@dataclasses.dataclass(frozen=True)
class Again:
    """A stretch is repeated here."""

    at: int
    stretch: Stretch
    copy: object  # stretches of the same copy share the blocks of memory that begin in them
    ends: bool  # with this stretch all of them are gone


@dataclasses.dataclass(frozen=True)
class Mark:
    """A moment between two items."""

    items: int  # that come before it
    calls: int
    sizes: dict[int, int]  # of the blocks of memory that are there, in bytes


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of what was computed, such as a step of a script."""

    begin: Mark
    end: Mark


Item = Kernel | Issue | EventRecord | EventWait | Join | Pause | Memory | Again


@dataclasses.dataclass(frozen=True)
class _Op:
    """An operation of torch's, as far as its kernel is concerned."""

    name: str
    kind: str  # "kernel", "view" (it takes no time), "call" (of a group)
    decomposes: bool = False
    formula: Callable[..., int] | None = None
    causal: int = -1  # the argument that says so
    overwrites: bool = False  # without reading what is there
    rows: bool = False  # as much is read as is written, wherever that is
    fuses: bool = False  # a compiler makes one kernel of it and its neighbours
    is_product: bool = False  # of a linear layer
    written: tuple[int, ...] = ()  # arguments that it writes into


_NO_KERNEL = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_local_scalar_dense", "resize_", "set_", "_unsafe_view")
_FSDP = ("split_with_sizes_copy", "chunk_cat")
_MAKES_STATE = ("zeros", "zeros_like", "ones_like", "full", "full_like", "new_zeros", "new_full")
_ROWS = ("embedding", "index_select", "gather", "index")
_OVERWRITES = ("copy_", "zero_", "fill_", "normal_", "uniform_")
_FUSES = (
    "_to_copy", "clone", "copy_", "sum", "mean", "amax", "var_mean", "_softmax", "_log_softmax", "_softmax_backward_data",
    "_log_softmax_backward_data", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "fill_", "zero_", "slice_backward",
    "select_backward", "cat", "stack", "nll_loss_forward", "nll_loss_backward", "native_layer_norm", "native_layer_norm_backward",
    "_fused_rms_norm", "_fused_rms_norm_backward", "constant_pad_nd",
)  # fmt: skip


def _attention(b: int, heads: int, queries: int, keys: int, width: int) -> int:
    return 4 * b * heads * queries * keys * width


def _attention_on_cpu(query: torch.Tensor, key: torch.Tensor, *_args: Any, **_kwargs: Any) -> int:
    b, heads, queries, width = query.shape
    return _attention(b, heads, queries, key.shape[2], width)


def _attention_backward_on_cpu(_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *_args: Any, **_kwargs: Any) -> int:
    return _attention_on_cpu(query, key) * 5 // 2


_FORMULAS: dict[str, Callable[..., int]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention_on_cpu,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward_on_cpu,
}


def _has_kernel(func: Any, key: str) -> bool:
    return bool(func.has_kernel_for_dispatch_key(getattr(torch._C.DispatchKey, key)))


def _described(func: Any) -> _Op:
    from torch.utils.flop_counter import flop_registry

    namespace, name = func.namespace, func._schema.name.split("::")[1]
    if namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd"):
        return _Op(name, "view" if name in ("wait_tensor", "_wrap_tensor_autograd") else "call")
    arguments, returns = func._schema.arguments, func._schema.returns
    aliases = [result.alias_info for result in returns]
    is_view = bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
    if is_view or namespace == "prim" or name in _NO_KERNEL:
        return _Op(name, "view")
    names = [argument.name for argument in arguments]
    return _Op(
        name,
        "kernel",
        decomposes=_has_kernel(func, "CompositeImplicitAutograd") and not _has_kernel(func, "CPU"),
        formula=_FORMULAS.get(name) or flop_registry.get(func._overloadpacket),
        causal=names.index("is_causal") if "is_causal" in names else -1,
        overwrites=name in _OVERWRITES,
        rows=name in _ROWS,
        fuses=torch.Tag.pointwise in func.tags or name in _FUSES,
        is_product=name in ("mm", "addmm"),
        written=tuple(i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write),
    )


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """A DTensor's part on this rank; another tensor itself."""
    part = getattr(tensor, "_local_tensor", tensor)
    return part if isinstance(part, torch.Tensor) else tensor


def _bytes_of(tensor: torch.Tensor) -> int:
    try:
        return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
    except (RuntimeError, NotImplementedError):  # no memory of its own: a sparse tensor
        return tensor.numel() * tensor.element_size()


class _Attention(TorchFunctionMode):
    """scaled_dot_product_attention() of tensors without data is one kernel, as it is on a device; torch would make it five, with
    a matrix of queries and keys in memory."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention and len(args) <= 3 and not _masked(kwargs):
            query, key, value = [*args, *(kwargs[name] for name in ("query", "key", "value")[len(args) :])]
            if all(_is_plain(tensor) and tensor.dim() == 4 for tensor in (query, key, value)) and query.shape[3] == value.shape[3]:
                return _aten._scaled_dot_product_flash_attention_for_cpu(
                    query, key, value, 0.0, bool(kwargs.get("is_causal", False)), scale=kwargs.get("scale")
                )[0]
        return func(*args, **kwargs)


def _masked(kwargs: dict[str, Any]) -> bool:
    return kwargs.get("attn_mask") is not None or kwargs.get("dropout_p", 0.0) != 0.0


def _is_plain(tensor: torch.Tensor) -> bool:
    """On the meta device, or a FakeTensor of the CPU: no other has a kernel without data."""
    fake = isinstance(tensor, torch._subclasses.FakeTensor)
    wrapped = is_traceable_wrapper_subclass_type(type(tensor))
    return not wrapped and (fake or tensor.device.type == "meta")


class Compute(TorchDispatchMode):
    """Tells the record of each kernel, and keeps what a replay wants beside the record's rows.

    record: the record of the moment. names: of the module that calls. Thread-compatible: kernels of the thread that opened it.
    """

    def __init__(
        self,
        record: Callable[[], _ext.FakeRecord],
        names: Callable[[], str],
        modules: Callable[[], list[torch.nn.Module]],
        on_data: Callable[[str], None],
        device: Device,
        efficiency: float,
        matmul_dtype: str | None,
        fuse: bool,
    ) -> None:
        super().__init__()
        self.device, self.efficiency, self.matmul_dtype, self.fuse = device, efficiency, matmul_dtype, fuse
        self.without_peak: set[str] = set()  # dtypes of kernels for which the device has no peak: float32's is taken
        self._record, self._names, self._modules, self._on_data = record, names, modules, on_data
        self._ops: dict[Any, _Op] = {}
        self.items: list[Item] = []
        self._streams: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._stream_count = 1
        self._events = 0
        self._is_closed = False
        self._is_stepping = False  # an optimizer is
        self._makes_state = False  # in its first step, whose time is that of all later ones
        self._is_learning_shapes = False  # DTensor is, of whole tensors
        self._blocks: dict[int, int] = {}  # numbers of blocks of memory, by the address of their storage
        self._sizes: dict[int, int] = {}  # of those that are there, in bytes, by number
        self._block_count = 0
        self._watches: dict[int, weakref.ref[Any]] = {}  # by number
        self._kinds: dict[int, str] = {}  # by number
        self._before: dict[int, int] = {}  # blocks that were there when the items begin: bytes by number
        self._fused_reads: dict[int, int] = {}
        self._fused_writes: dict[int, int] = {}
        self._fused_made: set[int] = set()
        self._fused_from: tuple[str, str] = ("", "")
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._told_of_data = False
        self._modules_known = 0
        self._first_call: Mark | None = None  # of a module
        self._step_marks: list[Mark] = []  # the ends of steps since clear(): the last two
        self._steps = 0
        self._called_since = False  # a module was, since the last of these
        self.repeats = False  # microbatches that are like one before are not computed, but repeated
        self.known: dict[object, Any] = {}  # of the pipeline, since clear()

    # ---- the context

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        with contextlib.ExitStack() as exits:
            before = register_optimizer_step_pre_hook(self._step_begins)
            exits.callback(before.remove)
            after = register_optimizer_step_post_hook(self._step_ends)
            exits.callback(after.remove)
            # torch has one for all threads, and ranks of an earlier run, each in its own, may have left another than the default.
            exits.callback(setattr, torch.cpu, "_current_stream", torch.cpu._current_stream)
            torch.cpu._current_stream = torch.cpu._default_cpu_stream
            exits.enter_context(_patched(self))
            exits.enter_context(_Attention())
            exits.enter_context(self)
            yield
            self.flush()
            self._classify_model()
            self._is_closed = True

    def clear(self) -> None:
        """Forgets what was computed so far; memory stays."""
        self.flush()
        self.items = []
        self.without_peak.clear()
        self.known = {}
        self._before = dict(self._sizes)
        self._first_call, self._step_marks, self._steps, self._called_since = None, [], 0, False

    # ---- steps of a script

    def module_called(self) -> None:
        """The program calls a module, which no other module does."""
        modules = self._modules()
        if len(modules) != self._modules_known:  # now: the model of a script may be gone at its end
            self._modules_known = len(modules)
            self._classify_model()
        if self._first_call is None:
            self._first_call = self._mark()
        self._called_since = True

    def _mark(self) -> Mark:
        self.flush()
        return Mark(len(self.items), self._record().size, dict(self._sizes))

    def last_step(self) -> tuple[Part, str]:
        """The last one up to the end of an optimizer's step, and what it is. A step begins where the one before it ends, and the first
        one with the first call of a module."""
        begin = self._first_call or Mark(0, 0, self._before)
        of = "from the first call of a module" if self._first_call is not None else "from the script's first call on"
        if not self._step_marks:
            return Part(begin, self._mark()), f"{of} to its end, since no optimizer made a step"
        *before, end = self._step_marks
        if before:
            return Part(before[-1], end), f"the last of {self._steps} steps, from the end of one optimizer step to that of the next"
        return Part(begin, end), f"the only step, {of} to the end of the optimizer's step"

    # ---- kernels

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            return NotImplemented  # its own operations come here
        kwargs = kwargs or {}
        if self._is_learning_shapes:
            return func(*args, **kwargs)
        op = self._ops.get(func)
        if op is None:
            op = self._ops[func] = _described(func)
        if op.decomposes:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        if op.kind == "call":
            self.flush()
            self.items.append(Issue(self._record().size, self._stream()))
        result = func(*args, **kwargs)
        made = list(tensors_in(result))
        if op.kind == "call":
            for tensor in tensors_in((args, made)):
                self._block_of(tensor)
            return result
        given = list(tensors_in((args, kwargs)))
        for tensor in given:
            self._block_of(tensor)
        for tensor in made:
            self._block_of(tensor)
        if op.name in _FSDP:
            self._classify_fsdp(op.name, args, kwargs)
        counts = op.kind == "kernel" and bool(given or made) and not any(tensor.is_sparse for tensor in given)
        if counts and not all(_is_of_the_program(tensor) for tensor in given + made):
            self._kernel(op, args, kwargs, given, made, result)
        return result

    def _kernel(
        self, op: _Op, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[torch.Tensor], made: list[torch.Tensor], result: Any
    ) -> None:
        if not self._told_of_data and op.formula is not None and given and _has_data(given[0]):
            self._told_of_data = True
            self._on_data(op.name)
        if self._makes_state and op.name in _MAKES_STATE:
            return
        written = [tensor for i in op.written if i < len(args) for tensor in tensors_in(args[i])]
        if self.fuse and op.fuses and self._stream() == 0:
            self._fuse(op, given, made, written)
            return
        self.flush()
        mine = {id(tensor) for tensor in written}
        new = [tensor for tensor in made if id(tensor) not in mine]
        size = sum(map(_bytes_of, new)) + sum(map(_bytes_of, written))
        if op.rows:
            size *= 2
        else:
            reads = () if op.name.endswith("_like") or op.name.startswith("new_") else given
            size += sum(_bytes_of(tensor) for tensor in reads if not (op.overwrites and id(tensor) in mine))
        if op.is_product and self.matmul_dtype is not None:
            # Both operands are read for their largest value, read again, and written as bytes.
            size += sum(t.numel() * (2 * t.element_size() + 1) for t in given[-2:])
        flops, share, dtype = 0, 1.0, ""
        if op.formula is not None:
            flops = int(op.formula(*args, **kwargs, out_val=result))
            dtype = self._precision(op, given)
            if op.causal >= 0 and (args[op.causal] if op.causal < len(args) else kwargs.get("is_causal", False)):
                share = 0.5
        self._add(op.name, flops, share, dtype, size, self._names(), self._phase())

    def _add(self, name: str, flops: int, share: float, dtype: str, size: int, module: str, phase: str) -> None:
        flop_seconds = flops * share / self.device.flops[dtype] if flops else 0.0
        byte_seconds = size / self.device.bytes_per_second
        record = self._record()
        kernel = Kernel(record.size, self._stream(), flop_seconds, byte_seconds, flops, size, name, module, phase, dtype)
        self.items.append(kernel)
        record.compute(kernel.seconds(self.efficiency), name)

    def _precision(self, op: _Op, given: list[torch.Tensor]) -> str:
        if op.is_product and self.matmul_dtype is not None:
            return self.matmul_dtype
        dtype = str(given[0].dtype).removeprefix("torch.")
        if dtype == "float32" and "tfloat32" in self.device.flops and torch.get_float32_matmul_precision() != "highest":
            return "tfloat32"
        if dtype in self.device.flops:
            return dtype
        if dtype != "float32":
            self.without_peak.add(dtype)
        return "float32"

    def _phase(self) -> str:
        if self._is_stepping:
            return "optimizer"
        if torch._C._current_graph_task_id() == -1:
            return "forward"
        return "recompute" if torch.is_grad_enabled() else "backward"

    # ---- kernels that a compiler makes one

    def _fuse(self, op: _Op, given: list[torch.Tensor], made: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        if not self._fused_made and not self._fused_reads and not self._fused_writes:
            self._fused_from = (self._names(), self._phase())
        mine = {id(tensor) for tensor in written}
        for tensor in given:
            block = self._block_of(tensor)
            if block not in self._fused_made and not (op.overwrites and id(tensor) in mine):
                self._fused_reads[block] = max(self._fused_reads.get(block, 0), _bytes_of(tensor))
        for tensor in made:
            block = self._block_of(tensor)
            if id(tensor) not in mine and block not in self._fused_reads:
                self._fused_made.add(block)
            self._fused_writes[block] = max(self._fused_writes.get(block, 0), _bytes_of(tensor))

    def flush(self) -> None:
        """The kernels that wait to be one are: what they make and nobody wants any more never gets to memory."""
        if not self._fused_writes and not self._fused_reads:
            return
        size = sum(self._fused_reads.values())
        size += sum(written for block, written in self._fused_writes.items() if self._sizes.get(block))
        self._fused_reads, self._fused_writes, self._fused_made = {}, {}, set()
        self._add("fused", 0, 1.0, "", size, *self._fused_from)

    # ---- streams

    def _stream(self) -> int:
        return self.number_of(torch.cpu._current_stream)

    def number_of(self, stream: Any) -> int:
        if stream is torch.cpu._default_cpu_stream:
            return 0
        number = self._streams.get(stream)
        if number is None:
            number = self._streams[stream] = self._stream_count
            self._stream_count += 1
        return number

    def record_event(self, event: Any, stream: Any) -> None:
        self.flush()
        self._events += 1
        event._rankloom_event = self._events
        self.items.append(EventRecord(self._record().size, self.number_of(stream), self._events))

    def wait_event(self, stream: Any, event: Any) -> None:
        number = getattr(event, "_rankloom_event", None)
        if number is not None:
            self.flush()
            self.items.append(EventWait(self._record().size, self.number_of(stream), number))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.flush()
        self.items.append(Pause(self._record().size, False))
        try:
            yield
        finally:
            self.flush()
            self.items.append(Pause(self._record().size, True))

    # ---- stretches that are repeated

    def begin(self) -> tuple[int, int, int]:
        """For end()."""
        self.flush()
        return len(self.items), self._record().size, self._block_count

    def end(self, begin: tuple[int, int, int], results: Any) -> Stretch:
        self.flush()
        made = frozenset(self._block_of(local(tensor)) for tensor in tensors_in(results))
        items, calls, block = begin
        return Stretch(range(items, len(self.items)), range(calls, self._record().size), block, made)

    def again(self, stretch: Stretch, copy: object, ends: bool = False) -> None:
        self.flush()
        record = self._record()
        self.items.append(Again(record.size, stretch, copy, ends))
        record.compute(0.0, "microbatch")  # a row, so that waits before and after differ

    # ---- memory

    def _block_of(self, tensor: torch.Tensor) -> int:
        """The number of the memory that the tensor is in."""
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):
            return 0
        address = storage._cdata
        known = self._blocks.get(address)
        if known is not None:
            return known
        self._block_count += 1
        number, size = self._block_count, storage.nbytes()
        self._blocks[address], self._sizes[number] = number, size
        self._watches[number] = weakref.ref(storage, lambda _: self._freed(address, number))
        self.items.append(Memory(self._record().size, number, size))
        if torch.cpu._current_stream is not torch.cpu._default_cpu_stream:
            self._kinds[number] = BUFFERS
        return number

    def _freed(self, address: int, number: int) -> None:
        if self._blocks.get(address) == number:
            del self._blocks[address]
        if self._sizes.pop(number, 0) and not self._is_closed:
            self.items.append(Memory(self._record().size, number, 0, gone=True))
        self._watches.pop(number, None)

    def resized(self, storage: Any) -> None:
        known = self._blocks.get(storage._cdata)
        if known is not None and self._sizes[known] != storage.nbytes():
            self._sizes[known] = storage.nbytes()
            self.items.append(Memory(self._record().size, known, storage.nbytes()))

    def _classify(self, tensor: torch.Tensor | None, kind: str) -> None:
        if tensor is not None:
            number = self._block_of(local(tensor))
            if self._kinds.get(number) != PARAMETERS:
                self._kinds[number] = kind

    def _classify_fsdp(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Gathered parameters are where they are copied to; gradients that are to be scattered, where they come from."""
        gathers = name == "split_with_sizes_copy"
        for tensor in tensors_in(kwargs.get("out") if gathers else args[0]):
            self._classify(tensor, PARAMETERS if gathers else GRADIENTS)

    def _classify_model(self) -> None:
        for module in self._modules():
            for parameter in module._parameters.values():
                if parameter is not None and not torch.nn.parameter.is_lazy(parameter):
                    self._classify(parameter, PARAMETERS)
                    self._classify(parameter.grad, GRADIENTS)
            for buffer in module._buffers.values():
                if buffer is not None and not torch.nn.parameter.is_lazy(buffer):
                    self._classify(buffer, BUFFERS)

    def _step_begins(self, optimizer: Optimizer, *_: Any) -> None:
        self.flush()
        self.items.append(Join(self._record().size))
        self._is_stepping, self._makes_state = True, not optimizer.state
        self._optimizers.add(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._classify(parameter, PARAMETERS)
                self._classify(parameter.grad, GRADIENTS)

    def _step_ends(self, optimizer: Optimizer, *_: Any) -> None:
        self.flush()
        self._is_stepping = self._makes_state = False
        for tensor in tensors_in(list(optimizer.state.values())):
            self._classify(tensor, OPTIMIZER)
        if self._called_since or not self._step_marks:
            self._steps += 1
            self._step_marks = self._step_marks[-1:]
        else:
            self._step_marks.pop()  # another optimizer's part of the same step
        self._step_marks.append(self._mark())
        self._called_since = False

    def kinds(self) -> dict[int, str]:
        """Kinds of the blocks of memory, by number."""
        if not self._is_closed:
            self._classify_model()
        return self._kinds

    def before(self) -> dict[int, int]:
        return self._before


def _is_of_the_program(tensor: torch.Tensor) -> bool:
    """A number that the program computes for itself, on the CPU: of ranks, say."""
    return not tensor.is_floating_point() and not tensor.is_complex() and _has_data(tensor) and tensor.device.type == "cpu"


def _has_data(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "meta" and not isinstance(tensor, torch._subclasses.FakeTensor)


@contextlib.contextmanager
def _patched(compute: Compute) -> Iterator[None]:
    """torch.cpu's streams and events, which FSDP2 and others ask for where there is no device, order kernels; storages that
    change their size are known."""

    def wait_stream(self: Any, stream: Any) -> None:
        event = torch.cpu.Event()
        compute.record_event(event, stream)
        compute.wait_event(self, event)

    def record_event(self: Any, event: Any = None) -> Any:
        event = torch.cpu.Event() if event is None else event
        compute.record_event(event, self)
        return event

    def wait_event(self: Any, event: Any) -> None:
        compute.wait_event(self, event)

    def record(self: Any, stream: Any = None) -> None:
        compute.record_event(self, torch.cpu.current_stream() if stream is None else stream)

    def wait(self: Any, stream: Any = None) -> None:
        compute.wait_event(torch.cpu.current_stream() if stream is None else stream, self)

    resize = torch.UntypedStorage.resize_

    def resize_(self: Any, size: int) -> Any:
        result = resize(self, size)
        compute.resized(self)
        return result

    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    propagator, name = ShardingPropagator, "_propagate_tensor_meta_non_cached"
    propagate = getattr(propagator, name, None)

    def learn_shapes(self: Any, *args: Any, **kwargs: Any) -> Any:
        assert propagate is not None
        before, compute._is_learning_shapes = compute._is_learning_shapes, True
        try:
            return propagate(self, *args, **kwargs)
        finally:
            compute._is_learning_shapes = before

    patches: list[tuple[Any, str, Any]] = [] if propagate is None else [(propagator, name, learn_shapes)]
    patches += [
        (torch.cpu.Stream, "wait_stream", wait_stream),
        (torch.cpu.Stream, "record_event", record_event),
        (torch.cpu.Stream, "wait_event", wait_event),
        (torch.cpu.Event, "record", record),
        (torch.cpu.Event, "wait", wait),
        (torch.UntypedStorage, "resize_", resize_),
    ]
    originals = [vars(owner).get(name) for owner, name, _ in patches]
    for owner, name, function in patches:
        setattr(owner, name, function)
    try:
        yield
    finally:
        for (owner, name, _), original in zip(patches, originals, strict=True):
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def checked_efficiency(who: str, efficiency: object) -> float:
    """Errors: ValueError."""
    if isinstance(efficiency, bool) or not isinstance(efficiency, (int, float)) or not math.isfinite(efficiency) or not 0 < efficiency <= 1:
        raise ValueError(f"{who}: efficiency is {efficiency!r}, want 0 < efficiency <= 1, a part of the peak")
    return float(efficiency)


def checked_matmul_dtype(who: str, dtype: object, device: Device) -> str | None:
    """Errors: ValueError."""
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in device.flops:
        have = ", ".join(device.flops)
        raise ValueError(f"{who}: matmul_dtype is {name!r}, want one that device {device.name} has a peak of: {have}")
    return name
