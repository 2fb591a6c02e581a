"""The devices of this host and who has them open, read at once: what `neuron-ls` needs where no daemon runs."""

from __future__ import annotations

import time

from neurontools.model import Snapshot, SourceKind
from neurontools.sysfs.found_process import FoundProcess, cores_held
from neurontools.sysfs.inventory import read_inventory
from neurontools.sysfs.owners import OpenDevices, hidden_warning, scan
from neurontools.sysfs.process_files import boot_unix_seconds
from neurontools.sysfs.roots import Roots


def read_host(roots: Roots | None = None) -> Snapshot | None:
    """A snapshot without cores, which take counters to say anything about; None where there are no devices.

    UserError for a tree that this version can't make sense of.
    """
    roots = roots or Roots()
    inventory = read_inventory(roots)
    if inventory is None:
        return None
    instance = inventory.instance
    owners, hidden = scan(roots, inventory.directories)
    found = [(FoundProcess(roots.proc, devices.pid), devices) for devices in owners]
    boot = boot_unix_seconds(roots.proc) if found else None
    shared = shared_devices(found)
    processes = tuple(
        process.record(
            devices,
            cores_held(
                process,
                devices.device_indices,
                shared,
                instance.physical_cores_per_device,
                instance.logical_neuroncore_config,
            ),
            instance.logical_neuroncore_config,
            boot,
            process.times(),
        )
        for process, devices in found
    )
    return Snapshot(
        sequence=0,
        taken_at_unix_seconds=time.time(),
        taken_at_seconds=time.monotonic(),
        interval_seconds=0.0,
        source=SourceKind.SYSFS,
        instance=instance,
        devices=inventory.devices,
        cores=(),
        processes=processes,
        warnings=(*inventory.warnings, *((hidden_warning(hidden),) if hidden else ())),
    )


def shared_devices(found: list[tuple[FoundProcess, OpenDevices]]) -> set[int]:
    """The devices that more than one process with the runtime has open."""
    seen: set[int] = set()
    shared: set[int] = set()
    for process, devices in found:
        if process.uses_runtime:
            shared |= seen & set(devices.device_indices)
            seen |= set(devices.device_indices)
    return shared
