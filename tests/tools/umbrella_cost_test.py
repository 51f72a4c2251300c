"""Gives tools/umbrella_cost.py a compiler that needs a known time, and looks at the ratio and the exit status."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "umbrella_cost.py"
COMPILER = """
import sys, time
while time.process_time() < (0.4 if sys.argv[-1].endswith(("umbrella.cc", "testing.cc")) else 0.1): pass
sys.exit("#include" not in open(sys.argv[-1]).read())
"""


class UmbrellaCostTest(unittest.TestCase):
    def run_script(self, text, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            compiler = pathlib.Path(folder) / "compiler.py"
            compiler.write_text(text, encoding="utf-8")
            command = [sys.executable, str(SCRIPT), "--runs", "1", "--compiler", f"{sys.executable} {compiler}", *arguments]
            return subprocess.run(command, capture_output=True, text=True)

    def test_tells_the_ratio_and_holds_it(self):
        run = self.run_script(COMPILER, "--most", "9")
        self.assertEqual(run.returncode, 0, run.stderr)
        ratio = float(re.search(r"ratio ([\d.]+), want at most 9", run.stdout).group(1))
        self.assertGreater(ratio, 1.5)
        self.assertLess(ratio, 8)
        self.assertEqual(self.run_script(COMPILER, "--most", "1.2").returncode, 1)

    def test_tells_what_testing_costs_more_and_holds_it(self):
        run = self.run_script(COMPILER, "--testing-more", "9")
        self.assertEqual(run.returncode, 0, run.stderr)
        more = float(re.search(r"testing.h [\d.]+ s, gmock and gtest [\d.]+, ([\d.]+) more, want at most 9 \(least of 1\)", run.stdout).group(1))
        self.assertGreater(more, 0.15)
        self.assertEqual(self.run_script(COMPILER, "--testing-more", "0.01").returncode, 1)
        headers = "import sys; sys.exit(sys.argv[-1].endswith('testing.cc') and '<rankloom/testing.h>' not in open(sys.argv[-1]).read())"
        self.assertEqual(self.run_script(headers).returncode, 0)

    def test_counts_instructions_of_all_processes(self):
        valgrind = '#!/bin/sh\n' + (
            'for word; do case $word in --log-file=*) log=${word#--log-file=};; *umbrella.cc) count=1,400,000;;'
            ' *floor.cc) count=400,000;; *testing.cc) count=4,400,000;; *googletest.cc) count=1,400,000;; esac; done\n'
            'echo "==7== I   refs:      $count" >"${log%/*}/7"\n'
            'echo "==8== I refs: 600,000" >"${log%/*}/8"\n')
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "valgrind"
            file.write_text(valgrind, encoding="utf-8")
            file.chmod(0o755)
            run = subprocess.run([sys.executable, str(SCRIPT), "--instructions", "--most", "1.2"], capture_output=True, text=True,
                                 env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn("rankloom.h 0.002 thousand million instructions", run.stdout)
        self.assertIn("ratio 2.00, want at most 1.2 (least of 1)", run.stdout)
        self.assertIn("testing.h 0.005 thousand million instructions, gmock and gtest 0.002, 0.003 more (least of 1)", run.stdout)

    def test_a_header_that_does_not_compile_has_no_cost(self):
        run = self.run_script("import sys; sys.exit(1)")
        self.assertNotEqual(run.returncode, 0)
        self.assertEqual(run.stdout, "")


if __name__ == "__main__":
    unittest.main()
