"""Drop-ins for PyTorch's own multi-threaded test helpers.

MultiThreadedTestCase and spawn_threads_and_init_comms have PyTorch's surface. They add more: RANKLOOM_SEED, or the class
attributes `seed` and `schedule`, make a run deterministic; a failure is told once, with the other ranks folded under it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import unittest
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch.distributed as dist
from torch.testing._internal import common_distributed
from torch.testing._internal.common_utils import TestCase

from rankloom.torch import _cases, _ext, _ranks, _stores
from rankloom.torch._install import FakeStore
from rankloom.torch._run import Report, report_of, run

if TYPE_CHECKING:
    from torch.testing._internal.common_fsdp import FSDPTest
    from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase

__all__ = [
    "DTensorTestBase",
    "DistributedTestBase",
    "FSDPTest",
    "FakeStore",
    "MultiProcContinuousTest",
    "MultiProcessTestCase",
    "MultiThreadedTestCase",
    "spawn_threads_and_init_comms",
]

_Base = common_distributed.MultiThreadedTestCase


def _tell(job: _ext.Job, rank: int, error: BaseException) -> None:
    if isinstance(error, unittest.SkipTest):
        job.skip(str(error))
    elif isinstance(error, SystemExit):
        job.skip(f"rank {rank} left with exit code {error.code}")
    else:
        job.fail(rank, _ranks.failure_text(error))


def _failure(text: str, report: Report) -> RuntimeError:
    failure: Any = RuntimeError(text)
    failure.rankloom_report = report  # for the pytest plugin
    told: RuntimeError = failure
    return told


class _Threads(list[_ranks.RankThread]):
    """The threads of one test, with their job: PyTorch's surface passes them around as a list."""

    job: _ext.Job
    joined = False


class MultiThreadedTestCase(_Base):
    """As PyTorch's class of this name: call self._spawn_threads() in setUp(), and each test runs on world_size threads."""

    backend: ClassVar[str] = "rankloom"
    seed: ClassVar[int | None] = None
    schedule: ClassVar[str | None] = None
    swap_random: ClassVar[bool] = False

    _job: ClassVar[_ext.Job]
    global_store: ClassVar[dist.Store]
    rank: int
    threads: list[_ranks.RankThread]

    def _spawn_threads(self) -> None:
        cls = type(self)
        cls.global_store = _ext.make_hash_store()
        cls._job = _ext.Job(self.world_size, cls.schedule, cls.seed, swap_random=cls.swap_random)
        _ranks.worlds.enter()
        threads = _Threads()
        threads.job = cls._job
        for rank in range(self.world_size):
            threads.append(
                _ranks.RankThread(f"rank {rank}", cls._run, self._current_test_name, rank, self.world_size)
            )
        try:
            with _ranks.ending(cls._job, threads):
                _ranks.start_threads(threads)
        except BaseException:
            _ranks.worlds.leave()
            _stores.forget(cls._job.id)
            raise
        self.threads = threads
        self.addCleanup(self._end_unjoined, threads)

    def _end_unjoined(self, threads: _Threads) -> None:
        """After a setUp() that failed, or skipped, behind _spawn_threads(): nobody joins the ranks."""
        if threads.joined:
            return
        threads.joined = True
        threads.job.abort("setUp() did not end well")
        try:
            _ranks.join_threads(threads.job, threads, timeout=common_distributed.TIMEOUT_DEFAULT)
        finally:
            _ranks.worlds.leave()
            _stores.forget(threads.job.id)
        while not self.exception_queue.empty():  # all classes have the same
            self.exception_queue.get()

    def run_test_with_threaded_pg(self, test_name: str, rank: int, world_size: int) -> None:
        job = type(self)._job
        try:
            with _ranks.rank_scope(job, rank):
                dist.init_process_group(
                    self.backend, rank=rank, world_size=world_size, store=type(self).global_store
                )
                try:
                    self.perThreadSetUp()
                    try:
                        getattr(self, test_name)()
                    finally:
                        self.perThreadTearDown()
                except BaseException as error:
                    _tell(job, rank, error)
                    raise
                finally:
                    if dist.is_initialized():
                        dist.destroy_process_group()
        except BaseException as error:
            self.exception_queue.put((rank, (type(error), error, _ranks.callers_traceback(error))))

    @classmethod
    def _join_threads(cls, threads: list[_ranks.RankThread], fn: Any) -> None:
        job = threads.job if isinstance(threads, _Threads) else cls._job
        timeout = common_distributed.TIMEOUT_DEFAULT
        if isinstance(threads, _Threads):
            threads.joined = True
        try:
            with _ranks.ending(job, threads):
                notes = _ranks.join_threads(job, threads, timeout=timeout)
        finally:
            _ranks.worlds.leave()
            _stores.forget(job.id)
        failures = []
        while not cls.exception_queue.empty():
            failures.append(cls.exception_queue.get())
        report = report_of(job.report())
        report.text += "".join(f"\nnote: {note}" for note in notes)
        failures = [(rank, _ranks.as_exception(info)) for rank, info in failures]
        raised = {rank: info for rank, info in failures}
        # The first failure first; those that only pass it on are in the report's text.
        told = [(r, i) for r, i in failures if r == report.first_failed or report.outcomes[r][0] != "stopped"]
        told.sort(key=lambda failure: failure[0] != report.first_failed)
        try:
            cls._check_return_codes(told or sorted(raised.items()), timeout, fn)
        except RuntimeError as error:
            raise _failure(f"{error}\n{report.text}", report) from None
        left = [info[1] for _, info in failures if isinstance(info[1], SystemExit)]
        if not report.ok and (not left or any(error.code not in (None, 0) for error in left)):
            raise _failure(report.text, report)


