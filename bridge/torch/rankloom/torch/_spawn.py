"""torch.multiprocessing.spawn with ranks that are threads."""

from __future__ import annotations

import io
import os
import pickle
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from rankloom.torch._run import Report, run


class _Pickler(pickle.Pickler):
    """As torch.multiprocessing's: tensors share their memory, and queues, events and locks of processes are passed on."""

    def __init__(self, file: Any, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_id(self, value: Any) -> int | None:
        if isinstance(value, torch.Tensor) or type(value).__module__.partition(".")[0] == "multiprocessing":
            self._shared.append(value)
            return len(self._shared) - 1
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared
        self._made: dict[int, Any] = {}

    def persistent_load(self, number: Any) -> Any:
        value = self._shared[number]
        if not isinstance(value, torch.Tensor):
            return value
        key = id(value)
        if key not in self._made:
            same = value.detach()
            if isinstance(value, torch.nn.Parameter):
                same = torch.nn.Parameter(same, requires_grad=value.requires_grad)
            else:
                same.requires_grad_(value.requires_grad)
            self._made[key] = same
        return self._made[key]


def _copy_for_each(args: tuple[Any, ...], nprocs: int) -> list[tuple[Any, ...]]:
    file, shared = io.BytesIO(), list[Any]()
    _Pickler(file, shared).dump(args)
    return [_Unpickler(io.BytesIO(file.getvalue()), shared).load() for _ in range(nprocs)]


def _raise_if_failed(report: Report) -> None:
    """The exception that torch.multiprocessing raises; its rankloom_report is the run's."""
    if report.ok:
        return
    rank = report.first_failed
    first = report.exceptions[rank] if rank >= 0 else None
    failed: Any
    if isinstance(first, SystemExit):
        code = first.code if isinstance(first.code, int) else 1
        failed = ProcessExitedException(report.text, error_index=rank, error_pid=os.getpid(), exit_code=code)
    else:
        failed = ProcessRaisedException(report.text, max(rank, 0), os.getpid())
    failed.rankloom_report = report
    raise failed from first


class SpawnContext:
    """Of spawn(join=False)."""

    def __init__(self, make: Callable[[], Report]) -> None:
        self._report: Report | None = None
        self._error: BaseException | None = None

        def all_ranks() -> None:
            try:
                self._report = make()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=all_ranks, name="rankloom.torch.spawn", daemon=True)
        self._thread.start()

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Whether all ranks have ended. Raises as spawn() does; grace_period is not needed: ranks end with the first that fails."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        assert self._report is not None
        _raise_if_failed(self._report)
        return True


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
    *,
    seed: int | None = None,
    schedule: str | None = None,
    timeout: float | None = None,
    stall: float | None = None,
) -> SpawnContext | None:
    """Drop-in for torch.multiprocessing.spawn: calls fn(i, *args) for i below nprocs, each on a thread that is rank i.

    args, and fn itself where it has state, as a method, a partial or an object has: each rank has a copy of its own, whose
        tensors share memory, as with processes. daemon, start_method: of no effect.
    seed, schedule: as of run(); without them one rank runs at a time in a fixed order, so that torch's, Python's and numpy's
        random states are each rank's own; "free": all at once. timeout, stall: as of run().
    join: False: returns a context at once, whose join() is to be called.

    Errors: torch.multiprocessing's ProcessRaisedException, with the rank that failed first and the report, and, for a rank
        that calls sys.exit(), ProcessExitedException; what pickle raises for args, or an fn with state, that a process could
        not be given; ValueError.
    """
    if nprocs < 1:
        raise ValueError(f"nprocs is {nprocs}, want at least 1")
    called = () if isinstance(fn, (types.FunctionType, types.BuiltinFunctionType)) else (fn,)
    copies = _copy_for_each((*called, *args), nprocs)

    def on_rank(rank: int) -> None:
        function, *arguments = copies[rank] if called else (fn, *copies[rank])
        try:
            function(rank, *arguments)
        except SystemExit as left:
            if left.code not in (None, 0):
                raise

    def make() -> Report:
        return run(
            on_rank,
            nprocs,
            seed=seed,
            schedule=schedule,
            backend=None,
            timeout=timeout,
            swap_random=True,
            stall=stall,
        )

    if not join:
        return SpawnContext(make)
    _raise_if_failed(make())
    return None
