"""Reads run files: docs/run-files.md has the format."""

from __future__ import annotations

import array
import itertools
import json
import pathlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
MOST_HEAD = 1 << 20  # bytes of the first line
# By number, as include/rankloom/tensor.h has them.
DTYPES = [
    "float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool", "complex64", "complex128",
    "float8_e4m3fn", "float8_e5m2",
]  # fmt: skip
STATES = {"u": "had not ended", "r": "returned", "f": "failed", "s": "stopped"}
CALL_STATES = {"s": "scheduled", "c": "completed", "f": "failed"}
HEADLINE = 1000  # characters
MOST_TEXT = 20_000
MOST_NAME = 200  # characters of a name in a line of text, of which a file of few bytes may have many
MOST_TENSORS = 32
MOST_DIMENSIONS = 16
SHOWN_BYTES = 64  # of a value; a writer may leave out a part of a character at their end
COLUMNS = ("kind", "seq", "issued", "ended", "state")
OPTIONAL_COLUMNS = ("arrived", "peer", "step", "done")
OPERATION_STATES = {"s": "open", "c": "done", "f": "failed"}
# Failed assertions, as the harness tells them: "train.cc:3: rank 1 (4 times): Expected ...", and a line for each other message.
_RANKS = r"ranks? (\d{1,9}(?:-\d{1,9})?(?:, \d{1,9}(?:-\d{1,9})?)*)"
ASSERTED = re.compile(rf"^{_RANKS}(?:, after the world was aborted)?(?: \((\d{{1,9}}) times\))?: ", re.MULTILINE)
ASSERTED_AT = re.compile(r"^[^\n]{1,1000}?:\d{1,9}: (?=ranks? \d)")


class RunFileError(Exception):
    """The file cannot be read as a run, and why."""


def short(name: str) -> str:
    """A name as lines of text have it."""
    return name if len(name) <= MOST_NAME else name[:MOST_NAME] + "..."


def _list_text(numbers: Sequence[int], most: int) -> str:
    return str(list(numbers)) if len(numbers) <= most else f"{str(list(numbers[:most]))[:-1]}, ... ({len(numbers)})]"


def _sizes_text(side: Sequence[Sequence[int]]) -> str:
    more = f", ... ({len(side)} tensors)" if len(side) > MOST_TENSORS else ""
    return (", ".join(_list_text(sizes, MOST_DIMENSIONS) for sizes in side[:MOST_TENSORS]) or "nothing") + more


@dataclass(frozen=True)
class Call:
    """One call of a rank. Times are nanoseconds since the world began; -1: not known."""

    rank: int
    index: int  # among the rank's calls, those that the file does not have counted
    op: str
    group: str
    seq: int
    peer: int  # global rank; -1: none
    root: int  # rank in the group; -1: none
    tag: int
    p2p: bool
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    dtype: str
    file: str
    line: int
    issued: int
    arrived: int
    ended: int
    state: str
    step: int = -1  # scheduling points of all ranks when it was issued, and when it ended
    done: int = -1
    splits: tuple[tuple[int, ...], ...] = ()  # of the input and of the output, in rows; empty: equal
    peer_lane: str = ""  # of fake ranks: the name of the peer's lane

    def label(self) -> str:
        """The call, as reports print it: "all_reduce seq 3 [group 0]"."""
        text = f"{short(self.op)} seq {self.seq}"
        if self.p2p and self.peer >= 0:
            text += f" {'to' if self.op == 'send' else 'from'} {short(self.peer_lane) or f'rank {self.peer}'}"
        if self.tag:
            text += f", tag {self.tag}"
        if self.root >= 0:
            text += f" root {self.root}"
        return f"{text} [group {short(self.group)}]"

    def site(self) -> str:
        """The line of code, with the last part of the file's path."""
        return f"{short(self.file.rsplit('/', 1)[-1])}:{self.line}"

    def shapes(self) -> str:
        """The sizes of the tensors: "float32 [8] -> [8]"."""
        if not self.inputs and not self.outputs:
            return ""
        sides = [_sizes_text(side) for side in (self.inputs, self.outputs)]
        same = self.inputs == self.outputs or not self.inputs
        text = f"{self.dtype} {sides[1]}" if same else f"{self.dtype} {sides[0]} -> {sides[1]}"
        if self.splits:
            text += ", splits " + " -> ".join(_list_text(side, MOST_TENSORS) if side else "equal" for side in self.splits)
        return text

    def same(self) -> tuple[Any, ...]:
        """The part of a call that two runs of one program have in common: all but times and states."""
        tensors = self.inputs, self.outputs, self.splits, self.dtype
        return (self.op, self.group, self.seq, self.peer, self.root, self.tag, *tensors, self.file, self.line)


