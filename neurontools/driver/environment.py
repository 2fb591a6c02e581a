"""Environment variables: those of the Neuron runtime, and those that say where the driver's trees are.

Imports little, because `neuron-ls` waits for it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as typing has it, without its import
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


VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"
NUM_CORES = "NEURON_RT_NUM_CORES"
LNC = "NEURON_LOGICAL_NC_CONFIG"
LNC_ALIAS = "NEURON_RT_VIRTUAL_CORE_SIZE"
PROCESS_TAG = "NEURON_PROCESS_TAG"
INSPECT_ENABLE = "NEURON_RT_INSPECT_ENABLE"
INSPECT_OUTPUT_DIRECTORY = "NEURON_RT_INSPECT_OUTPUT_DIR"
INSPECT_MOST_EVENTS = "NEURON_RT_INSPECT_SYS_TRACE_MAX_EVENTS_PER_NC"
PROFILE_RUN = "NEURONTOOLS_PROFILE_RUN"
PROFILE_STEPS = "NEURONTOOLS_PROFILE_STEPS"


class InvalidCoreRequest(ValueError):
    """An environment variable asks for cores in a way that can't be meant; the text names it, the cause, the cure."""


def logical_neuroncore_config(environment: Mapping[str, str]) -> int | None:
    """The LNC that the environment sets, 1 or 2; None when it sets none. Raises InvalidCoreRequest."""
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
    """The value of a variable in an error: quoted, and cut where it is long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
