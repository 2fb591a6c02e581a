"""What neuron-fault prints: faults as sentences and tables, kinds as a table and as documents."""

from __future__ import annotations

from collections.abc import Sequence

from neurontools.faults.kind import FaultKind
from neurontools.faults.kinds import KINDS
from neurontools.model import FaultState, InjectedFault
from neurontools.text.ranges import ranges

_STATES = {FaultState.WAITING: "waits", FaultState.HOLDS: "holds", FaultState.OVER: "is over"}


def sentence(fault: InjectedFault) -> str:
    """One line on a fault that has just been injected."""
    return f"fault {fault.number}: {fault.kind} {_where(fault)}{_when(fault)}, {_STATES[fault.state]}"


def table(faults: Sequence[InjectedFault]) -> str:
    """All faults, a line each."""
    if not faults:
        return "no fault is there\n"
    rows = [("FAULT", "KIND", "WHERE", "WHEN", "STATE", "MET")]
    rows += [
        (
            str(fault.number),
            fault.kind,
            _where(fault),
            _when(fault).removeprefix(", ") or "-",
            _STATES[fault.state],
            str(fault.met_total),
        )
        for fault in faults
    ]
    return aligned(rows)


def kind_table() -> str:
    """All kinds, a line each."""
    rows = [("KIND", "STATUS", "WHAT IT IS")]
    rows += [(kind.name, _status(kind) or "-", kind.summary + _amount(kind)) for kind in KINDS.values()]
    return aligned(rows)


def kind_documents() -> list[dict[str, object]]:
    """All kinds with all that they show."""
    return [
        {
            "kind": kind.name,
            "summary": kind.summary,
            "an_execution_that_meets_it": str(kind.effect),
            "lasts": str(kind.lasts),
            "nrt_status": int(kind.status) if kind.status else None,
            "nrt_status_name": _status(kind),
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


def _status(kind: FaultKind) -> str | None:
    return f"NRT_{kind.status.name}" if kind.status else None


def _amount(kind: FaultKind) -> str:
    return "" if kind.amount is None else f" (amount: {kind.amount.unit}, default {kind.amount.default:g})"


def _where(fault: InjectedFault) -> str:
    if not fault.device_indices:
        return "the host"
    devices = f"device{'' if len(fault.device_indices) == 1 else 's'} {ranges(fault.device_indices)}"
    if fault.neuroncore_index is not None:
        return f"NeuronCore {fault.neuroncore_index} of {devices}"
    return devices if fault.pid is None else f"PID {fault.pid} on {devices}"


def _when(fault: InjectedFault) -> str:
    parts = []
    if fault.after_executions:
        parts.append(f"after {fault.after_executions} execution{'' if fault.after_executions == 1 else 's'}")
    if fault.after_seconds:
        parts.append(f"after {fault.after_seconds:g} s")
    if fault.for_seconds is not None:
        parts.append(f"for {fault.for_seconds:g} s")
    if fault.probability < 1:
        parts.append(f"with probability {fault.probability:g}")
    return "".join(f", {part}" for part in parts)


def clock(seconds: float) -> str:
    """A moment of a story: hours, minutes and seconds from its beginning."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows of a table, the first being its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)
