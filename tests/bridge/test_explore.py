"""explore(): a search over schedules finds what one lucky run does not, or proves that there is nothing to find."""

import argparse
import array
import collections
import contextlib
import contextvars
import copy
import csv
import ctypes
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import io
import itertools
import logging
import os
import pathlib
import random
import re
import subprocess
import sys
import threading
import time
import types
import urllib.parse
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import launching
import numpy
import pytest
import rankloom.torch
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from rankloom.torch import Fault, FaultPlan, _bits, _explore, _ext
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.utils.data import DataLoader


def _store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


def _count(add: bool) -> int:
    """Ranks count themselves, with get and set where add is wanted."""
    store = _store()
    if dist.get_rank() == 0:
        store.set("count", "0")
    dist.barrier()
    if add:
        store.add("count", 1)
    else:
        store.set("count", str(int(store.get("count")) + 1))
    dist.barrier()
    count = int(store.get("count"))
    assert count == dist.get_world_size(), f"counted {count} ranks"
    return count


def _racy() -> int:
    return _count(add=False)


def _right() -> int:
    return _count(add=True)


def _sums(rank: int) -> list[float]:
    x = torch.arange(4.0) * (rank + 1)
    for _ in range(3):
        dist.all_reduce(x)
    out = [torch.empty(4) for _ in range(dist.get_world_size())]
    dist.all_gather(out, x + rank)
    return [*x.tolist(), *torch.cat(out).tolist()]


def test_a_program_of_plain_collectives_is_verified() -> None:
    found = rankloom.torch.explore(_sums, 4)
    assert found.ok and found.verified and found.runs == 3
    assert found.summary == "verified: all 1 schedule that can differ, in 1 run"
    (share,) = found.shares
    assert (share.strategy, share.schedules, share.open, share.finished, share.unseen) == ("exhaustive", 1, 0, True, [])
    again = "explored 3 runs in {} s ({} a second): no failure\n  exhaustive: verified: all 1 schedule that can differ, in 1 run"
    assert re.fullmatch(re.escape(again).replace(r"\{\}", r"\S+"), found.text), found.text


@pytest.mark.parametrize("made", ["mesh", "groups"])
def test_groups_that_overlap_are_made_in_each_ranks_order(made: str) -> None:
    def program() -> None:
        if made == "mesh":
            dist.init_device_mesh("cpu", (2, 2))
            return
        for ranks in ([0, 1], [2, 3], [0, 2], [1, 3]):
            dist.new_group(ranks)

    report = rankloom.torch.explore(program, 4, runs=60)
    assert report.ok, report.text


def test_orders_that_can_differ_are_counted() -> None:
    found = rankloom.torch.explore(_right, 3)
    assert found.summary == "verified: all 6 schedules that can differ, in 6 runs", found.text  # of 3 add()s


