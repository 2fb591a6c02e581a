"""Cores that fail for one process after the other: only a reset helps them.

An aborted DMA transfer can outlive the process that met it; all later executions on the core fail or hang until the
device is reset (https://github.com/aws-neuron/aws-neuron-sdk/issues/1390).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from neurond.verdicts.evidence import Who, growth, who_is
from neurontools.model import Finding, NeuronCore, Process, Severity, Snapshot, SourceKind
from neurontools.model.finding import Kind
from neurontools.util.units import ranges_text

_ENOUGH = 2  # processes in a row
_HARDWARE = ("hw_error_total", "hw_dma_abort_error_total", "hw_nc_ue_error_total", "hw_hbm_ue_error_total")
_FURTHER = ("timeout_total",)  # counts against a core that has failed before; alone the cause may be elsewhere


@dataclass(slots=True)
class _Past:
    """A core as it was at the tick before, and for whom it has failed since it last worked."""

    core: NeuronCore
    owner: Who | None = None
    failed_for: dict[Who, float] = field(default_factory=dict)  # when it began to

    def take(self, who: Who | None, at_unix_seconds: float, *, has_failed: bool, has_worked: bool) -> None:
        """What came of the work of a process on it, if that is known."""
        if has_failed and who is not None:
            self.failed_for.setdefault(who, at_unix_seconds)
        elif has_worked:
            self.failed_for.clear()


class FailingCores:
    """Remembers for whom each core has failed. Show it every snapshot of a tick, in order."""

    def __init__(self) -> None:
        self._cores: dict[int, _Past] = {}
        self._processes: dict[Who, Process] = {}
        self._has_failed = False

    def look(self, snapshot: Snapshot, ended: Iterable[Process] = ()) -> Iterator[Finding]:
        """A finding for each device with cores that failed for several processes in a row.

        `ended` are those that ended since the tick before: who fails seldom lives until the next one.
        """
        for process in ended:
            self._take_ended(process, snapshot)
        by_pid = {process.pid: process for process in snapshot.processes if process.core_indices}
        outcomes = {who_is(process): self._outcome(process) for process in by_pid.values()}
        self._processes = {who_is(process): process for process in by_pid.values()}
        self._has_failed = self._has_failed or any(has_failed for has_failed, _ in outcomes.values())
        if not self._has_failed and snapshot.source is SourceKind.SIMULATED:  # where no driver counts for cores
            return
        failing: dict[int, list[tuple[NeuronCore, dict[Who, float]]]] = {}
        for core in snapshot.cores:
            past = self._cores.setdefault(core.index, _Past(core))
            owner = by_pid.get(core.owner_pid) if core.owner_pid is not None else None
            who = who_is(owner) if owner is not None else None
            # Before driver 2.30 the counters move when the process has ended.
            blamed = who or past.owner
            has_failed, has_worked = outcomes.get(who, (False, False)) if who is not None else (False, False)
            if core.status is not None and core.status is not past.core.status:
                failures, timeouts, successes = _grown(past.core, core)
                has_failed = failures > 0 or (timeouts > 0 and bool(past.failed_for))
                has_worked = successes > 0 and not has_failed
            if _began_anew(past.core, core):
                has_worked, has_failed = True, False
            if growth(past.core.reset_requests_total, core.reset_requests_total):
                has_worked, has_failed = True, False
            past.take(blamed, snapshot.taken_at_unix_seconds, has_failed=has_failed, has_worked=has_worked)
            past.core, past.owner = core, who
            if len(past.failed_for) >= _ENOUGH:
                failing.setdefault(core.device_index, []).append((core, past.failed_for))
        for device_index, cores in failing.items():
            yield _finding(device_index, cores, snapshot.instance.logical_neuroncore_config)

    def _take_ended(self, process: Process, snapshot: Snapshot) -> None:
        has_failed, has_worked = self._outcome(process)
        self._has_failed = self._has_failed or has_failed
        for core in snapshot.cores if has_failed or has_worked else ():
            if core.index in process.core_indices:
                past = self._cores.setdefault(core.index, _Past(core))
                past.take(who_is(process), snapshot.taken_at_unix_seconds, has_failed=has_failed, has_worked=has_worked)

    def _outcome(self, process: Process) -> tuple[bool, bool]:
        """Whether a process that reports has met a hardware error since the last tick, and whether it finished work."""
        before = self._processes.get(who_is(process))
        if process.errors is None or process.executions is None:
            return False, False
        if before is not None and before.errors is process.errors and before.executions is process.executions:
            return False, False
        errors_before = before.errors.hardware_total if before is not None and before.errors is not None else 0
        done_before = before.executions.completed_total if before is not None and before.executions is not None else 0
        has_failed = process.errors.hardware_total > errors_before
        return has_failed, not has_failed and process.executions.completed_total > done_before


def _began_anew(before: NeuronCore, now: NeuronCore) -> bool:
    """Whether the driver was loaded anew, or a fault healed: its counters of the core are fewer than before."""
    if before.status is None or before.status is now.status:
        return False
    return any(
        (getattr(before.status, name) or 0) > ((getattr(now.status, name) or 0) if now.status is not None else 0)
        for name in _HARDWARE
    )


def _grown(before: NeuronCore, now: NeuronCore) -> tuple[int, int, int]:
    """How many failures of hardware, timeouts and successes came."""
    old, new = before.status, now.status
    if old is None or new is None:
        return 0, 0, 0
    failures, timeouts, successes = (
        sum(growth(getattr(old, name), getattr(new, name)) for name in names)
        for names in (_HARDWARE, _FURTHER, ("success_total",))
    )
    return failures, timeouts, successes


def _finding(device_index: int, failing: list[tuple[NeuronCore, dict[Who, float]]], lnc: int) -> Finding:
    cores = sorted({core.index // lnc for core, _ in failing})
    since = max(failing, key=lambda each: len(each[1]))[1]
    pids = [pid for pid, _ in since]
    one = len(cores) == 1
    return Finding(
        Kind.NEEDS_RESET,
        Severity.CRITICAL,
        f"NeuronCore{'' if one else 's'} {ranges_text(cores)} {'has' if one else 'have'} failed for {len(pids)} "
        f"processes in a row (PID {', '.join(map(str, pids[-3:]))})",
        f"restarting the job does not help: end the processes on device {device_index}, then reset it "
        f"(as root: echo 1 > /sys/devices/virtual/neuron_device/neuron{device_index}/reset) or reload the driver",
        min(since.values()),
        (device_index,),
        neuroncore_index=cores[0] if one else None,
    )
