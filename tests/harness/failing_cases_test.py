#!/usr/bin/env python3
"""Runs tests that fail on purpose (failing_cases.cc) and checks what GoogleTest says of them.

    failing_cases_test.py PROGRAM
"""

import contextlib
import os
import pty
import re
import socket
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
from rankloom_command import run_file  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop())
ENGINES = ("threads", "fibers")
with open(PROGRAM, "rb") as program:
    SANITIZED_THREADS = b"__tsan_" in program.read()
TIMEOUT_S = 60  # of one run; a hang is what most of these are about


class Result:
    """One run of the program: exit status, output, and the cases of its XML by name."""

    def __init__(self, case, env=None, command=None):
        with tempfile.TemporaryDirectory() as folder:
            xml = os.path.join(folder, "out.xml")
            full = {k: v for k, v in os.environ.items() if not k.startswith(("RANKLOOM_", "GTEST_"))}
            full.update({"RANKLOOM_TRACE_DIR": TRACES, **(env or {})})
            if command is None:
                command = [PROGRAM, f"--gtest_filter=Engines/Failing.{case}"]
                full["GTEST_OUTPUT"] = "xml:" + xml
            done = subprocess.run(command, env=full, shell=isinstance(command, str), capture_output=True, text=True,
                                  timeout=TIMEOUT_S, check=False)
            self.status, self.output = done.returncode, done.stdout + done.stderr
            self.cases = {}
            if os.path.exists(xml):
                for element in ElementTree.parse(xml).iter("testcase"):
                    assert element.get("name") not in self.cases, "a case is listed twice"
                    self.cases[element.get("name")] = element

    def failures(self, name):
        return [f.get("message") for f in self.cases[name].findall("failure")]

    def properties(self, name):
        return {p.get("name"): p.get("value") for p in self.cases[name].iter("property")}


