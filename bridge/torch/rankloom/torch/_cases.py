"""PyTorch's own classes for tests of processes, with ranks that are threads: by a mixin, or put into those classes.

The ranks begin with the test method, where PyTorch's begin in setUp(): what a process would run is run by a rank thread.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import unittest
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed, common_utils

from rankloom.torch import _ext, _install
from rankloom.torch._run import rounds, run

# The schedules that the plugin asks for: each test runs once under each of them. None: in default order.
seeds: Sequence[int | None] = (None,)


class NoPipe:
    """In place of the pipe to the parent, which sees what a rank raises anyway."""

    closed = False

    def send(self, value: Any) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def as_skip(left: SystemExit) -> unittest.SkipTest | None:
    """How a process tells that it skips."""
    for skip in common_distributed.TEST_SKIPS.values():
        if left.code == skip.exit_code:
            return unittest.SkipTest(skip.message)
    return None


def _run_ranks(case: Any, rank_main: Callable[[int], None], world_size: int, allowed: Any = None) -> None:
    """allowed: the exit code that the test's author expects of a rank, if any."""

    def on_rank(rank: int) -> None:
        try:
            rank_main(rank)
        except SystemExit as left:
            skip = as_skip(left)
            if skip is not None:
                raise skip from None
            if left.code not in (None, 0) and left.code != allowed:
                raise

    # PyTorch's own classes have no such attributes, and their users' mean something else by them.
    seed, schedule = (case.seed, case.schedule) if isinstance(case, (OnThreads, ContinuousOnThreads)) else (None, None)
    asked: Sequence[int | None] = [seed] if seed is not None or schedule is not None else seeds
    for one in rounds(asked):
        limit = getattr(case, "timeout", None)
        run(
            on_rank,
            world_size,
            seed=one,
            schedule=schedule,
            backend=None,
            timeout=limit if isinstance(limit, (int, float)) else None,
        ).raise_if_failed()


class OnThreads:
    """Before common_distributed.MultiProcessTestCase, or what derives from it."""

    seed: ClassVar[int | None] = None
    schedule: ClassVar[str | None] = None

    def _spawn_processes(self) -> None:
        self.processes: list[Any] = []

    def _join_processes(self, fn: Any) -> None:
        case: Any = self
        cls, name = type(case), case._current_test_name()
        if fn in case.skip_return_code_checks:
            with contextlib.suppress(Exception):
                _join(cls, case, name, None)
        else:
            _join(cls, case, name, case.special_return_code_checks.get(fn))

    def run_test(self, test_name: str, parent_pipe: Any) -> None:
        case: Any = self
        common_utils.set_rng_seed()
        getattr(case, test_name)()
        if case.destroy_pg_upon_exit and dist.is_initialized():
            dist.destroy_process_group()


def _join(cls: Any, case: Any, name: str, allowed: Any) -> None:
    def rank_main(rank: int) -> None:
        cls._run(rank, name, case.file_name, NoPipe(), fake_pg=getattr(case, "fake_pg", False))

    _run_ranks(case, rank_main, int(case.world_size), allowed)


