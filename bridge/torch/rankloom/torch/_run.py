"""Ranks without a test class."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import inspect
import numbers
import os
import pathlib
import pickle
import re
import shlex
import sys
import traceback
import unittest
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist

from rankloom import _rerun
from rankloom.torch import _ext, _faults, _ranks, _stores

_Value = TypeVar("_Value")


class RankFailedError(RuntimeError):
    """A rank failed. __cause__ is what it raised, if that was an exception of Python."""

    report: Report  # of the run; set by what raises this


class _Bytes(NamedTuple):
    """In place of the extension's RunFile in a report that was copied."""

    content: bytes

    def bytes(self, rerun: str, notes: list[str]) -> bytes:
        return self.content


@dataclasses.dataclass
class Report:
    """The report of a run."""

    ok: bool
    text: str  # the first failure as the headline, the other ranks folded under it, and how to run it again
    outcomes: list[tuple[str, str]]  # by rank: returned, failed, stopped (another failed) or running (could not be ended), and what it raised
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
    run_file: str = ""  # the line that names the file that the run was written to
    _run: Any = dataclasses.field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        headline = self.text.partition("\n")[0]
        return f"<rankloom Report of {len(self.outcomes)} ranks, {self.schedule}: {headline}>"

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

    def write_run(self, path: str | os.PathLike[str]) -> None:
        """Writes the run to a file, *.rlrun, that the command `rankloom` shows. Makes its folder.

        A run that went well has its calls only if run(keep_run=True) made it.
        """
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(path).write_bytes(self._run.bytes(self.rerun, self.notes))

    def __getstate__(self) -> dict[str, Any]:
        kept = self._run and _Bytes(self._run.bytes(self.rerun, self.notes))
        return {**vars(self), "_run": kept}

    def raise_if_failed(self) -> None:
        if not self.ok:
            first = told_of(self)
            # The traceback of what it came of stands above.
            failed = RankFailedError(self.text if first is None else without_traceback(self.text))
            failed.report = self
            raise failed from first


def _odd_ranks(table: str) -> set[int]:
    """Of a Mismatch, the ranks whose call is not that of most others; none, where there is no such side."""
    odd: set[int] = set()
    sides: list[tuple[int, list[int]]] = []  # of one field: how many ranks, and those that are named

    def close() -> None:
        sides.sort(key=lambda side: side[0])
        if len(sides) > 1 and sides[-1][0] > sides[0][0]:
            odd.update(sides[0][1])
        sides.clear()

    for line in table.splitlines():
        columns = [column.strip() for column in line.split("|")]
        if len(columns) < 4 or columns[0] == "field" or not re.match(r"\d", columns[2]):
            continue
        if columns[0]:
            close()
        ranks = [int(rank) for rank in re.findall(r"\d+", re.sub(r", \.\.\..*|(?<=\d)-\d+", "", columns[2]))]
        many = re.search(r"\((\d+) ranks\)", columns[2])
        between = sum(int(end) - int(begin) for begin, end in re.findall(r"(\d+)-(\d+)", columns[2]))
        sides.append((int(many[1]) if many else len(ranks) + between, ranks))
    close()
    return odd


def told_of(report: Report) -> BaseException | None:
    """The exception of the rank whose doing the failure is, as far as that is known; else of the first rank that failed."""
    if report.first_failed < 0 or not report.exceptions:
        return None
    first = report.exceptions[report.first_failed]
    if isinstance(first, dist.DistError) and _ranks.text_of(first).startswith("Mismatch: "):
        odd = _odd_ranks(_ranks.text_of(first))
        for rank, error in enumerate(report.exceptions):
            if rank in odd and error is not None and _ranks.text_of(error) == _ranks.text_of(first):
                return error
    return first


def without_traceback(text: str) -> str:
    """The text of a report up to the traceback that it ends with, if any."""
    return re.split(r"\n(?:  \+ Exception Group )?Traceback \(most recent call last\):\n", text, maxsplit=1)[0]


def write_failed(report: Report, path: str | os.PathLike[str]) -> None:
    """Writes the run; the report's run_file says where, or why not."""
    path = os.path.abspath(path)
    try:
        report.write_run(path)
        report.run_file = f"run written to {path}: open with `rankloom show {shlex.quote(path)}`"
    except OSError as error:
        report.run_file = f"no run file: {error}"


def rounds(values: Iterable[_Value]) -> Iterator[_Value]:
    """The values. The runs of each round, such as those of one test under one of its seeds, are counted as those of the first one are:
    where the environment names a schedule, there is but one round (RANKLOOM_REPLAY_RUN)."""
    begun = _ext.runs_begun()
    for value in values:
        _ext.set_runs_begun(begun)
        yield value


