"""pytest --rankloom: tests that were written for PyTorch's own classes run as they are, with ranks as threads."""

import importlib.util
import pathlib
import re
import subprocess

import pytest
import torch.distributed as dist
from test_pytest_plugin import run_pytest

CLASSES = '''
import os, sys, threading, unittest
import pytest, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.testing._internal.common_distributed import (
    DistributedTestBase, MultiProcContinuousTest, MultiProcessTestCase, MultiThreadedTestCase, skip_if_lt_x_gpu,
    spawn_threads_and_init_comms)
from torch.testing._internal.common_fsdp import FSDPTest
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms
from torch.testing._internal.common_utils import TestCase, run_tests

PARENT = os.getpid()

def on_threads():
    return threading.current_thread().name.startswith("rank ")

class Processes(MultiProcessTestCase):
    @property
    def world_size(self):
        return 3

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def _init(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)

    def test_sum(self):
        self._init()
        x = torch.full((2,), self.rank + 1.0)
        dist.all_reduce(x)
        self.assertEqual(x, torch.full((2,), 6.0))
        self.assertTrue(on_threads())

    def test_random(self):
        torch.manual_seed(self.rank)
        mine = torch.rand(3)
        self._init()
        dist.barrier()
        torch.manual_seed(self.rank)
        again = torch.rand(2)
        dist.barrier()
        self.assertEqual(torch.cat([again, torch.rand(1)]), mine)

    def test_subtests(self):
        self._init()
        for n in (1, 2):
            with self.subTest(n=n):
                x = torch.full((n,), float(self.rank))
                dist.broadcast(x, 2)
                self.assertEqual(x, torch.full((n,), 2.0))

    @skip_if_lt_x_gpu(8)
    def test_gpu(self):
        self.fail("not here")

class Devices(DistributedTestBase):
    @property
    def world_size(self):
        return 2

    def test_created(self):
        self.create_pg("cpu")
        x = torch.tensor([self.rank])
        dist.all_reduce(x)
        self.assertEqual(x.item(), 1)
        self.assertTrue(on_threads())

class Continuous(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls):
        return "gloo"

    def test_one(self):
        x = torch.tensor([self.rank + 1])
        dist.all_reduce(x)
        self.assertEqual((x.item(), self.rank), (3, dist.get_rank()))
        self.assertTrue(on_threads())

    def test_two(self):
        self.assertEqual(dist.get_world_size(self.pg), 2)

class Threads(MultiThreadedTestCase):
    @property
    def world_size(self):
        return 4

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_gather(self):
        out = [torch.zeros(1) for _ in range(4)]
        dist.all_gather(out, torch.tensor([self.rank * 1.5]))
        self.assertEqual([o.item() for o in out], [0.0, 1.5, 3.0, 4.5])
        self.assertTrue(on_threads())

class Decorated(TestCase):
    @spawn_threads_and_init_comms(world_size=2)
    def test_decorated(self):
        x = torch.tensor([dist.get_rank() + 1])
        dist.all_reduce(x)
        self.assertEqual(x.item(), 3)

class Tensors(DTensorTestBase):
    @property
    def world_size(self):
        return 4

    @with_comms
    def test_distribute(self):
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
        mesh = self.build_device_mesh()
        whole = torch.arange(16.0).view(8, 2)
        sharded = distribute_tensor(whole, mesh, [Shard(0)])
        self.assertEqual(sharded.to_local(), whole[self.rank * 2:][:2])
        self.assertEqual(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
        self.assertTrue(on_threads())

class Sharded(FSDPTest):
    @property
    def world_size(self):
        return 2

    def test_fully_shard(self):
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.device_mesh import init_device_mesh
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        whole = model.weight.detach().clone()
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        model(torch.full((1, 4), self.rank + 1.0)).sum().backward()
        self.assertEqual(model.weight.full_tensor(), whole)
        self.assertEqual(model.weight.grad.full_tensor(), torch.full((2, 4), 1.5))
        self.assertTrue(on_threads())

def _main(rank, size, out):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29511"
    dist.init_process_group("gloo", rank=rank, world_size=size)
    x = torch.tensor([rank + 1.0])
    dist.all_reduce(x)
    out[rank] = x.item() + (100 if os.getpid() == PARENT else 0)
    dist.destroy_process_group()

def test_spawn():
    out = torch.zeros(2)
    mp.spawn(_main, (2, out), 2, True, False, "spawn")
    assert out.tolist() == [103.0, 103.0]
'''


