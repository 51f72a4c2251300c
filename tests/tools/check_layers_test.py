"""Plants violations and sees that tools/check_layers.py finds each, and finds nothing in clean files."""

import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
sys.dont_write_bytecode = True
import check_layers  # noqa: E402

# (file, its text, a part of what must be said)
PLANTED = [
    ("sim/base/a.cc", '#include "rankloom/world.h"\n', "sim may not include world"),
    ("sim/base/a.cc", '#include "bench/x.h"\n', "sim may not include bench"),
    ("fake_store/a.h", "#  include <include/rankloom/work.h>\n", "fake_store may not include collectives"),
    ("world/a.cc", '#include "rankloom/work.h"\n', "world may not include collectives"),
    ("collectives/call/a.cc", '#include "rankloom/matchers.h"\n', "what tests are made of only"),
    ("collectives/call/a.cc", '#include "rankloom/explore.h"\n', "collectives may not include harness"),
    ("sim/schedule/a.h", '#include "sim/scheduler/scheduler.h"\n', "room schedule may not include room scheduler"),
    ("collectives/ops/a.cc", "#include <include/rankloom/process_group.h>\n", "room ops may not include room group"),
    ("collectives/backends.cc", '#include "collectives/kernels/plan.h"\n', "may include group, threaded, fake, not room kernels"),
    ("collectives/group/a.cc", '#include "collectives/backends.cc"\n', "nothing includes a roof"),
    ("harness/a.cc", '#include "collectives/backends.cc"\n', "nothing includes a roof"),
    ("harness/a.cc", '#include "tests/x.h"\n', "harness may not include tests"),
    ("harness/explore/a.cc", '#include <gtest/gtest.h>\n', "what tests are made of only"),
    ("harness/explore/minimize.cc", '#include <gmock/gmock.h>\n', "what tests are made of only"),
    ("harness/explore/a.cc", '#include "rankloom/testing.h"\n', "what tests are made of only"),
    ("bench/a.cc", '#include "tests/x.h"\n', "bench may not include tests"),
    ("include/rankloom/rankloom.h", '#include "rankloom/matchers.h"\n', "what tests are made of only"),
    ("include/rankloom/rankloom.h", '#include "rankloom/explore.h"\n', "collectives may not include harness"),
    ("include/rankloom/rankloom.h", "#include <gtest/gtest.h>\n", "what tests are made of only"),
    ("sim/base/a.cc", '#include "task.h"\n', "includes start at the root"),
    ("sim/base/a.cc", "#include <boost/fiber/all.hpp>\n", "the fiber engine only"),
    ("world/fiber_engine.cc", "#include <boost/fiber/all.hpp>\n", "the fiber engine only"),
    ("collectives/call/a.cc", "#include <gtest/gtest.h>\n", "what tests are made of only"),
    ("collectives/call/a.cc", '#include "hwy/highway.h"\n', "collectives/kernels only"),
    ("collectives/call/a.cc", "#include <tbb/parallel_for.h>\n", "collectives/kernels only"),
    ("collectives/call/a.cc", "#include <cuda_runtime.h>\n", "collectives/cuda only"),
    ("collectives/call/a.cc", "#include <torch/torch.h>\n", "the bridge only"),
    ("tests/world/a.cc", "#include <Python.h>\n", "the bridge only"),
    ("collectives/call/a.cc", '#include "absl/random/random.h"\n', "include/rankloom/random.h is our generator"),
    ("collectives/call/a.cc", '#include "absl/flags/flag.h"\n', "programs, which have flags only"),
    ("world/a.cc", "#include <rankloom/rankloom.h>\n", "users of the library only"),
    ("sim/base/a.cc", "std::condition_variable cv;\n", "RankCondVar"),
    ("sim/base/a.cc", "std::condition_variable_any cv;\n", "RankCondVar"),
    ("world/a.cc", "#include <barrier>\n", "RankCondVar"),
    ("world/a.cc", "std::barrier<> b(2);\n", "RankCondVar"),
    ("collectives/call/a.cc", "std::future<int> f;\n", "RankCondVar"),
    ("collectives/call/a.cc", "std::promise<int> p;\n", "RankCondVar"),
    ("sim/base/a.cc", "std::this_thread::sleep_for(d);\n", "time is virtual"),
    ("fake_store/hash_store.cc", "absl::SleepFor(d);\n", "time is virtual"),
    ("sim/base/a.cc", "usleep(3);\n", "time is virtual"),
    ("fake_store/file_store.cc", "usleep(3);\n", "time is virtual"),
    ("sim/base/a.cc", "nanosleep(&t, nullptr);\n", "time is virtual"),
    ("sim/base/a.cc", "auto t = std::chrono::system_clock::now();\n", "time is virtual"),
    ("sim/base/a.cc", "auto t = std::chrono::high_resolution_clock::now();\n", "time is virtual"),
    ("world/a.cc", "auto t = std::chrono::steady_clock::now();\n", "time is virtual"),
    ("world/a.cc", "auto t = absl::Now();\n", "time is virtual"),
    ("world/a.cc", "gettimeofday(&t, nullptr);\n", "time is virtual"),
    ("world/a.cc", "auto t = std::time(nullptr);\n", "time is virtual"),
    ("world/a.cc", "auto t = time(NULL);\n", "time is virtual"),
    ("collectives/call/a.cc", "std::random_device d;\n", "rankloom/random.h"),
    ("collectives/call/a.cc", "absl::BitGen g;\n", "rankloom/random.h"),
    ("collectives/call/a.cc", "int i = rand();\n", "rankloom/random.h"),
    ("sim/base/a.cc", 'std::getenv("X");\n', "world/run_options.cc"),
    ("harness/a.cc", 'getenv("X");\n', "world/run_options.cc"),
    ("sim/base/a.cc", "#include <linux/futex.h>\n", "sim/base/system.h"),
    ("world/a.cc", "std::puts(program_invocation_short_name);\n", "sim/base/system.h"),
    ("harness/a.cc", "socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);\n", "sim/base/system.h"),
    ("collectives/threaded/a.cc", "int me = gettid();\n", "sim/base/system.h"),
    ("sim/schedule/trace.cc", "std::ofstream file(path);\n", "write_file()"),
    ("harness/a.cc", "std::fstream file(path);\n", "write_file()"),
    ("collectives/call/a.cc", 'FILE* f = fopen(path, "w");\n', "write_file()"),
    ("world/a.cc", "std::fwrite(p, 1, n, f);\n", "write_file()"),
    ("fake_store/a.cc", "write(fd, p, n);\n", "write_file()"),
    ("collectives/threaded/a.cc", "rank_state_->recorder().close(id, now, true);\n", "close_record()"),
    ("world/a.cc", "recorder()\n    .close(id, now, true);\n", "close_record()"),
    ("collectives/work/close_records.h", "rank.recorder().open(numbers, fill);\n", "GroupFront opens"),
    ("collectives/threaded/a.cc", "recorder().open_again(known, code, numbers);\n", "GroupFront opens"),
    ("fake_store/a.cc", "throw DistError(status, origin);\n", "refuse() and throw_dist_error()"),
    ("harness/a.cc", "throw rankloom::DistError(status, origin);\n", "refuse() and throw_dist_error()"),
    ("world/a.cc", "__builtin_prefetch(next);\n", "the steps of sim/base/prefetch.h"),
    ("sim/base/a.cc", "char c = '\"'; usleep(3); char d = '\"';\n", "time is virtual"),
]

