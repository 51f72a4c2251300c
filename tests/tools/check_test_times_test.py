"""Shows tools/check_test_times.py tests that took long, by the log of a run that tools/time_test timed."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
sys.dont_write_bytecode = True
import check_test_times  # noqa: E402


def record(name, seconds):
    return {"name": name, "duration": 1000, "stderr": f"a warning\ncpu seconds: {seconds - 0.25} + 0.250\n"}


class CheckTestTimesTest(unittest.TestCase):
    def findings(self, records, limit, multiplier=1):
        return check_test_times.check(records, {"p:s / a": limit}, multiplier)[0]

    def test_tells_what_took_too_long(self):
        self.assertEqual(self.findings([record("p:s / a", 151)], 700),
                         ["p:s / a took 151 s of processor time; 150 s are the most"])
        self.assertEqual(check_test_times.check([record("p:s / mpi_a", 151)], {"p:s / mpi_a": 700}, 1), ([], 1))
        self.assertEqual(self.findings([record("p:s / a", 31)], 60),
                         ["p:s / a took 31 s of processor time, more than 1/2 of its limit of 60 s"])
        self.assertEqual(self.findings([record("p:s / a", 121)], 60, multiplier=4),
                         ["p:s / a took 121 s of processor time, more than 1/2 of its limit of 240 s"])

    def test_takes_no_offence_at_the_clock_on_the_wall(self):
        self.assertEqual(self.findings([record("p:s / a", 30)], 60), [])
        self.assertEqual(self.findings([record("p:s / a", 59)], 120), [])
        self.assertEqual(self.findings([record("p:s / a", 119)], 60, multiplier=4), [])
        self.assertEqual(check_test_times.check([{"name": "p:s / a", "duration": 1000}], {"p:s / a": 60}, 1), ([], 0))

    def test_the_wrapper_changes_neither_streams_nor_status(self):
        run = subprocess.run([TOOLS / "time_test", "bash", "-c", "echo out; echo err >&2; exit 77"], capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stdout), (77, "out\n"))
        self.assertTrue(run.stderr.startswith("err\ncpu seconds: "), run.stderr)
        self.assertLess(check_test_times.cpu_seconds({"stderr": run.stderr}), 5)
        burns = "import time\nwhile time.process_time() < 0.2: pass"
        run = subprocess.run([TOOLS / "time_test", sys.executable, "-c", burns], capture_output=True, text=True)
        self.assertGreaterEqual(check_test_times.cpu_seconds({"stderr": run.stderr}), 0.2)

    def test_finds_a_log_and_its_limits_in_a_build_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {
                "meson-logs/testlog-time_test.json": json.dumps(record("p:s / a", 40)) + "\n",
                "meson-info/intro-tests.json": json.dumps([{"name": "a", "suite": ["p:s"], "timeout": 60}]),
            }.items():
                file = pathlib.Path(folder) / name
                file.parent.mkdir()
                file.write_text(text, encoding="utf-8")
            run = subprocess.run([TOOLS / "check_test_times.py", folder], capture_output=True, text=True)
            self.assertEqual(run.stdout.splitlines(), [
                "p:s / a took 40 s of processor time, more than 1/2 of its limit of 60 s",
                "check_test_times: 1 tests, 1 findings; most processor time: 40.0 s, p:s / a"])
            self.assertEqual(run.returncode, 1)


if __name__ == "__main__":
    unittest.main()
