"""Lines of the program around the calls of a run, as the files are now."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rankloom_command.run_file import Run

AROUND = 5  # lines before and behind
# A file names what it likes, and pages are passed on: sources only, and only those below the folders.
SUFFIXES = frozenset({".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hh", ".hpp", ".inl", ".py", ".pyx"})
MOST_PLACES = 1000
MOST_NAMED = 20
MOST_CAUSE = 20_000  # characters
LAST_CALLS = re.compile(r"\n *last calls? of rank")
NAMED = re.compile(r"([\w.+-]{1,100}):(\d{1,7})\b")
MOST_BYTES = 4_000_000  # of a file
MOST_COLUMNS = 300


def find(name: str, folders: Sequence[pathlib.Path]) -> pathlib.Path | None:
    """The file that a compiler or interpreter called `name`, below one of the folders: the longest end of its path that is there."""
    parts = [part for part in pathlib.PurePosixPath(name).parts if part not in ("/", "..", ".")]
    if "\0" in name or not parts or pathlib.PurePosixPath(name).suffix not in SUFFIXES:
        return None
    for begin in range(len(parts)):
        for folder in folders:
            path = folder.joinpath(*parts[begin:])
            try:
                found = path.resolve()
                if found.is_relative_to(folder) and found.suffix in SUFFIXES and found.is_file() and found.stat().st_size <= MOST_BYTES:
                    return found
            except (OSError, RuntimeError):  # a name too long, a loop of links
                continue
    return None


def around(places: Iterable[tuple[str, int]], folders: Sequence[pathlib.Path]) -> dict[str, dict[str, object]]:
    """By "FILE:LINE": the path that was read, the number of the first line shown, and the lines. Without those not found."""
    folders = [folder.resolve() for folder in folders]
    read: dict[str, tuple[str, list[str]] | None] = {}
    shown: dict[str, dict[str, object]] = {}
    for name, line in places:
        if len(shown) == MOST_PLACES:
            break
        if name not in read:
            path = find(name, folders)
            try:
                text = path.read_text(encoding="utf-8", errors="replace") if path is not None else None
            except OSError:
                text = None
            read[name] = None if text is None else (str(path), text.splitlines())
        found = read[name]
        if found is None or not 1 <= line <= len(found[1]):
            continue
        first = max(1, line - AROUND)
        lines = [text[:MOST_COLUMNS] for text in found[1][first - 1 : line + AROUND]]
        shown[f"{name}:{line}"] = {"path": found[0], "first": first, "lines": lines}
    return shown


def _operations(run: Run) -> Iterator[dict[str, Any]]:
    return (op for line in run.store.values() for op in line["ops"])


def named(run: Run) -> list[tuple[str, int]]:
    """The lines that the headline and the cause name, but for its last calls: those of files in which the run has calls or waits. And
    that of the operation after which a rank failed."""
    files = {str(where["file"]).rsplit("/", 1)[-1]: str(where["file"]) for where in (*run.kinds, *run.waits, *_operations(run))}
    cause = LAST_CALLS.split(run.run["cause"][:MOST_CAUSE] or run.run["text"][:MOST_CAUSE], maxsplit=1)[0]
    found = {(files[name], int(line)): None for name, line in NAMED.findall(f"{run.headline()}\n{cause}") if name in files}
    if (last := run.last_operation()) is not None:
        found[last.file, last.line] = None
    return list(found)[:MOST_NAMED]


def places(runs: Iterable[Run]) -> list[tuple[str, int]]:
    """Of all calls, waits and operations on the store, each once."""
    runs = list(runs)
    found = {place: None for run in runs for place in named(run)}
    found |= {(str(where["file"]), int(where["line"])): None for run in runs for where in (*run.waits, *run.kinds, *_operations(run))}
    return list(found)
