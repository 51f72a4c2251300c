"""A pytest plugin: tests that run once per rank.

    @pytest.mark.ranks(4, seeds=20, timeout=30)
    def test_sum(rank, world_size):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x)
        assert x.item() == sum(range(world_size))

One rank runs at a time: in a fixed order, or under seeds, a number of them or a list: the test runs once under each.
parallel=True: all ranks run at once, and share torch's default generator. RANKLOOM_SEED and its like in the environment run
that schedule alone. timeout: in seconds, of waits that name none. Also: backend ("rankloom"), schedule ("fifo", ...). Other
fixtures are made once, and shared by the ranks. The test may be a coroutine function: each rank runs it in an event loop of
its own.

faults: what goes wrong by plan, as rankloom.torch.run() takes it.

@pytest.mark.explore(runs=500) beside the mark above: the test runs as rankloom.torch.explore() runs a program, under all
schedules that can differ or as many as that, until one fails; what it came to is the property "explored" in the XML. Also
what else explore() takes: seconds, strategies, min_ranks, leaks, ...; expect_verified=True: a test that is not verified fails.

With --rankloom, tests that derive from PyTorch's classes for distributed tests (MultiProcessTestCase, DistributedTestBase,
MultiProcContinuousTest, MultiThreadedTestCase, DTensorTestBase, FSDPTest), or call torch.multiprocessing.spawn, have their
ranks on threads as they are; --rankloom-seeds N runs each under N seeds. Left as they are: those marked rankloom_except, and
those that --rankloom-except names.

A failed test leaves the trace of its schedule in RANKLOOM_TRACE_DIR, or in a folder of the system's for temporary files. With
--rankloom-report=DIR, or RANKLOOM_REPORT=DIR in the environment, it leaves its run in DIR, as a file that `rankloom show` and
`rankloom report` show; also a test that runs ranks by itself, where what it raises has the report.
A rank that comes to no scheduling point for --ranks-stall seconds of real time fails the test.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import hashlib
import logging
import os
import pathlib
import re
import shlex
import sys
import tempfile
import traceback
import unittest
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from rankloom import _rerun

if TYPE_CHECKING:
    from rankloom.torch import Report

# torch takes seconds to import: only a test on ranks needs it.


class _Here:
    """Stands for the rank until there is one."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ranks-report",
        choices=["first", "all", "concise"],
        default="first",
        help="of a test on several ranks: the first failure with its traceback, all of them, or a line each",
    )
    parser.addoption(
        "--ranks-stall",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="of real time without a scheduling point, after which a rank hangs in its own code; 0: never (default: 60)",
    )
    parser.addoption(
        "--rankloom-report",
        metavar="DIR",
        help="a failed test's run is written into this folder, for `rankloom show` and `rankloom report` (default: RANKLOOM_REPORT)",
    )
    parser.addoption(
        "--rankloom",
        action="store_true",
        help="tests that derive from PyTorch's classes for distributed tests, or use mp.spawn, have their ranks on threads",
    )
    parser.addoption(
        "--rankloom-seeds",
        type=int,
        default=0,
        metavar="N",
        help="such a test runs under each of the seeds 0 to N-1, instead of once in a fixed order; implies --rankloom",
    )
    parser.addoption(
        "--rankloom-except",
        action="append",
        default=[],
        metavar="PATTERN",
        help="tests that keep their processes: those whose id contains this, or matches it with *, ? and []; may be repeated",
    )


def _asks_for_threads(config: pytest.Config) -> bool:
    return bool(config.getoption("--rankloom") or config.getoption("--rankloom-seeds"))


def _keeps_processes(item: pytest.Item) -> bool:
    if item.get_closest_marker("rankloom_except") is not None:
        return True
    patterns = item.config.getoption("--rankloom-except")
    return any(pattern in item.nodeid or fnmatch.fnmatchcase(item.nodeid, pattern) for pattern in patterns)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "explore(*, runs=1000, seconds=60, strategies=..., min_ranks=0, ...): a test on ranks under many schedules"
    )
    config.addinivalue_line("markers", "rankloom_except: under --rankloom this test keeps its processes")
    if config.getoption("--rankloom-seeds") < 0:
        raise pytest.UsageError(f"--rankloom-seeds is {config.getoption('--rankloom-seeds')}, want 0 or more")
    if not config.getoption("--ranks-stall") >= 0:
        raise pytest.UsageError(f"--ranks-stall is {config.getoption('--ranks-stall')}, want seconds, 0 or more")
    _rerun.stall = config.getoption("--ranks-stall") or None
    if _asks_for_threads(config):
        try:
            from rankloom.torch import _cases
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith(("rankloom", "torch")):
                raise
            raise pytest.UsageError(
                f"--rankloom needs {error.name}, which PyTorch's test helpers import: pip install {error.name}"
            ) from None

        _cases.patch()
        if config.getoption("--rankloom-seeds") > 0 and not any(name in os.environ for name in _rerun.ONE_SCHEDULE):
            _cases.seeds = range(config.getoption("--rankloom-seeds"))
    config.addinivalue_line(
        "markers", "ranks(n, *, seeds=None, schedule=None, timeout=None, backend='rankloom', parallel=False, faults=None): "
        "runs the test on n ranks",
    )


