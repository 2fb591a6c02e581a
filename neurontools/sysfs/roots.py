"""Where the operating system's trees begin: the real ones, or copies of them in a directory."""

from __future__ import annotations


class Roots:
    """The directories that stand for /sys, /proc and /dev. Paths below them are made here and nowhere else."""

    __slots__ = ("dev", "proc", "sys")

    def __init__(self, sys: str = "/sys", proc: str = "/proc", dev: str = "/dev") -> None:
        self.sys = sys.rstrip("/") or "/"
        self.proc = proc.rstrip("/") or "/"
        self.dev = dev.rstrip("/") or "/"

    @property
    def devices(self) -> str:
        """The directory that holds a directory for each Neuron device."""
        return f"{self.sys}/devices/virtual/neuron_device"

    @property
    def device_class(self) -> str:
        """The directory of the device class: links to the devices, and what concerns the host as a whole."""
        return f"{self.sys}/class/neuron_device"

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

    @property
    def are_real(self) -> bool:
        """Whether these are the operating system's own trees."""
        return (self.sys, self.proc, self.dev) == ("/sys", "/proc", "/dev")
