"""Jobs that go wrong around run_mpi_world(): each ends with a clear text, and soon.

    mpi_jobs_test.py IMPLEMENTATION mpi_job
"""

import json
import os
import pathlib
import pickle
import re
import shutil
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
SOON = 120  # seconds, of a busy machine


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

    def test_a_process_that_a_rank_forks_may_exit(self):
        done = self.job("child_exits")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("the child's code is 5\n", done.stdout)
        self.assertIn("report: ok\n", done.stdout)

    def test_an_exception_ends_all_with_its_text(self):
        done = self.failed_job("throw")
        self.assertIn("report: rank 1 failed: the disk is full", done.stdout)
        self.assertIn("rank 0 stopped for it", done.stdout)

    def test_a_rank_that_goes_on_after_an_abort_ends_the_job(self):
        done = self.failed_job("go_on")
        self.assertIn("rankloom: rank 1 ends the job: a rank has not ended 1s after the run was aborted; still running: rank 0\n"
                      "why the run was aborted: rank 1 failed: the disk is full (std::runtime_error), after all_reduce seq 1 ", done.stdout)

    def test_two_calls_at_a_time_are_refused(self):
        done = self.job("two_calls")
        self.assertEqual(done.returncode, 0, done.stdout)
        refused = re.findall(r"^refused: InvalidArgument: run_mpi_world: another thread of this process is in run_mpi_world\(\), want one call at a "
                             r"time \[mpi_job.cc:\d+\]$", done.stdout, re.MULTILINE)
        self.assertEqual(len(refused), 2, done.stdout)

    def test_processes_that_wait_for_one_that_comes_late_say_so(self):
        done = self.job("late", processes=3)
        self.assertEqual(done.returncode, 0, done.stdout)
        for process in (0, 2):
            self.assertRegex(done.stdout, fr"rankloom: process {process} of 3 has waited in run_mpi_world\(\) for 400ms of real time for "
                             r"processes that have not called it; those that have called it print this line, too \[mpi_job.cc:\d+\]\n")
            self.assertIn(f"rankloom: process {process} of 3 has waited in run_mpi_world() for 800ms of real time", done.stdout)
        self.assertNotIn("process 1 of 3", done.stdout)
        self.assertIn("report: ok", done.stdout)

    def test_an_on_stall_that_throws_does_no_harm(self):
        done = self.job("late_and_throws")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"rankloom: on_stall threw: nobody listens\n"
                         r"rankloom: process 0 of 2 has waited in run_mpi_world\(\) for 400ms ")
        self.assertIn("report: ok", done.stdout)

    def test_a_process_that_never_comes_can_end_the_job(self):
        done = self.failed_job("never_comes")
        self.assertRegex(done.stdout, r"rankloom: (a process|process 0 of 2) has waited in run_mpi_world\(\) for 1.5s of real time for processes "
                         r"that have not called it(: MPI_Init_thread\(\) waits for all|; those that have called it print this line, too) "
                         r"\[mpi_job.cc:\d+\]\nnobody can free it: the job ends \(WorldOptions::stall_is_fatal\)\n")

    def test_the_limit_of_a_job_tells_where_its_processes_are_and_ends_them(self):
        done = subprocess.run([sys.executable, mpi_job.__file__, "--limit=15", IMPLEMENTATION, "2", PROGRAM, "compute"], text=True,
                              timeout=SOON + 60, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("mpi_job.py: the job has not ended after 15 s\n", done.stdout)
        stacks = done.stdout.split("---- process ")[1:]
        self.assertEqual(len(stacks), 2, done.stdout)
        for text in stacks:  # a machine may allow nobody to attach
            self.assertRegex(text, "no gdb, so no stacks" if shutil.which("gdb") is None else r" usleep|[Pp]trace: Operation not permitted")
        self.assertEqual(mpi_job.processes_of(PROGRAM), [])

    def test_an_error_of_mpi_between_the_processes_ends_the_job(self):
        done = self.failed_job("no_probe")
        self.assertRegex(done.stdout, r"rankloom: rank 1 ends the job: messages between the processes: MPI_Improbe: \S")

    def test_a_wait_ends_while_all_else_moves(self):
        done = self.job("always_moves")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout.count("the wait has ended"), 2, done.stdout)

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

    # Before the handler that Open MPI has for such signals, or UCX, which ends the process. UCX of Debian 12, which MPICH there moves
    # data by, lets no other one come first.
    def test_a_crash_is_told_with_its_rank(self):
        done = self.failed_job("crash")
        if IMPLEMENTATION == "ompi" or "libucs" not in done.stdout:
            self.assertIn("rankloom: fatal (rank 1): SIGSEGV\n  its last point: ", done.stdout)

    def test_a_recv_in_vain_names_the_tags_that_come(self):
        done = self.failed_job("tags")
        self.assertRegex(done.stdout, r"Timeout: rank 1, group 0, recv from rank 0, tag 3: timed out after 300ms waiting for rank 0 "
                         r"\[group 0, mpi_job.cc:\d+\]"
                         r"\n  rank 0 has sends to this rank on their way with tag 4, and this recv is for tag 3")

    def test_coalesced_calls_in_vain_name_them_too(self):
        done = self.failed_job("coalesced_tags")
        self.assertIn("timed out after 300ms waiting for rank 0", done.stdout)
        self.assertIn("\n  rank 0 has sends to this rank on their way with tag 4, and this recv is for tag 3", done.stdout)

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
    def test_the_launcher_of_another_mpi(self):
        # Without a launcher, as each process of a job is to the MPI that did not start it.
        of_pmix = {"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "2"}
        launchers = {"ompi": [{"PMI_SIZE": "2"}], "mpich": [{"OMPI_COMM_WORLD_SIZE": "2"}, of_pmix]}[IMPLEMENTATION]
        for launcher in launchers:
            *_, variable = launcher
            done = subprocess.run([PROGRAM, ""], env={**os.environ, **launcher}, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=SOON, check=False)
            self.assertNotEqual(done.returncode, 0, done.stdout)
            self.assertRegex(done.stdout, rf"{variable} is 2, and MPI \((Open MPI v|MPICH Version: )[0-9.]+\) sees this process only, "
                                          "want the mpirun of the MPI that the program is linked with, or the variable unset")

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


class HostsTest(unittest.TestCase):
    """Worlds with three ranks in each process, the last one with what is left."""

    def job(self, kind, ranks=6, processes=2, arguments=(), fails=False):
        return mpi_job.run(IMPLEMENTATION, processes, PROGRAM, ["host_" + kind, str(ranks), *arguments], timeout=SOON, fails=fails)

    def failed_job(self, kind, ranks=6, processes=2):
        done = self.job(kind, ranks, processes, fails=True)
        self.assertNotEqual(done.returncode, 0, f"{kind}\n{done.stdout}")
        return done

    def test_runs_on_two_and_four_processes(self):
        for ranks, processes in (6, 2), (5, 2), (4, 2), (11, 4):
            done = self.job("run", ranks, processes)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertIn(f"sum {ranks * ranks * (ranks + 1) // 2} at 0\n", done.stdout)
            self.assertIn("report: ok\n", done.stdout)

    def test_a_deadlock_names_the_ranks_of_all_processes(self):
        done = self.failed_job("deadlock", ranks=11, processes=4)
        self.assertIn("report: Deadlock: no rank can move\n", done.stdout)
        for line in ("ranks 0-9 wait in all_reduce seq 1 for rank 10 [group 0, mpi_job.cc:",
                     "rank 10 waits in recv seq 1 tag 3 for rank 0 [group 0, mpi_job.cc:"):
            self.assertIn("  " + line, done.stdout)
        self.assertIn("ranks 0-10 stopped for it\n", done.stdout)

    def test_a_deadlock_of_the_store_names_its_key(self):
        done = self.job("deadlock_of_stores")
        self.assertIn("report: Deadlock: no rank can move\n", done.stdout)
        self.assertRegex(done.stdout, r'rank 5 waits in store wait key "never" \[mpi_job.cc:')
        self.assertIn("ranks 0-4 wait in all_reduce seq 1 for rank 5 ", done.stdout)

    def test_a_deadlock_within_one_process_is_found_too(self):
        done = self.job("deadlock_of_groups")
        self.assertIn("report: Deadlock: no rank can move\n", done.stdout)
        self.assertRegex(done.stdout, r"ranks 3-4 wait in barrier seq 1 for rank 5 \(returned\)")
        self.assertNotRegex(done.stdout, r"ranks 0-2 wait")

    def test_a_process_that_refuses_is_named(self):
        done = self.failed_job("refuses")
        self.assertIn("InvalidArgument: run_mpi_world: schedule is seeded:1, want fifo: processes run as they like [", done.stdout)
        self.assertIn("InvalidArgument: run_mpi_world: process 1 refuses the run, and says why [", done.stdout)

    def test_members_that_differ_get_one_table(self):
        done = self.job("differ", ranks=11, processes=4)
        self.assertIn("report: ranks 0-10 failed: Mismatch: group 0, seq 1: members issued different calls\n", done.stdout)
        self.assertRegex(done.stdout, r"shape \| \[2\]   \| 0-9   \|.*\n +\| \[3\]   \| 10 ")

    def test_a_rank_that_goes_on_after_an_abort_ends_the_job(self):
        done = self.failed_job("go_on")
        self.assertIn("rankloom: process 1 ends the job: a rank has not ended 1s after the run was aborted; still running: process 0\n"
                      "why the run was aborted: rank 5 failed: the disk is full (std::runtime_error), after all_reduce seq 1 ", done.stdout)

    def test_an_exception_ends_all_with_its_text(self):
        done = self.job("throw")
        self.assertIn("report: rank 5 failed: the disk is full", done.stdout)
        self.assertIn("ranks 0-4 stopped for it", done.stdout)

    def test_a_message_that_nobody_received_is_a_note(self):
        done = self.job("leftover")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("report: ok\nnote: rank 5, group 1, send to rank 0, tag 5: was never received [group 1, mpi_job.cc:", done.stdout)

    def test_exit_in_a_rank_ends_the_job(self):
        done = self.failed_job("exit")
        self.assertIn("rankloom: rank 5 called exit() on a fiber: the process ends with code 1", done.stdout)

    def test_ranks_sleep_in_real_time_while_one_waits_for_a_shared_file(self):
        for kind in "file", "file_again", "file_polls":
            with tempfile.TemporaryDirectory() as folder:
                done = self.job(kind, arguments=[folder + "/store"])
            self.assertEqual(done.returncode, 0, f"{kind}\n{done.stdout}")
            self.assertRegex(done.stdout, r"sum 126 at [5-9]\d\d(\.\d+)?ms\n")  # the longest sleep

    def test_time_is_virtual_and_the_same_for_all(self):
        done = self.job("sleep")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("at 6m\n", done.stdout)

    def test_time_passes_for_a_rank_that_only_asks(self):
        done = self.job("poll")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("at 1m", done.stdout)

    def test_a_killed_process_ends_the_job(self):
        for kind in "kill", "kill_in_call":
            done = self.failed_job(kind)
            self.assertRegex(done.stdout, r"signal 9|EXIT CODE: 9|KILLED BY SIGNAL: 9|Killed|No such process", kind)

    def test_a_world_that_needs_more_processes_is_refused(self):
        done = self.failed_job("run", ranks=7)
        self.assertEqual(done.stdout.count("refused: InvalidArgument: run_mpi_world: world_size is 7 and ranks_per_process 3, which is 3 "
                                           "processes; the job has 2, want as many (mpirun -n 3) [mpi_job.cc:"), 2, done.stdout)

    def test_another_number_of_ranks_in_one_process_is_refused(self):
        done = mpi_job.run(IMPLEMENTATION, 2, PROGRAM, ["each_of_one"], timeout=SOON)
        self.assertEqual(done.stdout.count("refused: InvalidArgument: run_mpi_world: ranks_per_process is 2 for process 0 and 3 for process 1, "
                                           "want the same [mpi_job.cc:"), 2, done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
