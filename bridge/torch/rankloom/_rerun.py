"""How a run is repeated, where the command line of the process would repeat more."""

from __future__ import annotations

# The variables of the environment that name one schedule: runs that try many make that one only.
ONE_SCHEDULE = ("RANKLOOM_SEED", "RANKLOOM_SCHEDULE", "RANKLOOM_REPLAY")

# In seconds of real time without a scheduling point, after which a rank of any run hangs: what the pytest plugin asks for.
stall: float | None = None

command: str | None = None  # without the variables that name the schedule

# Of run files: what stands before the number of the run in their names; None: the program's name.
program: str | None = None
# Whether run() and explore() write the runs that fail where RANKLOOM_REPORT says. Else the runner of the tests does.
writes_runs = True