def keep_failed(report: Report, number: int) -> str:
    """Writes the run where RANKLOOM_REPORT says, if anywhere: what the text has to say of it, in a line of its own."""
    folder = os.environ.get("RANKLOOM_REPORT")
    if report.ok or not folder or not _rerun.writes_runs:
        return ""
    program = _rerun.program or pathlib.Path(sys.argv[0]).stem or "python"
    write_failed(report, pathlib.Path(folder) / (re.sub(r"[^\w.-]+", "_", program) + f".run{number}.rlrun"))
    return f"\n{report.run_file}"


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
    if _ranks.text_of(error) in text:
        own = traceback.format_exception_only(error)
        # Notes stay, and so does the last line of a group of exceptions, which is none of these.
        if lines[-len(own) :] == own:
            lines[-len(own)] = own[0].split("\n")[0] + "\n"
    return "".join(lines).rstrip("\n") + "\n"


def _argument_count(fn: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return 0
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _check_begun(fn: Callable[..., Any], result: Any) -> None:
    """A lambda that calls a generator function has run nothing. Others may give generators of what they have done."""
    if getattr(fn, "__name__", "") != "<lambda>" or not inspect.isgenerator(result) or result.__name__ == "<genexpr>":
        return
    if inspect.getgeneratorstate(result) == inspect.GEN_CREATED:
        raise ValueError(f"the program returns a generator that has not begun: nothing of the body of {result.__qualname__}() has run")


def check_options(
    fn: Callable[..., Any], ranks: int, seed: int | None = None, timeout: float | None = None, stall: float | None = None
) -> None:
    """Errors: ValueError for options that no run can have, and for a function whose body would not run."""
    for name, value, least in (("ranks", ranks, 1), ("seed", seed, 0)):
        if value is not None and (not isinstance(value, numbers.Integral) or not least <= value < 2**64):
            raise ValueError(f"{name} is {value!r}, want a whole number from {least} on")
    for name, seconds in (("timeout", timeout), ("stall", stall)):
        if seconds is not None and not seconds >= 0:
            raise ValueError(f"{name} is {seconds!r}, want seconds, 0 or more")
        if seconds is not None and seconds > datetime.timedelta.max.total_seconds():
            raise ValueError(f"{name} is {seconds!r}, want seconds that have an end")
    if stall == 0:
        raise ValueError("stall is 0, want more seconds, or None for no limit")
    called = (fn, type(fn).__call__ if callable(fn) else None)
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in called):
        raise ValueError(f"{getattr(fn, '__qualname__', fn)} is a generator function: a call of it runs nothing of its body")


def run(
    fn: Callable[..., Any],
    ranks: int = 4,
    *,
    seed: int | None = None,
    schedule: str | None = None,
    parallel: bool = False,
    backend: str | None = "rankloom",
    timeout: float | None = None,
    poison: bool | None = None,
    late_completion: bool | None = None,
    swap_random: bool = False,
    stall: float | None = None,
    faults: _faults.FaultPlan | _faults.Fault | str | Iterable[_faults.Fault] | None = None,
    keep_run: bool = False,
) -> Report:
    """Runs `fn()`, or `fn(rank)`, once per rank on fresh threads, and returns when all have ended. fn may be a coroutine function.

    One rank runs at a time, so torch's default generator is each rank's own: in a fixed order ("fifo"), unless these say
    otherwise, or RANKLOOM_SEED and its like in the environment: for the N-th run of the program alone under RANKLOOM_REPLAY_RUN=N.
    seed, schedule: the same seed gives the same run ("seeded:7", "pct:7:3", ...).
    parallel: all ranks run at once, and share the generator; the same as schedule="free".
    backend: of the default group, which is there when fn begins; None: fn makes its own.
    timeout: in seconds, of waits that name none; virtual ones under a seed.
    poison, late_completion: outputs hold NaN until a call completes, and it may complete late; by default under a seed.
    swap_random: Python's and numpy's random states are the rank's, too, unless all ranks run at once.
    stall: in seconds of real time: a rank that comes to no scheduling point for so long hangs in its own code, and fails. Without
        it such a rank is waited for, unless the run has failed: then it has 3 seconds. A rank that hangs is ended by an exception
        that is raised in its code; if it blocks where Python cannot do that, its thread stays, and the report says so.
    faults: what goes wrong by plan, in calls of groups and of the default group's store.
    keep_run: write_run() of a run that goes well has its calls, too.

    RANKLOOM_REPORT=FOLDER in the environment: a run that fails is written to a file there, which the report's text names.

    Errors: ValueError for options that do not fit. An exception of a rank is in the report.
    """
    check_options(fn, ranks, seed, timeout, stall)
    if schedule is not None and not isinstance(schedule, str):
        raise ValueError(f"schedule is {schedule!r}, want a text, such as 'seeded:7'")
    for name, value in (("poison", poison), ("late_completion", late_completion)):
        if value not in (None, False, True):
            raise ValueError(f"{name} is {value!r}, want True, False, or None for what the schedule has")
    if parallel:
        if seed is not None or schedule not in (None, "free"):
            asked = f"seed={seed}" if seed is not None else f"schedule={schedule!r}"
            raise ValueError(f"parallel=True and {asked}: want one of them, since a schedule runs one rank at a time")
        schedule = "free"
    job = _ext.Job(ranks, schedule, seed, timeout, poison, late_completion, swap_random, _faults.text_of(faults), keep_run)
    threads = Ranks(fn, backend=backend, timeout=timeout, stall=stall)
    with _ranks.running():
        notes = threads.run(job)
    exceptions = threads.exceptions
    report = report_of(job.report(), results=threads.results, exceptions=exceptions)
    skipped = skip_of(job, report.first_failed, exceptions)
    if skipped is not None:
        raise skipped
    report.notes += notes
    for note in notes:
        report.text += f"\nnote: {note}"
    report.text += keep_failed(report, job.number)
    first = told_of(report)
    # Where a rank was ended that hung, the text says already.
    if first is not None and not isinstance(first, _ranks.RankEndedError):
        report.text += "\n" + raised(first, report.text)
    return report


