"""Rules about devices: missing devices, ECC, memory, the driver's counters, and the kernel log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from neurond.verdicts.evidence import (
    FAILURE_ACTION,
    TIMEOUT_ACTION,
    Hysteresis,
    HysteresisLevel,
    RuleContext,
    at_least_text,
    count_text,
    growth,
)
from neurontools.driver.kernel_log import (
    DMA_ERROR,
    DriverEvent,
    HardwareError,
    KernelRecord,
    parse_driver_line,
    parse_hardware_error,
)
from neurontools.model import (
    Device,
    EccCounters,
    Finding,
    HbmStack,
    NeuronCore,
    Severity,
    Snapshot,
    SourceKind,
    StatusCounters,
)
from neurontools.model.finding import FindingKind
from neurontools.util.terminal import excerpt
from neurontools.util.units import bytes_text, ranges_text

_RESTART = "stop and start the instance to get another host"
_MOVE = f"move the work off this device; {_RESTART}"
_BETTER_RATIO = 0.95  # the "nearly full" finding of a stack ends when its use falls below this share of the limit
_UPDATE_PERCENT = 2  # the shown percentage changes only if the measured one differs from it by this much

_Stack = tuple[int, int]  # an HBM stack: device index, stack index


def missing_devices(context: RuleContext) -> Iterator[Finding]:
    """Reports expected devices that the driver doesn't show, or whose device file is gone."""
    present = {device.index for device in context.snapshot.devices}
    instance = context.snapshot.instance
    whose = "this container was given it" if instance.foreign_device_count > 0 else "the instance has it"
    for index in instance.expected_device_indices:
        if index in present:
            continue
        if index in instance.fileless_device_indices:
            why = f"the driver shows it, its device file /dev/neuron{index} is gone, and nobody can open it"
            action = f"recreate the file (as root: udevadm trigger --name-match=neuron{index}) or reload the driver"
        else:
            why = f"{whose}, the driver doesn't show it"
            action = "see dmesg for its failure; stop and start the instance to get another host"
        yield Finding(
            FindingKind.DEVICE_MISSING,
            Severity.CRITICAL,
            f"device {index} is missing: {why}",
            action,
            context.snapshot.taken_at_unix_seconds,
            (index,),
        )


class EccRule:
    """Reports uncorrected ECC errors since the driver was loaded, and many corrected ones in the window.

    Reuses the findings of a device until one of its counters changes.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[EccCounters, EccCounters | None, tuple[Finding, ...]]] = {}

    def __call__(self, context: RuleContext) -> Iterator[Finding]:
        found: dict[int, tuple[EccCounters, EccCounters | None, tuple[Finding, ...]]] = {}
        for device in context.snapshot.devices:
            before = context.devices.get(device.index)
            past = None if before is None else before.ecc
            cached = self._found.get(device.index)
            if cached is None or cached[0] is not device.ecc or cached[1] is not past:
                cached = device.ecc, past, tuple(_ecc(device, past, context))
            found[device.index] = cached
            yield from cached[2]
        self._found = found


def _ecc(device: Device, before: EccCounters | None, context: RuleContext) -> Iterator[Finding]:
    at, limit = context.snapshot.taken_at_unix_seconds, context.limits.ecc_corrected_events
    now, where = device.ecc, (device.index,)
    for part, uncorrected in (("hbm", now.mem_uncorrected_total), ("sram", now.sram_uncorrected_total)):
        if uncorrected:
            yield Finding(
                FindingKind.ECC_UNCORRECTED,
                Severity.CRITICAL,
                f"{count_text(uncorrected, 'uncorrected ECC error')} in {part.upper()} since the driver was loaded",
                _MOVE,
                at,
                where,
                part=part,
            )
    if now.mem_repairable_uncorrected_total:
        yield Finding(
            FindingKind.ECC_REPAIRABLE,
            Severity.WARNING,
            f"{count_text(now.mem_repairable_uncorrected_total, 'repairable uncorrected ECC error')} in HBM",
            "end the processes on this device and reset it (or reboot), which repairs the rows",
            at,
            where,
            part="hbm",
        )
    if before is not None and before is not now and limit is not None:
        events = growth(before.mem_corrected_total, now.mem_corrected_total)
        events += growth(before.sram_corrected_total, now.sram_corrected_total)
        if events >= limit:
            yield Finding(
                FindingKind.ECC_CORRECTED,
                Severity.WARNING,
                f"{at_least_text(events, 'corrected ECC error')} in the last minutes",
                "nothing is lost yet; if they go on, move the work and have the host replaced",
                at,
                where,
            )


class MemoryRule:
    """Reports HBM stacks that are nearly full. Call it with every tick's snapshot, in order."""

    def __init__(self) -> None:
        self._full: Hysteresis[_Stack] = Hysteresis()
        self._shown_percent: dict[_Stack, int] = {}

    def __call__(self, context: RuleContext) -> Iterator[Finding]:
        limit_ratio, now_seconds = context.limits.memory_used_ratio, context.snapshot.taken_at_unix_seconds
        shown_percent: dict[_Stack, int] = {}
        for device in context.snapshot.devices if limit_ratio else ():
            for stack in device.hbm_stacks:
                if not limit_ratio or stack.used_bytes is None or stack.capacity_bytes <= 0:
                    continue
                key, used_ratio = (device.index, stack.index), stack.used_bytes / stack.capacity_bytes
                since = self._full.holds_since(
                    key, _level(used_ratio, limit_ratio), now_seconds, begins_after_seconds=0.0, ends_after_seconds=0.0
                )
                if since is not None:
                    percent = self._stable_percent(key, int(100 * stack.used_bytes / stack.capacity_bytes))
                    shown_percent[key] = percent
                    yield _nearly_full(device, stack, percent, since)
        self._full.forget_others(shown_percent)
        self._shown_percent = shown_percent

    def _stable_percent(self, key: _Stack, percent: int) -> int:
        """Returns the shown percentage unless it changed much: the text is a metric label and should change seldom."""
        shown = self._shown_percent.get(key)
        return percent if shown is None or abs(percent - shown) >= _UPDATE_PERCENT else shown


