"""Estimates of inference: latency and throughput by batch size, cost, and the effect of changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neurontools.estimate.calibration import Interval
from neurontools.estimate.counted_run import EstimateError, parse_number, parse_ranks
from neurontools.estimate.families import ModelFamily, family_of
from neurontools.estimate.instances import InstanceHardware, Price, list_prices
from neurontools.estimate.training import WhatIf, WhatIfKind, instance_usd

_LARGEST_BATCH = 64  # the batches of published rows reach 16
_LEAST_GAIN = 1.05  # a smaller gain of throughput is no reason for a larger batch
_NOTABLE_PADDING_RATIO = 0.1


@dataclass(frozen=True, slots=True)
class LatencyFit:
    """Latency of one execution: `launch_seconds` plus the compute time at `eta` of the peak FLOPS.

    `factor` widens the result: the worst error of published rows that were left out of the fit, rounded up.
    """

    launch_seconds: Interval
    eta: Interval
    factor: float

    def seconds(self, peak_seconds: float, memory_seconds: float) -> Interval:
        """Returns the latency for a compute time at peak FLOPS and a least time to read the graph's inputs from HBM."""
        return Interval(
            (self.launch_seconds.low + max(peak_seconds / self.eta.high, memory_seconds)) / self.factor,
            (self.launch_seconds.high + max(peak_seconds / self.eta.low, memory_seconds)) * self.factor,
        )


_ENCODER_FIT = LatencyFit(Interval(0.30e-3, 0.30e-3), Interval(0.40, 0.40), 1.35)
_CONVOLUTION_FIT = LatencyFit(Interval(0.45e-3, 0.45e-3), Interval(0.255, 0.255), 1.55)
_UNKNOWN_FIT = LatencyFit(Interval(0.30e-3, 0.45e-3), Interval(0.255, 0.40), 1.55)
LATENCY_FITS = {
    ModelFamily.ENCODER: _ENCODER_FIT,
    ModelFamily.VISION: _ENCODER_FIT,
    ModelFamily.CONVOLUTION: _CONVOLUTION_FIT,
    ModelFamily.DECODER: _UNKNOWN_FIT,
    ModelFamily.OTHER: _UNKNOWN_FIT,
}
"""Fits to AWS's published inference rows of inf2.xlarge and trn1.2xlarge: 16 of encoders, 7 of convolutions.

There is no fit for decoders and other models, so their interval covers both."""


@dataclass(frozen=True, slots=True)
class CountedModel:
    """A model that a script executed: the work of one execution on one core, and the memory of that core.

    `batch_samples` is None for a model that was not traced, because its batch is unknown then. `moved_bytes` are the
    inputs, weights and outputs of an execution. `core_count` is the number of cores that hold the model.
    """

    name: str
    family: ModelFamily
    batch_samples: int | None
    executions_total: int
    padded_samples: int
    cores_per_execution: int
    core_count: int
    flops_by_dtype: Mapping[str, float]
    moved_bytes: float
    fixed_bytes: int
    activation_bytes: int

    @property
    def flops(self) -> float:
        """FLOPs of one execution on one core, over all element types."""
        return sum(self.flops_by_dtype.values())

    @property
    def padding_ratio(self) -> float:
        """The share of executed rows that dynamic batching added to fill the traced batch."""
        executed = self.executions_total * (self.batch_samples or 0)
        return min(self.padded_samples, executed - 1) / executed if executed else 0.0

    def with_batch(self, batch_samples: int) -> CountedModel:
        """Returns the model with another batch. Work and memory, except weights and code, grow with the batch."""
        if self.batch_samples is None:
            raise ValueError("the batch of this model is unknown")
        ratio = batch_samples / self.batch_samples
        activations = max(0.0, self.moved_bytes - self.fixed_bytes)
        return replace(
            self,
            batch_samples=batch_samples,
            flops_by_dtype={dtype: flops * ratio for dtype, flops in self.flops_by_dtype.items()},
            moved_bytes=self.moved_bytes - activations + activations * ratio,
            activation_bytes=math.ceil(self.activation_bytes * ratio),
        )

    def in_bfloat16(self) -> CountedModel:
        """Returns the model with float32 replaced by bfloat16."""
        flops = {dtype: count for dtype, count in self.flops_by_dtype.items() if dtype != "float32"}
        flops["bfloat16"] = flops.get("bfloat16", 0.0) + self.flops_by_dtype.get("float32", 0.0)
        return replace(
            self,
            flops_by_dtype=flops,
            moved_bytes=self.moved_bytes / 2,
            fixed_bytes=self.fixed_bytes // 2,
            activation_bytes=self.activation_bytes // 2,
        )


