"""The devices of this host and who has them open, read at once: what `neuron-ls` needs where no daemon runs."""

from __future__ import annotations

import time

from neurontools.model import Snapshot, SourceKind
from neurontools.sysfs.core_holding import CoreHolding
from neurontools.sysfs.found_process import FoundProcess
from neurontools.sysfs.inventory import read_inventory
from neurontools.sysfs.owners import hidden_warning, scan
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
    lnc = instance.logical_neuroncore_config
    holding = CoreHolding(found, instance.physical_cores_per_device, lnc)
    processes = tuple(process.record(devices, holding, lnc, boot, process.times()) for process, devices in found)
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
