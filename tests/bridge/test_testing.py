"""rankloom's own drop-in test class."""

import abc
import typing
import unittest

import pytest
import rankloom.torch
import torch
import torch.distributed as dist
from cases import run_case
from rankloom.torch import _ext, _stores
from rankloom.torch.testing import MultiProcessTestCase, MultiThreadedTestCase, spawn_threads_and_init_comms


def test_stores_that_ranks_make_by_a_name_go_with_the_test() -> None:
    class Stores(MultiThreadedTestCase):
        def setUp(self) -> None:
            super().setUp()
            self._spawn_threads()

        @property
        def world_size(self) -> int:
            return 2

        def test(self) -> None:
            dist.FileStore("/nowhere/there", 2).set("k", "v")

    before = dict(_stores._names)
    result = unittest.TestResult()
    Stores("test").run(result)
    assert result.wasSuccessful() and result.testsRun == 1, result
    assert _stores._names == before


def test_a_job_that_is_refused_and_a_setup_that_fails_leave_torch_as_it_was() -> None:
    class Refused(MultiThreadedTestCase):
        schedule = "nonsense"

        def setUp(self) -> None:
            super().setUp()
            self._spawn_threads()

        def test(self) -> None:
            pass

    class Fails(Refused):
        schedule = None

        def setUp(self) -> None:
            super().setUp()
            raise RuntimeError("after the ranks began")

        def test(self) -> None:
            dist.barrier()

    world = dist.distributed_c10d._world
    for case in (Refused, Fails):
        result = unittest.TestResult()
        case("test").run(result)
        assert len(result.errors) == 1, result
        assert dist.distributed_c10d._world is world
        with rankloom.torch.fake_world(0, 2):
            pass


def test_a_class_that_derives_from_ddp_may_have_a_metaclass() -> None:
    class Named(typing.Protocol):
        def name(self) -> str: ...

    class Meta(abc.ABCMeta):
        pass

    class OfProtocol(torch.nn.parallel.DistributedDataParallel, Named):
        def name(self) -> str:
            return "named"

    class OfMeta(torch.nn.parallel.DistributedDataParallel, metaclass=Meta):
        pass

    def program() -> None:
        for kind in (OfProtocol, OfMeta):
            kind(torch.nn.Linear(1, 1))(torch.ones(1, 1)).sum().backward()

    rankloom.torch.run(program, 2).raise_if_failed()


def test_a_class_that_derives_from_ddp_may_be_abstract() -> None:
    class Abstract(torch.nn.parallel.DistributedDataParallel, abc.ABC):
        @abc.abstractmethod
        def name(self) -> str: ...

    class Concrete(Abstract):
        def name(self) -> str:
            return "concrete"

    with pytest.raises(TypeError, match="abstract"):
        Abstract(torch.nn.Linear(1, 1))  # type: ignore[abstract]

    def program() -> None:
        module = Concrete(torch.nn.Linear(1, 1))
        module(torch.ones(1, 1)).sum().backward()
        assert isinstance(module, torch.nn.parallel.DistributedDataParallel)
        assert not isinstance(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1)), Abstract)

    rankloom.torch.run(program, 2).raise_if_failed()


def test_the_class() -> None:
    order: list[str] = []

    class Case(MultiThreadedTestCase):
        @property
        def world_size(self) -> int:
            return 3

        def setUp(self) -> None:
            super().setUp()
            self._spawn_threads()

        def perThreadSetUp(self) -> None:
            order.append("up")

        def perThreadTearDown(self) -> None:
            order.append("down")

        def test_sum(self) -> None:
            x = torch.full((2,), float(self.rank))
            dist.all_reduce(x)
            self.assertEqual(x, torch.full((2,), 3.0))

    result = run_case(Case)
    assert result.wasSuccessful(), result.errors
    assert order.count("up") == order.count("down") == 3


def test_what_decorators_put_on_a_method_of_ranks_counts() -> None:
    class Marked(MultiProcessTestCase):
        world_size = 2  # type: ignore[assignment]

        @unittest.expectedFailure
        def test_fails(self) -> None:
            self.fail("as expected")

        @unittest.expectedFailure
        def test_passes(self) -> None:
            pass

        @unittest.skip("not here")
        def test_skipped(self) -> None:
            self.fail("it ran")

    result = unittest.TestResult()
    for name in ("test_fails", "test_passes", "test_skipped"):
        Marked(name).run(result)
    assert (len(result.expectedFailures), len(result.unexpectedSuccesses), len(result.skipped)) == (1, 1, 1)
    assert result.errors == [] and result.failures == []


def test_a_failure_has_its_seed_and_the_first_rank() -> None:
    class Case(MultiThreadedTestCase):
        seed = 12

        @property
        def world_size(self) -> int:
            return 3

        def setUp(self) -> None:
            super().setUp()
            self._spawn_threads()

        def test_failure(self) -> None:
            if self.rank == 1:
                raise ValueError("rank 1 gives up")
            dist.barrier()

    ((_, text),) = run_case(Case).errors
    assert "Thread 1 exited with exception" in text
    assert "Thread 0 exited" not in text
    assert "ValueError: rank 1 gives up" in text
    assert "RANKLOOM_SEED=12" in text
    assert "in run_test_with_threaded_pg" not in text, text


def test_the_decorator() -> None:
    class Case(unittest.TestCase):
        @spawn_threads_and_init_comms(world_size=3, seed=2)
        def test_sum(self) -> None:
            x = torch.ones(1)
            dist.all_reduce(x)
            self.assertEqual(x.item(), 3)

    assert run_case(Case).wasSuccessful()


@pytest.mark.parametrize("seeded", [None, 3])
@pytest.mark.parametrize("name", ["gloo", "cpu:gloo", None])
def test_built_in_backends_are_ours(name: str | None, seeded: int | None) -> None:
    made: list[str] = []

    class Case(MultiProcessTestCase):
        world_size = 2
        seed = seeded

        def setUp(self) -> None:
            super().setUp()
            self._spawn_processes()

        def test_sum(self) -> None:
            store = dist.FileStore(self.file_name, self.world_size)
            dist.init_process_group(name, store=store, rank=self.rank, world_size=self.world_size)
            x = torch.full((2,), float(self.rank + 1))
            dist.all_reduce(x)
            self.assertEqual(x, torch.full((2,), 3.0))
            made.append(type(dist.group.WORLD._get_backend(torch.device("cpu"))))  # type: ignore[union-attr]

    result = run_case(Case)
    assert result.wasSuccessful(), result.errors
    assert made == [_ext.Backend] * 2


def test_a_seed_or_schedule_of_the_class_is_that_of_its_ranks() -> None:
    for base in (MultiProcessTestCase, rankloom.torch.testing.DTensorTestBase):
        for name, value, told in (("seed", 3, "seeded:3"), ("schedule", "free", "free")):
            case = type("Case", (base,), {"world_size": 2, name: value, "test_it": lambda self: None})
            assert run_case(case).wasSuccessful()
            last = rankloom.torch.last_report()
            assert last is not None and last.schedule == told
