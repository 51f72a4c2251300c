"""Reads trace files, *.rltrace: Trace::serialize() in include/rankloom/schedule.h has the format."""

from __future__ import annotations

from dataclasses import dataclass

from rankloom_command.run_file import RunFileError

MAGIC = b"RLTRACE1"
KINDS = ["next task", "any source", "completion", "fault", "rooted"]
SHOWN = 20


@dataclass
class Trace:
    """The choices of a run: of each its kind, the pending step's name and number, the rank, how many could be chosen, which was."""

    schedule: str
    names: list[str]
    steps: list[tuple[int, int, int, int, int, int]]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise IndexError

    def text(self) -> str:
        size = self.number()
        self.at += size
        if self.at > len(self.data):
            raise IndexError
        return self.data[self.at - size : self.at].decode("utf-8", "backslashreplace")


def _fnv1a(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def parse(data: bytes, path: str) -> Trace:
    """Errors: RunFileError that names the file and what is wrong."""
    if data[: len(MAGIC)] != MAGIC:
        raise RunFileError(f'file "{path}": no trace of version 1: it does not begin with RLTRACE1')
    if len(data) < len(MAGIC) + 8 or _fnv1a(data[:-8]) != int.from_bytes(data[-8:], "little"):
        raise RunFileError(f'file "{path}": its checksum does not fit: it is cut short or was damaged')
    reader = _Reader(data[len(MAGIC) : -8])
    try:
        schedule = reader.text()
        names = [reader.text() for _ in range(reader.number())]
        steps = []
        for _ in range(reader.number()):
            kind, what, rank, size, value, seq = (reader.number() for _ in range(6))
            steps.append((kind, what, rank - 2, size, value, seq - 2))
            if what >= len(names):
                raise IndexError
    except IndexError:
        raise RunFileError(f'file "{path}": its parts do not fit together') from None
    return Trace(schedule, names, steps)


def read(path: str) -> Trace:
    """Errors: RunFileError, also for a file that cannot be read."""
    try:
        with open(path, "rb") as file:
            head = file.read(len(MAGIC))
            return parse(head + (file.read() if head == MAGIC else b""), path)  # of no other file, which may be endless
    except OSError as error:
        raise RunFileError(f'file "{path}": {error.strerror}') from None


def _step_text(trace: Trace, number: int) -> str:
    kind, what, rank, size, value, seq = trace.steps[number]
    seq_text = f" seq {seq}" if seq >= 0 else ""
    at = f"rank {rank} at {trace.names[what]}{seq_text}" if rank >= 0 else f"at the {trace.names[what]}{seq_text}"
    if kind == 0:
        return f"  {number}: {at}: goes on with task {value} ({size} could)"
    name = KINDS[kind] if kind < len(KINDS) else f"kind {kind}"
    return f"  {number}: {at}: {name}, takes alternative {value} of {size}"


def show(trace: Trace, everything: bool) -> str:
    """The choices, a line each; the middle of a long trace is left out."""
    steps = len(trace.steps)
    lines = [f"schedule {trace.schedule}, {steps} choices"]
    numbers = range(steps)
    if not everything and steps > 2 * SHOWN:
        lines += [_step_text(trace, number) for number in numbers[:SHOWN]]
        lines.append(f"  ... {steps - 2 * SHOWN} more: --all")
        numbers = numbers[-SHOWN:]
    lines += [_step_text(trace, number) for number in numbers]
    return "\n".join(lines) + "\n"
