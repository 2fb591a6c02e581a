"""What is compared: the quantities of a host, a job and a device, how they are summed up over time, and their text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from neurontools.model import Device
from neurontools.model.health import Verdict
from neurontools.util import units
from neurontools.util.units import ranges_text
from neurontools.views.drawing.figures import Figures, ProcessFigures, total

Value = float | int | str | None


class Over(Enum):
    """What stands for several moments."""

    MEAN = "mean"
    PEAK = "peak"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity. `name` has the base unit in it; `text` shows a value to people. `is_count`: every change tells."""

    name: str
    title: str
    over: Over
    text: Callable[[Value], str]
    is_count: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    """The processes of a job at one moment."""

    processes: tuple[ProcessFigures, ...]


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device at one moment."""

    device: Device
    verdict: Verdict
    figures: Figures


def _text(format_: Callable[..., str]) -> Callable[[Value], str]:
    return lambda value: value if isinstance(value, str) else format_(value)


def _rate(value: float | None) -> str:
    return units.UNKNOWN if value is None else f"{value:.2f}/s"


def _count(value: float | None) -> str:
    return units.UNKNOWN if value is None else units.count_text(round(value))


def _bytes(value: float | None) -> str:
    return units.bytes_text(None if value is None else round(value))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


_PERCENT, _FLOPS = _text(units.percent_text), _text(units.flops_text)
_SECONDS, _SIZE = _text(units.duration_text), _text(_bytes)
_A_SECOND, _NUMBER = _text(_rate), _text(_count)

UTILIZATION = Quantity("utilization_ratio", "utilization", Over.MEAN, _PERCENT)
FLOPS = Quantity("flops_per_second", "FLOPS", Over.MEAN, _FLOPS)

OF_HOST: dict[Quantity, Callable[[Figures], Value]] = {
    UTILIZATION: lambda figures: figures.average_utilization(None),
    FLOPS: lambda figures: figures.flops(None),
    Quantity("free_neuroncores", "free NeuronCores", Over.MEAN, _NUMBER, is_count=True): lambda figures: sum(
        core.is_free is True for core in figures.cores
    ),
    Quantity("device_memory_bytes", "device memory", Over.PEAK, _SIZE): lambda figures: (
        figures.device_memory(None).total_bytes
    ),
    Quantity("host_memory_used_bytes", "host memory in use", Over.PEAK, _SIZE): lambda figures: (
        figures.snapshot.host.memory_used_bytes
    ),
    Quantity("warnings", "warnings", Over.LAST, _NUMBER, is_count=True): lambda figures: len(figures.snapshot.warnings),
}


def _cores(holder: Holder) -> str:
    return ranges_text(index for each in holder.processes for index in each.process.neuroncore_indices) or units.UNKNOWN


def _mfu(holder: Holder) -> float | None:
    """By the cores of each process, which are alike on one host."""
    weighed = [(each.mfu_ratio, each.core_count) for each in holder.processes if each.mfu_ratio is not None]
    cores = sum(count for _, count in weighed)
    return sum(ratio * count for ratio, count in weighed) / cores if cores else None


def _utilization(holder: Holder) -> float | None:
    weighed = [
        (each.utilization_ratio, each.core_count) for each in holder.processes if each.utilization_ratio is not None
    ]
    cores = sum(count for _, count in weighed)
    return sum(ratio * count for ratio, count in weighed) / cores if cores else None


def _steps(each: ProcessFigures) -> float | None:
    counters, rates = each.process.training, each.process.training_rates
    return rates.steps_per_second if counters is not None and counters.steps_total and rates is not None else None


def _waiting(each: ProcessFigures) -> float | None:
    rates = each.process.training_rates
    return rates.collective_ratio if rates is not None else None


def _latency(quantile: str) -> Callable[[Holder], Value]:
    def read(holder: Holder) -> Value:
        known = [each.process.total_latency for each in holder.processes]
        return _most(getattr(latency, f"{quantile}_seconds") for latency in known if latency is not None)

    return read


OF_JOB: dict[Quantity, Callable[[Holder], Value]] = {
    Quantity("process_count", "processes", Over.PEAK, _NUMBER, is_count=True): lambda holder: len(holder.processes),
    Quantity("neuroncores", "NeuronCores", Over.LAST, _text(str)): _cores,
    UTILIZATION: _utilization,
    FLOPS: lambda holder: total(each.flops_per_second for each in holder.processes),
    Quantity("mfu_ratio", "MFU", Over.MEAN, _PERCENT): _mfu,
    Quantity("steps_per_second", "steps", Over.MEAN, _A_SECOND): lambda holder: _mean(map(_steps, holder.processes)),
    Quantity("executions_per_second", "executions", Over.MEAN, _A_SECOND): lambda holder: total(
        each.process.executions_per_second for each in holder.processes
    ),
    Quantity("collective_ratio", "time in collectives", Over.MEAN, _PERCENT): lambda holder: _mean(
        map(_waiting, holder.processes)
    ),
    Quantity("latency_p50_seconds", "median latency", Over.MEAN, _SECONDS): _latency("p50"),
    Quantity("latency_p99_seconds", "99th percentile", Over.PEAK, _SECONDS): _latency("p99"),
    Quantity("device_memory_bytes", "device memory", Over.PEAK, _SIZE): lambda holder: total(
        each.device_memory_bytes for each in holder.processes
    ),
    Quantity("host_memory_bytes", "host memory", Over.PEAK, _SIZE): lambda holder: total(
        each.host_memory_bytes for each in holder.processes
    ),
    Quantity("errors_total", "errors", Over.LAST, _NUMBER, is_count=True): lambda holder: total(
        each.errors_total for each in holder.processes
    ),
    Quantity("executions_failed_total", "failed executions", Over.LAST, _NUMBER, is_count=True): lambda holder: total(
        each.failed_executions_total for each in holder.processes
    ),
}


def _place(state: DeviceState) -> int:
    return next(place for place, device in enumerate(state.figures.snapshot.devices) if device is state.device)


def _ecc(fields: Sequence[str]) -> Callable[[DeviceState], Value]:
    return lambda state: total(getattr(state.device.ecc, field) for field in fields)


OF_DEVICE: dict[Quantity, Callable[[DeviceState], Value]] = {
    Quantity("health", "health", Over.LAST, _text(lambda _: "unknown")): lambda state: state.verdict.severity_name,
    UTILIZATION: lambda state: state.figures.device_utilization[_place(state)],
    Quantity("memory_used_bytes", "memory in use", Over.PEAK, _SIZE): lambda state: state.figures.device_used_bytes[
        _place(state)
    ],
    Quantity("power_average_ratio", "power", Over.MEAN, _PERCENT): lambda state: (
        state.device.power.average_ratio if state.device.power is not None else None
    ),
    Quantity("ecc_uncorrected_total", "uncorrected ECC errors", Over.LAST, _NUMBER, is_count=True): _ecc(
        ("mem_uncorrected_total", "sram_uncorrected_total")
    ),
    Quantity("ecc_corrected_total", "corrected ECC errors", Over.LAST, _NUMBER, is_count=True): _ecc(
        ("mem_corrected_total", "sram_corrected_total")
    ),
}