def test_pytorchs_classes_as_they_are(tmp_path: pathlib.Path) -> None:
    for arguments in (["--rankloom"], ["--rankloom", "--rankloom-seeds", "3"]):
        done = run_pytest(tmp_path, CLASSES, *arguments, "-rs", "--timeout=100", "test_it.py")
        assert re.search(r"11 passed, 1 skipped.* in ", done.stdout), done.stdout[-6000:] + done.stderr[-2000:]
        assert "Need at least 8 CUDA devices" in done.stdout


FAILS = '''
import time
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase, MultiThreadedTestCase

class Base(MultiProcessTestCase):
    world_size = 3

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def _init(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)

class First(Base):
    def test_fails(self):
        self._init()
        if self.rank == 1:
            self.assertEqual(torch.tensor([1]), torch.tensor([2]))
        dist.barrier()

    def test_passes(self):
        self._init()

class Second(Base):
    def test_race(self):
        """Right unless rank 2 comes first."""
        self._init()
        store = dist.distributed_c10d._get_default_store()
        first = store.add("came", 1) == 1
        self.assertFalse(first and self.rank == 2)

class Third(MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_deadlock(self):
        if self.rank == 0:
            dist.barrier()
'''


def test_names_the_package_that_pytorchs_helpers_want(tmp_path: pathlib.Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "expecttest.py").write_text("raise ModuleNotFoundError('none here', name='expecttest')\n")
    done = run_pytest(tmp_path, FAILS, "--rankloom", "test_it.py", env={"PYTHONPATH": str(hidden)})
    assert done.returncode == 4, done.stdout + done.stderr
    assert "--rankloom needs expecttest, which PyTorch's test helpers import: pip install expecttest" in done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr


def test_what_a_failure_says(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, FAILS, "--rankloom", "test_it.py")
    out = done.stdout
    assert "3 failed, 1 passed" in out or "2 failed, 2 passed" in out, out[-5000:]
    # The rank's own traceback, once, below what the run says.
    assert out.count("Tensor-likes are not equal!") >= 1
    assert re.search(r"rank 1 failed: AssertionError: .*\nranks 0, 2 stopped for it\n", out, re.DOTALL), out
    assert "self.assertEqual(torch.tensor([1]), torch.tensor([2]))" in out
    assert re.search(r"RANKLOOM_SCHEDULE=fifo \S+ -m pytest .*--rankloom test_it.py::First::test_fails\n", out), out
    assert "replay it: RANKLOOM_REPLAY=" in out and len(list((tmp_path / "traces").iterdir())) >= 2
    assert "no rank can move" in out and "rank 0 waits in barrier seq 1 for rank 1 (returned)" in out


SPAWNS = '''
import torch.multiprocessing as mp
import rankloom.torch

def _main(rank, wrong):
    assert rank != wrong, f"rank {rank} is wrong"

def test_spawns():
    mp.spawn(_main, args=(-1,), nprocs=2)
    mp.spawn(_main, args=(1,), nprocs=3)

def test_ours():
    rankloom.torch.spawn(_main, (0,), nprocs=2, seed=7)
'''


def test_a_spawn_that_fails_can_be_replayed(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, SPAWNS, "--rankloom", "test_it.py")
    assert "2 failed" in done.stdout, done.stdout
    commands = re.findall(r"^replay it: (RANKLOOM_.*RANKLOOM_REPLAY=\S+ .*|RANKLOOM_REPLAY=\S+ .*)$", done.stdout, re.MULTILINE)
    assert len(commands) == 2, done.stdout
    for command, rank, test in zip(commands, (1, 0), ("test_spawns", "test_ours"), strict=True):
        assert command.endswith(f"--rankloom test_it.py::{test}")
        again = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert "1 failed" in again.stdout and f"AssertionError: rank {rank} is wrong" in again.stdout, again.stdout