def skip_of(job: _ext.Job, first_failed: int, exceptions: list[BaseException | None]) -> unittest.SkipTest | None:
    """The skip that ended a run. One that came after another rank's failure hides nothing, and is hidden by none behind it."""
    first = exceptions[first_failed] if first_failed >= 0 else None
    ended_by_skip = first is None or job.abort_cause.startswith("a rank skipped: ")
    among = exceptions if ended_by_skip else [first]
    return next((error for error in among if isinstance(error, unittest.SkipTest)), None)


class Ranks:
    """A program on the ranks of one job after the other, between enter() and leave() of _ranks.worlds."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        backend: str | None,
        timeout: float | None,
        stall: float | None,
        make_thread: Callable[..., _ranks.RankThread] = _ranks.RankThread,
    ) -> None:
        self._fn = fn
        self._make_thread = make_thread
        self._takes_rank = _argument_count(fn) == 1
        self._backend = backend
        # A group of c10d's has a timeout of its own.
        self._of_group = datetime.timedelta(seconds=timeout) if timeout is not None else None
        self._stall = stall
        self.on_result: Callable[[Any], None] | None = None  # called on each rank that returns
        self.runs = 0
        self.hung = False  # a rank of the last run had to be ended
        self.results: list[Any] = []  # of the last run, by rank
        self.exceptions: list[BaseException | None] = []

    def run(self, job: _ext.Job) -> list[str]:
        """Returns when all have ended: what it had to do for that."""
        self.runs += 1
        self.results = [None] * job.world_size
        self.exceptions = [None] * job.world_size
        store = job.store() if self._backend is not None else None
        threads = [self._make_thread(f"rank {rank}", self._main, job, rank, store) for rank in range(job.world_size)]
        try:
            with _ranks.ending(job, threads):
                _ranks.start_threads(threads)
                return _ranks.join_threads(job, threads, stall=self._stall)
        finally:
            self.hung = any(thread.hung for thread in threads)
            _stores.forget(job.id)

    def forget(self) -> None:
        """The report of the last run."""
        self.results, self.exceptions = [], []

    def _main(self, job: _ext.Job, rank: int, store: Any) -> None:
        try:
            with _ranks.rank_scope(job, rank):
                if self._backend is not None:
                    dist.init_process_group(
                        self._backend, store=store, rank=rank, world_size=job.world_size, timeout=self._of_group
                    )
                try:
                    result = self._fn(rank) if self._takes_rank else self._fn()
                    self.results[rank] = result = asyncio.run(result) if inspect.iscoroutine(result) else result
                    _check_begun(self._fn, result)
                    if self.on_result is not None:
                        self.on_result(result)
                except unittest.SkipTest as skip:
                    job.skip(str(skip))
                    raise
                except BaseException as error:
                    job.fail(rank, _ranks.failure_text(error))
                    raise
                finally:
                    if dist.is_initialized():
                        dist.destroy_process_group()
        except BaseException as error:
            self.exceptions[rank] = error.with_traceback(_ranks.callers_traceback(error))
