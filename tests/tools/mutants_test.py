"""The mutants that tools/mutants.py draws, the order in which it asks tests, and how it counts."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))
import mutants  # noqa: E402


def made(folder, count):
    return [mutants.Mutant(f"{folder}/a.cc", i, "a < b", "a > b") for i in range(count)]


class MutantsTest(unittest.TestCase):
    def test_comments_and_assertions_are_no_code(self):
        lines = [
            ("x = 1;\n", "x = 2;\n"),
            ("x = 1;  // one\n", "x = 1;  // two\n"),
            ("// x = 1;\n", "// x = 2;\n"),
            ("  assert(x > 1);\n", "  assert(x < 1);\n"),
            ("#include <a>\n", "#include <b>\n"),
            ("x = 1;\n", "  x = 1;\n"),
        ]
        found = mutants.mutants_of([json.dumps(["sim/a.cc", i, before, after]) for i, (before, after) in enumerate(lines)])
        self.assertEqual([(one.line, one.before, one.after) for one in found], [(0, "x = 1;", "x = 2;")])

    def test_changes_that_cannot_compile_are_not_drawn(self):
        for before, after in [
            ("f(a && b);", "f(a || b);"),
            ("x = 10;", "x = 11;"),
            ("  y();", "  /*y();*/"),
            ("y();", "y();\nbreak;"),
            ("a < b", "a >= b"),
        ]:
            self.assertTrue(mutants.may_compile(before, after), after)
        for before, after in [
            ("if (a && f(b))", "if (a && (1==1)"),
            ("int64_t x;", "int0_t x;"),
            ("std::vector<int> x;", "std::vector>=int> x;"),
            ("static_cast<int>(x)", "static_cast==int>(x)"),
        ]:
            self.assertFalse(mutants.may_compile(before, after), after)

    def test_folders_take_turns_in_an_order_of_the_seed(self):
        every = made("sim", 100) + made("world", 100) + made("collectives", 3)
        folders = ["sim", "world", "collectives"]
        drawn = mutants.draw(every, folders, "1")
        self.assertEqual(len(drawn), 203)
        self.assertEqual([one.folder for one in drawn[:9]], folders * 3)
        self.assertEqual(len({one.folder for one in drawn[9:]}), 2)  # of the last folder all are drawn
        self.assertEqual(mutants.draw(list(reversed(every)), folders, "1"), drawn)
        self.assertNotEqual(mutants.draw(every, folders, "2")[:9], drawn[:9])

    def test_mutants_are_handed_out_until_so_many_count(self):
        drawn = made("sim", 5)
        with tempfile.TemporaryFile("w") as file, contextlib.redirect_stdout(io.StringIO()):
            row = mutants.Row(drawn, 2, {drawn[0].key: {"state": "found"}}, file)
            for state, number in (("does not compile", 1), ("same object", 2), ("survives", 3)):
                taken = row.take()
                self.assertEqual(taken, drawn[number])  # the first had been run
                row.give(taken, {"state": state, "seconds": 1})
            self.assertIsNone(row.take())

    def test_tests_of_its_own_come_first_and_lower_ones_never(self):
        mutant = mutants.Mutant("world/run_file.cc", 1, "", "")
        tests = [
            {"name": name, "suite": suite, "room": room, "seconds": seconds}
            for name, suite, room, seconds in [
                ("a_test", "sim", "sim", 1),
                ("b_test", "collectives", "collectives/work", 1),
                ("c_test", "world", "world", 9),
                ("d_test", "world", "world", 1),
                ("run_file_test", "world", "world", 99),
                ("e_test", "world", "world", 5),
            ]
        ]
        ordered = [test["name"] for test in mutants.in_order(tests, mutant, {"c_test": 2}, None)]
        self.assertEqual(ordered, ["run_file_test", "c_test", "d_test", "e_test", "b_test"])
        # Of other rooms, those that reach the line.
        others = [test | {"room": "world/other"} if test["name"] in ("d_test", "e_test") else test for test in tests]
        reached = {"world/run_file.cc": {"1": ["world/e_test", "sim/a_test"], "2": ["world/d_test"]}}
        ordered = [test["name"] for test in mutants.in_order(others, mutant, {"c_test": 2}, reached)]
        self.assertEqual(ordered, ["run_file_test", "c_test", "e_test"])
        # A line without counters, as of a table of constants, may be any test's.
        ordered = [test["name"] for test in mutants.in_order(others, mutant, {"c_test": 2}, {"world/run_file.cc": {"77": ["sim/a_test"]}})]
        self.assertEqual(ordered, ["run_file_test", "c_test", "d_test", "e_test", "b_test"])

    def test_only_what_counts_is_a_share(self):
        states = [("sim", "found"), ("sim", "survives"), ("sim", "same object"), ("sim", "does not compile"), ("world", "found"), ("world", "found")]
        results = [{"file": f"{folder}/a.cc", "state": state, "by_time": folder == "world"} for folder, state in states]
        self.assertEqual(
            mutants.table(results).splitlines()[2:],
            ["| sim | 4 | 1 | 1 | 2 | 1 | 0 | 1 | 50 |", "| world | 2 | 0 | 0 | 2 | 2 | 2 | 0 | 100 |", "| all | 6 | 1 | 1 | 4 | 3 | 2 | 1 | 75 |"],
        )

    def test_the_last_line_of_a_mutant_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "results.jsonl"
            self.assertEqual(mutants.read_results(path), {})
            path.write_text('{"key":"a","state":"survives"}\n{"key":"b","state":"found"}\n{"key":"a","state":"found"}\n')
            self.assertEqual({key: one["state"] for key, one in mutants.read_results(path).items()}, {"a": "found", "b": "found"})

    def test_a_command_past_its_limit_is_ended_with_its_children(self):
        code, output = mutants.run(["sh", "-c", "echo begun; sleep 600 & wait"], limit=1)
        self.assertEqual((code, output), (124, "begun\n"))


if __name__ == "__main__":
    unittest.main()
