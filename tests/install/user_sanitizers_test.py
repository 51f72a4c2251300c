"""A user's program with a sanitizer, or under Valgrind, on a rankloom that was built without: clean as long as the program
is, and a bug in the program is told with its line.

    user_sanitizers_test.py BUILD_FOLDER COMPILER..."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAM = HERE / "user_sanitizers.cc"
GEARS = [("threads", "free"), ("threads", "seeded:3"), ("fibers", "fifo"), ("fibers", "seeded:3")]
OPTIONS = ("ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "PKG_CONFIG_PATH")


def line_of(mark):
    return next(i for i, text in enumerate(PROGRAM.read_text().splitlines(), 1) if f"// {mark}" in text)


def flags(*packages):
    env = os.environ | {"PKG_CONFIG_PATH": f"{build}/meson-uninstalled:{os.environ.get('PKG_CONFIG_PATH', '')}"}
    command = ["pkg-config", "--cflags", "--libs", *packages]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()


def run(*command, **more):
    env = {name: value for name, value in os.environ.items() if name not in OPTIONS and not name.startswith("RANKLOOM_")}
    return subprocess.run([str(part) for part in command], env=env | more, capture_output=True, text=True, timeout=120)


class UserSanitizersTest(unittest.TestCase):
    maxDiff = None

    def compile(self, *arguments, source=PROGRAM, packages=("rankloom",)):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program = pathlib.Path(folder.name) / "program"
        made = run(*compiler, "-std=c++20", "-g", "-O1", *arguments, source, "-o", program, *flags(*packages))
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        return program

    def expect_clean(self, *command, **more):
        for gear in GEARS:
            with self.subTest(gear=gear):
                done = run(*command, *gear, **more)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "done\n", ""))

    def expect_found(self, text, mark, *command):
        done = run(*command)
        self.assertIn(text, done.stderr)
        self.assertIn(f"user_sanitizers.cc:{line_of(mark)}", done.stderr)
        self.assertNotEqual(done.returncode, 0)
        return done

    def expect_told(self, stderr, rank, point, rerun=""):
        """The rank at which a sanitizer ends the process, where it was, and the command that makes the run again."""
        again = fr"  run it again: .*{rerun} .*/program .*\n" if rerun else ""
        self.assertRegex(stderr, fr"\nrankloom: fatal \(rank {rank}\): ended by the sanitizer, for what it reports above\n"
                                 fr"  {point}\n{again}$")

    def test_address_sanitizer(self):
        program = self.compile("-fsanitize=address")
        self.expect_clean(program)
        self.expect_clean(program, ASAN_OPTIONS="detect_stack_use_after_return=1")
        for gear in GEARS:
            with self.subTest(gear=gear):
                done = self.expect_found("AddressSanitizer: heap-use-after-free", "the use", program, *gear, "use_after_free")
                again = {"free": "", "fifo": "RANKLOOM_SCHEDULE=fifo"}.get(gear[1], "RANKLOOM_SEED=3")
                self.expect_told(done.stderr, 3, r"its last point: barrier seq 1 \[user_sanitizers.cc:\d+\]", again)
                self.expect_found("AddressSanitizer: heap-use-after-free", "the buffer", program, *gear, "freed_buffer")
                self.expect_found("AddressSanitizer: heap-buffer-overflow", "the call", program, *gear, "small_buffer")

    def test_thread_sanitizer(self):
        program = self.compile("-fsanitize=thread")
        self.expect_clean(program)
        self.expect_found("ThreadSanitizer: data race", "the race", program, "threads", "free", "race")
        self.expect_told(run(program, "threads", "free", "race", TSAN_OPTIONS="halt_on_error=1").stderr, "[0-3]",
                         "it has come to no point yet")

    def test_thread_sanitizer_with_the_test_of_the_readme(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "readme_test.cc"
            made = run(sys.executable, ROOT / "tools" / "readme_snippet.py", ROOT / "README.md", source)
            self.assertEqual((made.returncode, made.stderr), (0, ""))
            program = self.compile("-fsanitize=thread", source=source, packages=("rankloom-testing", "gtest_main"))
            done = run(program)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("[  PASSED  ] 2 tests.", done.stdout)

    def test_valgrind(self):
        program = self.compile()
        valgrind = ("valgrind", "-q", "--leak-check=full", "--errors-for-leak-kinds=definite",
                    "--show-leak-kinds=definite", "--error-exitcode=9", program)
        self.expect_clean(*valgrind)
        for engine in ("threads", "fibers"):
            with self.subTest(engine=engine):
                self.expect_found("Invalid read of size 4", "the use", *valgrind, engine, "fifo", "use_after_free")

    def test_valgrind_without_its_header_is_told_once(self):
        with tempfile.TemporaryDirectory() as folder:
            main = pathlib.Path(folder) / "main.cc"
            main.write_text('#include "sim/engine/valgrind_stack.h"\n'
                            "int main() {\n"
                            "  char stack[64];\n"
                            "  for (int i = 0; i < 2; ++i)\n"
                            "    rankloom::internal::remove_valgrind_stack(\n"
                            "        rankloom::internal::add_valgrind_stack(stack, stack + 64));\n"
                            "}\n")
            program = self.compile("-DRANKLOOM_NO_VALGRIND_H", ROOT / "sim" / "engine" / "valgrind_stack.cc", source=main)
            plain = run(program)
            under = run("valgrind", "-q", program)
        self.assertEqual((plain.returncode, plain.stderr), (0, ""))
        self.assertEqual(
            (under.returncode, under.stderr),
            (0, "rankloom: ranks as fibers are not supported under Valgrind: this rankloom was built without "
                "valgrind/valgrind.h; want EngineKind::kThreads (RANKLOOM_ENGINE=threads)\n"))


if __name__ == "__main__":
    build, *compiler = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