@dataclass(frozen=True)
class StoreOperation:
    """One operation of a rank on the store of its world. Times and steps as of a Call."""

    rank: int
    index: int
    op: str  # "get"
    key: str  # the first one
    keys: int
    given: str | None  # the first bytes of what the rank wrote; None: the operation takes nothing
    given_bytes: int
    got: str | None  # and of what the store brought back
    got_bytes: int
    file: str
    line: int
    issued: int
    ended: int
    state: str
    step: int
    done: int

    def site(self) -> str:
        """The line of code, with the last part of the file's path."""
        return f"{short(self.file.rsplit('/', 1)[-1])}:{self.line}"

    def label(self) -> str:
        """The operation, without values: 'store get "a"'."""
        more = f" and {self.keys - 1} more" if self.keys > 1 else ""
        return f"store {self.op}" + (f' "{self.key}"{more}' if self.keys else "")

    def values(self) -> str:
        """' = "1"', ' -> "1"'; empty: there are none."""
        text = f" = {value_text(self.given, self.given_bytes)}" if self.given is not None else ""
        return text + (f" -> {value_text(self.got, self.got_bytes)}" if self.got is not None else "")

    def same(self) -> tuple[Any, ...]:
        """The facts that two runs of one program have in common: all but times, steps and states."""
        return (self.op, self.key, self.keys, self.given, self.given_bytes, self.got, self.got_bytes, self.file, self.line)


def value_text(shown: str, size: int) -> str:
    """A value of the store: '"1"', '"begin..." (1000 bytes)'."""
    return f'"{shown}"' if size <= SHOWN_BYTES else f'"{shown}..." ({size} bytes)'


