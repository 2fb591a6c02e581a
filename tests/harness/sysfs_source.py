"""Trees of the driver, sources on them as the tests open them, and what these read."""

from __future__ import annotations

from contextlib import ExitStack

from neurond.sources.sysfs import SysfsSource

from neurontools.model import Device, NeuronCore
from neurontools.sysfs.exported_tree import DRIVER_VERSION
from neurontools.testing import DriverTree

PID = 4711


class Drivers(ExitStack):
    """Makes trees and opens sources; a context that closes all of them."""

    def tree(self, instance_type: str, driver_version: str = DRIVER_VERSION) -> DriverTree:
        return self.enter_context(DriverTree(instance_type, driver_version=driver_version))

    def source(self, tree: DriverTree) -> SysfsSource:
        """A source that has read the tree once."""
        source = SysfsSource(tree.roots)
        self.callback(source.close)
        source.refresh()
        return source


def core_of(source: SysfsSource, index: int = 0) -> NeuronCore:
    source.refresh()
    return next(core for core in source.read().cores if core.index == index)


def device_of(source: SysfsSource, index: int = 0) -> Device:
    source.refresh()
    return next(device for device in source.read().devices if device.index == index)
