"""What the processes executed, from the counters of the cores they hold.

The driver counts by core and not by process. A process that is known to hold a core is credited with what the core
counts from the moment the two were first seen together.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace

from neurond.sources.sysfs.device_reader import GilYield
from neurontools.driver.devices import DeviceDirectory
from neurontools.driver.environment import Roots
from neurontools.driver.process_context import FoundProcess, HeldCores
from neurontools.driver.processes import OpenDevices, OwnerScan, hidden_processes_warning, read_boot_time
from neurontools.model import (
    Device,
    ErrorCounters,
    ExecutionCounters,
    Instance,
    NeuronCore,
    Process,
    StatusCounters,
    memory_categories,
    sum_host_memory,
)

# The driver's counters behind each outcome and each kind of error.
_OUTCOMES: dict[str, tuple[str, ...]] = {
    "completed_total": ("success_total",),
    "completed_with_err_total": ("execute_completed_with_error_total",),
    "completed_with_num_err_total": ("execute_completed_with_num_error_total",),
    "timed_out_total": ("timeout_total",),
    "incorrect_input_total": ("exec_bad_input_total",),
    "failed_to_queue_total": ("execute_failed_to_queue_total",),
}
_ERRORS: dict[str, tuple[str, ...]] = {
    "generic_total": ("failure_total", "generic_error_total"),
    "numerical_total": ("execute_completed_with_num_error_total",),
    "model_total": ("unsupported_neff_version_total", "oob_error_total"),
    "runtime_total": (
        "resource_error_total",
        "resource_nc_error_total",
        "invalid_error_total",
        "execute_sw_nq_overflow_total",
        "execute_sw_semaphore_error_total",
        "execute_sw_event_error_total",
        "execute_sw_psum_collision_total",
        "execute_sw_sequencer_fatal_total",
    ),
    "hardware_total": (
        "hw_error_total",
        "hw_collectives_error_total",
        "hw_hbm_ue_error_total",
        "hw_nc_ue_error_total",
        "hw_dma_abort_error_total",
        "hw_repairable_hbm_ue_error_total",
    ),
}
# Host memory of a device that its runtimes have; the other categories are the driver's own.
_RUNTIME_HOST_MEMORY = frozenset(("application_memory_bytes", "constants_bytes", "dma_buffers_bytes", "tensors_bytes"))
# Outcomes of executions that inference_count, which is of the successful ones, leaves out.
_FAILED = tuple(name for field, names in _OUTCOMES.items() if field != "completed_total" for name in names)


def with_host_memory(processes: Sequence[Process], devices: Sequence[Device]) -> tuple[Process, ...]:
    """The processes with their host memory, where they alone use all of their devices: the driver counts by device."""
    users: dict[int, int] = {}
    for process in processes:
        for index in process.device_indices if process.runtime_version is not None else ():
            users[index] = users.get(index, 0) + 1
    memory_of = {device.index: device.host_memory for device in devices}

    def whole(process: Process) -> Process:
        of = [memory_of[index] for index in process.device_indices if index in memory_of]
        if not of or process.runtime_version is None or any(users[index] > 1 for index in process.device_indices):
            return process
        sums = memory_categories(sum_host_memory(of))
        kept = {name: size for name, size in sums.items() if name in _RUNTIME_HOST_MEMORY}
        return replace(process, host_memory=replace(process.host_memory, **kept))

    return tuple(map(whole, processes))


def execution_counters(inferences: int | None, status: StatusCounters) -> int | None:
    """Finished executions of a core, whatever their outcome; None when one of the outcomes is unknown."""
    total = inferences
    for name in _FAILED:
        failed: int | None = getattr(status, name)
        if total is None or failed is None:
            return None
        total += failed
    return total


class CounterAttribution:
    """Credits processes with what their cores count. Call `credited` once a round with everybody."""

    def __init__(self) -> None:
        self._baselines: dict[int, dict[int, StatusCounters]] = {}

    def credited(
        self, processes: Sequence[Process], cores: Mapping[int, NeuronCore], pacing: GilYield
    ) -> tuple[Process, ...]:
        """The processes with their executions and errors; unchanged where those can't be told. `cores` by index."""
        self._baselines = {
            process.pid: self._baselines.get(process.pid, {}) for process in processes if process.core_indices
        }
        made = []
        for process in processes:
            made.append(self._credited(process, cores))
            pacing.step()
        return tuple(made)

    def _credited(self, process: Process, cores: Mapping[int, NeuronCore]) -> Process:
        held = [cores[index] for index in process.core_indices if index in cores]
        known = {core.index: core.status for core in held if core.status is not None}
        if not known:
            return process
        baseline = self._baselines[process.pid]
        lnc = process.logical_neuroncore_config
        executions = dict.fromkeys(_OUTCOMES, 0)
        errors = dict.fromkeys(_ERRORS, 0)
        logical: dict[int, list[StatusCounters]] = {}
        for core, counters in known.items():
            start = baseline.setdefault(core, counters)
            logical.setdefault(core // lnc, []).append(_since(start, counters))
        for parts in logical.values():
            # The physical cores behind a logical one run the same executions: they count once.
            for field, names in _OUTCOMES.items():
                executions[field] += max(_sum(part, names) for part in parts)
            for field, names in _ERRORS.items():
                errors[field] += max(_sum(part, names) for part in parts)
        return replace(
            process,
            executions=ExecutionCounters(**executions) if _are_known(known.values(), _OUTCOMES) else None,
            errors=ErrorCounters(**errors) if _are_known(known.values(), _ERRORS) else None,
            measured_at_seconds=max(core.measured_at_seconds or 0.0 for core in held),
        )


_STATUS_FIELDS = tuple(field.name for field in fields(StatusCounters))


def _since(start: StatusCounters, now: StatusCounters) -> StatusCounters:
    """The growth of each counter; one that was cleared in between counts from nothing."""
    grown = {}
    for name in _STATUS_FIELDS:
        before, after = getattr(start, name) or 0, getattr(now, name) or 0
        grown[name] = after - before if after >= before else after
    return StatusCounters(**grown)


def _are_known(cores: Iterable[StatusCounters], counters: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether the driver tells all of these counters of all of these cores: what it doesn't tell is not 0."""
    return all(getattr(core, name) is not None for core in cores for names in counters.values() for name in names)


def _sum(counters: StatusCounters, names: tuple[str, ...]) -> int:
    return sum(getattr(counters, name) or 0 for name in names)


# A process may load the runtime after it opened its first device: for so many rounds it is asked again.
_UNDECIDED_ROUNDS = 30


class FoundProcesses:
    """Call `refresh` once a round. `holding` is who holds which cores, as of the latest one."""

    def __init__(self, roots: Roots, directories: list[DeviceDirectory], pacing: GilYield) -> None:
        self._roots = roots
        self._pacing = pacing
        self._tracker = OwnerTracker(OwnerScan(roots, directories), pacing)
        self._known: dict[int, FoundProcess] = {}
        self._rounds: dict[int, int] = {}
        self._boot = read_boot_time(roots.proc)
        self._is_first = True
        self.holding = HeldCores((), 1, 1)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to tell when processes could not be looked into."""
        return self._tracker.warnings

    def use(self, directories: list[DeviceDirectory]) -> None:
        """Goes on with these devices."""
        self._tracker.use(OwnerScan(self._roots, directories))

    def refresh(self, instance: Instance) -> tuple[Process, ...]:
        """The processes now, by PID."""
        self._tracker.refresh(whole=self._is_first)
        self._is_first = False
        owners = self._tracker.owners
        self._known = {pid: known for pid, known in self._known.items() if any(pid == own.pid for own in owners)}
        self._rounds = {pid: self._rounds[pid] for pid in self._known}
        found = []
        for devices in owners:
            process = self._process(devices)
            times = process.times()
            if times is None:  # another process has the PID by now, or none
                del self._known[process.pid]
                process = self._process(devices)
                times = process.times()
                if times is None:
                    continue
            found.append((process, devices, times))
            self._pacing.step()
        lnc = instance.logical_neuroncore_config
        self.holding = HeldCores([part[:2] for part in found], instance.physical_cores_per_device, lnc)
        return tuple(
            process.record(
                devices,
                self.holding.cores.get(process.pid, ()),
                process.pid in self.holding.inferred_pids,
                lnc,
                self._boot,
                times,
            )
            for process, devices, times in found
        )

    def _process(self, devices: OpenDevices) -> FoundProcess:
        process = self._known.get(devices.pid)
        if process is None:
            process = self._known[devices.pid] = FoundProcess(self._roots.proc, devices.pid)
            self._rounds[devices.pid] = 0
        elif not process.uses_runtime and self._rounds[devices.pid] < _UNDECIDED_ROUNDS:
            self._rounds[devices.pid] += 1
            process.reread()
        return process


_ROUND_SECONDS = 0.003
_NEW_ROUNDS = 8
_YOUNG_ROUNDS = 120


class OwnerTracker:
    """Call `refresh` once a round. `hidden` is how many processes are not for us to look into."""

    def __init__(self, scan: OwnerScan, pacing: GilYield) -> None:
        self._scan = scan
        self._pacing = pacing
        self._owners: dict[int, tuple[int, ...]] = {}
        self._ages: dict[int, int] = {}
        self._hidden: set[int] = set()
        self._turn = 0

    def use(self, scan: OwnerScan) -> None:
        """Goes on with another scan, after devices came or went."""
        self._scan = scan

    @property
    def owners(self) -> list[OpenDevices]:
        """The owners as of the latest round, by PID."""
        return [OpenDevices(pid, devices) for pid, devices in sorted(self._owners.items())]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to tell when processes could not be looked into."""
        return (hidden_processes_warning(len(self._hidden)),) if self._hidden else ()

    @property
    def sees_all(self) -> bool:
        """Whether no process is hidden from us."""
        return not self._hidden

    def refresh(self, *, whole: bool = False) -> None:
        """Looks again; with `whole` at every process."""
        present = self._scan.pids()
        alive = set(present)
        for pid in self._ages.keys() - alive:
            del self._ages[pid]
            self._owners.pop(pid, None)
            self._hidden.discard(pid)
        for pid in alive:
            age = self._ages[pid] = self._ages.get(pid, -1) + 1
            if not whole and (pid in self._owners or _is_due(age)):
                self._look(pid)
        self._look_in_turn(present, whole)

    def _look_in_turn(self, present: list[int], whole: bool) -> None:
        ending = time.monotonic() + _ROUND_SECONDS
        for count in range(len(present)):
            self._turn = (self._turn + 1) % len(present)
            self._look(present[self._turn])
            if not whole and count % 8 == 7 and time.monotonic() > ending:
                return

    def _look(self, pid: int) -> None:
        self._pacing.step()
        devices = self._scan.devices_of(pid)
        if devices is None:
            self._hidden.add(pid)
            self._owners.pop(pid, None)
            return
        self._hidden.discard(pid)
        if devices:
            self._owners[pid] = devices
        else:
            self._owners.pop(pid, None)


def _is_due(age: int) -> bool:
    """Whether a process of this age in rounds is looked at out of turn: each round at first, then every fourth."""
    return age < _NEW_ROUNDS or (age < _YOUNG_ROUNDS and age % 4 == 0)
