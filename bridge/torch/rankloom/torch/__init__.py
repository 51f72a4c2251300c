"""rankloom behind torch.distributed: ranks are threads of this process, and collectives are real.

    import rankloom.torch
    rankloom.torch.install()    # behind the names "threaded" and "fake" of PyTorch's own test helpers

or, without any test class:

    report = rankloom.torch.run(program, ranks=4, seed=7)

or under all schedules that can differ, or many, until one fails:

    rankloom.torch.explore(program, ranks=4).raise_if_failed()

or as torchrun and torch.multiprocessing.spawn do:

    python -m rankloom.torch --nproc-per-node 4 --seed 7 train.py
    rankloom.torch.spawn(main, args=(4,), nprocs=4)

or with drop-ins for PyTorch's own helpers, in rankloom.torch.testing: MultiThreadedTestCase, MultiProcessTestCase,
DistributedTestBase, spawn_threads_and_init_comms. The first and the last have their names here, too.

A rank of a world of any size, alone, with a record of what it calls:

    with rankloom.torch.fake_world(rank=5, world_size=16384, mesh={"dp": 2048, "tp": 8}) as world: ...

and what a step of it takes, with devices that compute:

    rankloom.torch.estimate(program, mesh={"dp": 2048, "tp": 8}, cost=..., device="h100_sxm")

The backends are also registered as "rankloom" and "rankloom_fake" by the import itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankloom.torch import _torch_version  # noqa: F401 (first: refuses a torch that the extension cannot be loaded with)

# isort: split
from rankloom.torch import _ext
from rankloom.torch._device_peaks import Device, devices
from rankloom.torch._estimate import Estimate, RankEstimate
from rankloom.torch._explore import Exploration, Failure, explore, observe
from rankloom.torch._fake_world import Call, FakeWorld, Link, Totals, across_nodes, estimate, expect_calls, fake_world, links, trace
from rankloom.torch._faults import Fault, FaultPlan
from rankloom.torch._install import FakeStore, HashStore, install, installed, uninstall
from rankloom.torch._ranks import RankCrashedError
from rankloom.torch._run import RankFailedError, Report, last_report, run
from rankloom.torch._spawn import spawn

if TYPE_CHECKING:
    from rankloom.torch.testing import MultiThreadedTestCase, spawn_threads_and_init_comms

__all__ = [
    "Call",
    "Device",
    "Estimate",
    "Exploration",
    "Failure",
    "FakeStore",
    "FakeWorld",
    "Fault",
    "FaultPlan",
    "HashStore",
    "Link",
    "MultiThreadedTestCase",
    "RankCrashedError",
    "RankEstimate",
    "RankFailedError",
    "Report",
    "Totals",
    "across_nodes",
    "devices",
    "estimate",
    "expect_calls",
    "explore",
    "fake_world",
    "install",
    "installed",
    "last_report",
    "links",
    "observe",
    "run",
    "spawn",
    "spawn_threads_and_init_comms",
    "trace",
    "uninstall",
    "yield_now",
]

yield_now = _ext.yield_now


def __getattr__(name: str) -> Any:
    # PyTorch's test helpers need packages that running ranks does not, and take a second to import.
    if name in ("MultiThreadedTestCase", "spawn_threads_and_init_comms"):
        from rankloom.torch import testing

        return getattr(testing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
