#!/usr/bin/env python3
"""Counts the instructions of fixed programs under callgrind and compares them with counts.json.

    bench/counts/check.py build            exit status 1 if a count differs by more than 2 %
    bench/counts/check.py build --write    counts.json gets the counts of this build

A count is what one round more costs: the difference of a long run and a short one, divided by the rounds between them. So
first allocations do not count. Nor does what comes before main(), where the programs set the counter to zero: Highway measures its
clock there, which takes 100,000 instructions more or less from run to run. Counts depend on the compiler; one of another version than
wrote counts.json is told, and only a growth of more than 25 % fails then.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

COUNTS = pathlib.Path(__file__).with_name("counts.json")
# Rounds of the short and of the long run. The short one is long enough for rings and pools to be full.
ROUNDS = {"all_reduce": (500, 1500), "ping_pong": (500, 1500), "seeded_world": (20, 60)}
TOLERANCE = 0.02
FOREIGN_TOLERANCE = 0.25
# Where threads meet at the start and at the end of a run, each waits for longer or shorter, some 15,000 instructions: the least of
# some runs is what counts. On a busy machine that may be the least of all short runs but of no long one: a count that differs is
# taken again, and a change shows every time.
RUNS = 3
ATTEMPTS = 3


def instructions(program, name, rounds):
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", program, name, str(rounds)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        sys.exit(f"{name} under callgrind: exit status {done.returncode}\n{done.stderr}")
    return int(found.group(1))


def count(program, name):
    short, long = ROUNDS[name]
    least = {rounds: min(instructions(program, name, rounds) for _ in range(RUNS)) for rounds in (short, long)}
    return round((least[long] - least[short]) / (long - short))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    program = arguments.build / "bench" / "counts" / "counted_programs"
    counts = {name: count(program, name) for name in ROUNDS}
    here = subprocess.run([program, "compiler"], capture_output=True, text=True, check=True).stdout.strip()
    if arguments.write:
        COUNTS.write_text(json.dumps({"compiler": here, "instructions_per_round": counts}, indent=2) + "\n")
    kept = json.loads(COUNTS.read_text())
    same_compiler = kept["compiler"] == here
    if not same_compiler:
        print(f"counts.json is of {kept['compiler']}, this build of {here}")
    failed = False
    for name, now in counts.items():
        before = kept["instructions_per_round"][name]
        for attempt in range(ATTEMPTS):
            if attempt > 0:
                now = count(program, name)
            change = now / before - 1
            bad = abs(change) > TOLERANCE if same_compiler else change > FOREIGN_TOLERANCE
            if not bad:
                break
        failed |= bad
        print(f"{name:14} {now:8} instructions a round, kept {before:8}, {change:+.1%}{'  NOT within' if bad else ''}")
    if failed:
        print("A change that is meant: bench/counts/check.py build --write, and say in the commit why.")
    return failed


if __name__ == "__main__":
    sys.exit(main())
