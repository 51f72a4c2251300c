"""torchrun with ranks that are threads of this process: rankloom-torchrun, python -m rankloom.torch."""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import functools
import importlib.util
import multiprocessing
import os
import pathlib
import shlex
import signal
import string
import sys
import traceback
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed import run as torchs
from torch.distributed.elastic.multiprocessing import Std

from rankloom import _rerun
from rankloom.torch import _devices, _ext, _names, _process, _ranks
from rankloom.torch._explore import explore, observe
from rankloom.torch._fake_world import Call, FakeWorld, fake_world
from rankloom.torch._run import Report, run, without_traceback
from rankloom.torch._spawn import spawn

# torchrun's options that mean nothing here, and why; what is not named is done, or has no effect to miss.
_IGNORED = {
    "node_rank": "this process runs all nodes",
    "rdzv_backend": "ranks meet in memory",
    "rdzv_endpoint": "ranks meet in memory",
    "rdzv_conf": "ranks meet in memory",
    "local_addr": "ranks meet in memory",
    "monitor_interval": "threads are not polled",
    "start_method": "ranks are threads of this process",
    "run_path": "the script runs in this interpreter",
    "max_restarts": "a run that fails is told, not repeated",
    "numa_binding": "ranks are threads of one process",
    "logs_specs": "lines of ranks are written here",
    "event_log_handler": "there are no events",
    "duplicate_stdout_filters": "no line is duplicated",
    "duplicate_stderr_filters": "no line is duplicated",
    "signals_to_handle": "no signal comes to a rank",
    "shutdown_timeout": "ranks are given 3 s",
}


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = torchs.get_args_parser()
    parser.prog = prog
    if "PET_NPROC_PER_NODE" not in os.environ:
        parser.set_defaults(nproc_per_node=None)  # told from a 1 that was asked for
    parser.description = (
        "torchrun with ranks that are threads of this process: the script stays as it is. torchrun's options are below; those "
        "that mean nothing here are ignored, with a line that says so."
    )
    ours = parser.add_argument_group("rankloom")
    ours.add_argument("--seed", type=int, help="one rank at a time, in an order drawn from this seed")
    ours.add_argument("--schedule", help="one rank at a time, by this schedule: fifo (the default), pct:7:3, late:3, ...")
    ours.add_argument("--parallel", action="store_true", help="all ranks at once; torch's random state is one for all then")
    ours.add_argument("--explore", type=int, metavar="RUNS", help="many runs under other schedules, until one fails")
    ours.add_argument("--compare-output", action="store_true", help="with --explore: what a rank prints is the same in all runs")
    ours.add_argument(
        "--stall", type=float, default=60.0, metavar="SECONDS", help="a rank without a call for so long hangs; 0: never (60)"
    )
    ours.add_argument(
        "--fake", type=int, metavar="WORLD_SIZE", help="one rank of a world of so many, of which no other is there: calls move no data"
    )
    ours.add_argument("--rank", type=int, metavar="R", help="with --fake: which one (0)")
    ours.add_argument(
        "--record",
        metavar="FILE",
        help="with --fake: what the rank called, by FILE's ending: .txt (a table), .csv (a row a call), .rlrun (for rankloom report), "
        ".json (Perfetto), .pt.json (PyTorch's execution trace), .et (Chakra); with --device .txt has the estimate, too",
    )
    ours.add_argument("--mesh", metavar="DIM=SIZE,...", help="with --record: dp=8,tp=4, to call groups by the dimension they are along")
    ours.add_argument("--cost", metavar="LINK", help="with --record: what calls take; nvlink4, or, with --mesh, dp=infiniband_ndr,tp=nvlink4")
    ours.add_argument("--device", help="with --record: what computes; h100_sxm, ...")
    ours.add_argument("--efficiency", type=float, help="with --device: the part of its peak FLOP/s that kernels reach (1)")
    ours.add_argument(
        "--spawn", action="store_true", help="a script that starts its ranks itself by torch.multiprocessing.spawn()"
    )
    ours.add_argument(
        "--tolerate-set-device",
        action="store_true",
        help="torch.cuda.set_device() does nothing; without a GPU nor does synchronize(), and current_device() is 0",
    )
    ours.add_argument(
        "--gpus-on-cpu",
        action="store_true",
        help="the script finds as many GPUs as ranks on its node; what it puts on them stays in host memory",
    )
    return parser


class _UsageError(Exception):
    """A mistake in the command line."""


