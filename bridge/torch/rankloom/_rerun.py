"""How a run is repeated, where the command line of the process would repeat more."""

from __future__ import annotations

command: str | None = None  # without the variables that name the schedule
