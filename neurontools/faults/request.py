"""What may be asked for: a kind, where, when, for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass

from neurontools.faults.kind import FaultKind, Lasting
from neurontools.faults.kinds import KINDS, PARTS
from neurontools.util.terminal import excerpt

MOST_SECONDS = 366 * 86_400.0
MOST_EXECUTIONS = 2**53
LARGEST_INDEX = 2**31 - 1
LARGEST_SEED = 2**64 - 1


class ImpossibleFault(ValueError):
    """What is asked for can't be meant; the text says what, why and what to give instead."""


@dataclass(frozen=True, slots=True)
class FaultRequest:
    """A fault that is asked for; exactly one of device, core and process is given. ImpossibleFault for rubbish.

    One that loses the host is of none of them.

    Cores are logical, under the default LNC of the host. `after_executions` None: the next one, where executions meet
    the kind at all.
    """

    kind: str
    device_index: int | None = None
    neuroncore_index: int | None = None
    pid: int | None = None
    after_executions: int | None = None
    after_seconds: float | None = None
    for_seconds: float | None = None
    probability: float | None = None
    amount: float | None = None
    part: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        kind = self.definition
        targets = sum(target is not None for target in (self.device_index, self.neuroncore_index, self.pid))
        if kind.loses_host and targets:
            raise ImpossibleFault(f"{kind.name}: it is of the whole host; give no device, NeuronCore or process")
        if not kind.loses_host and targets != 1:
            raise ImpossibleFault(f"{kind.name}: give one of a device, a NeuronCore and a process")
        for value, what in ((self.device_index, "device"), (self.neuroncore_index, "NeuronCore"), (self.pid, "PID")):
            if value is not None and not 0 <= value <= LARGEST_INDEX:
                raise ImpossibleFault(f"{value} is no {what}")
        if self.after_executions is not None and self.after_seconds is not None:
            raise ImpossibleFault("after executions and after seconds exclude each other; give one of them")
        if not kind.is_met and (self.after_executions is not None or self.probability is not None):
            raise ImpossibleFault(f"{kind.name}: no execution meets it; say when by seconds")
        if self.after_executions is not None and not 0 <= self.after_executions <= MOST_EXECUTIONS:
            raise ImpossibleFault(f"{self.after_executions} is no number of executions; give 0 or more")
        if self.after_seconds is not None and not 0 <= self.after_seconds <= MOST_SECONDS:
            raise ImpossibleFault(f"{self.after_seconds:g} s is no delay; give 0 to a year in seconds")
        if self.for_seconds is not None and not 0 < self.for_seconds <= MOST_SECONDS:
            raise ImpossibleFault(
                f"{self.for_seconds:g} s is no duration; give more than 0, at most a year, in seconds"
            )
        if self.probability is not None and not 0 < self.probability <= 1:
            raise ImpossibleFault(f"{self.probability:g} is no probability; give more than 0, at most 1")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise ImpossibleFault(f"{self.seed} is no seed; give a whole number from 0 to {LARGEST_SEED}")
        self._check_amount(kind)

    def _check_amount(self, kind: FaultKind) -> None:
        if self.amount is not None:
            if kind.amount is None:
                raise ImpossibleFault(f"{kind.name}: there is no more or less of it; leave the amount out")
            bounds = kind.amount
            is_whole = not bounds.is_whole or (math.isfinite(self.amount) and self.amount == int(self.amount))
            if not (bounds.least <= self.amount <= bounds.most and is_whole):
                what = "a whole number from" if bounds.is_whole else "from"
                raise ImpossibleFault(
                    f"{kind.name}: {self.amount:g} is no amount; give {what} {bounds.least:g} to {bounds.most:g} "
                    f"({bounds.unit})"
                )
        if self.part is not None and not kind.takes_part:
            raise ImpossibleFault(f"{kind.name}: it is about no part of the device; leave the part out")
        if self.part is not None and self.part not in PARTS:
            raise ImpossibleFault(f"{excerpt(self.part, 60)!r} is no part of a device; give one of {', '.join(PARTS)}")

    @property
    def definition(self) -> FaultKind:
        """Its kind; ImpossibleFault for one that there is not."""
        kind = KINDS.get(self.kind)
        if kind is None:
            raise ImpossibleFault(f"{excerpt(self.kind, 60)!r} is no kind of fault{_near(self.kind)}")
        return kind

    @property
    def effective_amount(self) -> float | None:
        """The amount, or the kind's default; None where the kind has none."""
        kind = self.definition
        return self.amount if self.amount is not None else kind.amount.default if kind.amount is not None else None

    @property
    def waits_for_execution(self) -> bool:
        """Whether it begins when an execution meets it, and not before: what leaves no mark on the hardware does so."""
        passing = self.definition.lasts in (Lasting.ONE_EXECUTION, Lasting.PROCESS)
        return passing or self.after_executions is not None or self.probability is not None


def _near(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name[:60], KINDS, n=1, cutoff=0.5)
    return f" (did you mean {near[0]}?)" if near else "; see neuron-fault kinds"
