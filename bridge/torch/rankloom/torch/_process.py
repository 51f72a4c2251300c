"""Things that a process has once, for ranks that each run a script: __main__, sys.argv, streams, os.environ, handlers.

While scripts() is open, what a rank thread (or a thread that it started) asks of these is answered by its Process.
"""

from __future__ import annotations

import _posixsubprocess
import atexit
import builtins
import concurrent.futures.process
import concurrent.futures.thread
import contextlib
import importlib.abc
import importlib.machinery
import io
import os
import pdb
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import popen_spawn_posix
from typing import Any, ClassVar

from rankloom.torch import _devices, _ext, _ranks

_STREAMS = ("stdout", "stderr")
_LOOK = 0.25  # seconds
_mu = threading.Lock()
_local = threading.local()
_processes: dict[tuple[int, int], Process] = {}


class _LeftError(SystemExit):
    """Raised in the thread of a rank of which another one has called os._exit()."""

    at_once = True


class Process:
    """One rank's, on the rank's thread from begin() to end()."""

    def __init__(self, rank: int, main: types.ModuleType, argv: list[str], output: Output) -> None:
        self.rank = rank
        self.main = main
        self.argv = argv
        self.output = output
        self.bound: dict[str, Any] = {}  # streams that the script put in the place of ours
        self.handlers: dict[int, Any] = {}
        self.exits: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = []
        self.instances: dict[Any, Any] = {}  # Hydra's
        self.left_with: int | None = None  # by os._exit(), also where the script goes on all the same, or a thread of its did
        self.threads: list[threading.Thread] = []  # started by the script
        self.executors: list[weakref.ref[concurrent.futures.Executor]] = []  # made by the script
        self.workers: list[threading.Thread] = []  # of those, also of such as nobody holds any more
        self._job: _ext.Job | None = None
        self._thread: Any = None  # while the script runs
        self.key = (-1, -1)  # job and rank

    def run(self, code: types.CodeType, environment: dict[str, str | None]) -> int:
        """Runs the script, and returns when it left with exit code 0. Other codes, and what it raises, are raised."""
        current = _ext.current()
        assert current is not None
        self._job, self.key = current[0], (current[0].id, current[1])
        own = _ranks.environment()
        assert own is not None
        own.whole = True
        own.update(environment)
        _local.process = _processes[self.key] = self
        # Threads are daemons if their maker is one, which a script's main thread is not.
        thread: Any = threading.current_thread()
        daemon, thread._daemonic = thread._daemonic, False
        try:
            try:
                with self._interruptible(), _devices.on_thread():
                    self._run(code)
            except BaseException:
                if self.left_with is None:
                    raise
            if self.left_with:
                raise SystemExit(self.left_with)
            return 0
        finally:
            for name in _STREAMS:
                with contextlib.suppress(Exception):
                    self.stream(name).flush()
            self.output.end(self.rank)
            _local.process = None
            _processes.pop(self.key, None)
            thread._daemonic = daemon

    def _run(self, code: types.CodeType) -> None:
        try:
            try:
                exec(code, self.main.__dict__)
            except SystemExit as left:
                if not getattr(left, "at_once", False):
                    self._join()
                if left.code not in (None, 0):
                    raise
            else:
                self._join()
        finally:
            while self.exits:
                function, args, kwargs = self.exits.pop()
                try:
                    function(*args, **kwargs)
                except (_ranks.RankEndedError, _ranks.RankCrashedError):
                    raise
                except BaseException as error:  # as Python does, which goes on after sys.exit(), too
                    if getattr(error, "at_once", False):  # os._exit()
                        raise
                    print(f"Exception ignored in atexit callback: {function!r}", file=sys.stderr)
                    traceback.print_exc()

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The script runs within, and another thread of the rank's may end it."""
        self._thread = threading.current_thread()
        try:
            yield
        finally:
            with _mu:
                self._thread = None

    def leave(self, status: int) -> None:
        """By os._exit(), on any thread of the rank's: the script goes no further."""
        with _mu:
            if self.left_with is not None:
                return
            self.exits.clear()
            self.left_with = status
            elsewhere = self._thread not in (None, threading.current_thread())
            if elsewhere:
                self._thread.interrupt(_LeftError)
        # Calls of torch.distributed that the rank is in, as well as the other ranks', end by this.
        if elsewhere and status and self._job is not None:
            self._job.fail(self.key[1], f"SystemExit: {status}")

    def _join(self) -> None:
        """Waits for the script's threads, but for daemons: Python does at a process's end, and tells executors to end before that."""
        _ranks.joining.add(self.key)
        try:
            for executor in [found for made in self.executors if (found := made()) is not None]:
                with contextlib.suppress(Exception):  # of a subclass
                    executor.shutdown(wait=False)
            with _mu:
                self.threads += self.workers
            while self.threads:
                with _mu:
                    thread = self.threads.pop()
                while not thread.daemon and not _over(thread).wait(_LOOK):
                    pass  # a rank can be ended between two of these
        finally:
            _ranks.joining.discard(self.key)

    def stream(self, name: str) -> Any:
        return self.bound.get(name) or self.output.streams[name]


