"""A fault that somebody injected into simulated devices, so that nothing it causes is taken for real."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from neurontools.model.brief import showing


class FaultState(IntEnum):
    """How far a fault has come."""

    WAITING = 0  # its time, or the execution that is to meet it, has not come
    HOLDS = 1
    OVER = 2  # it has ended; what it left behind stays until it is healed


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One fault that was injected and has not been healed. What was asked for, and what came of it."""

    number: int  # of its daemon, from 1
    kind: str  # of `neurontools.faults.kinds`
    state: FaultState
    device_indices: tuple[int, ...]  # where it is
    neuroncore_index: int | None  # it was asked for this logical core, under the default LNC of the host
    pid: int | None  # it was asked for this process
    injected_at_unix_seconds: float
    began_at_unix_seconds: float | None = None  # None: it waits
    ended_at_unix_seconds: float | None = None  # None: it has not ended by itself
    met_total: int = 0  # how often executions met it
    after_executions: int | None = None
    after_seconds: float | None = None
    for_seconds: float | None = None
    probability: float = 1.0
    amount: float | None = None  # in the unit of the kind; None: it has none
    part: str | None = None  # of the device, in the driver's words
    injected_by_uid: int | None = None  # who asked for it, by the word of the kernel; None: not known
    injected_by_pid: int | None = None  # the process that asked for it

    __repr__ = showing("number", "kind", "state", "device_indices")
