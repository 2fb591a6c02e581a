"""From where on something is a finding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits of the rules, [health] in the configuration file; None switches a check off."""

    window_seconds: float = 300.0  # over which growth is judged
    idle_seconds: float | None = 300.0  # a core is held and has finished nothing for so long
    stuck_seconds: float | None = 60.0  # an execution has been in flight for so long
    memory_used_ratio: float | None = 0.95  # of an HBM stack
    ecc_corrected_events: int | None = 10  # corrected ECC events in the window
    numerical_errors: int | None = 1  # numerical errors in the window
    hardware_errors: int | None = 1  # hardware errors of executions in the window
    latency_growth_ratio: float | None = 1.5  # median of the window against that of the time before it
    latency_executions: int = 20  # fewer than these on either side say nothing about latency
    silent_seconds: float | None = 30.0  # a process that reported has not done so for so long
