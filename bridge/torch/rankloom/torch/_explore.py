"""One program under many schedules."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from rankloom.torch._run import RankFailedError, Report, run

_ONE_RUN = ("RANKLOOM_SEED", "RANKLOOM_SCHEDULE", "RANKLOOM_REPLAY")


@dataclasses.dataclass
class Exploration:
    """What explore() found."""

    runs: int  # that were made
    failure: Report | None  # of the run that failed, or whose results differ; None: no failure
    text: str  # how many runs, which one failed, why, and the command that repeats it

    @property
    def ok(self) -> bool:
        return self.failure is None

    def raise_if_failed(self) -> None:
        if self.failure is None:
            return
        first = self.failure.first_failed
        raise RankFailedError(self.text) from (self.failure.exceptions[first] if first >= 0 else None)


def explore(
    fn: Callable[..., Any],
    ranks: int = 4,
    *,
    runs: int = 100,
    seconds: float | None = None,
    strategies: Sequence[str] = ("pct", "starve", "late", "seeded"),
    first_seed: int = 1,
    compare: bool = True,
    backend: str | None = "rankloom",
    timeout: float | None = None,
    swap_random: bool = False,
) -> Exploration:
    """Runs `fn` as run() does, again and again under different schedules, and stops at the first that fails.

    The first two runs are in default order: a rank runs until it waits, then the next. They must be alike. Then the strategies
    take turns, each with seeds from first_seed on: "pct" (few changes of priority), "starve" (one rank is held back), "late"
    (calls complete as late as their waits), "seeded" (any choice).
    runs, seconds: when to stop; at least the run in default order is made. A run costs what run() costs.
    compare: what a rank returns must be the same under all schedules, bit by bit, where it is made of tensors, numbers, strings
        and lists, tuples and dicts of them.

    Under RANKLOOM_SEED, RANKLOOM_SCHEDULE or RANKLOOM_REPLAY in the environment that one run is made, after the one in
    default order that its results are compared with.

    Errors: ValueError for options that do not fit.
    """
    if runs < 1 or not strategies:
        raise ValueError(f"runs is {runs} and strategies {list(strategies)}, want at least one of each")
    started = time.monotonic()
    made = 0

    def one(schedule: str | None) -> Report:
        nonlocal made
        made += 1
        return run(fn, ranks, schedule=schedule, backend=backend, timeout=timeout, swap_random=swap_random)

    def explored(failure: Report | None = None, why: str = "") -> Exploration:
        text = f"explored {made} {'run' if made == 1 else 'runs'} on {ranks} ranks: "
        if failure is None:
            return Exploration(made, None, text + "no failure")
        text += f"a schedule that fails, {failure.schedule}\n"
        if why and failure.rerun:
            why += "\nrun it again: " + failure.rerun
        return Exploration(made, failure, text + (why or failure.text))

    asked = any(name in os.environ for name in _ONE_RUN)
    default = f"steered:{first_seed}"
    with _without(_ONE_RUN):
        first = one(default)
    if not first.ok:
        return explored(first)
    if not asked and runs > 1:
        again = one(default)
        if not again.ok or (again.trace, again.steps) != (first.trace, first.steps):
            return explored(again, "two runs of one schedule differ: the program is not deterministic")
        if compare and (difference := _difference(again, first)):
            return explored(again, f"two runs of one schedule differ: {difference}")

    def schedules() -> Iterator[str | None]:
        if asked:
            yield None
            return
        for number in range(runs - made):
            if seconds is not None and time.monotonic() - started >= seconds:
                return
            yield f"{strategies[number % len(strategies)]}:{first_seed + number // len(strategies)}"

    for schedule in schedules():
        report = one(schedule)
        if not report.ok:
            return explored(report)
        if compare and (difference := _difference(report, first)):
            return explored(report, f"results differ between schedules: {difference}")
    return explored()


@contextlib.contextmanager
def _without(names: Sequence[str]) -> Iterator[None]:
    """The environment without these variables."""
    taken = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(taken)


def _difference(here: Report, there: Report) -> str:
    for rank, (a, b) in enumerate(zip(here.results, there.results, strict=True)):
        if not _same(a, b):
            return f"rank {rank} returned {a!r} here, and {b!r} under {there.schedule}"
    return ""


def _same(a: Any, b: Any) -> bool:
    """Objects that we know nothing about count as the same."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if a.layout != torch.strided or b.layout != torch.strided:
            return bool(a.layout == b.layout)
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        bits = [t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
        return torch.equal(*bits)
    if isinstance(a, float):
        return bool(a.hex() == b.hex())  # NaN is NaN, and 0.0 is not -0.0
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, (int, str, bytes, complex)):
        return bool(a == b)
    return True