@dataclass
class Run:
    """A run, as its file has it: each line by its tag."""

    path: str
    writer: str
    run: dict[str, Any]
    states: str
    outcome_texts: list[tuple[str, list[list[int]]]]
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    waits: list[dict[str, Any]] = field(default_factory=list)
    cycle: list[int] = field(default_factory=list)
    strategy: str = ""
    story: str = ""
    explored: dict[str, Any] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    kinds: list[dict[str, Any]] = field(default_factory=list)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    store: dict[int, dict[str, Any]] = field(default_factory=dict)
    gaps: list[str] = field(default_factory=list)
    fake: dict[str, Any] | None = None  # of a fake world: its size, and the totals of each traced rank
    _waiting: dict[int, dict[str, Any]] | None = field(default=None, init=False)
    _sizes: dict[int, list[tuple[tuple[int, ...], ...]]] = field(default_factory=dict, init=False)

    @property
    def world_size(self) -> int:
        return int(self.run["world_size"])

    def lanes(self) -> list[str]:
        """Of fake ranks: "5 tp", a lane for the computation and for each group of a rank. Real ranks have none."""
        return list(self.run.get("lanes", []))

    def of_world(self) -> list[str]:
        """The ranks that the file has, by their numbers in the world: of a fake one, those that were traced."""
        return list(dict.fromkeys(lane.partition(" ")[0] for lane in self.lanes())) or [str(rank) for rank in range(self.world_size)]

    def places(self, rank: int) -> list[int]:
        """The numbers that the lines of the file have for a rank of the world: those of its lanes if it is a fake one."""
        lanes = [place for place, lane in enumerate(self.lanes()) if lane.partition(" ")[0] == str(rank)]
        return lanes if "lanes" in self.run else [rank]

    def name(self, place: int) -> str:
        """The rank with the number that the lines of the file have for it: "rank 3", of a lane "rank 3, tp"."""
        return "rank " + self.lanes()[place].replace(" ", ", ", 1) if place < len(self.lanes()) else f"rank {place}"

    def ok(self) -> bool:
        """All ranks returned, and nothing failed that only the harness knows."""
        return bool(self.run["ok"]) and not self.run.get("failures", [])

    def headline(self) -> str:
        """The failure, in a line: the report's first, or that of a failure that the report does not know."""
        failures = self.run.get("failures", [])
        if self.run["ok"] and failures:
            return str(failures[0])[:HEADLINE].split("\n", 1)[0]
        return str(self.run["text"])[:HEADLINE].split("\n", 1)[0]

    def waiting(self) -> dict[int, dict[str, Any]]:
        """Of each rank that waited when the run ended: its wait."""
        if self._waiting is not None:
            return self._waiting
        found: dict[int, dict[str, Any]] = {}
        # Of each rank one from which on the first without a wait is to be looked for: ranges of many waits may have the same ranks.
        after = array.array("q", range(self.world_size + 1))

        def next_without(rank: int) -> int:
            passed = []
            while after[rank] != rank:
                passed.append(rank)
                rank = after[rank]
            for one in passed:
                after[one] = rank
            return rank

        for wait in self.waits:
            for begin, end in wait["ranks"]:
                rank = next_without(begin)
                while rank <= end:
                    found[rank], after[rank] = wait, rank + 1
                    rank = next_without(rank + 1)
        self._waiting = found
        return found

    def asserted(self) -> dict[int, int]:
        """Of each rank whose assertions failed: how many, as far as the failures' texts tell."""
        more = [0] * (self.world_size + 1)  # than of the rank before
        for failure in self.run.get("failures", []):
            text, at = ASSERTED_AT.subn("", failure[:MOST_TEXT], count=1)
            for said in ASSERTED.finditer(text) if at else ():
                parts, first = [], 0
                for part in said[1].split(", "):  # ascending
                    begin, end = max(int(part.split("-")[0]), first), min(int(part.split("-")[-1]) + 1, self.world_size)
                    if begin < end:
                        parts.append((begin, end))
                        first = end
                times = int(said[2]) if said[2] and sum(end - begin for begin, end in parts) == 1 else 1
                for begin, end in parts:
                    more[begin] += times
                    more[end] -= times
        return {rank: count for rank, count in enumerate(itertools.accumulate(more)) if count > 0}

    def endings(self) -> dict[str, list[int]]:
        """How ranks ended, in words, and which."""
        waiting, asserted = self.waiting(), self.asserted()
        found: dict[str, list[int]] = {}
        for rank, state in enumerate(self.states):
            text = STATES[state]
            if state == "s" and rank in waiting:
                text = "deadlocked" if self.run["kind"] == "Deadlock" else "stopped in a wait"
            if state == "r" and rank in asserted:
                text += f", {asserted[rank]} assertion{'' if asserted[rank] == 1 else 's'} failed"
            found.setdefault(text, []).append(rank)
        return found

    def timed(self) -> bool:
        """Whether time passed in the run: virtual time need not."""
        if self.run.get("end_ns", 0) > 0:
            return True
        return any(ns > 0 for line in self.calls.values() for column in ("issued", "ended") for ns in line[column])

    def _sizes_of(self, kind: int) -> list[tuple[tuple[int, ...], ...]]:
        """The sizes of the inputs and outputs of a kind of call, and its splits. Calls share them: a file of few bytes may have many calls
        of a kind with many."""
        if kind not in self._sizes:
            inputs, outputs, splits = (tuple(map(tuple, self.kinds[kind].get(key, ()))) for key in ("in", "out", "splits"))
            self._sizes[kind] = [inputs, inputs if inputs == outputs else outputs, splits]
        return self._sizes[kind]

    def of_rank(self, rank: int) -> list[Call]:
        """The rank's calls that the file has, oldest first."""
        line = self.calls.get(rank)
        if line is None:
            return []
        calls, issued, step, count = [], 0, 0, len(line["kind"])
        first = line["made"] - count
        steps, lanes = line.get("step"), self.lanes()
        for i in range(count):
            kind = self.kinds[line["kind"][i]]
            inputs, outputs, splits = self._sizes_of(line["kind"][i])
            issued += line["issued"][i]
            arrived = line["arrived"][i] if "arrived" in line else -1
            ended = line["ended"][i]
            step += steps[i] if steps is not None else 0
            done = line["done"][i] if "done" in line else -1
            calls.append(
                Call(
                    rank=rank,
                    index=first + i,
                    op=kind["op"],
                    group=self.groups[kind["group"]]["name"],
                    seq=line["seq"][i],
                    peer=line["peer"][i] if "peer" in line else -1,
                    root=kind.get("root", -1),
                    tag=kind.get("tag", 0),
                    p2p=bool(kind.get("p2p", False)),
                    inputs=inputs,
                    outputs=outputs,
                    dtype=DTYPES[kind["dtype"]] if kind["dtype"] < len(DTYPES) else f"dtype {kind['dtype']}",
                    file=kind["file"],
                    line=kind["line"],
                    issued=issued,
                    arrived=issued + arrived if arrived >= 0 else -1,
                    ended=issued + ended if ended >= 0 else -1,
                    state=CALL_STATES[line["state"][i]],
                    step=step if steps is not None else -1,
                    done=step + done if steps is not None and done >= 0 else -1,
                    splits=splits,
                    peer_lane=lanes[line["peer"][i]] if lanes and line.get("peer", [-1] * count)[i] >= 0 else "",
                )
            )
        return calls

    def store_of(self, rank: int) -> list[StoreOperation]:
        """The operations of the rank on the store, as far as the file has it, oldest first."""
        line = self.store.get(rank)
        if line is None:
            return []
        first = line["made"] - len(line["ops"])
        waits = self._operation_that_waits(rank)
        return [
            StoreOperation(
                rank=rank,
                index=first + i,
                op=op["op"].removeprefix("store "),
                key=op.get("key", ""),
                keys=op.get("keys", 1 if "key" in op else 0),
                given=op.get("given"),
                given_bytes=op.get("given_bytes", -1),
                got=op.get("got"),
                got_bytes=op.get("got_bytes", -1),
                file=op["file"],
                line=op["line"],
                issued=op["begun"],
                ended=op["begun"] + op["ended"] if op["ended"] >= 0 else -1,
                state="not complete" if i == waits else OPERATION_STATES[op["state"]],
                step=op.get("step", -1),
                done=op["step"] + op["done"] if op.get("done", -1) >= 0 else -1,
            )
            for i, op in enumerate(line["ops"])
        ]

    def _operation_that_waits(self, rank: int) -> int:
        """The operation on the store, counted from 0, in which the rank waited when the run ended: the end has made it fail. -1: none."""
        ops = self.store[rank]["ops"]
        wait = self.waiting().get(rank)
        if wait is None or not ops:
            return -1
        last = ops[-1]
        waits = last["state"] != "c" and all(last[key] == wait[other] for key, other in (("op", "what"), ("file", "file"), ("line", "line")))
        return len(ops) - 1 if waits else -1

    def did(self, rank: int) -> list[Call | StoreOperation]:
        """Calls and operations on the store of a rank, in the order in which they began."""
        calls, operations = self.of_rank(rank), self.store_of(rank)
        if not operations:
            return list(calls)
        every: list[Call | StoreOperation] = [*calls, *operations]
        stepped = all(one.step >= 0 for one in every)
        return sorted(every, key=lambda one: one.step if stepped else one.issued)

    def last_operation(self) -> Call | StoreOperation | None:
        """Of the rank that failed first, if the report does not name it."""
        rank = self.run["first_failed"]
        did = self.did(rank) if rank >= 0 else []
        if not did:
            return None
        last = did[-1]
        told = f"{self.run['text'][:MOST_TEXT]}\n{self.run['cause'][:MOST_TEXT]} "
        return None if isinstance(last, Call) and f" {last.op} seq {last.seq} " in told else last

    def lost(self) -> dict[int, int]:
        """Of each rank whose first calls the file does not have: how many."""
        lost = {rank: line["made"] - len(line["kind"]) for rank, line in self.calls.items()}
        return {rank: count for rank, count in lost.items() if count > 0}

    def matches(self) -> list[tuple[Call, Call]]:
        """Sends with their receives: the n-th completed send from one rank to another with one tag in one group, and the
        n-th completed recv of these. Not of ranks whose first calls are gone: nobody knows which is the n-th there."""
        lost = self.lost()
        lists: dict[tuple[Any, ...], tuple[list[Call], list[Call]]] = {}
        for rank in self.calls:
            for call in self.of_rank(rank):
                if not call.p2p or call.state != "completed" or call.peer < 0 or rank in lost or call.peer in lost:
                    continue
                sends = call.op == "send"
                key = (call.group, *((rank, call.peer) if sends else (call.peer, rank)), call.tag)
                lists.setdefault(key, ([], []))[0 if sends else 1].append(call)
        return [pair for sends, recvs in lists.values() for pair in zip(sends, recvs, strict=False)]


