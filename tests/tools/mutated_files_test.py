"""Run files and traces that were changed at random: the command `rankloom` refuses each in a line, or shows it.

mutated_files_test.py WRITE_RUNS [SECONDS [SEED]]
mutated_files_test.py WRITE_RUNS FILE...

Without SECONDS 400 changes of each file, the same every time; with it, changes for so long in all, and a seed of the day. Where one
fails, the file stays in the folder for such files as mutated-SUM.rlrun or .rltrace, which the test prints. FILE: such files, alone.
"""

import contextlib
import hashlib
import io
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time
import tracemalloc
import unicodedata
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path += [str(ROOT / "tools")]
sys.path += [str(ROOT / "tests" / "tools")]
import small_runs  # noqa: E402
from rankloom_command import command, page, run_file, text, trace  # noqa: E402

WRITE_RUNS = ""
SECONDS = 0.0
FILES: list[str] = []
SEED = 1
CHANGES = 400
RUNS = ("deadlock", "explored", "faults", "store", "hostile")
MOST_SECONDS = 10  # of processor time for one file, far more than any takes
# Of memory for a byte of a file, which may be a rank that waits and has a failed assertion: entries of Python's dictionaries.
MOST_TIMES = 200
MOST_MORE = 16 << 20
LONG_FILE = 1_000_000  # bytes
# Of JSON and of run files: a change that puts one in is more often a file than one that puts bytes in.
WORDS = [
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\n",
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e400",
    b"1.5",
    b"9223372036854775807",
    b"9" * 30,
    b"\\ud800",
    b"\\u0000",
    b"\xff",
    b"</script>",
    b"\x1b[31m",
    b'"ranks":[[0,0]]',
    b'"t":"end"',
    b'"t":"calls"',
    b"[0,4294967295]",
    b"NaN",
]
NUMBER = re.compile(rb"-?\d+")
TURNING = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


def changed_bytes(data, random_of):
    """One to four changes: a byte, a cut, a repeated part, a part of elsewhere."""
    data = bytearray(data)
    for _ in range(random_of.randint(1, 4)):
        at, end = sorted(random_of.randrange(len(data) + 1) for _ in range(2))
        end = min(end, at + random_of.choice((1, 8, 64, 4096)))
        kind = random_of.randrange(5)
        if kind == 0:
            data[at:end] = b""
        elif kind == 1:
            data[at:at] = data[at:end]
        elif kind == 2:
            data[at : at + 1] = bytes([random_of.randrange(256)])
        elif kind == 3:
            other = random_of.randrange(len(data) + 1)
            data[at:end] = data[other : other + end - at]
        else:
            data[at:at] = random_of.choice(WORDS)
    return bytes(data)


def changed_lines(data, random_of):
    """A number or a word of one line replaced, or a line left out, doubled or moved; the last line counts rightly all the same."""
    lines = data.split(b"\n")[:-1]
    i, j = random_of.randrange(len(lines)), random_of.randrange(len(lines))
    kind = random_of.randrange(6)
    if kind == 0:
        del lines[i]
    elif kind == 1:
        lines.insert(j, lines[i])
    elif kind == 2:
        lines[i], lines[j] = lines[j], lines[i]
    else:
        places = [found.span() for found in NUMBER.finditer(lines[i])]
        begin, end = random_of.choice(places) if places else (0, 0)
        value = random_of.choice((*WORDS, b"%d" % random_of.randrange(100), b"%d" % random_of.randrange(-(2**63), 2**63)))
        lines[i] = lines[i][:begin] + value + lines[i][end:]
    if lines and random_of.randrange(8):
        lines[-1] = re.sub(rb'"lines":-?\d+', b'"lines":%d' % len(lines), lines[-1])
    return b"".join(line + b"\n" for line in lines)


def with_sum(body):
    """A trace's sum, without which nothing else of it is looked at."""
    return body + trace._fnv1a(body).to_bytes(8, "little")


def shown_run(data, whole):
    """The texts of a run file, alone and beside a whole one."""
    run = run_file.parse(data, "x.rlrun")
    page.page([run, whole]).encode()
    return [text.show(run), text.show(run, 0) if run.world_size else "", text.diff(run, whole)[0], text.diff(whole, run)[0]]


def shown_trace(data):
    trace.parse(data, "x.rltrace")
    return [of_command(data, "x.rltrace", *options)[1] for options in ([], ["--all"])]


