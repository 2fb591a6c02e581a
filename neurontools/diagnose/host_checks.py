"""Checks of the driver, the host environment and the variables, for neuron-doctor and neuron-diag.

neuron-diag must start fast, so this module imports slow modules only where it needs them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

from neurontools.driver.environment import (
    LNC,
    LNC_ALIAS,
    NUM_CORES,
    PROCESS_TAG,
    VISIBLE_CORES,
    InvalidCoreRequest,
    Roots,
    logical_neuroncore_config,
)
from neurontools.util.errors import UserError
from neurontools.util.units import duration_text, ranges_text
from neurontools.util.version import __version__

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class CheckLevel(StrEnum):
    OK = "ok"
    NOTE = "note"  # may be intended
    PROBLEM = "problem"  # something does not work


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check. `action` is the next step for the user; "" if none is needed."""

    level: CheckLevel
    result: str
    action: str = ""
    area: str = ""  # name of the group of checks, as in _EXAMINATIONS


def ok(result: str, action: str = "", area: str = "") -> CheckResult:
    return CheckResult(CheckLevel.OK, result, action, area)


def note(result: str, action: str = "", area: str = "") -> CheckResult:
    return CheckResult(CheckLevel.NOTE, result, action, area)


def problem(result: str, action: str = "", area: str = "") -> CheckResult:
    return CheckResult(CheckLevel.PROBLEM, result, action, area)


@dataclass(frozen=True, slots=True)
class CheckContext:
    """Inputs of the checks: environment variables, file trees and an optional socket."""

    environment: Mapping[str, str]
    roots: Roots
    socket: str | None = None  # socket to check; None: all default sockets


_MOST_PCI_DEVICES = 4096
_AMAZON = "0x1d0f"  # PCI vendor


def examine_driver(place: CheckContext) -> Iterator[CheckResult]:
    roots = place.roots
    on_bus = _count_pci_devices(roots)
    version = driver_version(roots)
    if not roots.has_devices:
        yield from _examine_missing_devices(on_bus, version)
        return
    from neurontools.driver.devices import list_device_directories

    directories = list_device_directories(roots)
    yield ok(f"Neuron driver {version or 'of an unknown version'}, devices: {len(directories)}")
    if on_bus > len(directories):
        yield problem(
            f"{on_bus} devices on the PCI bus, {len(directories)} shown by the driver",
            "see dmesg for its failure; stop and start the instance to get another host",
        )
    yield from _examine_device_files(roots, [directory.index for directory in directories])


def examine_driver_files(place: CheckContext) -> Iterator[CheckResult]:
    """Checks that all files of the driver's tree can be read. A daemon does the same at each tick."""
    if not place.roots.has_devices:
        return
    from neurontools.driver.inventory import read_host_snapshot

    try:
        snapshot = read_host_snapshot(place.roots)
    except UserError as error:
        yield problem(str(error))
        return
    for warning in snapshot.warnings if snapshot is not None else ():
        yield note(warning)


def driver_version(roots: Roots) -> str | None:
    from neurontools.driver.sysfs_files import read_text

    return read_text(roots.driver_version, 64) or None


def _examine_missing_devices(on_bus: int, version: str | None) -> Iterator[CheckResult]:
    if version is not None:
        yield problem(
            f"Neuron driver {version} is loaded but shows no device",
            "see dmesg for its failure; in a container: give it /dev/neuron* and the host's /sys",
        )
    elif on_bus:
        yield problem(
            f"{on_bus} Neuron devices on the PCI bus, but no driver is loaded",
            "modprobe neuron; is the package aws-neuronx-dkms installed for this kernel?",
        )
    else:
        yield ok("no Neuron device on this host; simulate one with neurond --simulate trn1.32xlarge")


def _count_pci_devices(roots: Roots) -> int:
    from neurontools.driver.sysfs_files import read_text

    try:
        names = sorted(os.listdir(roots.pci_devices))[:_MOST_PCI_DEVICES]  # noqa: PTH208
    except OSError:
        return 0
    found = [
        (read_text(f"{roots.pci_devices}/{name}/vendor", 16), read_text(f"{roots.pci_devices}/{name}/device", 16))
        for name in names
    ]
    if not any(vendor == _AMAZON for vendor, _ in found):
        return 0
    from neurontools import catalog

    families = [catalog.load_family(name) for name in catalog.family_names()]
    neuron_ids = {
        (f"0x{family.pci.vendor_id}", f"0x{device}") for family in families for device in family.pci.device_ids
    }
    return sum(ids in neuron_ids for ids in found)