CLEAN = [
    ("sim/base/task.h", '#include "absl/time/time.h"\n#include "rankloom/random.h"\n#include <vector>\n'),
    ("sim/engine/fiber_engine.cc", "#include <boost/fiber/all.hpp>\n"),
    ("sim/base/system.cc", "#include <sys/syscall.h>\nreturn syscall(SYS_gettid);\n"),
    ("sim/base/a.cc", "int me = this_thread();  // gettid() on Linux\nint gettid_of_mine = 3;\n"),
    ("sim/scheduler/clock.cc", "auto t = std::chrono::steady_clock::now();\n"),
    ("sim/engine/engine.cc", "// std::condition_variable is five times slower\n/* usleep(1)\n */ auto s = \"getenv(x) usleep(1)\";\n"),
    ("sim/base/text.cc", 'auto s = R"(a " usleep(3) " )"; int n = 1\'000\'000; auto t = clock.time(0); auto u = Clock::time(0);\n'),
    ("sim/base/comment.cc", '// #include "rankloom/world.h"\n'),
    ("include/rankloom/world.h", "void sleep_for(absl::Duration duration); rank.sleep_for(absl::Seconds(1));\n"),
    ("world/run_options.cc", 'std::getenv("X");\n'),
    ("collectives/call/a.cc", '#include "rankloom/group.h"\n#include "rankloom/store.h"\nPromise promise; work.get_future();\n'),
    ("collectives/kernels/add.cc", '#include "hwy/highway.h"\n#include <tbb/parallel_for.h>\n'),
    ("collectives/backends.cc", '#include "collectives/fake/a.h"\n#include "collectives/threaded/a.h"\n#include "world/a.h"\n'),
    ("harness/search_case.cc", '#include <gtest/gtest.h>\n#include "rankloom/testing.h"\n'),
    ("harness/matchers_of_x.cc", '#include <gtest/gtest.h>\n#include "rankloom/work.h"\nstd::this_thread::sleep_for(d);\n'),
    ("tests/examples/a_test.cc", '#include "examples/digits/mlp.h"\n'),
    ("world/a.h", "void sleep_for(absl::Duration duration);\n"),
    ("collectives/work/close_records.h", "rank.recorder().close(id, now, true);\n"),
    ("sim/base/dist_error.cc", "throw DistError(status, origin);\n"),
    ("world/a.cc", "catch (const DistError& error) { throw; }\n"),
    ("collectives/group/group_front.cc", "rank.recorder().open(numbers, fill); rank.recorder().last_calls(1); gate_.close(true);\n"),
    ("tests/sim/a_test.cc", "#include <gtest/gtest.h>\n#include <rankloom/rankloom.h>\nstd::future<int> f;\n"),
    ("bench/a.cc", '#include <benchmark/benchmark.h>\n#include "bench/floor.h"\n'),
    ("include/rankloom/explore.h", '#include "rankloom/explore.h"\n'),
    ("include/rankloom/testing.h", '#include "rankloom/matchers.h"\n#include "rankloom/rankloom.h"\n'),
]


