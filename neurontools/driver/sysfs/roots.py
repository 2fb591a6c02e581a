"""Where the operating system's trees begin: the real ones, or copies of them in a directory."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # that of typing, without its import
if TYPE_CHECKING:
    from collections.abc import Mapping

SYSFS_ROOT = "NEURONTOOLS_SYSFS_ROOT"
PROC_ROOT = "NEURONTOOLS_PROC_ROOT"
DEV_ROOT = "NEURONTOOLS_DEV_ROOT"


class Roots:
    """The directories that stand for /sys, /proc and /dev. Paths below them are made here and nowhere else."""

    __slots__ = ("dev", "proc", "sys")

    def __init__(self, sys: str = "/sys", proc: str = "/proc", dev: str = "/dev") -> None:
        self.sys = sys.rstrip("/") or "/"
        self.proc = proc.rstrip("/") or "/"
        self.dev = dev.rstrip("/") or "/"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Roots:
        """The roots that NEURONTOOLS_SYSFS_ROOT, _PROC_ROOT and _DEV_ROOT name, else the real ones."""
        return cls(
            environment.get(SYSFS_ROOT, "") or "/sys",
            environment.get(PROC_ROOT, "") or "/proc",
            environment.get(DEV_ROOT, "") or "/dev",
        )

    @property
    def devices(self) -> str:
        """The directory that holds a directory for each Neuron device."""
        return f"{self.sys}/devices/virtual/neuron_device"

    @property
    def device_class(self) -> str:
        """The directory of the device class: links to the devices, and what concerns the host as a whole."""
        return f"{self.sys}/class/neuron_device"

    @property
    def has_devices(self) -> bool:
        """Whether the Neuron driver shows its devices here."""
        return any(os.path.isdir(path) for path in (self.devices, self.device_class))  # noqa: PTH112 - pathlib is slow

    @property
    def driver_version(self) -> str:
        """The file with the version of the driver."""
        return f"{self.sys}/module/neuron/version"

    @property
    def dmi(self) -> str:
        """The directory with what the firmware says of the machine."""
        return f"{self.sys}/class/dmi/id"

    @property
    def pci_devices(self) -> str:
        """The directory that holds a directory for each PCI device, named by its address."""
        return f"{self.sys}/bus/pci/devices"