class FailingCasesTest(unittest.TestCase):
    def failures_on(self, case, engine):
        """The failures that the case reports on an engine; the case must end as a failure."""
        result = Result(f"{case}/{engine}")
        self.assertEqual(result.status, 1, result.output)
        self.assertEqual(list(result.cases), [f"{case}/{engine}"])
        failures = result.failures(f"{case}/{engine}")
        self.assertTrue(failures)
        return failures, result

    def test_a_world_that_succeeds_is_one_case(self):
        result = Result("Passes/*")
        self.assertEqual(result.status, 0, result.output)
        self.assertEqual(sorted(result.cases), ["Passes/fibers", "Passes/threads"])
        self.assertEqual(result.failures("Passes/fibers"), [])
        self.assertEqual(result.properties("Passes/fibers"), {"world_size": "3", "engine": "fibers", "schedule": "fifo"})
        self.assertEqual(result.properties("Passes/threads"), {"world_size": "3", "engine": "threads", "schedule": "free"})

    def test_a_failure_of_one_rank_is_told_under_it(self):
        for engine in ENGINES:
            failures, result = self.failures_on("OnOneRank", engine)
            self.assertEqual(len(failures), 1)
            self.assertIn("rank 1: Expected: (rank.rank()) != (1)", failures[0])
            self.assertIn('text with <xml> & "quotes" ]]>', failures[0])
            self.assertRegex(result.output, r"failing_cases\.cc:\d+: Failure\nrank 1: ")

    def test_equal_failures_are_one(self):
        for engine in ENGINES:
            failures, _ = self.failures_on("OnAllRanksAlike", engine)
            self.assertEqual(len(failures), 1)
            self.assertIn("ranks 0-2: Expected equality", failures[0])

    def test_a_fatal_assertion_hangs_nobody(self):
        for engine in ENGINES:
            failures, result = self.failures_on("FatallyWhileOthersWait", engine)
            self.assertEqual(len(failures), 1)
            self.assertIn("rank 1: Failed\nfatal on rank 1", failures[0])
            self.assertIn("after the world", result.output)
            failures, _ = self.failures_on("FatallyBeforeACollective", engine)
            self.assertEqual(len(failures), 1)
            self.assertIn("between collectives", failures[0])

    def test_ranks_are_in_order_where_the_last_one_fails_first(self):
        for engine in ENGINES:
            failures, _ = self.failures_on("OnAllRanksFromTheLast", engine)
            self.assertEqual(len(failures), 2)
            alike, each = failures
            self.assertRegex(alike, r"^(.*\n)?ranks 0-2: Expected equality[^$]*alike")
            said = re.findall(r"^rank (\d): Expected equality", each, re.MULTILINE)
            self.assertEqual(said, ["0", "1", "2"], each)

    def test_calls_that_are_open_are_named_where_an_assertion_fails(self):
        for engine in ENGINES:
            failures, _ = self.failures_on("ReadingTooEarly", engine)
            early = [f for f in failures if "before the wait" in f]
            self.assertEqual(len(early), 1)
            place = r"\[failing_cases\.cc:\d+\]"
            self.assertRegex(
                early[0], r"ranks 0-2: Value of[^$]*before the wait\n+"  # newer GoogleTest ends each failure with an empty line
                r"outputs hold NaN or 0xEB until their call completes; ranks 0-1 had reduce_scatter_tensor seq 1 "
                + place + r" open; rank 2 had (all_reduce seq 2 " + place + ", )?reduce_scatter_tensor seq 1 " + place)
            for failure in failures:
                if failure not in early:
                    self.assertNotIn("until their call completes", failure)

    def test_a_value_that_outputs_hold_before_the_end_is_told_of(self):
        hint = "outputs hold NaN or 0xEB until their call completes; a value was read before its wait(), perhaps"
        for engine in ENGINES:
            failures, _ = self.failures_on("OfAValueReadTooEarly", engine)
            self.assertEqual(len(failures), 2)
            for failure in failures:
                self.assertEqual(failure.count(hint), 0 if "wanted wrong" in failure else 1, failure)
                self.assertEqual("-336860181" in failure, "wanted wrong" not in failure)

    def test_an_exception_is_the_headline(self):
        for engine in ENGINES:
            failures, _ = self.failures_on("ByException", engine)
            self.assertEqual(len(failures), 1)
            self.assertIn("rank 2 failed: no disk (std::runtime_error)\nranks 0-1 stopped for it", failures[0])

    def test_a_deadlock_names_who_is_missing(self):
        for engine in ENGINES:
            failures, _ = self.failures_on("ByDeadlock", engine)
            self.assertEqual(len(failures), 1)
            self.assertRegex(failures[0], r"ranks 0, 2 wait in barrier seq 1 for rank 1 \(returned\)")

    def ends_by_a_stall(self, case, engine, named=True):
        """The output of the case, which must end its process for a rank that hangs. `named`: the harness runs it, and names the test."""
        result = Result(f"{case}/{engine}", {"RANKLOOM_STALL_IS_FATAL": "1s"})
        self.assertEqual(result.status, 1, result.output)
        self.assertRegex(result.output, r"rankloom: rank 1 has come to no scheduling point for 1s of real time: ")
        self.assertIn("the process ends (WorldOptions::stall_is_fatal, RANKLOOM_STALL_IS_FATAL=0: it goes on)\n",
                      result.output)
        self.assertEqual(f"\n[  FAILED  ] Engines/Failing.{case}/{engine}\n" in result.output, named, result.output)
        return result.output

    def assert_stack(self, output, functions):
        """The stack names these functions, one further out than the other. TSan delivers no signal to who only computes."""
        if SANITIZED_THREADS:
            self.assertIn("\n  its stack:\n", output)
        else:
            self.assertRegex(output, r"\n  its stack:\n" + r"(?:    #\d+ .*\n)*?".join(
                ["", *(rf"    #\d+ .*{name}\(.*\n" for name in functions)]))

    def test_a_rank_that_hangs_in_its_own_code_ends_the_process(self):
        for engine in ENGINES:
            output = self.ends_by_a_stall("HangingInItsOwnCode", engine)
            self.assert_stack(output, ["spin_for_ever", "HangingInItsOwnCode_Test::TestBody"])
            self.assertRegex(output, r"its last point: all_reduce seq 1 \[failing_cases\.cc:\d+\]")
            self.assertRegex(output, r"\n  rank 0 waits in barrier seq 2 for rank 1[^\n]*\[group 0, failing_cases\.cc:\d+\]")
            self.assertRegex(output, r"\n  rank 1 runs; its last point: all_reduce seq 1")
            self.assertIn("\n  rank 2 returned", output)

    def test_a_mutex_held_across_a_collective_ends_the_process(self):
        for engine in ENGINES:
            output = self.ends_by_a_stall("HoldingAMutexAcrossACollective", engine)
            self.assert_stack(output, ["lock_for_ever", "HoldingAMutexAcrossACollective_Test::TestBody"])
            self.assertIn("\n  it has come to no point yet\n", output)
            self.assertRegex(output, r"\n  rank 0 can run; its last point: barrier seq 1 \[failing_cases\.cc:\d+\]")
            self.assertIn("\n  rank 1 runs; it has come to no point yet\n", output)
            self.assertRegex(output, rf"\n  run it again: RANKLOOM_ENGINE={engine} RANKLOOM_SCHEDULE=round_robin ")

    def test_a_mutex_held_across_a_collective_of_an_explored_run_ends_the_process(self):
        for case in ("HoldingAMutexWhenExplored", "HoldingAMutexInExplore"):
            for engine in ENGINES:
                output = self.ends_by_a_stall(case, engine, named=case == "HoldingAMutexWhenExplored")
                self.assert_stack(output, ["lock_for_ever", case + "_Test::TestBody"])
                self.assertIn("\n  it has come to no point yet\n", output)
                self.assertRegex(output, r"\n  rank 0 waits in barrier seq 1 for rank 1[^\n]*\[group 0, failing_cases\.cc:\d+\]")
                self.assertIn("\n  rank 1 runs; it has come to no point yet\n", output)
                # In the first run of all, whose schedule has a name.
                self.assertRegex(output, rf"\n  run it again: RANKLOOM_ENGINE={engine} RANKLOOM_SCHEDULE=")

    def test_a_hang_of_a_search_is_repeated_by_its_test_alone(self):
        hangs = "Engines/Failing.HangingWhenExplored/fibers"
        result = Result(None, {"RANKLOOM_STALL_IS_FATAL": "1s"}, [PROGRAM, f"--gtest_filter=Engines/Failing.Passes/*:{hangs}"])
        # No schedule names a run of a search that has not ended: the search comes to it again.
        line = f"\n  run it again: {PROGRAM} --gtest_filter={hangs}\n"
        self.assertIn(line, result.output)
        again = Result(None, {"RANKLOOM_STALL_IS_FATAL": "1s"}, [PROGRAM, f"--gtest_filter={hangs}"])
        self.assertIn(line, again.output)

    def test_the_rerun_line_of_a_rerun_is_the_same(self):
        """All of it: which search of the test, how many ranks are left, and the schedule."""
        for engine in ENGINES:
            failures, _ = self.failures_on("ShrunkWhenExplored", engine)
            self.assertEqual(len(failures), 1)
            rerun = self.command_after("run it again", failures[0])
            self.assertRegex(rerun, rf"^RANKLOOM_REPLAY_RUN=3 RANKLOOM_RANKS=2 RANKLOOM_ENGINE={engine} RANKLOOM_SCHEDULE='steered:")
            self.assertTrue(rerun.endswith(f" --gtest_filter=Engines/Failing.ShrunkWhenExplored/{engine}"), rerun)
            again = Result(None, command=rerun)
            self.assertEqual(again.status, 1, again.output)
            self.assertEqual(self.command_after("run it again", again.output), rerun)
            # The search before it is made as ever.
            self.assertIn("[ rankloom ] verified: ", again.output)

    def test_the_rerun_line_of_the_second_run_is_for_that_one(self):
        for engine in ENGINES:
            failures, _ = self.failures_on("InTheSecondRun", engine)
            rerun = self.command_after("run it again", failures[0])
            self.assertTrue(rerun.startswith(f"RANKLOOM_REPLAY_RUN=2 RANKLOOM_ENGINE={engine} RANKLOOM_SEED=5 "), rerun)
            again = Result(None, command=rerun)
            self.assertEqual(again.status, 1, again.output)
            self.assertEqual(self.command_after("run it again", again.output), rerun)

    def test_a_run_whose_process_ends_for_a_hang_leaves_its_file(self):
        for case, ranks in (("HangingInItsOwnCode", "uur"), ("HoldingAMutexAcrossACollective", "uu"), ("HangingWhenExplored", "uu")):
            for engine in ENGINES:
                with self.subTest(case=case, engine=engine), tempfile.TemporaryDirectory() as folder:
                    env = {"RANKLOOM_STALL_IS_FATAL": "2s", "RANKLOOM_REPORT": folder}
                    result = Result(f"{case}/{engine}", env)
                    path = f"{folder}/{os.path.basename(PROGRAM)}.Engines_Failing.{case}_{engine}.rlrun"
                    line = f"\n  run file: {path}; see it: rankloom report {path} -o run.html\n"
                    self.assertEqual(result.output.count(line), 1, result.output)
                    self.assertEqual(os.listdir(folder), [os.path.basename(path)])
                    run = run_file.read(path)
                    self.assertEqual(run.headline(), "Aborted: a rank hangs in its own code, and the process ended for it")
                    self.assertIn("\n  rank 1 runs; ", run.run["text"])
                    self.assertEqual(run.states, ranks)
                    if case == "HangingInItsOwnCode":
                        last = [run.of_rank(rank)[-1] for rank in range(3)]
                        self.assertEqual([(call.op, call.state) for call in last],
                                         [("barrier", "scheduled"), ("all_reduce", "completed"), ("all_reduce", "completed")])

    def test_a_search_that_finds_nothing_says_what_it_looked_at(self):
        """Once for people, where nobody else tells them, and always in the XML."""
        verified = "verified: all 2 schedules that can differ, in 2 runs"
        seeds = "no failure in 3 runs (not exhaustive: random only)"
        silent = "no failure in 2 runs (not exhaustive: the default order only)"
        for engine in ENGINES:
            result = Result(f"NoneWhenExplored/{engine}")
            self.assertEqual(result.status, 0, result.output)
            lines = [line for line in result.output.splitlines() if line.startswith("[ rankloom ]")]
            self.assertEqual(lines, [f"[ rankloom ] {verified}", f"[ rankloom ] {seeds}"])
            properties = result.properties(f"NoneWhenExplored/{engine}")
            self.assertEqual(properties["explored"], f"{verified}; {seeds}; {silent}")
            brief = Result(f"NoneWhenExplored/{engine}", {"GTEST_BRIEF": "1"})
            self.assertNotIn("[ rankloom ]", brief.output)

    def test_a_hang_in_an_explored_run_ends_the_process(self):
        for engine in ENGINES:
            output = self.ends_by_a_stall("HangingWhenExplored", engine)
            self.assert_stack(output, ["spin_for_ever"])
            self.assertIn(f"\n  run it again: {PROGRAM} --gtest_filter=Engines/Failing.HangingWhenExplored/{engine}\n", output)

    def test_a_world_that_should_fail_and_does_not_is_a_failure(self):
        for engine in ENGINES:
            failures, _ = self.failures_on("ToFail", engine)
            self.assertIn("the world was to fail, but all 3 ranks returned", failures[0])

    def test_a_skip_skips_once(self):
        result = Result("Skips*")
        self.assertEqual(result.status, 0, result.output)
        for engine in ENGINES:
            for case, text in (("SkipsOnOneRank", "rank 1: no GPU here"), ("SkipsOnAllRanks", "no GPU anywhere")):
                element = result.cases[f"{case}/{engine}"]
                self.assertEqual(element.get("result"), "skipped")
                skips = element.findall("skipped")
                self.assertEqual(len(skips), 1)
                self.assertIn(text, skips[0].get("message"))
        self.assertIn("SKIPPED", result.output)
        self.assertNotIn("FAILED", result.output)

    def test_captured_output_is_shown_under_its_ranks(self):
        for engine in ENGINES:
            _, result = self.failures_on("WithOutput", engine)
            self.assertIn("rank 0 | I lead\nranks 1-2 | I follow\n", result.output)

    def command_after(self, label, text):
        found = re.search(label + r": (.*)$", text, re.MULTILINE)
        self.assertTrue(found, text)
        return found.group(1)

    def check_repeats(self, case, engine, want):
        """The case fails at some seed; both commands that it prints fail in the same way."""
        failures, _ = self.failures_on(case, engine)
        self.assertEqual(len(failures), 1)
        self.assertIn(want, failures[0])
        seed = re.search(r"schedule seeded:(\d+) \((\d+) of at most 100\)", failures[0])
        self.assertTrue(seed, failures[0])
        self.assertEqual(seed.group(1), seed.group(2))  # the first that fails
        rerun = self.command_after("run it again", failures[0])
        self.assertTrue(rerun.startswith(f"RANKLOOM_ENGINE={engine} RANKLOOM_SEED={seed.group(1)} "), rerun)
        self.assertTrue(rerun.endswith(f"--gtest_filter=Engines/Failing.{case}/{engine}"), rerun)
        again = Result(None, command=rerun)
        self.assertEqual(again.status, 1, again.output)
        self.assertIn(want, again.output)
        return failures[0]

    def check_replays(self, text, want):
        replay = self.command_after("replay it", text)
        replayed = Result(None, command=replay)
        self.assertEqual(replayed.status, 1, replayed.output)
        self.assertIn(want, replayed.output)
        self.assertNotIn("diverge", replayed.output)
        return replay

    def test_a_race_found_by_a_seed_repeats(self):
        for engine in ENGINES:
            want = "rank 0: Expected equality of these values:\n  rank.store().get(\"count\")\n"
            text = self.check_repeats("UnderSomeSeedOnARank", engine, want)
            replay = self.check_replays(text, want)
            trace = re.search(r"RANKLOOM_REPLAY=(\S+)", replay).group(1)
            self.assertEqual(trace, os.path.join(TRACES, f"{os.path.basename(PROGRAM)}.Engines_Failing."
                                                         f"UnderSomeSeedOnARank_{engine}.rltrace"))

    def test_the_command_leaves_out_what_belongs_to_the_session(self):
        case = "Engines/Failing.UnderSomeSeedOnARank/fibers"
        listener = socket.create_server(("localhost", 0))
        self.addCleanup(listener.close)
        for flags in ([], ["--gtest_shuffle", "--gtest_repeat=1", "--gtest_random_seed=5"],
                      [f"--gtest_output=xml:{TRACES}/with a space.xml"],
                      [f"--gtest_stream_result_to=localhost:{listener.getsockname()[1]}"]):
            result = Result(None, command=[PROGRAM, *flags, f"--gtest_filter={case}:No.Such*", "--gtest_color=no"])
            rerun = self.command_after("run it again", result.output)
            self.assertRegex(rerun, r"^RANKLOOM_ENGINE=fibers RANKLOOM_SEED=\d+ \S+ --gtest_color=no --gtest_filter="
                             + re.escape(case) + "$")

    def test_without_the_race_no_seed_fails(self):
        result = Result("UnderNoSeedWithoutTheRace/*")
        self.assertEqual(result.status, 0, result.output)
        for engine in ENGINES:
            properties = result.properties(f"UnderNoSeedWithoutTheRace/{engine}")
            self.assertEqual((properties["schedule"], properties["seed"]), ("seeded:100", "100"))

    def test_a_failure_after_the_run_names_the_seed_too(self):
        for engine in ENGINES:
            self.check_repeats("UnderSomeSeedAfterTheRun", engine, "after the run")

    def test_a_trace_is_replayed_in_the_world_that_left_it(self):
        for engine in ENGINES:
            text = self.check_repeats("InTheSecondWorldOfASeed", engine, "Expected equality")
            replay = self.check_replays(text, "Expected equality")
            self.assertTrue(replay.startswith("RANKLOOM_REPLAY_RUN=2 "), replay)

    def test_a_clock_that_leaks_is_named(self):
        for engine in ENGINES:
            failures, _ = self.failures_on("BecauseOfAClock", engine)
            self.assertRegex(failures[0], r'two runs under seeded:3 differ\n.*store: first run: key "time" = "\d+"; second run: key "time"')

    def test_the_environment_chooses_engine_and_schedule(self):
        result = Result("Passes*", {"RANKLOOM_ENGINE": "fibers", "RANKLOOM_SCHEDULE": "pct:3:2"})
        self.assertEqual(list(result.cases), ["Passes/fibers"])
        self.assertEqual(result.properties("Passes/fibers"),
                         {"world_size": "3", "engine": "fibers", "schedule": "pct:3:2", "seed": "3"})

    def test_a_failure_ends_with_the_file_of_its_run(self):
        """Once, whatever failed; the file has what only GoogleTest knew."""
        cases = {"OnOneRank": "failing_cases.cc:", "FatallyWhileOthersWait": "fatal on rank 1", "ByException": "no disk",
                 "ByDeadlock": "no rank can move", "ToFail": "", "UnderSomeSeedOnARank": "Expected equality",
                 "InTheSecondWorldOfASeed": "Expected equality", "WhenExplored": "came",
                 "WhenExploredForAReport": "came"}
        for case, said in cases.items():
            for engine in ENGINES:
                with self.subTest(case=case, engine=engine), tempfile.TemporaryDirectory() as folder:
                    result = Result(f"{case}/{engine}", {"RANKLOOM_REPORT": f"{folder}/made"})
                    second = ".run2" if case == "InTheSecondWorldOfASeed" else ""
                    path = f"{folder}/made/{os.path.basename(PROGRAM)}.Engines_Failing.{case}_{engine}{second}.rlrun"
                    line = f"run file: {path}; see it: rankloom report {path} -o run.html"
                    failures = result.failures(f"{case}/{engine}")
                    # GoogleTest puts its traces, which seeds() makes, behind what it is told.
                    told = failures[-1].split("\nGoogle Test trace:\n")[0]
                    self.assertEqual(told.splitlines()[-1], line, failures[-1])
                    self.assertEqual("".join(failures).count("run file: "), 1)
                    self.assertEqual(result.output.count("run file: "), 1, result.output)
                    self.assertEqual(os.listdir(f"{folder}/made"), [os.path.basename(path)])
                    run = run_file.read(path)
                    self.assertIn(said, f"{run.run['text']} {run.run.get('failures')}")
                    self.assertIn(f"Engines/Failing.{case}/{engine}" if run.run["schedule"] != "free" else "", run.run["rerun"])
                    self.assertTrue(run.run["ok"] or run.headline() != "All ranks returned")

    def test_a_passing_test_and_a_skip_leave_no_file(self):
        with tempfile.TemporaryDirectory() as folder:
            for case in ("Passes/*", "Skips*", "NoneWhenExplored/*", "UnderNoSeedWithoutTheRace/*"):
                result = Result(case, {"RANKLOOM_REPORT": f"{folder}/made"})
                self.assertEqual(result.status, 0, result.output)
                self.assertNotIn("run file", result.output)
            self.assertFalse(os.path.exists(f"{folder}/made"))

    def test_two_runs_that_should_be_alike_leave_both_files(self):
        for engine in ENGINES:
            with self.subTest(engine), tempfile.TemporaryDirectory() as folder:
                result = Result(f"BecauseOfAClock/{engine}", {"RANKLOOM_REPORT": folder})
                name = f"{folder}/{os.path.basename(PROGRAM)}.Engines_Failing.BecauseOfAClock_{engine}.alike"
                first, second = f"{name}.first.rlrun", f"{name}.second.rlrun"
                (failure,) = result.failures(f"BecauseOfAClock/{engine}")
                self.assertIn(f"\n  run files: {first}, {second}; see them beside each other: rankloom report {first} {second} -o both.html",
                              failure)
                values = [[op.given for op in run_file.read(path).store_of(1) if op.op == "set"] for path in (first, second)]
                self.assertRegex(f"{values}", r"^\[\['\d+'\], \['\d+'\]\]$")
                self.assertNotEqual(*values)

    def test_failures_are_coloured_on_a_terminal_only(self):
        head = "rank 2 failed: no disk (std::runtime_error)"

        def on_terminal(folder, *flags, **env):
            ours, theirs = pty.openpty()
            command = [PROGRAM, "--gtest_filter=Engines/Failing.ByException/fibers", f"--gtest_output=xml:{folder}/out.xml", *flags]
            with subprocess.Popen(command, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", **env}):
                os.close(theirs)
                out = b""
                with contextlib.suppress(OSError):  # EIO is a terminal's end
                    while part := os.read(ours, 65536):
                        out += part
            os.close(ours)
            with open(f"{folder}/out.xml", encoding="utf-8") as xml:
                self.assertNotIn("[31;1m", xml.read())
            return out.decode()

        with tempfile.TemporaryDirectory() as folder:
            shown = on_terminal(folder, NO_COLOR="")
            self.assertRegex(shown, r"failing_cases\.cc:\d+: Failure\r\n\x1b\[31;1m" + re.escape(head) + r"\x1b\[0m\r\nranks 0-1 stopped for it")
            self.assertEqual(shown.count("[  FAILED  ]"), 3, shown)  # GoogleTest prints all that it did
            refused = [([f"--gtest_color={no}"], {"NO_COLOR": ""}) for no in ("no", "NO", "n", "false", "0")]
            for flags, env in (([], {"NO_COLOR": "1"}), ([], {"TERM": "dumb"}), *refused):
                shown = on_terminal(folder, *flags, **env)
                self.assertNotIn("\x1b[31;1m", shown)
                self.assertIn(f"Failure\r\n{head}\r\nranks 0-1 stopped for it", shown)
        self.assertNotIn("\x1b[31;1m", Result("ByException/fibers").output)

    def test_a_folder_that_cannot_be_made_is_named(self):
        with tempfile.NamedTemporaryFile() as file:
            result = Result("OnOneRank/threads", {"RANKLOOM_REPORT": file.name})
            last = result.failures("OnOneRank/threads")[0].splitlines()[-1]
            self.assertRegex(last, r'^no run file: file "' + re.escape(file.name) + r'/.*": cannot be written: Not a directory$')

    def test_the_environment_is_for_the_run_that_it_names(self):
        own = Result("Passes/fibers").properties("Passes/fibers")["schedule"]
        asked = {"RANKLOOM_SCHEDULE": "pct:3:2"}
        for run, schedule in (("1", "pct:3:2"), ("2", own)):
            result = Result("Passes/fibers", asked | {"RANKLOOM_REPLAY_RUN": run})
            self.assertEqual(result.status, 0, result.output)
            self.assertEqual(result.properties("Passes/fibers")["schedule"], schedule)
        self.assertNotEqual(own, "pct:3:2")

    def test_nonsense_in_the_environment_fails_each_test(self):
        for name, value in (("RANKLOOM_SEED", "many"), ("RANKLOOM_ENGINE", "steam"), ("RANKLOOM_REPLAY", "/no/such/file"),
                            ("RANKLOOM_REPLAY_RUN", "0"), ("RANKLOOM_STALL_IS_FATAL", "-1s"), ("RANKLOOM_SCHEDULE", "seeded")):
            result = Result("Passes/threads", {name: value})
            self.assertEqual(result.status, 1, result.output)
            self.assertEqual(len(result.failures("Passes/threads")), 1)
            self.assertIn(name, result.failures("Passes/threads")[0])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as TRACES:
        unittest.main()
