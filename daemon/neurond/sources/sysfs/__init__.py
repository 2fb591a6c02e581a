"""The Neuron driver's sysfs tree as a source of device state."""

from neurond.sources.sysfs.source import SysfsSource as SysfsSource
