"""The line on which every node agent goes: NEURON_HW_ERR, which the runtime has the driver write.

Source: the Neuron SDK's documentation, nrt-troubleshoot ("Hardware Errors"). The driver prints what the runtime hands
it, so the line comes only from a process that meets the error: one on an idle device is counted and not logged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SRAM = "SRAM_UNCORRECTABLE_ERROR"
NEURONCORE = "NC_UNCORRECTABLE_ERROR"
HBM = "HBM_UNCORRECTABLE_ERROR"
DMA = "DMA_ERROR"
NAMES = (SRAM, NEURONCORE, HBM, DMA)
"""The names that node agents know; no others are public."""

TERMINATE_INSTANCE = "TERMINATE_INSTANCE"
"""The only action that is public."""

_MARK = "NEURON_HW_ERR"
_FIELD = re.compile(r"(?<![\w-])([\w-]+)=(\S*)")


@dataclass(frozen=True, slots=True)
class HardwareError:
    """An error of the hardware as the kernel's log tells it; None is a field that the line lacks.

    `core_index` is the NeuronCore on its device.
    """

    name: str
    device_index: int | None = None
    core_index: int | None = None
    instance_id: str | None = None
    hostname: str | None = None
    serial_number: str | None = None
    action: str | None = None

    def text(self, origin: str = "kernel:") -> str:
        """The line. Node agents want a blank before the mark and after the name, hence a word goes before it."""
        fields = (
            ("instance-id", self.instance_id),
            ("hostname", self.hostname),
            ("nd-id", self.device_index),
            ("nc-id", self.core_index),
            ("serial-num", self.serial_number),
            ("action", self.action),
        )
        told = [f"{key}={value}" for key, value in fields if value is not None]
        return " ".join((origin, f"{_MARK}={self.name}", *(told or ("affecting Neuron devices",))))


def hardware_error(text: str) -> HardwareError | None:
    """What the text of a record says of an error of the hardware; None when it says nothing of one."""
    fields = dict(_FIELD.findall(text))
    name = fields.get(_MARK)
    if not name:
        return None
    return HardwareError(
        name,
        _index(fields.get("nd-id")),
        _index(fields.get("nc-id")),
        fields.get("instance-id"),
        fields.get("hostname"),
        fields.get("serial-num"),
        fields.get("action"),
    )


def _index(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 5 else None
