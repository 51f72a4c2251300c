"""A world of any size of which one rank is there: torch.distributed answers at once, and every call is recorded."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import inspect
import math
import operator
import os
import pathlib
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils._python_dispatch import _disable_current_modes

from rankloom.torch import (
    _absent_objects,
    _compute,
    _context_parallel,
    _ddp_reducer,
    _device_peaks,
    _estimate,
    _ext,
    _fsdp_parts,
    _meta,
    _module_names,
    _names,
    _pipelining,
    _ranks,
    _stores,
)
from rankloom.torch._device_peaks import Device, is_finite
from rankloom.torch._estimate import Estimate

_OUTPUTS = ("shapes_only", "pass_through", "uniform_ranks")
_ALGORITHMS = ("ring", "tree", "faster")

# The operations that a record can have, by name, each its own form; and names by which programs call several forms.
_FORMS = {name: (name,) for name in _ext.recorded_ops} | {
    "all_gather": ("all_gather", "all_gather_into_tensor", "all_gather_into_tensor_coalesced"),
    "all_gather_single": ("all_gather_into_tensor", "all_gather_into_tensor_coalesced"),
    "all_gather_into_tensor": ("all_gather_into_tensor", "all_gather_into_tensor_coalesced"),
    "all_reduce": ("all_reduce", "all_reduce_coalesced"),
    "all_to_all": ("all_to_all", "all_to_all_single"),
    "barrier": ("barrier", "monitored_barrier"),
    "reduce_scatter": ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"),
    "reduce_scatter_single": ("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"),
    "reduce_scatter_tensor": ("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"),
}


@dataclasses.dataclass(frozen=True)
class Link:
    """The connection between the members of a group."""

    latency: float  # seconds, of one message
    bytes_per_second: float  # of one rank, in one direction
    name: str = ""
    source: str = ""  # where the figures are from


links: dict[str, Link] = {name: Link(latency, speed, name, source) for name, latency, speed, source in _ext.links}
"""The presets of the C++ library, by name: "nvlink4", "infiniband_ndr", ..."""


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of the fake world's rank, or a stretch of compute(). Times are virtual, in seconds since the record began."""

    op: str  # "all_gather_into_tensor"; of compute(), its name
    issued: float  # the program came to it
    start: float  # its group was free for it
    duration: float  # by the cost model
    is_compute: bool = False
    group: str = ""  # the mesh dimension, or the group's name
    group_name: str = ""
    group_size: int = 0
    seq: int = -1
    module: str = ""  # "layers.3.attention.wo"; the class for the outermost one; empty: none
    file: str = ""  # of the caller's code, not torch's
    line: int = 0
    inputs: list[tuple[str, list[int]]] = dataclasses.field(default_factory=list)  # dtype and shape of each
    outputs: list[tuple[str, list[int]]] = dataclasses.field(default_factory=list)
    reduce_op: str | None = None
    root: int | None = None  # global rank
    peer: int | None = None  # global rank
    tag: int = 0
    in_splits: list[int] = dataclasses.field(default_factory=list)
    out_splits: list[int] = dataclasses.field(default_factory=list)
    payload: int = 0  # bytes
    ring_steps: int = 0
    ring_bytes: int = 0  # what the busiest member sends or receives
    tree_steps: int = 0
    tree_bytes: int = 0
    waited: bool = False  # the program has waited for it
    waited_before: int = -1  # the index of what the program did next after that; -1: it has not


@dataclasses.dataclass(frozen=True)
class Totals:
    """The totals of one operation of one group; payload, bytes, steps and time (seconds) are sums over its calls."""

    op: str
    group: str
    group_size: int
    calls: int
    payload: int
    ring_steps: int
    ring_bytes: int
    tree_steps: int
    tree_bytes: int
    time: float


_mu = threading.Lock()
_open: FakeWorld | None = None

_TORCHS_BYTES = 100  # that torch.distributed keeps of each rank of the default group


def _available_memory() -> float:
    """Bytes; infinity where nobody knows."""
    try:
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return math.inf


def _no_integer(value: object) -> bool:
    return isinstance(value, bool) or not isinstance(value, int)


def _plain(value: object) -> object:
    """An int for what stands for one, such as NumPy's; anything else as it is."""
    if isinstance(value, (bool, torch.Tensor)):
        return value
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return value


def _checked_mesh(who: str, mesh: Mapping[str, int] | None) -> dict[str, int]:
    if mesh is None:
        return {}
    if not isinstance(mesh, Mapping):
        raise ValueError(f"{who}: mesh is {mesh!r}, want the sizes of dimensions by name, such as {{'dp': 4, 'tp': 2}}")
    checked: dict[str, int] = {}
    for name, have in mesh.items():
        if not isinstance(name, str) or name in ("", "*"):
            raise ValueError(f"{who}: mesh has a dimension named {name!r}, want a text that is neither empty nor '*'")
        size: Any = _plain(have)
        if _no_integer(size) or size < 1:
            raise ValueError(f"{who}: mesh has {have!r} ranks along {name!r}, want a number of at least 1")
        checked[name] = size
    return checked


