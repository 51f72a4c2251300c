"""Ranks without a test class."""

from __future__ import annotations

import dataclasses
import inspect
import os
import pathlib
import pickle
import traceback
import unittest
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

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
        """Writes them where `python -m torch.distributed.flight_recorder.fr_trace FOLDER` reads them: fr_0, fr_1, ..."""
        for rank, records in enumerate(self.flight):
            (pathlib.Path(folder) / f"fr_{rank}").write_bytes(records)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace to a file that RANKLOOM_REPLAY names to repeat this run, step by step."""
        pathlib.Path(path).write_bytes(self.trace)

    def raise_if_failed(self) -> None:
        if not self.ok:
            first = self.exceptions[self.first_failed] if self.exceptions and self.first_failed >= 0 else None
            raise RankFailedError(self.text) from first


def last_report() -> Report | None:
    """Of the world whose last rank left last."""
    found = _ext.last_report()
    return Report(**found) if found is not None else None


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
) -> Report:
    """Runs `fn()`, or `fn(rank)`, once per rank on fresh threads, and returns when all have ended.

    seed, schedule: one rank runs at a time, and the same seed gives the same run ("seeded:7", "fifo", "pct:7:3", ...).
        Without them, and without RANKLOOM_SEED and its like in the environment, all ranks run at once.
    backend: of the default group, which is there when fn begins; None: fn makes its own.
    timeout: in seconds, of waits that name none.
    poison, late_completion: outputs hold NaN until a call completes, and it may complete late; by default under a seed.
    swap_random: Python's and numpy's random states are the rank's, too. torch's default generator is, under a seed.

    Errors: ValueError for options that do not fit. What a rank raises is in the report.
    """
    job = _ext.Job(ranks, schedule, seed, timeout, poison, late_completion, swap_random)
    store = _ext.make_hash_store()
    results: list[Any] = [None] * ranks
    exceptions: list[BaseException | None] = [None] * ranks
    takes_rank = _argument_count(fn) == 1

    def rank_main(rank: int) -> None:
        try:
            with _ranks.rank_scope(job, rank):
                if backend is not None:
                    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)
                try:
                    results[rank] = fn(rank) if takes_rank else fn()
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
            exceptions[rank] = error

    _ranks.worlds.enter()
    try:
        threads = [_ranks.RankThread(f"rank {rank}", rank_main, rank) for rank in range(ranks)]
        _ranks.start_threads(job, threads)
        _ranks.join_threads(job, threads)
    finally:
        _ranks.worlds.leave()
    report = Report(**job.report(), results=results, exceptions=exceptions)
    skipped = next((e for e in exceptions if isinstance(e, unittest.SkipTest)), None)
    if skipped is not None:
        raise skipped
    first = exceptions[report.first_failed] if report.first_failed >= 0 else None
    if first is not None:
        report.text += "\n" + "".join(traceback.format_exception(first))
    return report
