#!/usr/bin/env python3
"""Which lines and branches of the core its tests reach, by folder and by file, of a build that counts them.

    tools/coverage.py BUILD_FOLDER    a table by folder, and the files below 95 % of lines
    tools/coverage.py BUILD_FOLDER --uncovered FILE...    the lines of files that no test reached
    tools/coverage.py BUILD_FOLDER --reached    also BUILD_FOLDER/reached.json, for tools/mutants.py: by file and line, the tests that reach it

BUILD_FOLDER: a build by clang with -fprofile-instr-generate -fcoverage-mapping, in whose `profiles` tests that ran with --wrapper
tools/profile_test have left theirs; `./dev coverage` makes both. Counters lie in a profile that a process and those that it forks share,
so what ends by _exit() or a signal has counted; behind a fork() in a function counts are of one of the two.
"""

import argparse
import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ["sim", "fake_store", "world", "collectives", "harness", "include"]
# Compiled for MPI and CUDA, which a build with counters does without.
LEFT_OUT = ["collectives/cuda/", "collectives/mpi/", "harness/mpi/"]
AIM = 95


def read(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"coverage: {pathlib.Path(command[0]).name}: {done.stderr.strip()[-2000:]}")
    return done.stdout


class Build:
    def __init__(self, folder, clang):
        self.folder, self.profiles = folder.resolve(), folder.resolve() / "profiles"
        self.version = read([clang, "-dumpversion"]).split(".")[0]

    def tool(self, name):
        """The LLVM tool of the compiler's version: others do not read its profiles."""
        for one in (f"{name}-{self.version}", name):
            if shutil.which(one):
                return one
        sys.exit(f"coverage: no {name} of clang {self.version}, want Debian's package llvm")

    def tests(self):
        """By the name that tools/profile_test gives profiles: the tests that have it (those that share a program and an argument differ by
        their environment), as "suite/name", and the programs of the build among the words of their command."""
        names, programs = collections.defaultdict(list), collections.defaultdict(set)
        for test in json.loads(read(["meson", "introspect", str(self.folder), "--tests"])):
            words = test["cmd"]
            label = ".".join(word.split("/")[-1] for word in words[:2])
            names[label].append(f"{test['suite'][0].split(':')[-1]}/{test['name']}")
            base = pathlib.Path(test["workdir"] or self.folder)
            programs[label].update(os.path.normpath(base / word) for word in words if self.is_program(os.path.normpath(base / word)))
        return {label: (names[label], sorted(programs[label])) for label in sorted(names)}

    def is_program(self, path):
        """Whether the build has made it, with counters."""
        if not pathlib.Path(path).is_relative_to(self.folder) or not pathlib.Path(path).is_file():
            return False
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"

    def merged(self, into, pattern):
        """The profiles of one test or of all as one, or None."""
        raw = sorted(str(path) for path in self.profiles.glob(pattern))
        if not raw:
            return None
        listed, merged = self.profiles / f"{into}.list", self.profiles / f"{into}.profdata"
        listed.write_text("\n".join(raw))
        read([self.tool("llvm-profdata"), "merge", "-sparse", "-f", str(listed), "-o", str(merged)])
        return merged

    def asked(self, command, programs, profile):
        """The answer of llvm-cov, which adds up what programs have in common."""
        first, *others = programs
        objects = [part for path in others for part in ("-object", path)]
        return read([self.tool("llvm-cov"), *command, first, *objects, f"-instr-profile={profile}"], cwd=self.folder)

    def all(self, *command):
        profile = self.merged("all", "*.profraw")
        if profile is None:
            sys.exit(f"coverage: no profiles in {self.profiles}, want tests run with --wrapper tools/profile_test")
        return self.asked(command, sorted({program for _, programs in self.tests().values() for program in programs}), profile)

    def lines_of(self, label, programs):
        """(file, line) of the core that tests of this label reached."""
        profile = self.merged(label, f"{label}.*.profraw")
        if profile is None or not programs:
            return
        told = self.asked(["export", "-format=lcov"], programs, profile)
        file = None
        for line in told.splitlines():
            if line.startswith("SF:"):
                file = core_file(line[3:])
            elif line.startswith("DA:") and file:
                number, count = line[3:].split(",")[:2]
                if int(count) > 0:
                    yield file, int(number)