def _level(used_ratio: float, limit_ratio: float) -> HysteresisLevel:
    if used_ratio >= limit_ratio:
        return HysteresisLevel.OVER
    return HysteresisLevel.BETTER if used_ratio < _BETTER_RATIO * limit_ratio else HysteresisLevel.BETWEEN


def _nearly_full(device: Device, stack: HbmStack, percent: int, began_at_unix_seconds: float) -> Finding:
    return Finding(
        FindingKind.MEMORY_NEARLY_FULL,
        Severity.WARNING,
        f"HBM {stack.index} is {percent}% full, of {bytes_text(stack.capacity_bytes)}",
        "the next allocation may fail; use smaller batches, shard further or end a process",
        began_at_unix_seconds,
        (device.index,),
        part=f"hbm {stack.index}",
    )


_LINKS = "link_"
_COMPONENTS = {
    "hbm": "its HBM",
    "sram": "its SRAM",
    "firmware_service_api": "its firmware's API",
    "firmware_service_processor": "its firmware's processor",
    "link_intraserver": "its NeuronLinks within the server",
    "link_host": "its link to the host",
    "link_efa": "its link to EFA",
    "link_interserver": "its NeuronLinks to other servers",
    "link_switch": "its link to the switch",
    "axi_fabric": "its on-chip fabric",
}


def unhealthy_components(context: RuleContext) -> Iterator[Finding]:
    """Reports components that the driver calls unhealthy. A bad link is a warning: the device itself still works."""
    for device in context.snapshot.devices:
        reported = device.reported_health
        for component in reported.unhealthy_components if reported is not None else ():
            is_link = component.startswith(_LINKS)
            yield Finding(
                FindingKind.UNHEALTHY_COMPONENT,
                Severity.WARNING if is_link else Severity.CRITICAL,
                f"the driver reports {_COMPONENTS.get(component, 'a component')} as unhealthy ({component})",
                f"keep work that needs it away from this device; {_RESTART}" if is_link else _MOVE,
                context.snapshot.taken_at_unix_seconds,
                (device.index,),
                part=component,
            )


@dataclass(frozen=True, slots=True)
class _CoreError:
    """A driver counter of a core that indicates broken hardware, and its finding."""

    name: str
    what: str
    severity: Severity
    action: str
    lasts: bool  # whether to report all errors since the driver was loaded, or only those in the window


