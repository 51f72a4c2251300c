"""Runs as text: `rankloom show` and `rankloom diff`."""

from __future__ import annotations

import re
from typing import Any

from rankloom_command.run_file import Call, Run, StoreOperation, short

MOST_LINES = 40
# Control characters but tab and line feed, those that turn or hide text, and halves of characters, which are no UTF-8.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def plain(text: str) -> str:
    """Without characters that a terminal would obey."""
    return OBEYED.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def ranks_text(ranks: list[int]) -> str:
    """ "rank 4", "ranks 0-1, 4"; `ranks` ascends."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
    return f"rank{'' if len(ranks) == 1 else 's'} {text}"


def time_text(ns: int) -> str:
    """Nanoseconds for people: "1.5 ms"."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size:
            return f"{ns / size:g} {unit}"
    return f"{ns} ns"


def bytes_text(size: int) -> str:
    """Bytes for people: "1.5 MB"."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        # A number that would be rounded to a thousand of the smaller unit is one of this.
        if size >= 0.9995 * factor:
            value = size / factor
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
    return f"{size} B"


def fake_text(run: Run) -> list[str]:
    """The totals of each fake rank that was traced, a line each, and below it one for each operation of a group."""
    lines = []
    for rank in run.fake["ranks"] if run.fake else ():
        ends = f"computes {time_text(rank['compute_ns'])}, ends at {time_text(rank['end_ns'])}"
        lines.append(f"rank {rank['rank']}: {rank['calls']} calls, {ends}; buffers of calls hold {bytes_text(rank['peak_buffer_bytes'])} at most")
        for total in rank["totals"]:
            group = run.groups[total["group"]]
            cost = f"{bytes_text(total['ring_bytes'])} by a ring, {bytes_text(total['tree_bytes'])} by a tree, {time_text(total['time_ns'])}"
            lines.append(f"  {total['calls']} x {short(total['op'])} on {short(group['description'] or group['name'])} ({group['of']} ranks): {cost}")
    return lines


def call_text(call: Call, timed: bool = True, waits: bool = False) -> str:
    """One line for a call; `waits`: its rank waited in it when the run ended."""
    text = call.label()
    if call.shapes():
        text += f", {call.shapes()}"
    facts = "not complete" if waits else call.state
    if timed:
        facts += f", {time_text(call.issued)}"
        if call.ended >= 0 and not waits:
            facts += f" to {time_text(call.ended)}"
    return f"{text} ({facts}) {call.site()}"


def waits_in(run: Run, call: Call) -> bool:
    """Whether the call's rank waited in it when the run ended."""
    wait = run.waiting().get(call.rank)
    return wait is not None and (call.op, call.group, call.seq) == (wait["what"], wait["group"], wait["seq"])


def operation_text(op: StoreOperation, timed: bool = True, values: bool = True) -> str:
    """One line for an operation on the store: 'store get "a" -> "1" (done) train.py:3'."""
    facts = op.state
    if timed:
        facts += f", {time_text(op.issued)}"
        if op.ended > op.issued:
            facts += f" to {time_text(op.ended)}"
    return f"{op.label()}{op.values() if values else ''} ({facts}) {op.site()}"


def last_text(run: Run) -> str:
    """The last operation of the rank that failed first, where the headline does not say it; empty: nothing is to be said."""
    last = run.last_operation()
    if last is None:
        return ""
    told = call_text(last, timed=False) if isinstance(last, Call) else operation_text(last, timed=False)
    return f"last operation of rank {last.rank}: {told}" + (f", step {last.step}" if last.step >= 0 else "")


def ordinal(number: int) -> str:
    """ "1st", "2nd": people count from 1."""
    return f"{number}{'th' if 10 < number % 100 < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _did_text(did: list[Call | StoreOperation], gone: int, full: bool, wait: dict[str, Any], timed: bool, stepped: bool = False) -> str:
    """A line a call or operation of one rank. `wait`: that of the rank at the end, {}: it had none. `full`: with what ranks that do
    the same need not share, times if the run is `timed` and values of the store. `stepped`: with the steps."""
    at = (wait.get("what"), wait.get("group"), wait.get("seq"))
    # The last of these: a rank may have sent and received with one number.
    waits = max((i for i, one in enumerate(did) if isinstance(one, Call) and (one.op, one.group, one.seq) == at), default=-1)
    lines = [f"    ... {gone} before"] if gone > 0 else []
    for i, one in enumerate(did):
        told = call_text(one, full and timed, i == waits) if isinstance(one, Call) else operation_text(one, full and timed, full)
        lines.append(f"    {f'step {one.step}: ' if stepped and one.step >= 0 else ''}{told}")
    return "\n".join(lines)


