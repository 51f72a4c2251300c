"""State that belongs to a rank although Python keeps one of it: the environment, torch.distributed's world, random states."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import ctypes
import functools
import importlib
import linecache
import os
import random
import re
import site
import sys
import sysconfig
import threading
import time
import traceback
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import typing_extensions
from torch.testing._internal.distributed import multi_threaded_pg

from rankloom import _rerun
from rankloom.torch import _ext, _futures, _hooks, _names, _stores


def _folder(path: str) -> str:
    return os.path.join(os.path.abspath(path), "")


_OURS = _folder(os.path.join(os.path.dirname(__file__), os.pardir))
_TORCH = _folder(os.path.dirname(torch.__file__))
# Of the paths that a file is below the longest decides whose it is. torch's tests are in its package, but a caller's code;
# what is installed beside torch is one, too, but for the module whose decorators torch puts around its functions.
_LIBRARIES = [
    *{_folder(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")},
    _TORCH,
    _OURS,
    os.path.abspath(typing_extensions.__file__),
]
_CALLERS = [
    *{_folder(path) for path in (*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))},
    _folder(os.path.join(_TORCH, "testing")),
]

_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")



class Environment(dict[str, "str | None"]):
    """A rank's own variables over the process's; None: the rank has no such variable.

    whole: what the rank sets or deletes is its own, whatever the name, and C's getenv() sees what a rank set last.
    """

    whole = False


_local = threading.local()
_environments: dict[tuple[int, int], Environment] = {}
_worlds: weakref.WeakValueDictionary[tuple[int, int], Any] = weakref.WeakValueDictionary()


def environment() -> Environment | None:
    """The calling rank's, also on a thread that acts for the rank."""
    own: Environment | None = getattr(_local, "environment", None)
    if own is not None or not _environments:
        return own
    return _environments.get(_ext.acts_for())


_writes = 0


def environment_writes() -> int:
    """How many changes ranks' own code has made to the process's variables so far. Python and torch have variables of their own."""
    return _writes


_OF_PYTHON = {os.__file__, "<frozen os>", MutableMapping.update.__code__.co_filename}  # where setdefault(), update() and the like stand


def _note_write() -> None:
    global _writes
    if not isinstance(threading.current_thread(), RankThread):
        return
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in _OF_PYTHON:
        frame = frame.f_back
    if frame is not None and not _is_library(frame.f_code.co_filename):
        _writes += 1


class _RankEnvironment(type(os.environ)):  # type: ignore[misc]
    """os.environ with variables per rank. C's getenv() does not see RANK and its like."""

    exported: ClassVar[set[str]] = set()  # what C's getenv() sees otherwise than the process's os.environ

    def __getitem__(self, key: str) -> str:
        own = environment()
        if own is not None and key in own:
            value = own[key]
            if value is None:
                raise KeyError(key)
            return value
        return super().__getitem__(key)  # type: ignore[no-any-return]

    def __setitem__(self, key: str, value: str) -> None:
        own = environment()
        if own is None or not (own.whole or key in _RANK_VARIABLES):
            if self.get(key) != value:
                _note_write()
            super().__setitem__(key, value)
            return
        known = self.get(key)
        self.encodekey(key), self.encodevalue(value)  # refuse what the process would
        own[key] = value
        if key not in _RANK_VARIABLES and value != known:
            os.putenv(key, value)
            self.exported.add(key)

    def __delitem__(self, key: str) -> None:
        own = environment()
        if own is None or not (own.whole or key in own):
            super().__delitem__(key)
            _note_write()
        elif key in self:
            own[key] = None
        else:
            raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        own = environment()
        if own is None:
            yield from super().__iter__()
            return
        for key in super().__iter__():
            if own.get(key, "") is not None:
                yield key
        for key, value in own.items():
            if value is not None and self.encodekey(key) not in self._data:
                yield key

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        own = environment()
        if own is not None and isinstance(key, str) and key in own:
            return own[key] is not None
        return bool(super().__contains__(key))


