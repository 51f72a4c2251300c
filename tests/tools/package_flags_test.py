"""Asks tools/package_flags.py for packages that are written here."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "package_flags.py"


class PackageFlagsTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def write(self, name, requires="", libs=None, cflags=""):
        libs = f"-l{name}" if libs is None else libs
        (self.folder / f"{name}.pc").write_text(
            f"prefix={self.folder}\nlibdir=${{prefix}}/lib\n\nName: {name}\nDescription: {name}  # of a test\nVersion: 1\n"
            f"Requires: {requires}\nLibs: -L${{libdir}} {libs}\nCflags: {cflags}\n", encoding="utf-8")

    def run_script(self, *names):
        return subprocess.run([sys.executable, SCRIPT, "pkg-config", *names], capture_output=True, text=True, timeout=30, check=False,
                              env={**os.environ, "PKG_CONFIG_PATH": str(self.folder)})

    def flags(self, *names):
        run = self.run_script(*names)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return [line.split() for line in run.stdout.split("\n")[:2]]

    def libs(self, *names):
        return [flag for flag in self.flags(*names)[1] if flag.startswith("-l") or "/lib" not in flag]

    def test_libraries_stand_before_those_that_they_need(self):
        self.write("bottom")
        self.write("left", "bottom >= 1")
        self.write("right", "bottom = 1, left")
        self.write("top", "left, right")
        self.assertEqual(self.libs("top"), ["-ltop", "-lright", "-lleft", "-lbottom"])
        self.assertEqual(self.libs("bottom", "left", "top"), ["-ltop", "-lright", "-lleft", "-lbottom"])

    def test_each_package_is_read_once_on_however_many_paths_it_is_required(self):
        self.write("p0")
        self.write("q0")
        for i in range(1, 80):  # 2 ** 80 paths
            self.write(f"p{i}", f"p{i - 1}, q{i - 1}")
            self.write(f"q{i}", f"p{i - 1}, q{i - 1}")
        libs = self.libs("p79")
        self.assertEqual((len(libs), libs[0]), (159, "-lp79"))

    def test_packages_stand_in_several_folders(self):
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        self.write("other")
        (self.folder / "other.pc").rename(elsewhere / "other.pc")
        self.write("mine", "other")
        run = subprocess.run([sys.executable, SCRIPT, "pkg-config", "mine"], capture_output=True, text=True, timeout=30, check=False,
                             env={**os.environ, "PKG_CONFIG_PATH": f"{self.folder}:{elsewhere}"})
        self.assertEqual([flag for flag in run.stdout.split() if flag.startswith("-l")], ["-lmine", "-lother"])

    def test_a_pkg_config_for_another_machine_has_folders_of_its_own(self):
        for folder in "host", "target":
            (self.folder / folder).mkdir()
            for name, requires in ("wanted", "needed"), ("needed", ""):
                self.write(name, requires, f"-l{name}_of_{folder}")
                (self.folder / f"{name}.pc").rename(self.folder / folder / f"{name}.pc")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PKG_CONFIG")}
        cross = self.folder / "cross-pkg-config"
        for personality, machine in (f"echo DefaultSearchPaths: {self.folder}/none {self.folder}/target", "target"), ("exit 1", "host"):
            cross.write_text(f"#!/bin/sh\ncase $1 in --dump-personality) {personality} ;; *) echo {self.folder}/host ;; esac\n", encoding="utf-8")
            cross.chmod(0o755)
            run = subprocess.run([sys.executable, SCRIPT, cross, "wanted"], capture_output=True, text=True, timeout=30, check=False,
                                 env=environment)
            libs = [flag for flag in run.stdout.split() if flag.startswith("-l")]
            self.assertEqual(libs, [f"-lwanted_of_{machine}", f"-lneeded_of_{machine}"], run.stderr)

    def test_folders_outside_of_the_system_are_passed_on_and_its_include_folder_is_not(self):
        self.write("own", cflags="-I/usr/include -I/opt/own -DOWN")
        compiler, linker = self.flags("own")
        self.assertEqual(compiler, ["-isystem/opt/own", "-DOWN"])
        self.assertEqual(linker, [f"-L{self.folder}/lib", f"-Wl,-rpath,{self.folder}/lib", "-lown"])
        self.write("system", libs="-L/usr/lib/x86_64-linux-gnu -lsystem")
        self.assertNotIn("-L/usr/lib/x86_64-linux-gnu", self.flags("system")[1])

    def test_what_stands_between_push_and_pop_stays_together(self):
        for name, extra in ("a", "b"), ("b", ""):
            self.write(name, extra, f"-l{name} -Wl,--push-state,--as-needed -l{name}{name} -Wl,--pop-state")
        state = ["-Wl,--push-state,--as-needed", "-laa", "-Wl,--pop-state"]
        self.assertEqual(self.libs("a"), ["-la", *state, "-lb", state[0], "-lbb", state[2]])

    def test_archives_are_named_by_their_paths_where_there_are_any(self):
        self.write("with_archive", "without")
        self.write("without")
        (self.folder / "lib").mkdir()
        (self.folder / "lib" / "libwith_archive.a").touch()
        self.assertEqual(self.flags("with_archive", "--static")[1][-2:], [f"{self.folder}/lib/libwith_archive.a", "-lwithout"])

    def test_a_package_that_is_missing_is_named(self):
        self.write("needy", "not_there")
        for name in "needy", "not_there":
            run = self.run_script(name)
            self.assertEqual((run.returncode, run.stdout), (1, ""))
            self.assertRegex(run.stderr, r"^package_flags: .*not_there")


if __name__ == "__main__":
    unittest.main()
