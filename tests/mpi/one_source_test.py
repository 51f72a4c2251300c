"""examples/one_source alone and under mpirun: the same output.

    one_source_test.py IMPLEMENTATION one_source
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
import mpi_job  # noqa: E402

IMPLEMENTATION, PROGRAM = sys.argv[1:3]
ROOT = pathlib.Path(__file__).resolve().parents[2]
SAID = "4 ranks add up to 6\n"
LAUNCHERS = re.compile(r"OMPI_|PMI")


class OneSourceTest(unittest.TestCase):
    def test_in_one_process(self):
        alone = {name: value for name, value in os.environ.items() if not LAUNCHERS.match(name)}
        done = subprocess.run([PROGRAM], env=alone, text=True, timeout=60, capture_output=True)
        self.assertEqual((done.returncode, done.stdout), (0, SAID), done.stderr)

    def test_under_mpirun(self):
        done = mpi_job.run(IMPLEMENTATION, 4, PROGRAM)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout.count(SAID), 1, done.stdout)

    def test_under_mpirun_with_another_number_of_ranks(self):
        done = mpi_job.run(IMPLEMENTATION, 2, PROGRAM, fails=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("ranks 0-1 failed: the sum is wrong (std::runtime_error)", done.stdout)

    def test_the_page_shows_it(self):
        source = (ROOT / "examples/one_source.cc").read_text()
        page = (ROOT / "docs/cluster.md").read_text()
        shown = re.search(r"```cpp\n(.*?)```", page, re.DOTALL).group(1)
        self.assertIn(shown, source)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
