"""Environment variables of the Neuron runtime, and the directories of the driver's files.

This module imports almost nothing, because imports delay the start of `neuron-ls`.
"""

from __future__ import annotations

import os

from neurontools.util.terminal import truncate

TYPE_CHECKING = False  # importing typing.TYPE_CHECKING would cost several milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping


SYSFS_ROOT = "NEURONTOOLS_SYSFS_ROOT"
PROC_ROOT = "NEURONTOOLS_PROC_ROOT"
DEV_ROOT = "NEURONTOOLS_DEV_ROOT"


class Roots:
    """The directories to use as /sys, /proc and /dev, and the driver's paths below them."""

    def __init__(self, sys: str = "/sys", proc: str = "/proc", dev: str = "/dev") -> None:
        self.sys = sys.rstrip("/") or "/"
        self.proc = proc.rstrip("/") or "/"
        self.dev = dev.rstrip("/") or "/"
        self.devices = f"{self.sys}/devices/virtual/neuron_device"  # directory with a subdirectory per Neuron device
        # Directory of the device class: links to the devices, and files about the whole host.
        self.device_class = f"{self.sys}/class/neuron_device"
        self.driver_version = f"{self.sys}/module/neuron/version"
        self.dmi = f"{self.sys}/class/dmi/id"  # the firmware's description of the host, such as its product name
        self.pci_devices = f"{self.sys}/bus/pci/devices"  # directory with a subdirectory per PCI address

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
    def has_devices(self) -> bool:
        """Whether the Neuron driver is loaded, so that its directory of devices exists."""
        return any(os.path.isdir(path) for path in (self.devices, self.device_class))  # noqa: PTH112 - pathlib is slow


VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"
NUM_CORES = "NEURON_RT_NUM_CORES"
LNC = "NEURON_LOGICAL_NC_CONFIG"
LNC_ALIAS = "NEURON_RT_VIRTUAL_CORE_SIZE"
PROCESS_TAG = "NEURON_PROCESS_TAG"
SUMMARY_DIRECTORY = "NEURONTOOLS_SUMMARY_DIRECTORY"  # directory of the files that workers write for neuron-run
SHAPES_ONLY = "NEURONTOOLS_SHAPES_ONLY"  # 1: programs are counted and not computed, for estimates
INSPECT_ENABLE = "NEURON_RT_INSPECT_ENABLE"
INSPECT_OUTPUT_DIRECTORY = "NEURON_RT_INSPECT_OUTPUT_DIR"
INSPECT_MOST_EVENTS = "NEURON_RT_INSPECT_SYS_TRACE_MAX_EVENTS_PER_NC"
PROFILE_RUN = "NEURONTOOLS_PROFILE_RUN"
PROFILE_STEPS = "NEURONTOOLS_PROFILE_STEPS"
IGNORED_RULES = "NEURONTOOLS_IGNORE_ADVICE"  # rules of advice to skip, separated by commas, or EVERY_RULE
EVERY_RULE = "all"


class InvalidCoreRequest(ValueError):
    """An environment variable requests cores in an invalid way. The message has the variable, cause and remedy."""


def is_shapes_only(environment: Mapping[str, str]) -> bool:
    """Returns whether the programs of a process are counted, and not computed."""
    return environment.get(SHAPES_ONLY, "0") not in ("", "0", "false")


def logical_neuroncore_config(environment: Mapping[str, str]) -> int | None:
    """Returns the LNC (logical NeuronCore configuration) that the environment sets, 1 or 2; None if it sets none.

    Raises InvalidCoreRequest for other values.
    """
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
    return repr(truncate(text, 60))
