"""Simulates the power of devices from the busy time of their cores, as minutes of the wall clock like the driver's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from neurond.allocator import HostShape
from neurontools.model import NeuronCore, PowerUtilization

IDLE_RATIO, BUSY_RATIO = 0.2, 0.8
"""Power of a device without work and with all cores busy, as ratios of its maximum. AWS publishes neither."""

_MINUTE_SECONDS = 60
_SAMPLE_SECONDS = 5.0  # reports of processes arrive about once a second, so shorter spans have too few of them


@dataclass(slots=True)
class _DeviceMinute:
    busy_seconds: float = 0.0  # of all cores, at the latest sample
    ratios: list[float] = field(default_factory=list)  # samples of the current minute
    latest: PowerUtilization | None = None


class SimulatedPower:
    """Derives the power of each simulated device. Has no value before the first full minute."""

    def __init__(self, shape: HostShape, unix_seconds: Callable[[], float]) -> None:
        self._cores_per_device = shape.cores_per_device
        self._unix_seconds = unix_seconds
        self._devices = [_DeviceMinute() for _ in range(shape.device_count)]
        self._sampled_at: float | None = None
        self._is_full_minute = False  # whether sampling began before the current minute

    def read(self, cores: Iterable[NeuronCore]) -> list[PowerUtilization | None]:
        """Returns the power of each device in its last full minute, by device index."""
        now, before = self._unix_seconds(), self._sampled_at
        if before is None or now - before >= _SAMPLE_SECONDS or now < before:
            self._sample(now, cores)
        return [device.latest for device in self._devices]

    def _sample(self, now: float, cores: Iterable[NeuronCore]) -> None:
        before, self._sampled_at = self._sampled_at, now
        busy = [0.0] * len(self._devices)
        for core in cores:
            busy[core.device_index] += core.busy_seconds_total or 0.0
        minute = int(now // _MINUTE_SECONDS) * _MINUTE_SECONDS
        if before is not None and before < minute:
            for device in self._devices:
                if self._is_full_minute and device.ratios:
                    mean = sum(device.ratios) / len(device.ratios)
                    device.latest = PowerUtilization(float(minute), min(device.ratios), max(device.ratios), mean)
                device.ratios.clear()
            self._is_full_minute = True
        for device, busy_seconds in zip(self._devices, busy, strict=True):
            if before is not None and now > before:
                used = (busy_seconds - device.busy_seconds) / ((now - before) * self._cores_per_device)
                device.ratios.append(IDLE_RATIO + (BUSY_RATIO - IDLE_RATIO) * min(1.0, max(0.0, used)))
            device.busy_seconds = busy_seconds
