#!/usr/bin/env python3
"""Compares what <rankloom/rankloom.h> costs a compiler with what a user of absl pays anyway.

    tools/umbrella_cost.py [--runs N] [--most RATIO] [--compiler CXX] [INCLUDE FOLDER]...

Two files of includes, one of the umbrella header and one of absl/status/statusor.h, <vector>, <string>, <functional> and <memory>,
are parsed (-std=c++20 -O0 -fsyntax-only) in turns, N times each. Prints both medians, in processor time, and their ratio. Exits with
1 if the ratio is above RATIO. The ratio of medians of turns hardly minds what else the machine does.

The include folders are those where the umbrella header and absl are; without any, include/ of this checkout and the checkout itself.
"""

import argparse
import pathlib
import resource
import shlex
import statistics
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


def measure(compiler, folders, runs):
    """The medians of the umbrella header and of the floor."""
    with tempfile.TemporaryDirectory() as folder:
        commands = []
        for name, text in (("umbrella.cc", UMBRELLA), ("floor.cc", FLOOR)):
            file = pathlib.Path(folder) / name
            file.write_text(text, encoding="utf-8")
            commands.append([*compiler, "-std=c++20", "-O0", "-fsyntax-only", *(f"-I{path}" for path in folders), str(file)])
        for command in commands:  # what is read from the disk the first time
            seconds_of(command)
        times = [[seconds_of(command) for command in commands] for _ in range(runs)]
    return tuple(statistics.median(column) for column in zip(*times, strict=True))


def main(arguments):
    parser = argparse.ArgumentParser(description="what the umbrella header costs a compiler")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--most", type=float)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("folders", nargs="*", default=[ROOT / "include", ROOT])
    asked = parser.parse_args(arguments)
    umbrella, floor = measure(shlex.split(asked.compiler), asked.folders, asked.runs)
    ratio = umbrella / floor
    print(f"umbrella_cost: rankloom.h {umbrella:.3f} s, absl and the standard library {floor:.3f} s, ratio {ratio:.2f}"
          + ("" if asked.most is None else f", want at most {asked.most:g}") + f" (medians of {asked.runs})")
    return 1 if asked.most is not None and ratio > asked.most else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
