#!/usr/bin/env python3
"""Which lines and branches of the core the tests ran, by folder and by file.

    tools/coverage.py BUILD_FOLDER [--files N]

Reads what a build by `./dev coverage` has left: BUILD_FOLDER/profiles, and the programs of the tests. Prints a table by folder, and
the N files (10) with the most lines that no test ran. A process that ends by a signal or by _exit() leaves no counts; templates count
once, however many types they were made for.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["sim", "fake_store", "world", "collectives", "harness"]
# Device code and what needs a device; code of other machines than this one.
LEFT_OUT = re.compile(r"collectives/cuda/|collectives/mpi/")


def llvm(tool):
    """The tool of the version of clang++: its counts have a format of their own."""
    version = re.search(r"version (\d+)", subprocess.run(["clang++", "--version"], check=True, capture_output=True, text=True).stdout)
    return f"{tool}-{version.group(1)}"


def summaries(build):
    """File -> its summary, as llvm-cov exports it."""
    profile = build / "tests.profdata"
    raw = sorted((build / "profiles").glob("*.profraw"))
    subprocess.run([llvm("llvm-profdata"), "merge", "-sparse", "--failure-mode=all", "-o", profile, *raw], check=True)
    tests = json.loads(subprocess.run(["meson", "introspect", build, "--targets"], check=True, capture_output=True, text=True).stdout)
    programs = [name for target in tests if target["type"] == "executable" for name in target["filename"] if os.path.exists(name)]
    objects = [part for name in programs[1:] for part in ("-object", name)]
    exported = subprocess.run([llvm("llvm-cov"), "export", "-summary-only", f"-instr-profile={profile}", programs[0], *objects],
                              check=True, capture_output=True, text=True).stdout
    return {pathlib.Path(file["filename"]): file["summary"] for file in json.loads(exported)["data"][0]["files"]}


def share(counts):
    return f"{100 * counts['covered'] / counts['count']:.1f} %" if counts["count"] else "-"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--files", type=int, default=10)
    arguments = parser.parse_args()
    by_folder = collections.defaultdict(lambda: collections.defaultdict(collections.Counter))
    missing = []
    for path, summary in summaries(arguments.build.resolve()).items():
        if not path.is_relative_to(ROOT):
            continue
        name = str(path.relative_to(ROOT))
        folder = re.match(r"(?:include/rankloom|[^/]+)", name).group()
        if (folder not in FOLDERS and folder != "include/rankloom") or LEFT_OUT.match(name):
            continue
        for row in (folder, "all"):
            for kind in ("lines", "branches", "functions"):
                by_folder[row][kind].update({key: summary[kind][key] for key in ("count", "covered")})
        missing.append((summary["lines"]["count"] - summary["lines"]["covered"], name, summary))
    print("| folder | lines | ran | branches | taken | functions called |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for folder in [*FOLDERS, "include/rankloom", "all"]:
        kinds = by_folder[folder]
        print(f"| {folder} | {kinds['lines']['count']:,} | {share(kinds['lines'])} | {kinds['branches']['count']:,} | "
              f"{share(kinds['branches'])} | {share(kinds['functions'])} |")
    print()
    for lines, name, summary in sorted(missing, reverse=True)[:arguments.files]:
        print(f"{lines:5} lines not run in {name} ({share(summary['lines'])} ran)")


if __name__ == "__main__":
    main()
