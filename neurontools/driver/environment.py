"""Environment variables of the Neuron runtime, and the directories of the driver's files.

This module imports almost nothing, because imports delay the start of `neuron-ls`.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing.TYPE_CHECKING would cost several milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping


SYSFS_ROOT = "NEURONTOOLS_SYSFS_ROOT"
PROC_ROOT = "NEURONTOOLS_PROC_ROOT"
DEV_ROOT = "NEURONTOOLS_DEV_ROOT"


class Roots:
    """The directories to use as /sys, /proc and /dev, and the driver's paths below them."""

    __slots__ = ("dev", "proc", "sys")

    def __init__(self, sys: str = "/sys", proc: str = "/proc", dev: str = "/dev") -> None:
        self.sys = sys.rstrip("/") or "/"
        self.proc = proc.rstrip("/") or "/"
        self.dev = dev.rstrip("/") or "/"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Roots:
        """Reads the roots from NEURONTOOLS_SYSFS_ROOT, NEURONTOOLS_PROC_ROOT and NEURONTOOLS_DEV_ROOT.

        The defaults are /sys, /proc and /dev.
        """
        return cls(
            environment.get(SYSFS_ROOT, "") or "/sys",
            environment.get(PROC_ROOT, "") or "/proc",
            environment.get(DEV_ROOT, "") or "/dev",
        )

    @property
    def devices(self) -> str:
        """Directory with one subdirectory per Neuron device."""
        return f"{self.sys}/devices/virtual/neuron_device"

    @property
    def device_class(self) -> str:
        """Directory of the device class: links to the devices, and files about the whole host."""
        return f"{self.sys}/class/neuron_device"

    @property
    def has_devices(self) -> bool:
        """Whether the Neuron driver's directory of devices exists."""
        return any(os.path.isdir(path) for path in (self.devices, self.device_class))  # noqa: PTH112 - pathlib is slow

    @property
    def driver_version(self) -> str:
        """File with the driver version."""
        return f"{self.sys}/module/neuron/version"

    @property
    def dmi(self) -> str:
        """Directory with the firmware's description of the host (DMI), such as its product name."""
        return f"{self.sys}/class/dmi/id"

    @property
    def pci_devices(self) -> str:
        """Directory with one subdirectory per PCI device, named by its address."""
        return f"{self.sys}/bus/pci/devices"


VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"
NUM_CORES = "NEURON_RT_NUM_CORES"
LNC = "NEURON_LOGICAL_NC_CONFIG"
LNC_ALIAS = "NEURON_RT_VIRTUAL_CORE_SIZE"
PROCESS_TAG = "NEURON_PROCESS_TAG"
SUMMARY_DIRECTORY = "NEURONTOOLS_SUMMARY_DIRECTORY"  # of the files that workers write for neuron-run
INSPECT_ENABLE = "NEURON_RT_INSPECT_ENABLE"
INSPECT_OUTPUT_DIRECTORY = "NEURON_RT_INSPECT_OUTPUT_DIR"
INSPECT_MOST_EVENTS = "NEURON_RT_INSPECT_SYS_TRACE_MAX_EVENTS_PER_NC"
PROFILE_RUN = "NEURONTOOLS_PROFILE_RUN"
PROFILE_STEPS = "NEURONTOOLS_PROFILE_STEPS"


class InvalidCoreRequest(ValueError):
    """An environment variable requests cores in an invalid way. The message has the variable, cause and remedy."""


def logical_neuroncore_config(environment: Mapping[str, str]) -> int | None:
    """Returns the LNC that the environment sets (1 or 2), or None. Raises InvalidCoreRequest for other values."""
    for name in (LNC, LNC_ALIAS):
        text = environment.get(name, "").strip()
        if text:
            if text not in ("1", "2"):
                raise InvalidCoreRequest(
                    f"{name}={quote_value(text)}: not a logical NeuronCore configuration; set it to 1 or 2, or unset it"
                )
            return int(text)
    return None


def quote_value(text: str) -> str:
    """Quotes and truncates a value for an error message."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
