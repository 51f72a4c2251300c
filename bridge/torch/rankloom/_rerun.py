"""How a run is repeated, where the command line of the process would repeat more."""

from __future__ import annotations

# The variables of the environment that name one schedule: runs that try many make that one only.
ONE_SCHEDULE = ("RANKLOOM_SEED", "RANKLOOM_SCHEDULE", "RANKLOOM_REPLAY")

command: str | None = None  # without the variables that name the schedule
