"""The words of tools/test_summary.py about a run: the counts, and of each failure why."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
import test_summary

CASES = """<testsuites><testsuite><testcase name="Adds" classname="SumTest" status="run"/>
<testcase name="Carries" classname="SumTest" status="run"><failure message="sum_test.cc:7&#x0A;Expected: 10&#x0A;Actual: 0"/></testcase>
<testcase name="OnAGpu" classname="SumTest" status="run"><skipped message="no GPU"/></testcase></testsuite></testsuites>"""


class TestSummaryTest(unittest.TestCase):
    def summary_of(self, *records, cases=""):
        """(exit status, lines) after a run of tests that left these records; `cases`: GoogleTest's file of each."""
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder).resolve()
            (build / "meson-logs").mkdir()
            if cases:
                (build / "sum_test.xml").write_text(cases)
            filled = [{"returncode": 1, "stdout": "", "stderr": "", "command": [str(build / "sum_test")], **r} for r in records]
            (build / "meson-logs" / "testlog.json").write_text("\n".join(map(json.dumps, filled)))
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                status = test_summary.main([str(build)])
            return status, said.getvalue().splitlines()

    def test_cases_are_counted_and_those_that_fail_say_why(self):
        status, lines = self.summary_of({"name": "rankloom:sim / sum_test", "result": "FAIL"}, cases=CASES)
        self.assertEqual(status, 1)
        self.assertEqual(lines, ["FAILED rankloom:sim / sum_test: SumTest.Carries", "    SumTest.Carries:", "    sum_test.cc:7",
                                 "    Expected: 10", "    Actual: 0", "1 passed, 1 failed, 1 skipped"])

    def test_cases_stand_in_the_folder_in_which_the_program_ran(self):
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder).resolve()
            (build / "meson-logs").mkdir()
            (build / "meson-info").mkdir()
            tests = []
            for suite, passes in (("sim", 2), ("world", 3)):
                ran_in = build / "tests" / suite
                ran_in.mkdir(parents=True)
                cases = "".join(f'<testcase name="C{i}" classname="T" status="run"/>' for i in range(passes))
                (ran_in / "sum_test.xml").write_text(f"<testsuites>{cases}</testsuites>")
                tests.append({"name": "sum_test", "suite": [f"rankloom:{suite}"], "workdir": str(ran_in)})
            (build / "meson-info" / "intro-tests.json").write_text(json.dumps(tests))
            log = [{"name": f"rankloom:{suite} / sum_test", "result": "OK", "returncode": 0, "command": [str(build / "tests" / f"{suite}_sum_test")]}
                   for suite in ("sim", "world")]
            (build / "meson-logs" / "testlog.json").write_text("\n".join(map(json.dumps, log)))
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                self.assertEqual(test_summary.main([str(build)]), 0)
            self.assertEqual(said.getvalue(), "5 passed, 0 failed, 0 skipped\n")

    def test_a_process_of_a_job_is_quoted_from_the_midst_of_what_the_job_wrote(self):
        noise = "".join(f"mpirun: line {line}\n" for line in range(40))
        said = "process 1: sum_test.cc:9: Value of: ok\n  Actual: false\n"
        status, lines = self.summary_of({"name": "mpi_sum", "result": "FAIL", "stdout": "\x1b[32m[ OK ]\x1b[m\n",
                                         "stderr": said + noise})
        self.assertEqual((status, lines[:3]), (1, ["FAILED mpi_sum (FAIL)", "    process 1: sum_test.cc:9: Value of: ok",
                                                   "      Actual: false"]))
        self.assertEqual(lines[-1], "0 passed, 1 failed, 0 skipped")

    def test_a_program_that_tells_of_no_failure_is_quoted_from_its_end(self):
        _, lines = self.summary_of({"name": "silent", "result": "TIMEOUT", "stdout": "".join(f"step {n}\n" for n in range(90))})
        self.assertEqual(lines, ["FAILED silent (TIMEOUT)", *[f"    step {n}" for n in range(78, 90)], "0 passed, 1 failed, 0 skipped"])

    def test_what_a_program_notes_is_shown_though_it_went_well(self):
        status, lines = self.summary_of({"name": "campaign_test", "result": "OK", "stdout": "[ RUN ]\nnoted: seeds 5 to 9: 5 jobs\n[ OK ]\n"})
        self.assertEqual((status, lines), (0, ["campaign_test: seeds 5 to 9: 5 jobs", "1 passed, 0 failed, 0 skipped"]))

    def test_a_run_of_nothing_fails(self):
        self.assertEqual(self.summary_of(), (1, ["no test ran", "0 passed, 0 failed, 0 skipped"]))


if __name__ == "__main__":
    unittest.main()
