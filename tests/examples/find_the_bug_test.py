#!/usr/bin/env python3
"""examples/find_the_bug prints what README.md shows, but for the time it took, and its rerun command fails again.

Usage: find_the_bug_test.py PROGRAM README
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
README = pathlib.Path(sys.argv.pop(1))
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("RANKLOOM_")}
FOUND = "a schedule that fails"


def run(command):
    done = subprocess.run(command, shell=True, cwd=PROGRAM.parent, env=ENVIRONMENT, capture_output=True, text=True,
                          timeout=600, check=False)
    return done.returncode, done.stdout


def without_time(text):
    return re.sub(r" in \S+ s \(\d+ a second\)", "", text)


def shown(first_line_has):
    """The indented block of README.md whose first line says so."""
    for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", README.read_text(), re.MULTILINE):
        lines = [line[4:] for line in block.strip("\n").splitlines()]
        if lines and lines[0].startswith("explored") and first_line_has in lines[0]:
            return without_time("\n".join(lines))
    raise AssertionError(f"{README} shows no run with: {first_line_has}")


class FindTheBugTest(unittest.TestCase):
    maxDiff = None

    def test_finds_what_the_readme_shows(self):
        status, output = run(f"./{PROGRAM.name}")
        self.assertEqual(status, 1)
        self.assertEqual(without_time(output).rstrip(), shown(FOUND))

    def test_the_command_that_it_prints_fails_again(self):
        command = re.search("^run it again: (.*)$", shown(FOUND), re.MULTILINE).group(1)
        status, output = run(command)
        self.assertEqual(status, 1, output)
        self.assertIn(FOUND, output)
        story = "what happened, in this order:\n"
        self.assertEqual(output.split(story)[1].rstrip(), shown(FOUND).split(story)[1])

    def test_the_fix_holds_under_that_schedule_and_all_others(self):
        command = re.search("^run it again: (.*)$", shown(FOUND), re.MULTILINE).group(1)
        status, output = run(f"{command} --fixed")
        self.assertEqual(status, 0, output)
        status, output = run(f"./{PROGRAM.name} --fixed")
        self.assertEqual(status, 0, output)
        self.assertEqual(without_time(output).rstrip(), shown("no failure"))


if __name__ == "__main__":
    unittest.main()
