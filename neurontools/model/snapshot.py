"""The whole state of one host at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from neurontools.model.attribution import PodAllocation
from neurontools.model.device import Device
from neurontools.model.host import Host
from neurontools.model.instance import Instance
from neurontools.model.neuroncore import NeuronCore
from neurontools.model.process import Process


class SourceKind(StrEnum):
    """Where the state of the devices comes from."""

    SIMULATED = "simulated"
    SYSFS = "sysfs"


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