def _nodes(text: str) -> int:
    try:
        least, _, most = text.partition(":")
        low, high = int(least), int(most or least)
    except ValueError:
        raise _UsageError(f"--nnodes {text}: want a number, or MIN:MAX") from None
    if not 1 <= low <= high:
        raise _UsageError(f"--nnodes {text}: want at least 1 node")
    if low < high:
        _process.say(f"--nnodes {text}: {high} nodes, and it stays at that")
    return high


def _per_node(text: str) -> int:
    try:
        number = int(torchs.determine_local_world_size(text))
    except ValueError as error:
        raise _UsageError(f"--nproc-per-node {text}: {error}") from None
    if number < 1:
        raise _UsageError(f"--nproc-per-node {text}: want at least 1 rank")
    return number


def _load(options: argparse.Namespace) -> tuple[types.CodeType, str, str | None]:
    """The script's code, its file, and the package of a module."""
    name = options.training_script
    if options.module:
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{name}.__main__")
        except ImportError as error:
            raise _UsageError(f"module {name}: {error}") from None
        code = spec.loader.get_code(spec.name) if spec is not None and hasattr(spec.loader, "get_code") else None  # type: ignore[union-attr]
        if spec is None or code is None:
            raise _UsageError(f"module {name}: there is no such module to run")
        return code, spec.origin or name, spec.parent
    path = pathlib.Path(name)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise _UsageError(f"script {name}: {error.strerror}") from None
    return compile(source, name, "exec", dont_inherit=True), name, None


class _Sinks:
    """Where lines of a rank go: to the process's streams, or, by --redirects and --tee, to files."""

    def __init__(self, options: argparse.Namespace, ranks: int, per_node: int, quiet: bool) -> None:
        self.kept: list[tuple[str, str]] = []  # stream's name and text, of a run that may not be worth telling
        self._quiet = quiet
        self._compares = bool(options.compare_output)
        self._files: dict[tuple[int, str], Any] = {}
        self._streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
        self._silent: set[tuple[int, str]] = set()
        self._per_node = per_node
        self._wanted: set[int] | None = None  # of local ranks; None: all
        shown = options.local_ranks_filter
        if shown:
            self._wanted = {int(rank) for rank in str(shown).split(",")}
        files = {"redirects": _std(options.redirects, per_node), "tee": _std(options.tee, per_node)}
        if not any(std for by_rank in files.values() for std in by_rank):
            return
        if options.log_dir is None:
            raise _UsageError("--redirects and --tee need --log-dir")
        for option, by_rank in files.items():
            for rank in range(ranks):
                for name, bit in (("stdout", Std.OUT), ("stderr", Std.ERR)):
                    if by_rank[rank % per_node] & bit:
                        path = pathlib.Path(options.log_dir) / str(rank) / f"{name}.log"
                        path.parent.mkdir(parents=True, exist_ok=True)
                        self._files[(rank, name)] = path.open("w")
                        if option == "redirects":
                            self._silent.add((rank, name))

    def write(self, rank: int, name: str, text: str, prefixed: str) -> None:
        # Now, when calls may be open whose outputs it shows. Not of threads that a rank has started: no schedule orders them.
        if self._compares and _ext.current() is not None:
            for line in text.splitlines():
                observe(f"line on {name}", line)
        if (rank, name) in self._files:
            self._files[(rank, name)].write(text)
        if (rank, name) in self._silent or (self._wanted is not None and rank % self._per_node not in self._wanted):
            return
        if self._quiet:
            self.kept.append((name, prefixed))
        else:
            self._put(name, prefixed)

    def _put(self, name: str, text: str) -> None:
        self._streams[name].write(text)
        self._streams[name].flush()

    def forget(self) -> None:
        """A new run begins."""
        self.kept.clear()

    def tell(self, kept: Iterable[tuple[str, str]]) -> None:
        for name, text in kept:
            self._put(name, text)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def _std(text: str, per_node: int) -> list[Std]:
    try:
        parsed = Std.from_str(str(text))
    except ValueError as error:
        raise _UsageError(str(error)) from None
    if isinstance(parsed, dict):
        return [parsed.get(rank, Std.NONE) for rank in range(per_node)]
    return [parsed] * per_node


