"""Injected faults of a simulated host: their life cycle, the processes they affect, and what the devices show.

This module does no I/O. `FaultEffects` provides the clocks and callbacks. The state of the faults depends only on the
clocks, on the requests, on the executions that the faults affect, and on the saved state of an earlier daemon.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from neurond.allocator import CoreAllocator, CoreLease, UnknownToken
from neurontools.driver.kernel_log import HardwareError
from neurontools.faults.kinds import FaultDuration, FaultKind
from neurontools.faults.requests import MOST_FAULTS, FaultRequest
from neurontools.model import EccCounters, FaultState, InjectedFault, ReportedHealth, StatusCounters
from neurontools.util.units import devices_text

_PROCESS_LINE = re.compile(rb"(armed|met|told) (\d{1,9})(?: (\d{1,4}))?")


class NoTarget(Exception):
    """The target of a requested fault does not exist; the message names valid targets."""


class TooMany(Exception):
    """The host would have more faults than the limit MOST_FAULTS."""


class NoSuchFault(Exception):
    """No fault has this number."""


class UnusableState(ValueError):
    """The saved faults can't be restored on this host; the message states the reason."""


MetBy = Mapping[tuple[int, float | None], bool]
"""The processes that met faults, each with whether a fault corrupted its results. The key is PID and attach time."""
OnHealed = Callable[[Sequence[InjectedFault], int | None, int | None, MetBy], None]
"""Receives the healed faults, the UID and PID that healed them, and the processes that met them."""
LoseHost = Callable[[float | None, tuple[FaultRequest, ...]], None]


@dataclass(slots=True)
class FaultEffects:
    """The callbacks and clocks that a `FaultInjector` works with.

    `lose_host` takes down the simulated host for the given seconds (None: forever). The host returns as if rebooted,
    and keeps the faults that have not begun. Without `lose_host`, a request to lose the host is refused.
    """

    now: Callable[[], float]  # reads CLOCK_MONOTONIC, in seconds
    unix_at: Callable[[float], float]  # converts a CLOCK_MONOTONIC time to Unix time
    on_change: Callable[[], None] = lambda: None  # called when faults change, to publish a snapshot
    on_acknowledged: Callable[[], None] = lambda: None  # called when a process acknowledges a fault
    on_healed: OnHealed = lambda _faults, _uid, _pid, _met_by: None
    send: Callable[[str, bytes], None] = lambda _token, _line: None  # sends a line to the process with this token
    log_error: Callable[[HardwareError], None] = lambda _error: None  # writes an error to the simulated kernel log
    lose_host: LoseHost | None = None
    save: Callable[[Mapping[str, object]], None] | None = None  # saves `FaultInjector.state`, to be restored later


