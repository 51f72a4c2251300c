"""One program under many schedules: the search of the core, whose ranks are threads of Python."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import threading
import unittest
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rankloom.torch import _bits, _ext, _faults, _ranks, _shared
from rankloom.torch._run import (
    RankFailedError,
    Ranks,
    Report,
    check_options,
    keep_failed,
    raised,
    report_of,
    skip_of,
    told_of,
    without_traceback,
)

_WHOLE = "a whole number from 0 on"
_KINDS = {
    "runs": _WHOLE, "first_seed": _WHOLE, "min_ranks": _WHOLE, "shrink_runs": _WHOLE, "max_steps": _WHOLE,
    "seconds": "seconds, or None for no limit", "strategies": "a list of names",
}  # fmt: skip
_FEW = 20  # objects that ranks share
STRATEGIES = ("exhaustive", "pct", "starve", "late_completion", "random")


@dataclasses.dataclass
class Share:
    """The runs of a strategy."""

    strategy: str
    runs: int
    schedules: int  # exhaustive: of the runs, those that did not repeat others
    open: int  # exhaustive: choices seen and not tried
    finished: bool  # exhaustive: all were
    unseen: list[str]  # exhaustive: what the program did that no search over schedules can vouch for


@dataclasses.dataclass(repr=False)
class Failure(Report):
    """The report of the smallest run that fails, and how it was found."""

    headline: str = ""
    strategy: str = ""  # that found it
    run: int = 0  # in which run, from 1, of those of the strategy
    found: str = ""  # under which schedule
    ranks: int = 0  # of the smallest run
    faults: str = ""  # that it has
    failures: list[str] = dataclasses.field(default_factory=list)  # what no rank raised: results that differ, leaks
    story: str = ""  # what each rank did, only the steps that matter
    found_switches: int = 0  # from the default order, before shrinking
    switches: int = 0
    shrink_runs: int = 0


@dataclasses.dataclass
class Exploration:
    """The result of explore()."""

    runs: int  # that were made, those of shrinking not counted
    failure: Failure | None  # of the smallest run that fails, or whose results differ; None: no failure
    text: str  # all of it, for people
    summary: str  # in a line: "verified: all 12 schedules that can differ, in 13 runs", or why not
    verified: bool  # all schedules that can differ were run, and the program did nothing that such a search does not see
    seconds: float
    shares: list[Share]

    @property
    def ok(self) -> bool:
        return self.failure is None

    def raise_if_failed(self) -> None:
        if self.failure is None:
            return
        first = told_of(self.failure)
        failed = RankFailedError(self.text if first is None else without_traceback(self.text))
        failed.report = self.failure
        raise failed from first


class _HungError(Exception):
    """Out of a search: a rank hung in its own code, which no further run would survive."""


class _Explored:
    """The ranks of the search's runs, as the extension runs them."""

    def __init__(
        self, ranks: Ranks, compare: bool, roots: Iterable[Any], swap_random: bool, on_kept: Callable[[], None] | None
    ) -> None:
        self._ranks = ranks
        self._on_kept = on_kept
        self.results: list[Any] = []  # of the run that the report is of
        self.exceptions: list[BaseException | None] = []
        self._compare = compare
        self._shared = _shared.Variables(roots, swap_random=swap_random)
        self._changed: list[str] = []  # variables of Python's
        self._size = 0  # of the first run
        self._runs = 0
        self.hung: Report | None = None

    def run(self, job: _ext.Job) -> None:
        ranks = self._ranks
        ranks.on_result = self._returned if self._compare else None
        notes = ranks.run(job)
        skipped = None
        if any(isinstance(error, unittest.SkipTest) for error in ranks.exceptions):
            skipped = skip_of(job, report_of(job.report()).first_failed, ranks.exceptions)
        # A run of fewer ranks is one to shrink a failure: a skip there says that these are too few.
        self._size = self._size or job.world_size
        if skipped is not None and job.world_size == self._size:
            raise skipped
        if ranks.hung:
            self.hung = report_of(job.report(), results=ranks.results, exceptions=ranks.exceptions)
            self.hung.notes += notes
            self.hung.text += "".join(f"\nnote: {note}" for note in notes)
            raise _HungError
        self._runs += 1
        # The first two runs are in default order. Changes by others alone are seen at the end, or sooner where a look costs little.
        if self._runs <= 2 or (not self._changed and self._shared.objects <= _FEW):
            self._changed = self._shared.changed()

    def unseen(self) -> list[str]:
        """After the last run: what no search over schedules can vouch for."""
        if not self._changed:
            self._changed = self._shared.changed()
        return [f"variables of Python that ranks share and change: {', '.join(self._changed)}"] if self._changed else []

    def end(self, kept: bool) -> None:
        if kept:  # others may be made after it, to compare with
            self.results, self.exceptions = self._ranks.results, self._ranks.exceptions
            if self._on_kept is not None:
                self._on_kept()
        else:
            self._ranks.forget()
        gc.collect(0)  # all that the run made is young: nothing was collected since

    @staticmethod
    def _returned(result: Any) -> None:
        _note("return value", result, _not_compared)


