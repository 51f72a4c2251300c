"""Plants state that no search is told of and sees that tools/check_observed.py finds each, and finds nothing in clean classes."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
sys.dont_write_bytecode = True
import check_observed  # noqa: E402

# (members of a class C, the one that must be named)
PLANTED = [
    ("int n_;", "n_"),
    ("int n_ = 0;", "n_"),
    ("int n_{0};", "n_"),
    ("mutable bool seen_;", "seen_"),
    ("const char* text_;", "text_"),
    ("std::atomic<bool> done_{false};", "done_"),
    ("std::array<char, 16> text_;", "text_"),
    ("char text_[16];", "text_"),
    ("std::vector<std::pair<int, std::string>> pairs_;", "pairs_"),
    ("std::function<void(const absl::Status&)> told_;", "told_"),
    ("std::unique_ptr<Store> store_;", "store_"),
    ("RankMutex mu_; int n_ ABSL_GUARDED_BY(mu_) = 0;", "n_"),
    ("ObservedMutex mu_; absl::Mutex other_; int n_ ABSL_GUARDED_BY(other_);", "n_"),
    ("void f() { int x = 0; } int n_;", "n_"),
    ("void f() const { return; }\n  int n_;\n  void g();", "n_"),
    ("enum class E { kA }; E e_ = E::kA;", "e_"),
    ("public: int n_; private: void f();", "n_"),
]

CLEAN = [
    "const int n_ = 0;",
    "Scheduler& scheduler_;",
    "Scheduler* const scheduler_;",
    "const std::shared_ptr<Group> group_;",
    "static constexpr int kMost = 3;",
    "ObservedMutex mu_; int n_ ABSL_GUARDED_BY(mu_) = 0;",
    "mutable ObservedMutex mu_{nullptr}; std::vector<int> all_ ABSL_GUARDED_BY(mu_);",
    "void f(int x); int g() const { return 1; } explicit C(int n);",
    "struct Inner { int x; }; using T = int; friend class D;",
    "// int n_;\n /* int m_; */",
]


class CheckObservedTest(unittest.TestCase):
    def check(self, members, unobserved=None, head="class C final : public B {"):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "a.h").write_text("namespace n {\n" + head + "\n" + members + "\n};\n}\n")
            return check_observed.check(root, {"a.h": ["C"]}, unobserved or {})

    def test_finds_what_is_planted(self):
        for members, name in PLANTED:
            with self.subTest(members):
                problems = [p for p in self.check(members) if f"C::{name} is state that no exhaustive search is told of" in p]
                self.assertEqual(len(problems), 1, self.check(members))

    def test_finds_locks_of_files_that_no_list_names(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in check_observed.LIBRARY:
                (root / name).mkdir(parents=True)
            (root / "world/a.h").write_text("class A { RankMutex* other_; void f(ObservedMutex& mu); RankMutexLock lock(&mu_); // RankMutex x;\n};")
            self.assertEqual(list(check_observed.unlisted_locks(root, {}, {})), [])
            for text in ("RankMutex mu_;", "mutable ObservedMutex mu_{nullptr};", "RankMutex mu(scheduler_);"):
                (root / "sim/b.cc").write_text("\n" + text)
                self.assertEqual(len(list(check_observed.unlisted_locks(root, {}, {}))), 1, text)
                self.assertIn("sim/b.cc:2: a lock of state", next(check_observed.unlisted_locks(root, {}, {})))
                self.assertEqual(list(check_observed.unlisted_locks(root, {"sim/b.cc": []}, {})), [])
                self.assertEqual(list(check_observed.unlisted_locks(root, {}, {"sim/b.cc": "a reason"})), [])
            self.assertEqual(list(check_observed.unlisted_locks(root, {"sim/b.cc": []}, {"world/a.h": "none"})),
                             ["tools/check_observed.py:1: UNSEEN_LOCKS: world/a.h has no lock"])

    def test_finds_nothing_in_clean_classes(self):
        for members in CLEAN:
            with self.subTest(members):
                self.assertEqual(self.check(members), [])

    def test_knows_the_line(self):
        self.assertEqual(self.check("const int a_;\n\n  int b_;")[0].split(" ")[0], "a.h:5:")

    def test_takes_a_reason_and_wants_no_other(self):
        self.assertEqual(self.check("int n_;", {("C", "n_"): "why"}), [])
        self.assertEqual(self.check("int n_; int m_;", {("C", "*"): "why"}), [])
        self.assertEqual(self.check("const int n_;", {("C", "n_"): "why"}), ["tools/check_observed.py:1: C::n_ needs no reason"])

    def test_misses_a_class_that_went(self):
        self.assertEqual(self.check("int n_;", head="class D {"), ["a.h:1: no class C: tools/check_observed.py lists it"])

    def test_knows_attributes_and_inner_classes(self):
        for head in ("class ABSL_LOCKABLE C final {", "struct Outer::C {", "struct C : B<int> {"):
            self.assertEqual(len(self.check("int n_;", head=head)), 1, head)

    def test_the_tree_is_clean(self):
        self.assertEqual(check_observed.check(pathlib.Path(__file__).resolve().parents[2]), [])


if __name__ == "__main__":
    unittest.main()