class ContinuousOnThreads:
    """Before common_distributed.MultiProcContinuousTest. Each test has ranks and a group of its own."""

    seed: ClassVar[int | None] = None
    schedule: ClassVar[str | None] = None

    @classmethod
    def _spawn_processes(cls, world_size: int) -> None:
        mine: Any = cls
        mine.processes, mine.task_queues, mine.completion_queues = [], [], []
        with tempfile.NamedTemporaryFile(delete=False) as file:
            mine.rdvz_file = file.name

    def _worker_run_main_wait(self, fn: Any) -> Any:
        def wrapper() -> None:
            case: Any = self
            if case.rank != case.MAIN_PROCESS_RANK:
                fn()
                return
            cls = type(case)
            size = int(cls.world_size)

            def rank_main(rank: int) -> None:
                # The state that a process keeps in its class is the rank's own.
                own = {"rank": rank, "world_size": size, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
                mine: Any = type(cls.__name__, (cls,), own)
                mine._init_pg(rank, size, cls.rdvz_file)
                mine._run_test_given_id(case.id())
                if dist.is_initialized():
                    dist.destroy_process_group()

            _run_ranks(case, rank_main, size)

        return wrapper


class ThreadsOnThreads:
    """In place of methods of common_distributed.MultiThreadedTestCase: one run, whose ranks call the class's _run()."""

    def _spawn_threads(self) -> None:
        self.threads: list[Any] = []

    @classmethod
    def _join_threads(cls, threads: Any, fn: Any) -> None:
        case: Any = fn.__self__
        own: Any = type(case)

        def rank_main(rank: int) -> None:
            own._run(case._current_test_name, rank, case.world_size)

        _run_ranks(case, rank_main, case.world_size)

    def run_test_with_threaded_pg(self, test_name: str, rank: int, world_size: int) -> None:
        case: Any = self
        current = _ext.current()
        assert current is not None
        dist.init_process_group("threaded", rank=rank, world_size=world_size, store=_meeting(current[0].id))
        case.perThreadSetUp()
        try:
            getattr(case, test_name)()
        finally:
            if dist.is_initialized() and not current[0].aborted:
                dist.destroy_process_group()
            case.perThreadTearDown()


def _meeting(job: int) -> dist.Store:
    """One store for the ranks of a job."""
    from rankloom.torch import _stores

    return _stores.named_file(f"threads of job {job}")


def _fsdp_ranks(cls: Any, /, rank: int, test_name: str, file_name: str, pipe: Any, **kwargs: Any) -> None:
    """FSDPTest._run() without its demand for as many GPUs as ranks."""
    self = cls(test_name)
    self.rank, self.file_name = rank, file_name
    if kwargs.get("fake_pg", False):
        dist.init_process_group("fake", world_size=self.world_size, rank=rank, store=_ext.make_fake_store())
    else:
        accelerator = torch.accelerator.current_accelerator()
        backend = dist.get_default_backend_for_device(accelerator.type if accelerator is not None else "cpu")
        dist.init_process_group(backend, init_method=self.init_method, world_size=int(self.world_size), rank=rank)
    if torch.accelerator.is_available():
        torch.accelerator.set_device_index(rank % torch.accelerator.device_count())
    self.run_test(test_name, pipe)
    if dist.is_initialized():
        dist.destroy_process_group()


class FSDPOnThreads(OnThreads):
    """Before common_fsdp.FSDPTest."""

    _run = classmethod(_fsdp_ranks)

    @property
    def world_size(self) -> int:
        devices = torch.accelerator.device_count()
        return devices if devices > 1 else common_distributed.DEFAULT_WORLD_SIZE


active = False


def _either(original: Any, ours: Any) -> Any:
    """A method that is ours while patched() says so."""
    if isinstance(original, classmethod):

        def of_class(cls: Any, *args: Any, **kwargs: Any) -> Any:
            return (ours if active else original).__get__(None, cls)(*args, **kwargs)

        return classmethod(of_class)
    if isinstance(original, property):

        def value(self: Any) -> Any:
            get = (ours if active else original).fget
            assert get is not None
            return get(self)

        return property(value)

    def of_object(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (ours if active else original)(self, *args, **kwargs)

    return of_object


def _spawn(original: Any) -> Any:
    from rankloom.torch._spawn import spawn

    def either(
        fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, daemon: bool = False, start_method: str = "spawn"
    ) -> Any:
        if not active or _ext.current() is not None:
            return original(fn, args, nprocs, join, daemon, start_method)
        if not join:
            return spawn(fn, args, nprocs, join, daemon, start_method, seed=seeds[0])
        for seed in rounds(seeds):
            spawn(fn, args, nprocs, join, daemon, start_method, seed=seed)
        return None

    return either


def patch() -> None:
    """Once, before test modules are imported: PyTorch's classes have their ranks on threads within patched()."""
    from torch.testing._internal import common_fsdp

    from rankloom.torch import testing

    pairs = [
        (common_distributed.MultiProcessTestCase, OnThreads),
        (common_distributed.MultiProcContinuousTest, ContinuousOnThreads),
        (common_distributed.MultiThreadedTestCase, ThreadsOnThreads),
        (common_fsdp.FSDPTest, FSDPOnThreads),
    ]
    for theirs, ours in pairs:
        for name, method in ours.__dict__.items():
            if name in theirs.__dict__ and not name.startswith("__"):
                setattr(theirs, name, _either(theirs.__dict__[name], method))
    # The decisions of a test's class in __init__() are asked for when the test begins.
    decorator = common_distributed.spawn_threads_and_init_comms

    def spawn_threads_and_init_comms(func: Any = None, *args: Any, **kwargs: Any) -> Any:
        if func is None:
            return lambda body: spawn_threads_and_init_comms(body, *args, **kwargs)
        mine, theirs = testing.spawn_threads_and_init_comms(func, *args, **kwargs), decorator(func, *args, **kwargs)

        @functools.wraps(func)  # with the marks that the test has
        def either(self: Any, *a: Any, **k: Any) -> Any:
            return (mine if active else theirs)(self, *a, **k)

        return either

    common_distributed.spawn_threads_and_init_comms = spawn_threads_and_init_comms
    torch.multiprocessing.spawn = _spawn(torch.multiprocessing.spawn)


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """While open, PyTorch's classes have their ranks on threads, and built-in backends are ours."""
    global active
    installs = not _install.installed()
    if installs:
        _install.install(*dict.fromkeys(("gloo", "nccl")))
    shown = os.environ.get("TORCH_SHOW_CPP_STACKTRACES")
    active = True
    try:
        yield
    finally:
        active = False
        if installs:
            _install.uninstall()
        if shown is None:
            os.environ.pop("TORCH_SHOW_CPP_STACKTRACES", None)