def across_nodes(within: str | Link = "nvlink4", between: str | Link = "infiniband_ndr", *, per_node: int = 8) -> Link:
    """The link of a group that has `per_node` ranks on each of its nodes, all of them with a network card of their own.

    A ring goes through each node once, and a node's cards carry as many rings at the same time: a rank has as much as they have
    together, or what it has within the node if that is less. Its messages take the mean of both latencies.
    Errors: ValueError.
    """
    inner, outer = _checked_link("across_nodes", within, "within"), _checked_link("across_nodes", between, "between")
    if _no_integer(per_node) or per_node < 1:
        raise ValueError(f"across_nodes: per_node is {per_node!r}, want a number of at least 1")
    latency = (inner.latency * (per_node - 1) + outer.latency) / per_node
    speed = min(inner.bytes_per_second, outer.bytes_per_second * per_node) if per_node > 1 else outer.bytes_per_second
    name = f"{inner.name} in nodes of {per_node}, {outer.name} between"
    return Link(latency, speed, name, f"{inner.source}; {outer.source}")


def _checked_link(who: str, link: object, what: str) -> Link:
    if isinstance(link, str):
        if link not in links:
            raise ValueError(f"{who}: {what} is {link!r}, want a Link or one of the presets {', '.join(sorted(links))}")
        return links[link]
    if not isinstance(link, Link):
        raise ValueError(f"{who}: {what} is {link!r}, want a Link or the name of a preset ({', '.join(sorted(links))})")
    if not (is_finite(link.latency) and link.latency >= 0):
        raise ValueError(f"{who}: {what} has a latency of {link.latency!r} s, want 0 or more")
    if not (is_finite(link.bytes_per_second) and link.bytes_per_second > 0):
        raise ValueError(f"{who}: {what} has {link.bytes_per_second!r} bytes per second, want more than 0")
    return link


def _is_flattened(name: str, dims: Sequence[str]) -> bool:
    """Whether it is what a mesh calls some of its dimensions that were made one: "dp_cp"."""
    for first, dim in enumerate(dims):
        if name == dim:
            return True
        if name.startswith(f"{dim}_") and _is_flattened(name[len(dim) + 1 :], dims[first + 1 :]):
            return True
    return False


def _checked_cost(who: str, cost: object, dims: Sequence[str]) -> list[tuple[str, float, float, str]]:
    """Links by dimension; "" has that of all other groups."""
    if cost is None:
        return []
    if not isinstance(cost, Mapping):
        link = _checked_link(who, cost, "cost")
        return [("", link.latency, link.bytes_per_second, link.name)]
    for name in cost:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{who}: cost has a link for {name!r}, want names of dimensions, or '*' for all others")
    by_dim = {name: _checked_link(who, link, f"cost of {name!r}") for name, link in cost.items()}
    if dims:
        have = ", ".join(map(repr, by_dim)) or "none"
        want = f"want one for each of {', '.join(map(repr, dims))}, or '*' for the others"
        for name in by_dim:
            if name != "*" and not _is_flattened(name, dims):
                raise ValueError(f"{who}: cost names {name!r}, which is no dimension of the mesh; {want}")
        for dim in dims:
            if dim not in by_dim and "*" not in by_dim:
                raise ValueError(f"{who}: cost has no link for dimension {dim!r} of the mesh: have {have}, {want}")
    if "*" not in by_dim and by_dim:
        # A group along several dimensions is as slow as the slowest of them.
        by_dim["*"] = min(by_dim.values(), key=lambda link: link.bytes_per_second)
    return [("" if name == "*" else name, link.latency, link.bytes_per_second, link.name) for name, link in by_dim.items()]


