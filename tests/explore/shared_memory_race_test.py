"""ThreadSanitizer finds the race of shared_memory_race.cc: shared_memory_race_test.py PROGRAM"""

import pathlib
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().with_name("shared_memory_race.cc")


class SharedMemoryRaceTest(unittest.TestCase):
    def test_is_reported_with_its_line(self):
        run = subprocess.run([program], capture_output=True, text=True, timeout=60)
        line = next(i for i, text in enumerate(SOURCE.read_text().splitlines(), 1) if "// the race" in text)
        self.assertIn("WARNING: ThreadSanitizer: data race", run.stderr)
        self.assertIn(f"shared_memory_race.cc:{line}", run.stderr)
        self.assertNotEqual(run.returncode, 0)


if __name__ == "__main__":
    program = sys.argv.pop(1)
    unittest.main()
