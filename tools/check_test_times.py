#!/usr/bin/env python3
"""Holds the tests to their time.

    tools/check_test_times.py BUILD_FOLDER [MULTIPLIER]

Reads the log of the last `meson test`, run with --wrapper tools/time_test, and exits with 1 if a test took more than
MOST processor seconds or more than half of its limit: such a test times out on a busy machine. MULTIPLIER is that of
--timeout-multiplier; sanitizers slow down what they run, so with one only limits count. Processor seconds depend less
on what else runs than time does, but for jobs of MPI, whose processes wait by asking: for these limits count alone. A
test without them in the log (one that reached its limit, a run of --gdb) is not looked at.
"""

import json
import pathlib
import re
import sys

import test_summary

MOST = 150  # 30 on a quiet machine: cores that share their units with a busy one take twice as long, slower ones more
PART_OF_LIMIT = 2  # a quarter on a quiet machine, for the same reason
OF_MPI = re.compile(r" / mpi_")
CPU_TIME = re.compile(r"^cpu seconds: ([0-9.]+) \+ ([0-9.]+)$", re.MULTILINE)


def cpu_seconds(record):
    """User's and system's, or None."""
    found = CPU_TIME.findall(record.get("stderr") or "")
    return sum(map(float, found[-1])) if found else None


def check(records, limits, multiplier):
    """(what is wrong, how many tests had a time); `limits` has seconds by the name that a record has."""
    findings, timed = [], 0
    for record in records:
        seconds, limit = cpu_seconds(record), limits.get(record["name"])
        if seconds is None:
            continue
        timed += 1
        if multiplier == 1 and seconds > MOST and not OF_MPI.search(record["name"]):
            findings.append(f"{record['name']} took {seconds:.0f} s of processor time; {MOST} s are the most")
        if limit and seconds * PART_OF_LIMIT > limit * multiplier:
            findings.append(
                f"{record['name']} took {seconds:.0f} s of processor time, more than 1/{PART_OF_LIMIT} of its limit of "
                f"{limit * multiplier:.0f} s"
            )
    return findings, timed


def log_name(test):
    """The name in the log of an entry of meson's list: "project:suite / name"."""
    projects = {suite.split(":")[0] for suite in test["suite"]}
    suites = [suite.split(":")[1] for suite in test["suite"] if ":" in suite]
    return f"{'+'.join(sorted(projects))}{':' + '+'.join(suites) if suites else ''} / {test['name']}"


def main(arguments):
    build = pathlib.Path(arguments[0])
    multiplier = float(arguments[1]) if len(arguments) > 1 else 1
    records = test_summary.records(build)
    tests = json.loads((build / "meson-info" / "intro-tests.json").read_text())
    findings, timed = check(records, {log_name(test): test["timeout"] for test in tests}, multiplier)
    for finding in findings:
        print(finding)
    slowest = max(((cpu_seconds(record), record["name"]) for record in records if cpu_seconds(record)), default=None)
    if slowest:
        print(f"check_test_times: {timed} tests, {len(findings)} findings; most processor time: "
              f"{slowest[0]:.1f} s, {slowest[1]}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
