"""Rules about what the driver itself reports as sick: parts of devices, errors of cores, resets that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from neurond.verdicts.evidence import Evidence, at_least, counted, growth
from neurontools.model import Finding, NeuronCore, Severity, SourceKind, StatusCounters
from neurontools.model.finding import Kind
from neurontools.util.units import ranges_text

_LINKS = "link_"
_COMPONENTS = {
    "hbm": "its HBM",
    "sram": "its SRAM",
    "firmware_service_api": "the API of its firmware",
    "firmware_service_processor": "the processor of its firmware",
    "link_intraserver": "its NeuronLinks within the server",
    "link_host": "its link to the host",
    "link_efa": "its link to EFA",
    "link_interserver": "its NeuronLinks to other servers",
    "link_switch": "its link to the switch",
    "axi_fabric": "the fabric on the chip",
}


def components(evidence: Evidence) -> Iterator[Finding]:
    """Parts that the driver itself calls unhealthy. A bad link leaves a device fit for work of its own."""
    for device in evidence.snapshot.devices:
        told = device.reported_health
        for component in told.unhealthy_components if told is not None else ():
            is_link = component.startswith(_LINKS)
            yield Finding(
                Kind.UNHEALTHY_COMPONENT,
                Severity.WARNING if is_link else Severity.CRITICAL,
                f"the driver reports {_COMPONENTS.get(component, 'a part of it')} as unhealthy ({component})",
                (
                    "keep work that needs it away from this device; stop and start the instance to get another host"
                    if is_link
                    else "move the work off this device; stop and start the instance to get another host"
                ),
                evidence.snapshot.taken_at_unix_seconds,
                (device.index,),
                part=component,
            )


@dataclass(frozen=True, slots=True)
class _CoreError:
    """A counter of cores that tells of a sick part: what it counts, and whether its level says enough."""

    name: str
    what: str
    severity: Severity
    action: str
    lasts: bool  # True: one since the driver was loaded is a finding; else what came in the window


_MOVE = "move the work off this device; stop and start the instance to get another host"
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
        "the cause is on another worker: look for the one that hangs or has ended, then restart the job",
        lasts=False,
    ),
)


def core_errors(evidence: Evidence) -> Iterator[Finding]:
    """Status counters of the driver that tell of sick hardware, a device and counter at a time."""
    lnc = evidence.snapshot.instance.logical_neuroncore_config
    for error in _CORE_ERRORS:
        read = attrgetter(f"{error.name}_total")
        found: dict[int, list[tuple[int, int]]] = {}
        for core in evidence.snapshot.cores:
            count = read(core.status) if core.status is not None else None
            if count and not error.lasts:
                before = evidence.cores_before.get(core.index)
                count = growth(_counted(before, read, evidence), count) if before is not None else 0
            if count:
                found.setdefault(core.device_index, []).append((core.index // lnc, count))
        for device_index, counts in found.items():
            cores = sorted({core for core, _ in counts})
            names = f"NeuronCore{'s' if len(cores) > 1 else ''} {ranges_text(cores)}"
            total = sum(count for _, count in counts)
            many = counted(total, error.what) if error.lasts else at_least(total, error.what)
            since = "since the driver was loaded" if error.lasts else "in the last minutes"
            yield Finding(
                Kind.CORE_ERRORS,
                error.severity,
                f"{names}: {many} {since} ({error.name})",
                error.action,
                evidence.snapshot.taken_at_unix_seconds,
                (device_index,),
                neuroncore_index=cores[0] if len(cores) == 1 else None,
                part=error.name,
            )


def _counted(core: NeuronCore, read: Callable[[StatusCounters], int | None], evidence: Evidence) -> int | None:
    """What a counter of a core said; where devices are simulated it counts nothing until a fault is injected."""
    if core.status is None:
        return 0 if evidence.snapshot.source is SourceKind.SIMULATED else None
    count = read(core.status)
    return 0 if count is None and evidence.snapshot.source is SourceKind.SIMULATED else count


def resets(evidence: Evidence) -> Iterator[Finding]:
    """Devices whose resets have failed; a failed one is counted on each of their cores."""
    failed: dict[int, int] = {}
    for core in evidence.snapshot.cores:
        if core.reset_failures_total:
            failed[core.device_index] = max(failed.get(core.device_index, 0), core.reset_failures_total)
    for device_index, count in failed.items():
        yield Finding(
            Kind.RESET_FAILED,
            Severity.WARNING,
            f"{counted(count, 'reset')} of the device failed since the driver was loaded",
            "if its executions fail: end the processes on it and reload the driver; else stop and start the instance",
            evidence.snapshot.taken_at_unix_seconds,
            (device_index,),
        )