def restore_exported() -> None:
    """C's getenv() sees the process's variables again."""
    while _RankEnvironment.exported:
        key = _RankEnvironment.exported.pop()
        if key in os.environ:
            os.putenv(key, os.environ[key])
        else:
            os.unsetenv(key)


def inherit(rank: tuple[int, int], environment: Environment | None, world: Any) -> None:
    """The calling thread, which this rank of a job started, has the rank's environment, its stores and its process groups."""
    _local.environment = environment
    _stores.act_for(rank)
    if world is not None:
        multi_threaded_pg.ThreadLocalWorld._world.world = world


def world_of_thread() -> Any:
    """The calling rank's, for inherit(); None: there is none for each thread."""
    world = dist.distributed_c10d._world
    return world._get_world() if isinstance(world, multi_threaded_pg.ThreadLocalWorld) else None


@contextlib.contextmanager
def rank_scope(job: _ext.Job, rank: int) -> Iterator[None]:
    """The calling thread is `rank` of `job`: attached, with its own environment. A failure ends the other ranks' waits."""
    os.environ.__class__ = _RankEnvironment
    size = str(job.world_size)
    _local.environment = _environments[(job.id, rank)] = Environment(
        RANK=str(rank),
        WORLD_SIZE=size,
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=size,
        MASTER_ADDR=f"rankloom-job-{job.id}",
        MASTER_PORT="29500",
    )
    failure = ""
    try:
        job.attach(rank)
        yield
    except BaseException as error:
        failure = failure_text(error)
        raise
    finally:
        _ext.detach(failure)
        _local.environment = None
        _environments.pop((job.id, rank), None)


