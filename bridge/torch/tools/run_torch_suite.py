#!/usr/bin/env python3
"""Runs torch/testing/_internal/distributed/distributed_test.py, which torch's wheel carries, with ranks as threads.

    run_torch_suite.py [--backend gloo|mpi] [--ranks N] [--seed N] [--on rankloom|threaded|gloo] [--only NAME] [--json FILE]

--backend: what the tests believe they run on; it decides which they skip. mpi skips least.
--on: what they run on; PyTorch's own threaded group and gloo are there to compare.
The profiler is left out, whatever they run on: it is the process's, and ranks that are threads start it over each other.
Exits with 1 if a test failed that is not in expected.py.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import unittest
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import expected
import suites


class _NoProfiler:
    """In place of torch's profilers."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.function_events: list[Any] = []

    def __enter__(self) -> _NoProfiler:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def events(self) -> list[Any]:
        return self.function_events


def _without_profiler() -> None:
    import torch
    from torch.testing._internal.distributed import distributed_test

    torch.autograd.profiler.profile = _NoProfiler  # type: ignore[assignment,misc]
    torch.profiler.profile = _NoProfiler  # type: ignore[assignment,misc]
    for name in ("PROFILING", "CUDA_PROFILING", "SEND_RECV_PROFILING"):
        getattr(distributed_test, name + "_SUPPORTED_BACKENDS").clear()


def _make_class(on: str, ranks: int, seed_of_ranks: int | None) -> type[unittest.TestCase]:
    import rankloom.torch
    import torch.distributed as dist
    from rankloom.torch import testing

    if on == "rankloom":
        rankloom.torch.install("gloo", "nccl", "mpi")
    from torch.testing._internal.distributed import distributed_test

    meeting = rankloom.torch.HashStore()
    believed = os.environ["BACKEND"]
    backend = {"rankloom": believed, "threaded": "threaded", "gloo": "gloo"}[on]

    class OnThreads(testing.MultiProcessTestCase, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
        seed = seed_of_ranks

        @property
        def world_size(self) -> Any:
            return ranks

        @property
        def init_method(self) -> str:
            return f"file://{self.file_name}"

        # Of all ranks, whatever becomes of their groups: through files in the original.
        def _barrier(self, *args: Any, **kwargs: Any) -> None:
            self.barriers += 1
            key = f"{self.file_name} {self.barriers}"
            if meeting.add(key, 1) == ranks:
                meeting.set(key + " all", "")
            meeting.wait([key + " all"], timedelta(seconds=60))

        def before_test(self) -> None:
            self.barriers = 0
            # Ranks meet in a file; C++ would not see what a rank has here.
            del os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
            dist.init_process_group(
                backend,
                init_method=self.init_method,
                world_size=ranks,
                rank=self.rank,
                timeout=timedelta(seconds=60),
            )
            self._barrier()

        def setUp(self) -> None:
            super().setUp()
            distributed_test.initialize_temp_directories()
            os.environ["WORLD_SIZE"] = str(ranks)
            # A test may have left it behind.
            os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
            dist.set_debug_level(dist.DebugLevel.OFF)

        def tearDown(self) -> None:
            distributed_test.cleanup_temp_dir()
            super().tearDown()

    OnThreads.__name__ = OnThreads.__qualname__ = "DistributedTest"
    return OnThreads


def _run_here(arguments: argparse.Namespace) -> None:
    case = _make_class(arguments.on, arguments.ranks, arguments.seed)
    _without_profiler()

    def tests() -> Iterator[unittest.TestCase]:
        for name in unittest.defaultTestLoader.getTestCaseNames(case):
            if not (arguments.no_ddp and "ddp" in name.lower()):
                yield case(name)

    suites.run_here(tests(), arguments.after, arguments.only)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="gloo", choices=["gloo", "mpi"])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--on", default="rankloom", choices=["rankloom", "threaded", "gloo"])
    parser.add_argument("--seed", type=int, help="of the schedule; without it, in a fixed order")
    parser.add_argument("--no-ddp", action="store_true", help="leaves out the tests of DDP")
    arguments = suites.parse(parser, per_test=90.0)
    if arguments.one:
        _run_here(arguments)
        return 0

    with tempfile.TemporaryDirectory() as folder:
        # Read by the module when it is imported.
        env = {**os.environ, "BACKEND": arguments.backend, "WORLD_SIZE": str(arguments.ranks), "TEMP_DIR": folder}
        os.makedirs(os.path.join(folder, "barrier"))
        os.makedirs(os.path.join(folder, "test_dir"))
        command = [suites.PYTHON, __file__, "--one", "--ranks", str(arguments.ranks), "--on", arguments.on]
        for option in ("only", "no_ddp", "seed"):
            if (value := getattr(arguments, option)) not in (None, False):
                command += ["--" + option.replace("_", "-")] + ([str(value)] if value is not True else [])
        rows = suites.run_in_processes(command, arguments.per_test, env)
    known = dict(expected.TORCH_SUITE) if arguments.on == "rankloom" else {}
    title = f"BACKEND={arguments.backend}, {arguments.ranks} ranks, on {arguments.on}"
    bad = suites.report(rows, known, title, not arguments.quiet)
    suites.save(arguments.json, rows)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