def job_of_caller() -> int:
    current = _ext.current()
    return -1 if current is None else current[0].id


def process() -> Process | None:
    """Of the calling thread."""
    own: Process | None = getattr(_local, "process", None)
    if own is not None or not _processes:
        return own
    return _processes.get(_ext.acts_for())


class Output:
    """Puts lines of ranks, each with its rank, into the process's streams."""

    def __init__(self, prefix: Callable[[int], str], write: Callable[[int, str, str, str], None]) -> None:
        """write(rank, stream's name, text, the same with prefixes): whole lines, or, after a flush, a part of one."""
        self.prefix = prefix
        self._write = write
        self._waiting: dict[tuple[int, str], str] = {}
        self._open: tuple[int, str] | None = None  # whose line has no end yet
        self._mu = threading.RLock()
        self.streams = {name: _Lines(self, name) for name in _STREAMS}

    def write(self, rank: int, name: str, text: str) -> None:
        with self._mu:
            key = (rank, name)
            text = self._waiting.pop(key, "") + text
            end = max(text.rfind("\n"), text.rfind("\r")) + 1
            if text[end:]:
                self._waiting[key] = text[end:]
            if end:
                self._put(key, text[:end])

    def flush(self, rank: int, name: str) -> None:
        with self._mu:
            text = self._waiting.pop((rank, name), "")
            if text:
                self._put((rank, name), text)

    def end(self, rank: int) -> None:
        with self._mu:
            for name in _STREAMS:
                self.flush(rank, name)
            if self._open is not None and self._open[0] == rank:
                self._write(*self._open, "", "\n")
                self._open = None

    def _put(self, key: tuple[int, str], text: str) -> None:
        rank, name = key
        prefix = self.prefix(rank)
        goes_on = self._open == key
        if self._open is not None and not goes_on:
            self._write(*self._open, "", "\n")
        lines = text.splitlines(keepends=True)
        prefixed = "".join(("" if goes_on and at == 0 else prefix) + line for at, line in enumerate(lines))
        self._write(rank, name, text, prefixed)
        self._open = None if text[-1] in "\n\r" else key


class _Stream(io.TextIOBase):
    """sys.stdout or sys.stderr: of the process for threads of no rank."""

    def __init__(self, name: str, real: Any) -> None:
        self._name = name
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def _target(self) -> Any:
        own = process()
        return self._real if own is None else own.stream(self._name)

    def write(self, text: str) -> int:
        return self._target().write(text)  # type: ignore[no-any-return]

    def flush(self) -> None:
        self._target().flush()

    def isatty(self) -> bool:
        return bool(self._real.isatty())

    def fileno(self) -> int:
        return int(self._real.fileno())

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._real.encoding  # type: ignore[no-any-return]

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._real.errors  # type: ignore[no-any-return]

    @property
    def newlines(self) -> Any:  # type: ignore[override]
        return self._real.newlines


class _Lines(_Stream):
    """A rank's sys.stdout: also when another rank's logging handler keeps it, it writes for the calling rank."""

    def __init__(self, output: Output, name: str) -> None:
        super().__init__(name, getattr(sys, name))
        self._output = output

    def write(self, text: str) -> int:
        own = process()
        if own is None:
            return self._real.write(text)  # type: ignore[no-any-return]
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._output.write(own.rank, self._name, text)
        return len(text)

    def flush(self) -> None:
        own = process()
        if own is None:
            self._real.flush()
        else:
            self._output.flush(own.rank, self._name)


