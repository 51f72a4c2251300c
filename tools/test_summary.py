#!/usr/bin/env python3
"""Counts the results of the last `meson test` of a build folder, one GoogleTest case as one test.

    tools/test_summary.py build

Lines that a program begins with "noted: " are shown, pass or fail: the seed of the day that it drew from, and how many.
Each failure comes with lines of its own words, so that the last lines of a log that was cut still name the reason.
The last line is `N passed, N failed, N skipped`. Exit status 1 if anything failed or nothing ran. A program that
died, timed out or failed at exit (a sanitizer's report) counts as a failure even if all of its cases passed.
Before the run, `tools/test_summary.py --clear build` removes older results.
"""

import functools
import json
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

GOOD = {"OK", "EXPECTEDFAIL"}
MOST_LINES = 12  # of what one failure says
# Where a program tells of a failure: GoogleTest, a process of a job other than the first, Python, sanitizers.
TELLS = re.compile(r": Failure$|^process \d+: |^(FAIL|ERROR): |Error: |ERROR: \w+Sanitizer|runtime error: ")


def logs(build):
    """Newest first. A run with a wrapper has one of another name."""
    return sorted((build / "meson-logs").glob("testlog*.json"), key=lambda log: log.stat().st_mtime, reverse=True)


def records(build):
    """The results of the last run, by test."""
    newest = logs(build)[:1]
    return [json.loads(line) for log in newest for line in log.read_text().splitlines()]


@functools.cache
def work_folders(build):
    """In which folder a test runs, by the suite and the name: ("sim", "prng_test")."""
    told = build / "meson-info" / "intro-tests.json"
    tests = json.loads(told.read_text()) if told.exists() else []
    return {("+".join(suite.split(":")[-1] for suite in test["suite"]), test["name"]): test["workdir"] for test in tests}


def find_cases(record, build):
    """The case list that GoogleTest wrote into the folder in which its program ran, or beside the program; or None."""
    suite, _, program = record["name"].rpartition(" / ")  # "project:suite / name", or the name alone
    ran_in = work_folders(build).get((suite.split(":")[-1], program))
    for folder in [ran_in] if ran_in else [pathlib.Path(argument).parent for argument in record["command"]]:
        report = pathlib.Path(folder) / (program + ".xml")
        if build in report.parents and report.exists():
            try:
                return [c for c in ElementTree.parse(report).iter("testcase") if c.get("status") != "notrun"]
            except ElementTree.ParseError:
                return None
    return None


def count(record, build):
    """(passed, failed, skipped, names of what failed) of one entry of the log."""
    name, result = record["name"], record["result"]
    cases = find_cases(record, build)
    if cases is None:
        if result == "SKIP":
            return 0, 0, 1, []
        return (1, 0, 0, []) if result in GOOD else (0, 1, 0, [f"{name} ({result})"])
    bad = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped = [c for c in cases if c.find("skipped") is not None and c not in bad]
    names = [f"{name}: {c.get('classname')}.{c.get('name')}" for c in bad]
    if not bad and result not in GOOD and result != "SKIP":
        names = [f"{name} ({result} after its cases, exit status {record['returncode']})"]
    return len(cases) - len(bad) - len(skipped), len(names), len(skipped), names


def lines_of(case):
    """The first lines of what a GoogleTest case says of its failures."""
    said = "\n".join(f.get("message") or f.text or "" for f in case.findall("failure") + case.findall("error"))
    return said.splitlines()[:MOST_LINES]


def reasons(record, build):
    """Lines of an entry that failed: of its failed cases; else those with failures of all that the program wrote; or the last."""
    failed = [c for c in find_cases(record, build) or [] if lines_of(c)]
    if failed:
        return [line for case in failed for line in [f"{case.get('classname')}.{case.get('name')}:", *lines_of(case)]]
    written = re.sub(r"\x1b\[[0-9;]*[mK]", "", record.get("stdout", "") + record.get("stderr", "")).splitlines()
    told = [at for at, line in enumerate(written) if TELLS.search(line)]
    lines = sorted({at for first in told for at in range(first, min(first + 5, len(written)))})[: 2 * MOST_LINES]
    return [written[at] for at in lines] or written[-MOST_LINES:]


def main(arguments):
    build = pathlib.Path(arguments[-1]).resolve()
    if arguments[0] == "--clear":
        for old in [*logs(build), *build.glob("tests/**/*.xml")]:
            old.unlink(missing_ok=True)
        return 0
    passed = failed = skipped = 0
    for record in records(build):
        p, f, s, names = count(record, build)
        passed, failed, skipped = passed + p, failed + f, skipped + s
        for noted in re.findall(r"^noted: (.*)", record.get("stdout", ""), re.MULTILINE):
            print(f"{record['name']}: {noted}")
        for name in names:
            print(f"FAILED {name}")
        for line in reasons(record, build) if names else []:
            print(f"    {line[:400]}")
    if passed + failed == 0:
        print("no test ran")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
