#!/usr/bin/env python3
"""The packed command runs, also with the interpreter that Debian's package names."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class PackCommandTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.command = pathlib.Path(folder.name, "rankloom")
        files = sorted((ROOT / "tools" / "rankloom_command").glob("*.*"))
        subprocess.run([sys.executable, ROOT / "tools" / "pack_command.py", self.command, *files], check=True)

    def assert_runs(self):
        done = subprocess.run([self.command, "--help"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("usage: rankloom ", done.stdout)

    def test_it_runs(self):
        self.assert_runs()

    def test_it_runs_as_debians_package_has_it(self):
        [(before, after)] = re.findall(r"sed -i '1s\|\^(.*)\$\$\|(.*)\|'", (ROOT / "debian" / "rules").read_text())
        packed = self.command.read_bytes()
        self.assertTrue(packed.startswith(f"{before}\n".encode()))
        self.assertEqual(len(after), len(before))  # offsets in the archive count from the file's first byte
        self.command.write_bytes(packed.replace(before.encode(), after.encode(), 1))
        self.assert_runs()


if __name__ == "__main__":
    unittest.main()
