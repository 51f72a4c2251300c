#!/usr/bin/env python3
"""Which lines and branches of the core its tests reach, by folder and by file, of a build that counts them.

    tools/coverage.py FOLDER [--uncovered FILE]

FOLDER: a build by clang with -fprofile-instr-generate -fcoverage-mapping, in whose `profiles` its tests have left theirs; `./dev coverage`
makes both. Prints a table by folder, and the files below 95 % of lines. --uncovered: the lines of a file that no test reached.
A process that ends by _exit(), by a signal or abort() leaves no counts: what only death tests and processes of explore() reach is missing.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ["sim", "fake_store", "world", "collectives", "harness", "include"]
# Compiled for MPI and CUDA, which a build with counters does without.
LEFT_OUT = ["collectives/cuda/", "collectives/mpi/"]
AIM = 95


def tool(name: str, clang: str) -> str:
    """The LLVM tool of the compiler's version: others do not read its profiles."""
    told = subprocess.run([clang, "-dumpversion"], capture_output=True, text=True, check=True).stdout
    for one in (f"{name}-{told.split('.')[0]}", name):
        if shutil.which(one):
            return one
    sys.exit(f"coverage: no {name} of {clang} {told.strip()}, want Debian's package llvm")


def merged(folder: pathlib.Path, clang: str) -> pathlib.Path:
    raw = sorted(str(path) for path in (folder / "profiles").glob("*.profraw"))
    if not raw:
        sys.exit(f"coverage: no profiles in {folder}/profiles: run its tests with LLVM_PROFILE_FILE={folder}/profiles/%m.profraw")
    listed, into = folder / "profiles" / "list", folder / "profiles" / "merged.profdata"
    listed.write_text("\n".join(raw))
    subprocess.run([tool("llvm-profdata", clang), "merge", "-sparse", "-f", str(listed), "-o", str(into)], check=True)
    return into


def programs(folder: pathlib.Path) -> list[str]:
    """Those of the tests: `llvm-cov` adds up what they have in common."""
    tests = json.loads(subprocess.run(["meson", "introspect", str(folder), "--targets"], capture_output=True, text=True, check=True).stdout)
    files = [file for target in tests if target["type"] == "executable" for file in target["filename"]]
    return [file for file in files if pathlib.Path(file).exists()]


def cov(folder: pathlib.Path, clang: str, command: list[str]) -> str:
    first, *others = programs(folder)
    objects = [part for path in others for part in ("-object", path)]
    done = subprocess.run([tool("llvm-cov", clang), *command, first, *objects, f"-instr-profile={merged(folder, clang)}"],
                          cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"coverage: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def share(part: dict[str, int]) -> str:
    return f"{100 * part['covered'] / part['count']:.1f} %" if part["count"] else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--clang", default="clang++")
    parser.add_argument("--uncovered", metavar="FILE")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.uncovered:
        text = cov(folder, options.clang, ["show", f"-sources={ROOT / options.uncovered}"])
        for line in text.splitlines():
            number, _, rest = line.partition("|")
            count, _, code = rest.partition("|")
            if number.strip().isdigit() and count.strip() == "0":
                print(f"{options.uncovered}:{number.strip()}: {code}")
        return 0
    files = json.loads(cov(folder, options.clang, ["export", "-summary-only"]))["data"][0]["files"]
    rows: dict[str, dict[str, dict[str, int]]] = {}
    low = []
    for file in files:
        path = pathlib.Path(file["filename"])
        if not path.is_relative_to(ROOT):
            continue
        name = str(path.relative_to(ROOT))
        top = name.split("/")[0]
        if top not in FOLDERS or name.startswith(tuple(LEFT_OUT)):
            continue
        lines = file["summary"]["lines"]
        if 100 * lines["covered"] < AIM * lines["count"]:
            low.append((lines["count"] - lines["covered"], name, share(lines)))
        for key in (top, "all"):
            for what in ("lines", "branches"):
                row = rows.setdefault(key, {}).setdefault(what, {"count": 0, "covered": 0})
                for part in row:
                    row[part] += file["summary"][what][part]
    print("| folder | lines | of them reached | branches | of them reached |\n| --- | ---: | ---: | ---: | ---: |")
    for key in [*(one for one in FOLDERS if one in rows), "all"]:
        lines, branches = rows[key]["lines"], rows[key]["branches"]
        print(f"| {key} | {lines['count']} | {share(lines)} | {branches['count']} | {share(branches)} |")
    print(f"\nbelow {AIM} % of lines, by how many are missing:")
    for missing, name, part in sorted(low, reverse=True):
        print(f"  {missing:5} {part:>8} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
