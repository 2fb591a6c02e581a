"""The tree of the Neuron driver (sysfs, /proc, /dev), in which the test sets every value."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from neurontools.driver.environment import DEV_ROOT, PROC_ROOT, SYSFS_ROOT, Roots
from neurontools.driver.tree_export import DRIVER_VERSION, ExportedTree
from neurontools.model import NeuronCore, Process, Snapshot
from neurontools.testing.idle_host import idle_host


def temporary_directory() -> tempfile.TemporaryDirectory[str]:
    """Creates a temporary directory, in memory if possible, because a tree has up to 14,000 small files."""
    memory = "/dev/shm"  # noqa: S108 - mkdtemp makes a private directory in it
    writable = os.access(memory, os.W_OK | os.X_OK) and "TMPDIR" not in os.environ
    return tempfile.TemporaryDirectory(prefix="neuron-driver-", dir=memory if writable else None)


class DriverTree:
    """A directory with `sys`, `proc` and `dev` as on an idle host of this instance type.

    A context manager, which removes the directory at its end. Not thread-safe. `driver_version` decides which files
    exist, their modes, and whether the runtime's counters change while a process runs (2.30 and later).
    """

    def __init__(
        self,
        instance_type: str,
        *,
        directory: str | None = None,
        driver_version: str = DRIVER_VERSION,
        logical_neuroncore_config: int | None = None,
    ) -> None:
        self.snapshot: Snapshot = idle_host(instance_type, logical_neuroncore_config)
        self._temporary = temporary_directory() if directory is None else None
        try:
            place = directory or str(Path(self._temporary.name if self._temporary else "") / "host")
            self._tree = ExportedTree(place, self.snapshot, driver_version)
        except BaseException:
            if self._temporary is not None:
                self._temporary.cleanup()
            raise

    @property
    def directory(self) -> str:
        """The path of the tree."""
        return self._tree.directory

    @property
    def roots(self) -> Roots:
        """The paths of `sys`, `proc` and `dev` in the tree, for readers in this process."""
        return self._tree.roots

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that make our commands read this tree."""
        roots = self.roots
        return {SYSFS_ROOT: roots.sys, PROC_ROOT: roots.proc, DEV_ROOT: roots.dev}

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags that make neurond read this tree."""
        roots = self.roots
        return "--sysfs-root", roots.sys, "--proc-root", roots.proc, "--dev-root", roots.dev

    def device_path(self, index: int) -> Path:
        """Returns the directory of a device in the tree."""
        return Path(self.roots.devices) / f"neuron{index}"

    def core_path(self, index: int) -> Path:
        """Returns the directory of a core. `index` counts the host's cores. The driver may number them differently."""
        core = self.snapshot.cores[index]
        physical = self._tree.physical_core(core.device_index, core.index_on_device)
        return self.device_path(core.device_index) / f"neuron_core{physical}"

    def show(self, snapshot: Snapshot) -> None:
        """Writes a snapshot of a host to the tree."""
        self.snapshot = snapshot
        self._tree.update(snapshot)

    def set_core(self, index: int, **changes: Any) -> None:
        """Changes fields of a core, such as `busy_seconds_total=1.5` or `memory=DeviceMemory(tensors_bytes=4096)`."""
        self.set_cores(lambda core: replace(core, **changes) if core.index == index else core)

    def set_cores(self, change: Callable[[NeuronCore], NeuronCore]) -> None:
        """Replaces every core by the result of `change`."""
        self.show(replace(self.snapshot, cores=tuple(map(change, self.snapshot.cores))))

    def set_device(self, index: int, **changes: Any) -> None:
        """Changes fields of a device, such as `ecc=EccCounters(mem_uncorrected_total=1)`."""
        devices = tuple(
            replace(device, **changes) if device.index == index else device for device in self.snapshot.devices
        )
        self.show(replace(self.snapshot, devices=devices))

    def remove_device(self, index: int) -> None:
        """Removes a device, as if it were unplugged."""
        devices = tuple(device for device in self.snapshot.devices if device.index != index)
        self.show(replace(self.snapshot, devices=devices))

    def set_processes(self, *processes: Process) -> None:
        """Sets the processes that have devices open. They become the owners of their cores."""
        per_device = self.snapshot.instance.physical_cores_per_device
        placed = tuple(
            replace(
                process,
                device_indices=tuple(
                    dict.fromkeys((*process.device_indices, *(core // per_device for core in process.core_indices)))
                ),
            )
            for process in processes
        )
        owner = {core: process.pid for process in placed for core in process.core_indices}
        cores = tuple(replace(core, owner_pid=owner.get(core.index)) for core in self.snapshot.cores)
        self.show(replace(self.snapshot, processes=placed, cores=cores))

    def write(self, path: str, text: str) -> None:
        """Replaces the contents of a file in the tree by any text, to test readers with wrong contents."""
        whole = Path(self.directory) / path
        staged = whole.with_name(f".{whole.name}")
        staged.write_text(text, "utf-8")
        staged.replace(whole)

    def close(self) -> None:
        """Removes the tree."""
        self._tree.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> DriverTree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
