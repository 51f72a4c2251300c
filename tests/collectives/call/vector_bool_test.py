#!/usr/bin/env python3
"""Compiles what must not compile, and checks that the compiler gives our reason.

    vector_bool_test.py SOURCE_ROOT COMPILER...
"""

import subprocess
import sys

REASON = "std::vector<bool> packs bits"
SOURCE = "tests/collectives/call/vector_bool_compile_fail.cc"

root, compiler = sys.argv[1], sys.argv[2:]
for defines in ([], ["-DINPUT"]):
    command = [*compiler, "-std=c++20", "-I.", "-Iinclude", "-fsyntax-only", *defines, SOURCE]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    # One error, so that nobody has to search for the reason.
    if result.returncode == 0 or REASON not in result.stderr or result.stderr.count("error:") != 1:
        sys.exit(f"{' '.join(command)}: exit status {result.returncode}, want one error with '{REASON}', got:\n{result.stderr}")
