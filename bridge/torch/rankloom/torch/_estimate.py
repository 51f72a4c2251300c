"""The estimate of a step of a fake world's ranks: a replay of their kernels and calls on streams, and what that comes to."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rankloom.torch import _compute
from rankloom.torch._compute import KINDS, OPTIMIZER, Again, Compute, EventRecord, EventWait, Issue, Join, Kernel, Memory, Part, Pause

if TYPE_CHECKING:
    from rankloom.torch._fake_world import FakeWorld

_P2P = ("send", "recv")


class Slice(NamedTuple):
    """A kernel or a call, when it runs: seconds since the step began."""

    name: str
    lane: str  # "compute", a side stream's name, or the group that is called: "tp"
    start: float
    end: float
    module: str
    phase: str  # of a kernel
    flops: int
    bytes: int  # of a call, its payload


@dataclasses.dataclass(frozen=True)
class RankEstimate:
    """Of one rank. Times are seconds, memory is bytes."""

    rank: int
    time: float  # until its last kernel or call ends
    compute: float  # its default stream is busy
    communication: dict[str, float]  # calls run, by mesh dimension or other group
    exposed: dict[str, float]  # the default stream stands still meanwhile; where two groups' calls run, half is each one's
    idle: float  # the default stream stands still, and no call runs: other ranks or a side stream are waited for
    model_flops: int  # of kernels, as torch counts them, without those of recomputation
    hardware_flops: int  # with them
    by_phase: dict[str, float]  # seconds of kernels: "forward", "backward", "recompute", "optimizer"
    peak_memory: dict[str, int]  # by kind, at the moment at which their sum is largest
    memory: list[tuple[float, dict[str, int]]]  # by kind, each time that it changes
    slices: list[Slice]

    @property
    def peak_bytes(self) -> int:
        return sum(self.peak_memory.values())


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Of a step. Times are seconds, memory is bytes. str() of it is a table for people."""

    time: float  # until the last of the ranks is through
    mfu: float  # model FLOPs of these ranks / (their number * time * peak of the device)
    hfu: float  # the same with those of recomputation
    peak_flops: float  # that peak: of the dtype that most FLOPs are of
    peak_dtype: str
    compute: float  # this and the next three are of the rank that is busy longest
    communication: dict[str, float]
    exposed: dict[str, float]
    idle: float
    peak_memory: dict[str, int]  # by kind, of the rank that needs most
    ranks: list[RankEstimate]
    device: str
    device_memory: int  # 0: not known
    efficiency: float
    not_modelled: list[str]

    # The traces, in which a copy has no part, and what of them.
    _worlds: ClassVar[tuple[FakeWorld, ...]] = ()
    _part: ClassVar[Part | None] = None

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def at(self, efficiency: float) -> Estimate:
        """The same trace with kernels that reach this part of the peak FLOP/s: to calibrate it.

        Errors: ValueError; RuntimeError of a copy, by pickle or copy.
        """
        checked = _compute.checked_efficiency("at", efficiency)
        if not self._worlds:
            raise RuntimeError("at: this is a copy of an estimate, without its trace: want the one that estimate() returned")
        return estimate_of(self._worlds, checked, self._part)

    @property
    def peak_bytes(self) -> int:
        return sum(self.peak_memory.values())

    @property
    def fits(self) -> bool | None:
        """Whether the peak is at most the device's memory; None: that is not known."""
        return self.peak_bytes <= self.device_memory if self.device_memory else None

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        ranks = f"rank {self.ranks[0].rank}" if len(self.ranks) == 1 else f"{len(self.ranks)} ranks"
        lines = [
            f"step of {ranks} on {self.device}, at {_percent(self.efficiency)} of its peak",
            f"  time                  {_time(self.time)}",
            f"  MFU                   {_percent(self.mfu)} of {self.peak_flops / 1e12:.1f} TFLOP/s ({self.peak_dtype})",
            f"  HFU                   {_percent(self.hfu)}",
            f"  compute               {_time(self.compute)}",
        ]
        for dim in self.communication:
            exposed, whole = self.exposed.get(dim, 0.0), self.communication[dim]
            lines.append(f"  exposed {dim:<13} {_time(exposed)}   of {_time(whole).strip()}")
        lines.append(f"  idle                  {_time(self.idle)}")
        of = f" of {_size(self.device_memory).strip()}" if self.device_memory else ""
        lines.append(f"  peak memory           {_size(self.peak_bytes)}{of}")
        lines += [f"    {kind:<19} {_size(self.peak_memory[kind])}" for kind in KINDS]
        lines.append("  not modelled:")
        lines += [f"    - {what}" for what in self.not_modelled]
        return "\n".join(lines)

    def write_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Chrome trace events for ui.perfetto.dev: a process a rank, a lane a stream and a group, memory by kind as a counter.

        Makes the file's folder. Errors: ValueError for a file that cannot be written.
        """
        events: list[dict[str, Any]] = []
        for rank in self.ranks:
            events += _events(rank)
        try:
            pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
            pathlib.Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
        except OSError as error:
            raise ValueError(f"write_perfetto: {os.fspath(path)}: {error.strerror}") from None


def _scaled(value: float, units: Sequence[tuple[str, float]]) -> tuple[float, str]:
    """In the first unit of which there is one or more, else in the last."""
    unit, scale = next(((unit, scale) for unit, scale in units if value >= scale), units[-1])
    return value / scale, unit


def _percent(part: float) -> str:
    """With one digit behind the point, or two that are not 0: of a small model little is in a step."""
    return f"{part:.1%}" if part >= 0.001 or part == 0 else f"{part * 100:.2g}%"


def _time(seconds: float) -> str:
    value, unit = _scaled(seconds, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)))
    return f"{value:9.3f} {unit}"


def _size(size: int) -> str:
    value, unit = _scaled(size, (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)))
    return f"{value:9.2f} {unit}"


def _events(rank: RankEstimate) -> Iterable[dict[str, Any]]:
    pid = rank.rank
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": f"rank {pid}"}}
    lanes = {lane: tid for tid, lane in enumerate(dict.fromkeys(["compute", *(one.lane for one in rank.slices)]))}
    for lane, tid in lanes.items():
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": lane}}
    for one in rank.slices:
        args: dict[str, Any] = {"bytes": one.bytes}
        if one.module:
            args["Module"] = one.module
        if one.phase:
            args |= {"phase": one.phase, "FLOPs": one.flops}
        event = {"ph": "X", "name": one.name, "cat": "kernel" if one.phase else "collective", "pid": pid, "tid": lanes[one.lane]}
        yield {**event, "ts": one.start * 1e6, "dur": (one.end - one.start) * 1e6, "args": args}
    for when, kinds in rank.memory:
        yield {"ph": "C", "name": "memory", "pid": pid, "ts": when * 1e6, "args": kinds}


# ---- the replay


class _Rank:
    """Where one rank is in its replay."""

    def __init__(self, world: FakeWorld, compute: Compute, efficiency: float, part: Part | None) -> None:
        self.world = world
        self.efficiency = efficiency
        self.rows = world._record.calls(0)
        self.items = list(compute.items)
        self.before = compute.before()  # blocks of memory
        if part is not None:
            self._cut(part)
        self.kinds = dict(compute.kinds())
        self.bytes: dict[int, int] = {}  # of blocks of memory that are there
        self.streams: collections.defaultdict[int, float] = collections.defaultdict(float)
        self.events: dict[int, float] = {}
        self.free: dict[Any, float] = {}  # when a group is through with its calls
        self.ends: dict[int, float] = {}  # of calls, by index
        self.last_end = 0.0  # of all calls so far
        self.busy: list[tuple[float, float]] = []
        self.calls: list[tuple[float, float, str]] = []
        self.slices: list[Slice] = []
        self.by_phase: dict[str, float] = {}
        self.model_flops = self.hardware_flops = 0
        self.flops_of: collections.Counter[str] = collections.Counter()
        self.memory: list[tuple[float, dict[str, int]]] = []
        self.peak: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.alone: set[int] = set()  # ranks that it receives from, and that are not replayed
        self._now: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._most = -1
        self._copies: dict[object, dict[int, int]] = {}  # of blocks of memory that begin in stretches that are repeated
        self._begin()

    def _cut(self, part: Part) -> None:
        """The part alone, as if the record had begun with it."""
        first, last = part.begin.calls, part.end.calls
        waits = (row.get("waited_before", -1) for row in self.rows[first:last])
        self.rows = [{**row, "waited_before": wait - first if wait >= first else -1} for row, wait in zip(self.rows[first:last], waits, strict=True)]
        self.items = [_moved(item, -first) for item in self.items[part.begin.items : part.end.items]]
        self.before = part.begin.sizes

    def _begin(self) -> None:
        steady = {item.block for item in self.items if isinstance(item, Memory) and self.kinds.get(item.block) == OPTIMIZER}
        # An optimizer's state is made by the first step, and there in all others.
        start = dict(self.before)
        for item in self.items:
            if isinstance(item, Memory) and item.block in steady:
                start[item.block] = max(start.get(item.block, 0), item.bytes)
        for block, size in start.items():
            self._set(block, size)
        self._steady = steady
        self._note(0.0)

    def _set_of_copy(self, again: Again, item: Memory) -> None:
        blocks = self._copies.setdefault(again.copy, {})
        if item.block in again.stretch.made:
            return
        if item.block in blocks:
            self._set(blocks[item.block], item.bytes)
        elif item.bytes and item.block > again.stretch.first_block:
            block = blocks[item.block] = -1 - len(self.kinds)  # no block that begins in the program has such a number
            self.kinds[block] = self.kinds.get(item.block, _compute.ACTIVATIONS)
            self._set(block, item.bytes)
        elif not item.gone:
            self._set(item.block, item.bytes)
        self._note(self.streams[0])

    def _end_copy(self, copy: object) -> None:
        for block in self._copies.pop(copy, {}).values():
            self._set(block, 0)
        self._note(self.streams[0])

    def _set(self, block: int, size: int) -> None:
        self._now[self.kinds.get(block, _compute.ACTIVATIONS)] += size - self.bytes.get(block, 0)
        self.bytes[block] = size

    def _note(self, when: float) -> None:
        if self.memory and self.memory[-1][0] == when:
            self.memory.pop()
        self.memory.append((when, dict(self._now)))
        whole = sum(self._now.values())
        if whole > self._most:
            self._most, self.peak = whole, dict(self._now)

    # ---- items, in order

    def kernel(self, item: Kernel) -> None:
        start = self.streams[item.stream]
        seconds = item.seconds(self.efficiency)
        end = self.streams[item.stream] = start + seconds
        if item.stream == 0:
            self.busy.append((start, end))
        self.by_phase[item.phase] = self.by_phase.get(item.phase, 0.0) + seconds
        self.hardware_flops += item.flops
        if item.phase != "recompute":
            self.model_flops += item.flops
        if item.dtype:
            self.flops_of[item.dtype] += item.flops
        lane = "compute" if item.stream == 0 else f"stream {item.stream}"
        self.slices.append(Slice(item.name, lane, start, end, item.module, item.phase, item.flops, item.bytes))

    def wait(self, index: int, stream: int) -> None:
        self.streams[stream] = max(self.streams[stream], self.ends.get(index, 0.0))

    def other(self, item: _compute.Item) -> None:
        match item:
            case EventRecord():
                self.events[item.event] = self.streams[item.stream]
            case EventWait():
                self.streams[item.stream] = max(self.streams[item.stream], self.events.get(item.event, 0.0))
            case Join():
                self.streams[0] = max(self.streams[0], self.last_end)
            case Memory():
                if item.block not in self._steady:
                    self._set(item.block, item.bytes)
                    self._note(self.streams[0])

    def call(self, index: int, stream: int, earliest: float) -> float:
        """When it starts: not before `earliest`."""
        row = self.rows[index]
        key = (row["group_name"], row["op"], row["peer"]) if row["op"] in _P2P else row["group_name"]
        start = max(self.streams[stream], self.free.get(key, 0.0), earliest)
        end = self.free[key] = self.ends[index] = start + row["duration"]
        self.last_end = max(self.last_end, end)
        self.calls.append((start, end, row["group"]))
        self.slices.append(Slice(row["op"], row["group"], start, end, row["module"], "", 0, row["payload"]))
        return start

    def run(self, sent: dict[Any, float], replayed: set[int]) -> Generator[None, None, None]:
        """Yields where it waits for another rank's send; a send waits for nobody.

        sent: when sends started, by sender, receiver, group, tag and number.
        """
        waits: collections.defaultdict[int, list[int]] = collections.defaultdict(list)
        for index, row in enumerate(self.rows):
            if row.get("waited_before", -1) >= 0:
                waits[row["waited_before"]].append(index)
        stream_of: dict[int, int] = {}
        numbers: collections.Counter[Any] = collections.Counter()
        state = {"at": 0, "stream": 0, "on": True}

        def settle(at: int) -> None:
            for index in waits.get(at, ()):
                self.wait(index, stream_of.get(index, 0))

        def up_to(at: int) -> Generator[None, None, None]:
            while state["at"] < at:
                index = state["at"]
                settle(index)
                row = self.rows[index]
                if not row["is_compute"] and state["on"]:
                    stream_of[index] = state["stream"]
                    key = _message(row, self.world.rank)
                    number = numbers[key] = numbers[key] + 1 if key is not None else 0
                    earliest = 0.0
                    if row["op"] == "recv" and row["peer"] in replayed:
                        while (*key, number) not in sent:
                            yield
                        earliest = sent[(*key, number)]
                    elif row["op"] == "recv":
                        self.alone.add(row["peer"])
                    start = self.call(index, state["stream"], earliest)
                    if row["op"] == "send":
                        sent[(*key, number)] = start
                elif row["is_compute"] and state["on"] and index not in kernels:
                    self.kernel(Kernel(index, 0, 0.0, row["duration"], 0, 0, row["op"], "", "forward", ""))
                state["at"] = index + 1
            settle(at)

        def once_more(again: Again) -> Generator[None, None, None]:
            stream, state["at"] = state["stream"], again.stretch.calls.start
            for index in again.stretch.items:
                item = self.items[index]
                if isinstance(item, Memory):
                    self._set_of_copy(again, item)
                else:
                    yield from take(item)
            yield from up_to(again.stretch.calls.stop)
            state["stream"], state["at"] = stream, again.at
            if again.ends:
                self._end_copy(again.copy)

        def take(item: _compute.Item) -> Generator[None, None, None]:
            yield from up_to(item.at)
            if isinstance(item, Pause):
                state["on"] = int(item.on)
            elif isinstance(item, Issue):
                state["stream"] = item.stream
            elif isinstance(item, Kernel):
                if state["on"]:
                    self.kernel(item)
                yield from up_to(item.at + 1)
            elif isinstance(item, Again):
                yield from once_more(item)
                yield from up_to(item.at + 1)
            elif state["on"] or isinstance(item, Memory):
                self.other(item)

        kernels = {item.at for item in self.items if isinstance(item, (Kernel, Again))}
        for item in self.items:
            yield from take(item)
        yield from up_to(len(self.rows))


def _moved(item: _compute.Item, calls: int) -> _compute.Item:
    assert not isinstance(item, Again)  # a script's microbatches all run
    return item._replace(at=item.at + calls)


def _message(row: dict[str, Any], rank: int) -> Any:
    if row["op"] == "send":
        return (rank, row["peer"], row["group"], row["tag"])
    if row["op"] == "recv":
        return (row["peer"], rank, row["group"], row["tag"])
    return None


def replay(worlds: Sequence[FakeWorld], efficiency: float, part: Part | None) -> list[_Rank]:
    """Errors: RuntimeError if ranks wait for each other in a circle, or for a send that is not there."""
    ranks = [_Rank(world, world._computes(), efficiency, part) for world in worlds]
    sent: dict[Any, float] = {}
    replayed = {world.rank for world in worlds}
    left = [(rank, rank.run(sent, replayed)) for rank in ranks]
    while left:
        before = len(sent)
        still = []
        for rank, steps in left:
            try:
                next(steps)
                still.append((rank, steps))
            except StopIteration:
                pass
        if len(still) == len(left) and len(sent) == before:
            raise RuntimeError(f"estimate: {_waiting([rank for rank, _ in still])}")
        left = still
    return ranks


def _waiting(ranks: Sequence[_Rank]) -> str:
    names = ", ".join(str(rank.world.rank) for rank in ranks)
    return f"ranks {names} wait for sends that were not recorded, want worlds of one and the same step"


# ---- what it comes to


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def _exposed(busy: list[tuple[float, float]], calls: list[tuple[float, float, str]]) -> dict[str, float]:
    """How long calls run while nothing of `busy` does, by group."""
    changes: list[tuple[float, str, int]] = []
    for start, end in busy:
        changes += [(start, "", 1), (end, "", -1)]
    for start, end, group in calls:
        if end > start:
            changes += [(start, group, 1), (end, group, -1)]
    running: collections.Counter[str] = collections.Counter()
    exposed: collections.Counter[str] = collections.Counter()
    before = 0.0
    for when, group, more in sorted(changes):
        if when > before and not running[""]:
            groups = [name for name, count in running.items() if count > 0]
            for name in groups:
                exposed[name] += (when - before) / len(groups)  # type: ignore[assignment]
        running[group] += more
        before = when
    return {group: float(time) for group, time in exposed.items()}


def _of_rank(rank: _Rank) -> RankEstimate:
    time = max([rank.last_end, *rank.streams.values()])
    busy = _merged(rank.busy)
    compute = sum(end - start for start, end in busy)
    exposed = _exposed(busy, rank.calls)
    communication: dict[str, float] = {}
    for start, end, group in rank.calls:
        communication[group] = communication.get(group, 0.0) + end - start
    return RankEstimate(
        rank=rank.world.rank,
        time=time,
        compute=compute,
        communication=communication,
        exposed={group: exposed.get(group, 0.0) for group in communication},
        idle=max(0.0, time - compute - sum(exposed.values())),
        model_flops=rank.model_flops,
        hardware_flops=rank.hardware_flops,
        by_phase=rank.by_phase,
        peak_memory=rank.peak,
        memory=rank.memory,
        slices=rank.slices,
    )


def _not_modelled(worlds: Sequence[FakeWorld], ranks: Sequence[_Rank], communicates: bool) -> list[str]:
    compute = worlds[0]._computes()
    kernels = "how well a kernel suits its shape: all reach the same part of the peak FLOP/s, and all of the bandwidth"
    launches = "the time in which the CPU launches kernels, and Python's"
    links = "congestion, and links that groups share; members of a collective that come late"
    memory = "fragments and rounding of the caching allocator, workspaces of libraries, memory of NCCL"
    others = "kernels that share the device: those of side streams and of collectives slow no other"
    missing = [kernels, launches, others, links, memory]
    if communicates and not worlds[0]._has_cost():
        missing.insert(0, "what calls take: cost is not given, and all of them take no time (cost='infiniband_ndr' or the like)")
    unused = sorted(set[str].intersection(*(set(world._unused_costs()) for world in worlds)))
    if unused:
        missing.insert(0, f"the cost of {', '.join(unused)}: no call is of a group called so")
    if any(world._first_buckets for world in worlds):
        text = "a later step of DistributedDataParallel: in its first one a model reduces when backward is over, from the second on beside it"
        missing.insert(0, f"{text} (do one step before the one that counts)")
    without_peak = sorted(set[str]().union(*(world._computes().without_peak for world in worlds)))
    if without_peak:
        missing.insert(0, f"the peak of {', '.join(without_peak)}, which the device does not have: that of float32 is taken")
    if not compute.fuse:
        missing.append("kernels that torch.compile makes one (compiled=True assumes that it does)")
    else:
        missing.append("what torch.compile saves and recomputes on its own: memory is that of eager mode")
    if compute.matmul_dtype is not None:
        missing.append(f"the casts to {compute.matmul_dtype}")
    if any(isinstance(item, Again) for rank in ranks for item in rank.items):
        missing.append("how microbatches differ: from the third on they are taken to be like the second (every_microbatch=True traces all)")
    alone = sorted({peer for rank in ranks for peer in rank.alone})
    if alone:
        missing.append(f"the wait for what ranks {', '.join(map(str, alone))} send: they are not among these")
    return missing


def estimate_of(worlds: Sequence[FakeWorld], efficiency: float | None = None, part: Part | None = None) -> Estimate:
    """Of a step that these worlds have recorded; efficiency: None is the first world's. part: of the record of a world alone; None: all.

    Errors: ValueError for worlds of other devices; RuntimeError of replay().
    """
    compute = worlds[0]._computes()
    for world in worlds[1:]:
        other = world._computes()
        have, want = (f"{one.device.name} at {one.efficiency:.0%}" for one in (other, compute))
        if have != want:
            raise ValueError(f"estimate: rank {world.rank} is on {have}, want {want} as of rank {worlds[0].rank}")
    efficiency = compute.efficiency if efficiency is None else efficiency
    replayed = replay(worlds, efficiency, part)
    ranks = [_of_rank(rank) for rank in replayed]
    time = max(rank.time for rank in ranks)
    flops_of: collections.Counter[str] = collections.Counter()
    for rank in replayed:
        flops_of.update(rank.flops_of)
    dtype = flops_of.most_common(1)[0][0] if flops_of else "float32"
    peak = compute.device.flops[dtype]
    whole = len(ranks) * time * peak
    busiest = max(ranks, key=lambda rank: rank.compute)
    result = Estimate(
        time=time,
        mfu=sum(rank.model_flops for rank in ranks) / whole if whole else 0.0,
        hfu=sum(rank.hardware_flops for rank in ranks) / whole if whole else 0.0,
        peak_flops=peak,
        peak_dtype=dtype,
        compute=busiest.compute,
        communication=busiest.communication,
        exposed=busiest.exposed,
        idle=max(0.0, time - busiest.compute - sum(busiest.exposed.values())),
        peak_memory=max(ranks, key=lambda rank: rank.peak_bytes).peak_memory,
        ranks=ranks,
        device=compute.device.name,
        device_memory=compute.device.memory,
        efficiency=efficiency,
        not_modelled=_not_modelled(worlds, replayed, any(rank.communication for rank in ranks)),
    )
    object.__setattr__(result, "_worlds", tuple(worlds))
    object.__setattr__(result, "_part", part)
    return result
