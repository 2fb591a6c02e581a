"""Parameters of the step-time model: published ranges, or a fit to measured runs of the same neural network."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from neurontools.estimate.counted_run import CountedRun, EstimateError
from neurontools.estimate.instances import InstanceHardware


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed interval from `low` to `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"from {self.low} to {self.high} is no interval")

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __mul__(self, factor: float) -> Interval:
        return Interval(self.low * factor, self.high * factor)

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def middle(self) -> float:
        """The geometric mean of `low` and `high`."""
        return float((self.low * self.high) ** 0.5)

    def inverse(self, numerator: float = 1.0) -> Interval:
        """Returns the interval of `numerator / x` for all x in this interval. `low` must be above 0."""
        return Interval(numerator / self.high, numerator / self.low)

    def text(self, unit: Callable[[float], str]) -> str:
        """Formats the interval, such as "1.2 ms to 3.4 ms"; a single value if both ends have the same text."""
        low, high = unit(self.low), unit(self.high)
        return low if low == high else f"{low} to {high}"


DECODER_ETA = 0.27
"""The share of the peak FLOPS that decoders reach with all time of the host in it: the geometric mean of published
training runs, in which each model counts once."""

BEST_ETA = 0.64
"""The largest share of the peak FLOPS that a published training run reaches: BERT-Large in float32."""

UNMEASURED_FACTOR = 2.0
"""The step time of a model without measurements is the middle of its interval, divided and multiplied by this."""

LAUNCH_SECONDS = 0.27e-3
"""The time to launch a small graph, fitted to AWS's published inference benchmarks."""

TENSOR_SECONDS = 67e-6
"""The most time that a tensor adds to the launch of a training graph if a measured run leaves the host's time open: in
published runs of a ViT-B/16 on inf2.xlarge, 611 tensors took 28 to 41 ms."""

UNMEASURED_TENSOR_SECONDS = 190e-6
"""The time that a tensor adds to the launch of a training graph, fitted to published training runs except decoders."""

IMAGE_VCPU_SECONDS = 18e-3
"""The time of one vCPU to decode and scale an image, fitted to published training runs that read images."""

BUS_BYTES_PER_SECOND = Interval(52.8e9, 103.9e9)
"""Bus bandwidth of an all-reduce inside an instance, for 2 and 16 ranks: AWS's guide to nccom-test."""

COLLECTIVE_SECONDS = Interval(58e-6, 300e-6)
"""The time of a small all-reduce inside an instance, for 2 and 16 ranks: AWS's guide to nccom-test."""

ROWS_HELD, ROWS = 72, 75
"""The estimated interval contains the measured step time for 72 of 75 published training runs, if it is derived without
the runs of the same model, as `scripts/estimate-errors` computes."""


def around(middle: float) -> Interval:
    """Returns the interval of an unmeasured value: its middle, divided and multiplied by UNMEASURED_FACTOR."""
    return Interval(middle / UNMEASURED_FACTOR, middle * UNMEASURED_FACTOR)


def typical_seconds(overlapping: float, one_after_the_other: float) -> Interval:
    """Returns the step time of a model without measurements, around the geometric mean of two extremes.

    `overlapping` is the time of the longest part of the step, `one_after_the_other` the sum of all parts.
    """
    return around(Interval(overlapping, one_after_the_other).middle)


