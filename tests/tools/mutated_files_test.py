"""Run files and traces that were changed at random: the command `rankloom` refuses each in a line, or shows it.

mutated_files_test.py WRITE_RUNS [SECONDS [SEED]]

Without SECONDS 400 changes of each file, the same every time; with it, changes for so long, and a seed of the day. Where one fails,
the file stays as FOLDER/mutated.rlrun or .rltrace, which the test prints.
"""

import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time
import tracemalloc
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path += [str(ROOT / "tools")]
from rankloom_command import page, run_file, text, trace  # noqa: E402

WRITE_RUNS = ""
SECONDS = 0.0
SEED = 1
CHANGES = 400
RUNS = ("deadlock", "explored", "faults", "store", "hostile")
MOST_SECONDS = 10  # of processor time for one file, far more than any takes
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


class MutatedFilesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        subprocess.run([WRITE_RUNS, cls.folder], check=True)

    def changes(self, data, *changing):
        """Changed files, CHANGES of them or for SECONDS."""
        random_of, begin, done = random.Random(SEED), time.monotonic(), 0
        while time.monotonic() - begin < SECONDS if SECONDS else done < CHANGES:
            yield random_of.choice(changing)(data, random_of)
            done += 1

    def look(self, data, name, read_and_show):
        """read_and_show(data): the texts; RunFileError is a refusal, whose text is one line. True: it was shown."""
        begin = time.process_time()
        try:
            try:
                shown = read_and_show(data)
            except run_file.RunFileError as error:
                self.assertRegex(text.plain(str(error)), rf'^file "{name}": [^\n]{{1,1000}}$')
                return False
            for printed in shown:
                self.assertNotRegex(printed.encode(), b"[\0\x1b]")
            return True
        except Exception:
            kept = pathlib.Path(tempfile.gettempdir()) / f"mutated.{name}"
            kept.write_bytes(data)
            print(f"seed {SEED}: the file is {kept}", file=sys.stderr)
            raise
        finally:
            self.assertLess(time.process_time() - begin, MOST_SECONDS)

    def test_changed_runs_are_refused_or_shown(self):
        counts = {True: 0, False: 0}
        for name in RUNS:
            data = (self.folder / f"{name}.rlrun").read_bytes()
            whole = run_file.parse(data, "whole.rlrun")

            def show(changed, whole=whole):
                run = run_file.parse(changed, "x.rlrun")
                page.page([run, whole]).encode()
                return [text.show(run), text.show(run, 0) if run.world_size else "", text.diff(run, whole)[0], text.diff(whole, run)[0]]

            for changed in self.changes(data, changed_bytes, changed_lines, changed_lines):
                counts[self.look(changed, "x.rlrun", show)] += 1
        self.assertGreater(min(counts.values()), 50, counts)

    def test_changed_traces_are_refused_or_shown(self):
        steps = b"".join(bytes([kind, 0, rank + 2, 3, 1, rank + 2]) for kind in range(5) for rank in range(-1, 9))
        body = trace.MAGIC + b"\x08seeded:7" + b"\x02\x04send\x05start" + b"\x32" + steps
        counts = {True: 0, False: 0}

        def show(changed):
            found = trace.parse(changed, "x.rltrace")
            return [text.plain(trace.show(found, all_of_it)) for all_of_it in (False, True)]

        self.assertTrue(self.look(with_sum(body), "x.rltrace", show))
        for changed in self.changes(body, changed_bytes):
            self.assertFalse(self.look(changed, "x.rltrace", show))
            counts[self.look(with_sum(changed), "x.rltrace", show)] += 1
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


if __name__ == "__main__":
    WRITE_RUNS = str(pathlib.Path(sys.argv.pop(1)).resolve())
    if len(sys.argv) > 1:
        SECONDS = float(sys.argv.pop(1))
        SEED = int(sys.argv.pop(1)) if len(sys.argv) > 1 else int(time.time() // 86400)
        print(f"seed {SEED}")
    unittest.main()
