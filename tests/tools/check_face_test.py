"""Plants what is wrong in public headers and sees that tools/check_face.py finds each, and finds nothing in headers that are
right."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
sys.dont_write_bytecode = True
import check_face  # noqa: E402

# (header, an include of it, the header that must be named)
WRONG_INCLUDES = [
    ("world.h", '#include "sim/base/task.h"', "sim/base/task.h"),
    ("world.h", '#include "world/flight_recorder.h"', "world/flight_recorder.h"),
    ("world.h", "#  include <fake_store/hash_store.h>", "fake_store/hash_store.h"),
    ("world.h", '#include "rankloom/gone.h"', "rankloom/gone.h"),
    ("world.h", '#include "group.h"', "group.h"),
    ("world.h", "#include <boost/fiber/all.hpp>", "boost/fiber/all.hpp"),
    ("world.h", "#include <cuda_runtime.h>", "cuda_runtime.h"),
    ("world.h", "#include <gtest/gtest.h>", "gtest/gtest.h"),
    ("explore.h", '#include "gmock/gmock.h"', "gmock/gmock.h"),
]
INCLUDES = [
    ("world.h", "#include <vector>"),
    ("world.h", '#include "absl/status/status.h"'),
    ("world.h", '#include "rankloom/group.h"'),
    ("world.h", "#include <rankloom/group.h>"),
    ("world.h", '// #include "sim/base/task.h"'),
    ("testing.h", '#include "gtest/gtest.h"'),
    ("matchers.h", "#include <gmock/gmock.h>"),
]

# Code in namespace rankloom, and the names that it gives.
NAMED = [
    ("class A {};", ["A"]),
    ("struct A { int a; struct B {}; enum class C { kD }; void f(); static int g(); friend void h(); };", ["A"]),
    ("class [[nodiscard]] A final : public B<int> {\n public:\n  A();\n};", ["A"]),
    ("class ABSL_LOCKABLE A {};", ["A"]),
    ("template <typename T>\nclass A {\n  T t;\n};", ["A"]),
    ("template <typename T> struct A {};\ntemplate <> struct A<int> {};", ["A"]),
    ("union A { int i; float f; };", ["A"]),
    ("enum class A : int { kB, kC };", ["A"]),
    ("enum A { kB, kC };", ["A"]),
    ("using A = std::vector<int>;", ["A"]),
    ("template <typename T>\nusing A = std::vector<T>;", ["A"]),
    ("typedef int A;", ["A"]),
    ("template <typename T>\nconcept A = std::integral<T> || std::floating_point<T>;", ["A"]),
    ("inline constexpr int kA = 1;", ["kA"]),
    ("extern const int kA;", ["kA"]),
    ("int f();", ["f"]),
    ("int f();\nint f(int);\ninline int f(float) { int local = 1; return local; }", ["f"]),
    ("template <typename T>\nT f(const T& t) {\n  struct Local {};\n  return t;\n}", ["f"]),
    ("absl::StatusOr<std::vector<int>> f(int a = 1, std::string b = {}, absl::FunctionRef<void(int)> c);", ["f"]),
    ("class A {\n  void f();\n};\ninline void A::f() {}", ["A"]),
    ("class A;", ["A"]),
    ("template <typename T>\nclass A;", ["A"]),
    ("enum class A : uint8_t;", ["A"]),
    ("class A;\nclass A {};", ["A"]),
    ("class A { class B;\n  friend class C;\n};", ["A"]),
    ("bool operator==(const A&, const A&);", []),
    ("#define RANKLOOM_A 1", []),
    ("// class A {};\n/* class B; */", []),
    ('inline const char* f() { return "class A;"; }', ["f"]),
    ("namespace internal {\nclass A {};\nclass B;\nvoid f();\n}", []),
    ("namespace links {\nstruct A {};\nint f();\n}", ["links"]),
    ("using std::vector;", ["vector"]),
]


class CheckFaceTest(unittest.TestCase):
    def in_tree(self, files, what):
        with tempfile.TemporaryDirectory() as root:
            for name, text in files:
                file = pathlib.Path(root) / check_face.FACE / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            return what(pathlib.Path(root))

    def names(self, files):
        return self.in_tree(files, check_face.names_by_header)

    def test_finds_what_a_header_may_not_include(self):
        for header, include, named in WRONG_INCLUDES:
            with self.subTest(include=include):
                findings = self.in_tree([("group.h", ""), (header, "#pragma once\n" + include + "\n")], check_face.check)
                self.assertEqual(findings, [(check_face.FACE + header, 2,
                                             f"includes {named}, want the standard library, absl or a public header only")])

    def test_finds_nothing_in_what_it_may(self):
        for header, include in INCLUDES:
            with self.subTest(include=include):
                self.assertEqual(self.in_tree([("group.h", ""), (header, include + "\n")], check_face.check), [])

    def test_counts_headers(self):
        most = check_face.MOST_HEADERS
        files = [(f"a{i}.h", "") for i in range(most)]
        self.assertEqual(self.in_tree(files, check_face.check), [])
        findings = self.in_tree([*files, ("deep/b.h", "")], check_face.check)
        self.assertEqual(findings, [(check_face.FACE, 1, f"{most + 1} public headers, want at most {most}")])

    def test_names_what_stands_in_the_namespace(self):
        for text, names in NAMED:
            with self.subTest(text=text):
                for before, after in (("namespace rankloom {\n", "\n}\n"),
                                      ("namespace rankloom {\nnamespace other {\nint g();\n}\n", "\n}\n")):
                    found = self.names([("a.h", before + text + after)])["a.h"]
                    self.assertEqual(sorted(set(found) - {"other"}), sorted(names))
                self.assertEqual(self.names([("a.h", "namespace rankloom::internal {\n" + text + "\n}\n")])["a.h"], [])
                self.assertEqual(self.names([("a.h", "namespace absl {\n" + text + "\n}\n")])["a.h"], [])

    def test_a_name_belongs_to_the_header_that_defines_it(self):
        files = [("a.h", "namespace rankloom {\nclass A;\nclass B;\nint f();\n}\n"), ("b.h", "namespace rankloom {\nclass A {};\nint f(int);\n}\n")]
        self.assertEqual(self.names(files), {"a.h": ["f", "B"], "b.h": ["A"]})

    def test_counts_names(self):
        most = check_face.MOST_NAMES
        header = "namespace rankloom {\n" + "".join(f"int f{i}();\n" for i in range(most)) + "}\n"
        other = "namespace rankloom {\nint f0(int);\nint more();\nnamespace internal {\nint g();\n}\n}\n"
        self.assertEqual(len(self.in_tree([("a.h", header)], check_face.check)), 0)
        self.assertEqual(self.in_tree([("a.h", header), ("b.h", other)], check_face.number_of_names), most + 1)
        findings = self.in_tree([("a.h", header), ("b.h", other)], check_face.check)
        self.assertEqual(findings, [(check_face.FACE, 1, f"{most + 1} names in namespace rankloom, want at most {most}; "
                                     "tools/check_face.py --list prints them")])


if __name__ == "__main__":
    unittest.main()