def show(run: Run, rank: int | None = None, last: int = 3) -> str:
    """A summary: the report, and all calls of one rank of the world, or the last ones of those that did not return or whose assertions failed."""
    failures = run.run.get("failures", [])
    lines = [*failures] if run.run["ok"] and failures else [run.run["text"], *failures]  # the headline is the first line of either
    if "lanes" in run.run:
        lines.append(f"{run.world_size} lanes, each a group of a rank: {', '.join(run.run['lanes'][:MOST_LINES])}")
    else:
        lines.append(f"{run.world_size} ranks, engine {run.run['engine']}, schedule {run.run['schedule']}, {run.run['steps']} scheduling points")
    lines += fake_text(run)
    if last_operation := last_text(run):
        lines.append(last_operation)
    if run.run["rerun"] and run.run["rerun"] not in lines[0]:
        lines.append(f"run it again: {run.run['rerun']}")
    elif not run.ok() and not run.run["rerun"] and run.run["schedule"] == "free":
        lines.append("no command repeats it: no schedule repeats a free run; RANKLOOM_SEED=1 runs the program under one that can be repeated")
    if run.faults:
        lines += ["faults that struck:", *(f"  {fault}" for fault in run.faults)]
    if run.story:
        lines += [f"found by {run.strategy}:", run.story.rstrip("\n")]
    if "lanes" not in run.run:
        lines.append("; ".join(f"{ranks_text(ranks)} {ended}" for ended, ranks in run.endings().items()))
    asserted = run.asserted()
    shown = run.places(rank) if rank is not None else [number for number, state in enumerate(run.states) if state != "r" or number in asserted]
    timed, waiting = run.timed(), run.waiting()
    # Ranks that did the same share their lines, whenever they did it: the times are the first rank's.
    alike: dict[str, list[int]] = {}
    told: dict[str, dict[str, None]] = {}
    valued: dict[str, dict[str, None]] = {}  # the same without times
    for number in shown:
        did = run.did(number)
        made = sum(lines_of[number]["made"] for lines_of in (run.calls, run.store) if number in lines_of)
        part, wait = did if rank is not None else did[-last:], waiting.get(number, {})
        key = _did_text(part, made - len(part), False, wait, timed)
        if run.lanes():
            key = f"{number} {key}"  # what a rank did in two groups stands apart
        alike.setdefault(key, []).append(number)
        texts = told.setdefault(key, {})
        texts[_did_text(part, made - len(part), True, wait, timed, stepped=rank is not None)] = None
        valued.setdefault(key, {})[_did_text(part, made - len(part), True, wait, False)] = None
    for i, (key, ranks) in enumerate(alike.items()):
        if i == MOST_LINES:
            lines.append(f"  ... {len(alike) - i} more: --rank N shows one")
            break
        values = " and values" if any(run.store_of(number) for number in ranks) else ""
        whose = f"; times{values} are those of rank {ranks[0]}" if len(told[key]) > 1 else ""
        calls = next(iter(told[key])) or "    none in the file"
        if len(valued[key]) > 1:
            # A lost update shows in these.
            of_ranks = [set(line) for line in zip(*(one.split("\n") for one in valued[key]), strict=False)]
            calls = "\n".join(
                f"{line}, other values on other ranks: --rank N" if len(same) > 1 else line
                for line, same in zip(calls.split("\n"), of_ranks, strict=False)
            )
        lines += [f"  calls of {run.name(ranks[0]) if run.lanes() else ranks_text(ranks)}{whose}:", calls]
    lines.append("not in the file:")
    lines += [f"  {gap}" for gap in run.gaps]
    return plain("\n".join(lines)) + "\n"


def first_difference(a: Run, b: Run) -> tuple[int, int, Call | None, Call | None] | None:
    """Of the calls that the two runs do not share, the one that comes first: its rank and its number among the rank's calls,
    with the call of both sides. None: there is none. First is least by the time of its issue, then by number and rank."""
    found: list[tuple[tuple[int, int, int], Call | None, Call | None]] = []
    for rank in range(max(a.world_size, b.world_size)):
        sides = [{call.index: call for call in run.of_rank(rank)} for run in (a, b)]
        begins = [min(side, default=0) for side in sides]
        # A call that one of them has lost is no difference.
        for index in range(max(begins) if all(sides) else 0, max((i for side in sides for i in side), default=-1) + 1):
            one, other = sides[0].get(index), sides[1].get(index)
            if one is not None and other is not None and one.same() == other.same():
                continue
            issued = min(call.issued for call in (one, other) if call is not None) if one or other else 0
            found.append(((issued, index, rank), one, other))
            break
    if not found:
        return None
    (_, index, rank), one, other = min(found, key=lambda difference: difference[0])
    return rank, index, one, other


