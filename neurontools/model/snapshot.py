"""The whole state of one host at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from neurontools.model.attribution import PodAllocation
from neurontools.model.brief import time_text
from neurontools.model.device import Device
from neurontools.model.ended import EndedProcess
from neurontools.model.finding import Health
from neurontools.model.host import Host
from neurontools.model.injected_fault import InjectedFault
from neurontools.model.instance import Instance
from neurontools.model.neuroncore import NeuronCore
from neurontools.model.process import Process


class SourceKind(StrEnum):
    """Where the state of the devices comes from."""

    SIMULATED = "simulated"
    SYSFS = "sysfs"


LATEST_UNIX_SECONDS = 2.0**37
"""No clock is right beyond it, and no calendar shows it: the year 6325."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of one host at one moment; complete, and never changed once made."""

    sequence: int  # grows by one with each snapshot of a daemon
    taken_at_unix_seconds: float
    taken_at_seconds: float  # CLOCK_MONOTONIC of the host
    interval_seconds: float  # the daemon's sampling interval
    source: SourceKind
    instance: Instance
    devices: tuple[Device, ...]
    cores: tuple[NeuronCore, ...]  # physical, by index
    processes: tuple[Process, ...]  # by PID
    host: Host = Host()
    pod_allocations: tuple[PodAllocation, ...] = ()  # by the kubelet; empty where there is none
    warnings: tuple[str, ...] = ()  # what could not be read, in words
    synthetic_load: str | None = None  # the scenario that invents processes, if one runs
    daemon_version: str = ""
    daemon_pid: int = 0
    cores_counted_since_seconds: float | None = None
    """CLOCK_MONOTONIC since when the counters of cores count: where devices are simulated, since the daemon began.
    None: since the driver was loaded, which counts them.
    """
    health: Health | None = None  # None: nobody has judged it, which is not the same as well
    ended: tuple[EndedProcess, ...] = ()  # within the last minute, oldest first; the daemon knows more
    daemon_cpu_seconds_total: float | None = None  # of the daemon itself
    daemon_vcpu_ratio: float | None = None  # of the last period; 1.0 is one vCPU busy
    daemon_resident_bytes: int | None = None
    injected_faults: tuple[InjectedFault, ...] = ()  # into simulated devices, by number; none that was healed

    def __repr__(self) -> str:
        parts = [
            f"{count} {noun}"
            for count, noun in (
                (len(self.devices), "devices"),
                (len(self.cores), "NeuronCores"),
                (len(self.processes), "processes"),
                (len(self.warnings), "warnings"),
            )
            if count or noun != "warnings"
        ]
        what = f"Snapshot {self.sequence} of {self.instance.instance_type!r}, {self.source}"
        return f"<{what}, {time_text(self.taken_at_unix_seconds)}: {', '.join(parts)}>"

    def core(self, index: int) -> NeuronCore | None:
        """The physical core of this index; None when it is not there, as on a device that vanished."""
        cores = self.cores
        if 0 <= index < len(cores) and cores[index].index == index:
            return cores[index]
        return next((core for core in cores if core.index == index), None)

    def cores_of(self, process: Process) -> tuple[NeuronCore, ...]:
        """The physical cores that a process holds, those that are there."""
        return tuple([core for index in process.core_indices if (core := self.core(index)) is not None])
