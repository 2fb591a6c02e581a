"""What is asked of a Prometheus of each host, in PromQL: by recording rules where it has them, else out of the metrics.

The rules are those of deploy/prometheus/neuron.rules.yml; each expression here is the expression of the rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.fleet.summarize import BUSY_FROM_RATIO

TAKEN = "neurontools_snapshot_timestamp_seconds"
"""A series of each host that neurond serves, whatever else is known of it."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of each host: the name of its recording rule, and the expression that is recorded."""

    rule: str
    expression: str


_HELD = "neurontools_neuroncore_held"
_UTILIZATION = "neurontools_neuroncore_utilization_ratio"
_ON_CORE = "on (instance, neuroncore)"
_BY_DEVICE = "by (instance, neuron_device_index)"

CORES = Quantity(
    "instance:neuroncores:count",
    f"count by (instance) ({_HELD} or {_UTILIZATION} or neurontools_neuroncore_executions_total)",
)
HELD = Quantity("instance:neuroncores_held:count", f"sum by (instance) ({_HELD})")
FREE = Quantity("instance:neuroncores_free:count", f"sum by (instance) ({_HELD} == bool 0)")
BUSY = Quantity(
    "instance:neuroncores_busy:count",
    f"sum by (instance) (({_UTILIZATION} >= bool {BUSY_FROM_RATIO}) * {_ON_CORE} {_HELD})",
)
HELD_UTILIZATION = Quantity(
    "instance:neuroncore_held_utilization:avg",
    f"avg by (instance) ({_UTILIZATION} and {_ON_CORE} ({_HELD} == 1))",
)
MFU = Quantity(
    "instance:neuroncore_mfu:avg",
    f"avg by (instance) (neurontools_neuroncore_mfu_ratio and {_ON_CORE} ({_HELD} == 1))",
)
STEPS = Quantity("instance:neuron_steps:rate5m", "max by (instance) (rate(neurontools_process_steps_total[5m]))")


def _findings(chosen: str = "") -> str:
    found = f"neurontools_finding_seconds{chosen}"
    return f"count by (instance, severity) (group by (instance, severity, finding, job_name) ({found}))"


FINDINGS = Quantity("instance_severity:neuron_findings:count", _findings())


def findings_of(severity: str, *, is_recorded: bool) -> str:
    """How many findings of a severity a host has; nothing for one that has none."""
    chosen = f'{{severity="{severity}"}}'
    return f"{FINDINGS.rule}{chosen}" if is_recorded else _findings(chosen)


UNKNOWN, FREE_DEVICE, IDLE, WARNING, CRITICAL = 1, 2, 3, 7, 8
THIRDS = {4: 0.333, 5: 0.667, 6: 1.0}
"""Conditions of a device, each a digit, 0 for none: those between idle and warning are how busy it is, in thirds."""
CONDITIONS, DIGITS = 9, 16
"""The base of these digits, and how many of them a sample holds exactly: as many as a host has devices."""


def _condition(chosen: str = "") -> str:
    """The digit of each device, or of those that a matcher chooses."""
    busy = f"avg {_BY_DEVICE} ({_UTILIZATION}{chosen})"
    return (
        f"5 + (max {_BY_DEVICE} (neurontools_device_health{chosen}) >= {WARNING - 5})"
        f" or {FREE_DEVICE} + (max {_BY_DEVICE} ({_HELD}{chosen}) == 0)"
        f" or {IDLE} + ({busy} >= bool {BUSY_FROM_RATIO}) * clamp_min(round(3 * {busy}), 1)"
        f" or {UNKNOWN} + 0 * max {_BY_DEVICE} (neurontools_device_memory_bytes{chosen})"
    )


def _packed(of_index: list[str]) -> str:
    """The conditions of the devices of a host as one number, that of device 0 its lowest digit."""
    return f"sum by (instance) ({' or '.join(f'{CONDITIONS**at} * {text}' for at, text in enumerate(of_index))})"


_CHOSEN = [f'{{neuron_device_index="{index}"}}' for index in range(DIGITS)]
DEVICE = Quantity("instance_device:neuron_condition:code", _condition())
DEVICES = Quantity("instance:neuron_devices:conditions", _packed([f"{DEVICE.rule}{chosen}" for chosen in _CHOSEN]))
DEVICES_UNRECORDED = _packed([f"({_condition(chosen)})" for chosen in _CHOSEN])

RULES = (CORES, HELD, FREE, BUSY, HELD_UTILIZATION, STEPS, FINDINGS, DEVICE, DEVICES)
