"""Reads the calls of fake ranks, as `traces::write_perfetto()` writes them, as a run whose lanes are groups of ranks; and an estimate of
a step, as `Estimate.write_perfetto()` of the bridge does, whose lanes are streams and groups."""

from __future__ import annotations

import json
from typing import Any

from rankloom_command.run_file import DTYPES, Run, RunFileError, read_bytes

# Kineto's names.
NAMES = {"Half": "float16", "BFloat16": "bfloat16", "Float": "float32", "Double": "float64", "Char": "int8", "Byte": "uint8", "Short": "int16",
         "Int": "int32", "Long": "int64", "Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
         "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2"}  # fmt: skip
MOST_EVENTS = 2_000_000


def _ns(microseconds: Any) -> int:
    value = round(float(microseconds) * 1000)
    if not 0 <= value < 2**62:
        raise ValueError("a time that is none")
    return value


class _Lanes:
    """The content of a record, lane by lane: a lane is one group of one traced rank, or its computation."""

    def __init__(self) -> None:
        self.number: dict[tuple[int, int], int] = {}
        self.names: list[str] = []
        self.groups: list[dict[str, Any]] = []
        self.group_of: dict[tuple[str, int], int] = {}
        self.kinds: list[dict[str, Any]] = []
        self.kind_of: dict[str, int] = {}
        self.calls: list[list[tuple[int, int, int, int, int]]] = []  # begin, end, kind, seq, peer

    def lane(self, pid: int, tid: int, process: str, thread: str) -> int:
        found = self.number.get((pid, tid))
        if found is None:
            found = self.number[pid, tid] = len(self.names)
            self.names.append(f"{process.removeprefix('rank ')} {thread.removeprefix('group ')}")
            self.calls.append([])
        return found

    def kind(self, lane: int, kind: dict[str, Any], group: str, size: int, description: str) -> int:
        key = (group, lane)
        if key not in self.group_of:
            self.group_of[key] = len(self.groups)
            # The other members are fake: nobody is missed.
            self.groups.append({"id": len(self.groups), "name": group, "description": description, "size": 1, "ranks": [lane], "of": size})
        kind["group"] = self.group_of[key]
        text = json.dumps(kind, sort_keys=True)
        if text not in self.kind_of:
            self.kind_of[text] = len(self.kinds)
            self.kinds.append(kind)
        return self.kind_of[text]


def _of_estimate(event: dict[str, Any]) -> bool:
    """Whether it is of an estimate, which tells of a call neither its group's size nor its line."""
    return event.get("cat") == "kernel" or (event.get("cat") == "collective" and "bytes" in event["args"] and "Ring bytes" not in event["args"])


def _take(lanes: _Lanes, lane: int, event: dict[str, Any], lane_of_rank: dict[tuple[int, str], int]) -> None:
    """lane_of_rank: by the rank and the name of the group. A group's number is another one for each rank."""
    begin, name = _ns(event["ts"]), str(event["name"])
    end = begin + _ns(event.get("dur", 0))
    if event.get("cat") == "compute" or _of_estimate(event):
        kind = {"op": name, "file": "", "line": 0, "dtype": 2, "in": [], "out": [], "p2p": True}
        group = ("compute", 1, "computation") if event["cat"] != "collective" else (lanes.names[lane].partition(" ")[2], 1, "")
        number = lanes.kind(lane, kind, *group)
        lanes.calls[lane].append((begin, end, number, len(lanes.calls[lane]) + 1, -1))
        return
    facts = event["args"]
    file, _, line = str(facts.get("Call site", "")).rpartition(":")
    dtype = NAMES[str(facts["dtype"])] if facts.get("dtype") else "float32"  # a barrier has none
    sides = [[[int(facts[f"{side} msg nelems"])]] if int(facts[f"{side} msg nelems"]) else [] for side in ("In", "Out")]
    kind = {
        "op": name,
        "file": file,
        "line": int(line or 0),
        "dtype": DTYPES.index(dtype),
        "in": sides[0],
        "out": sides[1],
        "wire": int(facts["Ring bytes"]),
    }
    peer = -1
    if name in ("send", "recv"):
        kind.update(p2p=True, tag=0)
        peer = lane_of_rank.get((int(facts["Dst Rank" if name == "send" else "Src Rank"]), str(facts["Process Group Name"])), -1)
    number = lanes.kind(lane, kind, str(facts["Process Group Name"]), int(facts["Group size"]), str(facts["Process Group Description"]))
    lanes.calls[lane].append((begin, end, number, int(facts["Seq"]), peer))


