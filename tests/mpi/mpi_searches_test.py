"""Searches by the processes of a job: the same runs as by one process, one report, and a clear end where something is wrong.

    mpi_searches_test.py IMPLEMENTATION mpi_search_job mpi_search_job_other [TEST ...]
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
import mpi_job  # noqa: E402

IMPLEMENTATION = sys.argv[1]
PROGRAM, OTHER_PROGRAM = (str(pathlib.Path(program).resolve()) for program in sys.argv[2:4])
SOON = 120  # seconds, of a busy machine
ALL_ORDERS = 1680  # of three ranks that append three times each


class Done:
    """A job that has ended: its exit status, what it wrote, and what its processes noted."""

    def __init__(self, folder, done):
        self.code, self.text = done.returncode, done.stdout
        self.runs = [file.read_text().split() for file in sorted(pathlib.Path(folder).glob("runs.*"))]
        self.reports = [file.read_text() for file in sorted(pathlib.Path(folder).glob("report.*"))]

    def numbers(self):
        found = re.search(r"^ok (\d) verified (\d) runs (\d+) schedules (\d+) open (\d+)$", self.text, re.MULTILINE)
        assert found, self.text
        return dict(zip(("ok", "verified", "runs", "schedules", "open"), map(int, found.groups()), strict=True))

    def outcomes(self, first_runs=2):
        """How often each outcome was come to, but for the runs that each process makes to compare others with."""
        return collections.Counter(order for runs in self.runs for order in runs[first_runs:])


class Jobs(unittest.TestCase):
    def job(self, kind, processes=2, timeout=SOON, fails=False):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            finished = mpi_job.run(IMPLEMENTATION, processes, PROGRAM, [kind, folder], timeout=timeout, fails=fails)
            # A launcher may end before the processes that it ends do.
            while mpi_job.processes_of(PROGRAM) and time.monotonic() - begun < timeout:
                time.sleep(0.01)
            done = Done(folder, finished)
        self.assertLess(time.monotonic() - begun, timeout)
        return done

    def failed_job(self, kind, processes=2):
        done = self.job(kind, processes, fails=True)
        self.assertNotEqual(done.code, 0, done.text)
        return done

    def alone(self, kind):
        """The same without mpirun."""
        with tempfile.TemporaryDirectory() as folder:
            return Done(folder, subprocess.run([PROGRAM, kind, folder], text=True, timeout=SOON, stdout=subprocess.PIPE,
                                               stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=mpi_job.environment()))

    def repeat(self, command):
        """The command alone makes the failure again, without mpirun."""
        folder = command.split()[-1]
        self.assertNotIn("mpirun", command)
        pathlib.Path(folder).mkdir()
        try:
            again = subprocess.run(command, shell=True, text=True, timeout=SOON, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, env=mpi_job.environment())
        finally:
            for file in pathlib.Path(folder).iterdir():
                file.unlink()
            pathlib.Path(folder).rmdir()
        self.assertIn("ok 0 ", again.stdout)
        self.assertIn("failed: backwards", again.stdout)


class SearchesTest(Jobs):
    def test_any_number_of_processes_runs_each_schedule_once(self):
        alone = self.alone("alone")
        self.assertEqual(len(alone.outcomes()), ALL_ORDERS)
        self.assertEqual(set(alone.outcomes().values()), {1})
        for processes in 1, 2, 4:
            with self.subTest(processes=processes):
                done = self.job("all", processes)
                self.assertEqual(done.code, 0, done.text)
                self.assertEqual(done.numbers(),
                                 {"ok": 1, "verified": 1, "runs": 2 + ALL_ORDERS, "schedules": ALL_ORDERS, "open": 0}, done.text)
                self.assertIn(f"summary: verified: all {ALL_ORDERS} schedules that can differ, in {ALL_ORDERS} runs\n", done.text)
                self.assertEqual(done.outcomes(), alone.outcomes())
                self.assertEqual(len(done.reports), processes)
                self.assertEqual(len(set(done.reports)), 1, done.reports)

    def test_ranks_may_be_threads(self):
        done = self.job("threads")
        self.assertEqual(done.numbers()["schedules"], ALL_ORDERS, done.text)
        self.assertEqual(set(done.outcomes().values()), {1})

    def test_a_fault_that_did_not_happen_is_told_in_all_processes(self):
        done = self.job("missed_fault", processes=3)
        self.assertEqual(len(done.reports), 3)
        for report in done.reports:
            self.assertIn("\n  in the first run the fault crash@op=all_reduce", report)

    def test_drawn_runs_are_those_of_one_process(self):
        alone = self.job("drawn", 1)
        self.assertEqual(alone.numbers()["runs"], 602, alone.text)
        for processes in 2, 4:
            done = self.job("drawn", processes)
            self.assertEqual(done.numbers()["runs"], 602, done.text)
            self.assertEqual(done.outcomes(), alone.outcomes())

    # The shrunk run of a search that draws is the same for any number of processes.
    def test_a_failure_is_shrunk_and_told_once(self):
        for kind in "fails", "drawn_fails":
            texts = set()
            for processes in 1, 2, 4:
                with self.subTest(kind=kind, processes=processes):
                    done = self.job(kind, processes)
                    self.assertEqual(done.code != 0, kind == "fails", done.text)
                    self.assertEqual(done.numbers()["ok"], 0, done.text)
                    self.assertEqual(done.text.count("report: explored "), 1, done.text)
                    self.assertEqual(done.text.count("run it again: "), 1, done.text)
                    self.assertRegex(done.text, r"shrunk in \d+ runs?: 3 ranks, ")
                    self.assertRegex(done.text, r"rank \d failed: backwards \(std::runtime_error\)")
                    self.assertEqual(len(set(done.reports)), 1, done.reports)
                    again = re.search(r"^run it again: (.*)$", done.text, re.MULTILINE).group(1)
                    texts.add(again.split("RANKLOOM_SCHEDULE=")[1].split()[0])
                    if processes == 2:
                        self.repeat(again)
            if kind == "drawn_fails":
                self.assertEqual(len(texts), 1, texts)

    def test_a_failure_of_the_default_order_is_that_of_process_0(self):
        done = self.job("default_fails", 2)
        self.assertEqual(done.numbers()["ok"], 0, done.text)
        self.assertIn("found by default order in its run 1", done.text)
        self.assertEqual(done.text.count("report: explored "), 1, done.text)

    def test_a_failure_of_one_process_only_is_told_as_that(self):
        done = self.job("fails_by_one", 2)
        self.assertIn("the same run went well when it was made again by another process: it depends on more than the schedule",
                      done.text)

    # A lock that the program made before the search has one name in all processes, whatever they did before.
    def test_a_lock_from_outside_of_runs_orders_ranks_in_all_processes(self):
        alone = self.alone("captured_alone")
        self.assertEqual(len(alone.outcomes()), ALL_ORDERS, alone.text)
        for processes in 2, 3:
            with self.subTest(processes=processes):
                done = self.job("captured", processes)
                self.assertIn(f"summary: verified: all {ALL_ORDERS} schedules that can differ, in ", done.text)
                self.assertEqual(set(done.outcomes()), set(alone.outcomes()))

    def test_a_lock_that_processes_name_differently_is_not_covered(self):
        for kind, reason in (("captured_by_thread", "objects that the thread of explore() did not make before the call: each process has "
                                                    "its own names for them"),
                             ("captured_in_other_numbers", "objects that were made before explore(), which other processes made in "
                                                           "other numbers")):
            with self.subTest(kind=kind):
                done = self.job(kind)
                self.assertEqual(done.numbers()["verified"], 0, done.text)
                self.assertIn(f"not verified because of: {reason})", done.text)

    def test_an_exception_of_progress_ends_the_search_of_all(self):
        done = self.job("progress_throws")
        self.assertIn("process 0 caught: no more of it\n", done.text)
        self.assertEqual(len(done.reports), 1, done.text)
        self.assertIn("explore: an exception ended the search of process 0", done.reports[0])

    def test_progress_is_told_by_process_0(self):
        done = self.job("progress", 2)
        self.assertEqual(done.text.count("progress told by process 0"), 1, done.text)
        self.assertNotIn("progress told by process 1", done.text)


class RefusalsTest(Jobs):
    def test_another_program_is_refused(self):
        # A job of two commands, "mpirun A : B", crashes the mpirun of Open MPI 5 that Debian 13 has (open-mpi/ompi#13303).
        either = 'case ${PMI_RANK-$OMPI_COMM_WORLD_RANK} in 0) exec "$0" "$2" "$3" ;; *) exec "$1" "$2" "$3" ;; esac'
        with tempfile.TemporaryDirectory() as folder:
            arguments = ["-c", either, PROGRAM, OTHER_PROGRAM, "all", folder]
            done = Done(folder, mpi_job.run(IMPLEMENTATION, 2, "/bin/sh", arguments, timeout=SOON))
        self.assertEqual(done.numbers()["ok"], 0, done.text)
        self.assertRegex(done.text, r"summary: explore: process 1 runs another program: rankloom \S+ \w+, want rankloom \S+ \w+, "
                                    r"as the process that leads\n")
        self.assertEqual(len(set(done.reports)), 1, done.reports)
        self.assertEqual(done.numbers()["verified"], 0)

    def test_other_options_are_refused(self):
        done = self.job("options")
        self.assertEqual(done.numbers()["ok"], 0, done.text)
        self.assertRegex(done.text, r"summary: explore: process 1 has other options: .*max_steps 77777, .* want .*max_steps 200000, .*, "
                                    r"as the process that leads\n")

    def test_options_that_make_no_sense_are_refused(self):
        done = self.job("max_runs")
        self.assertEqual(done.numbers()["ok"], 0, done.text)
        self.assertIn("summary: explore: max_runs is 0, want 1 or more", done.text)
        done = self.job("max_runs_of_one")
        self.assertIn('summary: explore: process 1 has other options: "explore: max_runs is 0, want 1 or more', done.text)

    def test_a_process_waits_for_one_that_comes_late_as_the_options_say(self):
        done = self.job("late")
        self.assertRegex(done.text, r"rankloom: (a process|process 0 of 2) has waited in explore\(\) for 400ms of real time for processes that have")
        self.assertEqual(done.numbers()["schedules"], ALL_ORDERS, done.text)

    def test_another_call_of_one_is_refused(self):
        done = self.job("other_call", processes=3)
        text = r"process 0 has called explore\(\) and process 1 run_mpi_world\(\), want the same call of all processes \[mpi_search_job.cc:\d+\]"
        self.assertRegex(done.text, r"process 1 caught: InvalidArgument: run_mpi_world: " + text)
        self.assertRegex(done.text, r"summary: explore: " + text)

    def test_forked_processes_in_a_job_are_refused(self):
        done = self.job("processes")
        self.assertEqual(done.numbers()["ok"], 0, done.text)
        self.assertRegex(done.text, r"summary: explore: processes is 2, want 1: the job has 2 processes \[mpi_search_job.cc:\d+\]\n")

    def test_the_thread_level(self):
        done = self.job("level")
        self.assertEqual(done.numbers()["ok"], 0, done.text)
        self.assertRegex(done.text, r"explore: MPI gives MPI_THREAD_\w+, want MPI_THREAD_MULTIPLE from MPI_Init_thread\(\), "
                                    r"or no MPI_Init\(\) before this call \[mpi_search_job.cc:\d+\]")

    # Where one process refuses, the others say so instead of waiting for it.
    def test_the_thread_level_of_one(self):
        done = self.job("level_of_one", 3)
        self.assertEqual(done.numbers()["ok"], 0, done.text)
        self.assertEqual(len(done.reports), 3, done.text)
        for process in 0, 2:
            self.assertRegex(done.reports[process], r"explore: process 1 refuses the search, and says why \[mpi_search_job.cc:\d+\]")
        self.assertRegex(done.reports[1], r"explore: MPI gives MPI_THREAD_\w+, want MPI_THREAD_MULTIPLE from MPI_Init_thread\(\), "
                                          r"or no MPI_Init\(\) before this call \[mpi_search_job.cc:\d+\]")
        self.assertEqual(done.runs, [])

    def test_another_version_of_one(self):
        done = self.job("version_of_one")
        self.assertEqual(len(done.reports), 2, done.text)
        for report in done.reports:
            self.assertRegex(report, r"explore: process 1 has rankloom 0.0.9 and process 0 has [\d.]+, want the same in all processes")


class EndsTest(Jobs):
    # The launcher ends the others and names the signal, unless the transport of one (UCX) has ended that before.
    def test_a_killed_process_ends_the_job(self):
        done = self.failed_job("kill")
        self.assertNotIn("summary:", done.text)
        self.assertRegex(done.text, r"signal 9|EXIT CODE: 9|KILLED BY SIGNAL: 9|Killed|No such process")

    def test_a_process_that_aborts_ends_the_job(self):
        done = self.failed_job("abort")
        self.assertNotIn("summary:", done.text)
        # The process itself, or its MPI, whose handler came first; a launcher's own words are now and then missing.
        self.assertRegex(done.text, r"rankloom: fatal \(rank \d\): SIGABRT\n  its last point: store append |Signal: Aborted \(6\)\n")

    def test_exit_in_a_run_ends_the_job(self):
        done = self.failed_job("exit")
        self.assertNotIn("summary:", done.text)
        self.assertIn("exit() was called while explore() runs, want it after that", done.text)

    def test_a_process_that_a_run_forks_may_exit(self):
        self.assertEqual(self.job("child_exits").numbers(), {"ok": 1, "verified": 1, "runs": 1680 + 2, "schedules": 1680, "open": 0})

    # The failure that was found is told.
    def test_a_run_without_end_ends_the_job(self):
        for process in 0, 1:
            with self.subTest(process=process):
                done = self.failed_job(f"hang_of_{process}")
                self.assertIn("rank ", done.text)
                self.assertIn("failed: the other one hangs", done.text)
                self.assertRegex(done.text, r"rankloom: process 0 ends the job: explore: (its|a) run has not ended 1s after the search "
                                 + (r"was over\n" if process == 0 else r"was over: that of process 1\n"))


    def test_a_first_run_without_end_ends_the_job_with_the_name_of_its_process(self):
        done = self.failed_job("first_hangs", 3)
        self.assertIn("explore: a run has not ended 10s after max_time was over: that of process 1; ", done.text)
        self.assertIn("rankloom: process 0 ends the job: explore: a run has not ended 1s after the search was over: that of process 1\n",
                      done.text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
