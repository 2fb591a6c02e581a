"""The kernel log: records of /dev/kmsg, lines of the Neuron driver, and its hardware errors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

KERNEL_FACILITY = 0
"""The facility of the kernel's own records. The kernel gives another one, mostly user (1), to records of programs."""

_LEVELS = 8
_LARGEST = 2**64 - 1
_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One record of /dev/kmsg. `microseconds` counts from boot, `level` is a syslog level, facility 0 is the kernel."""

    sequence: int
    microseconds: int
    text: str
    level: int = 3  # error
    facility: int = 0

    def line(self) -> bytes:
        """Formats the record as /dev/kmsg does, with its newline."""
        priority = self.facility * _LEVELS + self.level
        text = b"".join(
            b"%c" % byte if 32 <= byte < 127 and byte != ord("\\") else b"\\x%02x" % byte
            for byte in self.text.encode("utf-8", "replace")
        )
        return b"%d,%d,%d,-;%s\n" % (priority, self.sequence, self.microseconds, text)


def parse_kernel_record(line: bytes) -> KernelRecord | None:
    """Parses the first line of a record. Returns None for a continuation line (KEY=value) or an invalid line."""
    head, separator, text = line.rstrip(b"\n").partition(b";")
    fields = head.split(b",")
    if not separator or len(fields) < 3 or not all(field.isdigit() and len(field) <= 20 for field in fields[:3]):
        return None
    priority, sequence, microseconds = map(int, fields[:3])
    if max(priority, sequence, microseconds) > _LARGEST:
        return None
    facility, level = divmod(priority, _LEVELS)
    unescaped = _ESCAPED.sub(lambda match: bytes((int(match[1], 16),)), text).decode("utf-8", "replace")
    return KernelRecord(sequence, microseconds, unescaped, level, facility)


class DriverEvent(StrEnum):
    """Kinds of events that the driver logs."""

    STARTED = "started"  # the driver was loaded, so earlier events no longer apply
    RESET_DONE = "reset_done"
    RESET_FAILED = "reset_failed"
    DMA_TIMEOUT = "dma_timeout"


@dataclass(frozen=True, slots=True)
class DriverMessage:
    """An event that the driver logged. `device_index` None means all devices."""

    event: DriverEvent
    device_index: int | None = None


_INDEX = r"nd ?(\d{1,4})\b"
_FORMS = (
    (re.compile(r"Neuron Driver Started with Version"), DriverEvent.STARTED),
    (re.compile(rf"\bDMA completion timeout on {_INDEX}"), DriverEvent.DMA_TIMEOUT),
    (re.compile(rf"\b{_INDEX}: reset request \d+ completed"), DriverEvent.RESET_DONE),
    (re.compile(rf"\b{_INDEX}: reset request \d+ (?:failed|was initiated, but failed)"), DriverEvent.RESET_FAILED),
    (re.compile(rf"\b{_INDEX}: failed to (?:initialize dma after|complete post) reset"), DriverEvent.RESET_FAILED),
)


def parse_driver_line(text: str) -> DriverMessage | None:
    """Parses a kernel log text of the driver. Returns None if the text reports no known event."""
    for form, event in _FORMS:
        found = form.search(text)
        if found is not None:
            return DriverMessage(event, int(found[1]) if form.groups else None)
    return None


SRAM_ERROR = "SRAM_UNCORRECTABLE_ERROR"
NEURONCORE_ERROR = "NC_UNCORRECTABLE_ERROR"
HBM_ERROR = "HBM_UNCORRECTABLE_ERROR"
DMA_ERROR = "DMA_ERROR"
HARDWARE_ERRORS = (SRAM_ERROR, NEURONCORE_ERROR, HBM_ERROR, DMA_ERROR)
"""Error names that node agents know. AWS publishes no others."""

TERMINATE_INSTANCE = "TERMINATE_INSTANCE"
"""The only action for a hardware error that AWS publishes."""

_MARK = "NEURON_HW_ERR"
_FIELD = re.compile(r"(?<![\w-])([\w-]+)=(\S*)")


@dataclass(frozen=True, slots=True)
class HardwareError:
    """A NEURON_HW_ERR line of the kernel log. Fields that the line lacks are None.

    `core_index` is relative to the device.
    """

    name: str
    device_index: int | None = None
    core_index: int | None = None
    instance_id: str | None = None
    hostname: str | None = None
    serial_number: str | None = None
    action: str | None = None

    def text(self, origin: str = "kernel:") -> str:
        """Formats the line. Node agents match the line only if a space precedes NEURON_HW_ERR and follows the error
        name.
        """
        fields = (
            ("instance-id", self.instance_id),
            ("hostname", self.hostname),
            ("nd-id", self.device_index),
            ("nc-id", self.core_index),
            ("serial-num", self.serial_number),
            ("action", self.action),
        )
        parts = [f"{key}={value}" for key, value in fields if value is not None]
        return " ".join((origin, f"{_MARK}={self.name}", *(parts or ("affecting Neuron devices",))))


def parse_hardware_error(text: str) -> HardwareError | None:
    """Parses a kernel log text. Returns None if the text reports no hardware error."""
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