def parse(data: bytes, path: str) -> Run:
    """Errors: RunFileError that names the file and what is wrong."""
    try:
        trace = json.loads(data)
        events, world_size = trace["traceEvents"], int(trace.get("distributedInfo", {}).get("world_size", 1))
        if not isinstance(events, list) or len(events) > MOST_EVENTS:
            raise ValueError(f"more than {MOST_EVENTS} events")
        names = {
            (event["name"], event["pid"], event["tid"]): str(event["args"]["name"])
            for event in events
            if event["ph"] == "M" and "name" in event["args"]
        }
        boxes = [event for event in events if event["ph"] == "X"]
        lanes = _Lanes()
        for pid, tid in sorted({(int(event["pid"]), int(event["tid"])) for event in boxes}):
            lanes.lane(pid, tid, names.get(("process_name", pid, 0), f"rank {pid}"), names.get(("thread_name", pid, tid), f"lane {tid}"))
        lane_of_rank = {
            (int(event["pid"]), str(event["args"]["Process Group Name"])): lanes.number[event["pid"], event["tid"]]
            for event in boxes
            if "Process Group Name" in event.get("args", {})
        }
        for event in boxes:
            _take(lanes, lanes.number[event["pid"], event["tid"]], event, lane_of_rank)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        what = f"{error} is not there" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise RunFileError(
            f'file "{path}": no record of fake ranks, as traces::write_perfetto() writes it, and in Python write_perfetto() of a fake world '
            f"or an estimate ({what})"
        ) from None
    if not lanes.names:
        raise RunFileError(f'file "{path}": a record without calls')
    return _run(lanes, path, all(_of_estimate(event) for event in boxes), world_size)


def _run(lanes: _Lanes, path: str, estimated: bool, world_size: int) -> Run:
    calls, last = {}, 0
    for lane, made in enumerate(lanes.calls):
        made.sort()
        line: dict[str, Any] = {"rank": lane, "made": len(made), "state": "c" * len(made)}
        line["kind"], line["seq"], line["peer"] = ([call[i] for call in made] for i in (2, 3, 4))
        line["issued"] = [call[0] - before[0] for call, before in zip(made, [(0,), *made], strict=False)]
        line["arrived"] = [0] * len(made)
        line["ended"] = [call[1] - call[0] for call in made]
        last = max([last, *(call[1] for call in made)])
        calls[lane] = line
    traced = len({pid for pid, _ in lanes.number})
    world = max([world_size, *(group["of"] for group in lanes.groups)])
    text = f"Fake world: the calls of {traced} of {max(world, traced)} ranks"
    if estimated:
        text = f"Estimate of a step: kernels and calls of {traced} rank{'' if traced == 1 else 's'}"
    run = {"world_size": len(lanes.names), "ok": True, "text": text, "kind": "", "cause": "", "first_failed": -1, "engine": "none"}
    run |= {"schedule": "none", "rerun": "", "steps": 0, "choices": 0, "end_ns": last, "lanes": lanes.names}
    gaps = [
        "ranks that were not traced: a fake call waits for nobody, and its time is the cost model's",
        "when a call was issued: it begins where the one before it in its group ends",
        "tensors' values and shapes: numbers of elements only",
    ]
    if estimated:
        gaps = ["an estimate has no sizes of groups, shapes and lines of calls: write_run() of the fake world has them", *gaps]
    return Run(
        path=path, writer="", run=run, states="r" * len(lanes.names), outcome_texts=[], groups=lanes.groups, kinds=lanes.kinds, calls=calls, gaps=gaps
    )


def read(path: str) -> Run:
    """Errors: RunFileError, also for a file that cannot be read."""
    return parse(read_bytes(path), path)
