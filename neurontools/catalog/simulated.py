"""What simulated devices are given where hardware has something of its own."""

from __future__ import annotations

from neurontools.catalog.family import DeviceFamily


def simulated_serial_number(family: DeviceFamily, device_index: int) -> str | None:
    """16 hexadecimal digits, as the driver writes them; all begin with ffffffff, so that none passes for real.

    None for Inferentia, which has none.
    """
    return f"ffffffff{device_index:08x}" if family.generation > 1 else None