def _check(good: object, what: str) -> None:
    if not good:
        raise RunFileError(what)


def _ranges(value: Any, most: int) -> bool:
    return isinstance(value, list) and all(
        isinstance(part, list) and len(part) == 2 and all(type(rank) is int for rank in part) and 0 <= part[0] <= part[1] < most for part in value
    )


def _lists_of_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, list) and all(type(number) is int for number in part) for part in value)


def _explored(line: dict[str, Any]) -> dict[str, Any]:
    """The numbers that a search tells beside its story; {}: its writer tells none."""
    if "run" not in line:
        return {}
    _check(all(type(line[key]) is int for key in ("run", "found_switches", "shrink_runs")), "a search whose numbers are none")
    _check(isinstance(line["found"], str), "a search that found under a schedule that is no text")
    _check(isinstance(line["switches"], list) and all(type(step) is int for step in line["switches"]), "switches that are no steps")
    for share in line["shares"]:
        _check(isinstance(share["strategy"], str) and isinstance(share["finished"], bool), "a strategy without a name")
        _check(all(type(share[key]) is int for key in ("runs", "schedules", "open")), "a strategy whose numbers are none")
    _check(isinstance(line["shares"], list), "strategies that are none")
    kept = {key: line[key] for key in ("run", "found", "found_switches", "shrink_runs", "switches", "shares")}
    if "futures" in line:
        futures, lost, choices = line["futures"], line["lost"], line["choices"]
        _check(all(isinstance(part, list) for part in (futures, lost, choices)), "futures that are none")
        _check(len(futures) == len(lost) == len(choices) + 1, "not one future a choice")
        _check(all(type(number) is int for number in (*futures, *lost)), "futures that are no numbers")
        _check(all(0 <= fail <= every and every > 0 for every, fail in zip(futures, lost, strict=True)), "more futures that fail than there are")
        _check(all(isinstance(choice, str) for choice in choices), "a choice without a text")
        _check(isinstance(line["sampled"], bool), "futures of which nobody knows whether they are all")
        kept |= {"futures": futures, "lost": lost, "choices": choices, "sampled": line["sampled"]}
    if "found_story" in line:
        steps = line["found_story_switches"]
        _check(isinstance(line["found_story"], str), "a first run that is no text")
        _check(isinstance(steps, list) and all(type(step) is int for step in steps), "switches of the first run that are no steps")
        kept |= {"found_story": line["found_story"], "found_story_switches": steps}
    return kept


