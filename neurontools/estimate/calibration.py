"""What measured rows tell of a model: how much of the peak it reaches, and what an execution costs the host."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from neurontools.estimate import prior
from neurontools.estimate.counted_run import CountedRun
from neurontools.estimate.failure import EstimateError
from neurontools.estimate.interval import Interval
from neurontools.estimate.machine import Machine

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "tf32": "tf32", "fp8": "float8_e4m3fn"}
_LEAST_SPREAD = 0.10  # the mean error within one model, of the rows of the ViT article that the fit had not seen
_MOST_SPREAD = 0.5  # rows that no two numbers describe better than this are of different models
_MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """A measured training: its type, element type, batch of a worker, and samples a second of all its workers."""

    instance_type: str
    dtype: str
    batch: int
    samples_per_second: float
    batches_per_execution: float = 1.0
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise EstimateError(f"a row has dtype {self.dtype!r}; give one of {', '.join(_DTYPES)}")
        for name in ("batch", "samples_per_second", "batches_per_execution", "workers"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise EstimateError(f"a row has {name} {value!r}; give a number above 0")


@dataclass(frozen=True, slots=True)
class _Point:
    """A row as equations: seconds of a step, those that its compute takes at the peak, and its executions."""

    seconds: float
    peak_seconds: float
    executions: float


@dataclass(frozen=True, slots=True)
class Form:
    """One form of the model, fitted: `slowdown` times a step's time at the peak, and `host_seconds` an execution.

    `overlaps`: both go on at once, so the longer is what a step takes.
    """

    overlaps: bool
    slowdown: float
    host_seconds: float

    def seconds(self, peak_seconds: float, executions: float) -> float:
        """The time of a step."""
        device, host = peak_seconds * self.slowdown, self.host_seconds * executions
        return max(device, host) if self.overlaps else device + host

    def error(self, points: Sequence[_Point]) -> float:
        """By how much a row is off in the geometric mean: 0.1 is a tenth, too long or too short."""
        return _geometric(_factor(self.seconds(p.peak_seconds, p.executions), p.seconds) for p in points) - 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """What rows of one model say, in two forms: host and device at once, and one after the other."""

    overlapping: Form
    adding: Form
    spread: float  # a ratio: what the rows leave open within the model
    row_count: int

    @classmethod
    def of(cls, rows: Sequence[CalibrationRow], flops_per_sample: float, run_workers: int = 1) -> Calibration:
        """Fits rows of a model with so many FLOPs a sample; EstimateError where they contradict each other."""
        if not rows:
            raise EstimateError(
                "there is no row to calibrate on; give one with type, dtype, batch and samples a second"
            )
        points = [_point(row, flops_per_sample, run_workers) for row in rows]
        overlapping, adding = _overlapping(points), _adding(points)
        error = min(overlapping.error(points), adding.error(points))
        if error > _MOST_SPREAD:
            raise EstimateError(
                f"the rows contradict each other: the best fit is off by {100 * error:.0f}% on average; "
                "give rows of one model and one SDK"
            )
        return cls(overlapping, adding, max(_LEAST_SPREAD, error), len(rows))

    @property
    def eta(self) -> Interval:
        """The share of the peak that compute reaches."""
        return _ordered(1 / self.overlapping.slowdown, 1 / self.adding.slowdown)

    @property
    def execution_seconds(self) -> Interval:
        """What an execution costs the host."""
        return _ordered(self.overlapping.host_seconds, self.adding.host_seconds)


def read_rows(path: Path) -> list[CalibrationRow]:
    """Rows of a file: TOML with [[row]], or what `neuron-run --summary-json` wrote on a real instance.

    EstimateError says what is wrong with it.
    """
    try:
        with path.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise EstimateError(f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8'}; give a file of rows") from None
    if len(data) > _MOST_BYTES:
        raise EstimateError(f"{path}: larger than 1 MiB; give a file of a few rows")
    try:
        if text.lstrip().startswith("{"):
            return [_of_summary(json.loads(text))]
        rows = tomllib.loads(text).get("row")
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        if isinstance(error, EstimateError):
            raise EstimateError(f"{path}: {error}") from None
        raise EstimateError(f"{path}: {str(error).splitlines()[0]}; write [[row]] tables") from None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise EstimateError(f"{path}: there is no [[row]]; each has instance_type, dtype, batch and samples_per_second")
    return [_row(path, row) for row in rows]


def _row(path: Path, table: Mapping[str, Any]) -> CalibrationRow:
    known = {each.name for each in fields(CalibrationRow)}
    unknown = sorted(table.keys() - known)
    if unknown:
        raise EstimateError(f"{path}: a row has no {unknown[0]!r}; there are {', '.join(sorted(known))}")
    missing = sorted({"instance_type", "dtype", "batch", "samples_per_second"} - table.keys())
    if missing:
        raise EstimateError(f"{path}: a row has no {missing[0]}; add it")
    try:
        return CalibrationRow(**table)
    except EstimateError as error:
        raise EstimateError(f"{path}: {error}") from None


def _of_summary(document: Any) -> CalibrationRow:
    if not isinstance(document, dict):
        raise EstimateError("this is no summary of neuron-run")
    run = CountedRun.from_summary(document)
    if any(rank.get("is_simulated") for rank in document["ranks"]):
        raise EstimateError(
            "its times are those of simulated NeuronCores, on a CPU; give rows that were measured on an instance"
        )
    dtype = max(run.flops_by_dtype, key=lambda each: run.flops_by_dtype[each])
    names = {long: short for short, long in _DTYPES.items()}
    rate = document.get("samples_per_second")
    if run.batch_samples is None or not rate or dtype not in names or not document.get("instance_type"):
        raise EstimateError("this summary doesn't tell instance type, batch, element type and samples a second")
    return CalibrationRow(
        instance_type=str(document["instance_type"]),
        dtype=names[dtype],
        batch=run.batch_samples,
        samples_per_second=float(rate),
        batches_per_execution=run.batches_per_execution or 1.0,
        workers=run.worker_count,
    )


def _point(row: CalibrationRow, flops_per_sample: float, run_workers: int) -> _Point:
    machine = Machine.of(row.instance_type)
    workers = row.workers or run_workers
    if workers > machine.core_count:
        raise EstimateError(f"a row has {workers} workers on {row.instance_type}, which has {machine.core_count} cores")
    seconds = row.batch * workers / row.samples_per_second
    peak_seconds = machine.seconds_at_peak({_DTYPES[row.dtype]: flops_per_sample * row.batch})
    if seconds < peak_seconds:
        raise EstimateError(
            f"a row has {row.samples_per_second:g} samples a second, more than {row.instance_type} could do at "
            "its peak; correct its batch, dtype or workers"
        )
    return _Point(seconds, peak_seconds, 1 / row.batches_per_execution)


def _overlapping(points: Sequence[_Point]) -> Form:
    """The best of all ways to part the rows into those that compute binds and those that the host binds."""
    ordered = sorted(points, key=lambda p: p.executions / p.peak_seconds)
    best: Form | None = None
    for count in range(1, len(ordered) + 1):
        device, host = ordered[:count], ordered[count:]
        slowdown = _geometric(p.seconds / p.peak_seconds for p in device)
        host_seconds = _geometric(p.seconds / p.executions for p in host) if host else 0.0
        fit = Form(overlaps=True, slowdown=slowdown, host_seconds=host_seconds)
        if best is None or fit.error(points) < best.error(points):
            best = fit
    if best is None:
        raise EstimateError("there is no row to calibrate on")
    return best


def _adding(points: Sequence[_Point]) -> Form:
    """Least squares of the relative errors, with neither part below 0 and compute no faster than the peak."""
    rows = [(p.peak_seconds / p.seconds, p.executions / p.seconds) for p in points]
    aa = sum(a * a for a, _ in rows)
    ab = sum(a * b for a, b in rows)
    bb = sum(b * b for _, b in rows)
    a1, b1 = sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    if determinant <= 1e-9 * aa * bb:
        # All rows are alike: nothing tells compute from host, so compute is as fast here as it was anywhere.
        slowdown = min(a1 / aa, 1 / prior.ETA.high)
        return Form(overlaps=False, slowdown=slowdown, host_seconds=max((b1 - slowdown * ab) / bb, 0.0))
    slowdown, host = (bb * a1 - ab * b1) / determinant, (aa * b1 - ab * a1) / determinant
    if slowdown < 1:
        slowdown, host = 1.0, max((b1 - ab) / bb, 0.0)
    elif host < 0:
        slowdown, host = a1 / aa, 0.0
    return Form(overlaps=False, slowdown=slowdown, host_seconds=host)


def _factor(one: float, other: float) -> float:
    return max(one / other, other / one)


def _geometric(values: Any) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


def _ordered(one: float, other: float) -> Interval:
    return Interval(min(one, other), max(one, other))