def first_store_difference(a: Run, b: Run) -> tuple[int, int, StoreOperation | None, StoreOperation | None] | None:
    """As first_difference(), of operations on the store. None: there is none, or one file has no such operations."""
    if not a.store or not b.store:
        return None
    found: list[tuple[tuple[int, int, int], StoreOperation | None, StoreOperation | None]] = []
    for rank in range(max(a.world_size, b.world_size)):
        sides = [{op.index: op for op in run.store_of(rank)} for run in (a, b)]
        begins = max(min(side, default=0) for side in sides) if all(sides) else 0
        for index in range(begins, max((i for side in sides for i in side), default=-1) + 1):
            one, other = sides[0].get(index), sides[1].get(index)
            if one is None and other is None:  # gone
                continue
            if one is None or other is None or one.same() != other.same():
                began = min(op.step if op.step >= 0 else op.issued for op in (one, other) if op is not None)
                found.append(((began, index, rank), one, other))
                break
    if not found:
        return None
    (_, index, rank), one, other = min(found, key=lambda difference: difference[0])
    return rank, index, one, other


def store_leads(difference: tuple[Any, ...] | None, stored: tuple[Any, ...] | None) -> bool:
    """Whether the first difference in the store came before that of the calls: of what both functions above found."""
    if stored is None or difference is None:
        return stored is not None
    sides = [[one for one in found[2:] if one is not None] for found in (difference, stored)]
    stepped = all(one.step >= 0 for side in sides for one in side)
    call, operation = (min((one.step if stepped else one.issued for one in side), default=-1) for side in sides)
    return bool(operation < call)


def lanes_text(run: Run) -> str:
    """The number of ranks; of fake ones, their lanes."""
    return ", ".join(run.lanes()) or str(run.world_size)


def endings_text(run: Run) -> str:
    """The ends of ranks: "returned: ranks 0-1; failed: rank 2"."""
    return "; ".join(f"{how}: {ranks_text(ranks)}" for how, ranks in run.endings().items())


def diff(a: Run, b: Run) -> tuple[str, bool]:
    """The text, and whether the runs are alike."""
    lines = []
    for what, values in (
        ("lanes" if a.lanes() or b.lanes() else "ranks", (lanes_text(a), lanes_text(b))),
        ("schedule", (a.run["schedule"], b.run["schedule"])),
        ("engine", (a.run["engine"], b.run["engine"])),
        ("end", (a.headline(), b.headline())),
        ("ranks ended", ("", "") if a.lanes() or b.lanes() else (endings_text(a), endings_text(b))),
    ):
        if values[0] != values[1]:
            lines += [f"{what}:", f"  a: {values[0]}", f"  b: {values[1]}"]
    difference, stored = first_difference(a, b), first_store_difference(a, b)
    calls, operations = [], []
    if difference is None:
        calls.append("calls: equal, as far as both files have them")
    else:
        rank, index, one, other = difference
        calls.append(f"calls: the first difference is the {ordinal(index + 1)} call of {(a if rank < a.world_size else b).name(rank)}")
        for name, run, call in (("a", a, one), ("b", b, other)):
            none = "not in the file" if rank in run.lost() else "no such call"
            calls.append(f"  {name}: {call_text(call, run.timed(), waits_in(run, call)) if call else none}")
        in_both = {call.index for call in b.of_rank(rank) if call.index < index}
        before = [call for call in a.of_rank(rank) if call.index in in_both][-2:]
        calls += [f"  both before: {call_text(call, a.timed())}" for call in before]
    if stored is not None:
        rank, index, *both = stored
        operations.append(f"store: the first difference is the {ordinal(index + 1)} operation of rank {rank}")
        for name, run, op in zip("ab", (a, b), both, strict=True):
            operations.append(f"  {name}: {operation_text(op, run.timed()) if op else 'no such operation'}")
    lines += operations + calls if difference is not None and store_leads(difference, stored) else calls + operations
    alike = difference is None and stored is None and a.states == b.states and a.headline() == b.headline()
    return plain("\n".join(lines)) + "\n", alike
