#!/usr/bin/env python3
"""tools/check_lock_order.py finds what it is for, and nothing else."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
sys.dont_write_bytecode = True
import check_lock_order  # noqa: E402

HEADER = "enum class LockLevel : uint8_t {\n  kLiveWorlds,  // which worlds live\n  kWork,        // how a work ends\n};\n"
SOURCE = 'constexpr auto kNames = {\n    "live worlds",\n    "work",\n};\n'
PAGE = "Text.\n\n| lock | guards |\n| --- | --- |\n| live worlds | which worlds live |\n| work | how a work ends |\n\nMore.\n"


class CheckLockOrderTest(unittest.TestCase):
    def problems(self, header=HEADER, source=SOURCE, page=PAGE, other="", write=False):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in ((check_lock_order.HEADER, header), (check_lock_order.SOURCE, source), (check_lock_order.PAGE, page),
                               ("world/world.h", other)):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            if write:
                check_lock_order.main(["--write", folder])
            return check_lock_order.check(root)

    def test_equal_tables_pass(self):
        self.assertEqual(self.problems(), [])

    def test_another_order_in_the_page_is_found(self):
        page = PAGE.replace("| live worlds | which worlds live |\n| work | how a work ends |\n",
                            "| work | how a work ends |\n| live worlds | which worlds live |\n")
        self.assertRegex(self.problems(page=page)[0], r"docs/architecture\.md:3: the table of locks is not that of")

    def test_a_missing_table_is_found(self):
        self.assertEqual(len(self.problems(page="Text.\n")), 1)

    def test_a_level_that_says_nothing_is_found(self):
        self.assertIn("1 levels do not say what they guard", self.problems(header=HEADER.replace("};", "  kStore,\n};"))[0])

    def test_other_names_in_reports_are_found(self):
        self.assertIn("kNames", self.problems(source=SOURCE.replace("work", "works"))[0])

    def test_a_lock_without_a_level_is_found(self):
        self.assertRegex(self.problems(other="  // absl::Mutex in_a_comment;\n  absl::Mutex mu_;\n")[0], r"world/world\.h:2: a lock without")

    def test_writing_makes_it_right(self):
        self.assertEqual(self.problems(page=PAGE.replace("how a work ends", "something else"), write=True), [])


if __name__ == "__main__":
    unittest.main()