def _fake_rank(options: argparse.Namespace) -> int | None:
    """The rank that is there; None: all are."""
    if options.fake is None:
        if options.rank is not None:
            raise _UsageError(f"--rank {options.rank}: want --fake WORLD_SIZE beside it")
        return None
    if options.fake < 1:
        raise _UsageError(f"--fake {options.fake}: want at least 1 rank")
    for name in ("explore", "spawn", "parallel", "schedule"):
        if getattr(options, name) not in (None, False):
            raise _UsageError(f"--{name} goes with ranks that meet, and --fake has one alone")
    rank = options.rank or 0
    if not 0 <= rank < options.fake:
        raise _UsageError(f"--rank {rank}: want 0 <= rank < {options.fake}, the world's size")
    return int(rank)


def _environment(options: argparse.Namespace, rank: int, nodes: int, per_node: int) -> dict[str, str | None]:
    local = 0 if getattr(options, "virtual_local_rank", False) else rank % per_node
    ranks = nodes * per_node
    values: dict[str, object] = {
        "RANK": rank,
        "LOCAL_RANK": local,
        "GROUP_RANK": rank // per_node,
        "ROLE_RANK": rank,
        "ROLE_NAME": options.role,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": per_node,
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_WORLD_SIZE": ranks,
        "MASTER_ADDR": options.master_addr,
        "MASTER_PORT": options.master_port or 29500,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": options.rdzv_id,
        "TORCHELASTIC_USE_AGENT_STORE": False,
    }
    if ranks > 1 and "OMP_NUM_THREADS" not in os.environ:
        values["OMP_NUM_THREADS"] = 1
    return {name: str(value) for name, value in values.items()}