def _check_store(line: dict[str, Any], size: int) -> None:
    rank, operations = line["rank"], line["ops"]
    _check(type(rank) is int and 0 <= rank < size, "operations of a rank that the world does not have")
    _check(isinstance(operations, list) and type(line["made"]) is int, f"operations of rank {rank} that are none")
    _check(line["made"] >= len(operations), f"more operations of rank {rank} than it made")
    for op in operations:
        texts = [op["op"], op["file"], *(op[key] for key in ("key", "given", "got") if key in op)]
        _check(all(isinstance(text, str) for text in texts), f"an operation of rank {rank} whose texts are none")
        numbers = [op[key] for key in ("line", "begun", "ended")]
        numbers += [op.get(key, 0) for key in ("keys", "given_bytes", "got_bytes", "step", "done")]
        _check(all(type(number) is int for number in numbers), f"an operation of rank {rank} whose numbers are none")
        _check("step" in op or "done" not in op, f"an operation of rank {rank} that ends at a step and begins at none")
        _check(all((name in op) == (f"{name}_bytes" in op) for name in ("given", "got")), f"a value of rank {rank} without its size")
        _check(isinstance(op["state"], str) and op["state"] in OPERATION_STATES, f"a state of rank {rank} that is none")


def _check_fake(line: dict[str, Any], run: Run) -> None:
    """Totals of fake ranks."""
    _check("lanes" in run.run, "totals of fake ranks in the file of real ones")
    _check(type(line["world_size"]) is int and isinstance(line["ranks"], list), "a fake world that is none")
    for rank in line["ranks"]:
        numbers = [rank[key] for key in ("rank", "calls", "compute_ns", "end_ns", "peak_buffer_bytes")]
        _check(all(type(number) is int for number in numbers), "a fake rank whose numbers are none")
        _check(isinstance(rank["totals"], list), f"totals of fake rank {rank['rank']} that are none")
        for total in rank["totals"]:
            _check(isinstance(total["op"], str), f"a total of fake rank {rank['rank']} without an operation")
            numbers = [total[key] for key in ("group", "calls", "payload", "ring_bytes", "tree_bytes", "time_ns")]
            _check(all(type(number) is int for number in numbers), f"a total of fake rank {rank['rank']} whose numbers are none")
            _check(0 <= total["group"] < len(run.groups), f"a total of fake rank {rank['rank']} of a group that the file does not have")


