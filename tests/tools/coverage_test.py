"""The counts that tools/coverage.py reads from llvm-cov's text, and the names of files that it takes."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))
import coverage  # noqa: E402


class CoverageTest(unittest.TestCase):
    def test_a_file_that_is_compiled_in_two_ways_counts_once(self):
        told = f"""SF:{ROOT}/build/../sim/a.cc
DA:3,0
DA:4,7
BRDA:4,0,0,5
BRDA:4,0,1,-
end_of_record
SF:/usr/include/c++/12/vector
DA:3,9
end_of_record
SF:{ROOT}/sim/a.cc
DA:3,2
DA:5,0
BRDA:4,0,1,1
end_of_record"""
        counts = coverage.counts_by_file(told)
        self.assertEqual(list(counts), ["sim/a.cc"])
        self.assertEqual(counts["sim/a.cc"]["lines"], {("3",): 2, ("4",): 7, ("5",): 0})
        self.assertEqual(counts["sim/a.cc"]["branches"], {("4", "0", "0"): 5, ("4", "0", "1"): 1})

    def test_files_of_the_core_have_names_from_the_root(self):
        self.assertEqual(coverage.core_file(f"{ROOT}/build-coverage/../world/world.cc"), "world/world.cc")
        for other in "tests/world/world_test.cc", "collectives/mpi/wire.cc", "collectives/cuda/cuda_stream.cc":
            self.assertIsNone(coverage.core_file(f"{ROOT}/{other}"), other)
        self.assertIsNone(coverage.core_file("/usr/include/stdio.h"))


if __name__ == "__main__":
    unittest.main()