def test_a_seed_that_fails_is_told_and_run_again(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, FAILS, "--rankloom-seeds=12", "-k", "Second", "test_it.py")
    assert "1 failed, 3 deselected" in done.stdout, done.stdout
    found = re.search(r"RANKLOOM_SEED=(\d+) \S+ -m pytest (.*)\n", done.stdout)
    assert found is not None and "--rankloom-seeds" not in found[2], done.stdout
    again = run_pytest(tmp_path, FAILS, "--rankloom", "-k", "Second", "test_it.py", env={"RANKLOOM_SEED": found[1]})
    assert "1 failed" in again.stdout and f"schedule seeded:{found[1]}" in again.stdout


def test_pytests_own_options(tmp_path: pathlib.Path) -> None:
    (tmp_path / "cached").mkdir()
    folder = tmp_path / "cached"
    stops = run_pytest(folder, FAILS, "--rankloom", "-x", "test_it.py")
    assert "1 failed in" in stops.stdout, stops.stdout
    cache = ["-p", "cacheprovider", "-o", f"cache_dir={folder}/cache"]
    run_pytest(folder, FAILS, "--rankloom", *cache, "-k", "First", "test_it.py")
    last = run_pytest(folder, FAILS, "--rankloom", *cache, "--lf", "-k", "First", "test_it.py")
    assert "1 failed" in last.stdout and "passed" not in last.stdout, last.stdout
    if importlib.util.find_spec("xdist") is not None:
        spread = run_pytest(folder, FAILS, "--rankloom", "-n", "2", "-k", "First", "test_it.py")
        assert "1 failed, 1 passed" in spread.stdout, spread.stdout


EXCEPT = '''
import os, threading
import pytest
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

class Test(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def _is_thread(self):
        return threading.current_thread().name.startswith("rank ")

    def test_thread(self):
        assert self._is_thread()

    def test_process(self):
        assert not self._is_thread()

    @pytest.mark.rankloom_except
    def test_marked(self):
        assert not self._is_thread()
'''


@pytest.mark.parametrize("pattern", ["test_process", "*::test_proc*"])
def test_exceptions_keep_their_processes(tmp_path: pathlib.Path, pattern: str) -> None:
    done = run_pytest(tmp_path, EXCEPT, "--rankloom", "--rankloom-except", pattern, "test_it.py")
    assert "3 passed" in done.stdout, done.stdout + done.stderr


MISSING_WAIT = '''
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

class Wrong(MultiProcessTestCase):
    @property
    def world_size(self):
        return 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_wait(self):
        dist.init_process_group("gloo", store=dist.FileStore(self.file_name, 2), rank=self.rank, world_size=2)
        x = torch.ones(1)
        work = dist.all_reduce(x, async_op=True)
        assert x.item() == 2
        work.wait()
'''