def counted_models(document: Mapping[str, Any]) -> list[CountedModel]:
    """Returns the models of a run without training, most FLOPs in total first.

    `document` is the output of `neuron-run --summary-json`. Raises EstimateError if it is malformed, has a training
    step or gradients, or has no execution with a matrix multiplication.
    """
    ranks = parse_ranks(document)
    if any(parse_number(rank, "steps_total") for rank in ranks):
        raise EstimateError("this run has training steps; its estimate is that of a training")
    most = max(ranks, key=lambda rank: parse_number(rank, "flop_total"), default={})
    entries = most.get("traced_models")
    models = [_model_of(entry) for entry in entries] if isinstance(entries, list) else []
    if not models and any(str(name).endswith("_backward") for name in most.get("operators") or ()):
        raise EstimateError(
            "this run computes gradients, but no step of an optimizer was seen; run a few whole training steps"
        )
    if not models and parse_number(most, "executions_total"):
        models = [_untraced_model(most)]
    models = [model for model in models if model.flops and model.executions_total]
    if not models:
        raise EstimateError(
            "neither a training step nor a matrix multiplication on the device was seen, so there is nothing to "
            "estimate; run a few steps or requests of the script"
        )
    return sorted(models, key=lambda model: -model.flops * model.executions_total)


def _model_of(entry: Any) -> CountedModel:
    if not isinstance(entry, dict) or not isinstance(entry.get("flops_by_dtype"), dict):
        raise EstimateError(
            "this is not a summary of neuron-run: it has a malformed traced model; write one with --summary-json"
        )
    return CountedModel(
        name=str(entry.get("name")),
        family=family_of(entry.get("operators") or ()),
        batch_samples=max(1, int(parse_number(entry, "batch_samples"))),
        executions_total=int(parse_number(entry, "executions_total")),
        padded_samples=int(parse_number(entry, "padded_samples")),
        cores_per_execution=max(1, int(parse_number(entry, "cores_per_execution"))),
        core_count=max(1, len(entry.get("cores") or ())),
        flops_by_dtype={str(dtype): float(flops) for dtype, flops in entry["flops_by_dtype"].items() if flops},
        moved_bytes=parse_number(entry, "moved_bytes"),
        fixed_bytes=int(parse_number(entry, "weight_bytes") + parse_number(entry, "code_bytes")),
        activation_bytes=int(parse_number(entry, "activation_bytes")),
    )


def _untraced_model(rank: Mapping[str, Any]) -> CountedModel:
    """Returns the mean execution of a script that executes a model on the device without tracing it."""
    executions = parse_number(rank, "executions_total")
    flops = rank.get("flops_by_dtype")
    return CountedModel(
        name="the mean execution",
        family=family_of(rank.get("operators") or ()),
        batch_samples=None,
        executions_total=int(executions),
        padded_samples=0,
        cores_per_execution=1,
        core_count=max(1, len(rank.get("cores") or ())),
        flops_by_dtype={str(dtype): float(count) / executions for dtype, count in (flops or {}).items() if count},
        moved_bytes=parse_number(rank, "moved_bytes") / executions,
        fixed_bytes=int(parse_number(rank, "hbm_peak_bytes")),
        activation_bytes=0,
    )


@dataclass(frozen=True, slots=True)
class BatchEstimate:
    """The estimate for one batch size. Rates and costs are those of the whole instance, with one call at a time a core.

    `executions_per_second` uses all cores; `samples_per_second` is None if the batch is unknown. `million_usd` is the
    cost of a million samples, or of a million executions if the batch is unknown, at the first price; None without one.
    """

    batch_samples: int | None
    latency_seconds: Interval
    executions_per_second: Interval
    samples_per_second: Interval | None
    million_usd: Interval | None
    core_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True)
class InferenceEstimate:
    """The latency, throughput and cost of one model on one instance type.

    `traced` is the estimate for the batch of the run. `batches` has it too, and the powers of two that fit.
    """

    instance_type: str
    model: CountedModel
    core_count: int
    core_memory_bytes: int
    traced: BatchEstimate
    batches: tuple[BatchEstimate, ...]
    price: Price | None
    what_ifs: tuple[WhatIf, ...]

    @property
    def used_cores(self) -> int:
        """The number of cores that the run used, at most those of the instance."""
        return min(self.model.core_count, self.core_count)


def estimate_inference(model: CountedModel, instance_type: str, prices: Sequence[Price] = ()) -> InferenceEstimate:
    """Estimates a model on an instance type. The first of `prices` for this type, or of the catalog's, gives the cost.

    Raises EstimateError for an unknown instance type.
    """
    hardware = InstanceHardware.from_catalog(instance_type)
    known = [price for price in prices if price.instance_type == instance_type] + list_prices(instance_type)
    price = known[0] if known else None
    traced = _estimate_batch(model, hardware, price)
    batches = [traced]
    if model.batch_samples is not None:
        sizes = sorted({1 << power for power in range(_LARGEST_BATCH.bit_length())} | {model.batch_samples})
        every = [_estimate_batch(model.with_batch(size), hardware, price) for size in sizes]
        batches = [each for each in every if each.fits or each.batch_samples == model.batch_samples]
    return InferenceEstimate(
        instance_type=instance_type,
        model=model,
        core_count=hardware.core_count,
        core_memory_bytes=hardware.core_memory_bytes,
        traced=traced,
        batches=tuple(batches),
        price=price,
        what_ifs=tuple(_what_ifs(model, hardware, batches)),
    )


