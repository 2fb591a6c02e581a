"""What this process itself costs."""

from __future__ import annotations

import os
import time

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class OwnCost:
    """vCPU time and memory of this process. The share is over the time between the latest two measurements."""

    def __init__(self) -> None:
        self.cpu_seconds_total: float | None = None
        self.vcpu_ratio: float | None = None
        self.resident_bytes: int | None = None
        self._measured_at_seconds = 0.0

    def measure(self) -> None:
        """Measures now."""
        now_seconds, cpu_seconds = time.monotonic(), time.process_time()
        passed_seconds = now_seconds - self._measured_at_seconds
        if self.cpu_seconds_total is not None and passed_seconds > 0:
            self.vcpu_ratio = (cpu_seconds - self.cpu_seconds_total) / passed_seconds
        self.cpu_seconds_total, self._measured_at_seconds = cpu_seconds, now_seconds
        try:
            with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 - once a tick
                self.resident_bytes = int(file.read(256).split()[1]) * _PAGE_BYTES
        except (OSError, ValueError, IndexError):
            self.resident_bytes = None
