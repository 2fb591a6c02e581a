"""One fault from its injection to its healing. Pure: no clock, no I/O; all moments are CLOCK_MONOTONIC in seconds."""

from __future__ import annotations

import json
from dataclasses import dataclass

from neurontools.faults.kind import FaultKind, Lasting
from neurontools.faults.request import FaultRequest
from neurontools.model import FaultState, InjectedFault


@dataclass(slots=True)
class HeldFault:
    """A fault, where it is, and how far it has come. `core_indices` are physical; those of a process go with it."""

    number: int
    request: FaultRequest
    device_indices: tuple[int, ...]
    core_indices: frozenset[int]
    injected_seconds: float
    injected_by_uid: int | None = None
    injected_by_pid: int | None = None
    began_seconds: float | None = None
    ended_seconds: float | None = None
    met_total: int = 0
    is_armed: bool = False  # its time has come: processes know of it

    @property
    def kind(self) -> FaultKind:
        """What it is."""
        return self.request.definition

    @property
    def due_seconds(self) -> float:
        """From when on it may begin."""
        return self.injected_seconds + (self.request.after_seconds or 0.0)

    @property
    def holds(self) -> bool:
        """Whether it is there now."""
        return self.began_seconds is not None and self.ended_seconds is None

    @property
    def next_seconds(self) -> float | None:
        """When time alone changes it next; None: time doesn't."""
        if self.ended_seconds is not None:
            return None
        if self.began_seconds is None:
            return None if self.request.waits_for_execution and self.is_armed else self.due_seconds
        return None if self.request.for_seconds is None else self.began_seconds + self.request.for_seconds

    def advance(self, now_seconds: float) -> bool:
        """Brings it up to a moment; whether that changed it."""
        before = self.is_armed, self.began_seconds, self.ended_seconds
        if self.ended_seconds is None and not self.is_armed and now_seconds >= self.due_seconds:
            self.is_armed = True
            if not self.request.waits_for_execution:
                self.began_seconds = self.due_seconds
        if self.holds and self.began_seconds is not None and self.request.for_seconds is not None:
            end_seconds = self.began_seconds + self.request.for_seconds
            if now_seconds >= end_seconds:
                self.ended_seconds = end_seconds
        return before != (self.is_armed, self.began_seconds, self.ended_seconds)

    def met(self, now_seconds: float) -> None:
        """An execution meets it."""
        self.met_total += 1
        if self.began_seconds is None:
            self.began_seconds = now_seconds

    def told(self, now_seconds: float) -> None:
        """The runtime has told of it: what is met once is over then."""
        if self.kind.lasts in (Lasting.ONE_EXECUTION, Lasting.PROCESS) and self.ended_seconds is None:
            self.ended_seconds = now_seconds

    def line(self, cores: list[tuple[int, int, int]]) -> bytes:
        """What a process is told of it; of its cores the local index, the device and the NeuronCore on that."""
        request = self.request
        told = {
            "number": self.number,
            "kind": self.kind.name,
            "cores": cores,
            "after_executions": 0 if self.met_total else request.after_executions or 0,
            "probability": 1.0 if self.met_total or request.probability is None else request.probability,
            "amount": request.effective_amount,
            "seed": request.seed,
        }
        return f"fault {json.dumps(told, separators=(',', ':'))}\n".encode()

    def shown(self, unix_minus_monotonic_seconds: float) -> InjectedFault:
        """As a snapshot has it."""

        def at(seconds: float | None) -> float | None:
            return None if seconds is None else max(0.0, seconds + unix_minus_monotonic_seconds)

        request = self.request
        waiting = FaultState.WAITING if self.began_seconds is None else FaultState.HOLDS
        return InjectedFault(
            number=self.number,
            kind=self.kind.name,
            state=waiting if self.ended_seconds is None else FaultState.OVER,
            device_indices=self.device_indices,
            neuroncore_index=request.neuroncore_index,
            pid=request.pid,
            injected_at_unix_seconds=at(self.injected_seconds) or 0.0,
            began_at_unix_seconds=at(self.began_seconds),
            ended_at_unix_seconds=at(self.ended_seconds),
            met_total=self.met_total,
            after_executions=request.after_executions,
            after_seconds=request.after_seconds,
            for_seconds=request.for_seconds,
            probability=1.0 if request.probability is None else request.probability,
            amount=request.effective_amount,
            part=request.part,
            injected_by_uid=self.injected_by_uid,
            injected_by_pid=self.injected_by_pid,
        )
