#!/usr/bin/env python3
"""Changes lines of the core one at a time, and tells which changes no test misses.

    tools/mutants.py [--number N] [--seed S] [--folders sim,world] [--jobs N] [--resume] [--reached FILE] [FOLDER]
    tools/mutants.py --table [FOLDER]    only the table, of what FOLDER/results.jsonl has
    tools/mutants.py --again KEY [FOLDER]    that mutant of results.jsonl once more, after a test was added

FOLDER (build-mutants): as many clones of the checkout's HEAD as jobs, each with its build, the environment with universalmutator, and
results.jsonl, one line a mutant. All mutants of all files are listed by universalmutator's rules for C++, and drawn from the seed, one of
each folder of FOLDERS in turn, until N count: a longer draw begins with a shorter one's. Each is put into a clone, its file
compiled, and then tests are linked and run one by one until one fails: those of its room, of its folder, of the folders that include
it. A test that takes ten times as long as without the change has failed. Not counted: mutants that do not compile, and those whose object
is the same as before but for debug information. --resume: those that results.jsonl has are not run again. --reached: what
`./dev coverage` leaves in build-coverage/reached.json; of tests outside the mutant's room those that never reach its line are left out.
"""

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))
from check_layers import LAYERS  # noqa: E402

FOLDERS = ["sim", "fake_store", "world", "collectives"]
MUTATOR = "universalmutator==1.14.1"
RULES = ["universal.rules", "c_like.rules", "cpp.rules"]
# Suites of tests by the folders that they need, from the lowest; `campaign` and `mpi` would take too long for each.
SUITES = ["sim", "fake_store", "world", "collectives", "harness", "explore", "fuzz"]
LEAST_LIMIT = 20  # seconds that any test may take
TIMES_LONGER = 10
# Public headers of the standard library, Abseil and Boost: all that the core includes are compiled once, beforehand.
OF_ALL = re.compile(r"^#include (<(?:[a-z_]+|absl/.*|boost/.*)>)", re.MULTILINE)
NAME = re.compile(r"[A-Za-z_]\w*")
NEW_NAMES = {"break", "continue", "any_of", "all_of", "none_of", "min_element", "max_element"}
# A bracket of a template that became an operator: "vector>=int>", "static_cast==int>".
TEMPLATE = re.compile(r"\b(?:\w+_cast|vector|optional|unique_ptr|shared_ptr|function|span|pair|tuple|map|set|array|StatusOr)(?:[<>=!]=|>)")
LIST = """
import json, sys
from universalmutator import mutator
out = sys.stdout
sys.stdout = sys.stderr
for path in sys.argv[2:]:
    with open(path, encoding="utf-8") as file:
        lines = file.readlines()
    for number, text, rule, _ in mutator.mutants_regexp(lines, sys.argv[1].split(","), ignorePatterns=[], ignoreStringOnly=True):
        print(json.dumps([path, number, lines[number - 1], text]), file=out)
"""


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    before: str
    after: str

    @property
    def folder(self):
        return self.file.split("/")[0]

    @property
    def key(self):
        """A name that stays when others are drawn."""
        return hashlib.sha256(f"{self.file}:{self.line}:{self.after}".encode()).hexdigest()[:12]


def run(command, cwd=None, limit=3600, env=None):
    """(exit code, output); 124: it ran past the limit, and was ended with all that it had started."""
    with subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=limit)
            return process.returncode, output.decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return 124, output.decode(errors="replace")


def must(command, **options):
    code, output = run(command, **options)
    if code != 0:
        sys.exit(f"mutants: {' '.join(map(str, command))}:\n{output[-4000:]}")
    return output


def sources(root, folder):
    """Files of a folder that are compiled, and no public header: those of CUDA need a GPU, those of MPI processes, and of
    Chakra's traces there is a library of its own."""
    found = sorted(path.relative_to(root) for path in (root / folder).rglob("*.cc"))
    return [path.as_posix() for path in found if not {"cuda", "mpi"} & set(path.parts) and path.name != "chakra.cc"]


def may_compile(before, after):
    """Whether a change leaves brackets in pairs and makes no name of its own: most that rules by regular expressions make do not."""
    if any(before.count(a) - before.count(b) != after.count(a) - after.count(b) for a, b in ("()", "[]", "{}")):
        return False
    return set(NAME.findall(after)) <= set(NAME.findall(before)) | NEW_NAMES and not TEMPLATE.search(after)


def mutants_of(lines):
    """From the generator's lines. A comment is no code, and an assertion no behaviour."""
    found = []
    for line in lines:
        path, number, before, after = json.loads(line)
        if before.lstrip().startswith(("//", "assert(", "static_assert(", "#", "using ", "namespace ")):
            continue
        if before.split("//")[0].strip() != after.split("//")[0].strip() and may_compile(before, after):
            found.append(Mutant(path, number, before.rstrip("\n"), after.rstrip("\n")))
    return found