def explore(
    fn: Callable[..., Any],
    ranks: int = 4,
    *,
    runs: int = 1000,
    seconds: float | None = 60.0,
    strategies: Sequence[str] = STRATEGIES,
    first_seed: int = 1,
    compare: bool = True,
    faults: _faults.FaultPlan | _faults.Fault | str | Iterable[_faults.Fault] | None = None,
    vary_faults: bool = True,
    min_ranks: int = 0,
    shrink_runs: int = 2000,
    leaks: bool = True,
    groups: bool = True,
    store_keys: bool = True,
    store_values: bool = False,
    max_steps: int = 200_000,
    backend: str | None = "rankloom",
    timeout: float | None = None,
    swap_random: bool = False,
    stall: float | None = None,
    progress: Callable[[str, int, float], None] | None = None,
    _roots: Iterable[Any] | None = None,
    _on_kept: Callable[[], None] | None = None,
) -> Exploration:
    """Runs `fn` as run() does, again and again under different schedules, until one fails, the budget is spent, or all schedules
    that can differ were run. A failure is shrunk: fewer ranks, fewer faults, fewer switches from the default order.

    The first two runs are in default order: a rank runs until it waits, then the next. They must be alike, and all others are
    compared with them.
    strategies: "exhaustive" (all schedules, one of each set that cannot differ), which has half of the budget; then in turns, with
        seeds from first_seed on, "pct" or "pct(DEPTH)" (few changes of priority), "starve" (one rank is held back),
        "late_completion" (calls complete as late as their waits), "random" (any choice).
    runs, seconds: when to stop, shrinking not counted.
    compare: what a rank returns must be the same under all schedules, bit by bit, where it is made of tensors, arrays, numbers,
        strings, dataclasses, modules, and lists, tuples, sets and dicts of them; of other objects the type, and the search is not
        "verified". Values that are given to observe() are compared in any case.
    faults: what goes wrong by plan. vary_faults: those that are drawn from a seed are drawn anew in each run.
    min_ranks: shrinking may use as few; 0: the program is for `ranks` only.
    leaks, groups, store_keys, store_values: these checks of each run: no work was dropped and no message is unmatched; the order
        in which groups are made and called, the keys in the default group's store, and their values are the same in all runs.
    max_steps: a run with more scheduling points counts as endless.
    stall: as of run(). A rank that hangs ends the search, with that run as the failure.
    progress: told of the strategy, the runs and the seconds about once a second; None: a line on stderr that is written anew, if that is a
        terminal.

    Under RANKLOOM_SEED, RANKLOOM_SCHEDULE or RANKLOOM_REPLAY in the environment that one run is made, after those in default
    order; RANKLOOM_RANKS then says how many ranks, and RANKLOOM_REPLAY_RUN of which of the program's runs and searches this is said.

    Errors: ValueError for options that do not fit; RuntimeError on a rank's thread; what a rank raises is in the report.
    """
    current = _ext.current()
    if current is not None and isinstance(threading.current_thread(), _ranks.RankThread):
        raise RuntimeError(f"explore: this thread is rank {current[1]} of a run, want one that is no rank: its calls are that run's")
    check_options(fn, ranks, first_seed, timeout, stall)
    if not strategies:
        raise ValueError("explore: strategies is empty, want at least one")
    asked = _ext.Asked()
    for name, value in (
        ("ranks", ranks), ("timeout", timeout), ("faults", _faults.text_of(faults)), ("strategies", list(strategies)),
        ("runs", runs), ("seconds", seconds), ("first_seed", first_seed), ("min_ranks", min_ranks), ("shrink_runs", shrink_runs),
        ("max_steps", max_steps), ("vary_faults", vary_faults), ("swap_random", swap_random), ("leaks", leaks), ("groups", groups),
        ("store_keys", store_keys), ("store_values", store_values),
    ):  # fmt: skip
        try:
            setattr(asked, name, value)
        except (TypeError, OverflowError):
            raise ValueError(f"explore: {name} is {value!r}, want {_KINDS.get(name, 'True or False')}") from None
    asked.number = number = _ext.next_run()
    with _ranks.kept_threads() as make_thread:
        threads = Ranks(fn, backend=backend, timeout=timeout, stall=stall, make_thread=make_thread)
        explored = _Explored(threads, compare, [fn] if _roots is None else _roots, swap_random, _on_kept)
        try:
            with _ranks.running(), _no_garbage():
                found = _ext.explore(asked, explored, progress)
        except _HungError:
            assert explored.hung is not None
            if _on_kept is not None:
                _on_kept()
            return _hung(explored.hung, threads.runs, number)
        finally:
            _texts.clear()
    text: str = found["text"]
    failure = None
    told = found["failure"]
    if told is not None:
        report = report_of(told.pop("report"), results=explored.results, exceptions=explored.exceptions)
        text = text.replace(told.pop("rerun"), report.rerun)
        del told["schedule"]
        failure = Failure(**{**vars(report), **told, "ok": False})
        text += keep_failed(failure, number)
        first = told_of(failure)
        if first is not None:
            text += "\n" + raised(first, text).rstrip("\n")
        failure.text = text
    shares = [Share(**share) for share in found["shares"]]
    return Exploration(found["runs"], failure, text, found["summary"], found["verified"], found["seconds"], shares)


