#!/usr/bin/env python3
"""Runs fuzz targets side by side, each for a while, over their corpora in the tree.

    tools/fuzz.py BUILD SECONDS [--jobs N] [--seed S] [NAME...]

BUILD: a build by clang, in which tests/fuzz/NAME_libfuzzer are. Without NAME: all of them, and `run_files`, the command `rankloom` on run
files that are changed at random. New inputs stay in BUILD/fuzz/NAME, where the next run begins with them; what ends a target is
BUILD/fuzz/crash-* and so on, and the command that runs it again is printed. Exits with 1 if a target found something. The seed is that
of the day without --seed. Prints a table: a row a target, with its processor time, user and system.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[1]
FUZZ = ROOT / "tests" / "fuzz"
RUN_FILES = "run_files"
MUTATED_FILES = ROOT / "tests" / "tools" / "mutated_files_test.py"
WRITE_RUNS = pathlib.Path("tests", "collectives", "write_runs")  # in a build folder
LONGEST_INPUT = 4096  # bytes
MOST_MEMORY = 2048  # MB, of which AddressSanitizer takes its part
ONE_ALLOCATION = 64  # MB
ONE_INPUT = 30  # seconds
TAIL = 6000  # characters of what a target that found something said
KEPT = re.compile(r"Test unit written to (\S+)|the file is (\S+)")  # as libFuzzer says it, and as mutated_files_test.py
COLUMNS = ("target", "inputs", "processor time, s", "edges", "inputs kept", "memory, MB at most")


@dataclass
class Ended:
    """A process that has ended, or was ended since it took too long."""

    code: int
    text: str
    in_time: bool
    seconds: float  # of processors
    megabytes: float  # at most at a time


def program(build, name):
    return build / (WRITE_RUNS if name == RUN_FILES else pathlib.Path("tests", "fuzz", f"{name}_libfuzzer"))


def command(build, name, seconds, seed):
    if name == RUN_FILES:
        return [sys.executable, MUTATED_FILES, program(build, name), str(seconds), str(seed)]
    found = build / "fuzz" / name
    found.mkdir(parents=True, exist_ok=True)
    line = [program(build, name), f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={LONGEST_INPUT}",
            f"-rss_limit_mb={MOST_MEMORY}", f"-malloc_limit_mb={ONE_ALLOCATION}", f"-timeout={ONE_INPUT}", "-print_final_stats=1", "-print_funcs=0",
            "-entropic=0",  # which takes more time than the target where an input reaches ten thousand edges
            f"-artifact_prefix={build / 'fuzz'}/"]  # fmt: skip
    dictionary = FUZZ / "dictionaries" / f"{name}.dict"
    line += [f"-dict={dictionary}"] if dictionary.exists() else []
    corpus = FUZZ / "corpus" / name
    return [*line, found, *([corpus] if corpus.exists() else [])]


def again(build, name, text):
    """The commands that run again what a target kept."""
    start = [program(build, name)] if name != RUN_FILES else ["python3", MUTATED_FILES, program(build, name)]
    kept = dict.fromkeys(path for groups in KEPT.findall(text) for path in groups if path)
    return "".join(f"again: {' '.join(shown(word) for word in (*start, path))}\n" for path in kept)


def shown(word):
    """A path as it is called from the current folder."""
    return os.path.relpath(word) if os.path.isabs(word) else str(word)


def run(line, environment, folder, limit):
    """The process by itself: its time and memory are not those of others that run beside it."""
    process = subprocess.Popen(line, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    ended = threading.Event()

    def end():
        ended.set()
        process.kill()

    timer = threading.Timer(limit, end)
    timer.start()
    text = process.stdout.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    process.stdout.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    return Ended(process.returncode, text, not ended.is_set(), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def number(pattern, text):
    found = re.findall(pattern, text)
    return f"{int(found[-1]):,}" if found else "-"


def row(name, done):
    """The work of a target, as a row of docs/reliability.md."""
    counts = (r"number_of_executed_units:\s*(\d+)", r" cov: (\d+)", r"new_units_added:\s*(\d+)")
    runs, edges, kept = (number(pattern, done.text) for pattern in counts)
    return f"| `{name}` | {runs} | {done.seconds:,.0f} | {edges} | {kept} | {done.megabytes:,.0f} |"


def fuzz(build, name, seconds, seed):
    """(what it did, what went wrong, "" if nothing did)."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RANKLOOM_")}
    (build / "fuzz").mkdir(exist_ok=True)
    if name == RUN_FILES:
        environment["TMPDIR"] = str(build / "fuzz")
    line = [str(word) for word in command(build, name, seconds, seed)]
    done = run(line, environment, build, 4 * seconds + 300)
    wrong = ""
    if not done.in_time:
        wrong = f"{name}: did not end\n{done.text[-TAIL:]}\n"
    elif done.code != 0:
        wrong = f"{name}: exit code {done.code}\n{done.text[-TAIL:]}\nit was run as: {' '.join(line)}\n{again(build, name, done.text)}"
    return row(name, done), wrong


def main():
    parser = argparse.ArgumentParser(description="Fuzz targets, each for a while.")
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("seconds", type=int)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")))
    options = parser.parse_intermixed_args()
    build = options.build.resolve()
    built = [path.name.removesuffix("_libfuzzer") for path in sorted((build / "tests" / "fuzz").glob("*_libfuzzer"))]
    names = options.names or [*built, RUN_FILES]
    for name in names:
        if not program(build, name).exists():
            parser.error(f"no {program(build, name)}, which {name} needs")
    print(f"fuzzing for {options.seconds} s each, {options.jobs} at a time, seed {options.seed}: {' '.join(names)}", flush=True)
    print("\n".join([f"| {' | '.join(COLUMNS)} |", f"| --- |{' ---: |' * (len(COLUMNS) - 1)}"]), flush=True)
    found = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for told, wrong in pool.map(lambda name: fuzz(build, name, options.seconds, options.seed), names):
            print(told, flush=True)
            found += [wrong] if wrong else []
    print("\n".join(found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
