"""An injected fault in a sentence: what, where, when, and how far it has come."""

from __future__ import annotations

from neurontools.model import FaultState, InjectedFault
from neurontools.util.units import ranges_text

STATES = {FaultState.WAITING: "waits", FaultState.HOLDS: "holds", FaultState.OVER: "is over"}


def sentence(fault: InjectedFault) -> str:
    """One line on a fault."""
    return f"fault {fault.number}: {fault.kind} {where(fault)}{when(fault)}, {STATES[fault.state]}"


def injected_by(fault: InjectedFault) -> str:
    """Who injected it, as far as the kernel has told; "" where that is not known."""
    told = (("UID", fault.injected_by_uid), ("PID", fault.injected_by_pid))
    return ", ".join(f"{name} {number}" for name, number in told if number is not None)


def where(fault: InjectedFault) -> str:
    """What it is in: a device, a NeuronCore, a process, or the host."""
    if not fault.device_indices:
        return "the host"
    devices = f"device{'' if len(fault.device_indices) == 1 else 's'} {ranges_text(fault.device_indices)}"
    if fault.neuroncore_index is not None:
        return f"NeuronCore {fault.neuroncore_index} of {devices}"
    return devices if fault.pid is None else f"PID {fault.pid} on {devices}"


def when(fault: InjectedFault) -> str:
    """What it waits for, how long it lasts and how likely it is met, after a comma each."""
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
