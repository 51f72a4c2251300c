"""Runs other people's tests in a process of their own, and goes on behind one that hangs or ends the process."""

from __future__ import annotations

import argparse
import faulthandler
import json
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]  # test, outcome (passed, failed, skipped), seconds, text


class Rows(unittest.TestResult):
    """Prints a line of JSON when a test starts and when it ends."""

    def __init__(self) -> None:
        super().__init__()
        self._began = 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        self._began = time.monotonic()
        print(json.dumps({"start": name_of(test)}), flush=True)
        super().startTest(test)

    def _add(self, test: unittest.TestCase, outcome: str, text: str = "") -> None:
        seconds = round(time.monotonic() - self._began, 2)
        row = {"test": name_of(test), "outcome": outcome, "seconds": seconds, "text": text}
        print(json.dumps(row), flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._add(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._add(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._add(test, "failed", self._exc_info_to_string(err, test))

    addError = addFailure  # noqa: N815 (unittest's name)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._add(test, "failed", f"{subtest}\n{self._exc_info_to_string(err, test)}")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._add(test, "failed", "passes, and its author expects that it fails")

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._add(test, "passed", "fails as its author expects")


def name_of(test: unittest.TestCase) -> str:
    return ".".join(test.id().split(".")[-2:])


def parse(parser: argparse.ArgumentParser, per_test: float) -> argparse.Namespace:
    """Adds what all runners take. --one and --after are for run_in_processes()."""
    parser.add_argument("--per-test", type=float, default=per_test, metavar="SECONDS")
    parser.add_argument("--only", help="tests whose name contains this")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--quiet", action="store_true", help="no tracebacks")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--after", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_here(tests: Iterable[unittest.TestCase], after: str | None, only: str | None) -> None:
    """In the child: runs the tests behind the one called `after`."""
    faulthandler.register(signal.SIGUSR1)
    result = Rows()
    waiting = after is not None
    for test in tests:
        name = name_of(test)
        if not waiting and (only is None or only in name):
            test.run(result)
        if name == after:
            waiting = False


def run_in_processes(command: list[str], per_test: float, env: dict[str, str] | None = None) -> list[Row]:
    """`command` runs tests with run_here(), and takes --after NAME. A test may take `per_test` seconds."""
    rows: list[Row] = []
    after: str | None = None
    while True:
        arguments = command + (["--after", after] if after else [])
        child = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        assert child.stdout is not None and child.stderr is not None
        lines: queue.Queue[str | None] = queue.Queue()
        errors: list[str] = []

        def read(out: Any = child.stdout, to: queue.Queue[str | None] = lines) -> None:
            for line in out:
                to.put(line)
            to.put(None)

        readers = [
            threading.Thread(target=read, daemon=True),
            threading.Thread(target=lambda out=child.stderr, to=errors: to.extend(out), daemon=True),
        ]
        for reader in readers:
            reader.start()
        running: str | None = None
        trouble = ""
        while True:
            try:
                line = lines.get(timeout=per_test if running else per_test + 120)  # imports take their time
            except queue.Empty:
                trouble = f"not done after {per_test:.0f} s"
                child.send_signal(signal.SIGUSR1)  # the stacks of its threads
                readers[1].join(2)
                child.kill()
                break
            if line is None:
                break
            if line.startswith('{"start"'):
                running = json.loads(line)["start"]
            elif line.startswith('{"test"'):
                rows.append(json.loads(line))
                running = None
                print(f"\r{len(rows)} tests ", end="", file=sys.stderr, flush=True)
        status = child.wait()
        readers[1].join(5)
        if running is None and status == 0:
            return rows
        last = "".join(errors[-100:])
        text = f"{last}\n{trouble or f'the process ended with status {status}'}"
        rows.append({"test": running or "(the file)", "outcome": "failed", "seconds": 0.0, "text": text})
        if running is None:
            return rows
        after = running


def report(rows: list[Row], expected: dict[str, str], title: str, verbose: bool) -> int:
    """Prints a line a test and the counts; the number of failures that are not expected."""
    bad = 0
    for row in rows:
        reason = expected.get(row["test"]) or expected.get(row["test"].split(".")[-1])
        if row["outcome"] == "failed" and reason:
            row["outcome"] = "expected failure"
        bad += row["outcome"] == "failed"
        last = (row["text"].strip().splitlines() or [""])[-1][:200]
        print(f"{row['outcome']:17} {row['seconds']:7.2f} s  {row['test']}  {reason or last}".rstrip())
        if row["outcome"] == "failed" and verbose:
            print(row["text"])
    kinds = sorted({row["outcome"] for row in rows})
    counts = ", ".join(f"{sum(row['outcome'] == kind for row in rows)} {kind}" for kind in kinds)
    print(f"{title}: {counts}, {sum(row['seconds'] for row in rows):.1f} s", flush=True)
    return bad


def save(path: pathlib.Path | None, rows: list[Row]) -> None:
    if path is not None:
        path.write_text(json.dumps(rows, indent=1))


PYTHON = sys.executable
