"""Whose a problem is, and its name for those who act on nodes: one table of the kinds of findings.

What the kernel's log may tell of too has the name that it has there (`kernel_log/hardware_error.py`, too slow to import
for a health check), by which AWS's node problem detector goes.
"""

from __future__ import annotations

from enum import StrEnum

from neurontools.model.finding import Finding, Kind


class Owner(StrEnum):
    """Who has to act: whoever runs the node, or whoever runs work on it."""

    NODE = "node"
    USER = "user"


# (kind, part of the finding or None for any): the name, and who has to act.
_TABLE: dict[tuple[str, str | None], tuple[str, Owner]] = {
    (Kind.DEVICE_MISSING, None): ("DEVICE_MISSING", Owner.NODE),
    (Kind.ECC_UNCORRECTED, "sram"): ("SRAM_UNCORRECTABLE_ERROR", Owner.NODE),
    (Kind.ECC_UNCORRECTED, "hbm"): ("HBM_UNCORRECTABLE_ERROR", Owner.NODE),
    (Kind.ECC_REPAIRABLE, None): ("HBM_REPAIRABLE_ERROR", Owner.NODE),
    (Kind.ECC_CORRECTED, None): ("ECC_CORRECTED", Owner.NODE),
    (Kind.UNHEALTHY_COMPONENT, None): ("UNHEALTHY_COMPONENT", Owner.NODE),
    (Kind.CORE_ERRORS, "hw_nc_ue_error"): ("NC_UNCORRECTABLE_ERROR", Owner.NODE),
    (Kind.CORE_ERRORS, "hw_hbm_ue_error"): ("HBM_UNCORRECTABLE_ERROR", Owner.NODE),
    (Kind.CORE_ERRORS, "hw_repairable_hbm_ue_error"): ("HBM_REPAIRABLE_ERROR", Owner.NODE),
    (Kind.CORE_ERRORS, "hw_dma_abort_error"): ("DMA_ERROR", Owner.NODE),
    (Kind.CORE_ERRORS, "hw_collectives_error"): ("COLLECTIVES_ERROR", Owner.USER),  # the cause is on another worker
    (Kind.CORE_ERRORS, None): ("HARDWARE_ERROR", Owner.NODE),
    (Kind.RESET_FAILED, None): ("RESET_FAILED", Owner.NODE),
    (Kind.NEEDS_RESET, None): ("NEEDS_RESET", Owner.NODE),
    (Kind.HARDWARE_ERRORS, None): ("HARDWARE_ERROR", Owner.NODE),
    (Kind.KERNEL_ERROR, "SRAM_UNCORRECTABLE_ERROR"): ("SRAM_UNCORRECTABLE_ERROR", Owner.NODE),
    (Kind.KERNEL_ERROR, "NC_UNCORRECTABLE_ERROR"): ("NC_UNCORRECTABLE_ERROR", Owner.NODE),
    (Kind.KERNEL_ERROR, "HBM_UNCORRECTABLE_ERROR"): ("HBM_UNCORRECTABLE_ERROR", Owner.NODE),
    (Kind.KERNEL_ERROR, "DMA_ERROR"): ("DMA_ERROR", Owner.NODE),
    (Kind.KERNEL_ERROR, "dma_timeout"): ("DMA_TIMEOUT", Owner.NODE),
    (Kind.KERNEL_ERROR, "reset_failed"): ("RESET_FAILED", Owner.NODE),
    (Kind.KERNEL_ERROR, None): ("HARDWARE_ERROR", Owner.NODE),
    (Kind.WAS_RESET, None): ("WAS_RESET", Owner.NODE),
    (Kind.STUCK, None): ("HANG", Owner.USER),
    (Kind.NUMERICAL_ERRORS, None): ("NUMERICAL_ERROR", Owner.USER),
    (Kind.MEMORY_NEARLY_FULL, None): ("MEMORY_NEARLY_FULL", Owner.USER),
    (Kind.STALE_REPORT, None): ("STALE_REPORT", Owner.USER),
    (Kind.LATENCY_RISEN, None): ("LATENCY_RISEN", Owner.USER),
    (Kind.SLOW_RANK, None): ("SLOW_RANK", Owner.USER),
    (Kind.WAITING, None): ("WAITING", Owner.USER),
    (Kind.IDLE, None): ("IDLE", Owner.USER),
    (Kind.ORPHANED, None): ("ORPHANED", Owner.USER),
}

NAMES = tuple(dict.fromkeys(name for name, _ in _TABLE.values()))
"""All names, each once."""


def name(finding: Finding) -> str:
    """The name of what was found, in capitals: HBM_UNCORRECTABLE_ERROR, NEEDS_RESET."""
    return _known(finding)[0]


def owner(finding: Finding) -> Owner:
    """Who has to act on it."""
    return _known(finding)[1]


def described(finding: Finding) -> dict[str, object]:
    """A finding as programs get it: plain values, with its name and who has to act."""
    return {
        "name": name(finding),
        "problem": str(owner(finding)),
        "kind": str(finding.kind),
        "severity": finding.severity.name.lower(),
        "reason": finding.reason,
        "action": finding.action,
        "began_at_unix_seconds": finding.began_at_unix_seconds,
        "device_indices": list(finding.device_indices),
        "neuroncore_index": finding.neuroncore_index,
        "part": finding.part,
        "pid": finding.pid,
        "pids": list(finding.pids),
        "job": finding.job,
        "synthetic": finding.synthetic,
        "injected": finding.injected,
    }


def _known(finding: Finding) -> tuple[str, Owner]:
    """What the table has; a kind that only a newer daemon knows is the user's, which drains and replaces nothing."""
    found = _TABLE.get((finding.kind, finding.part)) or _TABLE.get((finding.kind, None))
    return found or (finding.kind.upper(), Owner.USER)