def failure_text(error: BaseException) -> str:
    """A rank's exception, with its text as it is now: from here on the error says the same, on whichever thread it is printed."""
    with contextlib.suppress(Exception):
        _freeze(error)
    return f"{type(error).__name__}: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """str() of it, where that can be had and printed."""
    try:
        text = str(error)
    except Exception as wrong:
        return f"<its str() raised {type(wrong).__name__}>"
    # Halves of a surrogate pair, as names of files have them that are no text: no terminal takes them.
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def _freeze(error: BaseException) -> None:
    """Gives the error, and those that it came of, copies of the tensors that they hold: other ranks may write to those."""
    errors: list[BaseException | None] = [error]
    seen = set()
    while errors:
        at = errors.pop()
        if at is None or id(at) in seen:
            continue
        seen.add(id(at))
        args = _frozen(at.args)
        if args is not at.args:
            at.args = args
        for name, value in list(vars(at).items()):
            frozen = _frozen(value)
            if frozen is not value:
                setattr(at, name, frozen)
        errors += [at.__cause__, at.__context__, *getattr(at, "exceptions", ())]


def _frozen(value: Any, depth: int = 4) -> Any:
    """A copy of what may change; the value itself, where nothing in it may."""
    if isinstance(value, torch.Tensor):
        return copy.deepcopy(value) if value.is_leaf else value.detach().clone()
    if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
        return value.copy()
    if depth == 0 or type(value) not in (list, tuple, dict):
        return value
    if type(value) is dict:
        return {key: _frozen(item, depth - 1) for key, item in value.items()}
    items = [_frozen(item, depth - 1) for item in value]
    if type(value) is tuple:
        return value if all(new is old for new, old in zip(items, value, strict=True)) else tuple(items)
    return items


class RankThread(threading.Thread):
    """Tells by itself when it is done: in CPython before 3.13, a join() that is interrupted takes the thread for ended.

    A daemon: a rank that hangs in its own code does not keep the process.
    """

    def __init__(self, name: str, target: Callable[..., None], *args: Any) -> None:
        super().__init__(name=name, target=target, args=args, daemon=True)
        self.begun = False  # start() was called, or is about to be
        self.hung = False  # the rank had to be ended
        self.ended = threading.Event()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.ended.set()

    def has_ended(self, timeout: float | None = 0) -> bool:
        return self.ended.wait(timeout) or (self.ident is not None and not self.is_alive())

    def interrupt(self, error: type[BaseException]) -> None:
        """Raises it in the thread, at its next step in Python."""
        if self.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(error))


class _Worker(RankThread):
    """A thread for the ranks of one run after the other, each of which finds it as if it were new."""

    def __init__(self) -> None:
        super().__init__("rank", self._serve)
        self.retired = False  # ends with the rank that it has
        self.rank: KeptThread | None = None  # the last one
        self._given = threading.Lock()
        self._given.acquire()
        self.start()

    def interrupt(self, error: type[BaseException]) -> None:
        self.retired = True  # the exception may come when the rank has ended
        super().interrupt(error)

    def give(self, rank: KeptThread | None) -> None:
        """None: it ends."""
        self.rank = rank
        self._given.release()

    def _serve(self) -> None:
        fresh = _ext.ThreadState()
        while not self.retired:
            self._given.acquire()
            rank = self.rank
            if rank is None:
                return
            try:
                self.name = rank.name
                contextvars.Context().run(rank.body)
            finally:
                try:
                    _unregister_groups()  # this thread's, where a rank could not destroy its own
                    _forget_locals()
                    fresh.restore()
                    rank.leave()
                finally:
                    rank.ended.set()
            del rank


_unregister_groups: Callable[[], None] = torch._C._distributed_c10d._unregister_all_process_groups


def _forget_locals() -> None:
    """All that values of threading.local() hold for the calling thread."""
    api: Any = ctypes.pythonapi
    api.PyThreadState_GetDict.restype = ctypes.c_void_p  # a borrowed reference
    state = api.PyThreadState_GetDict()
    if state:
        ctypes.cast(state, ctypes.py_object).value.clear()


class KeptThread(RankThread):
    """A rank's thread, which goes back to where it came from."""

    def __init__(
        self, workers: list[_Worker], idle: list[_Worker], name: str, target: Callable[..., None], *args: Any
    ) -> None:
        super().__init__(name, target, *args)
        self.body = functools.partial(target, *args)
        self._workers = workers
        self._idle = idle
        self._worker: _Worker | None = None

    def start(self) -> None:
        if self._idle:
            self._worker = self._idle.pop()
        else:
            self._worker = _Worker()
            self._workers.append(self._worker)
        self._worker.give(self)

    def leave(self) -> None:
        """On the thread itself, once the rank has ended."""
        assert self._worker is not None
        if not self._worker.retired:
            self._idle.append(self._worker)

    @property
    def ident(self) -> int | None:
        return None if self._worker is None else self._worker.ident

    def is_alive(self) -> bool:
        return self._worker is not None and self._worker.is_alive() and not self.ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        # In turns: a thread that an exception ended between two of a run's last steps has told nobody.
        while not self.has_ended(_LOOK if until is None else min(max(until - time.monotonic(), 0), _LOOK)):
            if until is not None and time.monotonic() >= until:
                return

    def interrupt(self, error: type[BaseException]) -> None:
        if self._worker is not None:
            self._worker.interrupt(error)


@contextlib.contextmanager
def kept_threads() -> Iterator[Callable[..., RankThread]]:
    """Makes ranks' threads of few: a run's go on in the next. A rank that does not end keeps its own."""
    workers: list[_Worker] = []
    idle: list[_Worker] = []
    try:
        yield functools.partial(KeptThread, workers, idle)
    finally:
        for worker in idle:
            worker.give(None)
        for worker in workers:
            if worker.rank is None or worker.rank.has_ended():
                worker.join()


class RankCrashedError(BaseException):
    """Raised in a rank that a fault plan crashes. No Exception: a program that catches those ends all the same."""


