"""Runs as text: `rankloom show` and `rankloom diff`."""

from __future__ import annotations

import re

from rankloom_command.run_file import STATES, Call, Run

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


def call_text(call: Call) -> str:
    """One line for a call."""
    text = call.label()
    if call.shapes():
        text += f", {call.shapes()}"
    took = "" if call.ended < 0 else f" to {time_text(call.ended)}"
    return f"{text} ({call.state}, {time_text(call.issued)}{took}) {call.site()}"


def show(run: Run, rank: int | None = None, last: int = 3) -> str:
    """What there is to know: the report, and the last calls of one rank or of those that did not return."""
    lines = [run.headline() if run.run["ok"] and run.run.get("failures") else run.run["text"]]
    lines += run.run.get("failures", [])
    if "lanes" in run.run:
        lines.append(f"{run.world_size} lanes, each a group of a rank: {', '.join(run.run['lanes'][:MOST_LINES])}")
    else:
        lines.append(f"{run.world_size} ranks, engine {run.run['engine']}, schedule {run.run['schedule']}, {run.run['steps']} steps")
    if run.run["rerun"] and run.run["rerun"] not in lines[0]:
        lines.append(f"run it again: {run.run['rerun']}")
    if run.faults:
        lines += ["faults that struck:", *(f"  {fault}" for fault in run.faults)]
    if run.story:
        lines += [f"found by {run.strategy}:", run.story.rstrip("\n")]
    ended: dict[str, list[int]] = {}
    for number, state in enumerate(run.states):
        ended.setdefault(state, []).append(number)
    if "lanes" not in run.run:
        lines.append("; ".join(f"{ranks_text(ranks)} {STATES[state]}" for state, ranks in ended.items()))
    shown = [rank] if rank is not None else [number for number, state in enumerate(run.states) if state != "r"]
    alike: dict[str, list[int]] = {}
    for number in shown:
        calls = run.of_rank(number)
        made = run.calls[number]["made"] if number in run.calls else 0
        part = calls if rank is not None else calls[-last:]
        gone = made - len(part)
        text = "\n".join([*([f"    ... {gone} before"] if gone > 0 else []), *(f"    {call_text(call)}" for call in part)])
        alike.setdefault(text or "    none in the file", []).append(number)
    for i, (text, ranks) in enumerate(alike.items()):
        if i == MOST_LINES:
            lines.append(f"  ... {len(alike) - i} more: --rank N shows one")
            break
        lines += [f"  calls of {ranks_text(ranks)}:", text]
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
        # What one of them has lost is no difference.
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


def diff(a: Run, b: Run) -> tuple[str, bool]:
    """The text, and whether the runs are alike."""
    lines = []
    for what, values in (
        ("ranks", (a.world_size, b.world_size)),
        ("schedule", (a.run["schedule"], b.run["schedule"])),
        ("engine", (a.run["engine"], b.run["engine"])),
        ("end", (a.headline(), b.headline())),
    ):
        if values[0] != values[1]:
            lines += [f"{what}:", f"  a: {values[0]}", f"  b: {values[1]}"]
    difference = first_difference(a, b)
    if difference is None:
        lines.append("calls: equal, as far as both files have them")
    else:
        rank, index, one, other = difference
        lines.append(f"calls: the first difference is call {index} of rank {rank}")
        for name, run, call in (("a", a, one), ("b", b, other)):
            none = "not in the file" if rank in run.lost() else "no such call"
            lines.append(f"  {name}: {call_text(call) if call else none}")
        before = [call for call in a.of_rank(rank) if call.index < index][-2:]
        lines += [f"  both before: {call_text(call)}" for call in before]
    alike = difference is None and a.states == b.states and a.headline() == b.headline()
    return plain("\n".join(lines)) + "\n", alike
