"""What the kernel's log tells of devices: errors of the hardware, resets, and transfers that timed out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from neurontools.driver.kernel_log import (
    DMA_ERROR,
    DriverEvent,
    HardwareError,
    KernelRecord,
    parse_driver_line,
    parse_hardware_error,
)
from neurontools.model import Finding, NeuronCore, Severity, Snapshot
from neurontools.model.finding import Kind
from neurontools.util.terminal import excerpt

_MOST_KEPT = 256
_MOST_NAME_CHARACTERS = 40
_KNOWN_PARTS = {
    DriverEvent.DMA_TIMEOUT: (
        Severity.WARNING,
        "a DMA transfer of the device timed out (kernel log)",
        "if executions on it fail or hang, end its processes and reset it or reload the driver",
    ),
    DriverEvent.RESET_FAILED: (
        Severity.WARNING,
        "a reset of the device failed (kernel log)",
        "if its executions fail: end the processes on it and reload the driver; else stop and start the instance",
    ),
    DriverEvent.RESET_DONE: (Severity.NOTICE, "the device was reset (kernel log)", "nothing has to be done"),
}

_Key = tuple[str, int | None, int | None]  # what, the device, the core on it


@dataclass(frozen=True, slots=True)
class _Kept:
    """A line that counts, with its finding; `lasts`: until the driver is loaded anew, not for the window alone."""

    at_seconds: float  # by the clock that nobody sets
    finding: Finding
    lasts: bool


class KernelErrors:
    """Remembers what the log has told. Show it every snapshot of a tick, with what was logged since the one before."""

    def __init__(self) -> None:
        self._kept: dict[_Key, _Kept] = {}
        self._before: Snapshot | None = None

    def look(self, snapshot: Snapshot, records: Iterable[KernelRecord], window_seconds: float) -> Iterator[Finding]:
        """The findings of this moment."""
        for record in records:
            self._take(record, snapshot)
        self._before = snapshot
        self._forget_healed(snapshot)
        oldest = snapshot.taken_at_seconds - window_seconds
        for key, kept in [*self._kept.items()]:
            if not kept.lasts and kept.at_seconds < oldest:
                del self._kept[key]
        for kept in self._kept.values():
            yield kept.finding

    def _take(self, record: KernelRecord, snapshot: Snapshot) -> None:
        at_seconds = min(record.microseconds / 1e6, snapshot.taken_at_seconds)
        error = parse_hardware_error(record.text)
        if error is not None:
            part = excerpt(error.name, _MOST_NAME_CHARACTERS)
            key = part, error.device_index, error.core_index
            self._keep(key, _Kept(at_seconds, self._of_hardware(error, part, at_seconds, snapshot), lasts=True))
            return
        line = parse_driver_line(record.text)
        if line is None:
            return
        if line.told is DriverEvent.STARTED:
            self._kept.clear()
            return
        if line.told is DriverEvent.RESET_DONE:  # which is what helps against an aborted transfer
            for key in [
                key for key in self._kept if key[1] == line.device_index and key[0] in (DMA_ERROR, *DriverEvent)
            ]:
                del self._kept[key]
        severity, reason, action = _KNOWN_PARTS[line.told]
        finding = Finding(
            Kind.WAS_RESET if line.told is DriverEvent.RESET_DONE else Kind.KERNEL_ERROR,
            severity,
            reason,
            action,
            _unix_seconds(at_seconds, snapshot),
            () if line.device_index is None else (line.device_index,),
            part=str(line.told),
        )
        self._keep((str(line.told), line.device_index, None), _Kept(at_seconds, finding, lasts=False))

    def _forget_healed(self, snapshot: Snapshot) -> None:
        """What an injected fault has had logged is over when that was healed: no driver is there to be loaded anew."""
        for key, kept in [*self._kept.items()]:
            if kept.finding.injected and not _is_injected(kept.finding.device_indices, snapshot):
                del self._kept[key]

    def _keep(self, key: _Key, kept: _Kept) -> None:
        """The first of a kind stays as it is, so that a log that repeats itself changes no finding but its end."""
        before = self._kept.get(key)
        if before is not None:
            kept = _Kept(kept.at_seconds, before.finding, kept.lasts)
        elif len(self._kept) >= _MOST_KEPT:
            return
        self._kept[key] = kept

    def _of_hardware(self, error: HardwareError, part: str, at_seconds: float, snapshot: Snapshot) -> Finding:
        core = self._core(error, snapshot)
        lnc = snapshot.instance.logical_neuroncore_config
        pid = None if core is None else self._owner(core)
        where = f" on NeuronCore {core.index // lnc}" if core is not None else ""
        whose = f", met by PID {pid}" if pid is not None else ""
        where_indices = () if error.device_index is None else (error.device_index,)
        return Finding(
            Kind.KERNEL_ERROR,
            Severity.CRITICAL,
            f"the kernel log tells of {part}{where}{whose}",
            "end the processes on this device and reset it"
            if error.name == DMA_ERROR
            else "move the work off this device; stop and start the instance to get another host",
            _unix_seconds(at_seconds, snapshot),
            where_indices,
            pids=() if pid is None else (pid,),
            neuroncore_index=None if core is None else core.index // lnc,
            part=part,
            injected=_is_injected(where_indices, snapshot),
        )

    def _core(self, error: HardwareError, snapshot: Snapshot) -> NeuronCore | None:
        for core in snapshot.cores if error.core_index is not None else ():
            if (core.device_index, core.index_on_device) == (error.device_index, error.core_index):
                return core
        return None

    def _owner(self, core: NeuronCore) -> int | None:
        """Who has the core, or had it a tick ago: who meets such an error seldom lives on."""
        if core.owner_pid is not None or self._before is None:
            return core.owner_pid
        return next((before.owner_pid for before in self._before.cores if before.index == core.index), None)


def _unix_seconds(at_seconds: float, snapshot: Snapshot) -> float:
    return snapshot.taken_at_unix_seconds - max(0.0, snapshot.taken_at_seconds - at_seconds)


def _is_injected(device_indices: tuple[int, ...], snapshot: Snapshot) -> bool:
    return any(not set(device_indices).isdisjoint(fault.device_indices) for fault in snapshot.injected_faults)