def _take(run: Run, line: dict[str, Any]) -> None:
    tag = line["t"]
    size = run.world_size
    if tag == "notes":
        run.notes = [str(note) for note in line["notes"]]
    elif tag == "faults":
        run.faults = [str(fault) for fault in line["faults"]]
    elif tag == "gaps":
        run.gaps = [str(gap) for gap in line["gaps"]]
    elif tag == "story":
        run.strategy, run.story = str(line["strategy"]), str(line["story"])
        run.explored = _explored(line)
    elif tag == "waits":
        _check(isinstance(line["waits"], list), "waits that are none")
        for wait in line["waits"]:
            _check(_ranges(wait["ranks"], size) and _ranges(wait["for"], size), "a wait of ranks that the world does not have")
            _check(all(isinstance(wait[key], str) for key in ("task", "what", "group", "detail", "remark", "file")), "a wait whose texts are none")
            _check(type(wait["seq"]) is int and type(wait["line"]) is int, "a wait whose numbers are none")
        _check(isinstance(line["cycle"], list), "a circle that is none")
        _check(all(type(rank) is int and 0 <= rank < size for rank in line["cycle"]), "a circle of ranks that the world does not have")
        run.waits, run.cycle = line["waits"], line["cycle"]
    elif tag == "groups":
        _check(not run.kinds and not run.fake, "groups behind the calls that are of them")
        for group in line["groups"]:
            if "lanes" in run.run:
                _check(type(group["of"]) is int and group["of"] > 0, "a lane of a group without members")
            else:
                group.pop("of", None)
            _check(all(isinstance(group[key], str) for key in ("name", "description")), "a group without a name")
            _check(all(type(group[key]) is int for key in ("id", "size")) and group["size"] > 0, "a group whose numbers are none")
            if "ranks" in group:
                members = group["ranks"]
                _check(isinstance(members, list) and len(members) == group["size"], "a group of other members than it has")
            else:
                first, stride, last = group["first"], group["stride"], group["size"] - 1
                _check(all(type(number) is int for number in (first, stride)) and stride != 0, "a group whose numbers are none")
                members = [first, first + stride * last]
            _check(all(type(rank) is int and 0 <= rank < size for rank in members), "a group of ranks that the world does not have")
        run.groups = line["groups"]
    elif tag == "kinds":
        _check(not run.calls, "kinds of calls behind the calls that are of them")
        for kind in line["kinds"]:
            if "lanes" not in run.run:
                kind.pop("wire", None)
            _check(type(kind.get("wire", 0)) is int, "a call whose numbers are none")
            _check(type(kind["group"]) is int and 0 <= kind["group"] < len(run.groups), "a call of a group that the file does not have")
            _check(isinstance(kind["op"], str) and isinstance(kind["file"], str), "a call without a name")
            _check(all(type(kind[key]) is int for key in ("line", "dtype")) and kind["dtype"] >= 0, "a call whose numbers are none")
            _check(all(_lists_of_numbers(kind[key]) for key in ("in", "out")), "a call whose sizes are none")
            _check(all(type(kind.get(key, 0)) is int for key in ("root", "tag", "timeout_ns")), "a call whose numbers are none")
            _check(_lists_of_numbers(kind.get("splits", [])) and len(kind.get("splits", [])) in (0, 2), "a call whose splits are none")
            _check(isinstance(kind.get("p2p", False), bool), "a call of which nobody knows whether it is a message")
        run.kinds = line["kinds"]
    elif tag == "calls":
        rank, count = line["rank"], len(line["kind"])
        _check(type(rank) is int and 0 <= rank < size, "calls of a rank that the world does not have")
        _check(rank not in run.calls, f"calls of rank {rank} once more")
        columns = [*COLUMNS, *(name for name in OPTIONAL_COLUMNS if name in line)]
        _check(all(len(line[name]) == count for name in columns), f"columns of different lengths for rank {rank}")
        _check(all(type(number) is int for name in columns if name != "state" for number in line[name]), f"a column without numbers for rank {rank}")
        _check(all(0 <= kind < len(run.kinds) for kind in line["kind"]), f"a call of rank {rank} of a kind that the file does not have")
        _check(isinstance(line["state"], str) and set(line["state"]) <= set(CALL_STATES), f"a state of rank {rank} that is none")
        _check(type(line["made"]) is int and line["made"] >= count, f"more calls of rank {rank} than it made")
        _check(all(-1 <= peer < size for peer in line.get("peer", [])), f"a peer of rank {rank} that the world does not have")
        _check("step" in line or "done" not in line, f"calls of rank {rank} that end at steps and begin at none")
        run.calls[rank] = line
    elif tag == "fake":
        _check_fake(line, run)
        run.fake = {"world_size": line["world_size"], "ranks": line["ranks"]}
    elif tag == "store":
        _check_store(line, size)
        run.store[line["rank"]] = line
    # Lines with other tags are a later writer's, and of no need.