# Through a source file; of three; beside a way out; two that share an include; through a public header and its source, in its folder
# or in the room of it.
CIRCLES = [
    ([("world/a.h", ""), ("world/a.cc", '#include "world/a.h"\n#include "world/b.h"\n'), ("world/b.h", '#include "world/a.h"\n')],
     "world/a.cc", 2, "circle of units: world/a -> world/b -> world/a"),
    ([("sim/base/a.h", '#include "sim/base/b.h"\n'), ("sim/base/b.cc", '#include "sim/base/c.h"\n'),
      ("sim/base/c.h", '#include "sim/base/a.h"\n')],
     "sim/base/a.h", 1, "circle of units: sim/base/a -> sim/base/b -> sim/base/c -> sim/base/a"),
    ([("harness/a.h", '#include "harness/c.h"\n#include "harness/b.h"\n'), ("harness/b.h", "#include <harness/a.h>\n"), ("harness/c.h", "")],
     "harness/a.h", 2, "circle of units: harness/a -> harness/b -> harness/a"),
    ([("collectives/work/a.h", '#include "collectives/work/b.h"\n'), ("collectives/work/b.cc", '#include "collectives/work/a.h"\n'),
      ("collectives/work/c.h", '#include "collectives/work/b.h"\n'), ("collectives/work/a.cc", '#include "collectives/work/c.h"\n')],
     "collectives/work/a.h", 1, "circle of units: collectives/work/a -> collectives/work/b -> collectives/work/a (a knot of 3: "
     "collectives/work/a, collectives/work/b, collectives/work/c)"),
    ([("include/rankloom/store.h", ""), ("fake_store/store.cc", '#include "fake_store/keys.h"\n#include "rankloom/store.h"\n'),
      ("fake_store/keys.h", "int first_line;\n#include <rankloom/store.h>\n")],
     "fake_store/keys.h", 2, "circle of units: fake_store/keys -> fake_store/store -> fake_store/keys"),
    ([("include/rankloom/explore.h", ""), ("harness/explore/explore.cc", '#include "harness/explore/draw.h"\n'),
      ("harness/explore/draw.h", '#include "rankloom/explore.h"\n')],
     "harness/explore/draw.h", 1, "circle of units: harness/explore/draw -> harness/explore/explore -> harness/explore/draw"),
]

