#!/usr/bin/env python3
"""Compares what <rankloom/rankloom.h> costs a compiler with what a user of absl pays anyway, and <rankloom/testing.h> with GoogleTest.

    tools/umbrella_cost.py [--instructions] [--runs N] [--most RATIO] [--testing-more COST] [--compiler CXX] [INCLUDE FOLDER]...

Files of includes are parsed (-std=c++20 -O0 -fsyntax-only) in turns, N times each: the umbrella header, and absl/status/statusor.h,
<vector>, <string>, <functional> and <memory>; testing.h, and gmock.h with gtest.h. Prints the least processor time of each, the
ratio of the first two and the difference of the others. Exits with 1 if the ratio is above RATIO or the difference above COST.

With --instructions, valgrind counts what the compiler executes, once for each file: some minutes, and the same number to a tenth
of a percent whatever else the machine does. COST is in thousand million instructions then, else in seconds.

The include folders are those where the headers of rankloom and absl are; without any, include/ of this checkout and the checkout itself.
"""

import argparse
import pathlib
import re
import resource
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
UMBRELLA = "#include <rankloom/rankloom.h>\n"
TESTING = "#include <rankloom/testing.h>\n"
GOOGLETEST = "#include <gmock/gmock.h>\n#include <gtest/gtest.h>\n"
FLOOR = "#include <absl/status/statusor.h>\n#include <functional>\n#include <memory>\n#include <string>\n#include <vector>\n"


def seconds_of(command):
    """Processor time of one run, which must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def instructions_of(command):
    """Instructions that the command and the processes it starts execute, by valgrind."""
    with tempfile.TemporaryDirectory() as folder:
        valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--trace-children=yes", "--cachegrind-out-file=/dev/null",
                    f"--log-file={folder}/%p"]
        subprocess.run([*valgrind, *command], check=True)
        logs = [file.read_text(encoding="utf-8") for file in pathlib.Path(folder).iterdir()]
    counts = [int(found[1].replace(",", "")) for log in logs for found in re.finditer(r"I\s+refs:\s+([\d,]+)", log)]
    if not counts:
        sys.exit("umbrella_cost: valgrind counted nothing:\n" + "".join(logs))
    return sum(counts)


def measure(compiler, folders, runs, cost_of):
    """The least cost of the umbrella header, of its floor, of testing.h and of GoogleTest."""
    with tempfile.TemporaryDirectory() as folder:
        commands = []
        for name, text in (("umbrella.cc", UMBRELLA), ("floor.cc", FLOOR), ("testing.cc", TESTING), ("googletest.cc", GOOGLETEST)):
            file = pathlib.Path(folder) / name
            file.write_text(text, encoding="utf-8")
            commands.append([*compiler, "-std=c++20", "-O0", "-fsyntax-only", *(f"-I{path}" for path in folders), str(file)])
        costs = [[cost_of(command) for command in commands] for _ in range(runs)]
    return tuple(min(column) for column in zip(*costs, strict=True))


def main(arguments):
    parser = argparse.ArgumentParser(description="what the umbrella header and testing.h cost a compiler")
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--most", type=float)
    parser.add_argument("--testing-more", type=float)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("folders", nargs="*", default=[ROOT / "include", ROOT])
    asked = parser.parse_args(arguments)
    if asked.instructions:
        runs, cost_of, scale, unit = asked.runs or 1, instructions_of, 1e9, "thousand million instructions"
    else:
        runs, cost_of, scale, unit = asked.runs or 9, seconds_of, 1, "s"
    umbrella, floor, testing, googletest = measure(shlex.split(asked.compiler), asked.folders, runs, cost_of)
    ratio, more = umbrella / floor, (testing - googletest) / scale
    print(f"umbrella_cost: rankloom.h {umbrella / scale:.3f} {unit}, absl and the standard library {floor / scale:.3f}, "
          f"ratio {ratio:.2f}" + ("" if asked.most is None else f", want at most {asked.most:g}") + f" (least of {runs})")
    print(f"umbrella_cost: testing.h {testing / scale:.3f} {unit}, gmock and gtest {googletest / scale:.3f}, {more:.3f} more"
          + ("" if asked.testing_more is None else f", want at most {asked.testing_more:g}") + f" (least of {runs})")
    too_much = [asked.most is not None and ratio > asked.most, asked.testing_more is not None and more > asked.testing_more]
    return 1 if any(too_much) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