@dataclasses.dataclass
class _Asked:
    """The wishes of a mark."""

    n: int
    seeds: Sequence[int] | None = None
    schedule: str | None = None
    timeout: float | None = None
    backend: str | None = "rankloom"
    parallel: bool = False
    faults: Any = None


def _text(mark: pytest.Mark) -> str:
    arguments = [*map(repr, mark.args), *(f"{name}={value!r}" for name, value in mark.kwargs.items())]
    return f"@pytest.mark.ranks({', '.join(arguments)})"


def _asked(mark: pytest.Mark) -> _Asked:
    """Fails the test if the mark is not right."""

    def refuse(what: str) -> Any:
        pytest.fail(f"{_text(mark)}: {what}", pytrace=False)

    names = [field.name for field in dataclasses.fields(_Asked)]
    unknown = [name for name in mark.kwargs if name not in names]
    if unknown:
        refuse(f"{', '.join(unknown)}: want one of {', '.join(names)}")
    if len(mark.args) > 1 or (mark.args and "n" in mark.kwargs):
        refuse("want one number of ranks, and all else by name")
    given = {"n": mark.args[0] if mark.args else None, **mark.kwargs}
    if not _is_count(given["n"]):
        refuse("want a number of ranks of at least 1")
    seeds = given.get("seeds")
    if seeds is not None:
        seeds = range(seeds) if _is_count(seeds) else seeds
        whole = isinstance(seeds, Iterable) and not isinstance(seeds, str)
        given["seeds"] = list(seeds) if whole else []
        if not given["seeds"] or not all(isinstance(seed, int) and seed >= 0 for seed in given["seeds"]):
            refuse("want seeds to be a number of them of at least 1, or a list of them")
    timeout = given.get("timeout")
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
        refuse("want a timeout in seconds of more than 0")
    if given.get("parallel") and (seeds is not None or given.get("schedule") is not None):
        refuse("want parallel, or seeds or a schedule")
    return _Asked(**given)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _mark(node: Any) -> pytest.Mark | None:
    return node.get_closest_marker("ranks")  # type: ignore[no-any-return]


@pytest.fixture
def rank(request: pytest.FixtureRequest) -> Any:
    """The rank that runs the test; needs @pytest.mark.ranks."""
    if _mark(request.node) is None:
        pytest.fail("the fixture rank needs @pytest.mark.ranks(n)", pytrace=False)
    asked = [getattr(getattr(request, "_parent_request", None), "fixturename", None)]
    asked += [name for name, all_of in request._pyfuncitem._fixtureinfo.name2fixturedefs.items() if any("rank" in one.argnames for one in all_of)]
    for name in filter(None, asked):
        text = "which is there within the test only: fixtures are set up once, for all ranks"
        pytest.fail(f"the fixture {name} asks for rank, {text}", pytrace=False)
    return _Here()


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """How many ranks run the test; needs @pytest.mark.ranks."""
    mark = _mark(request.node)
    if mark is None:
        pytest.fail("the fixture world_size needs @pytest.mark.ranks(n)", pytrace=False)
    return _asked(mark).n


# Arguments of a session that a run of one of its tests is not to have.
_SELECTS = {"-k", "-m", "-n", "--numprocesses", "--dist", "--deselect", "--ignore", "--ignore-glob", "--junit-xml",
            "--junitxml", "--junit-prefix", "--junitprefix", "--maxfail", "--durations", "--rankloom-seeds"}  # fmt: skip
_ALONE = {"-x", "--exitfirst", "--lf", "--last-failed", "--ff", "--failed-first", "--nf", "--new-first", "--sw", "--stepwise"}