_CORE_ERRORS = (
    _CoreError("hw_nc_ue_error", "uncorrectable error", Severity.CRITICAL, _MOVE, lasts=True),
    _CoreError("hw_hbm_ue_error", "uncorrectable HBM error", Severity.CRITICAL, _MOVE, lasts=True),
    _CoreError(
        "hw_repairable_hbm_ue_error",
        "repairable HBM error",
        Severity.WARNING,
        "end the processes on this device and reload the driver (or reboot), which repairs the rows",
        lasts=True,
    ),
    _CoreError(
        "hw_dma_abort_error",
        "aborted DMA transfer",
        Severity.CRITICAL,
        "restart the job; if its executions go on failing, end it and reset the device",
        lasts=False,
    ),
    _CoreError("hw_error", "hardware error", Severity.CRITICAL, f"see dmesg for NEURON_HW_ERR; {_MOVE}", lasts=False),
    _CoreError(
        "hw_collectives_error",
        "collective without an answer",
        Severity.WARNING,
        "the cause is on another rank: find the rank that hangs or has ended, then restart the job",
        lasts=False,
    ),
    _CoreError("timeout", "timed-out execution", Severity.WARNING, TIMEOUT_ACTION, lasts=False),
    _CoreError("oob_error", "access out of bounds", Severity.WARNING, FAILURE_ACTION, lasts=False),
    _CoreError("execute_sw_nq_overflow", "notification overflow", Severity.WARNING, FAILURE_ACTION, lasts=False),
)


