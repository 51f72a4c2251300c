"""How a job of MPI processes is started here, by implementation; and the test of one program as such a job.

    mpi_job.py IMPLEMENTATION PROCESSES PROGRAM [ARGUMENT ...]
"""

import os
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


def command(implementation, processes, program, arguments=()):
    launcher = next(filter(None, map(shutil.which, LAUNCHERS[implementation])))
    # MPICH looks for a bare name in PATH, not in the working directory.
    return [launcher, "-n", str(processes), os.path.abspath(program), *arguments]


def environment():
    return {**ENVIRONMENT, **os.environ}


def run(implementation, processes, program, arguments=(), timeout=60):
    """The finished job, with all that its processes wrote as text."""
    return subprocess.run(command(implementation, processes, program, arguments), env=environment(), text=True, timeout=timeout,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    implementation, processes, program, *arguments = sys.argv[1:]
    os.execvpe(command(implementation, processes, program)[0], command(implementation, processes, program, arguments), environment())
