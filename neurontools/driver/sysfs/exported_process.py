"""The files of one process in a copy of /proc that we write: enough to find out who has which device open."""

from __future__ import annotations

import os

from neurontools.driver.nrt.environment import LNC, PROCESS_TAG, VISIBLE_CORES
from neurontools.driver.sysfs.found_process import SYNTHETIC
from neurontools.driver.sysfs.tree_writer import TreeWriter
from neurontools.model import Process

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_FIRST_DESCRIPTOR = 3


class ExportedProcess:
    """One process's directory, with links from its descriptors to the device files."""

    def __init__(self, writer: TreeWriter, proc: str, process: Process) -> None:
        self._writer = writer
        self._directory = f"{proc}/{process.pid}"
        self._write_identity(process)

    def update(self, process: Process, boot_unix_seconds: float) -> None:
        """Brings the files up to this state."""
        for position, index in enumerate(process.device_indices):
            self._writer.link(f"{self._directory}/fd/{_FIRST_DESCRIPTOR + position}", f"/dev/neuron{index}")
        started = max(0.0, (process.started_at_unix_seconds or boot_unix_seconds) - boot_unix_seconds)
        fields = ["0"] * 49
        fields[0] = "S"
        fields[11] = str(round((process.cpu_user_seconds_total or 0.0) * _TICKS_PER_SECOND))
        fields[12] = str(round((process.cpu_system_seconds_total or 0.0) * _TICKS_PER_SECOND))
        fields[19] = str(round(started * _TICKS_PER_SECOND))
        fields[21] = str((process.resident_bytes or 0) // _PAGE_BYTES)
        self._writer.write(f"{self._directory}/stat", f"{process.pid} (process) {' '.join(fields)}\n", 0o444)

    def close(self) -> None:
        """Removes the process."""
        self._writer.remove(self._directory)

    def _write_identity(self, process: Process) -> None:
        environment = {
            PROCESS_TAG: process.tag,
            LNC: str(process.logical_neuroncore_config),
        }
        if process.synthetic:
            environment[SYNTHETIC] = "1"
        if process.neuroncore_indices:
            cores = process.neuroncore_indices
            environment[VISIBLE_CORES] = f"{cores[0]}-{cores[-1]}"
        variables = "".join(f"{name}={_clean(value)}\0" for name, value in environment.items())
        library = (
            f"7f0000000000-7f0000400000 r-xp 00000000 00:00 0 /opt/aws/neuron/lib/libnrt.so.{process.runtime_version}\n"
        )
        write, directory, uid = self._writer.write, self._directory, process.uid if process.uid is not None else 0
        write(
            f"{directory}/cmdline", _clean(process.command).replace(" ", "\0") + "\0" if process.command else "", 0o444
        )
        write(f"{directory}/environ", variables, 0o400)
        write(f"{directory}/maps", library if process.runtime_version is not None else "", 0o444)
        write(f"{directory}/status", f"Name:\tprocess\nPid:\t{process.pid}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n", 0o444)


def _clean(text: str) -> str:
    return text.replace("\0", " ").encode("utf-8", "replace").decode()