def draw(mutants, folders, seed):
    """All, in an order of the seed, one of each folder in turn."""
    by_folder = {}
    for folder in folders:
        own = sorted((m for m in mutants if m.folder == folder), key=lambda m: (m.file, m.line, m.after))
        random.Random(f"{seed} {folder}").shuffle(own)
        by_folder[folder] = own
    return [own[i] for i in range(max(map(len, by_folder.values()))) for own in by_folder.values() if i < len(own)]


def in_order(tests, mutant, kills, reached):
    """Tests of the mutant's room, its folder, then of the folders right of it; in each, those that have found most so far. `reached`: of
    tests that reach a line, by file and line; None: not known."""
    first = SUITES.index(mutant.folder)
    room = "/".join(mutant.file.split("/")[:-1])
    stem = mutant.file.split("/")[-1].removesuffix(".cc")
    wanted = [test for test in tests if test["suite"] in SUITES[first:]]
    if reached is not None:
        # The line before: a counter stands where a statement begins. A constant, which all may use, has none.
        own = reached.get(mutant.file, {})
        counted = [own[str(line)] for line in (mutant.line - 1, mutant.line) if str(line) in own]
        by = {name for names in counted for name in names}
        wanted = [test for test in wanted if not counted or test["room"] == room or f"{test['suite']}/{test['name']}" in by]
    return sorted(wanted, key=lambda test: (SUITES.index(test["suite"]), test["name"] != f"{stem}_test", test["room"] != room,
                                            -kills.get(test["name"], 0), test["seconds"]))  # fmt: skip


def table(results):
    """By folder: how many were drawn, did not compile, changed nothing, were found and were not."""
    rows = ["| folder | drawn | do not compile | change nothing | count | found | of them by time | survive | found, % |", "| --- |" + " ---: |" * 8]
    for folder in [*FOLDERS, "all"]:
        own = [one for one in results if folder in (one["file"].split("/")[0], "all")]
        if not own:
            continue
        count = {state: sum(one["state"] == state for one in own) for state in ("does not compile", "same object", "found", "survives")}
        counted = count["found"] + count["survives"]
        slow = sum(one["state"] == "found" and one["by_time"] for one in own)
        share = f"{100 * count['found'] / counted:.0f}" if counted else "-"
        rows.append(f"| {folder} | {len(own)} | {count['does not compile']} | {count['same object']} | {counted} | {count['found']} | {slow}"
                    f" | {count['survives']} | {share} |")  # fmt: skip
    return "\n".join(rows)


