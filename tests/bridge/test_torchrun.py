"""Scripts for torchrun, as they are, with ranks as threads of one process."""

import csv
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
import rankloom.torch
import torch
import torch.distributed as dist
from cases import needs_chakra, read_traces
from launching import SCRIPTS, launch, launch_here, launch_text, launch_text_here, lines
from rankloom_command import run_file

# Script, its arguments, and a line that each rank prints once.
ALL: dict[str, tuple[list[str], str]] = {
    "ddp.py": (["2"], r"epoch 1: loss \d\.\d{4}, \d+ samples of mine"),
    "fsdp2.py": ([], r"rank \d holds \d+ of 216"),
    "tensor_parallel.py": ([], r"step 3: \d+\.\d{4}, \d+ of 24 columns here"),
    "sequence_parallel.py": ([], r"rank \d: rows \d to \d, sum -?\d\.\d{4}"),
    "pipeline.py": ([], r"stage \d of \d: gradient \d\.\d{5}"),
    "ring.py": ([], r"rank \d drew .*; all \d+\.\d{4}"),
    "zero.py": ([], r"rank \d: losses .*"),
    "checkpoint.py": ([], r"rank \d: 4 parameters are as they were, -?\d\.\d{4}"),
    "environment.py": (["--name", "it"], r"it: rank (\d), local \1 of \d, counted \d"),
}


