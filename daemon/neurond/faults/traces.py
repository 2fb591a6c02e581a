"""What faults leave behind: counts of ECC events and of the driver's status counters, each by its fault.

They stay when a fault ends and go when it is healed, as when the part is replaced and the driver loaded anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from neurontools.model import EccCounters, StatusCounters


class Traces:
    """The counts of all faults. Answers are the same objects for as long as nothing was counted."""

    def __init__(self) -> None:
        self._ecc: dict[int, Counter[tuple[int, str]]] = {}  # by fault; of a device and a field
        self._status: dict[int, Counter[tuple[int, str]]] = {}  # by fault; of a core and a counter
        self._ecc_of_device: dict[int, EccCounters] = {}
        self._status_of_core: dict[int, StatusCounters] = {}

    def count_ecc(self, fault: int, device_index: int, fields: Collection[str], events: int) -> None:
        """Counts ECC events of a device."""
        for field in fields:
            self._ecc.setdefault(fault, Counter())[device_index, field] += events
        self._sum()

    def count_status(self, fault: int, core_index: int, name: str) -> None:
        """Counts one in a status counter of a physical core."""
        self._status.setdefault(fault, Counter())[core_index, f"{name}_total"] += 1
        self._sum()

    def forget(self, fault: int) -> None:
        """Takes away what a fault has counted."""
        if self._ecc.pop(fault, None) or self._status.pop(fault, None):
            self._status.pop(fault, None)
            self._sum()

    def ecc(self, device_index: int) -> EccCounters | None:
        """The events of a device; None: none were counted."""
        return self._ecc_of_device.get(device_index)

    def status(self, core_index: int) -> StatusCounters | None:
        """The counters of a physical core; None: none were counted."""
        return self._status_of_core.get(core_index)

    def _sum(self) -> None:
        ecc, status = _summed(self._ecc.values()), _summed(self._status.values())
        self._ecc_of_device = {index: EccCounters(**fields) for index, fields in ecc.items()}
        self._status_of_core = {index: StatusCounters(**fields) for index, fields in status.items()}


def _summed(counted: Collection[Counter[tuple[int, str]]]) -> dict[int, dict[str, int]]:
    sums: dict[int, dict[str, int]] = {}
    for counter in counted:
        for (index, field), count in counter.items():
            fields = sums.setdefault(index, {})
            fields[field] = fields.get(field, 0) + count
    return sums