def _hung(report: Report, runs: int, number: int) -> Exploration:
    headline = report.text.split("\n")[0]
    failure = Failure(**vars(report), headline=headline, found=report.schedule, ranks=len(report.outcomes))
    failure.text = f"explored {runs} {'run' if runs == 1 else 'runs'}: a rank hung in its own code\n{report.text}"
    failure.text += keep_failed(failure, number)
    return Exploration(runs, failure, failure.text, headline, False, 0.0, [])


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """Objects that refer to each other go between runs, not within one, where what they hold would be let go at any step."""
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def observe(name: str, value: Any) -> None:
    """Notes a result of the calling rank under a name. explore() compares it, bit by bit, with that of the first schedule;
    elsewhere it does nothing.

    value: tensors, arrays, numbers, strings, dataclasses, modules' parameters, and lists, tuples, sets and dicts of them.

    Errors: TypeError for other values, RuntimeError on a thread that is no rank.
    """
    try:
        _note(name, value, _refuse)
    except _bits.UnknownValueError as unknown:
        raise TypeError(str(unknown)) from None


_texts: dict[bytes, str] = {}  # by digests of values that a search has noted: most runs note the same ones


def _note(name: str, value: Any, unknown: Callable[[type], None]) -> None:
    bits = _bits.bits_of(value, unknown, _ext.tensor_bytes)
    digest = hashlib.blake2b(bits).digest()
    text = _texts.get(digest)
    if text is None:
        if len(_texts) >= 10_000:
            _texts.clear()
        text = _texts[digest] = _bits.text_of(value)
    _ext.observe(name, text, bits)


def _refuse(kind: type) -> None:
    raise _bits.UnknownValueError(f"observe: a value is {kind.__module__}.{kind.__qualname__}, want {_bits.WANTED}")


def _not_compared(kind: type) -> None:
    _ext.uncovered(f"a result that is compared by its type only: {kind.__module__}.{kind.__qualname__}")
