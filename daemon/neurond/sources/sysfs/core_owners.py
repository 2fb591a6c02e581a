"""Finds the processes that use the devices, and attributes core counters to processes.

The driver counts per core, not per process. The growth of a core's counters is attributed to a process from the first
reading in which the process held the core.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace

from neurond.sources.sysfs.device_reader import GilYield
from neurontools.driver.devices import DeviceDirectory
from neurontools.driver.environment import Roots
from neurontools.driver.processes import (
    CoreAttribution,
    ObservedProcess,
    OpenDevices,
    OwnerScan,
    hidden_processes_warning,
    read_boot_time,
)
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

# Names of the driver counters whose sum is each field of ExecutionCounters and ErrorCounters, by field name.
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
# Categories of a device's host memory that belong to runtimes; all other categories belong to the driver.
_RUNTIME_HOST_MEMORY = frozenset(("application_memory_bytes", "constants_bytes", "dma_buffers_bytes", "tensors_bytes"))
# Counters of failed executions, which the driver's inference_count leaves out.
_FAILED = tuple(name for field, names in _OUTCOMES.items() if field != "completed_total" for name in names)


def with_host_memory(processes: Sequence[Process], devices: Sequence[Device]) -> tuple[Process, ...]:
    """Adds the host memory of devices to a process that is the only user of all its devices.

    The driver counts host memory per device, so the shares of several users are unknown.
    """
    users: dict[int, int] = {}
    for process in processes:
        for index in process.device_indices if process.runtime_version is not None else ():
            users[index] = users.get(index, 0) + 1
    memory_of = {device.index: device.host_memory for device in devices}

    def with_sum(process: Process) -> Process:
        of = [memory_of[index] for index in process.device_indices if index in memory_of]
        if not of or process.runtime_version is None or any(users[index] > 1 for index in process.device_indices):
            return process
        sums = memory_categories(sum_host_memory(of))
        sizes = {name: size for name, size in sums.items() if name in _RUNTIME_HOST_MEMORY}
        return replace(process, host_memory=replace(process.host_memory, **sizes))

    return tuple(map(with_sum, processes))


def execution_counters(inferences: int | None, status: StatusCounters) -> int | None:
    """Returns the number of finished executions of a core, with failures. None if a counter is unknown."""
    total = inferences
    for name in _FAILED:
        failed: int | None = getattr(status, name)
        if total is None or failed is None:
            return None
        total += failed
    return total


class CounterAttribution:
    """Attributes the growth of core counters to processes. Call `attribute` once per refresh, with all processes."""

    def __init__(self) -> None:
        self._baselines: dict[int, dict[int, StatusCounters]] = {}

    def attribute(
        self, processes: Sequence[Process], cores: Mapping[int, NeuronCore], gil_yield: GilYield
    ) -> tuple[Process, ...]:
        """Returns the processes with their executions and errors, where known. `cores` is keyed by core index."""
        self._baselines = {each.pid: self._baselines.get(each.pid, {}) for each in processes if each.core_indices}
        attributed = []
        for process in processes:
            attributed.append(self._attribute_process(process, cores))
            gil_yield.step()
        return tuple(attributed)

    def _attribute_process(self, process: Process, cores: Mapping[int, NeuronCore]) -> Process:
        own_cores = [cores[index] for index in process.core_indices if index in cores]
        status_by_core = {core.index: core.status for core in own_cores if core.status is not None}
        if not status_by_core:
            return process
        baseline = self._baselines[process.pid]
        lnc = process.logical_neuroncore_config
        executions = dict.fromkeys(_OUTCOMES, 0)
        errors = dict.fromkeys(_ERRORS, 0)
        logical: dict[int, list[StatusCounters]] = {}
        for core, counters in status_by_core.items():
            start = baseline.setdefault(core, counters)
            logical.setdefault(core // lnc, []).append(_growth(start, counters))
        for parts in logical.values():
            # All physical cores of a logical core run the same executions, so take the maximum, not the sum.
            for field, names in _OUTCOMES.items():
                executions[field] += max(_sum(part, names) for part in parts)
            for field, names in _ERRORS.items():
                errors[field] += max(_sum(part, names) for part in parts)
        return replace(
            process,
            executions=ExecutionCounters(**executions) if _have_counters(status_by_core.values(), _OUTCOMES) else None,
            errors=ErrorCounters(**errors) if _have_counters(status_by_core.values(), _ERRORS) else None,
            measured_at_seconds=max(core.measured_at_seconds or 0.0 for core in own_cores),
        )


_STATUS_FIELDS = tuple(field.name for field in fields(StatusCounters))


def _growth(start: StatusCounters, now: StatusCounters) -> StatusCounters:
    """Returns the growth of each counter since `start`. A counter that was reset counts from 0."""
    grown = {}
    for name in _STATUS_FIELDS:
        before, after = getattr(start, name) or 0, getattr(now, name) or 0
        grown[name] = after - before if after >= before else after
    return StatusCounters(**grown)


def _have_counters(cores: Iterable[StatusCounters], counters: Mapping[str, tuple[str, ...]]) -> bool:
    """Returns whether the driver has all these counters for all these cores. A missing counter is not 0."""
    return all(getattr(core, name) is not None for core in cores for names in counters.values() for name in names)


def _sum(counters: StatusCounters, names: tuple[str, ...]) -> int:
    return sum(getattr(counters, name) or 0 for name in names)


# A process may load the runtime after it opened a device, so its first refreshes reread it, up to this number.
_UNDECIDED_ROUNDS = 30


class FoundProcesses:
    """Finds the processes that have devices open. `refresh` also sets `holding`, the cores that they hold."""

    def __init__(self, roots: Roots, directories: list[DeviceDirectory], gil_yield: GilYield) -> None:
        self._roots = roots
        self._gil_yield = gil_yield
        self._tracker = OwnerTracker(OwnerScan(roots, directories), gil_yield)
        self._processes: dict[int, ObservedProcess] = {}
        self._rounds: dict[int, int] = {}
        self._boot = read_boot_time(roots.proc)
        self._is_first = True
        self.holding = CoreAttribution((), 1, 1)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._tracker.warnings

    def use_devices(self, directories: list[DeviceDirectory]) -> None:
        self._tracker.scan = OwnerScan(self._roots, directories)

    def refresh(self, instance: Instance) -> tuple[Process, ...]:
        """Returns the processes that have devices open now, sorted by PID."""
        self._tracker.refresh(whole=self._is_first)
        self._is_first = False
        owners = self._tracker.owners
        self._processes = {pid: each for pid, each in self._processes.items() if any(pid == own.pid for own in owners)}
        self._rounds = {pid: self._rounds[pid] for pid in self._processes}
        found = []
        for devices in owners:
            process = self._process(devices)
            times = process.times()
            if times is None:  # the process has ended; a new process may have its PID
                del self._processes[process.pid]
                process = self._process(devices)
                times = process.times()
                if times is None:
                    continue
            found.append((process, devices, times))
            self._gil_yield.step()
        lnc = instance.logical_neuroncore_config
        self.holding = CoreAttribution([part[:2] for part in found], instance.physical_cores_per_device, lnc)
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

    def _process(self, devices: OpenDevices) -> ObservedProcess:
        process = self._processes.get(devices.pid)
        if process is None:
            process = self._processes[devices.pid] = ObservedProcess(self._roots.proc, devices.pid)
            self._rounds[devices.pid] = 0
        elif not process.uses_runtime and self._rounds[devices.pid] < _UNDECIDED_ROUNDS:
            self._rounds[devices.pid] += 1
            process.reread()
        return process


_ROUND_SECONDS = 0.003
_NEW_ROUNDS = 8
_YOUNG_ROUNDS = 120


class OwnerTracker:
    """Tracks which processes have devices open. Scans young processes and device users often, all others in turn."""

    def __init__(self, scan: OwnerScan, gil_yield: GilYield) -> None:
        self.scan = scan
        self._gil_yield = gil_yield
        self._owners: dict[int, tuple[int, ...]] = {}
        self._ages: dict[int, int] = {}
        self._hidden: set[int] = set()
        self._turn = 0

    @property
    def owners(self) -> list[OpenDevices]:
        return [OpenDevices(pid, devices) for pid, devices in sorted(self._owners.items())]

    @property
    def warnings(self) -> tuple[str, ...]:
        return (hidden_processes_warning(len(self._hidden)),) if self._hidden else ()

    def refresh(self, *, whole: bool = False) -> None:
        """Scans the processes that are due, or all processes with `whole`."""
        present = self.scan.pids()
        alive = set(present)
        for pid in self._ages.keys() - alive:
            del self._ages[pid]
            self._owners.pop(pid, None)
            self._hidden.discard(pid)
        for pid in alive:
            age = self._ages[pid] = self._ages.get(pid, -1) + 1
            if not whole and (pid in self._owners or _is_due(age)):
                self._scan_process(pid)
        self._scan_in_turn(present, whole)

    def _scan_in_turn(self, present: list[int], whole: bool) -> None:
        ending = time.monotonic() + _ROUND_SECONDS
        for count in range(len(present)):
            self._turn = (self._turn + 1) % len(present)
            self._scan_process(present[self._turn])
            if not whole and count % 8 == 7 and time.monotonic() > ending:
                return

    def _scan_process(self, pid: int) -> None:
        self._gil_yield.step()
        devices = self.scan.devices_of(pid)
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
    """Returns whether to scan a process that is `age` refreshes old: each time at first, then every fourth time."""
    return age < _NEW_ROUNDS or (age < _YOUNG_ROUNDS and age % 4 == 0)
