"""Findings: what is wrong or wasteful on a host. The daemon derives findings once per tick for each snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from neurontools.model.representation import repr_of_fields

TYPE_CHECKING = False  # not imported, because importing `typing` takes several milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping


class Severity(IntEnum):
    """Severity of a finding. The numbers are the values of the metric neurontools_device_health."""

    OK = 0  # no findings; never the severity of a finding, only of a device or host
    NOTICE = 1  # worth knowing, but nothing is broken
    WARNING = 2  # a fault exists or is about to happen
    CRITICAL = 3  # work is lost or stalled


class FindingKind(StrEnum):
    """Kinds of findings. A newer daemon may send kinds that are not listed here."""

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
    FAILED_EXECUTIONS = "failed_executions"
    MEMORY_NEARLY_FULL = "memory_nearly_full"
    STALE_REPORT = "stale_report"
    LATENCY_RISEN = "latency_risen"
    IDLE = "idle"
    ORPHANED = "orphaned"
    KERNEL_ERROR = "kernel_error"
    WAS_RESET = "was_reset"
    SLOW_RANK = "slow_rank"
    WAITING = "waiting"
    CORES_WITHOUT_MODEL = "cores_without_model"
    DUPLICATED_WEIGHTS = "duplicated_weights"
    TEST_FAILED = "test_failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong or wasteful on a host, with its reason and the action to take.

    `reason` and `action` are single-line sentences without a full stop. They contain no durations, so they do not
    change while the finding lasts. The age of a finding follows from `began_at_unix_seconds`.
    """

    kind: str  # a `FindingKind`, or a kind that only a newer daemon knows
    severity: Severity
    reason: str
    action: str
    began_at_unix_seconds: float  # when the finding began; never before the start of the daemon
    device_indices: tuple[int, ...] = ()
    pid: int | None = None  # the process that the user should examine
    pids: tuple[int, ...] = ()  # all processes that the finding concerns, including `pid`
    neuroncore_index: int | None = None  # index of the affected logical core, under the LNC of the process
    part: str | None = (
        None  # affected part: of the device (driver's name: hbm) or of step time (STEP_PARTS); `requests`; a test
    )
    job: str | None = (
        None  # the job that the finding concerns: "Slurm job 17", "pod default/train-0", "train.py (4711)"
    )
    synthetic: bool = False  # whether the finding concerns processes of a synthetic load
    injected: bool = False  # whether injected faults caused the finding

    __repr__ = repr_of_fields("kind", "severity", "device_indices", "reason")

    @property
    def identity(self) -> tuple[object, ...]:
        """A key that is unique within a snapshot, and the same in all snapshots while the finding lasts."""
        owner = self.job if self.job is not None else self.pid
        where = self.device_indices if owner is None else ()
        return self.kind, owner, where, self.neuroncore_index, self.part


@dataclass(frozen=True, slots=True)
class Health:
    """All findings on a host, and the devices that the daemon checked."""

    device_indices: tuple[int, ...] = ()  # indices of the checked devices, including missing devices
    unknown_device_indices: tuple[int, ...] = ()  # indices of checked devices whose health is unknown
    findings: tuple[Finding, ...] = ()  # highest severity first
    unknown_reasons: tuple[str, ...] = ()  # why it is unknown, for each of unknown_device_indices; () from old daemons

    __repr__ = repr_of_fields("device_indices", "unknown_device_indices", "findings")

    @property
    def unknown_devices(self) -> dict[int, str]:
        """Why the health of a device is unknown, by device index."""
        reasons = self.unknown_reasons or (NO_HEALTH,) * len(self.unknown_device_indices)
        return dict(zip(self.unknown_device_indices, reasons, strict=False))

    def with_unknown(self, reasons: Mapping[int, str]) -> Health:
        """Returns the same findings with unknown health of these devices. `reasons` says why, by device index."""
        indices = tuple(index for index in self.device_indices if index in reasons)
        return Health(self.device_indices, indices, self.findings, tuple(reasons[index] for index in indices))


NO_HEALTH = "the driver tells nothing of it"
"""The reason for unknown health if the driver has no file about the health of a device."""
