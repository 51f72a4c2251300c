"""Ranks without a test class."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import inspect
import os
import pathlib
import pickle
import re
import traceback
import unittest
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from rankloom import _rerun
from rankloom.torch import _ext, _ranks


class RankFailedError(RuntimeError):
    """A rank failed. __cause__ is what it raised, if that was an exception of Python."""


@dataclasses.dataclass
class Report:
    """What a run left behind."""

    ok: bool
    text: str  # the first failure as the headline, the other ranks folded under it, and how to run it again
    outcomes: list[tuple[str, str]]  # by rank: returned, failed or stopped (another failed), and what it raised
    first_failed: int  # -1: none
    cause: str  # why the world was aborted; empty if it was not
    schedule: str  # "seeded:7"
    steps: int  # scheduling points passed
    notes: list[str]
    rerun: str  # the command that repeats this run; empty in the free gear
    trace: bytes  # save_trace() puts it into a file for RANKLOOM_REPLAY; empty in the free gear
    flight: list[bytes] = dataclasses.field(repr=False)  # by rank: flight_records(), pickled
    results: list[Any] = dataclasses.field(default_factory=list)  # by rank: what the program returned
    exceptions: list[BaseException | None] = dataclasses.field(default_factory=list)  # by rank

    def flight_records(self, rank: int) -> dict[str, Any]:
        """The last calls of a rank ("entries") and its groups, in the format of PyTorch's flight recorder."""
        return pickle.loads(self.flight[rank])  # type: ignore[no-any-return]

    def dump_flight_records(self, folder: str | os.PathLike[str]) -> None:
        """Writes them where `python -m torch.distributed.flight_recorder.fr_trace FOLDER` reads them: fr_0, fr_1, ...

        Makes the folder where there is none.
        """
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        for rank, records in enumerate(self.flight):
            (pathlib.Path(folder) / f"fr_{rank}").write_bytes(records)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace to a file that RANKLOOM_REPLAY names to repeat this run, step by step. Makes its folder."""
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(path).write_bytes(self.trace)

    def raise_if_failed(self) -> None:
        if not self.ok:
            first = self.exceptions[self.first_failed] if self.exceptions and self.first_failed >= 0 else None
            raise RankFailedError(self.text) from first


def report_of(found: dict[str, Any], **more: Any) -> Report:
    """As the extension gives it; but the command that repeats a run of one test is that test's."""
    rerun = str(found["rerun"])
    if _rerun.command is not None and rerun:
        variables = re.match(r"(?:RANKLOOM_\w+=(?:[^\s']|'[^']*')*\s+)*", rerun)
        assert variables is not None
        found["rerun"] = variables[0] + _rerun.command
        found["text"] = found["text"].replace(rerun, found["rerun"])
    return Report(**found, **more)


def last_report() -> Report | None:
    """Of the world whose last rank left last."""
    found = _ext.last_report()
    return report_of(found) if found is not None else None


def raised(error: BaseException, text: str) -> str:
    """The traceback, without what `text` says already."""
    lines = traceback.format_exception(error)
    if str(error) in text:
        own = traceback.format_exception_only(error)
        lines[-len(own) :] = [own[0].split("\n")[0]]
    return "".join(lines).rstrip("\n") + "\n"


def _argument_count(fn: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return 0
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def run(
    fn: Callable[..., Any],
    ranks: int = 4,
    *,
    seed: int | None = None,
    schedule: str | None = None,
    backend: str | None = "rankloom",
    timeout: float | None = None,
    poison: bool | None = None,
    late_completion: bool | None = None,
    swap_random: bool = False,
    stall: float | None = None,
) -> Report:
    """Runs `fn()`, or `fn(rank)`, once per rank on fresh threads, and returns when all have ended. fn may be a coroutine function.

    seed, schedule: one rank runs at a time, and the same seed gives the same run ("seeded:7", "fifo", "pct:7:3", ...).
        Without them, and without RANKLOOM_SEED and its like in the environment, all ranks run at once.
    backend: of the default group, which is there when fn begins; None: fn makes its own.
    timeout: in seconds, of waits that name none; virtual ones under a seed.
    poison, late_completion: outputs hold NaN until a call completes, and it may complete late; by default under a seed.
    swap_random: Python's and numpy's random states are the rank's, too. torch's default generator is, under a seed.
    stall: in seconds of real time: a rank that comes to no scheduling point for so long hangs in its own code, and fails. Without
        it such a rank is waited for, unless the run has failed: then it has 3 seconds. A rank that hangs is ended by an exception
        that is raised in its code; if it blocks where Python cannot do that, its thread stays, and the report says so.

    Errors: ValueError for options that do not fit. What a rank raises is in the report.
    """
    job = _ext.Job(ranks, schedule, seed, timeout, poison, late_completion, swap_random)
    store = _ext.make_hash_store()
    results: list[Any] = [None] * ranks
    exceptions: list[BaseException | None] = [None] * ranks
    takes_rank = _argument_count(fn) == 1
    of_group = datetime.timedelta(seconds=timeout) if timeout is not None else None  # a group of c10d's has its own

    def rank_main(rank: int) -> None:
        try:
            with _ranks.rank_scope(job, rank):
                if backend is not None:
                    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=of_group)
                try:
                    result = fn(rank) if takes_rank else fn()
                    results[rank] = asyncio.run(result) if inspect.iscoroutine(result) else result
                except unittest.SkipTest as skip:
                    job.skip(str(skip))
                    raise
                except BaseException as error:
                    job.fail(rank, f"{type(error).__name__}: {error}")
                    raise
                finally:
                    if dist.is_initialized():
                        dist.destroy_process_group()
        except BaseException as error:
            exceptions[rank] = error.with_traceback(_ranks.callers_traceback(error))

    _ranks.worlds.enter()
    try:
        threads = [_ranks.RankThread(f"rank {rank}", rank_main, rank) for rank in range(ranks)]
        _ranks.start_threads(job, threads)
        notes = _ranks.join_threads(job, threads, stall=stall)
    finally:
        _ranks.worlds.leave()
    report = report_of(job.report(), results=results, exceptions=exceptions)
    skipped = next((e for e in exceptions if isinstance(e, unittest.SkipTest)), None)
    if skipped is not None:
        raise skipped
    report.notes += notes
    for note in notes:
        report.text += f"\nnote: {note}"
    first = exceptions[report.first_failed] if report.first_failed >= 0 else None
    if first is not None:
        report.text += "\n" + raised(first, report.text)
    return report
