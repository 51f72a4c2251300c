"""How a job of MPI processes is started here, by implementation; and the test of one program as such a job.

    mpi_job.py IMPLEMENTATION PROCESSES PROGRAM [ARGUMENT ...]
"""

import functools
import os
import re
import shutil
import subprocess
import sys

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


def environment():
    return {**ENVIRONMENT, **os.environ}


def run(implementation, processes, program, arguments=(), timeout=60, fails=False):
    """The finished job, with all that its processes wrote as text. `fails`: one that must fail is run again, a few times, where the
    launcher may have forgotten that it failed."""
    for _ in range(10 if fails and forgets_failures(implementation) else 1):
        done = subprocess.run(command(implementation, processes, program, arguments), env=environment(), text=True, timeout=timeout,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            break
    return done


if __name__ == "__main__":
    implementation, processes, program, *arguments = sys.argv[1:]
    os.execvpe(command(implementation, processes, program)[0], command(implementation, processes, program, arguments), environment())