_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "tf32": "tf32", "fp8": "float8_e4m3fn"}
_NEURON_NAMES = ("trn", "inf")  # begin the names of instance types with Neuron devices
_LEAST_SPREAD = 0.10  # mean error of fits to published runs of a ViT-B/16, tested on runs that were held out
_MOST_SPREAD = 0.5  # a larger mean error means that the rows come from different models
_MAX_FILE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """A measured training run. `batch` is per worker; `samples_per_second` is the sum over all workers.

    `workers` is None if the number of workers is unknown. Then the run is assumed to have as many workers as the run to
    be estimated.
    """

    instance_type: str
    dtype: str
    batch: int
    samples_per_second: float
    batches_per_execution: float = 1.0
    workers: int | None = None

    @property
    def is_peer(self) -> bool:
        """Whether the instance type has no Neuron devices, so that its rows are shown, and calibrate nothing."""
        return not self.instance_type.startswith(_NEURON_NAMES)

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise EstimateError(f"a row has dtype {self.dtype!r}; give one of {', '.join(_DTYPES)}")
        for name in ("batch", "samples_per_second", "batches_per_execution", "workers"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise EstimateError(f"a row has {name} {value!r}; give a number above 0")


@dataclass(frozen=True, slots=True)
class _MeasuredStep:
    """One measured run as input of a fit: step time, compute time at peak FLOPS, and executions per step."""

    seconds: float
    peak_seconds: float
    executions: float


@dataclass(frozen=True, slots=True)
class StepTimeFit:
    """A fitted step-time model. Device time is `slowdown` times the compute time at peak FLOPS.

    Host time is `host_seconds` per execution. A step takes the longer of host and device time if `overlaps`, else the
    sum.
    """

    overlaps: bool
    slowdown: float
    host_seconds: float

    def seconds(self, peak_seconds: float, executions: float) -> float:
        """Returns the modelled step time for a compute time at peak FLOPS and a number of executions."""
        device, host = peak_seconds * self.slowdown, self.host_seconds * executions
        return max(device, host) if self.overlaps else device + host

    def error(self, steps: Sequence[_MeasuredStep]) -> float:
        """Returns the mean relative error of the modelled step times: 0.1 means 10% too long or too short."""
        ratios = [self.seconds(step.peak_seconds, step.executions) / step.seconds for step in steps]
        return _geometric_mean(max(ratio, 1 / ratio) for ratio in ratios) - 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fits to measured runs of one model: in some, host and device time overlap; in others, they add up.

    Two runs with different executions per compute time have one fit of each kind. Otherwise the time of the host is
    open: `extremes` are other fits that the runs allow, with the most and the least host time.
    """

    overlapping: StepTimeFit
    adding: StepTimeFit
    spread: float  # mean relative error of the better fit, at least 0.10
    row_count: int
    extremes: tuple[StepTimeFit, ...] = ()

    @classmethod
    def of(
        cls,
        rows: Sequence[CalibrationRow],
        flops_per_sample: float,
        run_workers: int = 1,
        tensors_per_execution: float | None = None,
    ) -> Calibration:
        """Fits the step-time model with overlap, and the one without, to measured runs of one training script.

        `tensors_per_execution` limits the time of the host if the runs do not determine it; None means no limit.
        Raises EstimateError if no fit matches the rows, or if a row is faster than its hardware allows.
        """
        if not rows:
            raise EstimateError(
                "there is no row to calibrate on; give one with type, dtype, batch and samples a second"
            )
        steps = [_measured_step(row, flops_per_sample, run_workers) for row in rows]
        most_host_seconds = math.inf
        if tensors_per_execution is not None:
            most_host_seconds = LAUNCH_SECONDS + tensors_per_execution * TENSOR_SECONDS
        overlapping, adding = _fit_overlapping(steps), _fit_adding(steps, most_host_seconds)
        error = min(overlapping.error(steps), adding.error(steps))
        if error > _MOST_SPREAD:
            raise EstimateError(
                f"the rows contradict each other: the best fit is off by {100 * error:.0f}% on average; "
                "give rows of one model and one SDK"
            )
        extremes = () if _separates(steps) else tuple(_extreme_fits(steps, most_host_seconds))
        return cls(overlapping, adding, max(_LEAST_SPREAD, error), len(rows), extremes)

    @property
    def fits(self) -> tuple[StepTimeFit, ...]:
        """All fits, in a fixed order."""
        return (self.overlapping, self.adding, *self.extremes)

    @property
    def eta(self) -> Interval:
        """The share of peak FLOPS that compute reaches, over all fits."""
        return Interval(
            1 / max(fit.slowdown for fit in self.fits),
            1 / min(fit.slowdown for fit in self.fits),
        )

    @property
    def execution_seconds(self) -> Interval:
        """The host time per execution, over all fits."""
        return Interval(min(fit.host_seconds for fit in self.fits), max(fit.host_seconds for fit in self.fits))


def read_rows(path: Path) -> list[CalibrationRow]:
    """Reads measured runs: [[row]] tables of a TOML file, or a summary that `neuron-run` wrote on real hardware.

    Raises EstimateError, with path and cause, if the file is unusable.
    """
    try:
        with path.open("rb") as opened:
            data = opened.read(_MAX_FILE_BYTES + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise EstimateError(f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8'}; give a file of rows") from None
    if len(data) > _MAX_FILE_BYTES:
        raise EstimateError(f"{path}: larger than 1 MiB; give a file of a few rows")
    try:
        if text.lstrip().startswith("{"):
            return [_row_from_summary(json.loads(text))]
        rows = tomllib.loads(text).get("row")
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        if isinstance(error, EstimateError):
            raise EstimateError(f"{path}: {error}") from None
        raise EstimateError(f"{path}: {str(error).splitlines()[0]}; write [[row]] tables") from None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise EstimateError(f"{path}: there is no [[row]]; each has instance_type, dtype, batch and samples_per_second")
    return [_row_from_table(path, row) for row in rows]


def _row_from_table(path: Path, table: Mapping[str, Any]) -> CalibrationRow:
    allowed = {each.name for each in fields(CalibrationRow)}
    unknown = sorted(table.keys() - allowed)
    if unknown:
        raise EstimateError(f"{path}: a row has no {unknown[0]!r}; there are {', '.join(sorted(allowed))}")
    missing = sorted({"instance_type", "dtype", "batch", "samples_per_second"} - table.keys())
    if missing:
        raise EstimateError(f"{path}: a row has no {missing[0]}; add it")
    try:
        return CalibrationRow(**table)
    except EstimateError as error:
        raise EstimateError(f"{path}: {error}") from None


def _row_from_summary(document: Any) -> CalibrationRow:
    if not isinstance(document, dict):
        raise EstimateError("this is not a summary of neuron-run")
    run = CountedRun.from_summary(document)
    if any(rank.get("is_simulated") for rank in document["ranks"]):
        raise EstimateError(
            "its times are those of simulated NeuronCores, on a CPU; give rows that were measured on an instance"
        )
    dtype = max(run.flops_by_dtype, key=lambda each: run.flops_by_dtype[each])
    short_names = {long: short for short, long in _DTYPES.items()}
    rate = document.get("samples_per_second")
    if run.batch_samples is None or not rate or dtype not in short_names or not document.get("instance_type"):
        raise EstimateError("this summary lacks the instance type, batch, element type or samples a second")
    return CalibrationRow(
        instance_type=str(document["instance_type"]),
        dtype=short_names[dtype],
        batch=run.batch_samples,
        samples_per_second=float(rate),
        batches_per_execution=run.batches_per_execution or 1.0,
        workers=run.worker_count,
    )


def _measured_step(row: CalibrationRow, flops_per_sample: float, run_workers: int) -> _MeasuredStep:
    hardware = InstanceHardware.from_catalog(row.instance_type)
    workers = row.workers or run_workers
    if workers > hardware.core_count:
        raise EstimateError(
            f"a row has {workers} workers on {row.instance_type}, which has {hardware.core_count} cores"
        )
    seconds = row.batch * workers / row.samples_per_second
    peak_seconds = hardware.seconds_at_peak({_DTYPES[row.dtype]: flops_per_sample * row.batch})
    if seconds < peak_seconds:
        raise EstimateError(
            f"a row has {row.samples_per_second:g} samples a second, more than {row.instance_type} could do at "
            "its peak; correct its batch, dtype or workers"
        )
    return _MeasuredStep(seconds, peak_seconds, 1 / row.batches_per_execution)


def _fit_overlapping(steps: Sequence[_MeasuredStep]) -> StepTimeFit:
    """Returns the best fit over all ways to split the runs into compute-bound and host-bound runs.

    The host-bound runs are always those with the most executions per compute time.
    """
    ordered = sorted(steps, key=lambda step: step.executions / step.peak_seconds)
    fits = []
    for count in range(1, len(ordered) + 1):
        compute_bound, host_bound = ordered[:count], ordered[count:]
        slowdown = _geometric_mean(step.seconds / step.peak_seconds for step in compute_bound)
        host_seconds = _geometric_mean(step.seconds / step.executions for step in host_bound) if host_bound else 0.0
        fits.append(StepTimeFit(overlaps=True, slowdown=slowdown, host_seconds=host_seconds))
    return min(fits, key=lambda fit: fit.error(steps))


def _separates(steps: Sequence[_MeasuredStep]) -> bool:
    """Whether the runs differ in executions per compute time, so that a fit can separate host and device time."""
    ratios = [step.executions / step.peak_seconds for step in steps]
    return max(ratios) - min(ratios) > 1e-4 * max(ratios)


def _extreme_fits(steps: Sequence[_MeasuredStep], most_host_seconds: float) -> Iterator[StepTimeFit]:
    """Yields the overlapping fits with the most host time that the device hides, and with a step bound by the host."""
    slowdown = _geometric_mean(step.seconds / step.peak_seconds for step in steps)
    whole_step = _geometric_mean(step.seconds / step.executions for step in steps)
    yield StepTimeFit(overlaps=True, slowdown=slowdown, host_seconds=min(whole_step, most_host_seconds))
    if whole_step <= most_host_seconds:
        yield StepTimeFit(overlaps=True, slowdown=min(slowdown, 1 / BEST_ETA), host_seconds=whole_step)


def _fit_adding(steps: Sequence[_MeasuredStep], most_host_seconds: float) -> StepTimeFit:
    """Minimizes the squared relative errors, with `slowdown` of at least 1 and `host_seconds` of at least 0."""
    rows = [(step.peak_seconds / step.seconds, step.executions / step.seconds) for step in steps]
    aa = sum(a * a for a, _ in rows)
    ab = sum(a * b for a, b in rows)
    bb = sum(b * b for _, b in rows)
    a1, b1 = sum(a for a, _ in rows), sum(b for _, b in rows)
    if not _separates(steps):
        # This assumes the best published compute rate, unless the rest is more than the host can take.
        host = min(max((b1 - min(a1 / aa, 1 / BEST_ETA) * ab) / bb, 0.0), most_host_seconds)
        return StepTimeFit(overlaps=False, slowdown=(a1 - host * ab) / aa, host_seconds=host)
    determinant = aa * bb - ab * ab
    slowdown, host = (bb * a1 - ab * b1) / determinant, (aa * b1 - ab * a1) / determinant
    if slowdown < 1:
        slowdown, host = 1.0, max((b1 - ab) / bb, 0.0)
    elif host < 0:
        slowdown, host = a1 / aa, 0.0
    return StepTimeFit(overlaps=False, slowdown=slowdown, host_seconds=host)


def _geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))
