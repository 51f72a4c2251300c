"""rankloom-mpi as it is installed, of archives and of shared libraries: its archive has objects of its own only, and a program that is
built against it, by pkg-config and by CMake, runs under mpirun.

    mpi_install_test.py BUILD_FOLDER IMPLEMENTATION librankloom-of-tests.so COMPILER...
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests/mpi"))
import mpi_job  # noqa: E402

BUILD, IMPLEMENTATION, SHARED_LIBRARY, *COMPILER = sys.argv[1:]
SOURCE = ROOT / "examples/one_source.cc"
SAID = "4 ranks add up to 6\n"
CMAKE = """cmake_minimum_required(VERSION 3.20)
project(one_source CXX)
find_package(rankloom REQUIRED COMPONENTS mpi)
add_executable(one_source %s)
target_link_libraries(one_source PRIVATE rankloom::mpi)
"""


def output_of(*command, **options):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **options)
    assert done.returncode == 0, f"{command}:\n{done.stdout}"
    return done.stdout


def defined(archive):
    """The strong symbols that an archive defines, each as often as it does."""
    lines = output_of("nm", "--defined-only", "--extern-only", archive).splitlines()
    parts = (line.split() for line in lines)
    return [part[2] for part in parts if len(part) == 3 and part[1] in "TDBR"]


class MpiInstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.work.name)
        output_of("meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", str(cls.root))
        cls.packages = next(cls.root.rglob("rankloom-mpi.pc")).parent
        cls.libraries = cls.packages.parent

    @classmethod
    def tearDownClass(cls):
        cls.work.cleanup()

    def flags(self, *arguments):
        environment = {**os.environ, "PKG_CONFIG_PATH": str(self.packages)}
        return output_of("pkg-config", *arguments, "rankloom-mpi", env=environment).split()

    def runs(self, program, **environment):
        with unittest.mock.patch.dict(os.environ, environment):
            done = mpi_job.run(IMPLEMENTATION, 4, program)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout.count(SAID), 1, done.stdout)

    def test_no_symbol_is_in_two_archives(self):
        mpi = defined(self.libraries / "librankloom-mpi.a")
        self.assertTrue([name for name in mpi if "run_mpi_world" in name])
        self.assertEqual(len(mpi), len(set(mpi)))
        core = self.libraries / "librankloom.a"
        if core.exists():
            self.assertEqual(set(mpi) & set(defined(core)), set())

    def test_by_pkg_config(self):
        program = self.root / "by_pkg_config"
        output_of(*COMPILER, "-std=c++20", SOURCE, "-o", program, *self.flags("--cflags", "--libs"))
        self.runs(program, LD_LIBRARY_PATH=str(self.libraries))

    def test_by_cmake(self):
        source = self.root / "cmake"
        source.mkdir()
        # mpi.h would want the library of MPI's C++ bindings.
        (source / "with_mpi.cc").write_text(f'#include <mpi.h>\n#include "{SOURCE}"\n')
        (source / "CMakeLists.txt").write_text(CMAKE % "with_mpi.cc")
        prefix = output_of("pkg-config", "--variable=prefix", "rankloom-mpi",
                           env={**os.environ, "PKG_CONFIG_PATH": str(self.packages)}).strip()
        output_of("cmake", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={os.path.realpath(prefix)}",
                  f"-DCMAKE_CXX_COMPILER={COMPILER[-1]}")
        output_of("cmake", "--build", source / "build")
        self.runs(source / "build/one_source", LD_LIBRARY_PATH=str(self.libraries))

    # The library as -Ddefault_library=shared makes it stands in for the archive.
    def test_with_a_shared_library(self):
        if not (self.libraries / "librankloom.a").exists():
            return  # the tests above had it
        shared = self.root / "shared"
        shared.mkdir()
        shutil.copy(self.libraries / "librankloom-mpi.a", shared)
        shutil.copy(SHARED_LIBRARY, shared / "librankloom.so")
        soname = output_of("readelf", "-d", SHARED_LIBRARY).split("(SONAME)")[1].split("[")[1].split("]")[0]
        (shared / soname).symlink_to("librankloom.so")
        flags = [flag for flag in self.flags("--cflags", "--libs") if not flag.endswith("/librankloom.a")]
        program = shared / "one_source"
        output_of(*COMPILER, "-std=c++20", SOURCE, "-o", program, f"-L{shared}", *flags)
        self.assertIn(soname, output_of("readelf", "-d", program))
        self.runs(program, LD_LIBRARY_PATH=str(shared))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
