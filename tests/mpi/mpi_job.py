"""How a job of MPI processes is started here, by implementation; and the test of one program as such a job.

    mpi_job.py [--limit=SECONDS] IMPLEMENTATION PROCESSES PROGRAM [ARGUMENT ...]

A job that has not ended after so many seconds fails: its processes are ended, after the stacks of their threads are printed
where there is gdb.
"""

import contextlib
import functools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LAUNCHERS = {"ompi": ["mpirun.openmpi", "mpirun"], "mpich": ["mpirun.mpich", "mpiexec.hydra", "mpirun"]}
# Processes may be more than cores, also for root in a container: these wait without keeping the cores, and Open MPI asks for both.
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl_base_warn_component_unused": "0",
    "OMPI_MCA_btl": "self,vader",
    "OMPI_MCA_pml": "ob1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "UCX_TLS": "self,sm",
    "UCX_LOG_LEVEL": "error",
}


@functools.cache
def launcher_of(implementation):
    return next(filter(None, map(shutil.which, LAUNCHERS[implementation])))


@functools.cache
def forgets_failures(implementation):
    """Whether the launcher says now and then that a job went well whose processes failed: MPICH's from 4.1 to 4.2.2, where
    several end badly at once (pmodels/mpich#7057)."""
    said = subprocess.run([launcher_of(implementation), "--version"], env=environment(), text=True, stdout=subprocess.PIPE).stdout
    hydra = re.search(r"HYDRA build details:\s+Version:\s+(\d+)\.(\d+)\.(\d+)", said)
    return hydra is not None and (4, 1, 0) <= tuple(map(int, hydra.groups())) < (4, 2, 3)


def command(implementation, processes, program, arguments=()):
    # MPICH looks for a bare name in PATH, not in the working directory.
    return [launcher_of(implementation), "-n", str(processes), os.path.abspath(program), *arguments]


def environment(processes=None):
    """`processes`: programs learn how many there are to be, since under another MPI's launcher each would be alone."""
    told = {} if processes is None else {"MPI_JOB_PROCESSES": str(processes)}
    return {**ENVIRONMENT, **os.environ, **told}


def run_once(implementation, processes, program, arguments, timeout):
    """The finished job, with all that the launcher and then its processes wrote as text. They write to files of their own: a launcher
    may break the line of one to show that of another."""
    with tempfile.TemporaryDirectory() as folder:
        to_file = ["-c", f'exec "$0" "$@" >{folder}/$$ 2>&1', os.path.abspath(program), *arguments]

        def written():
            return "".join(file.read_text(errors="replace") for file in sorted(pathlib.Path(folder).iterdir()))

        try:
            done = subprocess.run(command(implementation, processes, "/bin/sh", to_file), env=environment(), text=True, timeout=timeout,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired as error:
            error.add_note(written())
            raise
        done.stdout += written()
        return done


def run(implementation, processes, program, arguments=(), timeout=60, fails=False):
    """The finished job, as run_once() has it. `fails`: one that must fail is run again, a few times, where the launcher may have
    forgotten that it failed."""
    for _ in range(10 if fails and forgets_failures(implementation) else 1):
        done = run_once(implementation, processes, program, arguments, timeout)
        if done.returncode != 0:
            break
    return done


def is_of(process, ancestor):
    """Whether the process, by id, descends from the other."""
    while process > 1 and process != ancestor:
        with open(f"/proc/{process}/stat") as stat:
            process = int(stat.read().rpartition(")")[2].split()[1])
    return process == ancestor


def processes_of(program, ancestor=None):
    """The processes here that run it, and, if one is given, descend from another: by id."""
    found = []
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if os.path.samefile(f"/proc/{process}/exe", program) and (ancestor is None or is_of(process, ancestor)):
                found.append(process)
    return sorted(found)


def stacks_of(process):
    gdb = shutil.which("gdb")
    if gdb is None:
        return "no gdb, so no stacks\n"
    try:
        return subprocess.run([gdb, "-p", str(process), "-batch", "-ex", "thread apply all backtrace 30"], text=True, timeout=60,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    except subprocess.TimeoutExpired:
        return "gdb gave no stacks within 60 s\n"


def run_with_limit(limit, implementation, processes, program, arguments):
    """The exit status of the job, whose processes write to this one's output."""
    with subprocess.Popen(command(implementation, processes, program, arguments), env=environment(processes),
                          stdin=subprocess.DEVNULL) as job:
        try:
            return job.wait(limit)
        except subprocess.TimeoutExpired:
            print(f"mpi_job.py: the job has not ended after {limit} s", flush=True)
            hung = processes_of(program, ancestor=job.pid)
            for process in hung:
                print(f"---- process {process}\n{stacks_of(process)}", flush=True)
            job.terminate()
            try:
                job.wait(20)
            except subprocess.TimeoutExpired:
                job.kill()
            for _ in range(500):
                left = set(hung) & set(processes_of(program))
                if not left:
                    break
                for process in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                time.sleep(0.01)
            return 1


if __name__ == "__main__":
    arguments = sys.argv[1:]
    limit = int(arguments.pop(0).removeprefix("--limit=")) if arguments[0].startswith("--limit=") else None
    implementation, processes, program, *arguments = arguments
    sys.exit(run_with_limit(limit, implementation, processes, program, arguments))