@pytest.mark.parametrize(("ranks", "options"), [(4, []), (2, ["--seed", "7"])])
@pytest.mark.parametrize("script", ALL)
def test_a_script_runs_as_it_is(script: str, ranks: int, options: list[str], tmp_path: pathlib.Path) -> None:
    arguments, pattern = ALL[script]
    done = launch_here(tmp_path, "--nproc-per-node", str(ranks), *options, str(SCRIPTS / script), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(ranks):
        of_rank = [line for line in done.stdout.splitlines() if line.startswith(f"[rank{rank}]: ")]
        assert sum(re.fullmatch(rf"\[rank{rank}\]: {pattern}", line) is not None for line in of_rank) == 1, done.stdout


@pytest.mark.parametrize("script", ["ddp.py", "ring.py", "environment.py"])
def test_all_ranks_at_once(script: str, tmp_path: pathlib.Path) -> None:
    arguments, pattern = ALL[script]
    done = launch_here(tmp_path, "--nproc-per-node=3", "--parallel", str(SCRIPTS / script), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(re.fullmatch(pattern, line) is not None for line in lines(done.stdout)) == 3, done.stdout


def died_at_exit(stderr: str) -> bool:
    """Whether one of gloo's processes ended in a known defect of PyTorch: a thread of gloo's that frees a tensor while Python
    ends asks for the interpreter, is made to leave, and std::terminate() is called (pytorch/pytorch#179291)."""
    return "terminate called without an active exception" in stderr and "exitcode: -6" in stderr


@pytest.mark.parametrize(("script", "number_of_lines"), [("ddp.py", 2), ("ring.py", 2), ("tensor_parallel.py", 4)])
def test_processes_print_the_same(script: str, number_of_lines: int, tmp_path: pathlib.Path) -> None:
    arguments = ALL[script][0]
    printed = []
    for module, options in [("torch.distributed.run", ["--master-port=29641"]), ("rankloom.torch", ["--seed", "11"])]:
        folder = tmp_path / module
        folder.mkdir()
        options += ["--nproc-per-node=2", "--log-dir=logs", "--redirects=1"]
        done = launch(folder, *options, str(SCRIPTS / script), *arguments, module=module)
        if module == "torch.distributed.run" and died_at_exit(done.stderr):
            shutil.rmtree(folder)
            folder.mkdir()
            done = launch(folder, *options, str(SCRIPTS / script), *arguments, module=module)
        assert done.returncode == 0, done.stdout + done.stderr
        printed.append({path.parent.name: path.read_text() for path in folder.rglob("stdout.log")})
    assert printed[0] == printed[1]
    assert list(map(str.count, (printed[0][rank] for rank in ("0", "1")), ["\n"] * 2)) == [number_of_lines] * 2


def test_a_seed_gives_one_order_and_seeds_give_several(tmp_path: pathlib.Path) -> None:
    outputs = {}
    for seed in ("3", "3", "4", "5"):
        done = launch_here(tmp_path, "--nproc-per-node=4", "--seed", seed, str(SCRIPTS / "ring.py"))
        assert done.returncode == 0, done.stderr
        assert outputs.setdefault(seed, done.stdout) == done.stdout
    assert len(set(outputs.values())) > 1
    assert len({tuple(lines(out)) for out in outputs.values()}) == 1


NODES = '''
import os
names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
print(*[os.environ[name] for name in names], os.environ["TORCHELASTIC_RUN_ID"], len(os.environ) == len(list(os.environ)))
'''


def test_nodes_and_variables(tmp_path: pathlib.Path) -> None:
    options = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=host", "--master-port=1234", "--rdzv-id=job"]
    done = launch_text_here(tmp_path, NODES, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"[rank{r}]: {r} {r % 2} {r // 2} 4 2 2 host 1234 job True" for r in range(4)]


def test_a_search_tells_of_its_failure_beside_a_page_of_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKLOOM_REPORT", str(tmp_path / "runs"))
    source = "import os\nprint('rank', os.environ['RANK'])\nassert os.environ['RANK'] != '1', 'here'\n"
    done = launch_text(tmp_path, source, "--nproc-per-node=2", "--explore=5")
    assert done.returncode == 1 and "[rank1]: AssertionError: here\n" in done.stderr, done.stdout + done.stderr
    assert "IndexError" not in done.stderr and "[rank1]: rank 1\n" in done.stdout, done.stdout + done.stderr


def test_nodes_of_a_fake_world(tmp_path: pathlib.Path) -> None:
    for options, want in (
        (["--fake=8", "--rank=5"], "5 5 0 8 8 1"),
        (["--fake=8", "--rank=5", "--nproc-per-node=1"], "5 0 5 8 1 8"),
        (["--fake=8", "--rank=5", "--nproc-per-node=4"], "5 1 1 8 4 2"),
        (["--fake=8", "--rank=5", "--nnodes=2"], "5 1 1 8 4 2"),
        (["--fake=8", "--rank=5", "--nnodes=4", "--nproc-per-node=2"], "5 1 2 8 2 4"),
    ):
        done = launch_text_here(tmp_path, NODES, *options)
        assert want in done.stdout, done.stdout + done.stderr


OUTPUT = '''
import contextlib, io, os, subprocess, sys, threading
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print(f"a of {rank},", end=" ")
dist.barrier()
print(f"b of {rank}")
with contextlib.redirect_stdout(io.StringIO()) as kept:
    print("hidden", rank)
    dist.barrier()
assert kept.getvalue() == f"hidden {rank}\\n"
thread = threading.Thread(target=lambda: print("thread of", os.environ["RANK"]))
thread.start(); thread.join()
child = subprocess.run([sys.executable, "-c", "import os; print(os.environ['RANK'])"], capture_output=True, text=True)
print("child of", child.stdout.strip())
print("error of", rank, file=sys.stderr)
'''


def test_lines_have_their_rank(tmp_path: pathlib.Path) -> None:
    done = launch_text_here(tmp_path, OUTPUT, "--nproc-per-node=2", "--seed=1")
    assert done.returncode == 0, done.stderr
    want = [f"[rank{r}]: {text} {r}{end}" for r in (0, 1) for text, end in [("a of", f", b of {r}"), ("thread of", ""), ("child of", "")]]
    assert sorted(done.stdout.splitlines()) == sorted(want)
    assert sorted(done.stderr.splitlines()) == ["[rank0]: error of 0", "[rank1]: error of 1"]


def test_output_of_some_ranks_and_in_files(tmp_path: pathlib.Path) -> None:
    source = 'import os; print("rank", os.environ["RANK"])'
    done = launch_text_here(tmp_path, source, "--nproc-per-node=3", "--local-ranks-filter=2")
    assert (done.returncode, done.stdout) == (0, "[rank2]: rank 2\n")
    done = launch_text_here(tmp_path, source, "--nproc-per-node=2", "--log-dir=logs", "--redirects=0:1", "--tee=1:1")
    assert (done.returncode, done.stdout) == (0, "[rank1]: rank 1\n")
    assert [(tmp_path / "logs" / str(r) / "stdout.log").read_text() for r in (0, 1)] == ["rank 0\n", "rank 1\n"]


RANDOM = '''
import random
import numpy, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank); random.seed(rank); numpy.random.seed(rank)
drawn = []
for _ in range(5):
    drawn += [torch.rand(()).item(), random.random(), numpy.random.rand()]
    dist.barrier()
own, numbers, numpys = torch.Generator().manual_seed(rank), random.Random(rank), numpy.random.RandomState(rank)
want = [f() for _ in range(5) for f in (lambda: torch.rand((), generator=own).item(), numbers.random, numpys.rand)]
print(drawn == want)
'''


@pytest.mark.parametrize("options", [[], ["--seed=5"], ["--schedule=late:3"]])
def test_random_state_is_each_ranks_own(options: list[str], tmp_path: pathlib.Path) -> None:
    done = launch_text_here(tmp_path, RANDOM, "--nproc-per-node=3", *options)
    assert lines(done.stdout) == ["True"] * 3, done.stdout + done.stderr


BAD = '''
import os, signal, sys, threading
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
if rank == 1:
    WHAT
dist.barrier()
print("done")
'''


@pytest.mark.parametrize(
    ("what", "code", "texts"),
    [
        ("sys.exit(3)", 3, ["\nrank 1 failed: SystemExit: 3\nranks 0, 2 stopped for it\n"]),
        ("sys.exit('no data')", 1, ["[rank1]: no data\nrank 1 failed: SystemExit: no data\n"]),
        ("os._exit(4)", 4, ["\nrank 1 failed: SystemExit: 4\n"]),
        (
            "raise ValueError('bad shard\\nof it')",
            1,
            [
                "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"script.py\", line 8, in <module>\n",
                "[rank1]: ValueError: bad shard\n[rank1]: of it\nrank 1 failed: ValueError: bad shard\nof it\nranks 0, 2 stopped for it\n",
            ],
        ),
        ("os.fork()", 1, ["rank 1: os.fork(): ranks are threads of this process, which cannot be forked; DataLoader(num_workers=0)"]),
        ("sys.exit(0)", 1, ["Deadlock: no rank can move\n  ranks 0, 2 wait in barrier seq 2 for rank 1 (returned) "]),
    ],
)
def test_a_rank_that_fails(what: str, code: int, texts: list[str], tmp_path: pathlib.Path) -> None:
    done = launch_text_here(tmp_path, BAD.replace("WHAT", what), "--nproc-per-node=3", "--seed", "2")
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout == ""
    for text in (*texts, f"\nexit code {code}\n"):
        assert text in "\n" + done.stderr, done.stderr
    rerun = rf"run it again: RANKLOOM_ENGINE=threads RANKLOOM_SEED=2 {re.escape(sys.orig_argv[0])} -m rankloom\.torch --nproc-per-node=3 script\.py\n"
    assert len(re.findall(rerun, done.stderr)) == 1, done.stderr
    assert done.stderr.count("Traceback") == (0 if "exit" in what else 1)


def test_the_rerun_line_repeats_the_run(tmp_path: pathlib.Path) -> None:
    done = launch_text(tmp_path, BAD.replace("WHAT", "raise KeyError('here')"), "--nproc-per-node=3", "--schedule", "pct:5:2")
    (command,) = re.findall(r"run it again: (.*)", done.stderr)
    again = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (again.returncode, again.stderr) == (done.returncode, done.stderr)


@pytest.mark.parametrize("options", [["--seed=2"], ["--parallel"]])
@pytest.mark.parametrize(("what", "left"), [("while True: pass", False), ("threading.Event().wait()", True)])
def test_a_rank_that_never_comes_back(what: str, left: bool, options: list[str], tmp_path: pathlib.Path) -> None:
    done = launch_text(tmp_path, BAD.replace("WHAT", what), "--nproc-per-node=2", "--stall=1", *options)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "\nrank 1 failed: Stall: no scheduling point for 1 s of real time: " in "\n" + done.stderr, done.stderr
    assert re.search(rf"Python stack of rank 1:\n +script\.py:8 in <module>: {re.escape(what)}\n", done.stderr), done.stderr
    assert ("note: rank 1 could not be ended" in done.stderr) == left


def test_a_signal_handler_is_kept_and_told(tmp_path: pathlib.Path) -> None:
    what = "assert signal.signal(signal.SIGTERM, print) == signal.SIG_DFL and signal.signal(signal.SIGTERM, len) is print"
    done = launch_text_here(tmp_path, BAD.replace("WHAT", what), "--nproc-per-node=2")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("rankloom: rank 1 sets a handler of SIGTERM: kept, but no signal comes to a rank") == 2, done.stderr


EXITS = """
import atexit, os, signal, sys
import torch.distributed as dist

def bye():
    dist.destroy_process_group()

def bad():
    raise ValueError("in atexit")

dist.init_process_group("gloo")
atexit.register(print, "last")
atexit.register(bad)
atexit.register(sys.exit, 3)
atexit.register(bye)
rank = dist.get_rank()
dist.barrier()
bye()
atexit.unregister(bye)
assert sys.stdout.encoding.lower() == "utf-8" and sys.stdout.errors and "ä".encode(sys.stdout.encoding)
assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
signal.signal(signal.SIGUSR1, bye)
assert signal.getsignal(signal.SIGUSR1) is bye
sys.stdout = os.fdopen(sys.stdout.fileno(), "w", buffering=1)
print("of its own stream")
sys.stdout = sys.__stdout__
"""


def test_what_a_script_registers_for_the_exit_and_sets_of_its_streams(tmp_path: pathlib.Path) -> None:
    for options in ([], ["--seed=3"]):
        done = launch_text(tmp_path, EXITS, "--nproc-per-node=2", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("of its own stream") == 2, done.stdout + done.stderr
        assert done.stdout.count("last") == 2, done.stdout + done.stderr
        assert done.stderr.count("Exception ignored in atexit callback: <function bad at ") == 2, done.stderr
        assert done.stderr.count("ValueError: in atexit") == 2, done.stderr
        assert done.stderr.count("Exception ignored in atexit callback: <built-in function exit>") == 2, done.stderr


SAVES = """
import sys, threading, time
def save(name):
    time.sleep(0.5)
    threading.Thread(target=print, args=("saved", name)).start()
atexit.register(print, "exits")
threading.Thread(target=save, args=("kept",)).start()
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
LEFT
"""


@pytest.mark.parametrize("left", ["", "sys.exit()", "sys.exit(3)"])
def test_a_rank_ends_with_the_threads_that_it_started(left: str, tmp_path: pathlib.Path) -> None:
    source = "import atexit\n" + SAVES.replace("LEFT", left)
    done = launch_text(tmp_path, source, "--nproc-per-node=2")
    assert done.returncode == (3 if left == "sys.exit(3)" else 0), done.stdout + done.stderr
    assert "saved kept" in done.stdout, done.stdout + done.stderr
    if done.returncode == 0:
        assert done.stdout.count("saved kept") == 2, done.stdout
        assert done.stdout.index("saved kept") < done.stdout.index("exits"), done.stdout


EXECUTORS = """
import asyncio, concurrent.futures, threading, time
import torch.distributed as dist
dist.init_process_group("gloo")
pool = concurrent.futures.ThreadPoolExecutor(1)
pool.submit(time.sleep, 0).result()
pool.submit(lambda: (time.sleep(2), print("pool saved", flush=True)))
loop = asyncio.new_event_loop()
loop.run_until_complete(loop.run_in_executor(None, time.sleep, 0))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("options", [[], ["--seed=3"], ["--parallel"], ["--stall=1"]])
def test_a_rank_ends_with_what_its_executors_have_to_do(options: list[str], tmp_path: pathlib.Path) -> None:
    done = launch_text(tmp_path, EXECUTORS, "--nproc-per-node=2", *options)
    assert done.returncode == 0 and done.stdout.count("pool saved") == 2, done.stdout + done.stderr


def test_a_thread_that_never_ends_is_a_stall_after_ten_times_the_limit(tmp_path: pathlib.Path) -> None:
    source = "import queue, threading\nthreading.Thread(target=queue.Queue().get, name='waits').start()\n"
    done = launch_text(tmp_path, source, "--nproc-per-node=2", "--stall=0.3")
    assert done.returncode == 1, done.stdout + done.stderr
    text = "Stall: no scheduling point for 3 s of real time, while the rank waits for the threads that its script has started: "
    assert text in done.stderr, done.stderr
    assert "rankloom: threads that ranks started go on: waits" in done.stderr, done.stderr


def test_an_executor_of_a_module_serves_all_ranks(tmp_path: pathlib.Path) -> None:
    (tmp_path / "with_a_pool.py").write_text("import concurrent.futures\npool = concurrent.futures.ThreadPoolExecutor(1)\n")
    source = "import with_a_pool\nprint(with_a_pool.pool.submit(len, 'four').result())\n"
    done = launch_text(tmp_path, source, "--nproc-per-node=2", "--schedule=fifo")
    assert done.returncode == 0 and done.stdout.count("4") == 2, done.stdout + done.stderr


@pytest.mark.parametrize("raises", ["raise ValueError('wrong')", ""])
def test_workers_of_ranks_that_fail_do_not_keep_the_process(raises: str, tmp_path: pathlib.Path) -> None:
    source = f"""
import concurrent.futures, queue
idle = concurrent.futures.ThreadPoolExecutor(1, "idle")
idle.submit(int).result()
pool = concurrent.futures.ThreadPoolExecutor(1, "busy")
pool.submit(queue.Queue().get)
{raises}
"""
    done = launch_text(tmp_path, source, "--nproc-per-node=2", "--stall=0.3")
    assert done.returncode == 1, done.stdout + done.stderr
    assert ("ValueError: wrong" in done.stderr) == bool(raises)
    assert "rankloom: threads that ranks started go on: busy_0, busy_0\n" in done.stderr, done.stderr


def test_an_executor_that_nobody_holds_is_waited_for(tmp_path: pathlib.Path) -> None:
    source = """
import concurrent.futures, time
def save():
    time.sleep(1)
    print("saved")
concurrent.futures.ThreadPoolExecutor(1).submit(save)
"""
    done = launch_text(tmp_path, source, "--nproc-per-node=2")
    assert done.returncode == 0 and lines(done.stdout) == ["saved"] * 2, done.stdout + done.stderr


def test_what_threads_print_until_the_process_ends_is_there(tmp_path: pathlib.Path) -> None:
    source = """
import queue, sys, threading, time
def last():
    time.sleep(1)
    print("the last word", file=sys.__stdout__)
    queue.Queue().get()
threading.Thread(target=last, name="waits").start()
raise ValueError("wrong")
"""
    done = launch_text(tmp_path, source)
    assert done.returncode == 1 and "threads that ranks started go on: waits" in done.stderr, done.stderr
    assert "the last word" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("what", ["queue.Queue().get()", "threading.Thread(target=queue.Queue().get, name='waits').start()"])
def test_an_interrupt_ends_a_launch_whatever_goes_on(what: str, tmp_path: pathlib.Path) -> None:
    source = f"import queue, threading, time\nprint('begun', flush=True)\n{what}\nwhile True: time.sleep(0.01)\n"
    (tmp_path / "script.py").write_text(source)
    command = [sys.executable, "-m", "rankloom.torch", "script.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "[rank0]: begun\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in err, err


def test_threads_of_ranks_that_fail_do_not_keep_the_process(tmp_path: pathlib.Path) -> None:
    source = """
import threading, queue
threading.Thread(target=queue.Queue().get, name="waits").start()
raise ValueError("wrong")
"""
    done = launch_text(tmp_path, source, "--nproc-per-node=2")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ValueError: wrong" in done.stderr
    assert re.search(r"rankloom: threads that ranks started go on: waits, waits\n", done.stderr), done.stderr


LEAVES = """
import os, queue, sys, threading, time, torch
import torch.distributed as dist
def later(code):
    threading.Timer(0.5, os._exit, (code,)).start()
SOURCE
"""


@pytest.mark.parametrize(
    "source",
    [
        "try: os._exit(5)\nexcept BaseException: pass",
        "try: os._exit(5)\nexcept BaseException: pass\nraise ValueError",
        "try: os._exit(5)\nexcept BaseException: sys.exit(3)",
        "thread = threading.Thread(target=os._exit, args=(5,))\nthread.start()\nthread.join()",
        "later(5)\nwhile True: time.sleep(0.01)",
        "later(5)\nqueue.Queue().get()",
        "dist.init_process_group('gloo')\nif dist.get_rank() == 0:\n    later(5)\n    dist.recv(torch.ones(1), 1)\ntime.sleep(1)",
    ],
    ids=["caught", "caught and raises", "caught and leaves", "on a thread", "spins", "blocks", "in a call"],
)
def test_an_exit_at_once_has_its_code_whatever_the_script_does(source: str, tmp_path: pathlib.Path) -> None:
    done = launch_text(tmp_path, LEAVES.replace("SOURCE", source), "--nproc-per-node=2", "--parallel", "--stall=5")
    assert done.returncode == 5, done.stdout + done.stderr
    assert re.search(r"^ranks? \d(-\d)? failed: SystemExit: 5$", done.stderr, re.MULTILINE), done.stderr


@pytest.mark.parametrize("source", ["try: os._exit(0)\nexcept BaseException: pass\nraise ValueError", "later(0)\nwhile True: time.sleep(0.01)"])
def test_an_exit_at_once_may_be_one_without_an_error(source: str, tmp_path: pathlib.Path) -> None:
    done = launch_text(tmp_path, LEAVES.replace("SOURCE", source), "--nproc-per-node=2", "--parallel", "--stall=20")
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_exit_at_once_ends_the_callbacks_at_the_exit_too(tmp_path: pathlib.Path) -> None:
    source = "import atexit, os\natexit.register(print, 'never')\natexit.register(lambda: os._exit(3))\n"
    done = launch_text(tmp_path, source, "--nproc-per-node=2")
    assert done.returncode == 3 and "never" not in done.stdout, done.stdout + done.stderr


def test_standalone_is_told_of_what_is_ignored_beside_it(tmp_path: pathlib.Path) -> None:
    done = launch_text_here(tmp_path, "pass", "--standalone", "--max-restarts=3", "--nproc-per-node=1")
    assert done.returncode == 0, done.stderr
    assert "rankloom: --max-restarts is ignored: a run that fails is told, not repeated" in done.stderr
    assert "rdzv" not in done.stderr


def test_input_is_one_ranks_at_a_time(tmp_path: pathlib.Path) -> None:
    done = launch_text(tmp_path, BAD.replace("WHAT", "print('got', input('name? '))"), "--nproc-per-node=2", stdin="Ann\n")
    assert done.returncode == 0, done.stderr
    assert "[rank1]: name? [rank1]: got Ann\n" in done.stdout
    done = launch_text(tmp_path, BAD.replace("WHAT", "input()"), "--nproc-per-node=2")
    assert done.returncode == 1 and "\nrank 1 failed: EOFError: EOF when reading a line\n" in done.stderr


SINGLETON = """
class Singleton(type):
    _instances = {}

    def __call__(cls, *args):
        if cls not in cls._instances:
            cls._instances[cls] = super().__call__(*args)
        return cls._instances[cls]


class ConfigStore(metaclass=Singleton):
    def __init__(self):
        self.names = []


ConfigStore().names.append("of the module")
"""
HYDRA = """
import os
import torch.distributed as dist
from hydra.core.singleton import ConfigStore, Singleton

class HydraConfig(metaclass=Singleton):
    def __init__(self, rank):
        self.rank = rank

dist.init_process_group("gloo")
assert HydraConfig not in Singleton._instances and ConfigStore in Singleton._instances
HydraConfig(dist.get_rank())
ConfigStore().names.append("of all")
dist.barrier()
print(HydraConfig(-1).rank, ConfigStore().names)
"""


@pytest.mark.parametrize("options", [[], ["--seed=3"], ["--parallel"]])
def test_hydra_has_a_configuration_for_each_rank(options: list[str], tmp_path: pathlib.Path) -> None:
    (tmp_path / "hydra" / "core").mkdir(parents=True)
    for file, text in (("__init__.py", ""), ("core/__init__.py", ""), ("core/singleton.py", SINGLETON)):
        (tmp_path / "hydra" / file).write_text(text)
    done = launch_text(tmp_path, HYDRA, "--nproc-per-node=3", *options)
    shared = ["of the module", *["of all"] * 3]
    assert sorted(done.stdout.splitlines()) == [f"[rank{rank}]: {rank} {shared}" for rank in range(3)], done.stdout + done.stderr


WORKERS = '''
import os
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return 10.0 * int(os.environ["RANK"]) + i

if __name__ == "__main__":
    dist.init_process_group("gloo")
    print([batch.tolist() for batch in DataLoader(Data(), batch_size=2, num_workers=1, multiprocessing_context="spawn")])
    read, write = os.pipe()
    os.set_inheritable(write, True)
    print(os.system("exit 1$RANK") >> 8, os.system("kill -9 $$"), os.system(f"echo $RANK >&{write}"), os.read(read, 1))
'''


def test_workers_of_a_loader_that_are_spawned(tmp_path: pathlib.Path) -> None:
    done = launch_text(tmp_path, WORKERS, "--nproc-per-node=2")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[rank0]: 10 9 0 b'0'",
        "[rank0]: [[0.0, 1.0], [2.0, 3.0]]",
        "[rank1]: 11 9 0 b'1'",
        "[rank1]: [[10.0, 11.0], [12.0, 13.0]]",
    ]


STOPS = '''
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
steps = [0, 0]
dist.barrier()
if rank == 1:
    mine = "shard 1"
    breakpoint()
    dist.barrier()
else:
    import __main__
    os.environ["STEPS"] = "0"
    dist.barrier()
print("went on")
'''


def test_a_breakpoint_stops_all_ranks_and_goes_on(tmp_path: pathlib.Path) -> None:
    done = launch_text(tmp_path, STOPS, "--nproc-per-node=2", "--seed=1", "--stall=1", stdin="p mine\np rank\nc\n")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "rankloom: breakpoint() in rank 1 of 2; all ranks are stopped\n"
    assert "(rank 1) 'shard 1'\n(rank 1) 1\n(rank 1) " in done.stdout
    assert done.stdout.count("went on") == 2 and done.stdout.index("(rank 1)") < done.stdout.index("went on")


COUNTS = '''
import os, pathlib
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    file = pathlib.Path("count")
    while not file.exists() or file.stat().st_size < 5:
        pass
    breakpoint()
    pathlib.Path("stop").touch()
else:
    while not pathlib.Path("stop").exists():
        with open("count", "a") as file:
            file.write("x")
dist.barrier()
print("went on")
'''


def test_a_breakpoint_stops_ranks_that_run_at_once(tmp_path: pathlib.Path) -> None:
    look = "import time; first = file.stat().st_size; time.sleep(0.3); print('grew', file.stat().st_size - first)"
    done = launch_text(tmp_path, COUNTS, "--nproc-per-node=2", "--parallel", stdin=f"{look}\nc\n")
    assert done.returncode == 0, done.stderr
    assert "grew 0\n" in done.stdout, done.stdout
    assert done.stdout.count("went on") == 2


def test_exploring_finds_a_missing_wait(tmp_path: pathlib.Path) -> None:
    good = launch_here(tmp_path, "--nproc-per-node=2", "--explore=12", "--compare-output", str(SCRIPTS / "ring.py"))
    assert good.returncode == 0 and re.match(r"explored 12 runs in \S+ s \(\d+ a second\): no failure\n", good.stdout), good.stderr
    assert re.search(r"\n  exhaustive: \d+ schedules that can differ, at least \d+ more were not run\n  pct\(3\): 2 runs\n", good.stdout)
    source = (SCRIPTS / "missing_wait.py").read_text().replace("\nassert", "\nprint('sum', x.tolist())\nassert")
    bad = launch_text(tmp_path, source, "--nproc-per-node=2", "--explore=200")
    assert bad.returncode == 1, bad.stdout + bad.stderr
    assert re.search(r"explored 1 run in \S+ s \(\d+ a second\): a schedule that fails\n", bad.stderr), bad.stderr
    assert re.search(r"rank[01]\]: AssertionError: tensor\(\[nan, nan\]\)\n", bad.stderr) and "sum [nan, nan]" in bad.stdout, bad.stderr
    (command,) = re.findall(r"run it again: (.*)", bad.stderr)
    assert "--explore" not in command and "RANKLOOM_S" in command
    again = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert again.returncode == 1 and again.stdout == bad.stdout


FAKE = """
import os
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
x = torch.full((2,), float(dist.get_rank() + 1))
dist.all_reduce(x)
out = [torch.zeros(2) for _ in range(dist.get_world_size())]
dist.all_gather(out, x)
mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2))
print(dist.get_rank(), dist.get_world_size(), os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"], len(out), mesh.get_coordinate())
dist.barrier()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
model(x).sum().backward()
assert torch.allclose(model.module.weight.grad, x / dist.get_world_size())  # DDP's mean of a sum of one
dist.destroy_process_group()
if dist.is_initialized() or "FAIL" in os.environ:
    raise ValueError("after all")
"""


PRINTS = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
print("begins")
x = torch.full((2,), float(rank + 1))
work = dist.all_reduce(x, async_op=True)
dist.barrier()
print("sum", x.tolist())
print("rank", rank, "ends with", x.tolist())
work.wait()
dist.destroy_process_group()
"""


def test_output_that_differs_is_told_once_with_its_call_and_a_command_that_finds_it_again(tmp_path: pathlib.Path) -> None:
    (tmp_path / "script.py").write_text(PRINTS)
    options = ["--nproc-per-node=3", "--explore=200", "--compare-output"]
    done = launch_here(tmp_path, *options, "script.py")
    assert done.returncode == 1
    assert done.stderr.count("results differ between schedules: ") == 1, done.stderr
    line = 1 + PRINTS.splitlines().index("work = dist.all_reduce(x, async_op=True)")
    assert (
        "results differ between schedules: rank 0's \"line on stdout\" is 'sum [nan, nan]' here, and 'sum [6.0, 6.0]' under steered:1\n"
        "the same of ranks 1-2\n"
        f"outputs hold NaN or 0xEB until their call completes; ranks 0-2 had all_reduce seq 1 [script.py:{line}] open\n"
    ) in done.stderr, done.stderr
    again = re.search(r"^run it again: (.* -m rankloom\.torch (.*))$", done.stderr, re.MULTILINE)
    assert again is not None and again[2] == "--nproc-per-node=3 --explore=200 --compare-output script.py", done.stderr
    repeated = subprocess.run(["sh", "-c", again[1]], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert repeated.returncode == 1 and "rank 0's \"line on stdout\" is 'sum [nan, nan]' here" in repeated.stderr, repeated.stderr
    with_call = PRINTS.replace("dist.barrier()", "work.wait()")
    (tmp_path / "script.py").write_text(with_call)
    assert launch_here(tmp_path, *options, "script.py").returncode == 0


def test_one_rank_of_a_fake_world(tmp_path: pathlib.Path) -> None:
    done = launch_text_here(tmp_path, FAKE, "--fake=64", "--rank=37")
    assert (done.returncode, done.stdout) == (0, "[rank37]: 37 64 37 64 64 (1, 5)\n"), done.stderr
    done = launch_text_here(tmp_path, FAKE, "--fake=64", "--rank=37", "--nproc-per-node=8")
    assert (done.returncode, done.stdout) == (0, "[rank37]: 37 64 5 8 64 (1, 5)\n"), done.stderr
    os.environ["FAIL"] = "1"
    try:
        bad = launch_text_here(tmp_path, FAKE, "--fake=4", "--rank=3")
    finally:
        del os.environ["FAIL"]
    assert bad.returncode == 1 and "[rank3]: ValueError: after all\nrank 3 failed: ValueError" in bad.stderr, bad.stderr


RECORDED = """
import os
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
layer = torch.nn.Linear(64, 64, bias=False, device="meta")
dist.all_reduce(layer(torch.empty(8, 64, device="meta")), group=mesh.get_group("tp"))
print(dist.get_rank(), os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"], __name__, sys.argv[1:])
if "fail" in sys.argv:
    raise ValueError("after all")
"""


def test_the_record_of_a_script_as_it_is(tmp_path: pathlib.Path) -> None:
    options = ["--fake=64", "--rank=37", "--nproc-per-node=8", "--cost=nvlink4"]
    for file in ("step.txt", "step.csv", "step.rlrun", "step.json", "step.pt.json"):
        done = launch_text_here(tmp_path, RECORDED, *options, f"--record={file}")
        assert (done.returncode, done.stdout) == (0, "37 5 8 __main__ []\n"), done.stderr
    table = (tmp_path / "step.txt").read_text()
    assert re.search(r"^tp +32 +all_reduce +1 ", table, re.MULTILINE), table
    rows = list(csv.DictReader((tmp_path / "step.csv").open()))
    assert [(row["op"], row["group"], row["payload"]) for row in rows] == [("all_reduce", "tp", str(4 * 8 * 64))]
    assert rows[0]["line"] == str(1 + RECORDED.splitlines().index(next(x for x in RECORDED.splitlines() if "all_reduce" in x)))
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["all_reduce"]
    assert json.loads((tmp_path / "step.pt.json").read_text())["schema"] == "1.1.1-chakra.0.0.4"
    run = run_file.read(str(tmp_path / "step.rlrun"))
    assert [(rank["rank"], rank["calls"], rank["totals"][0]["payload"]) for rank in run.fake["ranks"]] == [(37, 1, 4 * 8 * 64)]


def test_the_record_of_a_script_for_chakra(tmp_path: pathlib.Path) -> None:
    needs_chakra()
    done = launch_text_here(tmp_path, RECORDED, "--fake=64", "--rank=37", "--nproc-per-node=8", "--cost=nvlink4", "--record=step.et")
    assert done.returncode == 0, done.stderr
    _, nodes = read_traces.read_chakra(tmp_path / "step.37.et")
    assert [(node["name"], node["attr"]["comm_size"]) for node in nodes] == [("all_reduce", 4 * 8 * 64)]


def test_the_estimate_of_a_script_as_it_is(tmp_path: pathlib.Path) -> None:
    options = ["--fake=64", "--mesh=dp=2,tp=32", "--cost=dp=infiniband_ndr,tp=nvlink4", "--device=h100_sxm", "--efficiency=0.5"]
    done = launch_text_here(tmp_path, RECORDED, *options, "--record=step.txt")
    assert done.returncode == 0, done.stderr
    assert "\nstep of rank 0 on h100_sxm, at 50.0% of its peak\n" in (tmp_path / "step.txt").read_text()
    assert launch_text_here(tmp_path, RECORDED, *options, "--record=step.json").returncode == 0
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["mm", "all_reduce"]  # and no "uniform_" of the set-up


STEPS = """
import sys
import torch
import torch.distributed as dist


def main(steps):
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).to("meta")
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    optimizers = [torch.optim.AdamW(layer.parameters()) for layer in (model[0], model[2])]
    for step in range(steps):
        model(torch.empty(32 * (step + 1), 256, device="meta")).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
    model(torch.empty(8192, 256, device="meta"))
    dist.destroy_process_group()


main(int(sys.argv[1]))
"""


def test_the_estimate_of_a_script_is_that_of_its_last_step(tmp_path: pathlib.Path) -> None:
    (tmp_path / "script.py").write_text(STEPS)
    options = ["--fake=4", "--cost=nvlink4", "--device=h100_sxm"]
    weights = 4 * (2 * 256 * 1024 + 256 + 1024)
    for steps, what in (
        (0, "from the first call of a module to its end, since no optimizer made a step"),
        (1, "the only step, from the first call of a module to the end of the optimizer's step"),
        (3, "the last of 3 steps, from the end of one optimizer step to that of the next"),
    ):
        for file in ("step.txt", "step.json"):
            done = launch_here(tmp_path, *options, f"--record={file}", "script.py", str(steps))
            assert done.returncode == 0, done.stderr
        told = (tmp_path / "step.txt").read_text()
        assert f"\n{what}:\nstep of rank 0 on h100_sxm, at 100.0% of its peak\n" in told, told
        assert re.search(r"^0 +4 +broadcast +4 ", told, re.MULTILINE), told  # the table is of all calls
        events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
        boxes = [event for event in events if event["ph"] == "X"]
        assert [event["name"] for event in boxes if event["cat"] == "collective"] == ["all_reduce"] * (4 if steps else 0)
        flops = {event["args"]["FLOPs"] for event in boxes if event["args"].get("phase") == "forward"} - {0}
        assert flops == {2 * (32 * steps if steps else 8192) * 256 * 1024}
        kinds = [event["args"] for event in events if event["ph"] == "C"]
        assert {kind["parameters"] for kind in kinds} - {0} == {weights}
        assert {kind["optimizer"] for kind in kinds} == ({0} if steps == 0 else {2 * weights + 4 * 4})  # and counts of steps
        assert max(kind["gradients"] for kind in kinds) == (weights if steps else 0)


def test_a_script_that_fails_leaves_its_record(tmp_path: pathlib.Path) -> None:
    (tmp_path / "script.py").write_text(RECORDED)
    done = launch_here(tmp_path, "--fake=4", "--record=step.csv", "script.py", "fail")
    assert done.returncode == 1 and "ValueError: after all" in done.stderr and "_torchrun" not in done.stderr, done.stderr
    assert len((tmp_path / "step.csv").read_text().splitlines()) == 2
    assert "rankloom: --record step.csv: what the script called until it failed\n" in done.stderr
    bad = launch_here(tmp_path, "--fake=4", "--record=script.py/step.csv", "script.py")
    assert bad.returncode == 2 and "error: --record script.py/step.csv: Not a directory" in bad.stderr, bad.stderr


def test_costs_of_groups_that_there_are_not_are_told(tmp_path: pathlib.Path) -> None:
    options = ["--fake=4", "--device=h100_sxm", "--record=step.txt"]
    done = launch_text_here(tmp_path, RECORDED, *options, "--cost=dp=nvlink4,tpp=nvlink4")
    assert done.returncode == 0, done.stderr
    # The script calls the group along tp, and its mesh names that.
    assert "rankloom: --cost names dp, tpp, and no call is of a group called so (have tp): want --mesh DIM=SIZE,... " in done.stderr
    assert "    - the cost of dp, tpp: no call is of a group called so\n" in (tmp_path / "step.txt").read_text()
    done = launch_text_here(tmp_path, RECORDED, *options, "--cost=tp=nvlink4")
    assert "--cost" not in done.stderr and "the cost of" not in (tmp_path / "step.txt").read_text()


def test_a_command_line_that_is_not_right(tmp_path: pathlib.Path) -> None:
    (tmp_path / "script.py").write_text("print(1)")
    for arguments, text in [
        (["--nproc-per-node=0", "script.py"], "--nproc-per-node 0: want at least 1 rank"),
        (["--nproc-per-node=two", "script.py"], "--nproc-per-node two: Unsupported nproc_per_node value: two"),
        (["--nnodes=3:2", "script.py"], "--nnodes 3:2: want at least 1 node"),
        (["nowhere.py"], "script nowhere.py: No such file or directory"),
        (["-m", "no_such_module"], "module no_such_module: there is no such module to run"),
        (["--no-python", "ls"], "--no-python: ranks are threads of this Python"),
        (["--seed=1", "--parallel", "script.py"], "want one of --seed or --explore, --schedule, --parallel"),
        (["--explore=0", "script.py"], "--explore 0: want at least 1 run"),
        (["--rank=1", "script.py"], "--rank 1: want --fake WORLD_SIZE beside it"),
        (["--fake=0", "script.py"], "--fake 0: want at least 1 rank"),
        (["--fake=4", "--rank=4", "script.py"], "--rank 4: want 0 <= rank < 4, the world's size"),
        (["--fake=6", "--nproc-per-node=4", "script.py"], "--fake 6: want a multiple of --nproc-per-node = 4"),
        (["--fake=6", "--nnodes=4", "script.py"], "--fake 6: want a multiple of --nnodes = 4"),
        (["--fake=16", "--nnodes=4", "--nproc-per-node=8", "script.py"], "--fake 16: want --nnodes = 4 times --nproc-per-node = 8"),
        (["--fake=4", "--explore=3", "script.py"], "--explore goes with ranks that meet, and --fake has one alone"),
        (["--record=a.txt", "script.py"], "--record a.txt: want --fake WORLD_SIZE beside it"),
        (["--nproc-per-node=2", "--compare-output", "script.py"], "--compare-output compares runs, want --explore RUNS beside it"),
        (["--fake=4", "--record=a.dat", "script.py"], "--record a.dat: want a file that ends in one of .txt, .csv, .rlrun, .pt.json, .json, .et"),
        (["--fake=4", "--device=h100_sxm", "script.py"], "--device h100_sxm: want --fake WORLD_SIZE and --record FILE beside it"),
        (["--fake=4", "--record=a.txt", "--device=h1", "script.py"], "device is 'h1', want a Device or one of the presets"),
        (["--fake=4", "--record=a.txt", "--cost=nvlink9", "script.py"], "error: --fake 4: cost is 'nvlink9', want a Link or one of the presets"),
        (["--fake=4", "--record=a.txt", "--efficiency=0.5", "script.py"], "error: --efficiency 0.5: want --device beside it"),
        (["--fake=4", "--record=a.txt", "--mesh=dp=2", "script.py"], "mesh has dp 2 = 2 ranks, want world_size = 4"),
        (["--fake=4", "--record=a.txt", "--mesh=dp=two", "script.py"], "--mesh dp=two: want numbers of ranks"),
        (["--fake=4", "--record=a.txt", "--mesh=dp", "script.py"], "--mesh dp: want DIM=..., with commas between"),
        (["--fake=4", "--record=a.txt", "--tolerate-set-device", "script.py"], "--record has the script run as it is"),
        (["--spawn", "--explore=2", "script.py"], "--explore goes through runs of a whole script"),
        (["--tee=3", "script.py"], "--redirects and --tee need --log-dir"),
        (["--schedule=alphabetical", "script.py"], "alphabetical"),
    ]:
        done = launch_here(tmp_path, *arguments)
        assert done.returncode == 2, (arguments, done.stdout, done.stderr)
        assert done.stdout == "" and "error: " in done.stderr and text in done.stderr, (arguments, done.stderr)
        assert "Traceback" not in done.stderr


def test_what_is_ignored_is_told(tmp_path: pathlib.Path) -> None:
    options = ["--max-restarts=3", "--rdzv-backend=c10d", "--node-rank=1", "--nnodes=1:2", "--monitor-interval=3", "--start-method=fork"]
    done = launch_text_here(tmp_path, "pass", *options)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stderr.splitlines()) == [
        "rankloom: --max-restarts is ignored: a run that fails is told, not repeated",
        "rankloom: --monitor-interval is ignored: threads are not polled",
        "rankloom: --nnodes 1:2: 2 nodes, and it stays at that",
        "rankloom: --node-rank is ignored: this process runs all nodes",
        "rankloom: --rdzv-backend is ignored: ranks meet in memory",
        "rankloom: --start-method is ignored: ranks are threads of this process",
    ]


def test_a_module_runs_and_set_device_is_tolerated(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "__main__.py").write_text(
        "import os, sys, torch\nfrom . import part\ntorch.cuda.set_device(int(os.environ['LOCAL_RANK']))\nprint(part.NAME, sys.argv[1:])\n"
    )
    (tmp_path / "train" / "__init__.py").write_text("")
    (tmp_path / "train" / "part.py").write_text("NAME = 'part'\n")
    done = launch(tmp_path, "--nproc-per-node=2", "--tolerate-set-device", "-m", "train", "--lr", "1")
    assert lines(done.stdout) == ["part ['--lr', '1']"] * 2, done.stdout + done.stderr
    if not torch.cuda.is_available():
        assert launch(tmp_path, "-m", "train").returncode == 1


def test_a_script_that_spawns_its_ranks(tmp_path: pathlib.Path) -> None:
    script = str(SCRIPTS / "spawn.py")
    real = subprocess.run([sys.executable, script, "2"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert real.returncode == 0 and re.fullmatch(r"sum \d\.\d{4} \d\.\d{4}\n", real.stdout), real.stdout + real.stderr
    for options in ([], ["--seed=4"], ["--schedule=late:2"]):
        done = launch_here(tmp_path, "--spawn", *options, script, "2")
        assert (done.returncode, done.stdout) == (0, real.stdout), done.stderr
    raises = "    if rank == 1:\n        raise KeyError('lost')\n    torch.manual"
    (tmp_path / "script.py").write_text(pathlib.Path(script).read_text().replace("    torch.manual", raises))
    bad = launch_here(tmp_path, "--spawn", "--seed=4", "script.py", "2")
    assert (bad.returncode, bad.stdout) == (1, ""), bad.stderr
    assert "rank 1 failed: KeyError: 'lost'\nrank 0 stopped for it\n" in bad.stderr and "RANKLOOM_SEED=4" in bad.stderr, bad.stderr


class _Trainer:
    """With state, of which processes have a copy each."""

    def __init__(self) -> None:
        self.rank = -1

    def worker(self, rank: int, ranks: int) -> None:
        assert self.rank == -1
        self.rank = rank
        dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method="tcp://localhost:29556")
        dist.barrier()
        assert self.rank == rank

    __call__ = worker


def _works(trainer: _Trainer, rank: int, ranks: int) -> None:
    trainer.worker(rank, ranks)


def test_what_spawn_gives_and_raises() -> None:
    shared, plain = torch.zeros(2), [0]

    def adds(rank: int, tensor: torch.Tensor, numbers: list[int]) -> None:
        tensor[rank] += rank + 1
        numbers.append(rank)
        assert numbers == [0, rank]

    assert rankloom.torch.spawn(adds, (shared, plain), nprocs=2, seed=1) is None
    assert shared.tolist() == [1, 2] and plain == [0]

    trainer = _Trainer()
    rankloom.torch.spawn(trainer.worker, (2,), nprocs=2, seed=1)
    rankloom.torch.spawn(trainer, (2,), nprocs=2)
    rankloom.torch.spawn(functools.partial(_works, trainer), (2,), nprocs=2)
    assert trainer.rank == -1

    def leaves(rank: int, code: int) -> None:
        dist.init_process_group("gloo", rank=rank, world_size=2, init_method="tcp://localhost:29555")
        if rank == 1:
            sys.exit(code)
        dist.barrier()

    with pytest.raises(torch.multiprocessing.ProcessExitedException, match="rank 1 failed: SystemExit: 3") as left:
        rankloom.torch.spawn(leaves, (3,), nprocs=2)
    assert (left.value.exit_code, left.value.error_index) == (3, 1)

    def raises(rank: int) -> None:
        if rank == 1:
            raise ValueError("bad shard")

    context = rankloom.torch.spawn(raises, nprocs=2, join=False)
    assert context is not None
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="rank 1 failed: ValueError: bad shard") as raised:
        context.join()
    assert raised.value.error_index == 1
    with pytest.raises(TypeError, match="cannot pickle 'generator' object"):
        rankloom.torch.spawn(raises, ((x for x in ()),))
    with pytest.raises(ValueError, match="nprocs is 0, want at least 1"):
        rankloom.torch.spawn(raises, nprocs=0)


def test_a_named_store_is_one_runs() -> None:
    def body(rank: int) -> int:
        store = dist.TCPStore("localhost", 29555, 2, rank == 0)
        return store.add("runs", 1) if rank == 0 else 0

    for _ in range(2):
        assert rankloom.torch.run(body, 2, seed=1, backend=None).results == [1, 0]


@pytest.mark.parametrize("gear", [{"seed": 1}, {}, {"parallel": True}], ids=["seed", "fifo", "parallel"])
def test_a_file_store_by_its_path_is_one_runs(gear: dict[str, Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept: list[dist.Store] = []  # a program's global, which outlives the run

    def body(rank: int) -> list[Any]:
        store = dist.FileStore(str(tmp_path / "met") if rank == 0 else "met", 2)
        kept.append(store)
        before = store.check([f"rank {rank}"])
        store.set(f"rank {rank}", f"was here with {rank + 10}")
        return [before, store.get(f"rank {1 - rank}").decode(), store.num_keys()]

    runs = [rankloom.torch.run(body, 2, backend=None, **gear) for _ in range(2)]
    assert [run.results for run in runs] == [[[False, "was here with 11", 2], [False, "was here with 10", 2]]] * 2, runs[1].text
    assert "seed" not in gear or runs[0].trace == runs[1].trace
    assert not (tmp_path / "met").exists()
    found = rankloom.torch.explore(body, 2, backend=None, runs=20)
    assert found.ok and "two runs of one schedule differ" not in found.text, found.text


THREADS = """
import threading, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
thread = threading.Thread(target=lambda: dist.all_reduce(x))
thread.start()
thread.join()
print(x.item(), dist.get_rank())
"""


@pytest.mark.parametrize("options", [[], ["--seed", "7"], ["--parallel"]])
def test_a_thread_of_a_rank_has_its_groups(options: list[str], tmp_path: pathlib.Path) -> None:
    done = launch_text_here(tmp_path, THREADS, "--nproc-per-node", "2", *options)
    assert (done.returncode, lines(done.stdout)) == (0, ["2.0 0", "2.0 1"]), done.stderr


STORES = """
import datetime, threading, torch.distributed as dist
dist.init_process_group("gloo")
got = []
store = dist.TCPStore("localhost", 29777, is_master=True, wait_for_workers=False) if dist.get_rank() == 0 else None
if store:
    store.set("key", "of rank 0")
dist.barrier()
def asks():
    timeout = datetime.timedelta(seconds=5)
    got.append(dist.TCPStore("localhost", 29777, wait_for_workers=False, timeout=timeout).get("key").decode())
thread = threading.Thread(target=asks)
thread.start()
thread.join()
print(got)
dist.barrier()
"""


@pytest.mark.parametrize("options", [[], ["--seed", "7"], ["--parallel"]])
def test_a_thread_of_a_rank_has_its_stores(options: list[str], tmp_path: pathlib.Path) -> None:
    done = launch_text_here(tmp_path, STORES, "--nproc-per-node", "2", *options)
    assert (done.returncode, lines(done.stdout)) == (0, ["['of rank 0']"] * 2), done.stderr


def test_a_script_that_is_no_python(tmp_path: pathlib.Path) -> None:
    done = launch_text_here(tmp_path, "def f(:\n    pass\n", "--nproc-per-node", "2")
    want = '  File "script.py", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'
    assert (done.returncode, done.stderr) == (1, want)


WARNINGS = """
import warnings
import torch
import torch.distributed as dist

warnings.simplefilter("error")
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(2))
dist.barrier()
dist.destroy_process_group()
print("fine")
"""


def test_a_script_whose_warnings_are_errors(tmp_path: pathlib.Path) -> None:
    done = launch_text(tmp_path, WARNINGS, "--nproc-per-node", "2")
    assert (done.returncode, lines(done.stdout), done.stderr) == (0, ["fine", "fine"], "")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no groups of exceptions")
def test_a_group_of_exceptions_is_told_once(tmp_path: pathlib.Path) -> None:
    done = launch_text_here(tmp_path, "raise ExceptionGroup('two', [ValueError('a'), KeyError('b')])", "--nproc-per-node=2")
    assert done.returncode == 1 and done.stderr.count("ValueError: a") == 1, done.stderr


def test_spawn_without_join() -> None:
    go = threading.Event()
    context = rankloom.torch.spawn(lambda rank: go.wait(), nprocs=2, join=False)
    assert context.join(timeout=0.05) is False
    go.set()
    assert context.join() is True
    with pytest.raises(ValueError, match="alphabetical"):
        rankloom.torch.spawn(print, nprocs=2, join=False, schedule="alphabetical").join()


def test_output_of_ranks_on_two_nodes(tmp_path: pathlib.Path) -> None:
    source = 'import os, sys; r = os.environ["RANK"]; print("out", r); print("err", r, file=sys.stderr)'
    nodes = ["--nnodes=2", "--nproc-per-node=2"]
    done = launch_text_here(tmp_path, source, *nodes, "--local-ranks-filter=1")
    assert done.stdout == "[rank1]: out 1\n[rank3]: out 3\n", done.stdout
    done = launch_text_here(tmp_path, source, *nodes, "--log-dir=logs", "--redirects=1:2")
    assert done.stdout.count("out") == 4 and done.stderr == "[rank0]: err 0\n[rank2]: err 2\n", done.stdout + done.stderr
    logs = tmp_path / "logs"
    assert sorted(str(path.relative_to(logs)) for path in logs.rglob("*.log")) == ["1/stderr.log", "3/stderr.log"]


def test_prefix_local_rank_and_threads(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[${role_name}${local_rank}/${rank}]:")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    source = 'import os; print(os.environ["LOCAL_RANK"], os.environ.get("OMP_NUM_THREADS"))'
    done = launch_text_here(tmp_path, source, "--nnodes=2", "--nproc-per-node=2", "--role=trainer")
    assert done.stdout.splitlines() == [f"[trainer{rank % 2}/{rank}]: {rank % 2} 1" for rank in range(4)], done.stdout
    done = launch_text_here(tmp_path, source, "--nproc-per-node=2", "--virtual-local-rank")
    assert [line.split()[1:] for line in done.stdout.splitlines()] == [["0", "1"]] * 2, done.stdout
    assert launch_text_here(tmp_path, source).stdout == "[default0/0]: 0 None\n"


def test_exit_codes_of_scripts_that_spawn_or_are_recorded(tmp_path: pathlib.Path) -> None:
    for options in (["--spawn"], ["--fake=2", "--record=a.txt"]):
        assert launch_text_here(tmp_path, "import sys; sys.exit(3)", *options).returncode == 3
        done = launch_text_here(tmp_path, "import sys; sys.exit('no data')", *options)
        assert done.returncode == 1 and "no data\n" in done.stderr, done.stderr


def test_set_trace_is_a_breakpoint(tmp_path: pathlib.Path) -> None:
    traced = STOPS.replace("breakpoint()", "import pdb; pdb.set_trace(header='look here')")
    done = launch_text(tmp_path, traced, "--nproc-per-node=2", "--seed=1", "--stall=1", stdin="p mine\nc\n")
    assert done.stderr == "rankloom: breakpoint() in rank 1 of 2; all ranks are stopped\n"
    assert "look here\n" in done.stdout and "(rank 1) 'shard 1'\n" in done.stdout, done.stdout
    (tmp_path / "script.py").write_text(STOPS)
    done = launch(tmp_path, "--nproc-per-node=2", "script.py", env={"PYTHONBREAKPOINT": "0"})
    assert done.returncode == 0 and "(rank 1)" not in done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="what the option spares a script is there")
def test_cuda_functions_that_do_nothing_are_put_back(tmp_path: pathlib.Path) -> None:
    before = torch.cuda.synchronize, torch.cuda.current_device
    source = "import torch; torch.cuda.set_device(3); torch.cuda.synchronize(); print(torch.cuda.current_device())"
    done = launch_text_here(tmp_path, source, "--nproc-per-node=2", "--tolerate-set-device")
    assert lines(done.stdout) == ["0", "0"], done.stderr
    assert (torch.cuda.synchronize, torch.cuda.current_device) == before


def test_an_environment_of_its_own_is_the_childs(tmp_path: pathlib.Path) -> None:
    source = '''import subprocess, sys
ask = "import os; print(os.environ.get('ONLY'), os.environ.get('RANK'))"
print(subprocess.run([sys.executable, "-c", ask], env={"ONLY": "1"}, capture_output=True, text=True).stdout.strip())'''
    assert lines(launch_text_here(tmp_path, source, "--nproc-per-node=2").stdout) == ["1 None"] * 2