# A header, its source and the state behind it, as BEHIND allows.
STATE = [("include/rankloom/work.h", ""), ("collectives/work/work.cc", '#include "collectives/work/work_state.h"\n'),
         ("collectives/work/work_state.h", '#include "rankloom/work.h"\n')]


class CheckLayersTest(unittest.TestCase):
    def check(self, files):
        return self.in_tree(files, lambda root: check_layers.check(root)[0])

    def in_tree(self, files, what):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files:
                file = pathlib.Path(root) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            return what(pathlib.Path(root))

    def test_finds_every_planted_violation(self):
        for path, text, part in PLANTED:
            with self.subTest(path=path, text=text):
                findings = self.check([(path, "int first_line;\n" + text)])
                self.assertEqual([(p, line) for p, line, _ in findings], [(path, 2)], findings)
                self.assertIn(part, findings[0][2])

    def test_finds_nothing_in_clean_files(self):
        self.assertEqual(self.check(CLEAN), [])

    def test_a_room_includes_itself_and_what_stands_left_of_it(self):
        for folder, rooms in check_layers.ROOMS.items():
            for at, room in enumerate(rooms):
                for to, other in enumerate(rooms):
                    with self.subTest(folder=folder, room=room, other=other):
                        header = f"{folder}/{other}/b.h"
                        findings = self.check([(f"{folder}/{room}/a.cc", f'#include "{header}"\n')])
                        wrong = f'"{header}": room {room} may not include room {other}, which stands right of it'
                        self.assertEqual(findings, [(f"{folder}/{room}/a.cc", 1, wrong)] if to > at else [])

    def test_a_file_stands_in_a_room(self):
        for path in ("sim/a.cc", "sim/group/a.cc", "collectives/a.h", "collectives/base/a.h", "collectives/backends.h"):
            with self.subTest(path=path):
                findings = self.check([(path, "int x;\n")])
                self.assertEqual([(p, line) for p, line, _ in findings], [(path, 1)], findings)
                self.assertIn("stands in one of its rooms", findings[0][2])
        self.assertEqual(self.check([("world/a.cc", "int x;\n"), ("tests/sim/a.cc", "int x;\n")]), [])

    def test_every_roof_stands_above_rooms(self):
        for path, rooms in check_layers.ROOFS.items():
            self.assertTrue((ROOT / path).is_file(), path)
            self.assertIsNone(check_layers.room_of(path))
            self.assertLessEqual(set(rooms), set(check_layers.ROOMS[path.split("/")[0]]))

    def test_units_make_no_circle(self):
        for files, path, line, text in CIRCLES:
            with self.subTest(text=text):
                self.assertEqual(self.check(files), [(path, line, text)])

    def test_two_circles_are_two_findings(self):
        files = [file for planted, *_ in CIRCLES for file in planted]
        self.assertEqual(sorted(self.check(files)), sorted(tuple(finding) for _, *finding in CIRCLES))

    def test_units_that_make_no_circle(self):
        for files in ([("world/a.h", ""), ("world/a.cc", '#include "world/a.h"\n')],  # a unit is one
                      [("world/a.h", ""), ("world/b.h", '#include "world/a.h"\n'), ("world/c.h", '#include "world/a.h"\n#include "world/b.h"\n')],
                      [("world/a.h", '// #include "world/b.h"\n'), ("world/b.h", '#include "world/a.h"\n')],
                      [("tests/a.h", '#include "tests/b.h"\n'), ("tests/b.h", '#include "tests/a.h"\n')]):  # of the core only
            with self.subTest(files=files):
                self.assertEqual(self.check(files), [])

    def test_the_state_behind_a_public_header_may_include_it(self):
        self.assertEqual(self.check(STATE), [])
        # Not by another header of the state, nor the header its source's.
        by_another = [*STATE, ("collectives/work/work_state.cc", '#include "collectives/work/list.h"\n'),
                      ("collectives/work/list.h", '#include "rankloom/work.h"\n')]
        self.assertEqual(self.check(by_another),
                         [("collectives/work/list.h", 1, "circle of units: collectives/work/list -> collectives/work/work -> "
                           "collectives/work/work_state -> collectives/work/list")])
        of_another = [*STATE, ("include/rankloom/stream.h", '#include "rankloom/work.h"\n'),
                      ("collectives/work/work_state.cc", '#include "rankloom/stream.h"\n')]
        self.assertEqual(self.check(of_another),
                         [("include/rankloom/stream.h", 1, "circle of units: collectives/work/stream -> collectives/work/work -> "
                           "collectives/work/work_state -> collectives/work/stream")])

    def test_an_entry_of_behind_that_no_circle_needs_is_found(self):
        text = "BEHIND: collectives/work/work_state includes rankloom/work.h: no circle needs it"
        header, source, state = STATE
        for files, dead in [
            (STATE, False),
            ([header, source], True),  # nothing includes the header
            ([header, state], True),  # the header is built on nothing
            ([header, ("collectives/work/work.cc", '#include "collectives/work/list.h"\n'), state,
              ("collectives/work/list.h", '#include "collectives/work/work_state.h"\n')], False),
        ]:
            with self.subTest(files=files):
                found = self.in_tree(files, lambda root: list(check_layers.dead_exceptions(root)))
                self.assertEqual(text in found, dead, found)

    def test_an_exception_that_no_file_needs_is_found(self):
        needs = 'std::getenv("X");\n'
        getenv = "EXCEPTIONS: getenv in world/run_options.cc: no file needs it"
        boost = "PACKAGES: boost/ in sim/engine/fiber_engine.*: no file needs it"
        for files, dead in [
            ([], True),
            ([("world/run_options.cc", "int x;  // getenv(x)\n"), ("sim/engine/fiber_engine.h", "// #include <boost/x.hpp>\n")], True),
            ([("world/world.cc", needs), ("sim/engine/engine.cc", "#include <boost/x.hpp>\n")], True),
            ([("world/run_options.cc", needs), ("sim/engine/fiber_engine.cc", "#include <boost/x.hpp>\n")], False),
        ]:
            with self.subTest(files=files):
                found = self.in_tree(files, lambda root: list(check_layers.dead_exceptions(root)))
                self.assertEqual([getenv in found, boost in found], [dead, dead], found)

    def test_every_exception_has_a_reason(self):
        for rule, _, reason in check_layers.EXCEPTIONS:
            self.assertIn(rule, [name for name, *_ in check_layers.BANNED])
            self.assertTrue(reason)
        for _, header, reason in check_layers.BEHIND:
            self.assertIn(header.removeprefix("rankloom/").removesuffix(".h"), check_layers.PUBLIC)
            self.assertTrue(reason)


if __name__ == "__main__":
    unittest.main()