class Workshop:
    """A clone with its build, in which one mutant is at a time."""

    def __init__(self, folder, number):
        self.folder, self.clone = folder, folder / f"clone{number}"
        self.build = self.clone / "build"
        self.venv = folder / "venv"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("RANKLOOM_")}
        self.environment |= {"CCACHE_NOHASHDIR": "1", "CCACHE_SLOPPINESS": "pch_defines,time_macros"}

    def prepare(self):
        if not (self.venv / "installed").exists():
            must([sys.executable, "-m", "venv", self.venv])
            # Its requirements are those of other ways to mutate than by rules.
            must([self.venv / "bin/pip", "install", "-q", "--no-deps", "--disable-pip-version-check", MUTATOR])
            (self.venv / "installed").touch()
        if not self.clone.exists():
            must(["git", "clone", "-q", "--shared", ROOT, self.clone])
        head = must(["git", "rev-parse", "HEAD"], cwd=ROOT).strip()
        must(["git", "fetch", "-q", "origin", head], cwd=self.clone)
        must(["git", "checkout", "-q", "--force", head], cwd=self.clone)
        if not (self.build / "build.ninja").exists():
            ccache = ["ccache"] if shutil.which("ccache") else []
            environment = self.environment | {"CXX": " ".join([*ccache, os.environ.get("CXX", "g++")])}
            if shutil.which("ld.lld"):
                environment["CXX_LD"] = "lld"
            header = self.folder / "of_all.h"
            header.touch()
            must(["meson", "setup", self.build, "-Dbench=false", "-Dexamples=false", "-Dcuda=disabled", "-Dmpi=", "-Dtests_together=enabled",
                  "-Doptimization=1", "-Ddebug=false", f"-Dcpp_args=['-include', '{header}', '-fpch-preprocess']"],
                 cwd=self.clone, env=environment)  # fmt: skip
            if not header.with_name("of_all.h.gch").exists():
                self.compile_of_all(header)

    def compile_of_all(self, header):
        """The header that all include, compiled: by the flags of a source of the core."""
        texts = [(self.clone / path).read_text(encoding="utf-8") for folder in FOLDERS for path in sources(self.clone, folder)]
        names = sorted({name for text in texts for name in OF_ALL.findall(text)})
        header.write_text("#pragma once\n" + "".join(f"#include {name}\n" for name in names), encoding="utf-8")
        commands = json.loads((self.build / "compile_commands.json").read_text())
        words = iter(next(shlex.split(one["command"]) for one in commands if one["file"].endswith("sim/base/error.cc")))
        flags = []
        for word in words:
            if word in ("-include", "-MQ", "-MF", "-o", "-c"):
                next(words)  # a file of that source's own
            elif word not in ("-MD", "-fpch-preprocess") and pathlib.Path(word).name != "ccache":
                flags.append(word)
        must([*flags, "-x", "c++-header", "-c", header, "-o", f"{header}.gch"], cwd=self.build)

    def listed(self, folders):
        paths = [path for folder in folders for path in sources(self.clone, folder)]
        done = subprocess.run([self.venv / "bin/python", "-c", LIST, ",".join(RULES), *paths], cwd=self.clone, check=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
        return mutants_of(done.stdout.splitlines())

    def tests(self):
        lines = must(["ninja", "-C", self.build, "-t", "targets", "all"]).splitlines()
        self.made = {line.rsplit(":", 1)[0] for line in lines if not line.endswith(": phony")}
        found = []
        for test in json.loads(must(["meson", "introspect", "--tests", self.build])):
            suite = test["suite"][0].split(":")[-1]
            if suite in SUITES:
                # The source of a program, by the name of its test.
                room = next((path.parent.relative_to(self.clone / "tests").as_posix()
                             for path in (self.clone / "tests" / suite).rglob(f"{test['name']}.*")), suite)  # fmt: skip
                found.append({"name": test["name"], "suite": suite, "room": room, "test": test, "seconds": 0.0})
        return sorted(found, key=lambda test: test["name"])

    def ninja(self, *targets, jobs=1, **more):
        return run(["ninja", "-C", self.build, "-j", str(jobs), *targets], env=self.environment | more)

    def targets(self, test):
        """The files that ninja makes for a test: paths among the words of its command, from the folder in which it runs or the build."""
        found = []
        for word in test["test"]["cmd"]:
            for base in (test["test"]["workdir"] or self.build, self.build):
                path = pathlib.Path(os.path.normpath(pathlib.Path(base) / word))
                if self.build in path.parents and path.relative_to(self.build).as_posix() in self.made:
                    found.append(path.relative_to(self.build).as_posix())
                    break
        return found

    def passes(self, test, limit):
        """(whether it passes, whether the time was up, seconds)."""
        begin = time.monotonic()
        environment = self.environment | test["test"]["env"]
        folder = pathlib.Path(test["test"]["workdir"] or self.build)
        folder.mkdir(parents=True, exist_ok=True)
        code, _ = run(test["test"]["cmd"], cwd=folder, limit=limit, env=environment)
        return code == 0, code == 124, time.monotonic() - begin

    def measure(self, tests):
        """How long each takes without a change. One that fails so is left out."""
        for test in list(tests):
            good, _, test["seconds"] = self.passes(test, 600)
            if not good:
                print(f"{test['name']} fails without a change, and is left out", flush=True)
                tests.remove(test)

    def object_of(self, path):
        """Of a source of a library: what ninja makes from it."""
        for name in self.made:
            if name.endswith(path.split("/", 1)[1].replace("/", "_") + ".o") and name.startswith(path.split("/")[0] + "/"):
                return name
        return None

    def code_of(self, target):
        """The object without debug information, which has the columns of the source."""
        bare = self.build / "bare.o"
        must(["objcopy", "--strip-debug", self.build / target, bare])
        return bare.read_bytes()

    def judge(self, mutant, tests, kills, reached):
        """Runs tests on the mutant until one fails: the fields of its result."""
        source = self.clone / mutant.file
        text = source.read_text(encoding="utf-8")
        lines = text.split("\n")
        target = self.object_of(mutant.file)
        if target is None or lines[mutant.line - 1] != mutant.before:
            raise RuntimeError(f"no line {mutant.line} of {mutant.file} to change, or no object of it")
        if self.ninja(target)[0] != 0:
            raise RuntimeError(f"{mutant.file} cannot be compiled without a change")
        before = self.code_of(target)
        lines[mutant.line - 1] = mutant.after
        try:
            source.write_text("\n".join(lines), encoding="utf-8")
            if self.ninja(target, CCACHE_DISABLE="1")[0] != 0:
                return {"state": "does not compile"}
            if self.code_of(target) == before:
                return {"state": "same object"}
            ran = 0
            for test in in_order(tests, mutant, kills, reached):
                targets = self.targets(test)
                if targets and self.ninja(*targets)[0] != 0:  # a change of a constant that another file needs
                    return {"state": "does not compile"}
                good, by_time, _ = self.passes(test, max(LEAST_LIMIT, TIMES_LONGER * test["seconds"]))
                ran += 1
                if not good:
                    kills[test["name"]] = kills.get(test["name"], 0) + 1
                    return {"state": "found", "by": test["name"], "by_time": by_time, "tests": ran}
            return {"state": "survives", "tests": ran}
        finally:
            source.write_text(text, encoding="utf-8")


class Row:
    """Mutants in their order, handed out to workshops until `number` count, and what came of them."""

    def __init__(self, drawn, number, results, file):
        self.drawn, self.number, self.results, self.file = drawn, number, results, file
        self.next = 0
        self.lock = threading.Lock()

    def counted(self):
        return sum(one["state"] in ("found", "survives") for one in self.results.values())

    def take(self):
        with self.lock:
            while self.next < len(self.drawn) and self.counted() < self.number:
                mutant = self.drawn[self.next]
                self.next += 1
                if mutant.key not in self.results:
                    return mutant
        return None

    def stop(self):
        """Mutants that are being run are the last."""
        with self.lock:
            self.next = len(self.drawn)

    def give(self, mutant, result):
        with self.lock:
            self.results[mutant.key] = result
            self.file.write(json.dumps(result) + "\n")
            self.file.flush()
            print(f"{self.counted()}/{self.number} {mutant.file}:{mutant.line} {result['state']} {result.get('by', '')} {result['seconds']} s\n"
                  f"  - {mutant.before.strip()}\n  + {mutant.after.strip()}", flush=True)  # fmt: skip


def work(shop, row, tests, kills, reached):
    while (mutant := row.take()) is not None:
        begin = time.monotonic()
        result = dataclasses.asdict(mutant) | {"key": mutant.key} | shop.judge(mutant, tests, kills, reached)
        row.give(mutant, result | {"seconds": round(time.monotonic() - begin, 1)})


def read_results(path):
    """The last line of each mutant."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {one["key"]: one for one in map(json.loads, lines)}


def arguments():
    parser = argparse.ArgumentParser(description="Mutants of the core, and which of them tests find.")
    parser.add_argument("folder", nargs="?", default=ROOT / "build-mutants", type=pathlib.Path)
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--folders", default=",".join(FOLDERS), help="of the core, with commas")
    parser.add_argument("--suites", default=",".join(SUITES), help="tests of these only")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--resume", action="store_true", help="results.jsonl goes on")
    parser.add_argument("--reached", metavar="FILE", type=pathlib.Path, help="of ./dev coverage: tests by the lines that they reach")
    parser.add_argument("--again", metavar="KEY", help="this one mutant of results.jsonl")
    parser.add_argument("--table", action="store_true", help="nothing is run")
    return parser.parse_args()


def main():
    options = arguments()
    assert set(FOLDERS) <= set(LAYERS)
    options.folder = options.folder.resolve()
    results_path = options.folder / "results.jsonl"
    if options.table:
        print(table(list(read_results(results_path).values())))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    results = read_results(results_path) if options.resume or options.again else {}
    shops = [Workshop(options.folder, number) for number in range(1 if options.again else options.jobs)]
    for shop in shops:
        shop.prepare()
    folders = options.folders.split(",")
    if options.again:
        kept = results.pop(options.again)
        drawn = [Mutant(kept["file"], kept["line"], kept["before"], kept["after"])]
    else:
        every = shop.listed(folders)
        drawn = draw(every, folders, options.seed)
        print(f"{len(every)} mutants, in an order of seed {options.seed}", flush=True)
    reached = json.loads(options.reached.read_text(encoding="utf-8")) if options.reached else None
    by_shop = [[test for test in shop.tests() if test["suite"] in options.suites.split(",")] for shop in shops]
    for shop, tests in zip(shops, by_shop, strict=True):
        code, output = shop.ninja(*sorted({target for test in tests for target in shop.targets(test)}), jobs=options.jobs)
        if code != 0:
            sys.exit(f"mutants: without a change tests cannot be built:\n{output[-4000:]}")
    shops[0].measure(by_shop[0])
    measured = {(test["suite"], test["name"]): test["seconds"] for test in by_shop[0]}
    by_shop = [[test | {"seconds": measured[one]} for test in tests if (one := (test["suite"], test["name"])) in measured] for tests in by_shop]
    kills = {}
    with results_path.open("a" if results or options.again else "w", encoding="utf-8") as file:
        row = Row(drawn, len(results) + 1 if options.again else options.number, results, file)
        with concurrent.futures.ThreadPoolExecutor(len(shops)) as pool:
            working = [pool.submit(work, shop, row, tests, kills, reached) for shop, tests in zip(shops, by_shop, strict=True)]
            try:
                for one in working:
                    one.result()
            finally:
                row.stop()
    print(table(list(results.values())))


if __name__ == "__main__":
    main()