class FaultInjector:
    """Holds the injected faults of a host until they are healed. Belongs to the event loop's thread.

    `reports_health`: whether the simulated driver reports unhealthy components. `lost_devices`: the devices that
    current faults remove. `shown`: the faults as snapshots show them, by number. `reported_health`: the components that
    faults make unhealthy, by device.
    """

    def __init__(self, allocator: CoreAllocator, effects: FaultEffects, *, reports_health: bool = True) -> None:
        self.effects = effects
        self._reports_health = reports_health
        self.lost_devices: frozenset[int] = frozenset()
        self._allocator = allocator
        self._active: dict[int, ActiveFault] = {}
        self._last_number = 0
        self.counts = FaultCounters()
        self.shown: tuple[InjectedFault, ...] = ()
        self.reported_health: dict[int, ReportedHealth] = {}
        self._unarmed: set[tuple[str, int]] = set()  # (process token, fault number) of missing acknowledgements

    @property
    def next_seconds(self) -> float | None:
        """When the next delay or duration of any fault ends (CLOCK_MONOTONIC); None if no delay or duration runs."""
        return min((at for fault in self._active.values() if (at := fault.next_seconds) is not None), default=None)

    def inject(
        self, requests: Sequence[FaultRequest], by_uid: int | None = None, by_pid: int | None = None
    ) -> tuple[InjectedFault, ...]:
        """Injects all requested faults and returns them. If it raises NoTarget or TooMany, it injects none.

        `by_uid` and `by_pid` identify the user and process that request the faults.
        """
        if len(self._active) + len(requests) > MOST_FAULTS:
            raise TooMany(f"this host has {len(self._active)} faults, and {MOST_FAULTS} is the limit; heal some first")
        placed = [(request, *self._locate(request)) for request in requests]
        injected = []
        for request, devices, cores in placed:
            self._last_number += 1
            fault = ActiveFault(self._last_number, request, devices, cores, self.effects.now(), by_uid, by_pid)
            self._active[fault.number] = fault
            injected.append(fault)
        self.advance()
        self._publish_change()
        numbers = {fault.number for fault in injected}
        return tuple(fault for fault in self.shown if fault.number in numbers)

    def heal(self, numbers: Collection[int] = (), by_uid: int | None = None, by_pid: int | None = None) -> int:
        """Removes the faults with these numbers, and the counts they caused. Returns how many faults it removed.

        Without numbers, removes all faults. If a number is unknown, raises NoSuchFault and removes none.
        """
        missing = sorted(set(numbers) - self._active.keys())
        if missing:
            raise NoSuchFault(f"there is no fault {missing[0]}; neuron-fault list shows the faults")
        healed = [self._active.pop(number) for number in sorted(set(numbers) or self._active)]
        for fault in healed:
            self.counts.forget(fault.number)
            self._send_end(fault)
        if healed:
            offset_seconds = self.effects.unix_at(0.0)
            met_by: dict[tuple[int, float | None], bool] = {}
            for fault in healed:
                for process in fault.met_by:
                    met_by[process] = met_by.get(process, False) or fault.kind.corrupts_results
            self.effects.on_healed([fault.to_model(offset_seconds) for fault in healed], by_uid, by_pid, met_by)
            self._publish_change()
        return len(healed)

    def state(self) -> dict[str, object]:
        """Returns all faults and the counts they caused, as a JSON object with Unix times. `restore` reads it."""
        offset_seconds = self.effects.unix_at(0.0)
        faults = [
            {**fault.state(offset_seconds), **self.counts.state(number)} for number, fault in self._active.items()
        ]
        return {**self._shape_state(), "last_number": self._last_number, "faults": faults}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the faults of an earlier daemon. Raises UnusableState, and restores none, if one is invalid."""
        offset_seconds = self.effects.unix_at(0.0)
        try:
            if any(state[key] != value for key, value in self._shape_state().items()):
                raise UnusableState("they are of another instance type")
            faults = [ActiveFault.restored(each, offset_seconds, self.effects.now()) for each in state["faults"]]
            numbers = {fault.number for fault in faults}
            if len(numbers) < len(faults) or len(faults) > MOST_FAULTS:
                raise UnusableState("too many, or two with one number")
            if not all(self._is_on_host(fault) for fault in faults):
                raise UnusableState("this host has no such device")
            last_number = max(_whole(state["last_number"]), *numbers, 0)
            self.counts.restore({fault.number: each for fault, each in zip(faults, state["faults"], strict=True)})
        except UnusableState:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UnusableState(f"invalid content ({type(error).__name__})") from None
        self._active = {fault.number: fault for fault in faults}
        self._last_number = last_number
        self.advance()
        self._publish_change()

    def _shape_state(self) -> dict[str, object]:
        shape = self._allocator.shape
        return {"device_count": shape.device_count, "cores_per_device": shape.cores_per_device}

    def _is_on_host(self, fault: ActiveFault) -> bool:
        shape = self._allocator.shape
        core_count = shape.device_count * shape.cores_per_device
        has_places = bool(fault.device_indices) and bool(fault.core_indices)
        return (
            has_places != fault.kind.loses_host
            and all(0 <= index < shape.device_count for index in fault.device_indices)
            and all(0 <= index < core_count for index in fault.core_indices)
        )

    def advance(self) -> None:
        """Begins and ends the faults whose delay or duration is over, and informs the affected processes."""
        now_seconds, has_changed = self.effects.now(), False
        for fault in sorted(self._active.values(), key=lambda fault: fault.due_seconds):
            was_armed, had_begun = fault.is_armed, fault.began_seconds is not None
            if not fault.advance(now_seconds):
                continue
            has_changed = True
            if not had_begun and fault.began_seconds is not None:
                self._apply_fault(fault)
            if fault.ended_seconds is not None:
                self._send_end(fault)
            elif not was_armed and fault.is_armed:
                for lease in self._allocator.leases:
                    self._send_fault(fault, lease)
        if has_changed:
            self._publish_change()

    def send_active_faults(self, token: str) -> None:
        lease = self._allocator.find_lease(token)
        for fault in self._active.values():
            if fault.is_armed and fault.ended_seconds is None:
                self._send_fault(fault, lease)

    def forget_process(self, token: str) -> None:
        """Stops waiting for acknowledgements of a process that has left."""
        self._unarmed = {pair for pair in self._unarmed if pair[0] != token}

    def handle_line(self, token: str, line: bytes) -> None:
        """Handles a line that an attached process sends about a fault. Ignores invalid lines."""
        match = _PROCESS_LINE.fullmatch(line)
        try:
            lease = self._allocator.find_lease(token)
        except UnknownToken:
            return
        fault = self._active.get(int(match[2])) if match is not None else None
        if match is None or fault is None:
            return
        if match[1] == b"armed":
            self._unarmed.discard((token, fault.number))
            self.effects.on_acknowledged()
            return
        local = int(match[3] or b"0")
        if local not in self._affected_cores(fault, lease):
            return
        core_index = lease.physical_cores()[local * lease.lnc]
        fault.met_by.add((lease.pid, lease.attached_at_unix_seconds))
        if match[1] == b"met":
            self._record_execution(fault, token)
        else:
            self._record_report(fault, core_index, *self._position(lease, local))
        self._publish_change()

    def is_acknowledged(self, numbers: Collection[int]) -> bool:
        return not any(number in numbers for _, number in self._unarmed)

    def loses_reports(self, token: str) -> bool:
        losing = [fault for fault in self._active.values() if fault.kind.loses_reports and fault.holds]
        return bool(losing) and any(self._cores_on(fault, self._allocator.find_lease(token)) for fault in losing)

    def _locate(self, request: FaultRequest) -> tuple[tuple[int, ...], frozenset[int]]:
        """Returns the targeted devices and physical cores. Raises NoTarget if the host can't have the fault there."""
        shape = self._allocator.shape
        if request.definition.loses_host:
            if self.effects.lose_host is None:
                raise NoTarget("this host can't be lost: it is not part of a simulated fleet; see neuron-fleet-sim")
            return (), frozenset()
        if request.definition.accepts_part and not self._reports_health:
            raise NoTarget("the driver of these devices reports no component health; simulate trn2.48xlarge or later")
        if request.device_index is not None:
            ends = (request.device_index, request.peer_device_index)
            devices = tuple(sorted(index for index in ends if index is not None))
            for index in devices:
                if index >= shape.device_count:
                    present = devices_text(range(shape.device_count))
                    raise NoTarget(f"no device {index}: this host has {present}")
            count = shape.cores_per_device
            return devices, frozenset(core for index in devices for core in range(index * count, (index + 1) * count))
        if request.neuroncore_index is not None:
            count = shape.logical_core_count(shape.default_lnc)
            if request.neuroncore_index >= count:
                raise NoTarget(f"no NeuronCore {request.neuroncore_index}: this host has NeuronCores 0 to {count - 1}")
            cores = shape.physical_cores(request.neuroncore_index, shape.default_lnc)
        else:
            holder = next((one for one in self._allocator.leases if one.pid == request.pid and one.count), None)
            if holder is None:
                raise NoTarget(f"PID {request.pid} holds no NeuronCores; neuron-ls shows which processes do")
            if holder.synthetic:
                raise NoTarget(f"PID {request.pid} belongs to the synthetic load and executes nothing")
            cores = tuple(holder.physical_cores())
        return tuple(dict.fromkeys(map(shape.device_of, cores))), frozenset(cores)

    def _affected_cores(self, fault: ActiveFault, lease: CoreLease) -> list[int]:
        """Returns the local indices of the process's cores whose executions the fault affects."""
        return self._cores_on(fault, lease) if fault.kind.affects_executions and not lease.synthetic else []

    def _cores_on(self, fault: ActiveFault, lease: CoreLease) -> list[int]:
        """Returns the local indices of the process's cores that the fault targets."""
        if fault.request.pid is not None and fault.request.pid != lease.pid:
            return []
        physical = lease.physical_cores()
        return [
            local
            for local in range(lease.count)
            if not fault.core_indices.isdisjoint(physical[local * lease.lnc : (local + 1) * lease.lnc])
        ]

    def _position(self, lease: CoreLease, local: int) -> tuple[int, int]:
        """Returns the device of a process's core, and the core's index on that device at the process's LNC."""
        core_index, per_device = lease.physical_cores()[local * lease.lnc], self._allocator.shape.cores_per_device
        return core_index // per_device, core_index % per_device // lease.lnc

    def _send_fault(self, fault: ActiveFault, lease: CoreLease) -> None:
        cores = [(local, *self._position(lease, local)) for local in self._affected_cores(fault, lease)]
        if cores:
            self._unarmed.add((lease.token, fault.number))
            self.effects.send(lease.token, fault.encode(cores))

    def _send_end(self, fault: ActiveFault) -> None:
        self._unarmed = {pair for pair in self._unarmed if pair[1] != fault.number}
        for lease in self._allocator.leases:
            if self._affected_cores(fault, lease):
                self.effects.send(lease.token, b"heal %d\n" % fault.number)

    def _apply_fault(self, fault: ActiveFault) -> None:
        """Applies the effects that a fault has when it begins: takes down the host, or counts ECC events."""
        kind = fault.kind
        events = int(fault.request.effective_amount or 1) if kind.amount is not None else 1
        if kind.loses_host and self.effects.lose_host is not None:
            self.effects.lose_host(fault.request.for_seconds, self._pending_requests())
        if kind.ecc:
            self.counts.count_ecc(fault.number, fault.device_indices[0], kind.ecc, events)

    def _pending_requests(self) -> tuple[FaultRequest, ...]:
        """Returns the requests of the faults that have not begun, with their remaining delays."""
        now_seconds = self.effects.now()
        return tuple(
            fault.request
            if fault.request.after_seconds is None
            else replace(fault.request, after_seconds=max(0.0, fault.due_seconds - now_seconds))
            for fault in self._active.values()
            if fault.began_seconds is None and fault.ended_seconds is None
        )

    def _record_execution(self, fault: ActiveFault, token: str) -> None:
        """Counts an execution that the fault affected. If the fault has not begun, it begins now."""
        fault.met_total += 1
        if fault.began_seconds is not None:
            return
        fault.began_seconds = self.effects.now()
        self._apply_fault(fault)
        for lease in self._allocator.leases:
            if lease.token != token and fault.kind.outlives_process:
                self._send_fault(fault, lease)  # the fault also affects the other processes

    def _record_report(self, fault: ActiveFault, core_index: int, device_index: int, position: int) -> None:
        """Handles a process's report of a failure. Ends a fault that lasts for one execution or one process."""
        kind = fault.kind
        if kind.counter is not None:
            self.counts.count_status(fault.number, core_index, kind.counter)
        if kind.kernel_error is not None:
            self.effects.log_error(HardwareError(kind.kernel_error, device_index, position))
        if fault.ended_seconds is None and kind.lasts in (FaultDuration.ONE_EXECUTION, FaultDuration.PROCESS):
            fault.ended_seconds = self.effects.now()
            self._send_end(fault)

    def _publish_change(self) -> None:
        offset_seconds = self.effects.unix_at(0.0)
        before = {fault.number: fault for fault in self.shown}
        now = [fault.to_model(offset_seconds) for fault in self._active.values()]
        self.shown = tuple(old if (old := before.get(fault.number)) == fault else fault for fault in now)
        self.reported_health = (
            {index: ReportedHealth(parts) for index, parts in self._unhealthy()} if self._reports_health else {}
        )
        self.lost_devices = frozenset(
            index
            for fault in self._active.values()
            if fault.holds and fault.kind.loses_device
            for index in fault.device_indices
        )
        if self.effects.save is not None:
            self.effects.save(self.state())
        self.effects.on_change()

    def _unhealthy(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        parts: dict[int, list[str]] = {}
        for fault in self._active.values():
            component = fault.request.part or fault.kind.component
            if fault.holds and component is not None:
                for index in fault.device_indices:
                    parts.setdefault(index, []).append(component)
        for index, found in parts.items():
            yield index, tuple(dict.fromkeys(found))


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError("not a whole number")
    return value


def _whole_or_none(value: object) -> int | None:
    return None if value is None else _whole(value)


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("not a number")
    return float(value)


def with_ecc(counted: EccCounters, more: EccCounters | None) -> EccCounters:
    if more is None:
        return counted
    sums = {name: (getattr(counted, name) or 0) + (getattr(more, name) or 0) for name in EccCounters.__slots__}
    return replace(counted, **sums)


@dataclass(slots=True)
class ActiveFault:
    """One injected fault and its state. `core_indices` are physical; a fault on a process has that process's cores."""

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
    met_by: set[tuple[int, float]] = field(default_factory=set)  # PID and Unix time of attaching of each process
    is_armed: bool = False  # whether the fault's delay is over; only then do processes receive the fault

    def state(self, unix_minus_monotonic_seconds: float) -> dict[str, object]:
        """Returns the fault as a JSON object with Unix times."""

        def at(seconds: float | None) -> float | None:
            return None if seconds is None else seconds + unix_minus_monotonic_seconds

        return {
            "number": self.number,
            "request": {key: value for key, value in asdict(self.request).items() if value is not None},
            "device_indices": self.device_indices,
            "core_indices": sorted(self.core_indices),
            "injected_at_unix_seconds": at(self.injected_seconds),
            "injected_by_uid": self.injected_by_uid,
            "injected_by_pid": self.injected_by_pid,
            "began_at_unix_seconds": at(self.began_seconds),
            "ended_at_unix_seconds": at(self.ended_seconds),
            "met_total": self.met_total,
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any], unix_minus_monotonic_seconds: float, now_seconds: float) -> ActiveFault:
        """Returns the fault of a `state`. Raises ValueError, TypeError or KeyError if it is invalid."""

        def at(name: str) -> float | None:
            value = state[name]
            # A host's clock that was set back must not delay a fault that had begun.
            return None if value is None else min(_finite(value) - unix_minus_monotonic_seconds, now_seconds)

        injected_seconds, began_seconds = at("injected_at_unix_seconds"), at("began_at_unix_seconds")
        if injected_seconds is None:
            raise ValueError("no time")
        return cls(
            _whole(state["number"]),
            FaultRequest(**state["request"]),
            tuple(map(_whole, state["device_indices"])),
            frozenset(map(_whole, state["core_indices"])),
            injected_seconds,
            _whole_or_none(state["injected_by_uid"]),
            _whole_or_none(state["injected_by_pid"]),
            began_seconds,
            at("ended_at_unix_seconds"),
            _whole(state["met_total"]),
        )

    @property
    def kind(self) -> FaultKind:
        return self.request.definition

    @property
    def due_seconds(self) -> float:
        """When the fault's delay is over (CLOCK_MONOTONIC)."""
        return self.injected_seconds + (self.request.after_seconds or 0.0)

    @property
    def holds(self) -> bool:
        return self.began_seconds is not None and self.ended_seconds is None

    @property
    def next_seconds(self) -> float | None:
        """When the fault's delay or duration ends (CLOCK_MONOTONIC); None if neither is running."""
        if self.ended_seconds is not None:
            return None
        if self.began_seconds is None:
            return None if self.request.waits_for_execution and self.is_armed else self.due_seconds
        return None if self.request.for_seconds is None else self.began_seconds + self.request.for_seconds

    def advance(self, now_seconds: float) -> bool:
        """Updates the fault's state to this time. Returns True if the state changed."""
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

    def encode(self, cores: list[tuple[int, int, int]]) -> bytes:
        """Encodes the fault as a line for a process.

        `cores` has, for each affected core, its local index, its device, and its NeuronCore index on that device.
        """
        request = self.request
        fields = {
            "number": self.number,
            "kind": self.kind.name,
            "cores": cores,
            "after_executions": 0 if self.met_total else request.after_executions or 0,
            "probability": 1.0 if self.met_total or request.probability is None else request.probability,
            "amount": request.effective_amount,
            "seed": request.seed,
            "devices": self.device_indices,
        }
        return f"fault {json.dumps(fields, separators=(',', ':'))}\n".encode()

    def to_model(self, unix_minus_monotonic_seconds: float) -> InjectedFault:
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


