"""One physical NeuronCore."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model.brief import showing
from neurontools.model.execution import StatusCounters
from neurontools.model.memory import DeviceMemory


@dataclass(frozen=True, slots=True)
class NeuronCore:
    """One physical NeuronCore: who holds it, how busy it is, what lies in its memory.

    Counters belong to the core and run on from one owner to the next, since `Snapshot.cores_counted_since_seconds`.
    Rates and ratios are derived by the daemon; they are None before two measurements of the same owner, and when the
    owner has stopped reporting.
    """

    index: int  # on the host, physical: device_index * cores per device + index_on_device
    device_index: int
    index_on_device: int  # position in the logical order of the device
    hbm_stack_index: int  # on its device; physical cores may share a stack
    owner_pid: int | None = None  # None: nobody is known to hold it; where devices are simulated, it is free
    busy_seconds_total: float | None = None  # time in executions, those still running included
    flop_total: int | None = None  # floating point operations executed
    executions_total: int | None = None  # finished executions, whatever their outcome
    memory: DeviceMemory = DeviceMemory()
    measured_at_seconds: float | None = None  # CLOCK_MONOTONIC of the host, when the counters were taken
    execution_started_at_unix_seconds: float | None = None  # of the execution in flight; None when there is none
    last_execution_at_unix_seconds: float | None = None  # end of the latest finished execution
    utilization_ratio: float | None = None  # share of the last period spent in executions
    flops_per_second: float | None = None
    status: StatusCounters | None = None  # of a driver; None where the devices are simulated
    candidate_pids: tuple[int, ...] = ()  # without an owner: who has its device open and may hold it
    inferred_fields: tuple[str, ...] = ()  # as in Device; owner_pid where the device is open and the core not named
    reset_requests_total: int | None = None  # since the driver was loaded, which counts them
    reset_failures_total: int | None = None

    __repr__ = showing("index", "device_index", "owner_pid", "utilization_ratio")

    @property
    def is_allocated(self) -> bool:
        """Whether somebody has memory on it, beyond what the driver itself needs."""
        return (self.memory.total_bytes or 0) > (self.memory.driver_memory_bytes or 0)
