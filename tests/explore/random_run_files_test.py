"""Run files of programs that are drawn read back as what the library says of the same runs.

    random_run_files_test.py WRITE_RANDOM_RUNS
"""

import collections
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.append(str(ROOT / "tools"))
from rankloom_command import page, run_file, text  # noqa: E402

PROGRAM = ""
COUNT = 400
# The library's letters. An operation that the run's end made fail is shown as not complete.
LETTERS = {"open": "s", "done": "c", "failed": "f", "not complete": "f"}


def as_the_library_says_it(call):
    said = f"{call.rank} {call.op} seq {call.seq}"
    if call.p2p and call.peer >= 0:
        said += f" {'to' if call.op == 'send' else 'from'} rank {call.peer}"
    if call.p2p and call.tag:
        said += f"{',' if call.peer >= 0 else ''} tag {call.tag}"
    return f"{said} ({call.state}) [group {call.group}, {call.site()}]"


def lists_text(lists):
    return " ".join(str(list(numbers)) for numbers in lists)


def facts_text(run, call, kind):
    group = run.groups[kind["group"]]
    members = group["ranks"] if "ranks" in group else [group["first"] + group["stride"] * i for i in range(group["size"])]
    return (
        f"{call.dtype} root {call.root} in {lists_text(call.inputs)} out {lists_text(call.outputs)} splits {lists_text(call.splits)} "
        f"timeout {kind.get('timeout_ns', -1)} members {' '.join(map(str, members))}"
    )


def log_as_the_library_says_it(run):
    for rank in range(run.world_size):
        for i, call in enumerate(run.of_rank(rank)):
            facts = facts_text(run, call, run.kinds[run.calls[rank]["kind"][i]])
            yield f"{rank} call {call.step} {call.done} at {call.issued} {call.arrived} {call.ended} {facts}"
        for op in run.store_of(rank):
            values = " ".join(f"'{value or ''}' {size}" for value, size in ((op.given, op.given_bytes), (op.got, op.got_bytes)))
            yield f"{rank} store {op.op} '{op.key}' {op.keys} {values} {LETTERS[op.state]} {op.step} {op.done}"


def end_as_the_library_says_it(run):
    circle = "".join(f" {rank}" for rank in run.cycle)
    numbers = f"{run.run['first_failed']} {run.run['steps']} {run.run['choices']}"
    return f"{run.states}\n{numbers}\ncycle{circle}\n{run.run['schedule']}\n{run.run['text']}\n"


class RandomRunFilesTest(unittest.TestCase):
    def test_what_is_read_is_what_was_recorded(self):
        ends = collections.Counter()
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([PROGRAM, folder, "1", str(COUNT)], check=True)
            for seed in range(1, COUNT + 1):
                with self.subTest(seed=seed):
                    run = run_file.read(f"{folder}/{seed}.rlrun")
                    calls = [call for rank in range(run.world_size) for call in run.of_rank(rank)]
                    want = pathlib.Path(f"{folder}/{seed}.txt").read_text().splitlines()
                    self.assertEqual([as_the_library_says_it(call) for call in calls], want)
                    end = pathlib.Path(f"{folder}/{seed}.end").read_text()
                    self.assertEqual(end_as_the_library_says_it(run), end)
                    log = pathlib.Path(f"{folder}/{seed}.log").read_text().splitlines()
                    self.assertEqual(list(log_as_the_library_says_it(run)), log)
                    for rank in range(run.world_size):
                        steps = [call.step for call in run.of_rank(rank)]
                        self.assertEqual(steps, sorted(steps))
                        ends["operations"] += len(run.store_of(rank))
                    for call in calls:
                        ends["splits"] += bool(call.splits)
                        ends["roots"] += call.root >= 0
                        ends["lists"] += max(len(call.inputs), len(call.outputs)) > 1
                        ends["dtypes"] += call.dtype != "float16"  # what a call without tensors has
                    for call in calls:
                        self.assertTrue(0 <= call.step <= run.run["steps"], call)
                        self.assertTrue(call.done == -1 or call.step <= call.done <= run.run["steps"], call)
                        self.assertEqual(call.done == -1, call.state == "scheduled", call)
                        self.assertGreaterEqual(call.issued, 0, call)
                        self.assertTrue(call.ended == -1 or call.issued <= call.ended, call)
                        self.assertTrue(call.arrived == -1 or call.issued <= call.arrived <= call.ended, call)
                        self.assertEqual(call.ended == -1, call.state == "scheduled", call)
                    for send, recv in run.matches():
                        self.assertEqual((send.rank, send.tag, send.group), (recv.peer, recv.tag, recv.group))
                    self.assertTrue(text.show(run).encode())
                    self.assertTrue(page.page_data([run]).isascii())
                    ends[run.run["kind"] or run.states.strip("r")[:1]] += 1
                    ends["calls"] += len(calls)
                    ends["matches"] += len(run.matches())
        print(dict(ends))
        self.assertGreater(ends["calls"], COUNT)
        self.assertGreater(ends["matches"], COUNT // 20)
        self.assertGreater(ends["operations"], COUNT // 20)
        for what in ("splits", "roots", "lists", "dtypes"):
            self.assertGreater(ends[what], 0, what)
        self.assertGreater(ends["Deadlock"], 0)
        self.assertGreater(ends[""], 0)


if __name__ == "__main__":
    PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
