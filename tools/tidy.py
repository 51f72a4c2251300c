#!/usr/bin/env python3
"""Runs clang-tidy on the sources of a clang build folder, and only on those that changed since they last passed.

    tools/tidy.py CLANG_TIDY BUILD_FOLDER [JOBS]

The folder need not be built: what its sources include and is generated is built here. Sources with one command line are checked
several at once, as a file that includes them: most of what one costs is the headers that all of them include. Those that do not
compile together are checked one by one. A source is known by the content of itself, of every header of ours that it includes,
of .clang-tidy, by its command line, and by the versions of clang-tidy and of the libraries; what passed is remembered for
30 days in the user's cache, for every checkout, as a compiler cache would. Tests are left to the compilers. Errors of the
compiler are findings, so those of -Wthread-safety.
"""

import concurrent.futures
import hashlib
import itertools
import json
import os
import pathlib
import re
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
TOGETHER = 9  # sources at once, as in a sanitizer's build
# The name by which the analyzer knows a file whose includes are sources, and analyzes these (AnalysisManager::isInCodeFile).
UNIFIED = "UnifiedSource"
# Checks that look at the main file only, and what a source has that they look at.
MAIN_FILE_CHECKS = "-*,misc-unused-using-decls,misc-unused-alias-decls"
DECLARES_NAMES = re.compile(r"^ *(using [\w:]+::\w+;|namespace \w+ = )", re.MULTILINE)


def generate_headers(build):
    listing = subprocess.run(
        ["ninja", "-C", build, "-t", "targets", "rule", "CUSTOM_COMMAND"], check=True, capture_output=True, text=True
    ).stdout
    headers = [name for name in listing.split() if name.endswith(".h")]
    if headers:
        subprocess.run(["ninja", "-C", build, *headers], check=True, stdout=subprocess.DEVNULL)


def options_of(entry):
    """An entry's command but for the compiler, and for what it reads and writes."""
    command = shlex.split(entry["command"])
    for option in ("-MF", "-MQ", "-o", "-c"):
        if option in command:
            at = command.index(option)
            del command[at : at + 2]
    return [word for word in command[command.index("clang++") + 1 :] if word != "-MD"]


def included(entry):
    """The files that an object is made from, but for those of the system."""
    command = ["clang++", *options_of(entry), "-MM", entry["file"]]
    rule = subprocess.run(command, cwd=entry["directory"], check=True, capture_output=True, text=True).stdout
    return rule.replace("\\\n", " ").split()[1:]


def fingerprint(entry, salt):
    digest = hashlib.sha256(salt + entry["command"].encode())
    for path in sorted({(pathlib.Path(entry["directory"]) / file).resolve() for file in included(entry)}):
        if ROOT in path.parents:
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def sources_of(build):
    """Source -> its entry among the folder's compile commands; one, however many programs it is part of. No tests."""
    entries = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        if ROOT not in source.parents or source.suffix != ".cc" or build in source.parents:
            continue
        if source.relative_to(ROOT).parts[0] != "tests":
            entries.setdefault(source, entry)
    return entries


def batches(todo, entries):
    """Sources that are checked at once: of one target, neighbours in the tree."""
    for _, alike in itertools.groupby(todo, lambda source: (entries[source]["output"].split(".p/")[0], options_of(entries[source]))):
        alike = list(alike)
        number = -(-len(alike) // TOGETHER)
        for part in range(number):
            yield alike[part * len(alike) // number : (part + 1) * len(alike) // number]


class Tidy:
    """clang-tidy, and how it is run on a build folder's sources."""

    def __init__(self, program, build):
        version = subprocess.run([program, "--version"], check=True, capture_output=True).stdout
        libraries = [subprocess.run(["pkg-config", "--modversion", name], check=False, capture_output=True).stdout for name in LIBRARIES]
        self.analyzer = ["-Xclang", "-analyzer-config", "-Xclang", f"max-nodes={ANALYZER_STEPS}"]
        self.salt = version + b"".join(libraries) + (ROOT / ".clang-tidy").read_bytes() + str(self.analyzer).encode()
        self.program = [program, "--quiet", f"--config-file={ROOT / '.clang-tidy'}"]
        self.folder = build / "tidy"
        self.folder.mkdir(exist_ok=True)

    def run(self, source, entry, *options):
        return subprocess.run(
            [*self.program, *options, source, "--", *options_of(entry), *self.analyzer],
            cwd=entry["directory"],
            capture_output=True,
            text=True,
        )

    def run_together(self, sources, entry):
        """None where they do not compile together."""
        name = self.folder / (hashlib.sha256(str(sources).encode()).hexdigest()[:16] + f"_{UNIFIED}.cc")
        name.write_text("".join(f'#include "{source}"  // NOLINT(bugprone-suspicious-include)\n' for source in sources))
        run = self.run(name, entry, f"--header-filter=^{ROOT}/[a-z_]+/[^ .]*\\.(h|cc)$")
        return None if "[clang-diagnostic-error" in run.stdout + run.stderr else run

    def check(self, sources, entries):
        """(sources, their run) of each run that it takes."""
        together = self.run_together(sources, entries[sources[0]]) if len(sources) > 1 else None
        if together:
            alone = [source for source in sources if DECLARES_NAMES.search(source.read_text())]
            runs = [([source], self.run(source, entries[source], f"--checks={MAIN_FILE_CHECKS}")) for source in alone]
            return [(sources, together), *(item for item in runs if item[1].returncode != 0)]
        return [([source], self.run(source, entries[source])) for source in sources]


def main(arguments):
    build = pathlib.Path(arguments[1]).resolve()
    jobs = int(arguments[2]) if len(arguments) > 2 else os.cpu_count()
    CACHE.mkdir(parents=True, exist_ok=True)
    generate_headers(build)
    tidy = Tidy(arguments[0], build)

    entries = sources_of(build)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        marks = dict(zip(entries, pool.map(lambda entry: CACHE / fingerprint(entry, tidy.salt), entries.values()), strict=True))
    todo = [source for source in entries if not marks[source].exists()]
    for mark in marks.values():
        if mark.exists():
            mark.touch()
    for old in CACHE.iterdir():
        if old.stat().st_mtime < time.time() - REMEMBERED:
            old.unlink(missing_ok=True)

    print(f"clang-tidy: {len(todo)} of {len(marks)} sources to check", flush=True)
    failed = checked = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for runs in pool.map(lambda batch: tidy.check(batch, entries), batches(todo, entries)):
            for sources, run in runs:
                checked += len(sources)
                print(f"[{checked}/{len(todo)}] {' '.join(str(source.relative_to(ROOT)) for source in sources)}", flush=True)
                if run.returncode == 0:
                    for source in sources:
                        marks[source].touch()
                else:
                    failed += len(sources)
                    print(run.stdout + run.stderr, flush=True)
    if failed:
        print(f"clang-tidy: findings above, in at least one of {failed} of {len(todo)} sources")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
