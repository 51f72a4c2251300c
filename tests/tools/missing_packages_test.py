"""Runs tools/missing_packages.py, and ./dev, where there is no apt."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "missing_packages.py"
PROGRAMS = ["bash", "basename", "dirname", "env", "git", "nproc", "pkg-config", "meson", "ninja", "c++", "g++"]


class MissingPackagesTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "bin").mkdir()
        (self.folder / "packages").mkdir()
        for program in PROGRAMS:
            os.symlink(shutil.which(program), self.folder / "bin" / program)
        os.symlink(sys.executable, self.folder / "bin" / "python3")
        for name in "absl_base", "tbb", "libhwy", "gtest", "gmock":
            (self.folder / "packages" / f"{name}.pc").write_text(f"Name: {name}\nDescription: {name}\nVersion: 1\n", encoding="utf-8")

    def run_command(self, *command):
        environment = {"PATH": str(self.folder / "bin"), "PKG_CONFIG_LIBDIR": str(self.folder / "packages"), "HOME": str(self.folder)}
        return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=environment)

    def script(self, *arguments):
        return self.run_command(str(self.folder / "bin" / "python3"), SCRIPT, *arguments)

    def test_says_nothing_where_all_is_there(self):
        run = self.script()
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "", ""))

    def test_names_what_is_missing_by_its_packages(self):
        (self.folder / "packages" / "absl_base.pc").unlink()
        (self.folder / "packages" / "gmock.pc").unlink()
        (self.folder / "bin" / "meson").unlink()
        run = self.script()
        self.assertEqual((run.returncode, run.stdout), (1, ""))
        self.assertEqual(run.stderr.splitlines(), [
            "missing, and there is no apt here to install it:",
            "  Meson 1.0.1, Ninja: Fedora meson ninja-build, Arch meson ninja, Homebrew meson ninja",
            "  Abseil 20220623 (absl_base and others): Fedora abseil-cpp-devel, Arch abseil-cpp, Homebrew abseil",
            "  GoogleTest 1.12, for rankloom-testing (gtest, gmock): Fedora gtest-devel gmock-devel, Arch gtest, Homebrew googletest",
        ])

    def test_every_package_is_missing_without_pkg_config(self):
        (self.folder / "bin" / "pkg-config").unlink()
        lines = self.script().stderr.splitlines()
        self.assertIn("  pkg-config: Fedora pkgconf-pkg-config, Arch pkgconf, Homebrew pkgconf", lines)
        self.assertEqual(len(lines), 6)

    def test_dev_says_so_in_place_of_a_missing_apt(self):
        (self.folder / "packages" / "tbb.pc").unlink()
        run = self.run_command("bash", ROOT / "dev", "build", "no_such_target")
        self.assertEqual(run.returncode, 1)
        self.assertIn("  oneTBB 2021.8 (tbb): Fedora tbb-devel, Arch onetbb, Homebrew tbb\n", run.stderr)


if __name__ == "__main__":
    unittest.main()
