"""The conditions of a host's devices as the digits of one number, which Prometheus keeps as one series.

neurond encodes the devices for /metrics, and neuron-top --prometheus decodes them. A number has the first DEVICE_DIGITS
devices in base CONDITION_BASE; device 0 is the lowest digit.
"""

from __future__ import annotations

from collections.abc import Iterable

from neurontools.fleet.summary import BUSY_FROM_RATIO, DeviceCell
from neurontools.model import Severity

CONDITION_BASE, DEVICE_DIGITS = 9, 16
"""A 64-bit float holds 16 digits of base 9 exactly, and no instance type has more devices."""

_NO_DEVICE, _UNKNOWN, _FREE, _IDLE, _WARNING, _CRITICAL = 0, 1, 2, 3, 7, 8
_LOADS = {4: 0.333, 5: 0.667, 6: 1.0}
"""The utilization that neuron-top shows for the digits of busy devices, which are thirds of the full load."""
_HIGHEST = CONDITION_BASE**DEVICE_DIGITS


def encode_conditions(cells: Iterable[DeviceCell]) -> int:
    """Returns the number for the devices of a host."""
    return sum(_digit(cell) * CONDITION_BASE**cell.index for cell in cells if cell.index < DEVICE_DIGITS)


def _digit(cell: DeviceCell) -> int:
    if cell.severity is not None and cell.severity >= Severity.WARNING:
        return _CRITICAL if cell.severity >= Severity.CRITICAL else _WARNING
    if cell.held_neuroncore_count == 0:
        return _FREE
    if cell.utilization_ratio is None or not cell.is_present:
        return _UNKNOWN
    is_busy = cell.utilization_ratio >= BUSY_FROM_RATIO
    return _IDLE + min(3, max(1, round(3 * cell.utilization_ratio))) if is_busy else _IDLE


def decode_conditions(number: float, *, is_judged: bool) -> tuple[DeviceCell, ...]:
    """Returns the devices of a number; empty for a number that no host has.

    `is_judged` tells whether the host's health is known. If not, the severity of a device is None unless its digit says
    that the device is unhealthy.
    """
    if not 0 < number < _HIGHEST:  # also false for NaN
        return ()
    cells: list[DeviceCell] = []
    rest, index = int(number), 0
    while rest:
        rest, digit = divmod(rest, CONDITION_BASE)
        if digit != _NO_DEVICE:
            severity = {_WARNING: Severity.WARNING, _CRITICAL: Severity.CRITICAL}.get(digit)
            well = Severity.OK if is_judged else None
            cells.append(
                DeviceCell(
                    index=index,
                    is_present=True,
                    severity=well if severity is None else severity,
                    utilization_ratio=0.0 if digit == _IDLE else _LOADS.get(digit),
                    held_neuroncore_count=0 if digit == _FREE else None,
                )
            )
        index += 1
    return tuple(cells)