def _prefix_of(options: argparse.Namespace, per_node: int) -> Callable[[int], str]:
    """Of each line of a rank."""
    template = string.Template(os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") or "[rank${rank}]:")
    return lambda rank: template.safe_substitute(role_name=options.role, rank=rank, local_rank=rank % per_node) + " "


def _rerun_command(arguments: Sequence[str], options: argparse.Namespace, prog: str) -> str:
    """The command without what names a schedule; where the environment names one, --explore makes that run alone."""
    own = len(arguments) - len(options.training_script_args) - 1
    kept = []
    rest = iter(arguments[:own])
    for argument in rest:
        name = argument.split("=")[0]
        if name in ("--seed", "--schedule", "--explore"):
            if "=" not in argument:
                next(rest)
        elif name not in ("--parallel", "--compare-output"):
            kept.append(argument)
    if options.compare_output:  # what differs does so from other runs
        kept += [f"--explore={options.explore}", "--compare-output"]
    return f"{prog} {shlex.join([*kept, *arguments[own:]])}"


def _exit_code(report: Report, processes: Mapping[int, _process.Process]) -> int:
    """processes: by rank; of one that is left in its own code no exception tells."""
    if report.ok:
        return 0
    first = report.exceptions[report.first_failed] if report.first_failed >= 0 else None
    process = processes.get(report.first_failed) if first is None else None
    code = first.code if isinstance(first, SystemExit) else process.left_with if process is not None else 1
    return code & 0xFF or 1 if isinstance(code, int) else 1


def _lines_of(error: BaseException) -> list[str]:
    """The text that Python prints when a script ends by this: without the launcher's frames."""
    if isinstance(error, SystemExit):
        return [] if error.code is None or isinstance(error.code, int) else str(error.code).split("\n")
    cut = _ranks.callers_traceback(error)
    return "".join(traceback.format_exception(type(error), error, cut)).rstrip("\n").split("\n")


def _tell(text: str, lines: Sequence[str], prefix: str, code: int) -> None:
    """The traceback of the first rank that failed, then who failed, the others, and the command that repeats it."""
    told = without_traceback(text)
    print("\n".join([*(prefix + line for line in lines), told, f"exit code {code}"]), file=sys.stderr, flush=True)


def _prog() -> str:
    if sys.argv[0].endswith("__main__.py"):
        return f"{shlex.quote(sys.orig_argv[0])} -m rankloom.torch"
    return os.path.basename(sys.argv[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, and returns the exit code: the first failed rank's, 2 for a command line that is not right."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    prog = _prog()
    parser = _parser(prog)
    options = parser.parse_args(arguments)
    path, threads, before = list(sys.path), torch.get_num_threads(), (_rerun.command, _rerun.program)
    runs = _ext.runs_begun()
    _ext.set_runs_begun(0)  # what is told to run again is this command
    try:
        return _main(arguments, options, parser, prog)
    except (_UsageError, ValueError) as error:  # run() refuses a schedule by ValueError
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 2
    except SyntaxError as error:  # the script's, as Python tells it
        traceback.print_exception(type(error), error, None)
        return 1
    except KeyboardInterrupt as interrupt:
        _left_by_interrupt(interrupt)
        raise
    finally:
        sys.path[:] = path
        _rerun.command, _rerun.program = before
        _ext.set_runs_begun(runs)
        torch.set_num_threads(threads)


_RECORDS = (".txt", ".csv", ".rlrun", ".pt.json", ".json", ".et")  # the longer one first


def _by_dim(option: str, text: str) -> dict[str, str]:
    pairs = dict(part.partition("=")[::2] for part in text.split(","))
    if not all(name and value for name, value in pairs.items()):
        raise _UsageError(f"--{option} {text}: want DIM=..., with commas between")
    return pairs


def _recorded_world(options: argparse.Namespace, rank: int, ranks: int) -> FakeWorld | None:
    """Where --record has the script run."""
    if options.record is None:
        for name in ("mesh", "cost", "device", "efficiency"):
            if getattr(options, name) is not None:
                raise _UsageError(f"--{name} {getattr(options, name)}: want --fake WORLD_SIZE and --record FILE beside it")
        return None
    if options.fake is None:
        raise _UsageError(f"--record {options.record}: want --fake WORLD_SIZE beside it")
    if not options.record.endswith(_RECORDS):
        raise _UsageError(f"--record {options.record}: want a file that ends in one of {', '.join(_RECORDS)}")
    if options.tolerate_set_device:
        raise _UsageError("--record has the script run as it is, and --tolerate-set-device changes what it calls")
    cost: Any = options.cost
    if cost is not None and "=" in cost:
        cost = _by_dim("cost", cost)
    mesh = None
    if options.mesh is not None:
        try:
            mesh = {dim: int(size) for dim, size in _by_dim("mesh", options.mesh).items()}
        except ValueError:
            raise _UsageError(f"--mesh {options.mesh}: want numbers of ranks") from None
    if options.efficiency is not None and options.device is None:
        raise _UsageError(f"--efficiency {options.efficiency}: want --device beside it")
    efficiency = 1.0 if options.efficiency is None else options.efficiency
    return fake_world(rank, ranks, mesh=mesh, cost=cost, device=options.device, efficiency=efficiency, _who=f"--fake {ranks}")


def _write_record(world: FakeWorld, file: str) -> None:
    ending = next(ending for ending in _RECORDS if file.endswith(ending))
    if ending == ".json":
        if world.device is None:
            world.write_perfetto(file)
        else:
            world._estimate_last_step()[0].write_perfetto(file)
    elif ending == ".rlrun":
        world.write_run(file)
    elif ending == ".pt.json":
        world.write_pytorch_trace(file)
    elif ending == ".et":
        world.write_chakra(file.removesuffix(ending))
    else:
        with contextlib.suppress(OSError):  # open() says what is wrong
            pathlib.Path(file).parent.mkdir(parents=True, exist_ok=True)
        with open(file, "w", newline="") as out:
            if ending == ".csv":
                fields = [field.name for field in dataclasses.fields(Call)]
                rows = csv.writer(out)
                rows.writerow(fields)
                rows.writerows([getattr(call, field) for field in fields] for call in world.calls)
            else:
                out.write(world.table())
                if world.device is not None:
                    step, what = world._estimate_last_step()
                    out.write(f"\n{what}:\n{step}\n")


def _main_of_record(options: argparse.Namespace, world: FakeWorld, environment: dict[str, str | None], script: _Script) -> int:
    """The script runs in this thread, with no rank's prefix. Exit code: the script's, and 1 if it raises."""
    variables = dict(os.environ)
    importlib.import_module("torch.distributed.fsdp")  # for _fsdp_parts
    try:
        with world:
            os.environ.update({name: value for name, value in environment.items() if value is not None})
            status = _run_as_main(options, script)
    finally:
        for name in environment:
            if name in variables:
                os.environ[name] = variables[name]
            else:
                os.environ.pop(name, None)
    if world.calls and (unused := world._unused_costs()):
        groups = sorted({call.group for call in world.calls if not call.is_compute})
        _process.say(
            f"--cost names {', '.join(unused)}, and no call is of a group called so (have {', '.join(groups) or 'none'}): want --mesh "
            "DIM=SIZE,... to call groups so, or a mesh of the script's; groups without a link of their own take the slowest"
        )
    if status:
        _process.say(f"--record {options.record}: what the script called until it failed")
    try:
        _write_record(world, options.record)
    except (OSError, RuntimeError) as error:
        raise _UsageError(f"--record {options.record}: {error.strerror if isinstance(error, OSError) else error}") from None
    return _left_for_good(status)


class _Script(NamedTuple):
    code: types.CodeType
    file: str
    package: str | None


def _run_as_main(options: argparse.Namespace, script: _Script) -> int:
    """The exit code; 1, and a traceback on stderr, for what it raises."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=script.file, __package__=script.package, __builtins__=__builtins__, __cached__=None)
    before = sys.modules["__main__"], sys.argv
    try:
        sys.modules["__main__"], sys.argv = module, [script.file, *options.training_script_args]
        exec(script.code, module.__dict__)
        return 0
    except SystemExit as left:
        if left.code is not None and not isinstance(left.code, int):
            print(left.code, file=sys.stderr)
        return 0 if left.code is None else left.code & 0xFF if isinstance(left.code, int) else 1
    except Exception as error:
        print("\n".join(_lines_of(error)), file=sys.stderr)
        return 1
    finally:
        sys.modules["__main__"], sys.argv = before


def _call_on_thread(fn: Any, *arguments: Any) -> None:
    with _devices.on_thread():
        fn(*arguments)


def _main_of_spawn(
    arguments: list[str], options: argparse.Namespace, prog: str, code: types.CodeType, file: str, package: str | None
) -> int:
    """The script runs once, and what it spawns are ranks. Exit code: the script's, and 1 if it raises."""
    if options.explore is not None:
        raise _UsageError("--explore goes through runs of a whole script, and --spawn's ranks are a part of one")

    def spawn_ranks(fn: Any, *args: Any, **kwargs: Any) -> Any:
        def on_rank(*arguments: Any) -> None:
            _call_on_thread(fn, *arguments)

        # A function is called as it is; of anything else each rank gets a copy, which a closure would hide.
        return spawn(
            on_rank if isinstance(fn, types.FunctionType) else functools.partial(_call_on_thread, fn),
            *args,
            seed=options.seed,
            schedule="free" if options.parallel else options.schedule,
            stall=options.stall if options.stall > 0 else None,
            **kwargs,
        )

    before = torch.multiprocessing.spawn
    # Whole: the environment may name one of several spawns, and the others are to be as they were.
    _rerun.command = f"{prog} {shlex.join(arguments)}"
    try:
        torch.multiprocessing.spawn = spawn_ranks
        with _devices.on_thread():
            status = _run_as_main(options, _Script(code, file, package))
    finally:
        torch.multiprocessing.spawn = before
    return _left_for_good(status)


_LAST_THREADS = 2.0  # seconds that threads of ranks that failed have to end


def _goes_on() -> bool:
    """Whether something of ranks that failed would be torn down under its feet by Python's end, or would hold that up."""
    kept = _process.go_on(_LAST_THREADS)
    if kept:
        _process.say(f"threads that ranks started go on: {', '.join(kept)}")
    return bool(kept or _ranks.left)


def _end(by: Callable[[], object]) -> None:
    """Ends the process at once."""
    for child in multiprocessing.active_children():  # of a script's executor
        child.terminate()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    by()


def _left_for_good(status: int) -> int:
    if (status and _goes_on()) or _ranks.left:
        _end(lambda: os._exit(status))
    return status


def _left_by_interrupt(interrupt: KeyboardInterrupt) -> None:
    """Returns if Python can end by it as always; else does what that would do."""
    if not _goes_on():
        return
    traceback.print_exception(interrupt)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _end(lambda: os.kill(os.getpid(), signal.SIGINT))


def _main(arguments: list[str], options: argparse.Namespace, parser: argparse.ArgumentParser, prog: str) -> int:
    if options.no_python:
        raise _UsageError("--no-python: ranks are threads of this Python, and a program would be a process")
    if sum([options.schedule is not None, options.parallel, options.seed is not None or options.explore is not None]) > 1:
        raise _UsageError("want one of --seed or --explore, --schedule, --parallel")
    if options.compare_output and options.explore is None:
        raise _UsageError("--compare-output compares runs, want --explore RUNS beside it")
    if options.explore is not None and options.explore < 1:
        raise _UsageError(f"--explore {options.explore}: want at least 1 run")
    nodes, per_node = _nodes(options.nnodes), _per_node(options.nproc_per_node or "1")
    fake = _fake_rank(options)
    if fake is not None:
        if options.nproc_per_node is None:
            if options.fake % nodes:
                raise _UsageError(f"--fake {options.fake}: want a multiple of --nnodes = {nodes}")
            per_node = options.fake // nodes
        elif options.fake % per_node:
            raise _UsageError(f"--fake {options.fake}: want a multiple of --nproc-per-node = {per_node}")
        elif options.nnodes != parser.get_default("nnodes") and options.fake != nodes * per_node:
            raise _UsageError(f"--fake {options.fake}: want --nnodes = {nodes} times --nproc-per-node = {per_node}")
        nodes = options.fake // per_node
    ranks = nodes * per_node
    gpus = per_node if options.gpus_on_cpu else 0
    for name, why in _IGNORED.items():
        by_standalone = options.standalone and name.startswith("rdzv_")
        if not by_standalone and getattr(options, name, None) != parser.get_default(name):
            _process.say(f"--{name.replace('_', '-')} is ignored: {why}")
    if options.module:
        sys.path.insert(0, os.getcwd())
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(options.training_script)))
    world = _recorded_world(options, fake or 0, ranks)
    code, file, package = _load(options)
    _rerun.program = options.training_script if options.module else pathlib.Path(options.training_script).stem
    if options.spawn:
        with _devices.gpus_on_cpu(gpus):
            return _main_of_spawn(arguments, options, prog, code, file, package)
    if ranks > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # as torchrun
    if world is not None and fake is not None:
        with _devices.gpus_on_cpu(gpus), _devices.on_thread():
            return _main_of_record(options, world, _environment(options, fake, nodes, per_node), _Script(code, file, package))
    prefix = _prefix_of(options, per_node)
    sinks = _Sinks(options, ranks, per_node, quiet=options.explore is not None)
    output = _process.Output(prefix, sinks.write)
    tracebacks: dict[int, list[str]] = {}
    told: list[tuple[str, str]] = []  # of the run that a search's report is of
    of_told: dict[int, list[str]] = {}
    processes: weakref.WeakValueDictionary[int, _process.Process] = weakref.WeakValueDictionary()  # by number
    seen = -1

    def on_kept() -> None:
        told[:] = sinks.kept
        of_told.clear()
        of_told.update(tracebacks)

    def on_rank(number: int) -> None:
        nonlocal seen
        rank = number if fake is None else fake
        job = _process.job_of_caller()
        if job != seen:
            seen = job
            sinks.forget()
            tracebacks.clear()
        module = types.ModuleType("__main__")
        module.__dict__.update(__file__=file, __package__=package, __builtins__=__builtins__, __cached__=None)
        own = processes[number] = _process.Process(rank, module, [file, *options.training_script_args], output)
        try:
            own.run(code, _environment(options, rank, nodes, per_node))
        except BaseException as error:
            # Now: what it holds, a tensor say, changes when the run ends.
            tracebacks[rank] = _lines_of(error)
            raise

    _rerun.command = _rerun_command(arguments, options, prog)
    try:
        with (
            _devices.gpus_on_cpu(gpus),
            _process.scripts(tolerate_set_device=options.tolerate_set_device and not gpus),
            _names.alone() if fake is not None else contextlib.nullcontext(),
        ):
            if options.explore is not None:
                found = explore(
                    on_rank,
                    ranks,
                    runs=options.explore,
                    first_seed=1 if options.seed is None else options.seed,
                    compare=False,  # but for what is observed
                    backend=None,
                    swap_random=True,
                    seconds=None,
                    stall=options.stall if options.stall > 0 else None,
                    _roots=[],
                    _on_kept=on_kept,
                )
                report: Report | None = found.failure
                text = found.text
            else:
                report = done = run(
                    on_rank,
                    ranks if fake is None else 1,
                    seed=options.seed,
                    schedule=options.schedule,
                    parallel=options.parallel,
                    backend=None,
                    swap_random=True,
                    stall=options.stall if options.stall > 0 else None,
                )
                text = done.text
    finally:
        sinks.close()
    status = _exit_code(report, processes) if report is not None else 0
    if options.explore is not None and report is not None:
        sinks.tell(told)
        status = status or 1  # results that differ
    if report is not None and status:
        first = report.first_failed
        if fake is not None:  # the only rank of its job
            first, text = fake, text.replace("rank 0 failed", f"rank {fake} failed", 1)
        lines = (of_told if options.explore is not None else tracebacks).get(first, [])
        _tell(text, lines, prefix(first), status)
    elif options.explore is not None:
        print(text)
    return _left_for_good(status)
