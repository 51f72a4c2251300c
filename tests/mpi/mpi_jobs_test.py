"""Jobs that go wrong around run_mpi_world(): each ends with a clear text, and soon.

    mpi_jobs_test.py IMPLEMENTATION mpi_job
"""

import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True
import mpi_job  # noqa: E402

IMPLEMENTATION, PROGRAM = sys.argv[1:3]
ROOT = pathlib.Path(__file__).resolve().parents[2]
SOON = 40  # seconds, of a busy machine


class JobsTest(unittest.TestCase):
    def job(self, kind, processes=2, arguments=(), fails=False):
        begun = time.monotonic()
        done = mpi_job.run(IMPLEMENTATION, processes, PROGRAM, [kind, *arguments], timeout=SOON, fails=fails)
        self.assertLess(time.monotonic() - begun, SOON)
        return done

    def failed_job(self, kind, processes=2, arguments=()):
        done = self.job(kind, processes, arguments, fails=True)
        self.assertNotEqual(done.returncode, 0, f"{kind}\n{done.stdout}")
        return done

    def test_runs(self):
        done = self.job("")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("sum 6", done.stdout)
        self.assertIn("report: ok", done.stdout)

    def test_calls_of_mpi_beside_are_fine(self):
        done = self.job("beside")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_an_exception_ends_all_with_its_text(self):
        done = self.failed_job("throw")
        self.assertIn("report: rank 1 failed: the disk is full", done.stdout)
        self.assertIn("rank 0 stopped for it", done.stdout)

    def test_a_rank_that_goes_on_after_an_abort_ends_the_job(self):
        done = self.failed_job("go_on")
        self.assertIn("rankloom: rank 1 ends the job: a rank has not ended 1s after the run was aborted; still running: rank 0\n", done.stdout)

    def test_an_error_of_mpi_between_the_processes_ends_the_job(self):
        done = self.failed_job("no_probe")
        self.assertRegex(done.stdout, r"rankloom: rank 1 ends the job: messages between the processes: MPI_Improbe: \S")

    def test_a_wait_ends_while_all_else_moves(self):
        done = self.job("always_moves")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout.count("the wait has ended\n"), 2, done.stdout)

    def test_each_thread_has_the_answers_to_its_own_question(self):
        done = self.job("two_questions", processes=3)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("a: process 1 has made 5 calls, process 2 has answered: 0\n", done.stdout)
        self.assertIn("b: process 1 has made 7 calls, process 2 has answered: 0\n", done.stdout)

    def test_a_call_that_is_given_up_while_its_sizes_travel(self):
        done = self.job("gives_up_sizes")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"rank 0: Timeout: rank 0, group 0, all_gather seq 1: timed out after 100ms")
        self.assertNotIn("data travel", done.stdout)
        self.assertIn("report: ok", done.stdout)

    # The launcher ends the others and names the signal, unless the transport of one (UCX) has ended that before.
    def test_a_killed_process_ends_the_job(self):
        for kind in "kill", "kill_in_call":
            done = self.failed_job(kind)
            self.assertRegex(done.stdout, r"signal 9|EXIT CODE: 9|KILLED BY SIGNAL: 9|Killed|No such process", kind)

    def test_the_thread_level(self):
        done = self.failed_job("level")
        self.assertRegex(done.stdout, r"refused: InvalidArgument: run_mpi_world: MPI gives MPI_THREAD_\w+, want MPI_THREAD_MULTIPLE "
                                      r"from MPI_Init_thread\(\), or no MPI_Init\(\) before this call \[mpi_job.cc:\d+\]")

    # Where one process refuses, the others say so instead of waiting for it.
    def refused(self, kind, *texts):
        done = self.failed_job(kind)
        self.assertNotIn("sum", done.stdout)
        for text in texts:
            self.assertRegex(done.stdout, r"refused: InvalidArgument: run_mpi_world: " + text + r" \[mpi_job.cc:\d+\]")

    def test_the_thread_level_of_one(self):
        self.refused("level_of_one", r"MPI gives MPI_THREAD_\w+, want MPI_THREAD_MULTIPLE from MPI_Init_thread\(\), or no MPI_Init\(\) "
                                     r"before this call", "rank 1 refuses the run, and says why")

    def test_another_size_of_one(self):
        self.refused("size_of_one", r"world_size is 5 and the job has 2 processes, want the same, or 1 .*", "rank 1 refuses the run, and says why")

    def test_another_version(self):
        done = self.failed_job("version")
        self.assertEqual(len(re.findall(r"rank 1 has rankloom 0.0.9 and rank 0 has [\d.]+, want the same in all processes", done.stdout)), 2,
                         done.stdout)

    def test_a_comparison_that_one_does_without(self):
        self.refused("comparison_of_one", "compare_calls is 1 for rank 0 and 0 for rank 1, want the same")

    # MPI itself ends the job, with a text that Open MPI loses now and then.
    def test_init_in_a_rank_program(self):
        done = self.failed_job("init")
        self.assertNotIn("sum", done.stdout)

    def test_every_rank_leaves_its_records(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, RANKLOOM_REPORT=folder):
            done = self.failed_job("flight", processes=3, arguments=[folder])
            path = os.path.join(folder, "PROGRAM.run1.rlrun".replace("PROGRAM", os.path.basename(PROGRAM)))
            self.assertIn(f"run file: {path}; see it: rankloom report {path} -o run.html", done.stdout)
            # One dump of each rank, by its own process.
            for rank in range(3):
                with open(os.path.join(folder, f"fr_{rank}"), "rb") as dump:
                    entries = pickle.load(dump)["entries"]
                self.assertEqual(entries[0]["profiling_name"], "gloo:all_reduce", rank)
                self.assertEqual(entries[0]["state"], "completed", rank)
                self.assertEqual(len(entries), 1 if rank == 1 else 2, rank)
                self.assertEqual(entries[0]["thread_name"], f"rank {rank}")
            # And a run file of all.
            shown = [self.shown(path, rank) for rank in range(3)]
            self.assertIn("rank 1 failed: the disk is full", shown[0])
            for rank, text in enumerate(shown):
                calls = text[text.index(f"  calls of rank {rank}:"):]
                self.assertRegex(calls, r"all_reduce seq 1 \[group 0\], float32 \[100000\] \(completed, ")
                self.assertEqual(len(re.findall(r"all_reduce seq 2 \[group 0\], float32 \[100000\] \(failed, ", calls)), 0 if rank == 1 else 1,
                                 text)
            with open(path) as file:
                lines = [json.loads(line) for line in file]
            stores = [line for line in lines if line.get("t") == "store"]
            self.assertEqual([[op["key"] for op in store["ops"]] for store in stores], [["0 has called"], ["0 has called"], ["2 has called"]])
            groups = next(line for line in lines if line.get("t") == "groups")["groups"]
            self.assertEqual(len(groups), 1)  # that of all ranks, which each process has

    def shown(self, path, rank):
        return subprocess.run([sys.executable, ROOT / "tools/rankloom_command", "show", path, "--rank", str(rank)], check=True, text=True,
                              capture_output=True).stdout

    def test_a_finalized_mpi(self):
        done = self.job("finalized")
        self.assertIn("run_mpi_world: MPI is finalized, want run_mpi_world() before MPI_Finalize()", done.stdout)

    def test_finalize_in_a_rank_program(self):
        done = self.failed_job("finalize")
        self.assertIn("MPI_Finalize() was called while run_mpi_world() runs", done.stdout)

    def test_another_size(self):
        done = self.failed_job("size")
        self.assertIn("run_mpi_world: world_size is 5 and the job has 2 processes, want the same, or 1", done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
