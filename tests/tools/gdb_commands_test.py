"""Runs the commands of tools/gdb/rankloom.py on programs that have threads and frames with the names which those of rankloom have."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = r"""
#include <unistd.h>

namespace rankloom {
namespace {
[[gnu::noinline]] void wait_apart() {
  [] {
    for (;;) pause();
  }();
}
struct Base {
  virtual void run() = 0;
};
struct Work : Base {
  template <typename T>
  [[gnu::always_inline]] void wait_as(T body) {
    body();
    asm volatile("");
  }
  [[gnu::noinline]] void run() override {
    wait_as([] { wait_apart(); });
    asm volatile("");
  }
};
}  // namespace
void wait() {
  Work work;
  work.run();
  asm volatile("");
}
}  // namespace rankloom
"""
PROGRAM = r"""
#include <pthread.h>
#include <unistd.h>

#include <functional>
#include <thread>
#include <vector>

namespace rankloom {
void wait();
}

[[gnu::noinline]] void testing(int) {  // a name of a namespace that is not the program's, elsewhere
  rankloom::wait();
  asm volatile("");
}
template <typename T>
[[gnu::noinline]] std::vector<T> train_step() {
  testing(1);
  asm volatile("");
  return {};
}

int main() {
  const std::function<void()> body = [] {
    pthread_setname_np(pthread_self(), "rank 0");
    train_step<int>();
    asm volatile("");
  };
  std::thread rank(body);
  usleep(200000);
  raise_here();
  rank.join();
}
"""


@unittest.skipUnless(shutil.which("gdb"), "no gdb")
class GdbCommandsTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def stacks(self, source, command="rankloom stacks", optimized="-O0", library=("-O2", "-g")):
        """The command's output on a program that was compiled by that name of its source, with a library by those flags."""
        path = (self.folder / "build" / source).resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#include <csignal>\nvoid raise_here() { raise(SIGTRAP); }\n" + PROGRAM, encoding="utf-8")
        build = self.folder / "build"
        build.mkdir(exist_ok=True)
        room = self.folder / "collectives"
        room.mkdir(exist_ok=True)
        (room / "library.cc").write_text(LIBRARY, encoding="utf-8")
        subprocess.run(["g++", *library, "-c", "../collectives/library.cc", "-o", "library.o"], cwd=build, check=True)
        subprocess.run(["g++", "-g", optimized, source, "library.o", "-o", "program", "-lpthread"], cwd=build, check=True)
        done = subprocess.run(["gdb", "-q", "-batch", "-nx", "-ex", "run", "-ex", f"source {ROOT / 'tools/gdb/rankloom.py'}", "-ex", command,
                               "./program"], cwd=build, capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
        self.assertIn("rank 0 (thread ", done.stdout, done.stderr)
        return re.split(r"rank 0 \(thread \d+\)\n", done.stdout, maxsplit=1)[1]

    def test_the_programs_own_frames_only(self):
        for source in "train.cc", "./train.cc", "../sim/train.cc", "../collectives/train.cc":
            # -g1 has lines, but no namespaces.
            for library in ("-O0", "-g"), ("-O2", "-g"), ("-O0", "-g1"), ("-O2", "-g1"):
                with self.subTest(source=source, library=library):
                    text = self.stacks(source, library=library)
                    # Without those of the library, of its lambdas, and of the C and C++ libraries.
                    at = re.escape(source) + r":\d+\n"
                    self.assertRegex(text, rf"^  testing at {at}  train_step<int> at {at}  operator\(\) at {at}$")

    def test_frames_that_were_compiled_into_others(self):
        text = self.stacks("./train.cc", optimized="-O2")
        self.assertRegex(text, r"  train_step<int> at \./train\.cc:\d+\n  operator\(\) at \./train\.cc:\d+\n$")
        self.assertNotIn("std::", text)

    def test_all_frames(self):
        text = self.stacks("./train.cc", "rankloom stacks -all")
        self.assertIn("  rankloom::wait at ../collectives/library.cc:", text)
        self.assertIn("  train_step<int> at ./train.cc:", text)
        self.assertIn("pause", text)

    def test_a_rank_that_is_not_there(self):
        with self.assertRaisesRegex(AssertionError, "No such rank runs"):
            self.stacks("train.cc", "rankloom stacks 7")


if __name__ == "__main__":
    unittest.main()
