#!/usr/bin/env python3
"""Runs fuzz targets side by side, each for a while, over their corpora in the tree.

    tools/fuzz.py BUILD SECONDS [--jobs N] [--seed S] [NAME...]

BUILD: a build by clang, in which tests/fuzz/NAME_libfuzzer are (all of them without NAME). `run_files`: the command `rankloom` on run
files that are changed at random. New inputs stay in BUILD/fuzz/NAME, where the next run begins with them; what ends a target is
BUILD/fuzz/crash-* and so on, which tests/fuzz/NAME FILE runs again. Exits with 1 if a target found something. The seed is that of
the day without --seed.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
FUZZ = ROOT / "tests" / "fuzz"
LONGEST_INPUT = 4096  # bytes
MOST_MEMORY = 2048  # MB, of which AddressSanitizer takes its part
ONE_ALLOCATION = 64  # MB
ONE_INPUT = 30  # seconds
TAIL = 6000  # characters of what a target that found something said


def command(build, name, seconds, seed):
    if name == "run_files":
        test = ROOT / "tests" / "tools" / "mutated_files_test.py"
        files = 6  # the test changes each for its time
        return [sys.executable, test, build / "tests" / "collectives" / "write_runs", str(seconds / files), str(seed)]
    found = build / "fuzz" / name
    found.mkdir(parents=True, exist_ok=True)
    line = [build / "tests" / "fuzz" / f"{name}_libfuzzer", f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={LONGEST_INPUT}",
            f"-rss_limit_mb={MOST_MEMORY}", f"-malloc_limit_mb={ONE_ALLOCATION}", f"-timeout={ONE_INPUT}", "-print_final_stats=1",
            f"-artifact_prefix={build / 'fuzz'}/"]  # fmt: skip
    dictionary = FUZZ / "dictionaries" / f"{name}.dict"
    line += [f"-dict={dictionary}"] if dictionary.exists() else []
    corpus = FUZZ / "corpus" / name
    return [*line, found, *([corpus] if corpus.exists() else [])]


def number(pattern, text):
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def summary(name, text):
    """A line of what a target did."""
    if name == "run_files":
        return text.strip().splitlines()[-1] if text.strip() else "nothing"
    runs, peak = number(r"number_of_executed_units:\s*(\d+)", text), number(r"peak_rss_mb:\s*(\d+)", text)
    edges, kept = number(r" cov: (\d+)", text), number(r"new_units_added:\s*(\d+)", text)
    return f"{runs} inputs, {edges} edges, {kept} inputs kept, {peak} MB at most"


def fuzz(build, name, seconds, seed):
    """(whether it went well, what to print)."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RANKLOOM_")}
    # The sources that a target has with counters stand in the archives as well.
    environment["ASAN_OPTIONS"] = ":".join(filter(None, [environment.get("ASAN_OPTIONS"), "detect_odr_violation=0"]))
    line = [str(word) for word in command(build, name, seconds, seed)]
    try:
        done = subprocess.run(
            line, env=environment, cwd=build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=4 * seconds + 300, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"{name}: did not end"
    text = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        return False, f"{name}: exit code {done.returncode}\n{text[-TAIL:]}\nit was run as: {' '.join(line)}"
    return True, f"{name}: {summary(name, text)}"


def main():
    parser = argparse.ArgumentParser(description="Fuzz targets, each for a while.")
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("seconds", type=int)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")))
    options = parser.parse_intermixed_args()
    build = options.build.resolve()
    names = options.names or [path.name.removesuffix("_libfuzzer") for path in sorted((build / "tests" / "fuzz").glob("*_libfuzzer"))]
    for name in names:
        if name != "run_files" and not (build / "tests" / "fuzz" / f"{name}_libfuzzer").exists():
            parser.error(f"no target {name} in {build / 'tests' / 'fuzz'}")
    print(f"fuzzing for {options.seconds} s each, seed {options.seed}: {' '.join(names)}", flush=True)
    good = True
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for well, said in pool.map(lambda name: fuzz(build, name, options.seconds, options.seed), names):
            print(said, flush=True)
            good = good and well
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
