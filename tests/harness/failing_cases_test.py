#!/usr/bin/env python3
"""Runs tests that fail on purpose (failing_cases.cc) and checks what GoogleTest says of them.

    failing_cases_test.py PROGRAM
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

PROGRAM = os.path.abspath(sys.argv.pop())
ENGINES = ("threads", "fibers")
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
        """What the case reports as failed on an engine; it must end as a failure."""
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

    def test_calls_that_are_open_are_named_where_an_assertion_fails(self):
        for engine in ENGINES:
            failures, _ = self.failures_on("ReadingTooEarly", engine)
            early = [f for f in failures if "before the wait" in f]
            self.assertEqual(len(early), 1)
            place = r"\[failing_cases\.cc:\d+\]"
            self.assertRegex(
                early[0], r"ranks 0-2: Value of[^$]*before the wait\n"
                r"outputs hold NaN or 0xEB until their call completes; ranks 0-1 had reduce_scatter_tensor seq 1 "
                + place + r" open; rank 2 had (all_reduce seq 2 " + place + ", )?reduce_scatter_tensor seq 1 " + place)
            for failure in failures:
                if failure not in early:
                    self.assertNotIn("until their call completes", failure)

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

    def test_nonsense_in_the_environment_fails_each_test(self):
        for name, value in (("RANKLOOM_SEED", "many"), ("RANKLOOM_ENGINE", "steam"), ("RANKLOOM_REPLAY", "/no/such/file"),
                            ("RANKLOOM_REPLAY_RUN", "0"), ("RANKLOOM_SCHEDULE", "seeded")):
            result = Result("Passes/threads", {name: value})
            self.assertEqual(result.status, 1, result.output)
            self.assertEqual(len(result.failures("Passes/threads")), 1)
            self.assertIn(name, result.failures("Passes/threads")[0])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as TRACES:
        unittest.main()
