"""A source on a tree of the driver, as the tests of it open it, and what it reads."""

from __future__ import annotations

from collections.abc import Callable

from neurond.sources.sysfs import SysfsSource

from neurontools.model import Device, NeuronCore
from neurontools.testing import DriverTree

PID = 4711
MakeTree = Callable[..., DriverTree]
Open = Callable[..., SysfsSource]


def core_of(source: SysfsSource, index: int = 0) -> NeuronCore:
    source.refresh()
    return next(core for core in source.read().cores if core.index == index)


def device_of(source: SysfsSource, index: int = 0) -> Device:
    source.refresh()
    return next(device for device in source.read().devices if device.index == index)