class _Instances(dict[Any, Any]):
    """Of classes of which a process has one object: a rank has its own configuration, and what modules register is everyone's."""

    def _of(self, key: type) -> dict[Any, Any] | None:
        own = process()
        return own.instances if own is not None and key.__name__ in ("GlobalHydra", "HydraConfig") else None

    def __contains__(self, key: Any) -> bool:
        own = self._of(key)
        return super().__contains__(key) if own is None else key in own

    def __getitem__(self, key: Any) -> Any:
        own = self._of(key)
        return super().__getitem__(key) if own is None else own[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        own = self._of(key)
        if own is None:
            super().__setitem__(key, value)
        else:
            own[key] = value


class _Finder(importlib.abc.MetaPathFinder):
    """Of the module that has Hydra's configuration of the process: whenever it is imported, ranks get their own."""

    module = "hydra.core.singleton"

    @staticmethod
    def split(module: Any) -> None:
        instances = module.Singleton._instances
        if not isinstance(instances, _Instances):
            module.Singleton._instances = _Instances(instances)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_split(module: types.ModuleType) -> None:
                run(module)
                self.split(module)

            spec.loader.exec_module = run_and_split  # type: ignore[method-assign]
        return spec


def _of_rank(name: str) -> property:
    """sys.<name>: the rank's own, also when the script puts another in its place."""

    def get(self: types.ModuleType) -> Any:
        own = process()
        if own is None:
            return self.__dict__[name]
        return own.argv if name == "argv" else own.stream(name)

    def put(self: types.ModuleType, value: Any) -> None:
        own = process()
        if own is None:
            self.__dict__[name] = value
        elif name == "argv":
            own.argv = value
        elif isinstance(value, _Stream):
            own.bound.pop(name, None)
        else:
            own.bound[name] = value
            _keep_open(value)

    return property(get, put)


_kept_open: list[Any] = []


def _keep_open(stream: Any) -> None:
    """A second stream on the process's own descriptor, as os.fdopen(sys.stdout.fileno()), would close that when it goes."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        if stream.fileno() in (sys.__dict__[name].fileno() for name in _STREAMS):
            _kept_open.append(stream)


class _Sys(types.ModuleType):
    argv = _of_rank("argv")
    stdout = _of_rank("stdout")
    stderr = _of_rank("stderr")


class _Main(types.ModuleType):
    """sys.modules["__main__"]: the rank's, so that what it pickles is found under its name."""

    before: ClassVar[Any] = None

    def __getattribute__(self, name: str) -> Any:
        own = process()
        return getattr(_Main.before if own is None else own.main, name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = process()
        setattr(_Main.before if own is None else own.main, name, value)

    def __delattr__(self, name: str) -> None:
        own = process()
        delattr(_Main.before if own is None else own.main, name)

    def __dir__(self) -> list[str]:
        own = process()
        return dir(_Main.before if own is None else own.main)


def _of_process(name: str) -> Any:
    """The process's stream, also while ranks have their own."""
    stream = sys.__dict__[name]
    return stream._real if isinstance(stream, _Stream) else stream


def say(text: str) -> None:
    """A line of the launcher's own, on the process's stderr."""
    print(f"rankloom: {text}", file=_of_process("stderr"), flush=True)


@contextlib.contextmanager
def _held(rank: int, what: str) -> Iterator[None]:
    """A person has this rank: no rank counts as hanging, and one rank at a time is at the terminal."""
    with _mu:
        _ranks.held += 1
    try:
        with _terminal, _ranks.others_stopped():
            if what:
                own = process()
                size = _ext.current()
                of = f" of {size[0].world_size}" if size is not None else ""
                say(f"{what} in rank {own.rank if own is not None else rank}{of}; all ranks are stopped")
            yield
    finally:
        with _mu:
            _ranks.held -= 1


_terminal = threading.RLock()


class _RankPdb(pdb.Pdb):
    """On the terminal, with the rank in its prompt."""

    def __init__(self, rank: int) -> None:
        super().__init__(stdin=sys.stdin, stdout=_of_process("stdout"), nosigint=True, readrc=False)
        self.prompt = f"(rank {rank}) "
        self._rank = rank
        self._told = False

    def interaction(self, *args: Any, **kwargs: Any) -> Any:
        what, self._told = ("" if self._told else "breakpoint()"), True
        with _held(self._rank, what):
            return super().interaction(*args, **kwargs)


def _on_rank(original: Any, act: Callable[..., Any]) -> Any:
    """The function `original`, but on a rank act(its process, ...)."""

    def either(*args: Any, **kwargs: Any) -> Any:
        own = process()
        return original(*args, **kwargs) if own is None else act(own, *args, **kwargs)

    either.__name__ = either.__qualname__ = getattr(original, "__name__", "either")
    either.__doc__ = getattr(original, "__doc__", None)
    return either


def _refuses(name: str, instead: str) -> Callable[..., Any]:
    def refuse(own: Process, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"rank {own.rank}: {name}(): ranks are threads of this process, which cannot be forked; {instead}")

    return refuse


def _breakpoint(own: Process, *args: Any, header: str | None = None, **kwargs: Any) -> None:
    frame = sys._getframe(2)  # below _on_rank's
    debugger = _RankPdb(own.rank)
    if header is not None:
        debugger.message(header)
    debugger.set_trace(frame)


def _input(own: Process, prompt: object = "", /) -> str:
    own.stream("stdout").flush()
    with _held(own.rank, ""):
        print(f"{own.output.prefix(own.rank)}{prompt}", end="", file=_of_process("stdout"), flush=True)
        line = sys.stdin.readline()
    if not line:
        raise EOFError("EOF when reading a line")
    return line.removesuffix("\n")


def _signal(own: Process, number: int, handler: Any) -> Any:
    number = signal.Signals(number)
    if not callable(handler) and handler not in (signal.SIG_DFL, signal.SIG_IGN):
        raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object")
    before = signal.getsignal(number)
    own.handlers[number] = handler
    say(f"rank {own.rank} sets a handler of {number.name}: kept, but no signal comes to a rank, which is a thread")
    return before


def _getsignal(original: Any) -> Callable[..., Any]:
    def getsignal(own: Process, number: int) -> Any:
        before = original(number)
        return own.handlers.get(signal.Signals(number), before)

    return getsignal


def _os_exit(own: Process, status: int) -> None:
    own.leave(status)
    left = SystemExit(status)  # itself, of which threads make no words
    left.at_once = True  # type: ignore[attr-defined]
    raise left


def _start(original: Any) -> Any:
    def start(self: threading.Thread) -> None:
        own = process()
        if own is not None:
            run, environment, world, over = self.run, _ranks.environment(), _ranks.world_of_thread(), threading.Event()

            def run_of_rank() -> None:
                try:
                    _local.process = own
                    _ranks.inherit(own.key, environment, world)
                    with _devices.on_thread():
                        run()
                finally:
                    over.set()

            self._over = over  # type: ignore[attr-defined]
            self.run = run_of_rank  # type: ignore[method-assign]
        executor = _executor_of(self)
        original(self)
        if own is None:
            return
        with _mu:
            started[:] = [*filter(_goes_on, started), self]
            # Workers end with their executor, which another rank may use as well, or have made.
            if executor is None:
                own.threads = [*filter(_goes_on, own.threads), self]
            elif maker := getattr(executor(), "_made_by_rank", lambda: None)():
                maker.workers = [*filter(_goes_on, maker.workers), self]

    return start


started: list[threading.Thread] = []  # by ranks of the launch


def _over(thread: Any) -> threading.Event:
    """Set when a thread that a rank has started is over: a join() that is interrupted takes a thread for ended (CPython before 3.13)."""
    return thread._over  # type: ignore[no-any-return]


def _goes_on(thread: threading.Thread) -> bool:
    return not _over(thread).is_set()


def _executor_of(thread: Any) -> Any:
    """A weak reference to the executor that this is a worker of; None: it is no worker."""
    if isinstance(thread, concurrent.futures.process._ExecutorManagerThread):
        return thread.executor_reference
    return thread._args[0] if getattr(thread, "_target", None) is concurrent.futures.thread._worker else None


def go_on(seconds: float) -> list[str]:
    """The names of the threads that ranks have started, and that still keep the process from its end when so long has passed."""
    until = time.monotonic() + seconds
    kept = started
    while (kept := [*filter(_keeps_process, kept)]) and time.monotonic() < until:
        _over(kept[0]).wait(min(max(until - time.monotonic(), 0), _LOOK))
    return sorted(thread.name for thread in kept)


def _keeps_process(thread: Any) -> bool:
    """Python waits at its end for all but daemons, and for workers, which end at once where they have nothing to do."""
    if not _goes_on(thread):
        return False
    if isinstance(thread, concurrent.futures.process._ExecutorManagerThread):
        return bool(thread.pending_work_items)
    if thread in concurrent.futures.thread._threads_queues:
        frame = sys._current_frames().get(thread.ident or 0)
        return frame is None or frame.f_code is not concurrent.futures.thread._worker.__code__
    return not thread.daemon


def _executor(original: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        own = process()
        # A library that a rank happens to use first makes its own for the process.
        if own is not None and sys._getframe(1).f_globals is own.main.__dict__:
            own.executors.append(weakref.ref(self))
            self._made_by_rank = weakref.ref(own)

    return init


def _popen(original: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if process() is not None and kwargs.get("env") is None and len(args) < 11:
            kwargs["env"] = dict(os.environ)
        original(self, *args, **kwargs)

    return init


def _launch(original: Any) -> Any:
    """Of multiprocessing's "spawn", which names no environment; its other helpers, which are the process's, keep that one's."""

    def launch(self: Any, *args: Any) -> Any:
        _local.spawns = process() is not None
        try:
            return original(self, *args)
        finally:
            _local.spawns = False

    return launch


def _fork_exec(original: Any) -> Any:
    def fork_exec(*args: Any) -> Any:
        if getattr(_local, "spawns", False) and len(args) > 5 and args[5] is None:
            environment = [os.fsencode(f"{name}={value}") for name, value in os.environ.items()]
            args = (*args[:5], environment, *args[6:])
        return original(*args)

    return fork_exec


def _system(own: Process, command: Any) -> int:
    """C's would have the environment of the process."""
    code = subprocess.call(command, shell=True, close_fds=False, restore_signals=False)
    return code << 8 if code >= 0 else -code


def _register(original: Any) -> Any:
    def register(function: Any, /, *args: Any, **kwargs: Any) -> Any:
        own = process()
        # A library that a rank happens to import first registers for the process.
        if own is None or sys._getframe(1).f_globals is not own.main.__dict__:
            return original(function, *args, **kwargs)
        own.exits.append((function, args, kwargs))
        return function

    return register


def _unregister(original: Any) -> Any:
    def unregister(function: Any, /) -> None:
        own = process()
        if own is not None:
            own.exits[:] = [kept for kept in own.exits if kept[0] != function]
        original(function)

    return unregister


def _set_device(own: Process, *args: Any, **kwargs: Any) -> None:
    """There is no such device, and nothing is put on it."""


@contextlib.contextmanager
def scripts(tolerate_set_device: bool = False) -> Iterator[None]:
    """While open, ranks that are in Process.run() have what a process has one of. Of the main thread, not reentrant."""
    restore: list[tuple[Any, str, Any]] = []
    started.clear()

    def replace(owner: Any, name: str, value: Any) -> None:
        restore.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    main = sys.modules["__main__"]
    streams = {name: sys.__dict__[name] for name in _STREAMS}
    breakpoint_hook = sys.__dict__["breakpointhook"]
    _Main.before = main
    finder = _Finder()
    try:
        sys.meta_path.insert(0, finder)
        if finder.module in sys.modules:
            finder.split(sys.modules[finder.module])
        sys.modules["__main__"] = _Main("__main__")
        for name in _STREAMS:
            setattr(sys, name, _Stream(name, streams[name]))
        sys.__class__ = _Sys
        if os.environ.get("PYTHONBREAKPOINT", "") == "":
            sys.breakpointhook = _on_rank(breakpoint_hook, _breakpoint)
            replace(pdb, "set_trace", _on_rank(pdb.set_trace, _breakpoint))
        replace(builtins, "input", _on_rank(builtins.input, _input))
        instead = "DataLoader(num_workers=0), subprocess, or the multiprocessing context 'spawn' work"
        replace(os, "fork", _on_rank(os.fork, _refuses("os.fork", instead)))
        replace(os, "forkpty", _on_rank(os.forkpty, _refuses("os.forkpty", instead)))
        replace(os, "_exit", _on_rank(os._exit, _os_exit))
        replace(os, "system", _on_rank(os.system, _system))
        replace(_posixsubprocess, "fork_exec", _fork_exec(_posixsubprocess.fork_exec))
        spawned: Any = popen_spawn_posix.Popen
        replace(spawned, "_launch", _launch(spawned._launch))
        replace(signal, "getsignal", _on_rank(signal.getsignal, _getsignal(signal.getsignal)))
        replace(signal, "signal", _on_rank(signal.signal, _signal))
        replace(threading.Thread, "start", _start(threading.Thread.start))
        for executor in (concurrent.futures.ThreadPoolExecutor, concurrent.futures.ProcessPoolExecutor):
            replace(executor, "__init__", _executor(executor.__init__))
        replace(subprocess.Popen, "__init__", _popen(subprocess.Popen.__init__))
        replace(atexit, "register", _register(atexit.register))
        replace(atexit, "unregister", _unregister(atexit.unregister))
        if tolerate_set_device:
            cuda = importlib.import_module("torch.cuda")
            replace(cuda, "set_device", _on_rank(cuda.set_device, _set_device))
            if not cuda.is_available():
                replace(cuda, "synchronize", _on_rank(cuda.synchronize, _set_device))
                replace(cuda, "current_device", _on_rank(cuda.current_device, lambda own: 0))
        yield
    finally:
        sys.meta_path.remove(finder)
        for owner, name, value in reversed(restore):
            setattr(owner, name, value)
        sys.__class__ = types.ModuleType
        sys.breakpointhook = breakpoint_hook
        for name in _STREAMS:
            setattr(sys, name, streams[name])
        sys.modules["__main__"] = main
        _ranks.restore_exported()
