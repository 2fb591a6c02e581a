"""A counted run with another batch, and with other degrees of data, tensor and pipeline parallelism."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neurontools.estimate.counted_run import CountedRun, EstimateError


@dataclass(frozen=True, slots=True)
class Degrees:
    """The number of workers, each on its core, and how many of them share one copy of the model.

    Raises EstimateError if the copies do not come out even.
    """

    workers: int
    tensor: int = 1
    pipeline: int = 1

    def __post_init__(self) -> None:
        if self.workers % self.split:
            raise EstimateError(
                f"{self.workers} workers are no multiple of {self.tensor} (tensor) x {self.pipeline} (pipeline); give "
                "a multiple of both degrees"
            )

    @property
    def split(self) -> int:
        """The number of workers that share one copy of the model."""
        return self.tensor * self.pipeline

    @property
    def data(self) -> int:
        """The number of copies of the model, each with its own part of the batch."""
        return self.workers // self.split


def scale_run(run: CountedRun, degrees: Degrees | None, batch: int | None) -> CountedRun:
    """Returns what a worker would count with other degrees, or with another batch of each copy of the model.

    None keeps the value of the run, in which each worker must have a whole copy of the model. Weights, gradients and
    optimizer state are divided by both degrees, activations by the tensor degree only, because a pipeline has as many
    batches in flight as stages. FLOPs and activations grow with the batch. Gradients are reduced between the copies;
    the collectives within a copy are left out, and so is the time in which pipeline stages wait for each other.

    Raises EstimateError if the run lacks the batch or the parts of its memory.
    """
    if degrees is None and batch is None:
        return run
    degrees = degrees or Degrees(run.worker_count)
    if batch is not None and not run.batch_samples:
        raise EstimateError("the batch was not counted, so no other can be estimated; load with MpDeviceLoader")
    if run.fixed_bytes is None:
        raise EstimateError(
            "weights, gradients and optimizer state were not counted, so memory can't be divided; run an optimizer step"
        )
    ratio = batch / run.batch_samples if batch is not None and run.batch_samples else 1.0
    split = degrees.split
    rest_bytes = max(run.peak_bytes - run.fixed_bytes, 0) * ratio / degrees.tensor
    reduces = degrees.data > 1
    return replace(
        run,
        worker_count=degrees.workers,
        samples=None if run.samples is None else run.samples * ratio / split,
        batch_samples=batch or run.batch_samples,
        flops_by_dtype={dtype: flops * ratio / split for dtype, flops in run.flops_by_dtype.items()},
        tensors=run.tensors / degrees.pipeline,
        moved_bytes=run.moved_bytes / split,
        collectives=max(run.collectives, 1.0) if reduces else 0.0,
        collective_bytes=(run.collective_bytes or run.gradient_bytes or 0) / split if reduces else 0.0,
        peak_bytes=round(run.fixed_bytes / split + rest_bytes),
        weight_bytes=_divided(run.weight_bytes, split),
        gradient_bytes=_divided(run.gradient_bytes, split),
        optimizer_state_bytes=_divided(run.optimizer_state_bytes, split),
    )


def _divided(size: int | None, split: int) -> int | None:
    return None if size is None else size // split