def test_finds_a_lost_update_and_brings_it_down(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rankloom.torch.explore(_racy, 4, min_ranks=2)
    failure = found.failure
    assert failure is not None and not found.verified and not failure.ok
    assert (failure.strategy, failure.ranks, failure.switches) == ("exhaustive", 2, 1), found.text
    assert re.search(r"shrunk in \d+ runs: 2 ranks, 1 switch from the default order\n", found.text)
    assert failure.headline == "rank 1 failed: AssertionError: counted 1 ranks"
    assert failure.results[1] is None and isinstance(failure.exceptions[1], AssertionError)
    lines = found.text.split("\n")
    at = lines.index("what happened, in this order:")
    assert re.fullmatch(r"   step  rank 0 +rank 1", lines[at + 1])
    lines_of_code, first = inspect.getsourcelines(_count)
    place = rf"\[test_explore.py:{first + next(i for i, line in enumerate(lines_of_code) if 'str(int(' in line)}\]"
    get = next(i for i, line in enumerate(lines) if re.fullmatch(rf" +\d+ {{20,}}store get 0//count {place}", line))
    late = next(i for i, line in enumerate(lines) if re.fullmatch(rf" +\d+ {{20,}}store set 0//count {place}", line))
    other = next(i for i, line in enumerate(lines) if re.fullmatch(rf" +\d+  store set 0//count {place}", line))
    assert at < get < other < late, found.text  # rank 1 reads before, and writes after rank 0 does
    assert 'assert count == dist.get_world_size(), f"counted {count} ranks"' in found.text
    with pytest.raises(rankloom.torch.RankFailedError, match="counted") as raised:
        found.raise_if_failed()
    assert isinstance(raised.value.__cause__, AssertionError)

    again = re.match(r"RANKLOOM_RANKS=2 RANKLOOM_ENGINE=threads RANKLOOM_SCHEDULE='(steered:1:1@\d+>0)' ", failure.rerun)
    assert again is not None, failure.rerun
    monkeypatch.setenv("RANKLOOM_SCHEDULE", again[1])
    monkeypatch.setenv("RANKLOOM_RANKS", "2")
    repeated = rankloom.torch.explore(_racy, 4)
    assert repeated.runs == 3 and repeated.failure is not None
    assert repeated.failure.trace == failure.trace
    fixed = rankloom.torch.explore(_right, 4)
    assert fixed.ok and fixed.runs == 3 and not fixed.verified, fixed.text


def test_strategies_that_draw_from_seeds() -> None:
    found = rankloom.torch.explore(_racy, 3, runs=200, strategies=["pct(4)"])
    assert found.failure is not None and found.failure.strategy == "pct(4)" and 2 < found.runs < 200
    assert re.match(r"pct:\d+:4", found.failure.found)
    drawn = ["pct", "starve", "late_completion", "random"]
    found = rankloom.torch.explore(_right, 3, runs=30, strategies=drawn)
    assert [(share.strategy, share.runs) for share in found.shares] == [
        ("pct(3)", 7), ("starve", 7), ("late_completion", 7), ("random", 7),
    ]  # fmt: skip
    assert found.summary == "no failure in 30 runs (not exhaustive: pct(3), starve, late_completion, random only)"


def test_what_ranks_share_in_python_is_not_verified() -> None:
    came: list[int] = []
    weights = torch.zeros(2)
    total = 0

    def shares(rank: int) -> None:
        nonlocal total
        came.append(rank)
        weights.add_(1)
        total += 1
        dist.barrier()

    found = rankloom.torch.explore(shares, 2, strategies=["exhaustive"])
    assert found.ok and not found.verified
    unseen = "variables of Python that ranks share and change: came, total, weights"
    assert found.summary == f"no failure in 3 runs (the one schedule that rankloom can see; not verified because of: {unseen})"
    assert f"all 1 schedule that rankloom can see, in 1 run (not seen: {unseen})" in found.text

    def reads(rank: int) -> list[int]:
        dist.barrier()
        return [*came, int(weights[0])]

    assert rankloom.torch.explore(reads, 2).verified


@dataclasses.dataclass
class _Slotted:
    __slots__ = ("first",)
    first: int


class _Net(torch.nn.Module):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    @property
    def size(self) -> int:
        return 2


def test_state_in_slots_functions_and_modules_is_shared_and_classes_that_stay_are_not() -> None:
    state = _Slotted(-1)

    def slots(rank: int) -> None:
        if state.first < 0:
            state.first = rank
        dist.barrier()

    assert "ranks share and change: state" in rankloom.torch.explore(slots, 2, strategies=["exhaustive"]).summary

    def counts() -> None:
        counts.calls = getattr(counts, "calls", 0) + 1  # type: ignore[attr-defined]
        dist.barrier()

    unseen = "ranks share and change: counts (its attributes)"
    assert unseen in rankloom.torch.explore(counts, 2, strategies=["exhaustive"]).summary
    large = numpy.zeros(1 << 18)

    def writes(rank: int) -> None:
        large[rank] += 1
        launching.marker = rank  # type: ignore[attr-defined]
        dist.barrier()

    launching.marker = 5  # type: ignore[attr-defined]
    unseen = "ranks share and change: large, launching.marker"
    assert unseen in rankloom.torch.explore(writes, 2, strategies=["exhaustive"]).summary

    def right() -> None:
        _Net()
        _Slotted(1)
        dist.barrier()

    for _ in range(3):
        found = rankloom.torch.explore(right, 2, strategies=["exhaustive"])
        assert found.verified, found.summary


_came: list[int] = []


class _Base:
    came: list[int] = []  # noqa: RUF012 (ranks share it, as the test wants)


class _Log(_Base):
    def __init__(self) -> None:
        self.log: list[int] = []

    def __call__(self, rank: int) -> None:
        self.log.append(rank)
        dist.barrier()

    def method(self, rank: int) -> None:
        self.came.append(rank)
        dist.barrier()

    @classmethod
    def of_class(cls, rank: int) -> None:
        cls.came.append(rank)
        dist.barrier()

    def by_a_global(self, rank: int) -> None:
        _came.append(rank)
        dist.barrier()


_log = _Log()


def _by_a_method(rank: int) -> None:
    _log.by_a_global(rank)


def _twice() -> Callable[[int], None]:
    """Two functions that each have a variable of the same name; only the first one's changes."""

    def keeps(state: list[int]) -> Callable[[int], None]:
        def keep(rank: int) -> None:
            if state:
                state.append(rank)

        return keep

    first, second = keeps([0]), keeps([])

    def both(rank: int) -> None:
        first(rank)
        second(rank)
        dist.barrier()

    return both


def _calls(rank: int, function: Callable[[int], Any]) -> None:
    function(rank)
    dist.barrier()


def _by_a_default(rank: int, function: Callable[[int], None] = _came.append) -> None:
    _calls(rank, function)


def _appends(value: Any) -> Callable[[int], None]:
    def appends(rank: int) -> None:
        value.append(rank)

    return appends


def _counts(value: Any) -> Callable[[int], None]:
    def counts(rank: int) -> None:
        next(value)
        dist.barrier()

    return counts


class _Nest:
    class Inner:
        calls = 0

    def __init__(self) -> None:
        self.actions: dict[str, Any] = {"append": [].append}


def _by_a_nested_class(rank: int) -> None:
    _Nest.Inner.calls += 1
    dist.barrier()


def _does(value: Any, do: Callable[[Any], Any]) -> Callable[[int], None]:
    def does(rank: int) -> None:
        do(value)
        dist.barrier()

    return does


def _squares() -> Iterator[int]:
    number = 0
    while True:
        yield number * number
        number += 1


@functools.lru_cache
def _cached(rank: int) -> int:
    return rank


def _calls_cached(rank: int) -> None:
    _cached(rank)
    dist.barrier()


def _by_a_random_function(rank: int) -> None:
    random.random()
    numpy.random.rand()
    dist.barrier()


def _sets_a_variable(rank: int) -> None:
    os.environ["OF_THE_LAST_RANK"] = str(rank)
    dist.barrier()


def _trains(value: torch.optim.Optimizer) -> None:
    value.param_groups[0]["lr"] *= 0.5


class _Layer(torch.nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _Layer.calls += 1
        return x


class _Kept:
    @staticmethod
    @functools.lru_cache
    def of(rank: int) -> int:
        return rank


_kept = _Kept()


def _by_a_kept_method(rank: int) -> None:
    _kept.of(rank)
    dist.barrier()


@functools.singledispatch
def _by_type(value: Any) -> None: ...


@_by_type.register
def _by_int(value: int) -> None:
    _Layer.calls += value


def _dispatches(rank: int) -> None:
    _by_type(1)
    dist.barrier()


class _Counts:
    count = 0

    def add(self) -> None:
        _Counts.count += 1


def _by_globals(rank: int) -> None:
    globals()["_never_named"] = rank
    dist.barrier()


def _release(value: threading.Semaphore) -> None:
    value.release()


def _set_data(value: torch.Tensor) -> None:
    value.data = torch.ones(1)


def _deep() -> list[Any]:
    value: list[Any] = [0]
    for _ in range(20):
        value = [value]
    return value


def _raise_deepest(value: list[Any]) -> None:
    while isinstance(value[0], list):
        value = value[0]
    value[0] += 1


@pytest.mark.parametrize(
    ("program", "names"),
    [
        (_by_globals, "globals() of test_explore"),
        (_does(argparse.Namespace(n=0), lambda value: setattr(value, "n", value.n + 1)), "value"),
        (_does(threading.Semaphore(), _release), "value"),
        (_does(dist.HashStore(), lambda value: value.set("a", "b")), "value"),
        (_does(ctypes.c_int(0), lambda value: setattr(value, "value", value.value + 1)), "value"),
        (_does(types.CellType(0), lambda value: setattr(value, "cell_contents", value.cell_contents + 1)), "value"),
        (_does(ValueError(), lambda value: setattr(value, "n", len(vars(value)))), "value"),
        (_does(torch.ones(1), lambda value: setattr(value, "n", len(vars(value)))), "value"),
        (_does(torch.ones(1), _set_data), "value"),
        (_does(_deep(), _raise_deepest), "value"),
        (_does(iter(DataLoader(list(range(99)))), next), "value"),  # type: ignore[arg-type]
        (_does(list(range(1_200_000)), len), "some of more than 100,000 objects, which are not all looked at"),
        (_does([_Counts()], lambda value: value[0].add()), "_Counts"),
        (_does(torch.nn.Sequential(_Layer()), lambda value: value(torch.ones(1))), "_Layer"),
        (_by_a_kept_method, "of (its cache)"),
        (_dispatches, "_Layer"),
        (_does(iter(collections.deque([0] * 99)), next), "value"),
        (_does(iter(itertools.count().__next__, -1), next), "value"),
        (_does(csv.reader(["a"] * 99), next), "value"),
        (_does(collections.ChainMap({}), lambda value: value.update({len(value): 1})), "value"),
        (_does(numpy.ma.masked_array([1]), lambda value: value.__iadd__(1)), "value"),
        (_does(numpy.arange(99).flat, next), "value"),
        (_does(torch.Generator(), lambda generator: torch.rand(1, generator=generator)), "value"),
        (_does(numpy.random.default_rng(1), lambda generator: generator.random()), "value"),
        (_does(numpy.random.RandomState(1), lambda generator: generator.rand()), "value"),
        (_does(random.Random(1), lambda generator: generator.random()), "value"),
        (_does(iter([0] * 99), next), "value"),
        (_does(enumerate([0] * 99), next), "value"),
        (_does(map(str, range(99)), next), "value"),
        (_does(itertools.cycle([1, 2, 3]), next), "value"),
        (_does(iter(dict.fromkeys(range(99)).items()), next), "value"),
        (_does(_squares(), next), "value"),
        (_calls_cached, "_cached (its cache)"),
        (_does([[].append], lambda value: value[0](1)), "list (self)"),
        (_does({"a": functools.partial([].append, 1)}, lambda value: value["a"]()), "list (self)"),
        (_does((_appends([]),), lambda value: value[0](1)), "value"),
        (_does(_Nest(), lambda value: value.actions["append"](1)), "list (self)"),
        (_by_a_nested_class, "Inner"),
        (_does(collections.UserDict(), lambda value: value.update({len(value): 1})), "value"),
        (_does(torch.optim.SGD([torch.ones(1)], lr=1.0), _trains), "value"),
        (_does(numpy.array([None], object), lambda value: value.fill(len(str(value)))), "value"),
        (_by_a_random_function, "the state of numpy.random (want swap_random=True), the state of random (want swap_random=True)"),
        (_sets_a_variable, "os.environ"),
    ],
    ids=[
        "globals()", "namespace", "semaphore", "store", "ctypes", "cell", "exception", "attribute of a tensor", "data",
        "deep", "loader", "too many", "object in a list", "module in a module", "cached method", "dispatch", "deque's", "function's", "csv",
        "chain of dicts", "masked",
        "flat", "torch's generator", "numpy's generator", "numpy's state", "generator", "iterator", "enumerate", "map", "cycle", "items",
        "generator function", "cache", "method in a list", "partial in a dict", "function in a tuple", "attribute", "nested class",
        "user's dict", "optimizer", "objects", "random functions", "environment",
    ],
)  # fmt: skip
def test_shared_state_that_is_not_a_plain_value_is_found(
    program: Callable[[int], None], names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_LAST_RANK", "")
    found = rankloom.torch.explore(program, 2, strategies=["exhaustive"])
    assert f"not verified because of: variables of Python that ranks share and change: {names})" in found.summary


class _Sized:
    def __len__(self) -> int:
        raise RuntimeError("nobody is to ask")

    def __getitem__(self, index: int) -> int:
        return index


class _Empty:
    __slots__ = ("never",)

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("nobody is to ask")


def test_state_that_ranks_share_and_leave_alone_is_verified() -> None:
    with torch.inference_mode():
        inferred = torch.ones(1)
    released = memoryview(b"abc")
    released.release()
    kept = [
        torch.Generator(), numpy.random.default_rng(1), numpy.random.RandomState(1), random.Random(1), iter([1]), enumerate([1]),
        map(str, [1]), itertools.cycle([1]), iter({1: 2}.items()), iter({1, 2}), zip([1], [2], strict=True), _squares(), _cached,
        torch.optim.SGD([torch.ones(1)], lr=1.0), collections.UserDict(a=1), numpy.array([None, [1]], object), numpy.float32(1),
        _Nest(), functools.partial(int, "1"), itertools.chain([1], [2]), itertools.islice([1, 2], 1), reversed([1]), io.StringIO("a"),
        10**5000, iter(_Sized()), _Empty(), [[[n] for n in range(100)] for _ in range(100)], released, csv.reader(["a"]),
        collections.ChainMap({}), numpy.ma.masked_array([1]), numpy.arange(3).flat, inferred, argparse.Namespace(n=0),
        threading.Semaphore(), logging.getLogger("of a test"), ctypes.c_int(0), types.CellType(0), ValueError(), threading.Lock(),
        _with(torch.ones(1, requires_grad=True), grad=torch.ones(1)), weakref.WeakKeyDictionary({_kept: 1}), fractions.Fraction(10**5000),
        datetime.datetime(2026, 1, 1, tzinfo=_Zone()), _kept.of, weakref.proxy(_kept),
    ]  # fmt: skip

    def looks(rank: int) -> int:
        urllib.parse.urlsplit(f"http://host/{rank}")  # kept by a library
        random.random()
        numpy.random.rand()
        dist.barrier()
        return len(kept)

    found = rankloom.torch.explore(looks, 2, swap_random=True)
    assert found.verified, found.summary


class _Last:
    def __init__(self) -> None:
        self.rank = -1


@pytest.mark.parametrize(
    "hold",
    [lambda last: {last}, lambda last: {last: 0}, lambda last: _with(torch.ones(1), held=[[last]]), lambda last: [_deep(), [_deep()], last]],
    ids=["set", "key", "attribute of a tensor", "list"],
)
def test_an_object_that_ranks_share_is_looked_at_wherever_it_was_met_first(hold: Callable[[_Last], Any]) -> None:
    last = _Last()
    registry = hold(last)

    def program(rank: int) -> str:
        last.rank = rank
        dist.barrier()
        return type(registry).__name__

    found = rankloom.torch.explore(program, 2)
    names = re.search(r"variables of Python that ranks share and change: (last|registry)\)", found.summary)
    assert names is not None, found.summary


@pytest.mark.parametrize("many", [0, 1000])
def test_what_other_schedules_alone_change_is_seen(many: int) -> None:
    seen: list[int] = []
    others = [[n] for n in range(many)]  # too many for a look after each run

    def program(rank: int) -> list[int]:
        if _store().add("n", 1) == 1 and rank == 1:
            seen.append(1)
        dist.barrier()
        return [len(others), *seen[:0]]

    found = rankloom.torch.explore(program, 2)
    assert found.ok and not found.verified and found.runs > 2, found.text
    unseen = "variables of Python that ranks share and change: seen"
    assert f"not verified because of: {unseen})" in found.summary and f"(not seen: {unseen})" in found.text, found.text


@pytest.mark.parametrize(
    ("before", "make"),
    [
        (decimal.Decimal(0), decimal.Decimal),
        (fractions.Fraction(0), fractions.Fraction),
        (pathlib.Path("0"), lambda rank: pathlib.Path(str(rank))),
        (datetime.datetime(2026, 1, 1), lambda rank: datetime.datetime(2026, 1, 1 + rank)),
        (torch.tensor([0]), lambda rank: torch.tensor([rank])),
        (object(), lambda rank: object()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_variable_that_gets_another_object_has_changed(before: Any, make: Callable[[int], Any]) -> None:
    """Also where the new one stands in the memory of the one before."""
    last = [before]
    del before

    def program(rank: int) -> str:
        last[0] = None
        last[0] = make(rank)
        dist.barrier()
        return str(len(last))

    found = rankloom.torch.explore(program, 2)
    assert "variables of Python that ranks share and change: last" in found.summary, found.summary


def test_values_that_are_made_anew_are_the_same() -> None:
    last = [decimal.Decimal("0.1"), pathlib.Path("a"), datetime.date(2026, 1, 1), torch.float32]

    def program() -> int:
        last[:] = [decimal.Decimal("0.1"), pathlib.Path("a"), datetime.date(2026, 1, 1), torch.float32]
        dist.barrier()
        return len(last)

    found = rankloom.torch.explore(program, 2)
    assert found.verified, found.summary


class _NeverFilled(collections.UserDict[str, int]):
    def __init__(self) -> None:
        pass


class _Closed(dict[str, int]):
    def values(self) -> Any:
        raise ValueError("nobody is to ask")

    items = __iter__ = __len__ = values


class _ClosedList(list[int]):
    def __iter__(self) -> Any:
        raise ValueError("nobody is to ask")

    __len__ = __getitem__ = __iter__


def test_containers_of_a_programs_own_are_looked_at_without_its_code() -> None:
    never, closed, closed_list = _NeverFilled(), _Closed(a=1), _ClosedList([1])

    def looks() -> str:
        dist.barrier()
        return f"{type(never)} {type(closed)} {type(closed_list)}"

    found = rankloom.torch.explore(looks, 2)
    assert found.verified, found.summary

    def adds(rank: int) -> None:
        looks()
        dict.update(closed, {str(rank): rank})
        list.append(closed_list, rank)

    found = rankloom.torch.explore(adds, 2)
    assert "ranks share and change: closed, closed_list)" in found.summary, found.summary


@pytest.mark.parametrize("size", [1, 1 << 18])
def test_what_is_written_to_inference_tensors_is_seen(size: int) -> None:
    with torch.inference_mode():
        inferred = torch.zeros(size)

    def writes(rank: int) -> None:
        with torch.inference_mode():
            inferred[0] = rank
        dist.barrier()

    found = rankloom.torch.explore(writes, 2)
    assert "ranks share and change: inferred" in found.summary, found.summary


@pytest.mark.parametrize("make", [lambda path: path.open("w"), lambda path: io.StringIO()], ids=["a file", "a text"])
def test_where_a_program_prints_is_no_state_that_ranks_share(make: Callable[[pathlib.Path], Any], tmp_path: pathlib.Path) -> None:
    with make(tmp_path / "out") as file, contextlib.redirect_stdout(file):

        def prints(rank: int, out: Any = sys.stdout) -> None:
            print("rank", rank, file=out)
            dist.barrier()

        found = rankloom.torch.explore(prints, 2)
    assert found.verified, found.summary


def test_looking_at_a_large_program_takes_no_time() -> None:
    kept = [[n] * 1000 for n in range(2000)]

    def looks() -> int:
        dist.barrier()
        return len(kept)

    began = time.process_time()
    found = rankloom.torch.explore(looks, 2, strategies=["exhaustive"])
    assert "some of more than 100,000 objects, which are not all looked at" in found.summary
    assert time.process_time() - began < 40


LIBRARIES = """
import os, torch, rankloom.torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint
def program(rank):
    from torch.distributed.tensor import DTensor, Shard
    DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (2,)), [Shard(0)])
    checkpoint(torch.nn.Linear(1, 1), torch.ones(1, 1), use_reentrant=False).sum().backward()
    dist.barrier()
print(rankloom.torch.explore(program, 2, strategies=["exhaustive"]).summary)
print([name for name in os.environ if name.startswith("TORCHINDUCTOR")])
"""


def test_variables_that_libraries_set_for_themselves_are_not_shared_state() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHINDUCTOR")}
    command = [sys.executable, "-c", LIBRARIES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith("verified: ") and "TORCHINDUCTOR_CACHE_DIR" in done.stdout, done


@dataclasses.dataclass
class _Trainer:
    callbacks: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Callback:
    trainer: _Trainer


def test_ordinary_things_that_ranks_share_are_no_change(tmp_path: pathlib.Path) -> None:
    trainer = _Trainer()
    trainer.callbacks = [_Callback(trainer) for _ in range(8)]
    with open(tmp_path / "data", "wb") as file:
        file.truncate(1 << 34)  # without content: 16 GiB that nobody is to read
    data = numpy.memmap(tmp_path / "data", mode="r")
    gone = weakref.proxy(_Layer())
    logger = logging.getLogger("of another test")

    def trains(rank: int) -> list[Any]:
        logger.setLevel(logging.INFO)
        gathered: list[Any] = [None] * 2
        dist.all_gather_object(gathered, _Result(1.0, rank))  # pickled, by which Python keeps names in the class
        mesh = init_device_mesh("cpu", (2,))
        return [len(trainer.callbacks), data.shape, type(gone) in weakref.ProxyTypes, gathered, mesh]

    found = rankloom.torch.explore(trains, 2, strategies=["exhaustive"], runs=50)
    assert found.ok and "not seen" not in found.text and "not verified because" not in found.summary, found.text


@pytest.mark.parametrize("how", ["-c", "-"])
def test_shared_state_of_a_program_without_a_file_is_found(how: str) -> None:
    source = """
import rankloom.torch, torch.distributed as dist
came = []
class Counts:
    n = 0
def program(rank):
    came.append(rank)
    Counts.n += 1
    dist.barrier()
print(rankloom.torch.explore(program, 2, strategies=["exhaustive"]).summary)
"""
    command = [sys.executable, how, *([source] if how == "-c" else [])]
    done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=120, check=False)
    assert "not verified because of: variables of Python that ranks share and change: Counts, came)" in done.stdout, done


@pytest.mark.parametrize(
    ("program", "names"),
    [
        (_Log(), "_Log (self)"),
        (_Log().method, "_Base"),
        (_Log.of_class, "_Base"),
        (_by_a_method, "_came"),
        (_twice(), "state"),
        (functools.partial(_calls, function=_appends([])), "value"),
        (functools.partial(_calls, function=_appends(collections.deque())), "value"),
        (_by_a_default, "list (self)"),
        (_counts(itertools.count()), "value"),
    ],
    ids=["object", "method", "classmethod", "global object", "same name", "argument", "deque", "default", "counter"],
)
def test_shared_state_is_found_where_programs_have_it(program: Callable[[int], None], names: str) -> None:
    found = rankloom.torch.explore(program, 2, strategies=["exhaustive"])
    assert f"not verified because of: variables of Python that ranks share and change: {names})" in found.summary


def test_tensors_that_hold_others_are_compared_by_these() -> None:
    def right(rank: int) -> list[torch.Tensor]:
        waiting = funcol.all_reduce(torch.ones(4) + rank, "sum", dist.group.WORLD)
        sharded = DTensor.from_local(torch.ones(2) * rank, init_device_mesh("cpu", (2,)), [Shard(0)])
        return [waiting, sharded, torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr()]

    found = rankloom.torch.explore(right, 2, runs=30)
    assert found.ok, found.text

    def encoded(tensor: torch.Tensor) -> bytes:
        return _bits_of(tensor)

    assert encoded(torch.eye(2).to_sparse()) != encoded((2 * torch.eye(2)).to_sparse())
    assert encoded(torch.eye(2).to_sparse_csr()) != encoded(torch.eye(2)[[1, 0]].to_sparse_csr())
    numbers = torch.tensor([1 + 2j])
    assert encoded(numbers.conj()) != encoded(numbers)
    assert encoded(numbers.conj()) == encoded(torch.tensor([1 - 2j]))


class _Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class _Result:
    loss: float
    step: Any


class _State(enum.Enum):
    DONE = object()
    FAILED = object()


class _Shy:
    def __repr__(self) -> str:
        raise ValueError("no text")


def _bits_of(value: Any, unknown: list[type] | None = None) -> bytes:
    return _bits.bits_of(value, ([] if unknown is None else unknown).append, _ext.tensor_bytes)


class _Listed(list[int]):
    pass


class _WrongError(Exception):
    pass


def _with(value: Any, **attributes: Any) -> Any:
    for name, held in attributes.items():
        setattr(value, name, held)
    return value


def _linear(bias: float) -> torch.nn.Module:
    module = torch.nn.Linear(1, 1)
    with torch.no_grad():
        module.weight.fill_(1)
        module.bias.fill_(bias)
    return module


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
        (fractions.Fraction(1, 3), fractions.Fraction(1, 4)),
        ({1, 2}, {1, 3}),
        (frozenset("ab"), frozenset("ac")),
        (_Result(1.0, 2), _Result(1.0, 3)),
        (_Result(0.0, 2), _Result(-0.0, 2)),
        (_Color.RED, _Color.BLUE),
        (_State.DONE, _State.FAILED),
        (_linear(1), _linear(2)),
        (collections.deque([1]), collections.deque([2])),
        (collections.UserDict(a=1), collections.UserDict(a=2)),
        (datetime.timedelta(1), datetime.timedelta(2)),
        (range(3), range(4)),
        (pathlib.Path("a"), pathlib.Path("b")),
        (bytearray(b"a"), bytearray(b"b")),
        (array.array("i", [1]), array.array("i", [2])),
        (numpy.array([[1], None], object), numpy.array([[2], None], object)),
        (numpy.float32(1), numpy.float32(2)),
        (10**5000, 10**5000 + 1),
        (torch.device("cpu"), torch.device("meta")),
        (functools.partial(int, "1"), functools.partial(int, "2")),
        (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
        (ValueError("a"), ValueError("b")),
        (_with(torch.ones(1, requires_grad=True), grad=torch.ones(1)), _with(torch.ones(1, requires_grad=True), grad=torch.zeros(1))),
        (_with(torch.ones(1), label="a"), _with(torch.ones(1), label="b")),
        (torch.quantize_per_tensor(torch.ones(1), 0.1, 0, torch.quint8), torch.quantize_per_tensor(torch.ones(1), 0.2, 0, torch.quint8)),
        (torch.zeros(1).expand(100_000, 100_000), torch.ones(1).expand(100_000, 100_000)),
        (collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1)),
        (_with(_WrongError(), code=1), _with(_WrongError(), code=2)),
        (FileNotFoundError(2, "gone", "a"), FileNotFoundError(2, "gone", "b")),
        (_with(_Listed([1]), name="a"), _with(_Listed([1]), name="b")),
        (_with(_Result(1.0, 2), name="a"), _with(_Result(1.0, 2), name="b")),
        (array.array("i", [1]), array.array("h", [1, 0])),
        (collections.deque([1], 2), collections.deque([1], 3)),
        (collections.defaultdict(int), collections.defaultdict(float)),
        (torch.nn.ReLU(), torch.nn.ReLU().eval()),
        (slice(0, torch.ones(5000)), slice(0, torch.cat([torch.ones(4999), torch.zeros(1)]))),
        (lambda a=1: a, lambda a=2: a),
        (lambda a: a + 1, lambda a: a + 2),
        (datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc), datetime.datetime(2026, 1, 1)),
        (numpy.array([(1, 2)], "i1,i8"), numpy.array([(1, 3)], "i1,i8")),
        (numpy.longdouble("1.1"), numpy.longdouble(1.1)),
        ([1, "a" * 12], [17, "aa"]),
        (int, float),
        (["a", "b"], ["ab"]),
        ([[1], 2], [[1, 2]]),
        ("\ud800", "\udfff"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_differ_have_other_bits(value: Any, other: Any) -> None:
    unknown: list[type] = []
    assert _bits_of(value, unknown) == _bits_of(copy.deepcopy(value), unknown) != _bits_of(other, unknown)
    assert not unknown


def test_values_that_hold_themselves_and_have_no_text_are_alike() -> None:
    def endless() -> list[Any]:
        value: list[Any] = [1]
        value.append(value)
        return value

    def odd(rank: int) -> Any:
        dist.barrier()
        return [endless(), 10**5000, numpy.array([None], object), torch.nested.nested_tensor([torch.ones(1)]), "a\0b"]

    assert rankloom.torch.explore(odd, 2).verified
    nested = [torch.nested.nested_tensor([torch.ones(1), torch.full((2,), 1.0 * value)]) for value in (1, 2)]
    assert _bits_of(nested[0]) != _bits_of(nested[1])
    assert _bits_of({1: 2, "a": 3}) == _bits_of({"a": 3, 1: 2})
    assert _bits.text_of("a\0b") == r"'a\x00b'" and _bits.text_of(10**5000) == "<int: its repr() raised ValueError>"
    assert _bits.text_of(_Shy()) == "<_Shy: its repr() raised ValueError>"


class _Zone(datetime.tzinfo):
    def utcoffset(self, _: datetime.datetime | None) -> datetime.timedelta:
        return datetime.timedelta(0)


def test_values_made_anew_have_the_same_bits() -> None:
    def makes() -> list[Any]:
        gaps = numpy.empty(50, numpy.dtype("i1,i8", align=True))
        gaps["f0"], gaps["f1"] = 1, 2
        return [
            slice(object()), datetime.datetime(2026, 1, 1, tzinfo=_Zone()), gaps, numpy.arange(50, dtype=numpy.longdouble) / 3,
            torch.nn.LazyLinear(2), _Shy(), lambda: None, {object(): 1}, {"b", "a", "c"}, threading.Lock(),
        ]  # fmt: skip

    assert len({_bits_of(makes()) for _ in range(50)}) == 1
    unknown: list[type] = []
    _bits_of(makes(), unknown)
    assert {_Zone, torch.nn.UninitializedParameter, _Shy, object} <= set(unknown)


def test_large_results_are_compared_at_once() -> None:
    began = time.process_time()
    assert _bits_of([float(n) for n in range(200_000)]) != _bits_of([float(n + 1) for n in range(200_000)])
    shared: list[Any] = [1]
    for _ in range(40):
        shared = [shared, shared]
    unknown: list[type] = []
    _bits_of(shared, unknown)
    assert list in unknown
    assert time.process_time() - began < 40


def test_results_that_are_not_compared_are_not_verified() -> None:
    def makes(rank: int) -> Any:
        dist.barrier()
        return [_Shy(), threading.Lock()]

    found = rankloom.torch.explore(makes, 2)
    assert found.ok and not found.verified
    for kind in ("test_explore._Shy", "_thread.lock"):
        assert f"a result that is compared by its type only: {kind}" in found.summary, found.summary
    assert rankloom.torch.explore(makes, 2, compare=False).verified


def test_threads_and_named_stores_are_not_verified() -> None:
    def named() -> None:
        store = dist.TCPStore("here", 1234, is_master=dist.get_rank() == 0, wait_for_workers=False)
        store.add("n", 1)
        dist.barrier()  # the master's goes with it

    found = rankloom.torch.explore(named, 2, strategies=["exhaustive"])
    assert found.ok and "TCPStore and FileStore that ranks make by a name: whoever comes first makes the store" in found.summary
    found = rankloom.torch.explore(lambda: None, 2, backend=None, strategies=["exhaustive"])
    assert "not verified because of: whatever the ranks share: they use nothing of rankloom's" in found.summary


def test_values_that_a_search_has_noted_go_with_it() -> None:
    def large() -> torch.Tensor:
        dist.barrier()
        return torch.ones(1000)

    assert rankloom.torch.explore(large, 2).verified
    assert not _explore._texts

    def notes() -> int:
        rankloom.torch.observe("large", torch.ones(1000))
        return max(map(len, _explore._texts))

    assert max(rankloom.torch.run(notes, 2).results) < 100


def test_compares_what_ranks_return() -> None:
    def order() -> list[int]:
        return [_store().add("place", 1)]

    found = rankloom.torch.explore(order, 2)
    assert found.failure is not None and found.failure.first_failed == -1
    assert "results differ between schedules: rank 0's \"return value\" is [2] here, and [1] under steered:1\n" in found.text
    assert "\nrun it again: " in found.text
    assert found.failure.results == [[2], [1]]
    assert rankloom.torch.explore(order, 2, compare=False).verified


def test_compares_tensors_bit_by_bit() -> None:
    def zero() -> torch.Tensor:
        first = _store().add("place", 1) == 1
        return torch.tensor([float("nan"), 0.0 if first or dist.get_rank() == 1 else -0.0])

    found = rankloom.torch.explore(zero, 2)
    assert found.failure is not None and "rank 0's \"return value\" is tensor([nan, -0.])" in found.text

    def alike() -> tuple[torch.Tensor, dict[str, object]]:
        x = torch.full((2,), float(dist.get_rank() + 1), dtype=torch.complex64)
        dist.all_reduce(x)
        return x, {"empty": torch.empty(0), "true": torch.tensor([True]), "of its own": None, "array": numpy.arange(3)}

    assert rankloom.torch.explore(alike, 2).verified


def test_observes() -> None:
    def places() -> None:
        place = _store().add("place", 1)
        rankloom.torch.observe("place", {"of all": place})

    found = rankloom.torch.explore(places, 2)
    assert 'rank 1\'s "place" is {\'of all\': 1} here, and {\'of all\': 2} under steered:1' in found.text
    assert rankloom.torch.run(places, 2).ok
    with pytest.raises(RuntimeError, match="observe: this thread is no rank, want a rank's own"):
        rankloom.torch.observe("place", 1)

    def unknown() -> None:
        rankloom.torch.observe("what", [io.StringIO()])

    found = rankloom.torch.explore(unknown, 1)
    assert "TypeError: observe: a value is _io.StringIO, want tensors, arrays, numbers, strings, dataclasses, modules, and lists" in found.text


def test_a_missing_wait_fails_at_once() -> None:
    def early() -> float:
        x = torch.tensor([1.0])
        work = dist.all_reduce(x, async_op=True)
        seen = x.item()
        work.wait()
        assert seen == 2
        return seen

    found = rankloom.torch.explore(early, 2)
    assert found.runs == 1 and found.failure is not None and found.failure.found == "steered:1"


def test_a_message_that_nobody_receives_is_found() -> None:
    def sends(rank: int) -> None:
        if rank == 1:
            dist.isend(torch.full((2,), float(rank + 3)), 0)
        dist.barrier()

    found = rankloom.torch.explore(sends, 2)
    assert found.failure is not None and found.failure.headline == "Deadlock: no rank can move", found.text
    assert "rank 1 waits in send seq 1 for rank 0 (returned) [group 0, " in found.text  # in destroy_process_group()


def _leaves(what: str) -> Callable[[int], None]:
    """Rank 1 calls in a group that `destroy_process_group()` does not know of, and nobody comes."""

    def program(rank: int) -> None:
        part: Any = dist.group.WORLD.split_group([0, 1], group_name="part")  # type: ignore[union-attr]
        if rank == 1:
            x = torch.full((2,), rank + 0.5)
            part.send([x], 0, 7) if what == "send" else part.allreduce([x])
        dist.barrier()

    return program


@pytest.mark.parametrize(
    ("what", "text"),
    [("send", "send to rank 0, tag 7: was never received [group part, "), ("all_reduce", "all_reduce seq 1: rank 0 never came [")],
)
def test_what_a_run_leaves_over_is_a_leak(what: str, text: str) -> None:
    program = _leaves(what)
    found = rankloom.torch.explore(program, 2)
    assert found.failure is not None and found.failure.first_failed == -1
    [left] = found.failure.failures
    assert left == found.failure.headline and left.startswith(f"left over: rank 1, group part, {text}test_explore.py:"), left
    assert f"\n{left}\n" in found.text and found.failure.results == [None, None]
    allowed = rankloom.torch.explore(program, 2, leaks=False)
    assert allowed.verified, allowed.text
    # Of a run by itself a leak is a note.
    report = rankloom.torch.run(program, 2, seed=3)
    assert report.ok and report.notes == [left.removeprefix("left over: ")]


@pytest.mark.parametrize("asks", [False, True])
def test_an_error_is_a_leak_unless_a_rank_asks_for_it(asks: bool) -> None:
    def differ(rank: int) -> None:
        work = dist.all_reduce(torch.ones(rank + 1), async_op=True)
        while not work.is_completed():
            pass
        if asks:
            assert not work.is_success()

    report = rankloom.torch.run(differ, 2, seed=3)
    assert report.ok, report.text
    if asks:
        assert report.notes == []
    else:
        [note] = report.notes
        assert note.startswith("an error that no rank asked for: Mismatch: group 0, seq 1: "), note
    assert rankloom.torch.explore(differ, 2, runs=20).ok is asks


def test_a_work_that_nobody_waits_for_is_verified() -> None:
    def drops(rank: int) -> None:
        x = torch.full((2,), float(rank))
        if rank == 1:
            dist.all_reduce(x, async_op=True)
        else:
            dist.all_reduce(x)
        dist.barrier()

    found = rankloom.torch.explore(drops, 2)
    assert found.verified, found.text  # the search waits for those who let its tensors go


def _survives(rank: int) -> str:
    x = torch.full((2,), float(rank + 1))
    try:
        for _ in range(3):
            dist.all_reduce(x)
    except Exception as error:
        return type(error).__name__
    return "sum"


def test_faults_happen_by_plan() -> None:
    crash = Fault("crash", rank=1, op="all_reduce", seq=2, when="inside")
    report = rankloom.torch.run(_survives, 3, faults=crash)
    assert not report.ok and report.first_failed == 1
    text = "rank 1 failed: group 0, all_reduce seq 2: the rank crashed (injected, inside the call) [test_explore.py:"
    assert text in report.text, report.text
    assert report.results == ["DistBackendError", None, "DistBackendError"]
    assert isinstance(report.exceptions[1], rankloom.torch.RankCrashedError)
    assert "RANKLOOM_FAULTS=crash@rank=1,op=all_reduce,seq=2,when=inside" in report.rerun

    found = rankloom.torch.explore(_survives, 3, faults=FaultPlan(crash, Fault("delay", rank=0, op="all_reduce", by=0.5)), min_ranks=2)
    assert found.failure is not None and found.failure.faults == "crash@rank=1,nth=2,when=inside", found.text  # the delay is not needed
    assert found.failure.ranks == 2
    maybe = rankloom.torch.explore(_survives, 2, faults="crash@rank=0,op=all_reduce,seq=1,maybe=true")
    assert maybe.failure is not None and maybe.failure.strategy == "exhaustive"


def test_a_store_operation_times_out_by_plan() -> None:
    def asks(rank: int) -> str:
        try:
            _store().set(f"key {rank}", "1")
        except dist.DistStoreError as error:
            return str(error)
        return "set"

    report = rankloom.torch.run(asks, 2, faults=[Fault("store_timeout", rank=1, op="store set")])
    assert report.ok and report.results[0] == "set"
    assert "timed out (injected, before the call)" in report.results[1], report.results


def test_a_plan_says_what_it_does() -> None:
    plan = FaultPlan(Fault("delay", rank=0, nth=3, by=1.5, maybe=True), Fault("drop", group="0", op="send"))
    assert str(plan) == "delay@rank=0,nth=3,by=1.5s,maybe=true;drop@group=0,op=send"
    assert str(Fault("delay", by=1e-05)) == "delay@by=0.00001s"
    assert str(Fault("crash", group="a,b;c", op="100%")) == "crash@group=a%2cb%3bc,op=100%25"
    assert str(FaultPlan.seeded(7, 0.01, ["crash", "hang"])) == "seeded:7:0.01:crash:hang"
    with pytest.raises(ValueError, match='fault "explode": unknown kind "explode", want KIND'):
        rankloom.torch.run(_survives, 2, faults=Fault("explode"))
    with pytest.raises(ValueError, match=r'faults "seeded:1:2.0", want seeded:SEED:RATE'):
        rankloom.torch.explore(_survives, 2, faults=FaultPlan.seeded(1, 2.0))


def test_a_program_that_does_not_repeat_itself_is_told() -> None:
    runs = []

    def more_each_time() -> None:
        if dist.get_rank() == 0:
            runs.append(1)
        for _ in range(len(runs)):
            _store().add("n", 1)

    found = rankloom.torch.explore(more_each_time, 2)
    assert "two runs of one schedule differ: the program is not deterministic" in found.text
    assert found.runs == 2


def test_a_rank_that_hangs_ends_the_search() -> None:
    def hangs(rank: int) -> None:
        while rank == 1:
            time.sleep(0.01)

    found = rankloom.torch.explore(hangs, 2, stall=0.5)
    assert found.failure is not None and found.runs == 1
    assert found.text.startswith("explored 1 run: a rank hung in its own code\nrank 1 failed: Stall: no scheduling point for 0.5 s")


def test_a_skipped_test_ends_the_search() -> None:
    import unittest

    def skips(rank: int) -> None:
        if rank == 1:
            raise unittest.SkipTest("not today")
        dist.barrier()

    with pytest.raises(unittest.SkipTest, match="not today"):
        rankloom.torch.explore(skips, 2)


def test_a_skip_of_fewer_ranks_ends_shrinking_only() -> None:
    import unittest

    def body(rank: int) -> None:
        if dist.get_world_size() < 4:
            raise unittest.SkipTest("needs 4 ranks")
        assert rank != 3

    found = rankloom.torch.explore(body, 4, runs=50, min_ranks=2)
    assert found.failure is not None and found.failure.ranks == 4 and isinstance(found.failure.exceptions[3], AssertionError), found.text


def test_a_failure_that_is_kept_for_a_page_has_its_exceptions(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKLOOM_REPORT", str(tmp_path / "runs"))
    monkeypatch.setattr("rankloom._rerun.writes_runs", True)  # as without the plugin, in which this test runs

    def body(rank: int) -> None:
        dist.barrier()
        assert rank != 1, "here"

    found = rankloom.torch.explore(body, 2, runs=5)
    assert found.failure is not None and isinstance(found.failure.exceptions[1], AssertionError), found.text
    assert found.failure.run_file in found.text and list((tmp_path / "runs").iterdir())
    with pytest.raises(rankloom.torch.RankFailedError) as raised:
        found.raise_if_failed()
    assert isinstance(raised.value.__cause__, AssertionError)


def test_tells_of_its_progress() -> None:
    told: list[tuple[str, int]] = []
    rankloom.torch.explore(_right, 2, progress=lambda strategy, runs, seconds: told.append((strategy, runs)))
    assert told[-1] == ("exhaustive", 4)


def test_stops_after_the_time_it_has() -> None:
    found = rankloom.torch.explore(_right, 2, runs=1_000_000, seconds=0)
    assert found.ok and found.runs == 2 and not found.verified


def test_options_that_do_not_fit() -> None:
    for options, text in [
        ({"runs": 0}, "explore: max_runs is 0, want 1 or more"),
        ({"runs": "many"}, "explore: runs is 'many', want a whole number from 0 on"),
        ({"max_steps": -1}, "explore: max_steps is -1, want a whole number from 0 on"),
        ({"seconds": "long"}, "explore: seconds is 'long', want seconds, or None for no limit"),
        ({"leaks": "no"}, "explore: leaks is 'no', want True or False"),
        ({"strategies": []}, "explore: strategies is empty, want at least one"),
        ({"strategies": ["luck"]}, r'explore: a strategy is "luck", want one of exhaustive, pct\(3\), starve, late_completion, random'),
        ({"min_ranks": 5}, "explore: min_ranks is 5, want at most world_size = 2"),
    ]:
        with pytest.raises(ValueError, match=text):
            rankloom.torch.explore(_right, 2, **options)  # type: ignore[arg-type]


def test_a_search_within_a_rank_is_refused() -> None:
    report = rankloom.torch.run(lambda: rankloom.torch.explore(_right, 2), 2)
    for rank in range(2):
        assert f"rank {rank} failed: RuntimeError: explore: this thread is rank {rank} of a run, want one that is no rank" in report.text


LOCAL = threading.local()
CONTEXT: contextvars.ContextVar[int] = contextvars.ContextVar("context", default=0)


def test_a_run_finds_its_threads_as_new_ones() -> None:
    """Threads are kept between runs, and nothing that a rank leaves on its own."""
    idents = set()

    def program() -> list[Any]:
        idents.add(threading.get_ident())
        found = [getattr(LOCAL, "value", None), CONTEXT.get(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")]
        found += [dist.get_world_size(), torch.is_inference_mode_enabled(), threading.current_thread().name == f"rank {dist.get_rank()}"]
        LOCAL.value = 1
        CONTEXT.set(1)
        torch.set_grad_enabled(False)
        torch.set_autocast_enabled("cpu", True)
        dist.barrier()
        return found

    found = rankloom.torch.explore(program, 3, runs=20, strategies=["random"])
    assert found.ok, found.text
    assert found.runs == 20 and len(idents) == 3
    clean = [None, 0, True, False, 3, False, True]
    ranks = []
    rankloom.torch.explore(lambda: ranks.append(program()), 3, runs=5, strategies=["random"])
    assert ranks == [clean] * len(ranks) and len(ranks) == 15


def _leads(rank: int) -> None:
    if _store().add("tickets", 1) == 1:
        _store().set(f"leader {rank}", "1")


def _last(rank: int) -> None:
    _store().set("last", str(rank))


def _endless(rank: int) -> None:
    while True:
        dist.barrier()


def test_options_reach_the_search() -> None:
    drawn: dict[str, Any] = {"runs": 200, "strategies": ["pct(4)"], "first_seed": 1000}
    found, shrunk = (rankloom.torch.explore(_racy, 3, **drawn, **more) for more in ({"shrink_runs": 0}, {}))
    assert found.failure is not None and shrunk.failure is not None
    assert found.failure.shrink_runs < shrunk.failure.shrink_runs
    assert re.match(r"pct:1[01]\d\d:4", found.failure.found), found.failure.found
    assert "what the store holds at the end is" in rankloom.torch.explore(_leads, 2).text
    assert rankloom.torch.explore(_leads, 2, store_keys=False).ok and rankloom.torch.explore(_last, 2).ok
    assert "the value of key " in rankloom.torch.explore(_last, 2, store_values=True).text
    assert "did not end within 1000 scheduling points" in rankloom.torch.explore(_endless, 2, max_steps=1000).text