def _command(item: pytest.Item) -> str:
    """Runs this test only."""
    config: Any = item.config
    places = set(config.args) if config.args_source is pytest.Config.ArgsSource.ARGS else set()
    kept = []
    arguments = iter(config.invocation_params.args)
    for argument in map(str, arguments):
        if argument in _SELECTS:
            next(arguments, None)
        elif argument not in places and argument not in _ALONE and argument.split("=")[0] not in _SELECTS:
            kept.append(argument)
    if "--rankloom" not in kept and any(str(one).startswith("--rankloom-seeds") for one in config.invocation_params.args):
        kept.insert(0, "--rankloom")  # which the other option implied
    # By hand: Config.cwd_relative_nodeid() takes a string or an object, by pytest's version.
    path, colons, name = item.nodeid.partition("::")
    place = os.path.relpath(config.rootpath / path, config.invocation_params.dir)
    return shlex.join([sys.orig_argv[0], "-m", "pytest", *kept, f"{place}{colons}{name}"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    extension = sys.modules.get("rankloom.torch._ext")
    if extension is not None:
        extension.set_runs_begun(0)  # the test's command repeats this test only
    # Also for tests that run ranks by themselves.
    before, _rerun.command = (_rerun.command, _rerun.writes_runs), _command(item)
    _rerun.writes_runs = False  # a run that fails may be what the test wants
    on_threads: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if _asks_for_threads(item.config) and not _keeps_processes(item):
        from rankloom.torch import _cases

        on_threads = _cases.patched()
    try:
        with on_threads:
            return (yield)
    finally:
        _rerun.command, _rerun.writes_runs = before


# The options of explore(), but for those that the mark of the ranks gives.
_EXPLORES = (
    "runs", "seconds", "strategies", "first_seed", "compare", "vary_faults", "min_ranks", "shrink_runs", "leaks", "groups",
    "store_keys", "store_values", "max_steps", "swap_random", "expect_verified",
)  # fmt: skip


def _explores(item: pytest.Item, asked: _Asked) -> dict[str, Any] | None:
    """The options of explore() that the mark gives; fails the test if one is not right."""
    mark = item.get_closest_marker("explore")
    if mark is None:
        return None
    unknown = [name for name in mark.kwargs if name not in _EXPLORES]
    if unknown or mark.args:
        what = ", ".join([*map(repr, mark.args), *unknown])
        pytest.fail(f"@pytest.mark.explore: {what}: want by name one of {', '.join(_EXPLORES)}", pytrace=False)
    if asked.seeds is not None or asked.schedule is not None or asked.parallel:
        pytest.fail("@pytest.mark.explore: it chooses schedules itself, want no seeds, schedule or parallel", pytrace=False)
    return dict(mark.kwargs)


def pytest_runtest_setup(item: pytest.Item) -> None:
    mark = _mark(item)
    if mark is None:
        if item.get_closest_marker("explore") is not None and isinstance(item, pytest.Function):
            pytest.fail("@pytest.mark.explore: want @pytest.mark.ranks(n) beside it", pytrace=False)
        return
    _explores(item, _asked(mark))
    if isinstance(item, pytest.Function) and issubclass(item.cls or object, unittest.TestCase):
        pytest.fail(
            f"{_text(mark)}: a unittest.TestCase runs its methods itself; want a class of rankloom.torch.testing, or no TestCase",
            pytrace=False,
        )


class _RankFailed(BaseException):
    """Out of the hook below: what failed, and how that is told."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.text)
        self.report = report


class _Repr:
    """Of a failed test: what the run says, then the traceback of the first rank that failed, in the style that was asked for.

    Has what pytest's own have: a place and a message for summaries, and the whole.
    """

    def __init__(self, text: str, inner: Any, after: str, crash: Any) -> None:
        self.reprcrash = crash
        self._text = text
        self._inner = inner
        self._after = after

    def toterminal(self, tw: Any) -> None:
        for line in self._text.splitlines():
            tw.line(line, red=True)
        if self._inner is not None:
            self._inner.toterminal(tw)
        if self._after:
            tw.line("")
            tw.line(self._after)

    def __str__(self) -> str:
        import io

        from _pytest._io import TerminalWriter

        out = io.StringIO()
        self.toterminal(TerminalWriter(out))
        return out.getvalue().strip()


def _schedules(asked: _Asked) -> Sequence[int | None]:
    if asked.seeds is None or any(name in os.environ for name in _rerun.ONE_SCHEDULE):
        return [None]
    return asked.seeds


def _is_wanted(record: logging.LogRecord) -> bool:
    """c10d writes each failed call of a rank to a log of its own, at level DEBUG: those are no records of the test's."""
    of_rank = (record.threadName or "").startswith("rank ")
    return not (of_rank and record.name.startswith("c10d-") and record.levelno <= logging.DEBUG)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    plugin = item.config.pluginmanager.get_plugin("logging-plugin")
    handlers = [getattr(plugin, name) for name in ("caplog_handler", "report_handler") if hasattr(plugin, name)]
    for handler in handlers:
        handler.addFilter(_is_wanted)
    try:
        return (yield)
    finally:
        for handler in handlers:
            handler.removeFilter(_is_wanted)


def _file_name(item: pytest.Item) -> str:
    """Of the test alone: other tests' ids may be the same but for their signs, and other projects' tests have the same ones."""
    mark = hashlib.sha256(f"{item.config.rootpath}\0{item.nodeid}".encode()).hexdigest()[:8]
    return re.sub(r"[^\w.-]+", "_", item.nodeid).strip("_")[-200:] + f"-{mark}"


def _save_run(item: pytest.Item, report: Report) -> None:
    """Keeps the failed run, where it is asked for."""
    folder = item.config.getoption("--rankloom-report") or os.environ.get("RANKLOOM_REPORT")
    if not folder or report.ok or report.run_file:
        return
    from rankloom.torch import _run

    _run.write_failed(report, item.config.invocation_params.dir / folder / f"{_file_name(item)}.rlrun")
    item.user_properties.append(("rankloom_run", report.run_file))


def _save_trace(item: pytest.Item, report: Report) -> str:
    """Keeps the schedule of a failed run, and adds the command that replays it: the line that says so, empty if there is none."""
    if not report.trace or not report.rerun or "RANKLOOM_REPLAY" in os.environ:
        return ""
    folder = pathlib.Path(os.environ.get("RANKLOOM_TRACE_DIR") or os.path.join(tempfile.gettempdir(), "rankloom-traces"))
    path = folder.absolute() / f"{_file_name(item)}.rltrace"
    try:
        report.save_trace(path)
    except OSError as error:
        told = f"no trace to replay it by: {error}"
        report.text = report.text.replace(report.rerun, f"{report.rerun}\n{told}", 1)
        return told
    item.user_properties.append(("rankloom_trace", str(path)))
    # The trace is of one run of the test, and of the smaller program that a search has made of the test's mark.
    smaller = "".join(re.findall(r"(?<!\S)RANKLOOM_(?:REPLAY_RUN|RANKS|FAULTS)=(?:[^\s']|'[^']*')*\s+", report.rerun))
    replay = f"replay it: {smaller}RANKLOOM_REPLAY={shlex.quote(str(path))} {_command(item)}"
    report.text = report.text.replace(report.rerun, f"{report.rerun}\n{replay}", 1)
    return replay


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    mark = _mark(pyfuncitem)
    if mark is None:
        return None
    asked = _asked(mark)
    from rankloom.torch import _ext, _ranks, _run, explore, run

    names = pyfuncitem._fixtureinfo.argnames
    given = {name: pyfuncitem.funcargs[name] for name in names}

    def on_rank(number: int) -> Any:
        arguments = {name: number if isinstance(value, _Here) else value for name, value in given.items()}
        if "world_size" in arguments and (job := _ext.current()) is not None:
            arguments["world_size"] = job[0].world_size  # a search tries fewer, too
        try:
            result = pyfuncitem.obj(**arguments)
        except pytest.skip.Exception as skip:
            raise unittest.SkipTest(skip.msg or "") from None
        return result

    stall = pyfuncitem.config.getoption("--ranks-stall")
    if asked.timeout is not None and stall > 0 and not asked.parallel:
        # Of virtual time, which stands still while a rank is in its own code.
        stall = min(stall, max(asked.timeout, 1.0))
    search = _explores(pyfuncitem, asked)
    if search is not None:
        verified = search.pop("expect_verified", False)
        roots = [pyfuncitem.obj, *given.items()]
        found = explore(
            on_rank,
            asked.n,
            backend=asked.backend,
            timeout=asked.timeout,
            stall=stall if stall > 0 else None,
            faults=asked.faults,
            _roots=roots,
            **search,
        )
        pyfuncitem.user_properties.append(("explored", found.summary))
        if _ranks.left:
            pyfuncitem.session.shouldfail = f"{pyfuncitem.nodeid}: {_ranks.left[0]}"
        if found.failure is not None:
            _fail(pyfuncitem, found.failure, None)
        if verified and not found.verified:
            pytest.fail(f"@pytest.mark.explore(expect_verified=True): {found.summary}", pytrace=False)
        return True
    for seed in _run.rounds(_schedules(asked)):
        report = run(
            on_rank,
            asked.n,
            seed=seed,
            schedule=asked.schedule,
            parallel=asked.parallel,
            backend=asked.backend,
            timeout=asked.timeout,
            stall=stall if stall > 0 else None,
            faults=asked.faults,
        )
        if _ranks.left:
            pyfuncitem.session.shouldfail = f"{pyfuncitem.nodeid}: {_ranks.left[0]}"
        if not report.ok:
            _fail(pyfuncitem, report, seed)
    return True


def _fail(item: pytest.Item, report: Report, seed: int | None) -> NoReturn:
    item.user_properties.append(("rankloom_rank", report.first_failed))
    item.user_properties.append(("rankloom_schedule", report.schedule))
    if seed is not None:
        item.user_properties.append(("rankloom_seed", seed))
    _save_trace(item, report)
    _save_run(item, report)
    raise _RankFailed(report)


def _failed_of(report: Report) -> BaseException | None:
    """The exception of the rank that failed first, or, where none did, of one that was stopped."""
    from rankloom.torch import _run

    return _run.told_of(report) or next((error for error in report.exceptions if error is not None), None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    # pytest keeps what a unittest.TestCase raised aside, for its own hook.
    aside = getattr(item, "_excinfo", None)
    excinfo = aside[0] if aside else call.excinfo
    failure = excinfo.value if excinfo is not None else None
    # Of rankloom.torch.RankFailedError, which a test that runs ranks itself may raise, too.
    report = failure.report if isinstance(failure, _RankFailed) else getattr(failure, "report", None) if aside else None
    if report is None or not hasattr(report, "first_failed"):
        return _with_run_file(item, failure, (yield))
    if aside:
        item.user_properties.append(("rankloom_rank", report.first_failed))
        item.user_properties.append(("rankloom_schedule", report.schedule))
        _save_trace(item, report)
        _save_run(item, report)
    error = _failed_of(report)
    if error is not None:
        # So that --pdb stops in the frames of the rank, and pytest.xfail() and their like mean what they do elsewhere.
        excinfo = pytest.ExceptionInfo.from_exception(error)
        if aside:
            aside[0] = excinfo
        else:
            call.excinfo = excinfo
    made = yield
    if made.failed:
        made.longrepr = _repr(item, report, error, made.longrepr)
    return made


def _with_run_file(item: pytest.Item, failure: BaseException | None, made: Any) -> Any:
    """Of a test whose failure is not told as one of ranks, but came of a run, such as that of torch.multiprocessing.spawn()."""
    seen: list[BaseException] = []
    while made.failed and failure is not None and failure not in seen:
        seen.append(failure)
        report = getattr(failure, "rankloom_report", None) or getattr(failure, "report", None)
        if report is not None and hasattr(report, "write_run"):
            replay = _save_trace(item, report)
            _save_run(item, report)
            # The exception has the report's text as it was.
            if lines := [line for line in (replay, report.run_file) if line]:
                made.sections.append(("rankloom", "\n".join(lines)))
            break
        failure = failure.__cause__ or failure.__context__
    return made


def _repr(item: pytest.Item, report: Report, error: BaseException | None, inner: Any) -> _Repr:
    from _pytest._code.code import ReprFileLocation

    mode = item.config.getoption("--ranks-report")
    from rankloom.torch import _ranks, _run

    text = _run.without_traceback(report.text)
    headline = getattr(report, "headline", "") or text.split("\n")[0]  # of a search: its first line is how it went
    after = ""
    if mode == "concise":
        lines = [
            f"rank {number} {report.outcomes[number][0]}: {type(raised).__name__}: {_ranks.text_of(raised).partition(os.linesep)[0]}"
            for number, raised in enumerate(report.exceptions)
            if raised is not None
        ]
        text = "\n".join([*lines, *([f"run it again: {report.rerun}"] if report.rerun else [])])
    elif mode == "all":
        after = "\n".join(
            f"rank {number} {report.outcomes[number][0]}:\n" + "".join(traceback.format_exception(raised))
            for number, raised in enumerate(report.exceptions)
            if raised is not None and raised is not error
        )
    if report.run_file and report.run_file not in text:
        text += f"\n{report.run_file}"
    # None: ranks could not be ended, and what is at hand is the error of this plugin.
    told = error is None or isinstance(error, _ranks.RankEndedError)  # where the rank hung
    if report.first_failed < 0 or told or mode == "concise" or item.config.getoption("tbstyle") == "no":
        inner = None  # there is nothing but what the text says
    elif error is not None and _ranks.text_of(error).count("\n") > 0:
        # The lines of the exception's text stand at the end of its traceback.
        text = text.replace(str(error), str(error).split("\n")[0])
    crash = getattr(inner, "reprcrash", None)
    path, line = (crash.path, crash.lineno) if crash is not None else (str(item.path), (item.location[1] or 0) + 1)
    return _Repr(text, inner, after, ReprFileLocation(path, line, headline))
