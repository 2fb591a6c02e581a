"""What is wrong, or worth knowing, on a host: judged by the daemon, once a tick, and carried to everybody."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from neurontools.model.representation import repr_of_fields


class Severity(IntEnum):
    """How grave it is; the numbers are those of the metric neurontools_device_health."""

    OK = 0  # of a device or a host: there are no findings
    NOTICE = 1  # worth knowing; nothing is broken
    WARNING = 2  # something is wrong or will be
    CRITICAL = 3  # work is lost or standing still


class FindingKind(StrEnum):
    """What was found. A newer daemon may know more."""

    DEVICE_MISSING = "device_missing"
    ECC_UNCORRECTED = "ecc_uncorrected"
    ECC_REPAIRABLE = "ecc_repairable"
    ECC_CORRECTED = "ecc_corrected"
    UNHEALTHY_COMPONENT = "unhealthy_component"
    CORE_ERRORS = "core_errors"
    RESET_FAILED = "reset_failed"
    NEEDS_RESET = "needs_reset"
    STUCK = "stuck"
    HARDWARE_ERRORS = "hardware_errors"
    NUMERICAL_ERRORS = "numerical_errors"
    MEMORY_NEARLY_FULL = "memory_nearly_full"
    STALE_REPORT = "stale_report"
    LATENCY_RISEN = "latency_risen"
    IDLE = "idle"
    ORPHANED = "orphaned"
    KERNEL_ERROR = "kernel_error"
    WAS_RESET = "was_reset"
    SLOW_RANK = "slow_rank"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    `reason` and `action` are plain sentences without an end mark, safe for one line. They hold nothing that changes by
    itself: how long it has lasted is told by `began_at_unix_seconds`.
    """

    kind: str  # one of `FindingKind`, or one that a newer daemon knows
    severity: Severity
    reason: str
    action: str
    began_at_unix_seconds: float  # as far as this daemon knows: what it found when it began is as old as the daemon
    device_indices: tuple[int, ...] = ()
    pid: int | None = None  # the process that is to be looked at
    pids: tuple[int, ...] = ()  # all that it concerns, that one included
    neuroncore_index: int | None = None  # logical, under the LNC of the process
    part: str | None = (
        None  # of the device, in the driver's words: hbm, sram, link_efa; or of step time, as in STEP_PARTS
    )
    job: str | None = None  # whose processes these are: "Slurm job 17", "pod default/train-0", "process group 4711"
    synthetic: bool = False  # it is about processes that a synthetic load invents
    injected: bool = False  # faults that were injected are its cause

    __repr__ = repr_of_fields("kind", "severity", "device_indices", "reason")

    @property
    def identity(self) -> tuple[object, ...]:
        """What stays the same for as long as it lasts, and no other finding of a snapshot has."""
        whose = self.job if self.job is not None else self.pid
        where = self.device_indices if whose is None else ()
        return self.kind, whose, where, self.neuroncore_index, self.part


@dataclass(frozen=True, slots=True)
class Health:
    """What is to be said of a host. A device that is in neither tuple of indices was not judged."""

    device_indices: tuple[int, ...] = ()  # devices that were judged, those that are missing included
    unknown_device_indices: tuple[int, ...] = ()  # of these, those of which the driver tells no health
    findings: tuple[Finding, ...] = ()  # gravest first

    __repr__ = repr_of_fields("device_indices", "unknown_device_indices", "findings")
