#!/usr/bin/env python3
"""Runs clang-tidy on the sources of a clang build folder, and only on those that changed since they last passed.

    tools/tidy.py BUILD_FOLDER [JOBS]

A source is known by the content of itself, of every header of ours that it includes, of .clang-tidy and of its
command line; what passed is remembered under BUILD_FOLDER/tidy. Tests are left to the compilers.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def dependencies(build):
    """Object -> the files it was made from, as ninja knows them."""
    listing = subprocess.run(["ninja", "-C", build, "-t", "deps"], check=True, capture_output=True, text=True).stdout
    result, current = {}, None
    for line in listing.splitlines():
        if line.startswith("    "):
            current.append(line.strip())
        elif ": #deps" in line:
            current = result.setdefault(line.split(": #deps")[0], [])
    return result


def fingerprint(entry, files, salt):
    digest = hashlib.sha256(salt + entry["command"].encode())
    for path in sorted({(pathlib.Path(entry["directory"]) / f).resolve() for f in [*files, entry["file"]]}):
        if ROOT in path.parents:
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def main(arguments):
    build = pathlib.Path(arguments[0]).resolve()
    jobs = int(arguments[1]) if len(arguments) > 1 else os.cpu_count()
    version = subprocess.run(["clang-tidy", "--version"], check=True, capture_output=True).stdout
    salt = version + (ROOT / ".clang-tidy").read_bytes()
    made_from, passed = dependencies(build), build / "tidy"
    passed.mkdir(exist_ok=True)

    todo, marks = [], set()
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        if ROOT not in source.parents or source.suffix != ".cc" or build in source.parents:
            continue
        if source.relative_to(ROOT).parts[0] == "tests":
            continue
        mark = passed / fingerprint(entry, made_from.get(entry["output"], []), salt)
        marks.add(mark)
        if not mark.exists():
            todo.append((source, mark))
    for old in set(passed.iterdir()) - marks:
        old.unlink()

    def tidy(item):
        source, mark = item
        run = subprocess.run(["clang-tidy", "--quiet", "-p", build, source], capture_output=True, text=True)
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