class RankEndedError(BaseException):
    """Raised in a rank that stands in its own code when its run has to end."""


def as_exception(info: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Of a rank that was ended, or crashed by plan: as PyTorch's class counts it, which passes over what is no Exception."""
    kind, error, trace = info
    if not isinstance(error, (RankEndedError, RankCrashedError)):
        return info
    failure = RuntimeError(str(error) or kind.__name__)
    return RuntimeError, failure.with_traceback(trace), trace


def _rank_ended(why: str) -> type[RankEndedError]:
    # Only a class can be raised in another thread.
    return type("RankEndedError", (RankEndedError,), {"__str__": lambda self: why, "__module__": __name__})


# In seconds of real time.
_GRACE = 3.0  # a rank's, to come back from its own code when the run has failed
_RETRIES = 10.0  # the same, of a rank that goes on calling, though each call fails
_RETRIED = 20  # points that such a rank comes to in that time, at least
_CAUGHT = 100  # errors of a rank, at least, none of whose calls goes well for the time that it may stand
_LAST_GRACE = 2.0  # from an exception that is raised in its code
_LOOK = 0.25
_IMPORTS = 10  # times as long may a rank stand in an import, which waits for disks, or wait for its script's threads

left: list[str] = []  # the ranks that could not be ended: their threads stay
joining: set[tuple[int, int]] = set()  # job and rank of those whose script is over, and which wait for its threads
held = 0  # how many ranks a person keeps: at a breakpoint, or at a prompt. Nobody hangs meanwhile


@contextlib.contextmanager
def ending(job: _ext.Job, threads: Sequence[RankThread]) -> Iterator[None]:
    """An exception raised within, by an interrupt too, ends the ranks as well: around start_threads() and join_threads()."""
    try:
        yield
    except BaseException as error:
        _give_up(job, [thread for thread in threads if thread.begun], error)
        raise


def start_threads(threads: Sequence[RankThread]) -> None:
    for thread in threads:
        thread.begun = True
        thread.start()


def join_threads(
    job: _ext.Job, threads: Sequence[RankThread], *, timeout: float | None = None, stall: float | None = None
) -> list[str]:
    """Returns when all have ended: what it had to do for that.

    timeout: in seconds, of all. stall: in seconds, of a rank between two scheduling points; None: what tests ask for.
    """
    watch = _Watch(job, threads, _rerun.stall if stall is None else stall)
    began = time.monotonic()
    for thread in threads:
        while not thread.has_ended(_LOOK) and thread not in watch.left:
            if timeout is not None and time.monotonic() - began >= timeout:
                job.abort(f"a rank did not end within {timeout:g} seconds")
                timeout = None
            watch.look()
        if thread not in watch.left:
            thread.join()
    return watch.notes


class _Watch:
    """Ends ranks that hang in their own code, where no scheduler sees them."""

    def __init__(self, job: _ext.Job, threads: Sequence[RankThread], stall: float | None) -> None:
        self.notes: list[str] = []
        self.left: list[RankThread] = []
        self._job = job
        self._threads = threads
        self._stall = stall
        self._steps: dict[int, tuple[int, float]] = {}  # rank -> its points, and since when there were no more
        self._tries: dict[int, tuple[int, int, float]] = {}  # rank -> its calls that went well; those that failed, and the time, by then
        self._aborted_at: float | None = None
        self._at_abort: dict[int, int] = {}  # rank -> its points when it was first seen to run after that
        self._ended: dict[int, tuple[type[RankEndedError], float]] = {}  # rank -> what is raised there, since when
        self._leave_all_at: float | None = None

    def look(self) -> None:
        if held:
            self._steps.clear()
            self._tries.clear()
            self._aborted_at = None  # nor does time pass for ranks of a run that has failed
            return
        now = time.monotonic()
        running = self._job.running()
        self._steps = {
            rank: (steps, self._steps[rank][1] if self._steps.get(rank, (-1, 0))[0] == steps else now)
            for rank, steps in running.items()
        }
        if self._aborted_at is None and self._job.aborted:
            self._aborted_at = now
            self._at_abort.clear()
        for rank, (steps, since) in self._steps.items():
            if self._threads[rank] in self.left:
                continue
            if rank in self._ended:
                error, at = self._ended[rank]
                self._threads[rank].interrupt(error)
                if now - at >= max(_LAST_GRACE, self._stall or 0):
                    self._leave(rank)
                    self._leave_all_at = now + _LAST_GRACE
            elif self._aborted_at is not None:
                before = self._at_abort.setdefault(rank, steps)  # as far as is known: under a schedule one rank runs at a time
                retries = now - self._aborted_at >= _RETRIES and steps - before >= _RETRIED
                if retries or now - max(since, self._aborted_at) >= _GRACE:
                    text = f"rank {rank} was still in its own code {_GRACE:g} s after that"
                    if retries:
                        text = f"rank {rank} still called {_RETRIES:g} s after that, though every call fails from then on"
                    self.notes.append(f"{text}\n{self._where(rank)}")
                    self._end(rank, self._job.abort_cause, now)
            elif self._stall is not None and now - since >= self._stall:
                self._stalled(rank, self._stall, now - since, now)
            elif self._stall is not None:
                self._look_at_errors(rank, self._stall, now)
        if self._leave_all_at is not None and now >= self._leave_all_at:
            # Under a schedule they wait for their turn, which the rank before them does not give up.
            for rank, thread in enumerate(self._threads):
                if not thread.has_ended():
                    self._leave(rank)

    def _look_at_errors(self, rank: int, stall: float, now: float) -> None:
        """A rank that catches the error of each call, and calls again, stands still as well."""
        failed, good = self._job.calls(rank)
        if self._tries.get(rank, (-1,))[0] != good:
            self._tries[rank] = (good, failed, now)
        _, before, since = self._tries[rank]
        caught = failed - before
        if caught >= _CAUGHT and now - since >= stall:
            text = f"Stall: all calls have failed for {stall:g} s of real time: the program has caught {caught} errors, and goes on"
            self._job.fail(rank, f"{text}\n{self._where(rank)}")

    def _stalled(self, rank: int, limit: float, stood: float, now: float) -> None:
        where = ""
        if self._imports(rank):
            limit, where = limit * _IMPORTS, ", in an import"
        elif (self._job.id, rank) in joining:
            limit, where = limit * _IMPORTS, ", while the rank waits for the threads that its script has started"
        if stood >= limit:
            text = f"Stall: no scheduling point for {limit:g} s of real time{where}: it computes, or it blocks in what is not rankloom's"
            self._job.fail(rank, f"{text}{self._hint(rank)}\n{self._where(rank)}")
            self._end(rank, f"after {limit:g} s without a scheduling point", now)

    def _imports(self, rank: int) -> bool:
        frame = sys._current_frames().get(self._threads[rank].ident or 0)
        while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
            frame = frame.f_back
        return frame is not None

    def _hint(self, rank: int) -> str:
        if not self._job.deterministic:
            return ""
        frame = sys._current_frames().get(self._threads[rank].ident or 0)
        while frame is not None and not is_callers(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None and _locks(frame):
            return (
                " (a lock that another rank holds across a call of torch.distributed never comes free: that rank gets no turn while "
                "this one blocks; release the lock before the call)"
            )
        return " (a rank that waits for another one by other means needs parallel=True)"

    def _where(self, rank: int) -> str:
        text = self._job.describe()  # with the stacks of those who have attached
        told = re.findall(r"^  Python stack of ranks? ([\d, ]+):$", text, re.MULTILINE)
        if str(rank) in ", ".join(told).split(", "):
            return text
        return f"{text}\n{_stacks([(rank, self._threads[rank].ident or 0)])}".rstrip("\n")

    def _end(self, rank: int, why: str, now: float) -> None:
        error = _rank_ended(why)
        self._ended[rank] = (error, now)
        self._threads[rank].hung = True
        self._threads[rank].interrupt(error)

    def _leave(self, rank: int) -> None:
        if self._threads[rank] not in self.left:
            self.left.append(self._threads[rank])
            self._job.give_up(rank)
            self.notes.append(_leave(self._threads[rank]))


def _locks(frame: types.FrameType) -> bool:
    """Whether the frame stands in a line that takes a lock: `with` one, or its acquire()."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals).strip()
    if ".acquire(" in line:
        return True
    names = re.match(r"with\s+([\w.]+)", line)
    if names is None:
        return False
    first, *rest = names[1].split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    for name in rest:
        value = getattr(value, name, None)
    return isinstance(value, (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Semaphore))


def _leave(thread: RankThread) -> str:
    text = f"{thread.name} could not be ended: its thread stays until the process ends"
    left.append(text)
    return text


def _give_up(job: _ext.Job, threads: Sequence[RankThread], error: BaseException) -> None:
    """threads: by rank, as far as they were begun."""
    why = f"{type(error).__name__} in the main thread"
    job.abort(why)
    # A thread without an identity was interrupted within start(): on a busy machine it may get one yet.
    until = time.monotonic() + _GRACE
    while time.monotonic() < until and any(thread.ident is None for thread in threads):
        time.sleep(0.01)
    alive = [thread for thread in threads if thread.ident is not None]
    until = time.monotonic() + 1
    alive = [t for t in alive if not t.has_ended(max(until - time.monotonic(), 0))]
    if not alive:
        return
    stacks = _stacks([(threads.index(t), t.ident or 0) for t in alive])
    ended = _rank_ended(job.abort_cause or why)
    until = time.monotonic() + _LAST_GRACE
    while alive and time.monotonic() < until:
        for thread in alive:
            thread.interrupt(ended)
        alive = [t for t in alive if not t.has_ended(_LOOK)]
    for thread in alive:
        job.give_up(threads.index(thread))
    names = "\n".join(map(_leave, alive))
    text = f"rankloom: {why}, and these ranks were in their own code:\n{stacks}\n{names}".rstrip()
    if hasattr(error, "add_note"):
        error.add_note(text)
    elif alive:
        print(text, file=sys.stderr)


def _profile_all_threads(function: Callable[[types.FrameType, str, Any], None] | None) -> Any:
    """The result has to live as long as the function is set."""
    if sys.version_info >= (3, 12):
        threading.setprofile_all_threads(function)
        return None
    python: Any = ctypes.pythonapi
    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.py_object, ctypes.c_int, ctypes.c_void_p)

    def call(_: Any, frame: types.FrameType, what: int, __: Any) -> int:
        assert function is not None
        function(frame, "", None)
        return 0

    pointer = kind(call) if function is not None else kind(0)
    python.PyInterpreterState_Get.restype = python.PyInterpreterState_ThreadHead.restype = ctypes.c_void_p
    python.PyThreadState_Next.restype = ctypes.c_void_p
    state = python.PyInterpreterState_ThreadHead(ctypes.c_void_p(python.PyInterpreterState_Get()))
    while state:
        python._PyEval_SetProfile(ctypes.c_void_p(state), pointer, None)
        state = python.PyThreadState_Next(ctypes.c_void_p(state))
    return pointer


@contextlib.contextmanager
def others_stopped() -> Iterator[None]:
    """While open, no rank but the calling one goes on in its own code: under a schedule none does anyway.

    Where all ranks run at once, a rank stops at the next call that its own code makes.
    """
    current = _ext.current()
    if current is None or current[0].deterministic:
        yield
        return
    goes_on = threading.Event()
    here = threading.get_ident()

    def stop(frame: types.FrameType, event: str, argument: Any) -> None:
        if (
            threading.get_ident() != here
            and isinstance(threading.current_thread(), RankThread)
            and is_callers(frame.f_code.co_filename)
        ):
            goes_on.wait()

    keep = _profile_all_threads(stop)
    try:
        yield
    finally:
        goes_on.set()
        _profile_all_threads(None)
        del keep


def keep_world(job: _ext.Job, rank: int) -> None:
    """Threads that act for this rank (a future's callback) see its process groups."""
    world = dist.distributed_c10d._world
    if isinstance(world, multi_threaded_pg.ThreadLocalWorld):
        _worlds[(job.id, rank)] = world._get_world()


_make_world = multi_threaded_pg.ThreadLocalWorld._get_world  # torch's own, whose fields differ by version


def _get_world(self: Any = None, local: Any = multi_threaded_pg.ThreadLocalWorld._world) -> Any:
    try:
        return local.world
    except AttributeError:
        pass
    key = _ext.acts_for()
    if key[0] >= 0 and _ext.current() is None:
        world = _worlds.get(key)
        if world is not None:
            return world
    return _make_world(self)


def share_worlds() -> None:
    """Idempotent. Without a rank's helper thread, the same as before."""
    multi_threaded_pg.ThreadLocalWorld._get_world = _get_world  # type: ignore[method-assign]
    if not hasattr(multi_threaded_pg.ThreadLocalWorld, "comms"):  # torch 2.11, whose destroy_process_group() asks for it

        def comms(self: Any) -> Any:
            return vars(self._get_world()).setdefault("comms", [])

        multi_threaded_pg.ThreadLocalWorld.comms = property(comms)  # type: ignore[assignment,method-assign]


def _settings() -> Callable[[], None]:
    """Puts back what context managers change for the whole process: ranks leave theirs in another order than they enter."""
    shown = warnings.showwarning, warnings._showwarnmsg_impl  # type: ignore[attr-defined]
    filters = warnings.filters
    kept = list(filters)
    kinds = ("flash", "mem_efficient", "math", "cudnn")
    kernels = {kind: getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in kinds}
    anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    dtype = torch.get_default_dtype()

    def put_back() -> None:
        warnings.showwarning, warnings._showwarnmsg_impl = shown  # type: ignore[attr-defined]
        if warnings.filters is not filters or list(filters) != kept:
            warnings.filters = filters
            filters[:] = kept  # type: ignore[index]
            warnings._filters_mutated()  # type: ignore[attr-defined]
        for kind, enabled in kernels.items():
            if getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() != enabled:
                getattr(torch.backends.cuda, f"enable_{kind}_sdp")(enabled)
        if (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()) != anomaly:
            torch.set_anomaly_enabled(*anomaly)
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)

    return put_back


class _Worlds:
    """torch.distributed keeps a world per thread while anybody runs ranks."""

    def __init__(self) -> None:
        self._mu = threading.Lock()
        self._users = 0
        self._before: Any = None
        self._excepthook: Any = None
        self._settings: Callable[[], None] = lambda: None

    @property
    def busy(self) -> bool:
        return self._users > 0

    def enter(self) -> None:
        _names.refuse_in_fake_world()
        with self._mu:
            self._users += 1
            if self._users == 1:
                # Its functions keep the group that is the default one when it is imported: on a rank, that rank's for all.
                importlib.import_module("torch.distributed.nn.functional")
                importlib.import_module("torch.distributed._composable.replicate")  # to be adapted
                _stores.enter()
                _names.enter()
                _hooks.adapt()
                self._settings = _settings()
                share_worlds()
                # torch adds a rank's name to what a process prints last, once for each init_process_group().
                self._excepthook = sys.excepthook
                self._before = dist.distributed_c10d._world
                dist.distributed_c10d._world = multi_threaded_pg.ThreadLocalWorld()  # type: ignore[assignment]
                torch._C._distributed_c10d._set_thread_isolation_mode(True)  # type: ignore[attr-defined]

    def leave(self) -> None:
        with self._mu:
            self._users -= 1
            if self._users == 0:
                dist.distributed_c10d._world = self._before
                sys.excepthook = self._excepthook
                self._settings()
                _names.leave()
                _stores.leave()
                torch._C._distributed_c10d._set_thread_isolation_mode(False)  # type: ignore[attr-defined]


worlds = _Worlds()


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Ranks run within."""
    worlds.enter()
    try:
        yield
    finally:
        worlds.leave()


def _depth_below(filename: str, folders: list[str]) -> int:
    return max((len(folder) for folder in folders if filename.startswith(folder)), default=0)


def is_callers(filename: str) -> bool:
    return "common_distributed" not in filename and not filename.startswith("<") and not _is_library(filename)


def _is_library(filename: str) -> bool:
    return _depth_below(filename, _LIBRARIES) > _depth_below(filename, _CALLERS)


def is_installed(filename: str) -> bool:
    """Of Python, or of a package that was installed, whoever made it."""
    return _depth_below(filename, _LIBRARIES) + _depth_below(filename, _CALLERS) > 0


def callers_traceback(error: BaseException) -> types.TracebackType | None:
    """From the first frame on that is the caller's; without one, from the first that is not ours.

    An error of ours was raised below torch.distributed's functions: to the last frame that is the caller's.
    """
    for unwanted in (lambda name: not is_callers(name), lambda name: name.startswith(_OURS)):
        tb = error.__traceback__
        while tb is not None and unwanted(tb.tb_frame.f_code.co_filename):
            tb = tb.tb_next
        if tb is not None:
            return _to_last_caller(tb) if isinstance(error, (dist.DistError, RankCrashedError)) else tb
    return error.__traceback__


def _to_last_caller(tb: types.TracebackType) -> types.TracebackType:
    frames = []
    rest: types.TracebackType | None = tb
    while rest is not None:
        frames.append(rest)
        rest = rest.tb_next
    while len(frames) > 1 and not is_callers(frames[-1].tb_frame.f_code.co_filename):
        frames.pop()
    cut = None
    for at in reversed(frames):
        cut = types.TracebackType(cut, at.tb_frame, at.tb_lasti, at.tb_lineno)
    assert cut is not None
    return cut


def _stacks(threads: list[tuple[int, int]]) -> str:
    frames = sys._current_frames()
    by_text: dict[str, list[int]] = {}
    for rank, thread in threads:
        frame = frames.get(thread)
        if frame is None:
            continue
        stack = [f for f in traceback.extract_stack(frame) if is_callers(f.filename)]
        text = "".join(f"\n    {f.filename}:{f.lineno} in {f.name}: {f.line}" for f in stack[-8:])
        if text:  # else the rank is about to begin, or to end
            by_text.setdefault(text, []).append(rank)
    parts = []
    for text, ranks in by_text.items():
        who = f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))
        parts.append(f"  Python stack of {who}:{text}")
    return "\n".join(parts)


_random: dict[int, dict[int, Any]] = {}  # by job and rank; of rank -1: as they were before the job


def _swap_random(job: int, before: int, after: int) -> None:
    """From rank to rank; before: -1 at first, after: -1 at the end. A rank begins with the state of before the job."""
    numpy = sys.modules.get("numpy")
    states = _random.setdefault(job, {})
    states[before] = (random.getstate(), numpy.random.get_state() if numpy else None)
    state = states.pop(after, None) or states[-1]
    random.setstate(state[0])
    if numpy and state[1] is not None:
        numpy.random.set_state(state[1])
    if after < 0:
        del _random[job]


_hooks.per_rank()
_futures.patch()
_ext.set_hooks(_stacks, _swap_random)
_ext.set_library_folders(_LIBRARIES, _CALLERS)
