"""Tables of neuron-fault: faults and fault kinds."""

from __future__ import annotations

from collections.abc import Sequence

from neurontools.faults.kinds import KINDS, FaultKind
from neurontools.faults.requests import FAULT_STATE_TEXTS, fault_location, fault_schedule
from neurontools.model import InjectedFault


def fault_table(faults: Sequence[InjectedFault]) -> str:
    if not faults:
        return "no fault is there\n"
    rows = [("FAULT", "KIND", "WHERE", "WHEN", "STATE", "MET")]
    rows += [
        (
            str(fault.number),
            fault.kind,
            fault_location(fault),
            fault_schedule(fault).removeprefix(", ") or "-",
            FAULT_STATE_TEXTS[fault.state],
            str(fault.met_total),
        )
        for fault in faults
    ]
    return aligned_table(rows)


def kind_table() -> str:
    rows = [("KIND", "STATUS", "WHAT IT IS")]
    rows += [(kind.name, _nrt_status_name(kind) or "-", kind.summary + _amount_text(kind)) for kind in KINDS.values()]
    return aligned_table(rows)


def kind_documents() -> list[dict[str, object]]:
    """Returns all properties of the fault kinds as JSON values."""
    return [
        {
            "kind": kind.name,
            "summary": kind.summary,
            "an_execution_that_meets_it": str(kind.effect),
            "lasts": str(kind.lasts),
            "nrt_status": int(kind.status) if kind.status else None,
            "nrt_status_name": _nrt_status_name(kind),
            "log": [{"function": line.function, "text": line.text} for line in kind.log],
            "ecc_counters": list(kind.ecc),
            "status_counter": kind.counter,
            "kernel_error": kind.kernel_error,
            "unhealthy_component": kind.component,
            "findings": list(kind.findings),
            "amount": None
            if kind.amount is None
            else {
                "unit": kind.amount.unit,
                "default": kind.amount.default,
                "least": kind.amount.least,
                "most": kind.amount.most,
            },
            "takes_part": kind.takes_part,
            "source": kind.source or None,
        }
        for kind in KINDS.values()
    ]


def _nrt_status_name(kind: FaultKind) -> str | None:
    return f"NRT_{kind.status.name}" if kind.status else None


def _amount_text(kind: FaultKind) -> str:
    return "" if kind.amount is None else f" (amount: {kind.amount.unit}, default {kind.amount.default:g})"


def time_text(seconds: float) -> str:
    """Formats seconds since the start of a plan as H:MM:SS."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def aligned_table(rows: Sequence[tuple[str, ...]]) -> str:
    """Formats rows of cells as a text table with aligned columns. The first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)
