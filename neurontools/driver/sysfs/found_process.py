"""A process that has Neuron devices open, as the snapshot shows it: all of it read from /proc."""

from __future__ import annotations

from neurontools.driver.nrt.core_request import CoreRequest
from neurontools.driver.nrt.environment import PROCESS_TAG, InvalidCoreRequest, logical_neuroncore_config
from neurontools.driver.sysfs.file_table import HOST_MEMORY
from neurontools.driver.sysfs.owners import OpenDevices
from neurontools.driver.sysfs.process_files import ProcessFiles, Times
from neurontools.model import HostMemory, Process

SYNTHETIC = "NEURONTOOLS_SYNTHETIC"  # set in the copies of /proc that we write, for processes that a load invented
_MAX_TAG_CHARACTERS = 255
_UNKNOWN_HOST_MEMORY = HostMemory(**{f"{category}_bytes": None for category in HOST_MEMORY})


class FoundProcess:
    """One process. What never changes is read once, here; `record` reads the rest.

    A process without the Neuron runtime, such as a monitor, is an observer and holds no cores.
    """

    __slots__ = ("_command", "_files", "_runtime_version", "_started_ticks", "_uid", "_user", "environment", "pid")

    def __init__(self, proc: str, pid: int) -> None:
        self.pid = pid
        self._files = ProcessFiles(proc, pid)
        times = self._files.times()
        self._started_ticks = None if times is None else times.started_at_ticks
        self._uid = self._files.uid()
        self._user = user_name(self._uid)
        self._command = self._files.command()
        self._runtime_version = self._files.runtime_version()
        self.environment = self._files.environment()

    @property
    def uses_runtime(self) -> bool:
        """Whether it has loaded the Neuron runtime."""
        return self._runtime_version is not None

    @property
    def logical_neuroncore_config(self) -> int | None:
        """The LNC its environment sets; None when it sets none or can't be read."""
        try:
            return logical_neuroncore_config(self.environment or {})
        except InvalidCoreRequest:
            return None

    def visible_cores(self) -> range | None:
        """The logical cores that NEURON_RT_VISIBLE_CORES names; None when it doesn't, or can't be read."""
        try:
            request = CoreRequest.from_environment(self.environment or {})
        except InvalidCoreRequest:
            return None
        if request.first is None or request.count is None:
            return None
        return range(request.first, request.first + request.count)

    def times(self) -> Times | None:
        """Its times now; None when it has ended, also when another process has its PID by now."""
        times = self._files.times()
        return times if times is not None and times.started_at_ticks == self._started_ticks else None

    def reread(self) -> None:
        """Reads again what a process may change in its first moments: its program and the libraries it has loaded."""
        if not self.uses_runtime:
            self._runtime_version = self._files.runtime_version()
            self._command = self._files.command() or self._command
            self.environment = self._files.environment()

    def record(
        self,
        devices: OpenDevices,
        cores: tuple[int, ...],
        is_inferred: bool,
        lnc: int,
        boot_unix_seconds: float | None,
        times: Times | None,
    ) -> Process:
        """The process of the snapshot. `cores`: the physical cores it holds, `is_inferred`: which was concluded."""
        tag = (self.environment or {}).get(PROCESS_TAG, "")[:_MAX_TAG_CHARACTERS]
        started = None
        if times is not None and boot_unix_seconds is not None:
            started = boot_unix_seconds + times.started_after_boot_seconds
        own_lnc = self.logical_neuroncore_config or lnc
        return Process(
            pid=self.pid,
            uid=self._uid,
            user=self._user,
            command=self._command,
            tag=tag or str(self.pid),
            runtime_version=self._runtime_version,
            started_at_unix_seconds=started,
            attached_at_unix_seconds=None,
            synthetic=bool((self.environment or {}).get(SYNTHETIC)),
            logical_neuroncore_config=own_lnc,
            core_indices=cores,
            neuroncore_indices=tuple(dict.fromkeys(core // own_lnc for core in cores)),
            device_indices=devices.device_indices,
            host_memory=_UNKNOWN_HOST_MEMORY,
            resident_bytes=None if times is None else times.resident_bytes,
            cpu_user_seconds_total=None if times is None else times.cpu_user_seconds,
            cpu_system_seconds_total=None if times is None else times.cpu_system_seconds,
            # The driver counts by core; whoever can tell whose they are adds them.
            executions=None,
            errors=None,
            reporting=True,
            inferred_fields=("core_indices",) if is_inferred else (),
        )


def user_name(uid: int | None) -> str | None:
    """The name of a user, its number as text when it has no name here."""
    if uid is None:
        return None
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)