def test_the_command_of_a_run_by_seeds_repeats_it_on_threads(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, MISSING_WAIT, "--rankloom-seeds=2", "test_it.py")
    told = re.search(r"run it again: (.*)\n", done.stdout)
    assert told is not None and " --rankloom " in told[1] and "--rankloom-seeds" not in told[1], done.stdout
    again = subprocess.run(["sh", "-c", told[1]], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "1 failed in" in again.stdout and " failed: AssertionError: assert n" in again.stdout, again.stdout + again.stderr


def test_a_wrong_number_of_seeds(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, EXCEPT, "--rankloom-seeds=-1", "test_it.py")
    assert done.returncode == 4 and "--rankloom-seeds is -1, want 0 or more" in done.stderr


DROP_INS = '''
import torch
import torch.distributed as dist
from rankloom.torch.testing import DTensorTestBase, FSDPTest, MultiProcContinuousTest
from torch.testing._internal.distributed._tensor.common_dtensor import with_comms

class Continuous(MultiProcContinuousTest):
    @classmethod
    def backend_str(cls):
        return "gloo"

    def test_sum(self):
        x = torch.tensor([self.rank])
        dist.all_reduce(x)
        self.assertEqual(x.item(), 6)

class Seeded(Continuous):
    seed = 3

    def test_sum(self):
        import rankloom.torch
        super().test_sum()
        self.assertTrue(rankloom.torch._ext.current()[0].deterministic)

class Tensors(DTensorTestBase):
    schedule = "free"

    @with_comms
    def test_mesh(self):
        self.assertEqual(self.build_device_mesh().size(), 4)

class Sharded(FSDPTest):
    def test_group(self):
        self.assertEqual(self.process_group.size(), 4)
        self.assertEqual(dist.get_backend(), "gloo")
'''


def test_drop_ins(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, DROP_INS, "test_it.py")
    assert "4 passed" in done.stdout, done.stdout[-5000:] + done.stderr


SUBTESTS = '''
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase, MultiThreadedTestCase

class Processes(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_sizes(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        for size in (1, 2, 3):
            with self.subTest(size=size):
                x = torch.full((size,), self.rank + 1.0)
                dist.all_reduce(x)
                self.assertEqual(x.sum().item(), 6.0 if self.rank == 1 else 3.0 * size)
        dist.barrier()

class Threads(MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_sizes(self):
        for size in (1, 2):
            with self.subTest(size=size):
                self.assertEqual((self.rank, size), (self.rank, 1))
        dist.barrier()
'''


@pytest.mark.parametrize("options", [["--rankloom"], ["--rankloom-seeds", "2"]])
def test_a_subtest_that_fails_fails_its_test(options: list[str], tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, SUBTESTS, *options, "test_it.py")
    out = done.stdout
    assert done.returncode == 1 and "2 failed in" in out, out
    assert "rank 1 failed: AssertionError: " in out and "self.assertEqual(x.sum().item(), 6.0 if self.rank == 1 else 3.0 * size)" in out, out
    assert "self.assertEqual((self.rank, size), (self.rank, 1))" in out, out


EXPIRES = '''
import time
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

class Test(MultiProcessTestCase):
    world_size = 3

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def _init(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)

    def test_a_hangs(self):
        self._init()
        while self.rank == 1:
            time.sleep(0.01)
        dist.barrier()

    def test_b_after(self):
        self._init()
        dist.barrier()
'''


@pytest.mark.parametrize("method", ["signal", "thread"])
def test_a_timeout_that_expires_ends_the_ranks(method: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pytest_timeout")
    done = run_pytest(tmp_path, EXPIRES, "--rankloom", "--timeout=5", f"--timeout-method={method}", "test_it.py")
    both = done.stdout + done.stderr
    assert done.returncode == 1 and "Timeout" in both, both
    assert "time.sleep(0.01)" in both, both  # where the rank hung
    if method == "signal":  # the other method ends the process
        assert "1 failed, 1 passed in" in done.stdout, both
        assert "Timeout (>5.0s) from pytest-timeout" in done.stdout, both


BACKENDS = '''
import threading
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import DistributedTestBase, MultiProcContinuousTest, MultiProcessTestCase
from torch.testing._internal.common_fsdp import FSDPTest
from torch.testing._internal.distributed.fake_pg import FakeStore

def on_threads():
    return threading.current_thread().name.startswith("rank ")

class Processes(MultiProcessTestCase):
    world_size = 3

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_nccl(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("nccl", store=store, rank=self.rank, world_size=self.world_size)
        self.assertEqual((dist.get_backend(), on_threads()), ("nccl", True))
        x = torch.tensor([10.0 ** self.rank])
        dist.all_reduce(x)
        part = dist.new_group([0, 2], backend="nccl")
        y = torch.tensor([self.rank + 1.0])
        if self.rank != 1:
            dist.broadcast(y, src=2, group=part)
        self.assertEqual((x.item(), y.item()), (111.0, 2.0 if self.rank == 1 else 3.0))

    def test_fake(self):
        dist.init_process_group("fake", store=FakeStore(), rank=self.rank + 5, world_size=64)
        self.assertEqual((dist.get_backend(), dist.get_rank(), dist.get_world_size()), ("fake", self.rank + 5, 64))
        x = torch.tensor([self.rank + 1.0])
        dist.all_reduce(x)
        gathered = torch.zeros(64)
        dist.all_gather_into_tensor(gathered, x)
        self.assertEqual((x.item(), on_threads()), (self.rank + 1.0, True))

    def test_each_device_its_own(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=self.rank, world_size=self.world_size)
        x = torch.tensor([self.rank])
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        self.assertEqual(x.item(), 2)

class Devices(DistributedTestBase):
    world_size = 2

    def test_created(self):
        self.create_pg("cpu")
        x = torch.tensor([self.rank + 4])
        dist.all_reduce(x, group=dist.new_group(backend="nccl"))
        self.assertEqual((x.item(), dist.get_backend()), (9, "gloo"))

class Continuous(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls):
        return "nccl"

    def test_sum(self):
        x = torch.tensor([self.rank + 4])
        dist.all_reduce(x)
        self.assertEqual((x.item(), dist.get_backend()), (9, "nccl"))

class Sharded(FSDPTest):
    world_size = 2
    fake_pg = False

    def test_group(self):
        x = torch.tensor([self.rank + 4])
        dist.all_reduce(x, group=dist.new_group(backend="nccl"))
        self.assertEqual(x.item(), 9)
'''


@pytest.mark.parametrize("options", [["--rankloom"], ["--rankloom-seeds", "2"]])
def test_classes_whose_groups_are_nccls_or_fake(options: list[str], tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, BACKENDS, *options, "-rs", "--timeout=100", "test_it.py")
    want = "6 passed"
    if not dist.is_nccl_available():  # which one of these classes asks for itself
        want = "5 passed, 1 skipped"
        assert "Backend 'nccl' is not available" in done.stdout
    assert want in done.stdout and "failed" not in done.stdout, done.stdout[-6000:] + done.stderr[-2000:]


LEAVES = '''
import sys
from torch.testing._internal.common_distributed import MultiProcessTestCase

class Leaves(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        mine = getattr(self, self._testMethodName).__wrapped__
        if "seven" in self._testMethodName:
            self.special_return_code_checks = {mine: 7}
        if "any" in self._testMethodName:
            self.skip_return_code_checks = [mine]
        self._spawn_processes()

    def test_seven(self):
        sys.exit(7)

    def test_any(self):
        sys.exit(8)

    def test_seven_but_eight(self):
        sys.exit(8)

    def test_none(self):
        sys.exit(7)
'''


def test_exit_codes_that_a_test_expects(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, LEAVES, "--rankloom", "test_it.py")
    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    for name in "test_seven_but_eight", "test_none":
        assert f"FAILED test_it.py::Leaves::{name} - " in done.stdout, done.stdout


NAMES = '''
import unittest
import rankloom.torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase, spawn_threads_and_init_comms

class Named(MultiProcessTestCase):
    """Attributes of the user's own, by names which our own classes give a meaning."""

    world_size = 2
    seed = 1234
    schedule = "1F1B"

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_it(self):
        pass

    def tearDown(self):
        super().tearDown()
        assert rankloom.torch.last_report().schedule.startswith("seeded:"), rankloom.torch.last_report().schedule
        assert rankloom.torch.last_report().schedule != "seeded:1234"

class Marked(unittest.TestCase):
    @spawn_threads_and_init_comms(world_size=2)
    @unittest.expectedFailure
    def test_fails(self):
        self.fail("as expected")
'''


def test_attributes_and_marks_of_the_users_own(tmp_path: pathlib.Path) -> None:
    done = run_pytest(tmp_path, NAMES, "--rankloom", "--rankloom-seeds=2", "test_it.py")
    assert "1 passed, 1 xfailed" in done.stdout, done.stdout + done.stderr
