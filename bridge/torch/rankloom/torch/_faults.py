"""The faults of a plan."""

from __future__ import annotations

import dataclasses
import decimal
import re
from collections.abc import Iterable

_ENDS = re.compile("[,;%\\0]")  # characters at which a text, or a variable of the environment, would end


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that goes wrong at a certain call. A field that is left out fits every call."""

    kind: str  # crash, hang, delay, drop, duplicate, corrupt, abort, store_timeout
    rank: int | None = None
    group: str = ""
    op: str = ""  # "all_reduce", "store get"
    seq: int | None = None  # of a collective
    nth: int | None = None  # the rank's n-th call, from 1, of those that group, op and seq fit; None: each of them
    when: str = "before"  # inside: the peers have seen the call, and it is not done; after: it is done
    by: float = 0.1  # of a delay: seconds of virtual time
    maybe: bool = False  # the schedule chooses whether it happens

    def __post_init__(self) -> None:
        for name in ("rank", "seq", "nth"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"Fault: {name} is {value}, want 0 or more, or None for any")

    def __str__(self) -> str:
        fields = [
            f"{name}={_ENDS.sub(lambda found: f'%{ord(found[0]):02x}', str(value))}"
            for name in ("rank", "group", "op", "seq", "nth")
            if (value := getattr(self, name)) not in (None, "")
        ]
        if self.when != "before":
            fields.append(f"when={self.when}")
        if self.kind == "delay":
            fields.append(f"by={decimal.Decimal(repr(float(self.by))):f}s")  # 1e-05 is no duration
        if self.maybe:
            fields.append("maybe=true")
        return self.kind + ("@" if fields else "") + ",".join(fields)


class FaultPlan:
    """Which faults a run has: those listed, and those drawn from a seed. Its text is what RANKLOOM_FAULTS takes.

    FaultPlan(Fault("crash", rank=1, op="all_reduce", seq=3))
    FaultPlan.seeded(7, 0.01)  # each call goes wrong with a probability of 1 %, in a way that suits it
    """

    def __init__(self, *faults: Fault | str) -> None:
        self._parts = [str(fault) for fault in faults]

    @staticmethod
    def seeded(seed: int, rate: float, kinds: Iterable[str] = ()) -> FaultPlan:
        return FaultPlan(":".join(["seeded", str(seed), repr(rate), *kinds]))

    def __str__(self) -> str:
        return ";".join(self._parts)


def text_of(faults: FaultPlan | Fault | str | Iterable[Fault] | None) -> str:
    """The form that the extension reads. The extension refuses faults that make no sense."""
    if faults is None:
        return ""
    if isinstance(faults, (FaultPlan, Fault, str)):
        return str(faults)
    return str(FaultPlan(*faults))
