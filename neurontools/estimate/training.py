"""Estimates of a counted run on an instance type: memory fit, step time, cost, and the effect of changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from neurontools.estimate.calibration import (
    BEST_ETA,
    BUS_BYTES_PER_SECOND,
    COLLECTIVE_SECONDS,
    DECODER_ETA,
    IMAGE_VCPU_SECONDS,
    LAUNCH_SECONDS,
    TENSOR_SECONDS,
    UNMEASURED_TENSOR_SECONDS,
    Calibration,
    CalibrationRow,
    Interval,
    around,
    typical_seconds,
)
from neurontools.estimate.counted_run import CountedRun
from neurontools.estimate.families import ModelFamily
from neurontools.estimate.instances import InstanceHardware, Price, list_prices
from neurontools.util.units import counted, iec_bytes_text

NOT_PREDICTED = (
    ("autocast (AMP)", "cost 26% where it was measured, and the model has no term for it"),
    ("FP8", "at best as fast as BF16 on Trainium1 and Inferentia2; cost 8% where it was measured"),
    ("compiler flags, SDK release", "the speed of one script varied from -22% to +21% between releases"),
    ("input pipeline", "loading is measured on this CPU, not on the instance's"),
    ("more than one instance", "no suitable measurement is published"),
)
"""Changes whose effect the model can't predict, with the reasons."""

_SECONDS_PER_HOUR = 3600.0
_BATCHES_PER_EXECUTION = 10  # batches per execution in published runs of a ViT-B/16 on inf2.xlarge
_ACCUMULATED_BATCHES = 4
_NOTABLE_COLLECTIVE_RATIO = 0.1  # least share of collectives in the step time for which accumulation is predicted


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a run fits an instance: HBM use of the fullest core, and core counts. None means unknown.

    `rest_bytes` covers activations, temporaries, inputs and programs. `largest_batch` is per worker; it assumes that
    only `rest_bytes` grows with the batch.
    """

    core_memory_bytes: int
    peak_bytes: int
    weight_bytes: int | None
    gradient_bytes: int | None
    optimizer_state_bytes: int | None
    rest_bytes: int | None
    largest_batch: int | None
    core_count: int
    worker_count: int

    @property
    def headroom_bytes(self) -> int:
        """Unused HBM of the fullest core; negative if the run doesn't fit."""
        return self.core_memory_bytes - self.peak_bytes

    @property
    def fits(self) -> bool:
        """Whether the instance has enough HBM per core and enough cores."""
        return not self.obstacle

    @property
    def obstacle(self) -> str:
        """The reason why the run can't be on the instance, such as "4.0 GiB too much"; "" if it fits."""
        if self.worker_count > self.core_count:
            return f"{self.worker_count} workers, {counted(self.core_count, 'core')}"
        return f"{iec_bytes_text(-self.headroom_bytes)} too much" if self.headroom_bytes < 0 else ""


