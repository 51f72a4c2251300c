"""Runs the command `rankloom` on files that the library wrote, and on files that nobody should have written.

rankloom_command_test.py WRITE_RUNS
"""

import contextlib
import json
import os
import pathlib
import pty
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.dont_write_bytecode = True
sys.path += [str(ROOT / "tools"), str(ROOT / "tests" / "tools")]
import small_runs  # noqa: E402
from altered_runs import altered  # noqa: E402
from rankloom_command import command as command_line  # noqa: E402
from rankloom_command import man, page, record, run_file, source, text, trace  # noqa: E402

WRITE_RUNS = ""


def command(*arguments):
    program = [sys.executable, str(ROOT / "tools" / "rankloom_command")]
    done = subprocess.run([*program, *map(str, arguments)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


class CommandTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder_object = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder_object.cleanup)
        cls.folder = pathlib.Path(cls.folder_object.name)
        subprocess.run([WRITE_RUNS, cls.folder], check=True)

    def run_of(self, name):
        return run_file.read(str(self.folder / f"{name}.rlrun"))

    # --- what the library wrote comes back

    def test_a_stuck_run_has_its_waits_and_its_circle(self):
        run = self.run_of("deadlock")
        self.assertEqual(run.headline(), "Deadlock: no rank can move")
        self.assertEqual((run.world_size, run.states, run.run["schedule"], run.run["engine"]), (5, "ssssr", "seeded:7", "fibers"))
        self.assertEqual(sorted(run.cycle[:-1]), [0, 1, 2])
        self.assertEqual(run.cycle[0], run.cycle[-1])
        waits = {tuple(wait["ranks"][0]): (wait["what"], wait["for"]) for wait in run.waits}
        self.assertEqual(waits, {(r, r): ("recv", [[(r + 1) % 3] * 2]) for r in range(3)} | {(3, 3): ("recv", [[0, 0]])})
        self.assertTrue(all(wait["file"].endswith("write_runs.cc") and wait["line"] > 0 for wait in run.waits))
        self.assertIn("RANKLOOM_ENGINE=fibers RANKLOOM_SEED=7 ", run.run["rerun"])

    def test_calls_come_back_with_shapes_peers_tags_states_and_times(self):
        run = self.run_of("deadlock")
        calls = run.of_rank(1)
        self.assertEqual([call.op for call in calls], ["all_reduce"] * 3 + ["send", "recv"])
        self.assertEqual([call.seq for call in calls[:3]], [1, 2, 3])
        self.assertEqual((calls[0].inputs, calls[0].dtype, calls[0].state, calls[0].group), (((8,),), "float32", "completed", "0"))
        self.assertEqual((calls[3].peer, calls[3].tag, calls[3].p2p, calls[3].state), (3, 5, True, "completed"))
        self.assertEqual((calls[4].peer, calls[4].state, calls[4].issued), (2, "failed", 2_000_000))
        self.assertRegex(calls[4].site(), r"^write_runs\.cc:\d+$")
        self.assertEqual([(a.rank, a.op, b.rank, b.op, b.tag) for a, b in run.matches()], [(1, "send", 3, "recv", 5)])

    def test_members_and_shapes_that_differ_come_back(self):
        run = self.run_of("mismatch")
        self.assertEqual((run.run["kind"], run.states), ("RankFailed", "ffff"))
        self.assertIn("Mismatch: ", run.headline())
        last = [run.of_rank(rank)[-1] for rank in range(4)]
        self.assertEqual([call.op for call in last], ["all_reduce", "broadcast", "all_reduce", "all_reduce"])
        self.assertEqual([call.inputs or call.outputs for call in last], [((4,),), ((4,),), ((6,),), ((4,),)])
        self.assertEqual((last[0].root, last[1].root), (-1, 0))
        halves = sorted((group["size"], group.get("first"), group.get("ranks")) for group in run.groups if group["size"] == 2)
        self.assertEqual(len(halves), 2, run.groups)

    def test_times_of_the_free_gear_are_there(self):
        run = self.run_of("free")
        self.assertEqual((run.run["schedule"], run.run["rerun"]), ("free", ""))
        for rank in range(4):
            for call in run.of_rank(rank):
                self.assertTrue(call.ended < 0 or call.issued <= call.ended, call)

    def test_an_explored_run_has_its_story(self):
        run = self.run_of("explored")
        self.assertEqual(run.strategy, "exhaustive")
        self.assertIn("place", run.headline())
        self.assertIn("RANKLOOM_", run.run["rerun"])
        self.assertIn("rank 1", run.story)
        self.assertEqual((run.explored["run"], run.explored["found_switches"], len(run.explored["switches"])), (2, 1, 1))
        self.assertEqual(run.explored["shares"], [{"strategy": "exhaustive", "runs": 2, "schedules": 2, "open": 1, "finished": False}])
        # The schedules that begin as the run does grow fewer with each choice, and the run itself is the last, which fails.
        futures, lost = run.explored["futures"], run.explored["lost"]
        self.assertEqual(len(futures), len(run.explored["choices"]) + 1)
        self.assertEqual((futures, lost), (sorted(futures, reverse=True), sorted(lost, reverse=True)))
        self.assertEqual((futures[-1], lost[-1]), (1, 1))
        self.assertEqual(2 * lost[0], futures[0])

    def test_faults_that_struck_are_there(self):
        self.assertEqual(self.run_of("faults").faults, ["crash@rank=1,nth=2"])

    def test_files_say_what_they_do_not_have(self):
        run = self.run_of("dropped")
        self.assertTrue(all(len(run.of_rank(rank)) == 8 for rank in range(4)))
        self.assertEqual(sorted(run.lost()), [0, 1, 2, 3])
        self.assertEqual(run.of_rank(0)[0].index, run.lost()[0])
        self.assertRegex(run.gaps[0], r"^calls: \d+ of \d+ are gone: WorldOptions::recorded_calls is 8$")
        self.assertEqual(run.matches(), [])
        self.assertEqual(self.run_of("not_kept").gaps, ["calls: a run that went well keeps them only with WorldOptions::keep_run"])

    def test_hostile_text_comes_back_as_text(self):
        run = self.run_of("hostile")
        self.assertIn("</script><script>document.title='owned'</script><!--\\xff\x1b[31m\u2028 & \"'\\", run.run["text"])
        self.assertIn("\0behind", run.notes[0])
        shown = text.show(run)
        self.assertNotIn("\0", shown)
        self.assertNotIn("\x1b", shown)
        html = page.page([run])
        self.assertEqual(html.lower().count("</script>"), 2)
        self.assertEqual(html.lower().count("<script"), 2)
        self.assertNotIn("<!--", html)

    # --- the command

    def test_show_says_what_the_report_says_and_the_last_calls(self):
        code, out, _ = command("show", self.folder / "deadlock.rlrun")
        self.assertEqual(code, 0)
        self.assertIn("Deadlock: no rank can move\n", out)
        self.assertIn("cycle: rank 0 -> rank 1 -> rank 2 -> rank 0", out)
        self.assertIn("ranks 0-3 deadlocked; rank 4 returned", out)
        self.assertRegex(out, r"calls of rank 3:\n    \.\.\. 2 before\n    all_reduce seq 3 \[group 0\], float32 \[8\] \(completed, ")
        self.assertEqual(out.count("run it again: "), 1)
        self.assertRegex(out, r"recv seq \d+ from rank 1 \[group 0\], .* \(not complete, 1 ms\) write_runs")
        code, out, _ = command("show", self.folder / "deadlock.rlrun", "--rank", 1)
        self.assertRegex(out, r"send seq \d+ to rank 3, tag 5 \[group 0\], int64 \[2\] -> nothing \(completed")

    def test_show_has_what_ranks_with_failed_assertions_did(self):
        run = run_file.parse(small_runs.saved(), "x")
        out = text.show(run)
        self.assertEqual(out.count("Expected equality of these values"), 1)
        self.assertIn("\nrank 0 returned, 1 assertion failed; rank 1 returned\n  calls of rank 0:\n    store set", out)
        self.assertIn('\n    store num_keys -> "1" (done) write_runs.cc:40\n', out)
        self.assertNotIn("calls of rank 1", out)
        self.assertIn("broadcast seq 1 root 0 [group 0], int32 [1] (completed)", out)  # and not "nothing -> [1]"

    def test_failed_assertions_are_counted_by_rank(self):
        failures = [
            "train.cc:3: ranks 0, 2-3: Expected a\nrank 1, after the world was aborted (4 times): Expected b\n1 more with other values, of rank 2",
            "a/b.cc:10: rank 3: Failed",
            "rank 1's \"x\": 2, want 3",
            "c.cc:1: no rank: rank 1: x",
            "d.cc:1: ranks 2-999999999, 0-999999999: beyond the world",
        ]
        run = run_file.parse(small_runs.run_file({"failures": failures}, "rrrr"), "x")
        self.assertEqual(run.asserted(), {0: 1, 1: 4, 2: 2, 3: 3})
        self.assertEqual(run.endings()["returned, 4 assertions failed"], [1])
        self.assertEqual(self.run_of("deadlock").asserted(), {})

    def test_diff_begins_with_what_came_first(self):
        both = [run_file.parse(data, "x") for data in (small_runs.kept(), small_runs.deleted())]
        out = text.diff(*both)[0]
        self.assertIn(
            "\nstore: the first difference is the 1st operation of rank 1\n"
            '  a: store get "round/0" -> "batch 0" (done) write_runs.cc:47\n  b: store get "round/0" (not complete) write_runs.cc:47\n'
            "calls: the first difference is the 2nd call of rank 1\n",
            out,
        )
        out = text.diff(run_file.parse(small_runs.kept().replace(b'"step": 9', b'"step": 29'), "x"), both[1])[0]
        self.assertIn("\ncalls: the first difference is the 2nd call of rank 1\n", out)

    def test_show_folds_ranks_that_did_the_same_at_other_times(self):
        out = text.show(self.run_of("many"))
        self.assertEqual(out.count("  calls of rank"), 1, out)
        self.assertRegex(out, r"\n  ranks 0-40, 42-63 wait in all_reduce seq 21 for rank 41 \(returned\)[^\n]* \[group 0, write_runs\.cc:\d+\]\n")
        self.assertIn("  calls of ranks 0-40, 42-63; times are those of rank 0:\n    ... 18 before\n", out)
        out = text.show(self.run_of("mismatch"))
        self.assertNotIn(" ns", out)  # no time passed
        self.assertIn("(completed) write_runs.cc:", out)

    def test_show_says_why_nothing_repeats_a_free_run(self):
        self.assertIn("\nno command repeats it: no schedule repeats a free run; RANKLOOM_SEED=1 ", text.show(self.run_of("free")))
        self.assertNotIn("no command repeats it", text.show(self.run_of("deadlock")))

    def test_gaps_tell_what_is_kept_only_if_asked_for(self):
        kept_only = "steps of calls, and operations on the store: kept only with WorldOptions::keep_run or RANKLOOM_REPORT"
        self.assertIn(kept_only, self.run_of("deadlock").gaps)
        for name in ("explored", "store"):
            gaps = self.run_of(name).gaps
            self.assertEqual([gap for gap in gaps if gap.startswith("steps")], [])
            self.assertIn("tensors' values, reduce operators", gaps)

    def test_a_page_does_not_go_where_the_run_is(self):
        path = self.folder / "deadlock.rlrun"
        before = path.read_bytes()
        code, out, err = command("report", path, "-o", path)
        self.assertEqual((code, out, err), (2, "", f'rankloom: file "{path}" is the run itself, want another for the page\n'))
        self.assertEqual(path.read_bytes(), before)

    def test_a_full_disk_is_told_in_a_line(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            program = [sys.executable, str(ROOT / "tools" / "rankloom_command"), "show", str(self.folder / "deadlock.rlrun")]
            done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (2, "rankloom: standard output: No space left on device\n"))

    def test_a_closed_standard_output_is_told_in_a_line(self):
        program = [sys.executable, str(ROOT / "tools" / "rankloom_command"), "show", str(self.folder / "deadlock.rlrun")]
        done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *program], stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (2, "rankloom: standard output: is closed\n"))

    def test_letters_that_the_output_has_not_are_escaped(self):
        page_path = os.fsencode(self.folder) + b"/p\xff.html"
        program = [sys.executable, str(ROOT / "tools" / "rankloom_command"), "report", str(self.folder / "deadlock.rlrun"), "-o", page_path]
        environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
        done = subprocess.run(program, capture_output=True, env=environment, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertIn(b"/p\\xdcff.html: 0.", done.stdout)
        self.assertTrue(os.path.exists(page_path))

    def test_an_endless_file_is_no_run(self):
        code, _, err = command("show", "/dev/zero")
        self.assertEqual((code, err), (2, 'rankloom: file "/dev/zero": no run file: its first line is not that of one\n'))

    def test_a_long_trace_is_cut_in_its_middle(self):
        body = trace.MAGIC + b"\x08seeded:7" + b"\x01\x04send" + b"\x2d" + b"".join(bytes([0, 0, 3, 4, n, 5]) for n in range(45))
        path = self.folder / "long.rltrace"
        path.write_bytes(body + trace._fnv1a(body).to_bytes(8, "little"))
        code, out, _ = command("trace", path)
        numbers = [line.split(":")[0].strip() for line in out.splitlines()[1:]]
        self.assertEqual((code, numbers), (0, [*map(str, range(20)), "... 5 more", *map(str, range(25, 45))]))
        self.assertEqual(command("trace", path, "--all")[1].count("\n"), 46)

    def test_an_endless_file_is_no_trace(self):
        code, _, err = command("trace", "/dev/zero")
        self.assertEqual((code, err), (2, 'rankloom: file "/dev/zero": no trace of version 1: it does not begin with RLTRACE1\n'))

    def test_what_a_file_says_twice_is_refused(self):
        data = run_file.read_bytes(str(self.folder / "deadlock.rlrun"))
        calls = next(line for line in data.split(b"\n") if b'"t":"calls"' in line)
        with self.assertRaisesRegex(run_file.RunFileError, "calls of rank 0 once more"):
            run_file.parse(data.replace(calls, calls + b"\n" + calls), "twice.rlrun")
        for tag, why in (("groups", "groups behind the calls"), ("kinds", "kinds of calls behind the calls")):
            line = next(line for line in data.split(b"\n") if f'"t":"{tag}"'.encode() in line)
            empty = json.dumps({"t": tag, tag: []}).encode()
            for again in (line, empty):
                with self.assertRaisesRegex(run_file.RunFileError, why):
                    run_file.parse(data.replace(calls, calls + b"\n" + again), "twice.rlrun")
        with self.assertRaisesRegex(run_file.RunFileError, "no run file: its first line"):
            run_file.parse(data.replace(b'{"rlrun":1', b'{"rlrun":true', 1), "true.rlrun")

    def test_splits_of_one_tensor_come_back(self):
        calls = [self.run_of("splits").of_rank(rank)[0] for rank in range(4)]
        self.assertEqual([call.splits[0] for call in calls], [(1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6), (4, 5, 6, 7)])
        self.assertEqual([call.splits[1] for call in calls], [(1, 2, 3, 4), (2, 3, 4, 5), (4, 3, 5, 6), (4, 5, 6, 7)])
        self.assertEqual(calls[2].shapes(), "float32 [18, 2], splits [3, 4, 5, 6] -> [4, 3, 5, 6]")
        self.assertEqual([call.splits for call in self.run_of("exchange").of_rank(0)], [()])
        for wrong in ("[[1], 2]", "[[1]]", "7", '[["x"], []]'):
            changed = run_file.read_bytes(str(self.folder / "splits.rlrun")).replace(b'"splits":[[1,2,3,4],[1,2,3,4]]', b'"splits":' + wrong.encode())
            with self.assertRaisesRegex(run_file.RunFileError, "a call whose splits are none"):
                run_file.parse(changed, "changed.rlrun")

    def test_operations_on_the_store_come_back_with_their_values(self):
        run = self.run_of("store")
        operations = {(op.rank, op.label()): op for rank in range(4) for op in run.store_of(rank)}
        config = '{"lr": 0.1, "note": "</script>\\xff"}'
        written, found = operations[0, 'store set "config"'], operations[3, 'store get "config"']
        self.assertTrue(written.given.startswith(config) and found.got.startswith(config), written)
        self.assertEqual((written.given_bytes, written.got, found.given, found.got_bytes), (1033, None, None, 1033))
        self.assertLess(written.step, min(op.done for (_, label), op in operations.items() if label == 'store get "config"'))
        self.assertEqual([operations[rank, 'store add "seen"'].values() for rank in range(4)].count(' = "1" -> "4"'), 1)
        pair = operations[2, 'store multi_set "a/2" and 1 more']
        self.assertEqual((pair.keys, pair.given, pair.given_bytes, pair.state), (2, "1", 3, "done"))
        self.assertRegex(pair.site(), r"^write_runs\.cc:\d+$")

    def test_calls_come_back_with_their_steps(self):
        run = self.run_of("store")
        calls = [run.of_rank(rank) for rank in range(4)]
        self.assertTrue(all(0 < call.step <= run.run["steps"] for of_rank in calls for call in of_rank))
        # A barrier ends when the last of its members has issued it, or later.
        last = max(of_rank[1].step for of_rank in calls)
        self.assertTrue(all(of_rank[1].op == "barrier" and of_rank[1].done >= last for of_rank in calls))
        self.assertEqual({call.step for call in self.run_of("deadlock").of_rank(0)}, {-1})

    def test_the_last_operation_of_the_rank_that_failed_is_told(self):
        told = r'last operation of rank 1: store get "a/1" -> "1" \(done\) write_runs\.cc:\d+, step \d+'
        self.assertRegex(text.show(self.run_of("store")), rf"\n{told}\n")
        self.assertEqual(text.last_text(self.run_of("exception")), "")  # its headline has the call
        self.assertEqual(text.last_text(self.run_of("deadlock")), "")  # no rank failed
        self.assertEqual(source.named(self.run_of("store"))[-1], (self.run_of("store").did(1)[-1].file, self.run_of("store").did(1)[-1].line))

    def test_show_has_operations_on_the_store_among_the_calls(self):
        out = text.show(self.run_of("store"), 3)
        self.assertRegex(
            out,
            r'\n    step \d+: all_reduce seq 1 [^\n]*\n    step \d+: store get "config" -> "\{"lr[^\n]*" \(1033 bytes\) \(done\) write_runs[^\n]*'
            r'\n    step \d+: store add "seen" = "1" -> "\d" [^\n]*\n    step \d+: store multi_set "a/3" and 1 more = "1" \(done\)[^\n]*'
            r"\n    step \d+: barrier seq 2 ",
        )
        # Ranks that did the same with other values share their lines.
        out = text.show(self.run_of("key"))
        self.assertIn("  calls of ranks 0-2:\n    all_reduce seq 1", out)
        self.assertIn('    store get "checkpoint/file" (not complete) write_runs.cc:', out)

    def test_diff_tells_of_ends_that_differ(self):
        first = run_file.parse(small_runs.run_file({}, "rr"), "a")
        stuck = {"ok": False, "text": "Deadlock: no rank can move", "schedule": "seeded:2"}
        told, alike = text.diff(first, run_file.parse(small_runs.run_file(stuck, "rr"), "b"))
        self.assertEqual(told.split("calls: ")[0],
                         "schedule:\n  a: seeded:1\n  b: seeded:2\nend:\n  a: ok\n  b: Deadlock: no rank can move\n")  # fmt: skip
        self.assertFalse(alike)
        told, alike = text.diff(first, run_file.parse(small_runs.run_file({}, "rs"), "b"))
        self.assertEqual(told, "ranks ended:\n  a: returned: ranks 0-1\n  b: returned: rank 0; stopped: rank 1\n"
                               "calls: equal, as far as both files have them\n")  # fmt: skip
        self.assertFalse(alike)
        waits = run_file.parse(small_runs.deleted().replace(b'"kind": "Deadlock"', b'"kind": "Timeout"'), "x")
        self.assertEqual(waits.endings(), {"stopped in a wait": [0, 1, 2, 3]})

    def test_bytes_have_the_unit_that_fits(self):
        for size, said in ((999, "999 B"), (1000, "1 kB"), (999_499, "999 kB"), (999_600, "1 MB"), (2_340_000_000, "2.34 GB"),
                           (999_600_000_000, "1 TB"), (1_500_000_000_000_000, "1500 TB")):  # fmt: skip
            self.assertEqual(text.bytes_text(size), said)

    def test_diff_names_the_first_operation_that_differs(self):
        code, out, _ = command("diff", self.folder / "adds.rlrun", self.folder / "adds_otherwise.rlrun")
        self.assertEqual(code, 1)
        self.assertIn("calls: equal, as far as both files have them\nstore: the first difference is the 1st operation of rank ", out)
        self.assertRegex(out, r'\n  a: store add "n" = "\d" -> "\d" \(done\) write_runs\.cc:\d+\n  b: store add "n" = "\d" -> "\d+" \(done\)')

    def test_the_first_run_of_a_search_stands_beside_the_shrunk_one(self):
        run = self.run_of("drawn")
        facts = run.explored
        self.assertGreater(facts["found_switches"], len(facts["switches"]))
        self.assertGreater(len(facts["found_story_switches"]), len(facts["switches"]))
        self.assertIn("store get count", facts["found_story"])
        self.assertNotEqual(facts["found_story"], run.story)
        # Of more ranks than are left.
        self.assertRegex(self.run_of("counted").explored["found_story"], r"^ +step +rank 0 +rank 1 +rank 2\n|\n +step +rank 0 +rank 1 +rank 2\n")
        self.assertRegex(self.run_of("counted").story, r" +step +rank 0 +rank 1\n")

    def test_show_marks_values_that_differ_where_ranks_share_lines(self):
        def did(rank, got, given):
            ops = [("get", 45, 5 + rank, "c", {"key": "sum", **small_runs.value("got", got)}),
                   ("set", 46, 15 + rank, "c", {"key": "sum", **small_runs.value("given", given)}),
                   ("get", 47, 25 + rank, "c", {"key": "flag", **small_runs.value("got", "up")})]  # fmt: skip
            return small_runs.store(rank, *ops)

        run = run_file.parse(small_runs.run_file({}, "rsss", did(1, "3", "5"), did(2, "0", "3"), did(3, "0", "3")), "x")
        out = text.show(run)
        self.assertIn("  calls of ranks 1-3; times and values are those of rank 1:\n"
                      '    store get "sum" -> "3" (done) write_runs.cc:45, other values on other ranks: --rank N\n'
                      '    store set "sum" = "5" (done) write_runs.cc:46, other values on other ranks: --rank N\n'
                      '    store get "flag" -> "up" (done) write_runs.cc:47\n', out)  # fmt: skip
        self.assertNotIn("other values", text.show(run, 2))

    def test_show_has_as_many_last_calls_as_are_asked_for(self):
        path = self.folder / "deleted.rlrun"
        path.write_bytes(small_runs.deleted())
        _, out, _ = command("show", path, "--last", 1)
        self.assertIn('  calls of rank 1:\n    ... 1 before\n    store get "round/0" (not complete) write_runs.cc:47\n', out)
        self.assertIn("  calls of ranks 2-3:\n    ... 2 before\n    barrier seq 2 [group 0] (not complete) write_runs.cc:43\n", out)
        _, out, _ = command("show", path, "--last", 2)
        self.assertIn('  calls of rank 1:\n    reduce seq 1 root 1 [group 0], int32 [1] (completed) write_runs.cc:38\n    store get "round/0"', out)
        kinds = {"t": "kinds", "kinds": [small_runs.kind("all_reduce", 36, 1)]}
        for ranks, more in (40, ""), (41, "  ... 1 more: --rank N shows one\n"), (43, "  ... 3 more: --rank N shows one\n"):
            each = [small_runs.calls(rank, (0, rank + 1, 1, 8, "c")) for rank in range(ranks)]
            out = text.show(run_file.parse(small_runs.run_file({}, "s" * ranks, kinds, *each), "x"))
            self.assertIn(f"  calls of rank 39:\n    all_reduce seq 40 [group 0], int32 [1] (completed) write_runs.cc:36\n{more}not in", out)
            self.assertNotIn("calls of rank 40", out)

    def test_diff_names_what_both_did_before(self):
        kinds = {"t": "kinds", "kinds": [small_runs.kind("all_reduce", 36, 1), small_runs.kind("barrier", 39, 1, **{"in": [], "out": []})]}

        def run(before, last):
            made = [*((0, seq, seq, 200, "c") for seq in range(1, before + 1)), (last, before + 1, before + 1, 200, "c")]
            return run_file.parse(small_runs.run_file({}, "rr", kinds, *[small_runs.calls(rank, *made) for rank in range(2)]), "x")

        for before, told in ((0, "1st"), (1, "2nd"), (2, "3rd"), (3, "4th"), (10, "11th"), (11, "12th"), (12, "13th"), (20, "21st"), (21, "22nd"),
                             (22, "23rd"), (110, "111th"), (111, "112th")):  # fmt: skip
            out, alike = text.diff(run(before, 0), run(before, 1))
            self.assertFalse(alike)
            both = [f"  both before: all_reduce seq {seq} [group 0], int32 [1] (completed) write_runs.cc:36" for seq in range(1, before + 1)]
            self.assertEqual(out.splitlines(), [
                f"calls: the first difference is the {told} call of rank 0",
                f"  a: all_reduce seq {before + 1} [group 0], int32 [1] (completed) write_runs.cc:36",
                f"  b: barrier seq {before + 1} [group 0] (completed) write_runs.cc:39",
                *both[-2:],
            ])  # fmt: skip

    def test_diff_names_the_first_call_that_differs(self):
        code, out, _ = command("diff", self.folder / "passes.rlrun", self.folder / "fails.rlrun")
        self.assertEqual(code, 1)
        self.assertIn("calls: the first difference is the 12th call of rank 1\n", out)
        self.assertRegex(out, r"\n  a: all_reduce seq 4 \[group 0\].*\n  b: barrier seq 4 \[group 0\]")
        code, out, _ = command("diff", self.folder / "passes.rlrun", self.folder / "passes.rlrun")
        self.assertEqual((code, out), (0, "calls: equal, as far as both files have them\n"))

    def test_report_writes_one_page(self):
        out_path = self.folder / "run.html"
        code, out, err = command("report", self.folder / "passes.rlrun", self.folder / "fails.rlrun", "-o", out_path)
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"run\.html: 0\.\d\d MB\n$")
        html = out_path.read_text()
        self.assertNotIn("http://", html.replace("http://www.w3.org/2000/svg", ""))
        self.assertNotIn("https://", html)

    def test_lines_of_the_program_come_from_below_the_folders_only(self):
        with tempfile.TemporaryDirectory() as outside, tempfile.TemporaryDirectory() as inside:
            secret = pathlib.Path(outside) / "secret.py"
            secret.write_text("key = 1\n")
            root = pathlib.Path(inside)
            (root / "src").mkdir()
            (root / "src" / "job.cc").write_bytes(b"".join(b"line %d \xff</script>\n" % i for i in range(1, 21)))
            (root / "notes.txt").write_text("private\n")
            (root / "link.py").symlink_to(secret)
            (root / "loop.py").symlink_to("loop.py")
            (root / "folder.py").mkdir()
            for name in (str(secret), f"../{secret}", "../../../etc/passwd", "/etc/passwd", "notes.txt", "link.py", "loop.py", "folder.py",
                         "", "/", "..", "a\0b.py", "x" * 5000 + ".py", "no.py"):  # fmt: skip
                self.assertEqual(source.around([(name, 1)], [root]), {}, name)
            places = [("../src/job.cc", 10), ("/elsewhere/src/job.cc", 1), ("job.cc", 10), ("src/job.cc", 21), ("src/job.cc", 0)]
            found = source.around(places, [root])
            self.assertEqual(list(found), ["../src/job.cc:10", "/elsewhere/src/job.cc:1"])
            self.assertEqual(found["../src/job.cc:10"]["first"], 5)
            self.assertEqual(found["../src/job.cc:10"]["lines"], [f"line {i} \ufffd</script>" for i in range(5, 16)])
            self.assertEqual(len(found["/elsewhere/src/job.cc:1"]["lines"]), 6)
            self.assertEqual(source.around([("src/job.cc", 1)], []), {})
        html = self.folder / "run.html"
        for options, there in ((["--source", ROOT], True), (["--source", ROOT, "--no-source"], False), (["--source", self.folder], False)):
            self.assertEqual(command("report", self.folder / "deadlock.rlrun", "-o", html, *options)[0], 0)
            self.assertEqual("if (me == 1) pg->send(x, 3, 5).wait();" in html.read_text(), there)

    def test_wrong_arguments_are_named(self):
        self.assertEqual(command("show", "no.rlrun")[::2], (2, 'rankloom: file "no.rlrun": No such file or directory\n'))
        path = self.folder / "deadlock.rlrun"
        self.assertEqual(command("show", path, "--rank", 5)[::2], (2, "rankloom: --rank is 5, want 0 <= rank < world_size = 5\n"))
        self.assertEqual(command("report", path, path, path)[::2], (2, "rankloom: 3 runs, want one, or two beside each other\n"))
        code, _, err = command("report", path, "-o", self.folder / "no" / "run.html")
        self.assertEqual((code, err), (2, f'rankloom: file "{self.folder / "no" / "run.html"}": No such file or directory\n'))
        self.assertIn("rankloom diff passes.rlrun fails.rlrun", command("--help")[1])

    def test_the_man_page_says_what_help_says(self):
        page_text = man.man_page(command_line.parser(), "1.2.3")
        self.assertTrue(page_text.startswith('.TH RANKLOOM 1 "" "rankloom 1.2.3"\n'))
        for line in page_text.splitlines():
            self.assertRegex(line, r"^(?!['.])|^\.(TH|SH|SS|TP|PP|B|nf|fi)\b", line)
        plain = page_text.replace("\\-", "-").replace("\\e", "\\")
        for said in ("rankloom diff passes.rlrun fails.rlrun", "\\fB-o, --output\\fR OUTPUT\nthe page (run.html)", "\\fB--no-source\\fR\n",
                     "\n.SS trace\nThe choices in a trace file.\n"):  # fmt: skip
            self.assertIn(said, plain)
        for name in ("report", "show", "diff", "trace"):
            self.assertIn(f"rankloom {name}", plain)

    def test_colours_are_for_terminals_that_want_them(self):
        program = [sys.executable, str(ROOT / "tools" / "rankloom_command"), "show"]

        def on_terminal(name, **env):
            ours, theirs = pty.openpty()
            with subprocess.Popen([*program, self.folder / f"{name}.rlrun"], stdout=theirs, env={**os.environ, "TERM": "xterm", **env}):
                os.close(theirs)
                out = b""
                with contextlib.suppress(OSError):  # EIO is a terminal's end
                    while part := os.read(ours, 65536):
                        out += part
            os.close(ours)
            return out

        shown = on_terminal("deadlock", NO_COLOR="")
        self.assertTrue(shown.startswith(b"\x1b[31;1mDeadlock: no rank can move\x1b[0m\r\n"))
        self.assertIn(b"\r\n\x1b[33m  cycle: rank 0 -> rank 1 -> rank 2 -> rank 0\x1b[0m\r\n", shown)
        self.assertRegex(shown, rb"run it again: \x1b\[1mRANKLOOM_ENGINE=fibers [^\r]*\x1b\[0m\r\n")
        self.assertTrue(on_terminal("passes", NO_COLOR="").startswith(b"\x1b[32;1mok\x1b[0m\r\n"))
        self.assertNotIn(b"\x1b", on_terminal("deadlock", NO_COLOR="1"))
        self.assertNotIn(b"\x1b", on_terminal("deadlock", NO_COLOR="", TERM="dumb"))
        self.assertNotIn("\x1b", command("show", self.folder / "deadlock.rlrun")[1])

    # --- files that nobody should have written

    def assert_refused(self, data, why):
        with self.assertRaises(run_file.RunFileError) as caught:
            run_file.parse(data, "x.rlrun")
        self.assertRegex(str(caught.exception), rf'^file "x\.rlrun": {why}')

    def test_foreign_files_are_refused(self):
        self.assert_refused(b"", "no run file")
        self.assert_refused(b"RLTRACE1", "no run file")
        self.assert_refused(b"\xff\xfe\0\0", "no run file")
        self.assert_refused(b"[" * 100_000, "no run file")
        self.assert_refused(b'{"a": 1}\n', "no run file")
        self.assert_refused(b'{"rlrun":2}\n', "a run file of version 2, and this program reads version 1$")

    def test_a_file_cut_short_anywhere_is_refused(self):
        data = (self.folder / "deadlock.rlrun").read_bytes()
        for end in range(0, len(data), 7):
            self.assert_refused(data[:end], "(no run file|cut short)")
        for end in [i + 1 for i, byte in enumerate(data[:-1]) if byte == 10]:
            self.assert_refused(data[:end], "cut short after line")
        self.assert_refused(data + b"{}\n", r"line \d+: ")

    def test_lines_that_do_not_fit_are_refused(self):
        lines = (self.folder / "deadlock.rlrun").read_bytes().split(b"\n")
        tags = [json.loads(line).get("t") for line in lines[:-1]]

        def changed(tag, change):
            at = tags.index(tag)
            line = json.loads(lines[at])
            change(line)
            return b"\n".join([*lines[:at], json.dumps(line).encode(), *lines[at + 1 :]])

        self.assert_refused(changed("outcomes", lambda line: line.update(states="ss")), "line 3: not one outcome a rank")
        self.assert_refused(changed("run", lambda line: line.update(text=7)), 'line 3: "text" is no text')
        self.assert_refused(changed("calls", lambda line: line.update(rank=99)), r"line \d+: calls of a rank that the world does not have")
        self.assert_refused(changed("calls", lambda line: line["kind"].pop()), r"line \d+: columns of different lengths for rank 0")
        self.assert_refused(changed("calls", lambda line: line["kind"].__setitem__(0, 1000)), r"line \d+: a call of rank 0 of a kind")
        self.assert_refused(changed("calls", lambda line: line["seq"].__setitem__(0, "<b>")), r"line \d+: a column without numbers for rank 0")
        self.assert_refused(changed("calls", lambda line: line.update(made=0)), r"line \d+: more calls of rank 0 than it made")
        self.assert_refused(changed("waits", lambda line: line["cycle"].append(9)), r"line \d+: a circle of ranks")
        self.assert_refused(changed("waits", lambda line: line["waits"][0].update(what={})), r"line \d+: a wait whose texts are none")
        self.assert_refused(changed("groups", lambda line: line.update(groups=7)), r"line \d+: not as a run file has it \(TypeError")
        self.assert_refused(changed("waits", lambda line: line.update(waits={})), r"line \d+: waits that are none")
        self.assert_refused(changed("end", lambda line: line.update(lines=3)), r"line \d+: it is to be line 3")

    def test_searches_that_do_not_fit_are_refused(self):
        lines = (self.folder / "explored.rlrun").read_bytes().split(b"\n")
        at = next(i for i, line in enumerate(lines) if b'"t":"story"' in line)
        for field, value, why in (
            ("run", "2", "a search whose numbers are none"),
            ("found", 7, "a search that found under a schedule that is no text"),
            ("switches", ["8"], "switches that are no steps"),
            ("shares", {}, "strategies that are none"),
            ("shares", [{"strategy": 1, "runs": 1, "schedules": 1, "open": 1, "finished": True}], "a strategy without a name"),
            ("lost", [1], "not one future a choice"),
            ("choices", {}, "futures that are none"),
        ):
            line = {**json.loads(lines[at]), field: value}
            self.assert_refused(b"\n".join([*lines[:at], json.dumps(line).encode(), *lines[at + 1 :]]), rf"line \d+: {why}")
        line = json.loads(lines[at])
        line["lost"][0] = line["futures"][0] + 1
        self.assert_refused(
            b"\n".join([*lines[:at], json.dumps(line).encode(), *lines[at + 1 :]]), r"line \d+: more futures that fail than there are"
        )

    def test_operations_that_do_not_fit_are_refused(self):
        lines = (self.folder / "store.rlrun").read_bytes().split(b"\n")
        at = next(i for i, line in enumerate(lines) if b'"t":"store"' in line)
        for change, why in (
            (lambda line: line.update(rank=4), "operations of a rank that the world does not have"),
            (lambda line: line.update(made=0), "more operations of rank 0 than it made"),
            (lambda line: line["ops"][0].update(key=7), "an operation of rank 0 whose texts are none"),
            (lambda line: line["ops"][0].update(begun="1"), "an operation of rank 0 whose numbers are none"),
            (lambda line: line["ops"][0].pop("given_bytes"), "a value of rank 0 without its size"),
            (lambda line: line["ops"][0].pop("step"), "an operation of rank 0 that ends at a step and begins at none"),
            (lambda line: line["ops"][0].update(state="x"), "a state of rank 0 that is none"),
        ):
            line = json.loads(lines[at])
            change(line)
            self.assert_refused(b"\n".join([*lines[:at], json.dumps(line).encode(), *lines[at + 1 :]]), rf"line \d+: {why}")

    def test_a_record_of_fake_ranks_becomes_lanes(self):
        names = [{"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "rank 7"}}]
        names.append({"ph": "M", "name": "thread_name", "pid": 7, "tid": 1, "args": {"name": "group pp"}})
        facts = {"dtype": "Float", "In msg nelems": 8, "Out msg nelems": 0, "Group size": 4, "Process Group Name": "0.1.pp[0]"}
        facts |= {"Process Group Description": "mesh_pp", "Seq": 1, "Ring bytes": 32, "Call site": "step.cc:12", "Src Rank": 7, "Dst Rank": 8}
        sent = {"ph": "X", "cat": "collective", "name": "send", "pid": 7, "tid": 1, "ts": 1.5, "dur": 2, "args": facts}
        got = {**sent, "name": "recv", "pid": 8, "args": {**facts, "In msg nelems": 0, "Out msg nelems": 8}}
        run = record.parse(json.dumps({"traceEvents": [*names, sent, got]}).encode(), "x.json")
        self.assertEqual((run.headline(), run.run["lanes"]), ("Fake world: the calls of 2 of 4 ranks", ["7 pp", "8 lane 1"]))
        told = record.parse(json.dumps({"distributedInfo": {"world_size": 64}, "traceEvents": [*names, sent, got]}).encode(), "x.json")
        self.assertEqual(told.headline(), "Fake world: the calls of 2 of 64 ranks")
        (call,) = run.of_rank(0)
        self.assertEqual((call.op, call.peer, call.issued, call.ended, call.inputs, call.site()), ("send", 1, 1500, 3500, ((8,),), "step.cc:12"))
        self.assertEqual([(a.rank, b.rank) for a, b in run.matches()], [(0, 1)])
        self.assertTrue(page.page_data([run]).isascii())
        for bad in (
            b"",
            b"[]",
            b'{"traceEvents": 7}',
            b'{"traceEvents": [{"ph": "X"}]}',
            b"\xff",
            json.dumps({"traceEvents": [{**sent, "ts": -1}]}).encode(),
        ):
            with self.assertRaises(run_file.RunFileError) as caught:
                record.parse(bad, "x.json")
            self.assertRegex(str(caught.exception), '^file "x.json": no record of fake ranks, as traces::write_perfetto')
        with self.assertRaises(run_file.RunFileError):
            record.parse(b'{"traceEvents": []}', "x.json")

    # Ranks number their groups apart: rank 0 is in pp and tp, rank 2 in dp and pp.
    def test_a_message_of_a_record_goes_to_the_lane_of_its_group(self):
        def box(name, pid, tid, group, **more):
            facts = {"dtype": "Float8_e5m2", "In msg nelems": 4, "Out msg nelems": 4, "Group size": 4, "Process Group Name": group}
            facts |= {"Process Group Description": group, "Seq": 1, "Ring bytes": 4, "Call site": "step.cc:12", **more}
            return {"ph": "X", "cat": "collective", "name": name, "pid": pid, "tid": tid, "ts": pid + tid, "dur": 2, "args": facts}

        ends = {"Src Rank": 0, "Dst Rank": 2}
        boxes = [box("send", 0, 1, "pp", **ends), box("all_reduce", 0, 2, "tp"), box("all_reduce", 2, 1, "dp"), box("recv", 2, 2, "pp", **ends)]
        run = record.parse(json.dumps({"traceEvents": boxes}).encode(), "x.json")
        (sent,), (got,) = run.of_rank(0), run.of_rank(3)
        self.assertEqual((sent.op, sent.peer, got.op, got.peer), ("send", 3, "recv", 0))
        self.assertEqual([(a.rank, b.rank) for a, b in run.matches()], [(0, 3)])
        self.assertEqual({call.dtype for lane in range(4) for call in run.of_rank(lane)}, {"float8_e5m2"})
        boxes[1]["args"]["dtype"] = "Quarter"
        with self.assertRaisesRegex(run_file.RunFileError, "'Quarter' is not there"):
            record.parse(json.dumps({"traceEvents": boxes}).encode(), "x.json")

    def test_an_estimate_of_a_step_becomes_lanes(self):
        def event(name, cat, tid, begin, **facts):
            return {"ph": "X", "name": name, "cat": cat, "pid": 5, "tid": tid, "ts": begin, "dur": 2.5, "args": {"bytes": 64, **facts}}

        names = [{"ph": "M", "name": "process_name", "pid": 5, "tid": 0, "args": {"name": "rank 5"}}]
        names += [{"ph": "M", "name": "thread_name", "pid": 5, "tid": i, "args": {"name": name}} for i, name in enumerate(("compute", "tp"))]
        boxes = [event("addmm", "kernel", 0, 0, phase="forward", FLOPs=8), event("all_reduce", "collective", 1, 2.5)]
        memory = {"ph": "C", "name": "memory", "pid": 5, "ts": 0, "args": {"parameters": 3}}
        path = self.folder / "estimate.json"
        path.write_text(json.dumps({"traceEvents": [*names, *boxes, memory]}))
        code, out, err = command("show", path, "--rank", 5)
        self.assertEqual((code, err), (0, ""))
        self.assertIn("Estimate of a step: kernels and calls of 1 rank\n2 lanes, each a group of a rank: 5 compute, 5 tp\n", out)
        self.assertIn("calls of rank 5, compute:\n    addmm seq 1 [group compute] (completed, 0 ns to 2.5 us)", out)
        self.assertIn("calls of rank 5, tp:\n    all_reduce seq 1 [group tp] (completed, 2.5 us to 5 us)", out)
        self.assertIn("an estimate has no sizes of groups", out)
        self.assertEqual(command("report", path, "-o", self.folder / "estimate.html")[0], 0)
        path.write_text(json.dumps({"nodes": []}))
        code, _, err = command("report", path, "-o", self.folder / "none.html")
        self.assertEqual(code, 2)
        self.assertRegex(err, r"estimate\.json\": no record of fake ranks, .* a fake world or an estimate \('traceEvents' is not there\)\n$")

    def test_altered_files_are_refused_or_shown(self):
        """Nothing else may be raised, and all that is printed is UTF-8 that no terminal obeys."""
        shown = refused = 0
        for name in ("deadlock", "explored", "faults", "store", "fake"):
            for what, data in altered((self.folder / f"{name}.rlrun").read_bytes()):
                try:
                    run = run_file.parse(data, "x.rlrun")
                except run_file.RunFileError as error:
                    self.assertRegex(text.plain(str(error)).encode(), rb'^file "x\.rlrun": (line \d+: |cut short after line \d+$)')
                    refused += 1
                    continue
                with self.subTest(what):
                    page.page([run]).encode()
                    for printed in (text.show(run), text.show(run, 0), text.diff(run, self.run_of(name))[0]):
                        self.assertNotRegex(printed.encode(), b"[\0\x1b]")
                    shown += 1
        self.assertGreater(min(shown, refused), 200)

    def test_a_fake_world_has_lanes_and_the_totals_of_its_ranks(self):
        run = self.run_of("fake")
        self.assertEqual(run.headline(), "Fake world: the calls of 2 of 8 ranks")
        self.assertEqual(run.run["lanes"], ["0 compute", "0 pp", "0 tp", "4 compute", "4 pp", "4 tp"])
        self.assertEqual([group["of"] for group in run.groups], [1, 2, 4, 1, 2, 4])
        (sent,) = run.of_rank(1)
        self.assertEqual((sent.label(), sent.issued, sent.ended), ("send seq 1 to 4 pp, tag 3 [group 0.1.pp[0]]", 22_000, 24_000))
        self.assertEqual(sent.shapes(), "float32 [10, 25] -> nothing")
        self.assertEqual([(a.rank, b.rank) for a, b in run.matches()], [(1, 4)])
        # The second waits for its group.
        self.assertEqual([(call.issued, call.arrived, call.ended) for call in run.of_rank(5)], [(22_000, 22_000, 40_000), (22_000, 40_000, 58_000)])
        self.assertEqual([(call.op, call.issued, call.ended) for call in run.of_rank(0)], [("forward", 0, 10_000), ("more", 10_000, 15_000)])
        first, second = run.fake["ranks"]
        facts = {"rank": 0, "calls": 2, "compute_ns": 15_000, "end_ns": 24_000, "peak_buffer_bytes": 4000}
        self.assertEqual({key: first[key] for key in facts}, facts)
        self.assertEqual((second["rank"], second["end_ns"], second["peak_buffer_bytes"]), (4, 58_000, 16_000))
        total = {"op": "all_reduce", "group": 5, "calls": 2, "payload": 16_000, "ring_bytes": 24_000, "tree_bytes": 32_000, "time_ns": 36_000}
        self.assertEqual(second["totals"][1], total)
        code, out, _ = command("show", self.folder / "fake.rlrun")
        self.assertEqual(code, 0)
        self.assertIn(
            "rank 4: 3 calls, computes 20 us, ends at 58 us; buffers of calls hold 16 kB at most\n"
            "  1 x recv on mesh_pp (2 ranks): 1 kB by a ring, 1 kB by a tree, 2 us\n"
            "  2 x all_reduce on mesh_tp (4 ranks): 24 kB by a ring, 32 kB by a tree, 36 us\n",
            out,
        )

    def test_the_rank_of_a_fake_world_is_that_of_the_world(self):
        shown = text.show(self.run_of("fake"), 4)
        heads = [line for line in shown.splitlines() if line.startswith("  calls of ")]
        self.assertEqual(heads, ["  calls of rank 4, compute:", "  calls of rank 4, pp:", "  calls of rank 4, tp:"])
        self.assertIn("  calls of rank 4, pp:\n    recv seq 1 from 0 pp, tag 3 [group 0.1.pp[0]]", shown)
        self.assertEqual(shown.count("    all_reduce seq "), 2)
        code, out, _ = command("show", self.folder / "fake.rlrun", "--rank", 0)
        self.assertEqual((code, out.count("calls of rank "), out.count("calls of rank 0, ")), (0, 3, 3))
        self.assertIn("send seq 1 to 4 pp, tag 3", out)
        code, out, err = command("show", self.folder / "fake.rlrun", "--rank", 1)
        self.assertEqual((code, out, err), (2, "", "rankloom: --rank is 1, want one of those that were traced: 0, 4\n"))

    def test_diff_names_the_lanes_of_fake_ranks(self):
        run, other = self.run_of("fake"), self.run_of("fake")
        other.calls[5]["seq"][1] += 1
        told, alike = text.diff(run, other)
        self.assertIn("calls: the first difference is the 2nd call of rank 4, tp\n", told)
        self.assertFalse(alike)
        other.run["lanes"] = [*run.run["lanes"][:5], "4 dp"]
        lanes = "0 compute, 0 pp, 0 tp, 4 compute, 4 pp"
        self.assertIn(f"lanes:\n  a: {lanes}, 4 tp\n  b: {lanes}, 4 dp\n", text.diff(run, other)[0])

    def test_totals_of_fake_ranks_that_do_not_fit_are_refused(self):
        lines = (self.folder / "fake.rlrun").read_bytes().split(b"\n")
        tags = [json.loads(line).get("t") for line in lines[:-1]]

        def changed(tag, change):
            at = tags.index(tag)
            line = json.loads(lines[at])
            change(line)
            return b"\n".join([*lines[:at], json.dumps(line).encode(), *lines[at + 1 :]])

        for tag, change, why in (
            ("run", lambda line: line["lanes"].pop(), "not one name a lane"),
            ("run", lambda line: line.update(lanes=7), "not one name a lane"),
            ("run", lambda line: line["lanes"].__setitem__(2, 7), "a lane without a name"),
            ("run", lambda line: line.pop("lanes"), "totals of fake ranks in the file of real ones"),
            ("groups", lambda line: line["groups"][1].update(of="<b>"), "a lane of a group without members"),
            ("groups", lambda line: line["groups"][1].update(of=0), "a lane of a group without members"),
            ("kinds", lambda line: line["kinds"][1].update(wire={}), "a call whose numbers are none"),
            ("fake", lambda line: line.update(world_size="8"), "a fake world that is none"),
            ("fake", lambda line: line.update(ranks={}), "a fake world that is none"),
            ("fake", lambda line: line["ranks"][1].update(peak_buffer_bytes="x"), "a fake rank whose numbers are none"),
            ("fake", lambda line: line["ranks"][1].update(totals={}), "totals of fake rank 4 that are none"),
            ("fake", lambda line: line["ranks"][1]["totals"][0].update(op=3), "a total of fake rank 4 without an operation"),
            ("fake", lambda line: line["ranks"][1]["totals"][0].update(time_ns=[]), "a total of fake rank 4 whose numbers are none"),
            ("fake", lambda line: line["ranks"][1]["totals"][0].update(group=6), "a total of fake rank 4 of a group that the file does not have"),
            ("fake", lambda line: line["ranks"][0].pop("end_ns"), r"not as a run file has it \(KeyError: 'end_ns'\)"),
        ):
            with self.subTest(why):
                self.assert_refused(changed(tag, change), rf"line \d+: {why}")
        at = tags.index("fake")
        end = json.loads(lines[-2])
        without = [*lines[:at], *lines[at + 1 : -2], json.dumps({**end, "lines": end["lines"] - 1}).encode(), b""]
        self.assert_refused(b"\n".join(without), rf"line {len(without) - 1}: lanes of fake ranks without their totals")

    def test_what_only_fake_ranks_have_is_not_taken_from_the_file_of_others(self):
        lines = (self.folder / "deadlock.rlrun").read_bytes().split(b"\n")
        for i, text_of_line in enumerate(lines[1:-1], 1):
            line = json.loads(text_of_line)
            for group in line.get("groups", []):
                group["of"] = "<b>"
            for kind in line.get("kinds", []):
                kind["wire"] = {}
            lines[i] = json.dumps(line).encode()
        shown = page.page_data([run_file.parse(b"\n".join(lines), "x")])
        for name in ('"of"', '"wire"'):
            self.assertNotIn(name, shown)

    def test_a_later_writers_lines_are_passed_over(self):
        lines = (self.folder / "deadlock.rlrun").read_bytes().split(b"\n")
        end = json.loads(lines[-2])
        data = b"\n".join([*lines[:-2], b'{"t":"later","x":1}', json.dumps({**end, "lines": end["lines"] + 1}).encode(), b""])
        self.assertEqual(run_file.parse(data, "x").world_size, 5)

    def test_ten_megabytes_of_text_do_no_harm(self):
        run = self.run_of("exception")
        run.run["text"] = "x" * 10_000_000
        self.assertLess(len(page.page([run])), 2_000_000)

    def test_traces_are_shown_and_damaged_ones_refused(self):
        data = trace.MAGIC + b"\x08seeded:7" + b"\x01\x04send" + b"\x01" + bytes([0, 0, 3, 4, 2, 5])
        data += trace._fnv1a(data).to_bytes(8, "little")
        shown = trace.show(trace.parse(data, "x"), False)
        self.assertEqual(shown, "schedule seeded:7, 1 choices\n  0: rank 1 at send seq 3: goes on with task 2 (4 could)\n")
        steps = [(0, 1, -1, 2, 4, -1), (4, 0, 0, 2, 1, 1)]
        shown = trace.show(trace.Trace("seeded:7", ["broadcast", "start"], steps), False)
        self.assertIn("\n  0: at the start: goes on with task 4 (2 could)\n  1: rank 0 at broadcast seq 1: rooted, takes alternative 1 of 2\n", shown)
        for damaged in (data[:-1], data[:9] + b"X" + data[10:], b""):
            with self.assertRaises(run_file.RunFileError):
                trace.parse(damaged, "x")

    def test_numbers_of_dtypes_are_those_of_the_library(self):
        header = (ROOT / "include/rankloom/tensor.h").read_text()
        names = header.split("enum class DType : uint8_t {")[1].split("};")[0]
        names = [line.split("//")[0].strip(" ,k").lower() for line in names.strip().splitlines()]
        self.assertEqual(names, [name.replace("_", "") for name in run_file.DTYPES])
        # Records have the names of PyTorch's c10::ScalarType: those of its dtypes, but for these.
        habits = {"Char": "int8", "Byte": "uint8", "Short": "int16", "Int": "int32", "Long": "int64", "Half": "float16", "Float": "float32",
                  "Double": "float64", "ComplexFloat": "complex64", "ComplexDouble": "complex128"}  # fmt: skip
        self.assertEqual(sorted(record.NAMES.values()), sorted(run_file.DTYPES))
        self.assertEqual({name: dtype for name, dtype in record.NAMES.items() if name.lower() != dtype}, habits)

    def test_a_run_of_many_calls_is_small_and_quick(self):
        seconds = float(subprocess.run([WRITE_RUNS, self.folder, "big", "64", "1000"], check=True, capture_output=True, text=True).stdout)
        size = (self.folder / "big.rlrun").stat().st_size
        print(f"64 ranks x 1000 calls: {size / 1e6:.2f} MB in {seconds:.3f} s")
        self.assertLess(size, 40e6 / 16)
        run = self.run_of("big")
        self.assertEqual(len(run.of_rank(63)), 1000)
        self.assertLess(len(page.page([run])), 3_000_000)


if __name__ == "__main__":
    WRITE_RUNS = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
