"""A pytest plugin: tests that run once per rank.

    @pytest.mark.ranks(4, seeds=20, timeout=30)
    def test_sum(rank, world_size):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x)
        assert x.item() == sum(range(world_size))

seeds: a number of seeds, or a list of them: the test runs once under each, one rank at a time. Without it all ranks run at
once. RANKLOOM_SEED in the environment runs that seed alone. timeout: in seconds, of waits that name none.
Also: backend ("rankloom"), schedule ("fifo", ...). Other fixtures are made once, and shared by the ranks.
"""

from __future__ import annotations

import os
import traceback
import unittest
from collections.abc import Iterable
from typing import Any

import pytest


class _Here:
    """Stands for the rank until there is one."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ranks-report",
        choices=["first", "all", "concise"],
        default="first",
        help="of a test on several ranks: the first failure with its traceback, all of them, or a line each",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "ranks(n, seeds=None, schedule=None, timeout=None, backend='rankloom'): runs the test on n ranks"
    )


def _mark(node: Any) -> pytest.Mark | None:
    return node.get_closest_marker("ranks")  # type: ignore[no-any-return]


@pytest.fixture
def rank(request: pytest.FixtureRequest) -> Any:
    """The rank that runs the test; needs @pytest.mark.ranks."""
    if _mark(request.node) is None:
        pytest.fail("the fixture rank needs @pytest.mark.ranks(n)", pytrace=False)
    return _Here()


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """How many ranks run the test; needs @pytest.mark.ranks."""
    mark = _mark(request.node)
    if mark is None:
        pytest.fail("the fixture world_size needs @pytest.mark.ranks(n)", pytrace=False)
    return _size(mark)


def _size(mark: pytest.Mark) -> int:
    size = mark.args[0] if mark.args else mark.kwargs.get("n")
    if not isinstance(size, int) or size < 1:
        pytest.fail(f"@pytest.mark.ranks({size!r}), want a number of ranks of at least 1", pytrace=False)
    return size


def _seeds(mark: pytest.Mark) -> Iterable[int | None]:
    if "RANKLOOM_SEED" in os.environ:
        return [int(os.environ["RANKLOOM_SEED"])]
    seeds = mark.kwargs.get("seeds")
    if seeds is None:
        return [None]
    return range(seeds) if isinstance(seeds, int) else list(seeds)


def _failure(report: Any, mode: str) -> str:
    if mode == "first":
        return str(report.text)
    lines = [report.text.splitlines()[0]] if mode == "all" else []
    for number, error in enumerate(report.exceptions):
        if error is None:
            continue
        state = report.outcomes[number][0]
        if mode == "concise":
            lines.append(f"rank {number} {state}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        else:
            lines.append(f"rank {number} {state}:\n" + "".join(traceback.format_exception(error)))
    if report.rerun:
        lines.append("run again: " + report.rerun)
    return "\n".join(lines)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    mark = _mark(pyfuncitem)
    if mark is None:
        return None
    from rankloom.torch import run

    names = pyfuncitem._fixtureinfo.argnames
    given = {name: pyfuncitem.funcargs[name] for name in names}

    def on_rank(number: int) -> None:
        arguments = {name: number if isinstance(value, _Here) else value for name, value in given.items()}
        try:
            pyfuncitem.obj(**arguments)
        except pytest.skip.Exception as skip:
            raise unittest.SkipTest(skip.msg or "") from None

    for seed in _seeds(mark):
        report = run(
            on_rank,
            _size(mark),
            seed=seed,
            schedule=mark.kwargs.get("schedule"),
            backend=mark.kwargs.get("backend", "rankloom"),
            timeout=mark.kwargs.get("timeout"),
        )
        if not report.ok:
            pyfuncitem.user_properties.append(("rankloom_rank", report.first_failed))
            pyfuncitem.user_properties.append(("rankloom_schedule", report.schedule))
            if seed is not None:
                pyfuncitem.user_properties.append(("rankloom_seed", seed))
            pytest.fail(_failure(report, pyfuncitem.config.getoption("--ranks-report")), pytrace=False)
    return True