def core_file(name):
    """From the checkout's root, or None for a file that is none of the core's."""
    path = pathlib.Path(os.path.normpath(name))
    if not path.is_relative_to(ROOT):
        return None
    told = str(path.relative_to(ROOT))
    return told if told.split("/")[0] in FOLDERS and not told.startswith(tuple(LEFT_OUT)) else None


def share(part):
    return f"{100 * part['covered'] / part['count']:.1f} %" if part["count"] else "-"


def counts_by_file(told):
    """From lcov's text, by file: how often each line and branch was reached. A file that is compiled in two ways stands there twice."""
    files = collections.defaultdict(lambda: {"lines": collections.Counter(), "branches": collections.Counter()})
    counts = None
    for line in told.splitlines():
        what, _, rest = line.partition(":")
        words = rest.split(",")
        if what == "SF":
            counts = files[name] if (name := core_file(rest)) else None
        elif counts is not None and what in ("DA", "BRDA"):
            place = tuple(words[:1] if what == "DA" else words[:3])
            times = words[1] if what == "DA" else words[3]
            counts["lines" if what == "DA" else "branches"][place] += 0 if times == "-" else int(times)
    return files


def print_table(build):
    rows = collections.defaultdict(lambda: {what: collections.Counter() for what in ("lines", "branches")})
    low = []
    for name, counts in counts_by_file(build.all("export", "-format=lcov")).items():
        sums = {what: {"count": len(places), "covered": sum(times > 0 for times in places.values())} for what, places in counts.items()}
        lines = sums["lines"]
        if 100 * lines["covered"] < AIM * lines["count"]:
            low.append((lines["count"] - lines["covered"], name, share(lines)))
        for key in (name.split("/")[0], "all"):
            for what, row in rows[key].items():
                row.update(sums[what])
    print("| folder | lines | of them reached | branches | of them reached |\n| --- | ---: | ---: | ---: | ---: |")
    for key in [*FOLDERS, "all"]:
        if key in rows:
            lines, branches = rows[key]["lines"], rows[key]["branches"]
            print(f"| {key} | {lines['count']} | {share(lines)} | {branches['count']} | {share(branches)} |")
    print(f"\nbelow {AIM} % of lines, by how many are missing:")
    for missing, name, part in sorted(low, reverse=True):
        print(f"  {missing:5} {part:>8} {name}")


def print_uncovered(build, names):
    """Of many files at once, since the profiles of all programs are read for one as for all."""
    counts = counts_by_file(build.all("export", "-format=lcov"))
    for name in names:
        if name not in counts:
            sys.exit(f"coverage: no line of {name} is counted, want a file of {', '.join(FOLDERS)} from the checkout's root")
        code = (ROOT / name).read_text(encoding="utf-8").splitlines()
        for (number,), times in sorted(counts[name]["lines"].items(), key=lambda line: int(line[0][0])):
            if times == 0:
                print(f"{name}:{number}:{code[int(number) - 1]}")


def write_reached(build):
    reached = collections.defaultdict(lambda: collections.defaultdict(list))
    for label, (names, programs) in build.tests().items():
        for file, line in build.lines_of(label, programs):
            reached[file][line] += names
    (build.folder / "reached.json").write_text(json.dumps(reached), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description="Lines and branches of the core that tests reach.")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--clang", default="clang++")
    parser.add_argument("--uncovered", metavar="FILE", nargs="+")
    parser.add_argument("--reached", action="store_true")
    options = parser.parse_args()
    build = Build(options.folder, options.clang)
    if options.uncovered:
        print_uncovered(build, options.uncovered)
        return
    print_table(build)
    if options.reached:
        write_reached(build)


if __name__ == "__main__":
    main()