def spawn_threads_and_init_comms(
    func: Callable[..., Any] | None = None,
    timeout: float = common_distributed.TIMEOUT_DEFAULT,
    world_size: int = common_distributed.DEFAULT_WORLD_SIZE,
    *,
    seed: int | None = None,
    schedule: str | None = None,
) -> Callable[..., Any]:
    """Decorates a test method: it runs once per rank, on `world_size` threads with a default group."""
    if func is None:
        return functools.partial(
            spawn_threads_and_init_comms, timeout=timeout, world_size=world_size, seed=seed, schedule=schedule
        )
    body = func

    @functools.wraps(body)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        report = run(
            lambda: body(self, *args, **kwargs), ranks=world_size, seed=seed, schedule=schedule, timeout=timeout
        )
        report.raise_if_failed()

    return wrapper


class MultiProcessTestCase(TestCase):
    """As PyTorch's class of this name, for tests that make their own groups; but the ranks are threads.

    Each rank runs the test method on an instance of its own, as a process would, with `rank` and `file_name` set.
    One rank runs at a time, in a fixed order, unless `seed`, `schedule` ("free": all at once) or RANKLOOM_SEED and its like
    say otherwise: then torch's default generator is each rank's own, as a process's is.
    """

    MAIN_PROCESS_RANK = -1
    seed: ClassVar[int | None] = None
    schedule: ClassVar[str | None] = None
    timeout: ClassVar[float | None] = None

    rank: int
    file_name: str

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:
        name = method_name if methodName == "runTest" else methodName
        super().__init__(name)
        self.rank = self.MAIN_PROCESS_RANK
        body = getattr(self, name, None)
        if body is not None:
            on_ranks: Any = functools.partial(self._on_ranks)
            # The mark of unittest.expectedFailure; unittest.skip raises in the ranks.
            on_ranks.__unittest_expecting_failure__ = getattr(body, "__unittest_expecting_failure__", False)
            setattr(self, name, on_ranks)

    @property
    def world_size(self) -> int:
        return common_distributed.DEFAULT_WORLD_SIZE

    @property
    def destroy_pg_upon_exit(self) -> bool:
        return True

    def _current_test_name(self) -> str:
        return self.id().split(".")[-1]

    def setUp(self) -> None:
        super().setUp()
        self.processes: list[Any] = []
        with tempfile.NamedTemporaryFile(delete=False) as file:
            self.file_name = file.name

    def tearDown(self) -> None:
        super().tearDown()
        with contextlib.suppress(OSError):
            os.remove(self.file_name)

    def _spawn_processes(self) -> None:
        """The ranks begin with the test, not here."""

    _spawn_threads = _spawn_processes
    _fork_processes = _spawn_processes

    def before_test(self) -> None:
        """On each rank, before its test."""

    def _on_ranks(self) -> None:
        name = self._current_test_name()
        job_name = self.file_name

        def rank_main(rank: int) -> None:
            mine = type(self)(name)
            mine.__dict__.pop(name, None)  # the test itself, not this
            mine.rank = rank
            mine.file_name = job_name
            mine.before_test()
            try:
                getattr(mine, name)()
            except SystemExit as left:
                skip = _cases.as_skip(left)
                if skip is not None:
                    raise skip from None
                if left.code not in (None, 0):
                    raise

        report = run(
            rank_main,
            self.world_size,
            seed=self.seed,
            schedule=self.schedule,
            backend=None,
            timeout=self.timeout,
        )
        report.raise_if_failed()


class DistributedTestBase(MultiProcessTestCase):
    """As PyTorch's class of this name: create_pg() makes the default group."""

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def backend(self, device: Any) -> str:
        return "rankloom"

    def create_pg(self, device: Any, world_size: int | None = None) -> Any:
        dist.init_process_group(
            self.backend(device),
            world_size=world_size or self.world_size,
            rank=self.rank,
            store=dist.FileStore(self.file_name, 1),
        )
        return dist.distributed_c10d._get_default_group()

    def rank_to_device(self, device: Any) -> dict[int, list[int]]:
        return {rank: [0] for rank in range(self.world_size)}


class MultiProcContinuousTest(_cases.ContinuousOnThreads, common_distributed.MultiProcContinuousTest):
    """As PyTorch's class of this name; but each test has ranks and a default group of its own. world_size: 4 unless set."""

    world_size: int = common_distributed.DEFAULT_WORLD_SIZE


def __getattr__(name: str) -> Any:
    # Their modules import much of torch.
    if name == "FSDPTest":
        from torch.testing._internal import common_fsdp

        made: Any = type(name, (_cases.FSDPOnThreads, common_fsdp.FSDPTest), {"__doc__": _FSDP_DOC, "__module__": __name__})
    elif name == "DTensorTestBase":
        from torch.testing._internal.distributed._tensor import common_dtensor

        bases = (_cases.OnThreads, common_dtensor.DTensorTestBase)
        made = type(name, bases, {"__doc__": _DTENSOR_DOC, "__module__": __name__})
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = made
    return made


_FSDP_DOC = "As PyTorch's class of this name, without its demand for a GPU a rank. world_size: 4 where there are none."
_DTENSOR_DOC = "As PyTorch's class of this name; with_comms and its other helpers are PyTorch's own."
