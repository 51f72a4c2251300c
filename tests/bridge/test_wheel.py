"""The needs of a wheel on the machine where it is installed: torch, of the minor version that it was built for."""

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys

import pytest
import rankloom.torch
import torch
from rankloom.torch import _built_for, _torch_version

PACKAGE = pathlib.Path(rankloom.torch.__file__).parent
SYSTEMS = re.compile(r"(?:ld-linux.*|lib(?:c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so(?:\.\d+)*")


def run_python(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)


def needed(library: pathlib.Path) -> set[str]:
    text = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))


def test_the_wheel_carries_each_library_that_the_system_may_lack() -> None:
    [module] = PACKAGE.glob("_ext.*.so")
    carried = {path.name: path for path in (PACKAGE / "_libs").glob("*.so*")}
    of_torch = {path.name for path in (pathlib.Path(torch.__file__).parent / "lib").iterdir()}
    everything = set().union(*(needed(path) for path in [module, *carried.values()]))
    assert {name for name in everything - carried.keys() - of_torch if not SYSTEMS.fullmatch(name)} == set()
    assert set(carried) <= everything
    assert any(name.startswith("libtbb.so") for name in carried)
    licences = {path.name for path in (PACKAGE / "_libs" / "licences").iterdir()}
    assert not os.path.exists("/usr/bin/dpkg-query") or any(name.startswith("libtbb") for name in licences)


def test_its_metadata_name_the_licence_and_have_its_text() -> None:
    assert importlib.metadata.metadata("rankloom")["License-Expression"] == "Apache-2.0"
    [text] = [path for path in importlib.metadata.files("rankloom") or [] if path.name == "LICENSE"]
    assert "Apache License" in text.read_text()


def test_the_carried_libraries_are_those_that_are_loaded() -> None:
    done = run_python("import rankloom.torch; print(open('/proc/self/maps').read())")
    assert done.returncode == 0, done.stderr
    ours = set(re.findall(r"(/\S*/lib(?:absl|boost|tbb|hwy|protobuf)[^/\s]*)", done.stdout))
    assert len(ours) > 3
    assert {path for path in ours if not path.startswith(f"{PACKAGE}/_libs/")} == set()


def test_paths_of_the_machine_that_built_it_are_not_in_it() -> None:
    [module] = PACKAGE.glob("_ext.*.so")
    text = subprocess.run(["readelf", "-d", module], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"R(?:UN)?PATH\).*\[(.*)\]", text) == ["$ORIGIN/_libs:$ORIGIN/../../torch/lib"]


def test_a_torch_of_another_minor_version_is_refused() -> None:
    text = (
        r"rankloom was built for torch 2\.13 \(2\.13\.0\+cpu\), and the torch here is 2\.12\.1\. "
        r'Either: pip install "torch==2\.13\.\*"; or build rankloom for the torch here, in a checkout: pip install '
    )
    with pytest.raises(ImportError, match=text):
        _torch_version.check("2.12.1", "2.13.0+cpu")
    with pytest.raises(ImportError, match=r"torch here is 2\.1\.0"):
        _torch_version.check("2.1.0", "2.13.0")
    _torch_version.check("2.13.2+cu130", "2.13.0+cpu")
    assert torch.__version__ == _built_for.TORCH


