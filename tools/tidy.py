#!/usr/bin/env python3
"""Runs clang-tidy on the sources of a clang build folder, and only on those that changed since they last passed.

    tools/tidy.py CLANG_TIDY BUILD_FOLDER [JOBS]

The folder need not be built: what its sources include and is generated is built here. A source is known by the content of
itself, of every header of ours that it includes, of .clang-tidy, by its command line, and by the versions of clang-tidy and of
the libraries; what passed is remembered for 30 days in the user's cache, for every checkout, as a compiler cache would.
Tests are left to the compilers. Errors of the compiler are findings, so those of -Wthread-safety.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


# The analyzer gives a function up after so many steps. Its default of 225000 takes three times the time.
ANALYZER_STEPS = 10000
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "rankloom" / "tidy"
REMEMBERED = 30 * 24 * 3600  # seconds
LIBRARIES = ["absl_base", "benchmark", "gtest", "libhwy", "protobuf-lite", "tbb"]


def generate_headers(build):
    listing = subprocess.run(
        ["ninja", "-C", build, "-t", "targets", "rule", "CUSTOM_COMMAND"], check=True, capture_output=True, text=True
    ).stdout
    headers = [name for name in listing.split() if name.endswith(".h")]
    if headers:
        subprocess.run(["ninja", "-C", build, *headers], check=True, stdout=subprocess.DEVNULL)


def included(entry):
    """The files that an object is made from, but for those of the system."""
    command = shlex.split(entry["command"])
    for option in ("-MF", "-MQ", "-o"):
        if option in command:
            at = command.index(option)
            del command[at : at + 2]
    command = [word for word in command if word not in ("-MD", "-c")] + ["-MM"]
    rule = subprocess.run(command, cwd=entry["directory"], check=True, capture_output=True, text=True).stdout
    return rule.replace("\\\n", " ").split()[1:]


def fingerprint(entry, salt):
    digest = hashlib.sha256(salt + entry["command"].encode())
    for path in sorted({(pathlib.Path(entry["directory"]) / file).resolve() for file in included(entry)}):
        if ROOT in path.parents:
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def main(arguments):
    program = arguments[0]
    build = pathlib.Path(arguments[1]).resolve()
    jobs = int(arguments[2]) if len(arguments) > 2 else os.cpu_count()
    version = subprocess.run([program, "--version"], check=True, capture_output=True).stdout
    arguments = ["-Xclang", "-analyzer-config", "-Xclang", f"max-nodes={ANALYZER_STEPS}"]
    command = [program, "--quiet", "-p", build, *(f"--extra-arg={argument}" for argument in arguments)]
    libraries = [subprocess.run(["pkg-config", "--modversion", name], check=False, capture_output=True).stdout for name in LIBRARIES]
    salt = version + b"".join(libraries) + (ROOT / ".clang-tidy").read_bytes() + str(arguments).encode()
    CACHE.mkdir(parents=True, exist_ok=True)
    generate_headers(build)

    entries = {}  # of each source one, however many programs it is part of
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        if ROOT not in source.parents or source.suffix != ".cc" or build in source.parents:
            continue
        if source.relative_to(ROOT).parts[0] != "tests":
            entries.setdefault(source, entry)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        marks = list(pool.map(lambda entry: CACHE / fingerprint(entry, salt), entries.values()))
    todo = [(source, mark) for source, mark in zip(entries, marks, strict=True) if not mark.exists()]
    for mark in marks:
        if mark.exists():
            mark.touch()
    for old in CACHE.iterdir():
        if old.stat().st_mtime < time.time() - REMEMBERED:
            old.unlink(missing_ok=True)

    def tidy(item):
        source, mark = item
        run = subprocess.run([*command, source], capture_output=True, text=True)
        if run.returncode == 0:
            mark.touch()
        return source, run

    print(f"clang-tidy: {len(todo)} of {len(marks)} sources to check", flush=True)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for number, (source, run) in enumerate(pool.map(tidy, todo), 1):
            print(f"[{number}/{len(todo)}] {source.relative_to(ROOT)}", flush=True)
            if run.returncode != 0:
                failed += 1
                print(run.stdout + run.stderr, flush=True)
    print(f"clang-tidy: {failed} of {len(todo)} sources have findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