class FakeWorld:
    """The result of fake_world(): a context to run a program in, and the record of what it called.

    The record stays when the context is left. Thread-safety: all methods; one world is open at a time.
    """

    def __init__(
        self,
        made_by: str,
        rank: int,
        world_size: int,
        dims: dict[str, int],
        cost: list[tuple[str, float, float, str]],
        algorithm: str,
        outputs: str,
        kernels: tuple[Device, float, str | None, bool] | None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.dims = dims
        self._made_by = made_by  # the function that the user called
        self._names = _module_names.ModuleNames()
        self._made = (cost, algorithm, outputs)
        self._cost_names = [name for name, *_ in cost if name]
        self._record = self._new_record()
        self._compute: _compute.Compute | None = None
        if kernels is not None:
            record, modules = (lambda: self._record), self._names.modules
            self._compute = _compute.Compute(record, self._names.current, modules, self._met_numbers, *kernels)
        self._meshes: dict[str, DeviceMesh] = {}
        self._exits: contextlib.ExitStack | None = None
        self._site = ("", 0)
        self._thread = 0  # that entered
        self._was_open = False
        self._forgotten = 0  # how often calls were
        self._unclaimed = False  # the default group is the one that __enter__ made
        self._first_buckets: set[int] = set()  # reducers of DistributedDataParallel that have had no others since clear()

    def __reduce__(self) -> Any:
        raise TypeError(f"{self._who()}: it cannot be copied or pickled, want its calls, or a file of write_run()")

    def __repr__(self) -> str:
        return f"<fake world: rank {self.rank} of {self.world_size}, {self._record.size} calls>"

    # ---- the context

    def __enter__(self) -> FakeWorld:
        global _open
        self._refuse_if_busy()
        with _mu:
            if self._was_open:
                raise RuntimeError(f"{self._who()}: it was open before, want a new fake_world()")
            if _open is not None:
                raise RuntimeError(f"{self._who()}: {_open._who()} is open{_open._where()}, want one at a time")
            _open, self._was_open = self, True
        self._site, self._thread = _ext.python_site(), threading.get_ident()
        with contextlib.ExitStack() as exits:
            exits.callback(self._close)
            excepthook = sys.excepthook  # torch adds a rank's name to it
            exits.callback(lambda: setattr(sys, "excepthook", excepthook))
            exits.enter_context(self._environment())
            exits.enter_context(_names.fake_world(self))
            exits.enter_context(_absent_objects.answered(self.rank, self.world_size))
            _stores.enter()
            exits.callback(_stores.leave)
            _meta.enter()
            exits.callback(_meta.leave)
            self._names.open(None if self._compute is None else self._compute.module_called)
            exits.callback(self._names.close)
            exits.enter_context(_claimable_init())
            exits.callback(_destroy)
            dist.init_process_group("fake", store=_ext.make_fake_store(), rank=self.rank, world_size=self.world_size)
            self._unclaimed = True
            exits.enter_context(_meshes_of_numbers())
            exits.enter_context(_pipelining.stages(self))
            exits.enter_context(_context_parallel.rings())
            exits.enter_context(_fsdp_parts.asked_for())
            exits.enter_context(_ddp_reducer.with_data(self._first_buckets))
            if self._compute is not None:
                exits.enter_context(self._compute.open())
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        if self._exits is None:
            raise RuntimeError(f"{self._who()}: it was never open, want `with fake_world(...)`")
        if self._thread != threading.get_ident() and _open is self:
            raise RuntimeError(f"{self._who()}: it was entered on another thread{self._where()}, want it left on that one")
        self._exits.close()

    def _who(self) -> str:
        return f"{self._made_by}: {self._rank_text()}"

    def _has_cost(self) -> bool:
        return bool(self._made[0])

    def _rank_text(self) -> str:
        return f"rank {self.rank} of {self.world_size}"

    def _where(self) -> str:
        return f" [{os.path.basename(self._site[0])}:{self._site[1]}]" if self._site[1] else ""

    def _refuse_if_busy(self) -> None:
        current = _ext.current()
        if current is not None:
            job, rank = current
            raise RuntimeError(f"{self._who()}: this thread is rank {rank} of a run of {job.world_size}, want it outside of runs")
        if _ext.acts_for()[0] >= 0 or _ranks.worlds.busy:
            raise RuntimeError(f"{self._who()}: ranks of a run are running in this process, want it outside of runs")
        if _open is not None:
            raise RuntimeError(f"{self._who()}: {_open._who()} is open{_open._where()}, want one at a time")
        self._refuse_if_too_large()
        if dist.is_initialized():
            have = f"{dist.get_backend()}, rank {dist.get_rank()} of {dist.get_world_size()}"
            raise RuntimeError(f"{self._who()}: have a default group already ({have}), want destroy_process_group() before")

    def _refuse_if_too_large(self) -> None:
        need, have = self.world_size * _TORCHS_BYTES, _available_memory()
        if need > have:
            raise MemoryError(
                f"{self._who()}: torch keeps a list of all ranks, have {have / 2**30:.1f} GiB of memory, want {need / 2**30:.1f} GiB"
            )

    def _close(self) -> None:
        global _open
        self._record.close(f"the fake world of rank {self.rank} of {self.world_size} was left, want calls within its context")
        self._meshes.clear()
        _forget_meshes()
        with _mu:
            _open = None

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        """The variables that torchrun would set, with one node of all ranks."""
        rank, size = str(self.rank), str(self.world_size)
        values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        values |= {"MASTER_ADDR": "rankloom-fake-world", "MASTER_PORT": "29500"}
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    # ---- for the backend

    def _new_record(self) -> _ext.FakeRecord:
        cost, algorithm, outputs = self._made
        world = weakref.ref(self)  # Python does not see that the record, which is C++'s, would keep the world that keeps it

        def met_data(op: str, file: str, line: int) -> None:
            here = world()
            if here is not None:
                here._met_data(op, file, line)

        return _ext.FakeRecord(cost, algorithm, outputs, self._names.current, met_data)

    def _met_data(self, op: str, file: str, line: int) -> None:
        outputs = self._made[2]
        holds = {
            "shapes_only": "outputs are not written",
            "pass_through": "outputs hold what this rank gave",
            "uniform_ranks": "outputs hold what they would if all ranks had this rank's data",
        }[outputs]
        where = f" [{os.path.basename(file)}:{line}]" if line else ""
        text = f"{self._who()}, {op}: have tensors with data, and no other rank does: {holds} (outputs={outputs!r})"
        warnings.warn(f"{text}; the meta device and FakeTensorMode need no memory{where}", stacklevel=3)

    def _met_numbers(self, op: str) -> None:
        file, line = _ext.python_site()
        where = f" [{os.path.basename(file)}:{line}]" if line else ""
        text = f"{self._who()}, {op}: have tensors with data, so that it is computed, which takes its time and memory"
        warnings.warn(f"{text}; the meta device and FakeTensorMode need neither{where}", stacklevel=2)

    def group_arguments(self, options: Any, description: str) -> tuple[Any, ...]:
        """Of make_fake_backend(), for a group that torch.distributed makes."""
        ranks = [int(rank) for rank in options.global_ranks_in_group]
        have = (options.group_rank, options.group_size)
        if not ranks and have != (self.rank, self.world_size):
            raise ValueError(f"init_process_group: have rank {have[0]} of {have[1]}, want rank {self.rank} of {self.world_size}")
        dim = self._dim_of(ranks)
        known = description.startswith("mesh_") and description != "mesh_default"
        return (self._record, str(options.group_id), description if known or not dim else f"mesh_{dim}", ranks)

    def _dim_of(self, ranks: list[int]) -> str:
        """The mesh's dimension that the group is along; no ranks: all of the world."""
        size = len(ranks) or self.world_size
        stride = self.world_size
        for dim, along in self.dims.items():
            stride //= along
            first = self.rank - self.rank // stride % along * stride
            if along == size and (not ranks or ranks == list(range(first, first + along * stride, stride))):
                return dim
        return ""

    # ---- the mesh

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of the dimensions that fake_world() was told, for tensors on the CPU."""
        return self.device_mesh()

    def device_mesh(self, device_type: str = "cpu") -> DeviceMesh:
        """The same for a type of device: "cuda" for FakeTensors that say so. Errors: RuntimeError without dimensions."""
        if not self.dims:
            raise RuntimeError(f"{self._who()}: it has no mesh, want fake_world(mesh={{'dp': 4, 'tp': 2}})")
        if _open is not self:
            raise RuntimeError(f"{self._who()}: it is not open, want its mesh within its context")
        if device_type not in self._meshes:
            names = tuple(self.dims)
            with _disable_current_modes():  # a mesh is made of numbers, under FakeTensorMode, too
                self._meshes[device_type] = init_device_mesh(device_type, tuple(self.dims.values()), mesh_dim_names=names)
        return self._meshes[device_type]

    # ---- the record

    @property
    def record(self) -> FakeWorld:
        """This object, which has the record."""
        return self

    @property
    def device(self) -> Device | None:
        """The device that computes; None: nothing is known of kernels."""
        return None if self._compute is None else self._compute.device

    @property
    def calls(self) -> list[Call]:
        """All calls and stretches of compute(), in order."""
        return [Call(**row) for row in self._record.calls(0)]

    @property
    def totals(self) -> list[Totals]:
        """One for each operation of each group."""
        return [Totals(**row) for row in self._record.totals()]

    def frame(self) -> Any:
        """`calls` as a pandas.DataFrame, a row a call. Errors: ImportError without pandas."""
        pandas = importlib.import_module("pandas")
        names = [field.name for field in dataclasses.fields(Call)]
        return pandas.DataFrame([dataclasses.asdict(call) for call in self.calls], columns=names)

    def count(self, op: str, group: str | None = None) -> int:
        """Calls of an operation in any of its forms ("all_gather": all_gather_into_tensor, too).

        group: a mesh dimension or a group's name; None: all groups. Errors: ValueError for names that are none.
        """
        forms = _forms(op, "count")
        _check_group("count", group, self)
        return self._record.count(list(forms), group)

    def table(self) -> str:
        """totals, for people."""
        return self._record.table()

    def text(self) -> str:
        """ "3 x all_gather_into_tensor on tp", a line each."""
        return self._record.text()

    @property
    def peak_buffer_bytes(self) -> int:
        """The most that calls held between issue and wait()."""
        return self._record.peak_buffer_bytes

    @property
    def live_buffer_bytes(self) -> int:
        return self._record.live_buffer_bytes

    @property
    def now(self) -> float:
        """When the program is through with what it did so far, in seconds of virtual time."""
        return self._record.now

    @property
    def end(self) -> float:
        """When the last call ends, in seconds of virtual time."""
        return self._record.end

    def compute(self, seconds: float, name: str = "compute") -> None:
        """The program computes for so long, in virtual time."""
        if not (is_finite(seconds) and seconds >= 0):
            raise ValueError(f"{self._who()}: compute of {seconds!r} s, want 0 or more")
        self._record.compute(seconds, name)

    def clear(self) -> None:
        """Forgets calls, time and peak, and keeps the groups: for the steps before the one that counts."""
        self._forgotten += 1
        self._first_buckets.clear()
        if self._compute is not None:
            self._compute.clear()
        self._record.clear()

    def estimate(self, *others: FakeWorld) -> Estimate:
        """The estimate of a step: all since the world was opened or clear(), of this rank and of other worlds' ranks at the same time.

        The worlds have a device. Ranks of a pipeline wait for what they send each other. `not_modelled` says what is left out.

        Errors: RuntimeError for a world without a device, or for ranks that wait for sends that nobody makes; ValueError as of
        write_perfetto(), and for worlds of other devices.
        """
        self._records(others)
        return _estimate.estimate_of([self, *others])

    def _unused_costs(self) -> list[str]:
        """Of `cost`, where no mesh says which names there are: those by which no call's group is called."""
        if self.dims:
            return []
        called = {call.group for call in self.calls}
        return [name for name in self._cost_names if name not in called]

    def _estimate_last_step(self) -> tuple[Estimate, str]:
        """Of a script, which does not say where its steps begin: the estimate, and of what it is."""
        part, what = self._computes().last_step()
        return _estimate.estimate_of([self], part=part), what

    def _computes(self) -> _compute.Compute:
        if self._compute is None:
            raise RuntimeError(f"{self._who()}: it has no device, want fake_world(device='h100_sxm') for an estimate")
        self._compute.flush()
        return self._compute

    def write_perfetto(self, path: str | os.PathLike[str], *others: FakeWorld) -> None:
        """Chrome trace events for ui.perfetto.dev, of this rank and of other worlds' ranks. Makes the file's folder.

        Errors: ValueError for a file that cannot be written, as for the three below.
        """
        _ext.write_perfetto(self._records(others), _writable(path))

    def write_run(self, path: str | os.PathLike[str], *others: FakeWorld) -> None:
        """A run file for the command `rankloom`: calls and totals of this rank and of other worlds' ranks. Makes the file's folder."""
        _ext.write_run(self._records(others), _writable(path))

    def write_pytorch_trace(self, path: str | os.PathLike[str]) -> None:
        """PyTorch's execution trace, schema 1.1.1-chakra.0.0.4. Makes the file's folder."""
        _ext.write_pytorch_trace(self._records(()), _writable(path))

    def write_chakra(self, prefix: str | os.PathLike[str], *others: FakeWorld, lower: bool = False) -> list[str]:
        """Chakra 0.0.4, to PREFIX.RANK.et for each rank: the paths. Makes their folder.

        lower: broadcasts, reduces, gathers, scatters and barriers become one of the four collectives that ASTRA-sim runs, which
            moves as many bytes: all_gather, reduce_scatter or all_reduce.

        Errors: RuntimeError where rankloom was built without protobuf.
        """
        if not _ext.has_chakra:
            raise RuntimeError("write_chakra: this rankloom was built without protobuf, want one built with libprotobuf-dev")
        return _ext.write_chakra(self._records(others), _writable(prefix), lower)

    def _records(self, others: Sequence[FakeWorld]) -> list[_ext.FakeRecord]:
        worlds = [self, *others]
        for index, world in enumerate(worlds):
            if not isinstance(world, FakeWorld):
                raise ValueError(f"{self._who()}: one of the other worlds is {world!r}, want what fake_world() makes")
            if not world._was_open:
                raise ValueError(f"{world._who()}: it was never open, and a trace is of what is called within its context")
            if world.world_size != self.world_size:
                raise ValueError(f"{self._who()}: rank {world.rank} is of {world.world_size} ranks, want worlds of {self.world_size}")
            if any(world.rank == before.rank for before in worlds[:index]):
                raise ValueError(f"{self._who()}: rank {world.rank} is there twice, want the worlds of different ranks")
        return [world._record for world in worlds]

    def _claim(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """The program makes the default group itself: whether it still has to."""
        self._unclaimed = False
        if self._record.size == 0 and self._record.group_count == 1:
            dist.destroy_process_group()
            self._record = self._new_record()
            self._forgotten += 1
            return True
        names = ("backend", "init_method", "timeout", "world_size", "rank")
        asked = {**dict(zip(names, args, strict=False)), **kwargs}
        for name, want in (("rank", self.rank), ("world_size", self.world_size)):
            if asked.get(name, -1) not in (-1, want):
                raise ValueError(f"init_process_group: have {name} {asked[name]}, want {want} in {self._rank_text()}")
        return False


def _writable(path: str | os.PathLike[str]) -> str:
    if not os.fspath(path):
        raise ValueError("the file's name is empty, want one to write to")
    with contextlib.suppress(OSError):  # the writer says what is wrong
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    return os.fspath(path)


def _forget_meshes() -> None:
    """DTensor keeps plans with meshes in them, by equality: of the next world's they would name this one's groups."""
    with contextlib.suppress(ImportError, AttributeError):  # another version of torch
        from torch.distributed.tensor import _redistribute, _sharding_prop, debug

        debug._clear_sharding_prop_cache()
        _redistribute._gen_transform_infos.cache_clear()
        _sharding_prop.ShardingPropagator._propagate_tensor_meta_cached.cache_clear()


def _destroy() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


# Methods of a mesh that compute with its ranks.
_OF_MESHES = ("__init__", "__getitem__", "_get_all_submeshes", "_flatten", "_unflatten", "_concatenate", "from_group")


def _without_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            if isinstance(kwargs.get("_rank_map"), FakeTensor):  # of init_device_mesh(), whose ranks are in order
                kwargs["_rank_map"] = torch.arange(kwargs["_rank_map"].numel(), dtype=torch.int)
            return function(*args, **kwargs)

    return call


class _Ranks(tuple[int, ...]):
    """The ranks of a mesh, one object for all of its parts: DTensor compares meshes all the time, and tuples do so rank by rank."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other or tuple.__eq__(self, other)

    __hash__ = tuple.__hash__


def _sharing_ranks(init: Callable[..., None]) -> Callable[..., None]:
    known: dict[tuple[int, ...], _Ranks] = {}

    def call(self: DeviceMesh, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        ranks = getattr(self, "_flatten_rank_map", None)
        if type(ranks) is tuple:
            self._flatten_rank_map = known.setdefault(ranks, _Ranks(ranks))

    return call


@contextlib.contextmanager
def _meshes_of_numbers() -> Iterator[None]:
    """A mesh's parts are made of numbers, under FakeTensorMode, too: FSDP2 makes one of its own and that of tensor parallelism."""
    with contextlib.ExitStack() as exits:
        for name in _OF_MESHES:
            original = vars(DeviceMesh).get(name)
            if isinstance(original, staticmethod):
                made: Any = staticmethod(_without_modes(original.__func__))
            elif original is not None:
                made = _without_modes(_sharing_ranks(original) if name == "__init__" else original)
            else:
                continue  # another version of torch
            setattr(DeviceMesh, name, made)
            exits.callback(setattr, DeviceMesh, name, original)
        yield


@contextlib.contextmanager
def _claimable_init() -> Iterator[None]:
    """init_process_group(), by whatever module it was imported, takes over the group that the world began with."""
    original = distributed_c10d.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        world = _open
        if world is None or not world._unclaimed or not dist.is_initialized() or world._claim(args, kwargs):
            original(*args, **kwargs)

    # Each module may have a wrapper of its own around torch's, as with GPUs that are on the CPU.
    owners = {}
    for module in list(sys.modules.values()):
        known = vars(module).get("init_process_group")
        if inspect.isfunction(known) and inspect.unwrap(known) is inspect.unwrap(original):
            owners[module] = known
    for module in owners:
        vars(module)["init_process_group"] = init_process_group
    try:
        yield
    finally:
        for module in list(sys.modules.values()):
            if vars(module).get("init_process_group") is init_process_group:
                vars(module)["init_process_group"] = owners.get(module, original)


def fake_world(
    rank: int = 0,
    world_size: int | None = None,
    *,
    mesh: Mapping[str, int] | None = None,
    cost: str | Link | Mapping[str, str | Link] | None = None,
    algorithm: str = "ring",
    outputs: str = "pass_through",
    device: str | Device | None = None,
    efficiency: float = 1.0,
    matmul_dtype: str | torch.dtype | None = None,
    compiled: bool = False,
    _who: str = "fake_world",
) -> FakeWorld:
    """A world of which `rank` alone is there: within it all groups of torch.distributed are fake, and calls are recorded.

        with rankloom.torch.fake_world(rank=5, mesh={"dp": 2048, "tp": 8}, cost={"dp": "infiniband_ndr", "tp": "nvlink4"}) as world:
            train(world.mesh)
        print(world.table())

    world_size: by default that of the mesh. mesh: sizes of dimensions by name, the last of neighbours; the program may make
        others. The default group is there; a program may call init_process_group() once, with any backend.
    cost: what calls take, in virtual time: the name of a preset (`links`) or a Link, for all groups or by dimension ("*": all
        others). Groups along no dimension take the slowest link. None: calls take no time.
    algorithm: "ring", "tree" or "faster", the faster of both for each call.
    device: what computes between calls, the name of a preset (`devices`) or a Device: each kernel's FLOPs and bytes are counted, it
        takes its roofline, and estimate() tells what a step takes. Kernels of the thread that enters the context; those of tensors
        with data are computed as well. efficiency: the part of the peak FLOP/s that kernels reach, the one constant to calibrate.
    matmul_dtype: what linear layers multiply in if not in their operands' dtype ("float8_e4m3fn": float8 of torchao, Transformer
        Engine); operands are taken to be converted on the way. compiled: neighbouring kernels that torch.compile would make one
        read and write memory as one.
    outputs: "pass_through": outputs hold this rank's own input where they can, as in PyTorch's fake group; "shapes_only": they
        are not written; "uniform_ranks": they hold what they would if all ranks had this rank's data.

    Errors: ValueError for arguments that do not fit; RuntimeError on entering where a default group, another fake world or a
    run's ranks are there.
    """
    dims = _checked_mesh(_who, mesh)
    in_mesh = math.prod(dims.values())
    given: tuple[Any, Any] = (_plain(rank), _plain(world_size))
    rank, world_size = given
    if world_size is None:
        if not dims:
            raise ValueError(f"{_who}: have neither world_size nor mesh, want one of them")
        world_size = in_mesh
    if _no_integer(world_size) or not 1 <= world_size < 2**31:
        raise ValueError(f"{_who}: world_size is {world_size!r}, want 1 <= world_size <= 2^31 - 1 = {2**31 - 1}")
    if _no_integer(rank) or not 0 <= rank < world_size:
        raise ValueError(f"{_who}: rank is {rank!r}, want 0 <= rank < world_size = {world_size}")
    if dims and in_mesh != world_size:
        product = " * ".join(f"{name} {size}" for name, size in dims.items())
        raise ValueError(f"{_who}: mesh has {product} = {in_mesh} ranks, want world_size = {world_size}")
    for name, value, known in (("algorithm", algorithm, _ALGORITHMS), ("outputs", outputs, _OUTPUTS)):
        if value not in known:
            raise ValueError(f"{_who}: {name} is {value!r}, want one of {', '.join(known)}")
    kernels = None
    if device is not None:
        checked = _device_peaks.checked_device(_who, device)
        dtype = _compute.checked_matmul_dtype(_who, matmul_dtype, checked)
        kernels = (checked, _compute.checked_efficiency(_who, efficiency), dtype, compiled)
    elif efficiency != 1.0 or matmul_dtype is not None or compiled:
        raise ValueError(f"{_who}: have efficiency, matmul_dtype or compiled, and no device: want device='h100_sxm' or the like")
    return FakeWorld(_who, rank, world_size, dims, _checked_cost(_who, cost, tuple(dims)), algorithm, outputs, kernels)


def _stages(mesh: Mapping[str, int]) -> list[int]:
    """One rank of each stage of a pipeline, the first in all other dimensions; without a pipeline, rank 0."""
    dims = list(mesh)
    stride = math.prod(mesh[dim] for dim in dims[dims.index("pp") + 1 :]) if "pp" in mesh else 0
    return [stage * stride for stage in range(mesh.get("pp", 1))]


def _ranks_of(who: str, program: object, ranks: Sequence[int] | None, arguments: Mapping[str, Any]) -> Sequence[int]:
    if not callable(program):
        raise ValueError(f"{who}: the program is {program!r}, want a function of a world that returns one that does a step")
    if "rank" in arguments:
        raise ValueError(f"{who}: have rank={arguments['rank']!r}, want ranks=[...]")
    if ranks is None:
        return _stages(_checked_mesh(who, arguments.get("mesh")))
    if isinstance(ranks, (str, bytes)) or not isinstance(ranks, Sequence):
        raise ValueError(f"{who}: ranks is {ranks!r}, want a list of ranks")
    if not ranks:
        raise ValueError(f"{who}: have no ranks, want one or more")
    return ranks


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Python does not look for garbage in what is there already: torch's modules are many objects, and a trace makes many more."""
    if gc.get_freeze_count():  # the program's own
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _traced(
    who: str, program: Callable[[FakeWorld], Callable[[], object]], ranks: Sequence[int], every_microbatch: bool, arguments: Any
) -> list[FakeWorld]:
    _pipelining.forget()
    worlds: list[FakeWorld] = []
    with _uncollected():
        for rank in ranks:
            with fake_world(rank, _who=who, **arguments) as world, FakeTensorMode():
                if world._compute is not None:
                    world._compute.repeats = not every_microbatch
                step = program(world)
                if not callable(step):
                    raise ValueError(f"{who}: the program returned {step!r}, want a function that does a step")
                world.clear()
                step()
            del step
            gc.collect()  # models have cycles
            worlds.append(world)
    return worlds


def trace(program: Callable[[FakeWorld], Callable[[], object]], *, ranks: Sequence[int] | None = None, **arguments: Any) -> list[FakeWorld]:
    """The worlds of several ranks with what each called in a step: of a pipeline, whose stages differ.

        first, *others = rankloom.torch.trace(program, mesh={"pp": 4, "dp": 8}, cost="nvlink4")
        first.write_perfetto("step.json", *others)

    program, ranks, arguments: as of estimate(). Errors: those of fake_world() and of the program.
    """
    return _traced("trace", program, _ranks_of("trace", program, ranks, arguments), True, arguments)


def estimate(
    program: Callable[[FakeWorld], Callable[[], object]],
    *,
    ranks: Sequence[int] | None = None,
    every_microbatch: bool = False,
    **arguments: Any,
) -> Estimate:
    """The estimate of a step: time, MFU, exposed communication by mesh dimension, peak memory by kind, and what is not modelled.

        def program(world):
            model, optimizer = ...            # in FakeTensorMode, and without calls that count
            def step():
                model(x).sum().backward()
                optimizer.step()
            return step

        print(rankloom.torch.estimate(program, mesh={"dp": 128}, cost="infiniband_ndr", device="h100_sxm", efficiency=0.7))

    program: called for each rank, in its fake_world(rank=..., **arguments) and FakeTensorMode; what it returns is called once, and
        that is the step. ranks: those that are traced, one after the other; by default one of each stage along the mesh's
        dimension "pp", in that order, and rank 0 where there is none. The others are taken to do the same.
    every_microbatch: False: a stage of torch.distributed.pipelining runs the first two microbatches of a step, and what others
        of the same shape do is taken to be as the second's, which makes a trace shorter and the estimate no other; schedules
        that split backward in two, and DDP, have all run.

    Errors: those of fake_world(), of FakeWorld.estimate() and of the program.
    """
    ranks = _ranks_of("estimate", program, ranks, arguments)
    if arguments.get("device") is None:
        raise ValueError(f"estimate: have no device, want a Device or one of the presets {', '.join(sorted(_device_peaks.devices))}")
    worlds = _traced("estimate", program, ranks, every_microbatch, arguments)
    return worlds[0].estimate(*worlds[1:])


# ---- in tests


def _forms(op: str, who: str) -> tuple[str, ...]:
    if op not in _FORMS:
        raise ValueError(f"{who}: there is no operation {op!r}, want one of {', '.join(sorted(_FORMS))}")
    return _FORMS[op]


def _check_group(who: str, group: str | None, world: FakeWorld) -> None:
    known = {name for label, names in world._record.groups() for name in (label, names[0])} | set(world.dims)
    if group is not None and group not in known:
        raise ValueError(f"{who}: there is no group {group!r}, have {', '.join(sorted(known))}")


def _line_of(call: Call) -> str:
    shapes = ", ".join(f"{dtype}{shape}" for dtype, shape in call.inputs or call.outputs)
    where = f" [{os.path.basename(call.file)}:{call.line}]" if call.line else ""
    return f"  {call.op} on {call.group}" + (f", {call.module}" if call.module else "") + (f", {shapes}" if shapes else "") + where


_LISTED = 20


@contextlib.contextmanager
def expect_calls(*, group: str | None = None, exactly: bool = False, **calls: int) -> Iterator[None]:
    """Checks the calls within, in the open fake world: so many calls of each operation that is named, in any of its forms.

        with rankloom.torch.expect_calls(all_gather=3, group="tp"):
            model(x)

    group: a mesh dimension or a group's name; None: all groups. exactly: and of no other operation, in that group.

    Errors: AssertionError that lists the calls; ValueError for names that are none, RuntimeError without a fake world.
    """
    world = _open
    if world is None:
        raise RuntimeError("expect_calls: there is no fake world, want it within fake_world()")
    forms = {op: _forms(op, "expect_calls") for op in calls}
    for op, want in calls.items():
        if _no_integer(want) or want < 0:
            raise ValueError(f"expect_calls: {op} is {want!r}, want a number of calls")
    first, forgotten = world._record.size, world._forgotten
    yield
    record = world._record
    made = [Call(**row) for row in record.calls(first if forgotten == world._forgotten else 0)]
    _check_group("expect_calls", group, world)
    everywhere = [call for call in made if not call.is_compute]
    made = [call for call in everywhere if group in (None, call.group, call.group_name)]
    wrong = []
    for op, want in calls.items():
        have = sum(call.op in forms[op] for call in made)
        if have != want:
            wrong.append(f"have {have} x {op}, want {want}")
    others = {call.op for call in made} - {form for names in forms.values() for form in names}
    if exactly and others:
        wrong.append(f"have {', '.join(sorted(others))}, too, want no other operation")
    if wrong:
        where = f", group {group}" if group is not None else ""
        lines = [_line_of(call) for call in made[:_LISTED]] or ["  no calls"]
        if len(made) > _LISTED:
            lines.append(f"  and {len(made) - _LISTED} more")
        asked = {form for names in forms.values() for form in names}
        elsewhere = [call for call in everywhere if group not in (None, call.group, call.group_name) and call.op in asked]
        if elsewhere:
            lines += ["  on other groups:", *(f"  {_line_of(call)}" for call in elsewhere[:_LISTED])]
        if len(elsewhere) > _LISTED:
            lines.append(f"    and {len(elsewhere) - _LISTED} more")
        raise AssertionError(f"expect_calls: rank {world.rank}{where}: {'; '.join(wrong)}\n" + "\n".join(lines))


__all__ = ["Call", "Device", "Estimate", "FakeWorld", "Link", "Totals", "across_nodes", "estimate", "expect_calls", "fake_world", "links", "trace"]