def test_it_is_refused_before_the_extension_is_loaded() -> None:
    done = run_python("import torch; torch.__version__ = '2.99.0'; import rankloom.torch")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: rankloom was built for torch {_built_for.TORCH.rsplit('.', 1)[0]} (")
    assert "_ext" not in done.stderr


def test_an_extension_that_does_not_load_is_told_with_both_versions() -> None:
    done = run_python("import sys; sys.modules['rankloom.torch._ext'] = None; import rankloom.torch")
    text = (
        rf"ImportError: rankloom, which was built for torch {re.escape(_built_for.TORCH)}, does not load under torch {re.escape(torch.__version__)}: "
        r".*rankloom\.torch\._ext.*\. If this torch is another build than that one: build rankloom for the torch here, in a checkout: pip install "
    )
    assert done.returncode == 1 and re.match(text, done.stderr.splitlines()[-1]), done.stderr


USERS = '''
import contextlib
from collections.abc import Callable, Iterator

import rankloom.torch
import torch
import torch.distributed as dist
from rankloom.torch import Call, Device, Estimate, Exploration, FakeWorld, Fault, FaultPlan, Link, RankFailedError, Report, Totals
from rankloom.torch.testing import (
    DistributedTestBase, DTensorTestBase, FSDPTest, MultiProcContinuousTest, MultiProcessTestCase, MultiThreadedTestCase,
    spawn_threads_and_init_comms,
)


class Threads(MultiThreadedTestCase):
    seed = 7
    world_size = 4

    def setUp(self) -> None:
        super().setUp()
        self._spawn_threads()

    def test_it(self) -> None:
        dist.barrier()


class Processes(MultiProcessTestCase):
    schedule = "pct:5:2"

    def test_it(self) -> None:
        x = torch.tensor([float(self.rank)])
        dist.all_reduce(x)


class Base(DistributedTestBase): ...
class Tensors(DTensorTestBase): ...
class Continuous(MultiProcContinuousTest): ...
class Sharded(FSDPTest): ...


@spawn_threads_and_init_comms(world_size=2)
def test_decorated(self: object) -> None: ...


def program(rank: int) -> float:
    rankloom.torch.observe("rank", rank)
    rankloom.torch.yield_now()
    return float(rank)


def runs() -> list[float]:
    report: Report = rankloom.torch.run(
        program, 4, seed=7, timeout=30.0, stall=60, swap_random=True, faults=FaultPlan(Fault("crash", rank=1, op="all_reduce", seq=2)),
    )
    try:
        report.raise_if_failed()
    except RankFailedError as failed:
        print(failed.report.text, failed.report.first_failed, failed.report.outcomes[1][0])
    report.save_trace("trace")
    report.write_run("run")
    report.dump_flight_records("folder")
    for call in report.flight_records(rank=2)["entries"]:
        print(call["profiling_name"])
    last: Report | None = rankloom.torch.last_report()
    print(last.rerun if last is not None else "")
    rankloom.torch.spawn(print, args=(1, "two"), nprocs=2, seed=1)
    return [float(result) for result in report.results]


def explores() -> bool:
    found: Exploration = rankloom.torch.explore(
        program, ranks=3, runs=500, seconds=None, strategies=["exhaustive", "pct(3)"], leaks=False, compare=False, min_ranks=2,
        faults="crash@rank=1", progress=lambda strategy, runs, seconds: print(strategy.upper(), runs + 1, seconds + 0.5),
    )
    if found.failure is not None:
        print(found.failure.story.upper(), found.failure.ranks + found.failure.switches, found.failure.rerun)
    return found.verified and all(share.finished for share in found.shares)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    rankloom.torch.install("gloo", "nccl")
    try:
        yield
    finally:
        rankloom.torch.uninstall()


def step(world: FakeWorld) -> Callable[[], object]:
    x = torch.empty(8)
    return lambda: dist.all_reduce(x, group=world.mesh.get_group("dp"))


def estimates() -> Estimate:
    cost = {"dp": rankloom.torch.across_nodes("nvlink4", "infiniband_ndr"), "tp": Link(1e-6, 1e9), "*": rankloom.torch.links["pcie5"]}
    with rankloom.torch.fake_world(rank=5, world_size=64, mesh={"dp": 8, "tp": 8}, cost=cost) as world:
        with rankloom.torch.expect_calls(all_gather=3, group="tp", exactly=True):
            step(world)()
        first: Call = world.calls[0]
        totals: Totals = world.totals[0]
        print(first.op, first.line + 1, first.payload, totals.calls, world.table())
    one, *others = rankloom.torch.trace(step, mesh={"pp": 4, "dp": 8}, cost="nvlink4")
    one.write_perfetto("step.json", *others)
    print([path.upper() for path in one.write_chakra("step", *others, lower=True)])
    device = Device("own", {"bfloat16": 1e15, "float32": 1e14}, 3e12)
    made = rankloom.torch.estimate(step, mesh={"dp": 128}, cost="nvlink4", device=device, efficiency=0.5)
    print(made.time + made.mfu, made.exposed["dp"], made.ranks[0].slices[0].name, made.at(0.6).table())
    return made


def wrong() -> None:
    rankloom.torch.run(program, "four")
    rankloom.torch.explore(program, leeks=True)
    rankloom.torch.last_report().text
    made: int = rankloom.torch.links["nvlink4"].bytes_per_second
'''


def test_a_users_file_is_typed(tmp_path: pathlib.Path) -> None:
    """Under mypy --strict; a file that is not right shows that the types are seen."""
    pytest.importorskip("mypy")
    (tmp_path / "users.py").write_text(USERS)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "users.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    lines = USERS.splitlines()
    wrong = 1 + lines.index("def wrong() -> None:")
    told = [re.fullmatch(r"users\.py:(\d+): error: (.*)  \[([\w-]+)\]", line) for line in done.stdout.splitlines() if ": note: " not in line]
    assert None not in told, done.stdout + done.stderr
    assert [(int(one[1]) - wrong, one[3]) for one in told if one is not None] == [
        (1, "arg-type"), (2, "call-arg"), (3, "union-attr"), (4, "assignment"),
    ], done.stdout  # fmt: skip