def _examine_device_files(roots: Roots, indices: list[int]) -> Iterator[CheckResult]:
    """Checks that the device files exist and that this user may open them, without opening them."""
    paths = {index: f"{roots.dev}/neuron{index}" for index in indices}
    missing = [index for index, path in paths.items() if not os.path.exists(path)]  # noqa: PTH110 - pathlib is slow
    closed = [index for index, path in paths.items() if index not in missing and not os.access(path, os.R_OK | os.W_OK)]
    if missing:
        yield problem(
            f"no device files of devices {ranges_text(missing)} in {roots.dev}",
            "run udevadm trigger as root; pass the files to a container",
        )
    if closed:
        yield problem(
            f"this user may not open the device files of devices {ranges_text(closed)} in {roots.dev}",
            "set their group and mode with a udev rule, and add the user to that group",
        )


_LATE_INTERVALS, _LATE_SECONDS = 5, 10.0


def examine_snapshot(
    version: str, age_seconds: float, interval_seconds: float, warnings: Iterable[str]
) -> Iterator[CheckResult]:
    """Checks the version of a daemon, the age of its latest snapshot, and its warnings."""
    named = version or "of an unknown version"
    if age_seconds > max(_LATE_SECONDS, _LATE_INTERVALS * interval_seconds):
        yield problem(f"the latest snapshot of neurond is {duration_text(age_seconds)} old", "see its log; restart it")
    elif version != __version__:
        yield note(
            f"neurond is {named}, this is neurontools {__version__}", "restart neurond after an update, or update it"
        )
    else:
        yield ok(f"neurond {named}, a snapshot every {interval_seconds:g} s")
    for warning in warnings:
        yield note(warning, "see the log of neurond")


_PREFIXES = ("NEURON", "XLA_", "PJRT_", "TORCH_NEURON")
_MOST_VARIABLES = 100
KNOWN_VARIABLES = (
    VISIBLE_CORES,
    NUM_CORES,
    LNC,
    LNC_ALIAS,
    PROCESS_TAG,
    "NEURON_CC_FLAGS",
    "NEURON_COMPILE_CACHE_URL",
    "NEURON_FAIL_ON_NAN",
    "NEURON_RT_EXEC_TIMEOUT",
    "NEURON_RT_LOG_LEVEL",
    "NEURON_RT_LOG_LOCATION",
    "NEURON_RT_ROOT_COMM_ID",
    "NEURON_RT_STOCHASTIC_ROUNDING_EN",
    "NEURON_RT_INSPECT_ENABLE",
    "NEURONTOOLS_SOCKET",
    "NEURONTOOLS_SIMULATE",
)


def examine_host_environment(place: CheckContext) -> Iterator[CheckResult]:
    """Checks the kernel, the container and the kernel log."""
    system = os.uname()
    container = " in a container" if is_container(place) else ""
    kernel = f"{system.sysname} {system.release} {system.machine}"
    yield ok(f"{kernel}{container}, user {'root' if os.geteuid() == 0 else os.geteuid()}")
    kernel_log = f"{place.roots.dev}/kmsg"
    if os.access(kernel_log, os.R_OK):
        yield ok(f"{kernel_log} is readable: neurond sees device errors in the kernel log")
    elif place.roots.has_devices:
        yield note(
            f"this user can't read {kernel_log}; if neurond can't either, it misses NEURON_HW_ERR",
            "run neurond with the shipped systemd unit, or give it CAP_SYSLOG and access to the file",
        )


def is_container(place: CheckContext) -> bool:
    """Returns whether marker files or the variable `container` show that this process runs in a container."""
    marks = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io")
    return any(map(os.path.exists, marks)) or "container" in place.environment


def relevant_variables(place: CheckContext) -> list[tuple[str, str]]:
    """Returns the names and values of the relevant environment variables, sorted, with secrets hidden."""
    from neurontools.util.process_text import shown_value

    found = sorted(name for name in place.environment if name.startswith(_PREFIXES))[:_MOST_VARIABLES]
    return [(name, shown_value(name, place.environment[name])) for name in found]


def examine_variables(place: CheckContext) -> Iterator[CheckResult]:
    from difflib import get_close_matches

    from neurontools.driver.neuron_runtime import CoreRequest

    for name, value in relevant_variables(place):
        near = get_close_matches(name, KNOWN_VARIABLES, n=1, cutoff=0.9)
        if name not in KNOWN_VARIABLES and near:
            yield problem(f"{name} is set, but no program reads it", f"did you mean {near[0]}?")
        else:
            yield ok(f"{name}={value[:200]}")
    try:
        logical_neuroncore_config(place.environment)
        CoreRequest.from_environment(place.environment)
    except InvalidCoreRequest as error:
        yield problem(str(error))