def _begin(run_line: dict[str, Any], outcomes: dict[str, Any], path: str, writer: str) -> Run:
    _check(run_line.get("t") == "run" and outcomes.get("t") == "outcomes", "the run or its outcomes are not where they belong")
    for key in ("text", "kind", "cause", "engine", "schedule", "rerun"):
        _check(isinstance(run_line[key], str), f'"{key}" is no text')
    for key in ("world_size", "first_failed", "steps"):
        _check(type(run_line[key]) is int, f'"{key}" is no number')
    for key in ("choices", "end_ns", "recorded_calls", "timeout_ns", "warn_after_ns"):
        _check(type(run_line.get(key, 0)) is int, f'"{key}" is no number')
    for key in ("seed", "planned_faults"):
        _check(isinstance(run_line.get(key, ""), str), f'"{key}" is no text')
    failures = run_line.get("failures", [])
    _check(isinstance(failures, list) and all(isinstance(failure, str) for failure in failures), '"failures" are no texts')
    if "lanes" in run_line:  # of fake ranks, as are `of` of a group and `wire` of a kind
        lanes = run_line["lanes"]
        _check(isinstance(lanes, list) and len(lanes) == run_line["world_size"], "not one name a lane")
        _check(all(isinstance(lane, str) for lane in lanes), "a lane without a name")
    _check(-1 <= run_line["first_failed"] < run_line["world_size"], '"first_failed" is no rank')
    _check(isinstance(run_line["ok"], bool), '"ok" is neither true nor false')
    states = outcomes["states"]
    _check(isinstance(states, str) and set(states) <= set(STATES) and len(states) == run_line["world_size"], "not one outcome a rank")
    texts = [(text, ranges) for text, ranges in outcomes["texts"]]
    _check(all(isinstance(text, str) and _ranges(ranges, len(states)) for text, ranges in texts), "an outcome of ranks that the world does not have")
    return Run(path=path, writer=writer, run=run_line, states=states, outcome_texts=texts)


