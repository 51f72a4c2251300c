"""Debug builds and those with a sanitizer check the order of locks in all sources; others in lock_order_test only.

    lock_check_test.py BUILD_FOLDER COMPILER..."""

import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MACRO = "-DRANKLOOM_CHECK_LOCK_ORDER"


def checked(folder):
    """Of each C++ source that the build folder compiles, by its output: whether locks are checked in it."""
    commands = json.loads((folder / "compile_commands.json").read_text())
    return {command["output"]: MACRO in shlex.split(command["command"]) for command in commands}


def option(folder, name):
    options = json.loads((folder / "meson-info" / "intro-buildoptions.json").read_text())
    return next(one["value"] for one in options if one["name"] == name)


class LockCheckTest(unittest.TestCase):
    def test_this_build(self):
        sources = checked(build)
        library = [is_checked for output, is_checked in sources.items() if "rankloom_sim" in output or "rankloom_world" in output]
        self.assertGreater(len(library), 20)
        on = option(build, "b_sanitize") != "none" or option(build, "buildtype") == "debug"
        self.assertEqual(set(library), {on})
        test = [is_checked for output, is_checked in sources.items() if "lock_order_test" in output or "checked_sim" in output]
        self.assertEqual(set(test), {True})

    def test_a_debug_build(self):
        with tempfile.TemporaryDirectory() as folder:
            command = ["meson", "setup", folder, ROOT, "-Dbuildtype=debug", "-Dbench=false", "-Dexamples=false", "-Dcuda=disabled"]
            done = subprocess.run(command, env={**os.environ, "CXX": shlex.join(compiler)}, capture_output=True, text=True, timeout=240)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            sources = checked(pathlib.Path(folder))
        self.assertGreater(len(sources), 200)
        self.assertEqual([output for output, is_checked in sources.items() if not is_checked], [])
        # Of the library itself, and no second one.
        self.assertTrue(any("lock_order_test" in output for output in sources))
        self.assertFalse(any("checked_sim" in output for output in sources))


if __name__ == "__main__":
    build, compiler = pathlib.Path(sys.argv[1]), sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