def core_errors(context: RuleContext) -> Iterator[Finding]:
    """Reports the driver's error counters, one finding per device and counter."""
    lnc = context.snapshot.instance.logical_neuroncore_config
    for error in _CORE_ERRORS:
        read = attrgetter(f"{error.name}_total")
        found: dict[int, list[tuple[int, int]]] = {}
        for core in context.snapshot.cores:
            count = read(core.status) if core.status is not None else None
            if count and not error.lasts:
                before = context.cores_before.get(core.index)
                count = growth(_counted(before, read, context), count) if before is not None else 0
            if count:
                found.setdefault(core.device_index, []).append((core.index // lnc, count))
        for device_index, counts in found.items():
            cores = sorted({core for core, _ in counts})
            names = f"NeuronCore{'s' if len(cores) > 1 else ''} {ranges_text(cores)}"
            total = sum(count for _, count in counts)
            many = count_text(total, error.what) if error.lasts else at_least_text(total, error.what)
            since = "since the driver was loaded" if error.lasts else "in the last minutes"
            yield Finding(
                FindingKind.CORE_ERRORS,
                error.severity,
                f"{names}: {many} {since} ({error.name})",
                error.action,
                context.snapshot.taken_at_unix_seconds,
                (device_index,),
                neuroncore_index=cores[0] if len(cores) == 1 else None,
                part=error.name,
            )


def _counted(core: NeuronCore, read: Callable[[StatusCounters], int | None], context: RuleContext) -> int | None:
    """Returns a counter of a core; None if unknown. On a simulated host, an unknown counter is 0."""
    if core.status is None:
        return 0 if context.snapshot.source is SourceKind.SIMULATED else None
    count = read(core.status)
    return 0 if count is None and context.snapshot.source is SourceKind.SIMULATED else count


def device_resets(context: RuleContext) -> Iterator[Finding]:
    """Reports devices with failed resets. The driver counts a failed reset on each core of the device."""
    failed: dict[int, int] = {}
    for core in context.snapshot.cores:
        if core.reset_failures_total:
            failed[core.device_index] = max(failed.get(core.device_index, 0), core.reset_failures_total)
    for device_index, count in failed.items():
        yield Finding(
            FindingKind.RESET_FAILED,
            Severity.WARNING,
            f"{count_text(count, 'reset')} of the device failed since the driver was loaded",
            "if its executions fail: end the processes on it and reload the driver; else stop and start the instance",
            context.snapshot.taken_at_unix_seconds,
            (device_index,),
        )


_MOST_ENTRIES = 256
_MOST_NAME_CHARACTERS = 40
_DRIVER_EVENTS = {
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
    DriverEvent.RESET_DONE: (Severity.NOTICE, "the device was reset (kernel log)", "no action is needed"),
}

_Key = tuple[str, int | None, int | None]  # key of a finding: error name, device index, core index


@dataclass(frozen=True, slots=True)
class _ErrorEntry:
    """The finding of a kernel log line. `lasts`: the finding holds until the driver is reloaded."""

    at_seconds: float  # time of the latest line with the finding's key (CLOCK_MONOTONIC)
    finding: Finding
    lasts: bool


class KernelErrorRule:
    """Reports errors from the kernel log. Call it with every tick's snapshot and the records since the last tick."""

    def __init__(self) -> None:
        self._entries: dict[_Key, _ErrorEntry] = {}
        self._before: Snapshot | None = None

    def update(self, snapshot: Snapshot, records: Iterable[KernelRecord], window_seconds: float) -> Iterator[Finding]:
        for record in records:
            self._handle_record(record, snapshot)
        self._before = snapshot
        oldest = snapshot.taken_at_seconds - window_seconds
        for key, entry in [*self._entries.items()]:
            # Findings of healed faults end too: on a simulated host, no driver is reloaded to end them.
            is_healed = entry.finding.injected and not _is_injected(entry.finding.device_indices, snapshot)
            if is_healed or (not entry.lasts and entry.at_seconds < oldest):
                del self._entries[key]
        for entry in self._entries.values():
            yield entry.finding

    def _handle_record(self, record: KernelRecord, snapshot: Snapshot) -> None:
        at_seconds = min(record.microseconds / 1e6, snapshot.taken_at_seconds)
        error = parse_hardware_error(record.text)
        if error is not None:
            part = excerpt(error.name, _MOST_NAME_CHARACTERS)
            key = part, error.device_index, error.core_index
            finding = self._hardware_finding(error, part, at_seconds, snapshot)
            self._store(key, _ErrorEntry(at_seconds, finding, lasts=True))
            return
        line = parse_driver_line(record.text)
        if line is None:
            return
        if line.event is DriverEvent.STARTED:
            self._entries.clear()
            return
        if line.event is DriverEvent.RESET_DONE:  # a reset clears aborted DMA transfers
            for key in [
                key for key in self._entries if key[1] == line.device_index and key[0] in (DMA_ERROR, *DriverEvent)
            ]:
                del self._entries[key]
        severity, reason, action = _DRIVER_EVENTS[line.event]
        finding = Finding(
            FindingKind.WAS_RESET if line.event is DriverEvent.RESET_DONE else FindingKind.KERNEL_ERROR,
            severity,
            reason,
            action,
            _unix_seconds(at_seconds, snapshot),
            () if line.device_index is None else (line.device_index,),
            part=str(line.event),
        )
        self._store((str(line.event), line.device_index, None), _ErrorEntry(at_seconds, finding, lasts=False))

    def _store(self, key: _Key, entry: _ErrorEntry) -> None:
        """Stores a finding. A repeated line does not replace the finding of its key, but extends its time."""
        before = self._entries.get(key)
        if before is not None:
            entry = _ErrorEntry(entry.at_seconds, before.finding, entry.lasts)
        elif len(self._entries) >= _MOST_ENTRIES:
            return
        self._entries[key] = entry

    def _hardware_finding(self, error: HardwareError, part: str, at_seconds: float, snapshot: Snapshot) -> Finding:
        core = self._core(error, snapshot)
        lnc = snapshot.instance.logical_neuroncore_config
        pid = None if core is None else self._owner(core)
        where = f" on NeuronCore {core.index // lnc}" if core is not None else ""
        whose = f", met by PID {pid}" if pid is not None else ""
        where_indices = () if error.device_index is None else (error.device_index,)
        return Finding(
            FindingKind.KERNEL_ERROR,
            Severity.CRITICAL,
            f"the kernel log reports {part}{where}{whose}",
            "end the processes on this device and reset it" if error.name == DMA_ERROR else _MOVE,
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
        """Returns the PID that holds the core, or held it at the last tick: a kernel error usually ends the process."""
        if core.owner_pid is not None or self._before is None:
            return core.owner_pid
        return next((before.owner_pid for before in self._before.cores if before.index == core.index), None)


def _unix_seconds(at_seconds: float, snapshot: Snapshot) -> float:
    return snapshot.taken_at_unix_seconds - max(0.0, snapshot.taken_at_seconds - at_seconds)


def _is_injected(device_indices: tuple[int, ...], snapshot: Snapshot) -> bool:
    return any(not set(device_indices).isdisjoint(fault.device_indices) for fault in snapshot.injected_faults)