def memory_fit(run: CountedRun, hardware: InstanceHardware) -> Fit:
    """Compares the counted HBM peak of a worker with the HBM of one core."""
    rest = largest = None
    if run.fixed_bytes is not None and run.peak_bytes > run.fixed_bytes:
        rest = run.peak_bytes - run.fixed_bytes
        if run.batch_samples:
            largest = max(int((hardware.core_memory_bytes - run.fixed_bytes) * run.batch_samples // rest), 0)
    return Fit(
        core_memory_bytes=hardware.core_memory_bytes,
        peak_bytes=run.peak_bytes,
        weight_bytes=run.weight_bytes,
        gradient_bytes=run.gradient_bytes,
        optimizer_state_bytes=run.optimizer_state_bytes,
        rest_bytes=rest,
        largest_batch=largest,
        core_count=hardware.core_count,
        worker_count=run.worker_count,
    )


@dataclass(frozen=True, slots=True)
class StepTime:
    """The modelled time of a training step in seconds: its parts, and the total of each scenario.

    `host` is the time to launch executions, `compute` the time to multiply matrices, and `collectives` the time of
    all-reduces. `memory_seconds` is the least time to move the inputs and outputs of the graphs.

    Each of `scenarios` is the step time under one combination of assumptions. The order of `scenarios` is fixed, so
    that two runs can be compared scenario by scenario.
    """

    host: Interval
    compute: Interval
    memory_seconds: float | None
    collectives: Interval
    scenarios: tuple[float, ...]
    spread: float  # relative error of the calibration, which widens the range of scenarios; 0 without calibration
    uncalibrated: Interval | None = None
    with_images: Interval | None = None
    """The step time if the host decodes an image for each sample; None if that is unknown, or is not to be expected."""

    @property
    def total(self) -> Interval:
        """The step time: `uncalibrated` if there is no calibration, else all scenarios, widened by `spread`."""
        if self.uncalibrated is not None:
            return self.uncalibrated
        return Interval(min(self.scenarios) * (1 - self.spread), max(self.scenarios) * (1 + self.spread))

    @property
    def parts(self) -> dict[str, float]:
        """Maps the name of each part of a step to its seconds (the middle of its interval), longest part first."""
        middle = {"host launches": self.host.middle, "compute": self.compute.middle}
        if self.memory_seconds is not None:
            middle["memory"] = self.memory_seconds
        if self.collectives.high:
            middle["collectives"] = self.collectives.middle
        return dict(sorted(middle.items(), key=lambda item: -item[1]))

    @property
    def binds(self) -> str:
        """The name of the longest part, which is the bottleneck of the step."""
        return next(iter(self.parts))


def step_time(run: CountedRun, hardware: InstanceHardware, calibration: Calibration | None = None) -> StepTime:
    """Models the time of one training step: scenarios in which host, compute and collectives overlap, or add up."""
    peak_seconds = hardware.seconds_at_peak(run.flops_by_dtype)
    memory_seconds = None
    if hardware.memory_bytes_per_second is not None:
        memory_seconds = run.moved_bytes / hardware.memory_bytes_per_second
    collectives = _collective_seconds(run)

    def overlapping(host: float, compute: float) -> float:
        return max(host, compute, memory_seconds or 0.0, collectives.low)

    def one_after_the_other(host: float, compute: float) -> float:
        return host + max(compute, memory_seconds or 0.0) + collectives.high

    if calibration is None:
        launches = run.executions * LAUNCH_SECONDS
        if run.family is ModelFamily.DECODER:
            host = Interval(launches, launches + run.tensors * TENSOR_SECONDS)
            compute = around(DECODER_ETA).inverse(peak_seconds)
            # The shares of the peak that decoders reach include the host, so its time is not added to them. Only a step
            # whose host may take longer than all of that has a higher end.
            total = Interval(
                overlapping(host.low, compute.low),
                max(
                    overlapping(host.low, compute.high) + collectives.high,
                    one_after_the_other(host.high, peak_seconds / BEST_ETA),
                ),
            )
        else:
            host = around(launches + run.tensors * UNMEASURED_TENSOR_SECONDS)
            compute = Interval(peak_seconds, peak_seconds / BEST_ETA**2)  # the middle is the time at BEST_ETA
            total = typical_seconds(
                overlapping(host.middle, compute.middle), one_after_the_other(host.middle, compute.middle)
            )
            total = Interval(max(total.low, overlapping(0.0, peak_seconds)), total.high)
        scenarios = tuple(
            combine(host_seconds, compute_seconds)
            for combine in (overlapping, one_after_the_other)
            for host_seconds in (host.low, host.high)
            for compute_seconds in (compute.low, compute.high)
        )
        with_images = None
        images = _image_seconds(run, hardware)
        if images is not None:
            with_images = typical_seconds(
                max(overlapping(host.middle, compute.middle), images),
                one_after_the_other(host.middle, compute.middle) + images,
            )
        return StepTime(host, compute, memory_seconds, collectives, scenarios, 0.0, total, with_images)
    scenarios = tuple(
        (overlapping if fit.overlaps else one_after_the_other)(
            fit.host_seconds * run.executions, fit.slowdown * peak_seconds
        )
        for fit in calibration.fits
    )
    return StepTime(
        host=calibration.execution_seconds * run.executions,
        compute=calibration.eta.inverse(peak_seconds),
        memory_seconds=memory_seconds,
        collectives=collectives,
        scenarios=scenarios,
        spread=calibration.spread,
    )


def _image_seconds(run: CountedRun, hardware: InstanceHardware) -> float | None:
    """Returns the time to decode the images of a step if all vCPUs do it; None for models that read no images."""
    if run.family not in (ModelFamily.VISION, ModelFamily.CONVOLUTION) or not run.samples or not hardware.vcpu_count:
        return None
    return run.samples * run.worker_count * IMAGE_VCPU_SECONDS / hardware.vcpu_count


def _collective_seconds(run: CountedRun) -> Interval:
    """Returns the time of a step's ring all-reduces: the latency of each, plus the transfer of all bytes."""
    if run.worker_count < 2 or not run.collectives:
        return Interval(0.0, 0.0)
    latency = COLLECTIVE_SECONDS * run.collectives
    ring_bytes = 2 * (run.worker_count - 1) / run.worker_count * run.collective_bytes
    return latency + BUS_BYTES_PER_SECOND.inverse(ring_bytes) if ring_bytes else latency


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """Training cost in US dollars at one price of an instance.

    All of them are those of the whole instance, which you pay for. `all_cores_million_usd` is the cost of a million
    samples if workers on all cores were as fast as the counted ones. Without counted samples, the costs of samples are
    None. Without an epoch size, `epoch_usd` is None. If the run does not fit, all costs are None.
    """

    price: Price
    thousand_steps_usd: Interval | None
    million_samples_usd: Interval | None
    epoch_usd: Interval | None
    all_cores_million_usd: Interval | None


def instance_usd(usd_per_hour: float, seconds: float) -> float:
    """Returns the cost in US dollars of using an instance for `seconds`."""
    return usd_per_hour * seconds / _SECONDS_PER_HOUR


def training_cost(
    price: Price,
    step_seconds: Interval | None,
    samples_per_step: float | None,
    epoch_samples: int | None,
    used_ratio: float = 1.0,
) -> TrainingCost:
    """Computes the training cost from the step time, which is None if the run does not fit.

    `samples_per_step` is the sum over all workers; `used_ratio` is the number of workers per core of the instance.
    """
    if step_seconds is None:
        return TrainingCost(price, None, None, None, None)
    step_usd = step_seconds * instance_usd(price.usd_per_hour, 1.0)
    sample_usd = step_usd * (1 / samples_per_step) if samples_per_step else None
    return TrainingCost(
        price=price,
        thousand_steps_usd=step_usd * 1e3,
        million_samples_usd=None if sample_usd is None else sample_usd * 1e6,
        epoch_usd=None if sample_usd is None or epoch_samples is None else sample_usd * epoch_samples,
        all_cores_million_usd=None if sample_usd is None else sample_usd * (1e6 * min(used_ratio, 1.0)),
    )


class WhatIfKind(StrEnum):
    """The kinds of changes whose effect is predicted."""

    BFLOAT16 = "bfloat16"
    BATCHES_PER_EXECUTION = "batches-per-execution"
    CORES = "cores"
    ACCUMULATION = "accumulation"
    CHECKPOINTING = "checkpointing"
    BATCH = "batch"
    BUCKETS = "buckets"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The predicted effect of one change to a script.

    `speedup` is the throughput after the change divided by the throughput before; None if only memory changes.
    """

    kind: WhatIfKind
    change: str
    speedup: Interval | None
    peak_bytes: int | None  # HBM peak after the change; None: unknown
    why: str


def what_ifs(run: CountedRun, hardware: InstanceHardware, calibration: Calibration | None) -> list[WhatIf]:
    """Predicts the effect of each change that applies to this run on this hardware."""
    baseline = _Baseline(run, hardware, calibration, step_time(run, hardware, calibration))
    return [effect for predict in _CHANGES if (effect := predict(baseline)) is not None]


@dataclass(frozen=True, slots=True)
class _Baseline:
    """The unchanged run, with which changes are compared."""

    run: CountedRun
    hardware: InstanceHardware
    calibration: Calibration | None
    step: StepTime

    def speedup(self, changed: CountedRun, work: float = 1.0) -> Interval:
        """Returns the samples per second of the changed run, divided by those of the unchanged run.

        `work` is the ratio of the samples per step of the two runs. Divides within each scenario, because the unknown
        properties of the hardware are the same for both runs.
        """
        after = step_time(changed, self.hardware, self.calibration)
        ratios = [work * before / now for before, now in zip(self.step.scenarios, after.scenarios, strict=True)]
        return Interval(min(ratios), max(ratios))


def _bfloat16_effect(baseline: _Baseline) -> WhatIf | None:
    run = baseline.run
    float32_flops = run.flops_by_dtype.get("float32", 0.0)
    if float32_flops <= run.flops / 2:
        return None
    flops = {dtype: count for dtype, count in run.flops_by_dtype.items() if dtype != "float32"}
    flops["bfloat16"] = flops.get("bfloat16", 0.0) + float32_flops
    peaks = baseline.hardware.peak_flops
    ratio = peaks["bfloat16"] / peaks["float32"]
    return WhatIf(
        WhatIfKind.BFLOAT16,
        "bfloat16 (model.to(torch.bfloat16))",
        baseline.speedup(replace(run, flops_by_dtype=flops, moved_bytes=run.moved_bytes / 2)),
        run.peak_bytes // 2,
        f"{float32_flops / run.flops:.0%} of the FLOPs are float32, whose peak is {ratio:.1f} times lower",
    )


def _batches_per_execution_effect(baseline: _Baseline) -> WhatIf | None:
    run = baseline.run
    if run.batches_per_execution is None or not 0.5 <= run.batches_per_execution <= 2:
        return None
    factor = _BATCHES_PER_EXECUTION
    return WhatIf(
        WhatIfKind.BATCHES_PER_EXECUTION,
        f"batches_per_execution={factor}",
        baseline.speedup(replace(run, executions=run.executions / factor, tensors=run.tensors / factor)),
        None,
        f"{run.executions:.2g} execution(s) a step, each launched with {run.tensors / run.executions:.0f} tensors",
    )


def _all_cores_effect(baseline: _Baseline) -> WhatIf | None:
    run, cores = baseline.run, baseline.hardware.core_count
    if run.worker_count >= cores:
        return None
    reduced_bytes = run.collective_bytes or run.gradient_bytes or 0
    changed = replace(run, worker_count=cores, collectives=max(run.collectives, 1.0), collective_bytes=reduced_bytes)
    return WhatIf(
        WhatIfKind.CORES,
        f"one worker per core ({cores})",
        baseline.speedup(changed, cores / run.worker_count),
        run.peak_bytes,
        f"you use {run.worker_count} of {cores} cores and pay for all; gradients are reduced once a step",
    )


def _accumulation_effect(baseline: _Baseline) -> WhatIf | None:
    run, step = baseline.run, baseline.step
    if not run.collectives or step.collectives.high < _NOTABLE_COLLECTIVE_RATIO * step.total.low:
        return None
    changed = replace(
        run,
        collectives=run.collectives / _ACCUMULATED_BATCHES,
        collective_bytes=run.collective_bytes / _ACCUMULATED_BATCHES,
    )
    return WhatIf(
        WhatIfKind.ACCUMULATION,
        f"gradient accumulation over {_ACCUMULATED_BATCHES} batches",
        baseline.speedup(changed),
        run.peak_bytes,
        f"collectives that reduce gradients: {run.collectives:.3g} a step; it changes what the optimizer sees",
    )


def _checkpointing_effect(baseline: _Baseline) -> WhatIf | None:
    run = baseline.run
    if run.peak_bytes < baseline.hardware.core_memory_bytes / 2:
        return None
    recomputed = {dtype: flops * 4 / 3 for dtype, flops in run.flops_by_dtype.items()}
    return WhatIf(
        WhatIfKind.CHECKPOINTING,
        "activation checkpointing",
        baseline.speedup(replace(run, flops_by_dtype=recomputed)),
        None,
        "the forward pass is computed twice; how much memory it saves depends on where it is used",
    )


def _larger_batch_effect(baseline: _Baseline) -> WhatIf | None:
    """Predicts no speedup if compute is the bottleneck, because compute time is proportional to samples."""
    step = baseline.step
    if baseline.calibration is None or step.host.high >= step.compute.low or baseline.run.samples is None:
        return None
    no_effect = "compute binds, so a sample takes as long: no effect"
    return WhatIf(WhatIfKind.BATCH, "a larger batch", Interval(1.0, 1.0), None, no_effect)


# The changes of a run whose gain or loss the model predicts reliably.
_CHANGES: tuple[Callable[[_Baseline], WhatIf | None], ...] = (
    _bfloat16_effect,
    _batches_per_execution_effect,
    _all_cores_effect,
    _accumulation_effect,
    _checkpointing_effect,
    _larger_batch_effect,
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The memory fit, speed and cost of a run on one instance type.

    `fit` is counted, the prices in `costs` are list prices, and all other fields are estimated. `mfu` is relative to
    the bfloat16 peak. `costs` is empty if no price is known. If the run does not fit, `samples_per_second` and `mfu`
    are None.
    """

    instance_type: str
    run: CountedRun
    machine: InstanceHardware
    fit: Fit
    step: StepTime
    samples_per_second: Interval | None
    mfu: Interval | None
    costs: tuple[TrainingCost, ...]
    what_ifs: tuple[WhatIf, ...]
    calibration: Calibration | None


def estimate(
    run: CountedRun,
    instance_type: str,
    *,
    calibration: Calibration | None = None,
    prices: Sequence[Price] = (),
    epoch_samples: int | None = None,
) -> Estimate:
    """Estimates memory fit, speed and cost of a run on an instance type.

    In `costs`, the given `prices` come before those of the catalog. Raises EstimateError for an unknown instance type.
    """
    hardware = InstanceHardware.from_catalog(instance_type)
    fit, step = memory_fit(run, hardware), step_time(run, hardware, calibration)
    step_seconds = step.total if fit.fits else None
    samples = None if run.samples is None else run.samples * run.worker_count
    peak = hardware.peak_flops.get("bfloat16")
    all_prices = [price for price in prices if price.instance_type == instance_type] + list_prices(instance_type)
    return Estimate(
        instance_type=instance_type,
        run=run,
        machine=hardware,
        fit=fit,
        step=step,
        samples_per_second=None if samples is None or step_seconds is None else step_seconds.inverse(samples),
        mfu=None if peak is None or step_seconds is None else step_seconds.inverse(run.flops / peak),
        costs=tuple(
            training_cost(price, step_seconds, samples, epoch_samples, run.worker_count / hardware.core_count)
            for price in all_prices
        ),
        what_ifs=tuple(what_ifs(run, hardware, calibration)),
        calibration=calibration,
    )


@dataclass(frozen=True, slots=True)
class PeerMeasurement:
    """A run that the user measured on an instance without Neuron devices, and its cost at the user's prices.

    Nothing of it is estimated. `step_seconds` is None if the row has no number of workers.
    """

    row: CalibrationRow
    step_seconds: float | None
    costs: tuple[TrainingCost, ...]


def peer_measurement(row: CalibrationRow, prices: Sequence[Price], epoch_samples: int | None) -> PeerMeasurement:
    """Computes the costs of a run that the user measured on another type of instance, at the given prices."""
    rate = row.samples_per_second
    sample_seconds = Interval(1 / rate, 1 / rate)
    samples = None if row.workers is None else float(row.batch * row.workers)
    costs = []
    for price in prices:
        if price.instance_type == row.instance_type:
            by_sample = training_cost(price, sample_seconds, 1.0, epoch_samples)
            steps = None if samples is None else sample_seconds * samples * instance_usd(price.usd_per_hour, 1e3)
            costs.append(replace(by_sample, thousand_steps_usd=steps, all_cores_million_usd=None))
    return PeerMeasurement(row, None if samples is None else samples / rate, tuple(costs))