def of_command(data, name, *options):
    """The command `rankloom` on a file called `name`: (exit code, standard output, standard error)."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        path = pathlib.Path(folder, name)
        path.write_bytes(data)
        code = command.main(["trace" if path.suffix == ".rltrace" else "show", str(path), *options])
    return code, out.getvalue(), err.getvalue()


def obeyed(printed):
    """Characters that a terminal obeys, or that turn the direction of a line; ends of lines and tabs are none."""
    return {c for c in set(printed) - {"\n", "\t"} if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(c) in TURNING}


# The command as its own process, which writes how much memory it held at most, in kB, and its processor time. Linux tells.
MEASURED = """
import pathlib, re, sys, time
sys.path.insert(0, sys.argv.pop(1))
from rankloom_command.command import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1], time.process_time(), file=sys.stderr)
sys.exit(code)
"""


def memory_and_time(*arguments):
    """The most memory of `rankloom ARGUMENT...`, in bytes, and its seconds of processor time."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", MEASURED, ROOT / "tools", *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    kilobytes, seconds = done.stderr.split()[-2:]
    return int(kilobytes) * 1024, float(seconds)


def numbers(number, count):
    return json.dumps([number] * count, separators=(",", ":")).encode()


def with_line(line, states="rr"):
    """A run file with one more line in it."""
    lines = small_runs.run_file({"ok": False}, states, {"t": "kinds", "kinds": [small_runs.kind("reduce", 1, 1, root=1)]}).splitlines(True)
    return b"".join([*lines[:-1], line + b"\n", json.dumps({"t": "end", "lines": len(lines) + 1}).encode() + b"\n"])


