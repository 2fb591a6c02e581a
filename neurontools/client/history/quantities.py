"""What can be drawn over time: a number of each sample, of some cores, a process or the whole host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neurontools.client.history.samples import Sample


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of each sample. Equal ones are the same, so that what was gathered of one is found again.

    `first_core` and `core_count` choose physical cores, `pid` a process; without either it is of the whole host.
    A level (memory) is drawn by its highest value in a stretch of time, a rate by its mean.
    """

    name: str
    is_level: bool
    first_core: int = 0
    core_count: int = 0
    pid: int | None = None

    def of(self, sample: Sample) -> float | None:
        """The number of a sample; None is unknown."""
        return _READ[self.name](self, sample)


def utilization(*, first_core: int = 0, core_count: int = 0, pid: int | None = None) -> Quantity:
    """The mean utilization of cores, 0 to 1."""
    return Quantity("utilization", False, first_core, core_count, pid)


def memory(*, first_core: int = 0, core_count: int = 0, pid: int | None = None) -> Quantity:
    """Device memory in use by cores, bytes."""
    return Quantity("memory", True, first_core, core_count, pid)


def flops(*, first_core: int = 0, core_count: int = 0, pid: int | None = None) -> Quantity:
    """FLOPS of cores."""
    return Quantity("flops", False, first_core, core_count, pid)


def executions(*, pid: int | None = None) -> Quantity:
    """Finished executions a second."""
    return Quantity("executions", False, pid=pid)


def latency_p99(pid: int) -> Quantity:
    """The 99th percentile of a process's total latency, seconds."""
    return Quantity("latency_p99", True, pid=pid)


def _chosen(quantity: Quantity, sample: Sample, values: Sequence[float]) -> Sequence[float]:
    """The known values of the cores that a quantity is of: of a process those that it held."""
    if quantity.pid is not None:
        pid = quantity.pid
        return [value for value, owner in zip(values, sample.owners, strict=True) if owner == pid and value == value]
    if quantity.core_count == 1:
        found = values[quantity.first_core : quantity.first_core + 1]
        return found if found and found[0] == found[0] else ()
    if quantity.core_count:
        values = values[quantity.first_core : quantity.first_core + quantity.core_count]
    return [value for value in values if value == value]  # NaN is not itself


def _mean_utilization(quantity: Quantity, sample: Sample) -> float | None:
    known = _chosen(quantity, sample, sample.utilization_ratio)
    return sum(known) / len(known) if known else None


def _sum_of_memory(quantity: Quantity, sample: Sample) -> float | None:
    known = _chosen(quantity, sample, sample.memory_bytes)
    return sum(known) if known else None


def _sum_of_flops(quantity: Quantity, sample: Sample) -> float | None:
    known = _chosen(quantity, sample, sample.flops_per_second)
    return sum(known) if known else None


def _executions(quantity: Quantity, sample: Sample) -> float | None:
    if quantity.pid is not None:
        return _of_process(quantity.pid, sample, sample.executions_per_second)
    known = [value for value in sample.executions_per_second if value == value]
    return sum(known) if known else None


def _latency_p99(quantity: Quantity, sample: Sample) -> float | None:
    return None if quantity.pid is None else _of_process(quantity.pid, sample, sample.latency_p99_seconds)


def _of_process(pid: int, sample: Sample, values: Sequence[float]) -> float | None:
    if pid not in sample.pids:
        return None
    value = values[sample.pids.index(pid)]
    return value if value == value else None


_READ: dict[str, Callable[[Quantity, Sample], float | None]] = {
    "utilization": _mean_utilization,
    "memory": _sum_of_memory,
    "flops": _sum_of_flops,
    "executions": _executions,
    "latency_p99": _latency_p99,
}