def _whole(text: str) -> int:
    number = int(text)
    _check(-(2**63) <= number < 2**63, f"{text[:40]} is too large a number")
    return number


def _no_number(text: str) -> Any:
    raise RunFileError(f"{text[:40]} is no whole number")


def _json(text: bytes) -> Any:
    """A run file has whole numbers only, which fit 64 bits."""
    return json.loads(text, parse_int=_whole, parse_float=_no_number, parse_constant=_no_number)


def parse(data: bytes, path: str) -> Run:
    """Errors: RunFileError that names the file, the line and what is wrong."""

    def bad(what: str) -> RunFileError:
        return RunFileError(f'file "{path}": {what}')

    lines = data.split(b"\n")
    try:
        head = _json(lines[0])
        version = head["rlrun"]
        _check(type(version) is int, "no number")
    except (RunFileError, ValueError, TypeError, KeyError, RecursionError):
        raise bad("no run file: its first line is not that of one") from None
    if version != VERSION:
        raise bad(f"a run file of version {version}, and this program reads version {VERSION}")
    if lines.pop():
        raise bad(f"cut short in line {len(lines) + 1}")
    run = None
    run_line: dict[str, Any] = {}
    ended = False
    for number, text in enumerate(lines[1:], 2):
        try:
            line = _json(text)
            _check(isinstance(line, dict) and isinstance(line.get("t"), str), "no line of a run")
            _check(not ended, "something after the end")
            if number == 2:
                run_line = line
            elif number == 3:
                run = _begin(run_line, line, path, str(head.get("writer", "")))
            elif line["t"] == "end":
                _check(line["lines"] == number, f"it is to be line {line['lines']}")
                _check(run is not None and ("lanes" in run.run) == (run.fake is not None), "lanes of fake ranks without their totals")
                ended = True
            elif run is not None:
                _take(run, line)
        except RunFileError as error:
            raise bad(f"line {number}: {error}") from None
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise bad(f"line {number}: not as a run file has it ({type(error).__name__}: {error})") from None
    if run is None or not ended:
        raise bad(f"cut short after line {len(lines)}")
    return run


def read_bytes(path: str) -> bytes:
    """Errors: RunFileError."""
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise RunFileError(f'file "{path}": {error.strerror}') from None


def read(path: str) -> Run:
    """Errors: RunFileError, also for a file that cannot be read."""
    try:
        with open(path, "rb") as file:
            head = file.readline(MOST_HEAD)  # of an endless file no more is read
            data = head + (file.read() if head.endswith(b"\n") else b"")
    except OSError as error:
        raise RunFileError(f'file "{path}": {error.strerror}') from None
    return parse(data, path)
