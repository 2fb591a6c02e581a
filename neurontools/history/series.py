"""The numbers of the recent past that curves are drawn from, a sample for each snapshot."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan

from neurontools.rpc import neuron_pb2

TREND_STEP_SECONDS = 5.0
_MOST_CORES = 4096
_MOST_STEPS = 100  # more than any sparkline has cells


@dataclass(frozen=True, slots=True)
class Sample:
    """The numbers of one snapshot, by index of the physical core and by process; NaN is unknown."""

    at_seconds: float  # where its moment is in the timeline
    utilization_ratio: array[float]
    flops_per_second: array[float]
    memory_bytes: array[float]
    owners: tuple[int, ...]  # PID by core, 0 for none
    executions_per_second: dict[int, float]  # by PID
    latency_p99_seconds: dict[int, float]  # by PID, total latency


def sample_of(snapshot: neuron_pb2.Snapshot, at_seconds: float) -> Sample:
    """The numbers of a snapshot as the API has it."""
    cores: Sequence[neuron_pb2.NeuronCore | None] = snapshot.cores
    if cores and snapshot.cores[-1].index != len(cores) - 1:  # devices are missing in between
        present = {core.index: core for core in snapshot.cores if core.index < _MOST_CORES}
        cores = [present.get(index) for index in range(1 + max(present, default=-1))]
    memory = array("f", (_memory_bytes(core) for core in cores))
    processes = snapshot.processes
    return Sample(
        at_seconds,
        array("f", (core.utilization_ratio if core and core.HasField("utilization_ratio") else nan for core in cores)),
        array("f", (core.flops_per_second if core and core.HasField("flops_per_second") else nan for core in cores)),
        memory,
        tuple(core.owner_pid if core else 0 for core in cores),
        {p.pid: p.executions_per_second for p in processes if p.HasField("executions_per_second")},
        {p.pid: p.total_latency.p99_seconds for p in processes if p.HasField("total_latency")},
    )


def _memory_bytes(core: neuron_pb2.NeuronCore | None) -> float:
    known = core.memory.ListFields() if core else ()
    return sum(size for _, size in known) if known else nan


class Trend:
    """The highest utilization of each core in every step of the clock; kept up as samples come.

    Steps begin at multiples of TREND_STEP_SECONDS, so that a curve moves on once a step and not with every sample.
    """

    def __init__(self) -> None:
        self.steps: dict[int, list[float | None]] = {}
        self.latest = 0

    def add(self, sample: Sample) -> None:
        """Take a sample; any order."""
        number = int(sample.at_seconds // TREND_STEP_SECONDS)
        step = self.steps.get(number)
        values = [None if value != value else value for value in sample.utilization_ratio]  # NaN is not itself
        if step is None or len(step) != len(values):
            self.steps[number] = values
            self.latest = max(self.latest, number)
            if len(self.steps) > _MOST_STEPS:
                for old in sorted(self.steps)[: len(self.steps) - _MOST_STEPS]:
                    del self.steps[old]
            return
        for index, value in enumerate(values):
            if value is not None:
                highest = step[index]
                if highest is None or value > highest:
                    step[index] = value


class Series:
    """Samples up to the moment that is shown, oldest first."""

    def __init__(self, samples: Sequence[Sample], trend: Trend | None = None) -> None:
        self.samples = samples
        self.trend = trend  # of these samples and no later ones

    def core_utilization(self, first: int, count: int, length: int) -> list[float | None]:
        """The mean utilization of `count` cores from `first` on, for the last `length` samples."""
        return [_mean(sample.utilization_ratio[first : first + count]) for sample in self.samples[-length:]]

    def core_trend(self, first: int, count: int, length: int) -> list[float | None]:
        """The mean over `count` cores of each one's highest utilization in the last `length` steps of the trend."""
        trend = self._trend()
        if not trend.steps:
            return []
        found: list[float | None] = []
        for number in range(trend.latest - length + 1, trend.latest + 1):
            step = trend.steps.get(number)
            if step is None or first + count > len(step):
                found.append(None)
            else:
                found.append(step[first] if count == 1 else _mean_known(step[first : first + count]))
        return found

    def _trend(self) -> Trend:
        """That of the latest moment was kept; for the past it is made of the samples."""
        if self.trend is None:
            self.trend = Trend()
            for sample in self.samples:
                self.trend.add(sample)
        return self.trend

    def core_memory(self, first: int, count: int, length: int) -> list[float | None]:
        """Device memory in use by these cores, bytes."""
        return [_sum(sample.memory_bytes[first : first + count]) for sample in self.samples[-length:]]

    def core_flops(self, first: int, count: int, length: int) -> list[float | None]:
        """FLOPS of these cores."""
        return [_sum(sample.flops_per_second[first : first + count]) for sample in self.samples[-length:]]

    def total_utilization(self, length: int) -> list[float | None]:
        """The mean utilization of all cores whose utilization is known."""
        return [_host_mean(sample) for sample in self.samples[-length:]]

    def total_memory(self, length: int) -> list[float | None]:
        """Device memory in use on the host, bytes."""
        return [_sum(sample.memory_bytes) for sample in self.samples[-length:]]

    def total_executions(self, length: int) -> list[float | None]:
        """Finished executions a second on the host."""
        return [
            sum(sample.executions_per_second.values()) if sample.executions_per_second else None
            for sample in self.samples[-length:]
        ]

    def process_utilization(self, pid: int, length: int) -> list[float | None]:
        """The mean utilization of the cores that a process held."""
        return [_mean(_of_owner(sample, sample.utilization_ratio, pid)) for sample in self.samples[-length:]]

    def process_memory(self, pid: int, length: int) -> list[float | None]:
        """Device memory of the cores that a process held, bytes; None when it held none."""
        return [_sum(_of_owner(sample, sample.memory_bytes, pid)) for sample in self.samples[-length:]]

    def process_flops(self, pid: int, length: int) -> list[float | None]:
        """FLOPS of a process."""
        return [_sum(_of_owner(sample, sample.flops_per_second, pid)) for sample in self.samples[-length:]]

    def process_executions(self, pid: int, length: int) -> list[float | None]:
        """Finished executions a second of a process."""
        return [sample.executions_per_second.get(pid) for sample in self.samples[-length:]]

    def process_latency(self, pid: int, length: int) -> list[float | None]:
        """The 99th percentile of its total latency, seconds."""
        return [sample.latency_p99_seconds.get(pid) for sample in self.samples[-length:]]

    def count_within(self, seconds: float) -> int:
        """How many of the latest samples lie within so many seconds."""
        if not self.samples:
            return 0
        since = self.samples[-1].at_seconds - seconds
        count = 0
        for sample in reversed(self.samples):
            if sample.at_seconds < since:
                break
            count += 1
        return count


def _of_owner(sample: Sample, values: array[float], pid: int) -> list[float]:
    return [value for value, owner in zip(values, sample.owners, strict=True) if owner == pid]


def _mean(values: Sequence[float]) -> float | None:
    if len(values) == 1:
        return None if isnan(values[0]) else values[0]
    known = [value for value in values if not isnan(value)]
    return sum(known) / len(known) if known else None


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sum(values: Sequence[float]) -> float | None:
    known = [value for value in values if not isnan(value)]
    return sum(known) if known else None


def _host_mean(sample: Sample) -> float | None:
    known = [value for value in sample.utilization_ratio if not isnan(value)]
    return sum(known) / len(known) if known else None