def _latency(model: CountedModel, hardware: InstanceHardware) -> Interval:
    bandwidth = hardware.memory_bytes_per_second
    memory_seconds = model.moved_bytes / bandwidth if bandwidth else 0.0
    return LATENCY_FITS[model.family].seconds(hardware.seconds_at_peak(model.flops_by_dtype), memory_seconds)


def _estimate_batch(model: CountedModel, hardware: InstanceHardware, price: Price | None) -> BatchEstimate:
    latency = _latency(model, hardware)
    executions = latency.inverse(hardware.core_count // model.cores_per_execution)
    samples = None if model.batch_samples is None else executions * model.batch_samples
    rate = executions if samples is None else samples
    core_bytes = model.fixed_bytes + model.activation_bytes
    is_possible = rate.low > 0  # false for a model of more ranks than the instance has cores
    return BatchEstimate(
        batch_samples=model.batch_samples,
        latency_seconds=latency,
        executions_per_second=executions,
        samples_per_second=samples,
        million_usd=rate.inverse(instance_usd(price.usd_per_hour, 1e6)) if price and is_possible else None,
        core_bytes=core_bytes,
        fits=core_bytes <= hardware.core_memory_bytes and is_possible,
    )


def _speedup(before: CountedModel, after: CountedModel, hardware: InstanceHardware) -> Interval:
    """Returns the samples per second of `after`, divided by those of `before`, at both ends of the fit."""
    fit = LATENCY_FITS[before.family]
    ratios = []
    for launch, eta in ((fit.launch_seconds.low, fit.eta.high), (fit.launch_seconds.high, fit.eta.low)):
        end = LatencyFit(Interval(launch, launch), Interval(eta, eta), 1.0)
        bandwidth = hardware.memory_bytes_per_second or math.inf
        seconds = [
            end.seconds(hardware.seconds_at_peak(each.flops_by_dtype), each.moved_bytes / bandwidth).low
            for each in (before, after)
        ]
        work = (after.batch_samples or 1) / (before.batch_samples or 1)
        ratios.append(work * seconds[0] / seconds[1])
    return Interval(min(ratios), max(ratios))


def _what_ifs(model: CountedModel, hardware: InstanceHardware, batches: Sequence[BatchEstimate]) -> list[WhatIf]:
    """Predicts the effect of each change that applies."""
    found = []
    copies, used = hardware.core_count // model.cores_per_execution, model.core_count // model.cores_per_execution
    if used < copies:
        gain = copies / max(1, used)
        found.append(
            WhatIf(
                WhatIfKind.CORES,
                f"use all {hardware.core_count} cores: torch_neuronx.DataParallel",
                Interval(gain, gain),
                model.fixed_bytes + model.activation_bytes,
                f"you use {min(model.core_count, hardware.core_count)} of {hardware.core_count} cores and pay for all; "
                "latency stays",
            )
        )
    float32_flops = model.flops_by_dtype.get("float32", 0.0)
    after = model.in_bfloat16()
    if float32_flops > model.flops / 2 and _speedup(model, after, hardware).high >= _LEAST_GAIN:
        found.append(
            WhatIf(
                WhatIfKind.BFLOAT16,
                "compute in bfloat16: model.to(torch.bfloat16), or --auto-cast=matmult in compiler_args",
                _speedup(model, after, hardware),
                after.fixed_bytes + after.activation_bytes,
                f"{float32_flops / model.flops:.0%} of the FLOPs are float32; check the accuracy",
            )
        )
    larger = best_batch(model, hardware, batches)
    if larger is not None:
        after = model.with_batch(larger)
        latency = _latency(after, hardware).middle / _latency(model, hardware).middle
        found.append(
            WhatIf(
                WhatIfKind.BATCH,
                f"trace with a batch of {larger}",
                _speedup(model, after, hardware),
                after.fixed_bytes + after.activation_bytes,
                f"launches take a smaller share; a request takes {latency:.1f} times as long, and waits for its batch",
            )
        )
    if model.padding_ratio >= _NOTABLE_PADDING_RATIO:
        gain = 1 / (1 - model.padding_ratio)
        found.append(
            WhatIf(
                WhatIfKind.BUCKETS,
                "trace buckets of smaller batches (bucket_model_trace)",
                Interval(1.0, gain),
                None,
                f"{model.padding_ratio:.0%} of the executed rows only filled the traced batch of {model.batch_samples}",
            )
        )
    return found


def best_batch(model: CountedModel, hardware: InstanceHardware, batches: Sequence[BatchEstimate]) -> int | None:
    """Returns the smallest larger batch that fits and reaches nearly the most throughput; None if none gains 5 %."""
    if model.batch_samples is None:
        return None
    gains = {
        size: _speedup(model, model.with_batch(size), hardware).low
        for batch in batches
        if batch.fits and (size := batch.batch_samples) is not None and size > model.batch_samples
    }
    if not gains or max(gains.values()) < _LEAST_GAIN:
        return None
    return min(size for size, gain in gains.items() if gain >= max(gains.values()) / _LEAST_GAIN)
