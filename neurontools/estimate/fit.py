"""Whether a training fits the HBM of a core: counted, and so the surest part of an estimate."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.estimate.counted_run import CountedRun
from neurontools.estimate.machine import Machine


@dataclass(frozen=True, slots=True)
class Fit:
    """HBM of the core that needs most, in bytes. `rest_bytes` are activations, temporaries, inputs and programs.

    What is None is not known. `largest_batch` is a worker's, and assumes that the rest grows with the batch and nothing
    else does.
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
        """What a core has left; below 0 where it doesn't fit."""
        return self.core_memory_bytes - self.peak_bytes

    @property
    def fits(self) -> bool:
        """Whether the memory and the cores are enough."""
        return self.headroom_bytes >= 0 and self.worker_count <= self.core_count


def fit(run: CountedRun, machine: Machine) -> Fit:
    """The fit of a run on a machine, a core a worker."""
    rest = largest = None
    if run.fixed_bytes is not None and run.peak_bytes > run.fixed_bytes:
        rest = run.peak_bytes - run.fixed_bytes
        if run.batch_samples:
            largest = max(int((machine.core_memory_bytes - run.fixed_bytes) * run.batch_samples // rest), 0)
    return Fit(
        core_memory_bytes=machine.core_memory_bytes,
        peak_bytes=run.peak_bytes,
        weight_bytes=run.weight_bytes,
        gradient_bytes=run.gradient_bytes,
        optimizer_state_bytes=run.optimizer_state_bytes,
        rest_bytes=rest,
        largest_batch=largest,
        core_count=machine.core_count,
        worker_count=run.worker_count,
    )
