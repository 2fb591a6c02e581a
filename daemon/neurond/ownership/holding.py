"""What the ledger knows of one attached process."""

from __future__ import annotations

from dataclasses import dataclass, field

from neurond.ownership.shape import Shape
from neurontools import model


@dataclass(frozen=True, slots=True)
class CoreReport:
    """What a process measured on one of its logical cores, in the count of its process."""

    busy_seconds_total: float = 0.0
    flop_total: int = 0
    executions_total: int = 0
    memory: model.DeviceMemory = model.DeviceMemory()
    execution_started_at_unix_seconds: float | None = None
    last_execution_at_unix_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """One report of a process, checked; `cores` by process-local index. Subgraphs name process-local cores."""

    measured_at_seconds: float
    cores: dict[int, CoreReport]
    models: tuple[model.LoadedModel, ...] = ()
    host_memory: model.HostMemory = model.HostMemory()
    executions: model.ExecutionCounters = model.ExecutionCounters()
    errors: model.ErrorCounters = model.ErrorCounters()
    total_latency_histogram: model.LatencyHistogram = model.LatencyHistogram()
    device_latency_histogram: model.LatencyHistogram = model.LatencyHistogram()
    training: model.TrainingCounters | None = None
    counted_since_seconds: float | None = None  # CLOCK_MONOTONIC; None: the process does not tell
    operators: tuple[model.OperatorTime, ...] = ()
    advice: tuple[model.ScriptAdvice, ...] = ()


@dataclass(slots=True)
class Holding:
    """One attached process: who it is, the logical cores it holds, and its latest report.

    Without cores it is an observer. The range of logical cores is under its own LNC.
    """

    token: str
    pid: int
    uid: int | None
    attached_at_unix_seconds: float
    lnc: int
    synthetic: bool = False
    first: int = 0
    count: int = 0
    tag: str = ""
    runtime_version: str | None = None
    report: Report | None = None
    cores: dict[int, CoreReport] = field(default_factory=dict)  # latest by local index
    counted_before: dict[int, CoreReport] = field(default_factory=dict)
    """By local index: what a process that is older than the ledger had counted on a core when it first told."""
    peak_device_memory_bytes: int | None = None  # the most that it reported at once; None before it did

    @property
    def logical_cores(self) -> range:
        """The global logical cores it holds; empty for an observer."""
        return range(self.first, self.first + self.count)

    def physical_cores(self) -> range:
        """The global physical cores it holds; empty for an observer."""
        return range(self.first * self.lnc, (self.first + self.count) * self.lnc)

    def devices(self, shape: Shape) -> tuple[int, ...]:
        """The devices of its cores; all devices for an observer, which watches the whole host."""
        if not self.count:
            return tuple(range(shape.device_count))
        return tuple(dict.fromkeys(shape.device_of(core) for core in self.physical_cores()))

    def memory_of(self, core_index: int) -> model.DeviceMemory:
        """Its memory on one of its physical cores: an equal share of what it reported of the logical core.

        Unknown in every category before it has reported of that core.
        """
        local, position = divmod(core_index - self.first * self.lnc, self.lnc)
        report = self.cores.get(local)
        if report is None:
            return _UNKNOWN
        return report.memory if self.lnc == 1 else share(report.memory, position, self.lnc)


_UNKNOWN = model.DeviceMemory(*[None] * len(model.DeviceMemory.__slots__))


def share(memory: model.DeviceMemory, position: int, parts: int) -> model.DeviceMemory:
    """One of `parts` equal parts of a memory, the remainder in the first; together they are the whole."""
    shares: dict[str, int | None] = {}
    for name, size_bytes in model.memory_categories(memory).items():
        if size_bytes is None:
            shares[name] = None
        else:
            each, rest = divmod(size_bytes, parts)
            shares[name] = each + (rest if position == 0 else 0)
    return model.DeviceMemory(**shares)