def many_calls_of_many_sizes():
    """Ranks that did not return, each with calls of a kind with as many sizes as half of the file has room for."""
    ranks = LONG_FILE // 1000
    kind = small_runs.kind("reduce" * 1000, 1, 1, **{"in": [[1] * (LONG_FILE // 6)]})
    of_ranks = [small_runs.calls(rank, *((0, rank + i, 1, 1, "f") for i in range(10))) for rank in range(ranks)]
    return small_runs.run_file({"ok": False}, "s" * ranks, {"t": "kinds", "kinds": [kind]}, *of_ranks)


def many_waits_of_all():
    ranks = LONG_FILE // 2
    wait = {"ranks": [[0, ranks - 1]] * (ranks // 16), "for": [], "task": "", "what": "", "group": "", "seq": 0, "detail": "", "remark": ""}
    line = json.dumps({"t": "waits", "waits": [{**wait, "file": "", "line": 0}], "cycle": []}, separators=(",", ":"))
    return with_line(line.encode(), "s" * ranks)


def many_failures_of_all():
    ranks = LONG_FILE // 2
    failure = "a.cc:1: " + "ranks 0-999999999: x\n" * 800
    return small_runs.run_file({"ok": False, "failures": [failure] * (ranks // len(failure))}, "r" * ranks)


# By name: files that are long, and show whether a reader takes memory or time out of proportion.
LONG_FILES = {
    "lists": lambda: with_line(b'{"t":"notes","notes":[' + b",".join([b"[]"] * (LONG_FILE // 3)) + b"]}"),
    "lists in lists": lambda: with_line(b'{"t":"later","x":[' + b",".join([b"[" * 900 + b"]" * 900] * (LONG_FILE // 1801)) + b"]}"),
    "objects in objects": lambda: with_line(b'{"t":"later","x":[' + b",".join([b'{"":' * 900 + b"0" + b"}" * 900] * (LONG_FILE // 4502)) + b"]}"),
    "numbers": lambda: with_line(b'{"t":"later","x":' + numbers(300, LONG_FILE // 4) + b"}"),
    "wide text": lambda: with_line('{"t":"later","x":"\U0001f600'.encode() + b"x" * LONG_FILE + b'"}'),
    "calls of many sizes": many_calls_of_many_sizes,
    "waits of all": many_waits_of_all,
    "failures of all": many_failures_of_all,
    "steps": lambda: with_sum(trace.MAGIC + b"\0\1\0" + b"\xa0\x8d\x06" + b"\0\0\2\0\0\2" * 100_000),
    "names": lambda: with_sum(trace.MAGIC + b"\0" + b"\xc0\x84\x3d" + b"\0" * LONG_FILE + b"\0"),
}


class MutatedFilesTest(unittest.TestCase):
    looked_at = 0

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        subprocess.run([WRITE_RUNS, cls.folder], check=True)

    @classmethod
    def tearDownClass(cls):
        if SECONDS:
            print(f"stat::number_of_executed_units: {cls.looked_at}")  # as libFuzzer says it

    def changes(self, data, *changing):
        """Changed files, CHANGES of them or for the file's part of SECONDS."""
        random_of, begin, done = random.Random(SEED), time.monotonic(), 0
        while time.monotonic() - begin < SECONDS / (len(RUNS) + 1) if SECONDS else done < CHANGES:
            yield random_of.choice(changing)(data, random_of)
            done += 1

    def look(self, data, name, read_and_show):
        """read_and_show(data): the texts; RunFileError is a refusal, which the command says in one line. True: it was shown."""
        begin = time.process_time()
        type(self).looked_at += 1
        try:
            try:
                shown = read_and_show(data)
            except run_file.RunFileError:
                shown = None
            self.assertLess(time.process_time() - begin, MOST_SECONDS)
            if shown is None:
                code, out, said = of_command(data, name)
                self.assertEqual((code, out, obeyed(said)), (2, "", set()))
                self.assertRegex(said, rf'^rankloom: file "[^"]*/{name}": [^\n]{{1,1000}}\n$')
                return False
            for printed in shown:
                self.assertEqual(obeyed(printed), set())
            return True
        except Exception:
            kept = pathlib.Path(tempfile.gettempdir()) / f"mutated-{hashlib.sha1(data).hexdigest()}{pathlib.Path(name).suffix}"
            kept.write_bytes(data)
            print(f"seed {SEED}: the file is {kept}", file=sys.stderr)
            raise

    def test_changed_runs_are_refused_or_shown(self):
        counts = {True: 0, False: 0}
        for name in RUNS:
            data = (self.folder / f"{name}.rlrun").read_bytes()
            whole = run_file.parse(data, "whole.rlrun")

            for changed in self.changes(data, changed_bytes, changed_lines, changed_lines):
                counts[self.look(changed, "x.rlrun", lambda data, whole=whole: shown_run(data, whole))] += 1
        self.assertGreater(min(counts.values()), 50, counts)

    def test_changed_traces_are_refused_or_shown(self):
        steps = b"".join(bytes([kind, 0, rank + 2, 3, 1, rank + 2]) for kind in range(5) for rank in range(-1, 9))
        body = trace.MAGIC + b"\x08seeded:7" + b"\x02\x04send\x05start" + b"\x32" + steps
        counts = {True: 0, False: 0}

        self.assertTrue(self.look(with_sum(body), "x.rltrace", shown_trace))
        for changed in self.changes(body, changed_bytes):
            self.assertFalse(self.look(changed, "x.rltrace", shown_trace))
            counts[self.look(with_sum(changed), "x.rltrace", shown_trace)] += 1
        self.assertGreater(min(counts.values()), 20, counts)

    def test_a_damaged_file_takes_no_memory_of_its_own(self):
        """A count that cannot be true, in a file of few bytes."""
        run = (self.folder / "deadlock.rlrun").read_bytes()
        bodies = [
            with_sum(trace.MAGIC + b"\0" + b"\xff" * 9 + b"\x01"),
            with_sum(trace.MAGIC + b"\0\0" + b"\xff" * 9 + b"\x01"),
            with_sum(trace.MAGIC + b"\xff" * 100_000),
            NUMBER.sub(b"4294967295", run),
        ]
        tracemalloc.start()
        try:
            for data in bodies:
                with self.assertRaises(run_file.RunFileError):
                    (run_file if data.startswith(b"{") else trace).parse(data, "x")
                self.assertLess(tracemalloc.get_traced_memory()[1], 10 * len(data) + (16 << 20))
        finally:
            tracemalloc.stop()

    def test_a_long_file_takes_memory_and_time_in_proportion(self):
        if SECONDS or not pathlib.Path("/proc/self/status").exists():
            self.skipTest("the same every time" if SECONDS else "no /proc")
        short, long = self.folder / "short.rlrun", self.folder / "long"
        short.write_bytes(with_line(b'{"t":"later"}'))
        page_of = ("--no-source", "-o", self.folder / "long.html")
        base, _ = memory_and_time("report", short, *page_of)
        for name, make in LONG_FILES.items():
            data = make()
            long.write_bytes(data)
            for arguments in [("trace", long)] if data.startswith(trace.MAGIC) else [("show", long), ("report", long, *page_of)]:
                with self.subTest(name, command=arguments[0]):
                    memory, seconds = memory_and_time(*arguments)
                    self.assertLess(memory - base, MOST_TIMES * len(data) + MOST_MORE)
                    self.assertLess(seconds, MOST_SECONDS)


class GivenFilesTest(unittest.TestCase):
    def test_given_files_are_refused_or_shown(self):
        look = MutatedFilesTest("look").look
        for path in map(pathlib.Path, FILES):
            data = path.read_bytes()
            is_trace = path.suffix == ".rltrace"
            whole = run_file.parse(with_line(b'{"t":"later"}'), "whole.rlrun")
            said = look(data, f"x{path.suffix}", shown_trace if is_trace else lambda changed, whole=whole: shown_run(changed, whole))
            print(f"{path}: {'shown' if said else 'refused'}")


if __name__ == "__main__":
    WRITE_RUNS = str(pathlib.Path(sys.argv.pop(1)).resolve())
    tests = "MutatedFilesTest"
    if len(sys.argv) > 1 and pathlib.Path(sys.argv[1]).exists():
        FILES, tests = sys.argv[1:], "GivenFilesTest"
        del sys.argv[1:]
    elif len(sys.argv) > 1:
        SECONDS = float(sys.argv.pop(1))
        SEED = int(sys.argv.pop(1)) if len(sys.argv) > 1 else int(time.time() // 86400)
        print(f"seed {SEED}")
    unittest.main(defaultTest=tests)
