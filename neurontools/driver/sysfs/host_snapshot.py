"""The devices of this host and who has them open, read at once: what `neuron-ls` needs where no daemon runs."""

from __future__ import annotations

import time

from neurontools.driver.sysfs.inventory import read_inventory
from neurontools.driver.sysfs.owners import OpenDevices, hidden_warning, scan
from neurontools.driver.sysfs.process_files import ProcessFiles
from neurontools.driver.sysfs.roots import Roots
from neurontools.model import Process, Snapshot, SourceKind


def read_host(roots: Roots | None = None) -> Snapshot | None:
    """A snapshot of what a list of the devices shows; None where there are no devices.

    It has no cores, which take counters to say anything about, and of processes their command and runtime alone.
    UserError for a tree that this version can't make sense of.
    """
    roots = roots or Roots()
    inventory = read_inventory(roots, is_brief=True)
    if inventory is None:
        return None
    owners, hidden = scan(roots, inventory.directories)
    return Snapshot(
        sequence=0,
        taken_at_unix_seconds=time.time(),
        taken_at_seconds=time.monotonic(),
        interval_seconds=0.0,
        source=SourceKind.SYSFS,
        instance=inventory.instance,
        devices=inventory.devices,
        cores=(),
        processes=tuple(
            _process(roots.proc, devices, inventory.instance.logical_neuroncore_config) for devices in owners
        ),
        warnings=(*inventory.warnings, *((hidden_warning(hidden),) if hidden else ())),
    )


def _process(proc: str, devices: OpenDevices, lnc: int) -> Process:
    files = ProcessFiles(proc, devices.pid)
    return Process(
        pid=devices.pid,
        uid=None,
        user=None,
        command=files.command(),
        tag=str(devices.pid),
        runtime_version=files.runtime_version(),
        started_at_unix_seconds=None,
        attached_at_unix_seconds=None,
        synthetic=False,
        logical_neuroncore_config=lnc,
        device_indices=devices.device_indices,
        executions=None,
        errors=None,
    )