class FaultCounters:
    """ECC events by device, and driver counters by physical core, that faults caused."""

    def __init__(self) -> None:
        self._ecc: dict[int, Counter[tuple[int, str]]] = {}  # ECC events by fault number and (device index, field)
        self._status: dict[int, Counter[tuple[int, str]]] = {}  # counts by fault number and (core index, counter)
        self.ecc: dict[int, EccCounters] = {}
        self.status: dict[int, StatusCounters] = {}

    def count_ecc(self, fault: int, device_index: int, fields: Collection[str], events: int) -> None:
        for name in fields:
            self._ecc.setdefault(fault, Counter())[device_index, name] += events
        self._sum()

    def count_status(self, fault: int, core_index: int, name: str) -> None:
        self._status.setdefault(fault, Counter())[core_index, f"{name}_total"] += 1
        self._sum()

    def state(self, fault: int) -> dict[str, list[tuple[int, str, int]]]:
        """Returns the counts of a fault as a JSON object: an index, the name of a counter and a count for each."""
        return {
            name: [(*key, count) for key, count in counts.get(fault, Counter()).items()]
            for name, counts in (("ecc", self._ecc), ("status", self._status))
        }

    def restore(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """Restores the counts by fault number. Raises ValueError, TypeError or KeyError without a change."""
        ecc, status = (
            {number: _restored_counts(state[name], kind.__slots__) for number, state in states.items()}
            for name, kind in (("ecc", EccCounters), ("status", StatusCounters))
        )
        self._ecc, self._status = ecc, status
        self._sum()

    def forget(self, fault: int) -> None:
        if self._ecc.pop(fault, None) or self._status.pop(fault, None):
            self._status.pop(fault, None)
            self._sum()

    def _sum(self) -> None:
        self.ecc = {index: EccCounters(**fields) for index, fields in _summed(self._ecc.values()).items()}
        self.status = {index: StatusCounters(**fields) for index, fields in _summed(self._status.values()).items()}


def _restored_counts(state: Iterable[tuple[object, str, object]], names: Collection[str]) -> Counter[tuple[int, str]]:
    counted: Counter[tuple[int, str]] = Counter()
    for index, name, count in state:
        if name not in names:
            raise ValueError("no such counter")
        counted[_whole(index), name] = _whole(count)
    return counted


def _summed(counted: Collection[Counter[tuple[int, str]]]) -> dict[int, Counter[str]]:
    sums: dict[int, Counter[str]] = {}
    for counter in counted:
        for (index, name), count in counter.items():
            sums.setdefault(index, Counter())[name] += count
    return sums
