#!/usr/bin/env python3
"""Holds shared libraries of rankloom to what they may show: a soname with the minor version, and names of namespace rankloom only.

    shared_symbols_test.py LIBRARY...
"""

import re
import subprocess
import sys
import unittest

OWN = re.compile(r"((typeinfo|typeinfo name|vtable|VTT|guard variable|TLS init function|TLS wrapper function) for |"
                 r"(non-)?virtual thunk to )?rankloom::|rankloom_describe$")


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout

LIBRARIES: list[str] = []


class SharedSymbolsTest(unittest.TestCase):
    def test_sonames_have_the_minor_version(self):
        for library in LIBRARIES:
            with self.subTest(library=library):
                self.assertRegex(output_of("readelf", "-d", library), r"\(SONAME\) .*\[librankloom[\w-]*\.so\.\d+\.\d+\]")

    def test_only_names_of_ours_are_shown(self):
        for library in LIBRARIES:
            with self.subTest(library=library):
                shown = [line.split(maxsplit=2)[2] for line in output_of("nm", "-DC", "--defined-only", library).splitlines()]
                self.assertGreater(len(shown), 10)
                # A function's name follows its return type where it is a template.
                self.assertEqual([name for name in shown if not OWN.match(name) and " rankloom::" not in name], [])


if __name__ == "__main__":
    LIBRARIES += sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
