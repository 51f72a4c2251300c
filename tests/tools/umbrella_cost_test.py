"""Gives tools/umbrella_cost.py a compiler that needs a known time, and looks at the ratio and the exit status."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "umbrella_cost.py"
COMPILER = """
import sys, time
while time.process_time() < (0.4 if sys.argv[-1].endswith("umbrella.cc") else 0.1): pass
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

    def test_a_header_that_does_not_compile_has_no_cost(self):
        run = self.run_script("import sys; sys.exit(1)")
        self.assertNotEqual(run.returncode, 0)
        self.assertEqual(run.stdout, "")


if __name__ == "__main__":
    unittest.main()
