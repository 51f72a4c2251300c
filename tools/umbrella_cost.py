#!/usr/bin/env python3
"""Compares what <rankloom/rankloom.h> costs a compiler with what a user of absl pays anyway.

    tools/umbrella_cost.py [--instructions] [--runs N] [--most RATIO] [--compiler CXX] [INCLUDE FOLDER]...

Two files of includes, one of the umbrella header and one of absl/status/statusor.h, <vector>, <string>, <functional> and <memory>,
are parsed (-std=c++20 -O0 -fsyntax-only) in turns, N times each. Prints the least processor time of both, and their ratio. Exits
with 1 if the ratio is above RATIO.

With --instructions, valgrind counts what the compiler executes, once for each file: about a minute, and the same number to a tenth
of a percent whatever else the machine does.

The include folders are those where the umbrella header and absl are; without any, include/ of this checkout and the checkout itself.
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
    """The least cost of the umbrella header and of the floor."""
    with tempfile.TemporaryDirectory() as folder:
        commands = []
        for name, text in (("umbrella.cc", UMBRELLA), ("floor.cc", FLOOR)):
            file = pathlib.Path(folder) / name
            file.write_text(text, encoding="utf-8")
            commands.append([*compiler, "-std=c++20", "-O0", "-fsyntax-only", *(f"-I{path}" for path in folders), str(file)])
        costs = [[cost_of(command) for command in commands] for _ in range(runs)]
    return tuple(min(column) for column in zip(*costs, strict=True))


def main(arguments):
    parser = argparse.ArgumentParser(description="what the umbrella header costs a compiler")
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--most", type=float)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("folders", nargs="*", default=[ROOT / "include", ROOT])
    asked = parser.parse_args(arguments)
    if asked.instructions:
        runs, cost_of, scale, unit = asked.runs or 1, instructions_of, 1e9, "thousand million instructions"
    else:
        runs, cost_of, scale, unit = asked.runs or 9, seconds_of, 1, "s"
    umbrella, floor = measure(shlex.split(asked.compiler), asked.folders, runs, cost_of)
    ratio = umbrella / floor
    print(f"umbrella_cost: rankloom.h {umbrella / scale:.3f} {unit}, absl and the standard library {floor / scale:.3f}, "
          f"ratio {ratio:.2f}" + ("" if asked.most is None else f", want at most {asked.most:g}") + f" (least of {runs})")
    return 1 if asked.most is not None and ratio > asked.most else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
