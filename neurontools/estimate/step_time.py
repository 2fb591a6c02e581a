"""How long a step takes: between what overlaps fully and what doesn't at all."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.estimate import prior
from neurontools.estimate.calibration import Calibration
from neurontools.estimate.counted_run import CountedRun
from neurontools.estimate.interval import Interval
from neurontools.estimate.machine import Machine


@dataclass(frozen=True, slots=True)
class StepTime:
    """The parts of a step in seconds, and the whole.

    `host` launches, `compute` multiplies, `memory` is the least time for what a graph takes and gives, `collectives`
    wait for other workers. `scenarios` are the times of a step if what is unknown were at one of its ends, always in
    the same order, so that those of a changed run can be held against them one by one.
    """

    host: Interval
    compute: Interval
    memory_seconds: float | None
    collectives: Interval
    scenarios: tuple[float, ...]
    spread: float  # a ratio: how far a measured step may be from the nearest scenario

    @property
    def total(self) -> Interval:
        """From the shortest to the longest that a step may take."""
        return Interval(min(self.scenarios) * (1 - self.spread), max(self.scenarios) * (1 + self.spread))

    @property
    def parts(self) -> dict[str, float]:
        """The middle of each part, the longest first."""
        middle = {"host launches": self.host.middle, "compute": self.compute.middle}
        if self.memory_seconds is not None:
            middle["memory"] = self.memory_seconds
        if self.collectives.high:
            middle["collectives"] = self.collectives.middle
        return dict(sorted(middle.items(), key=lambda item: -item[1]))

    @property
    def binds(self) -> str:
        """The longest part."""
        return next(iter(self.parts))


def step_time(run: CountedRun, machine: Machine, calibration: Calibration | None = None) -> StepTime:
    """The time of one optimizer step of a run on a machine: between all parts at once and one after the other."""
    peak_seconds = machine.seconds_at_peak(run.flops_by_dtype)
    memory_seconds = None
    if machine.memory_bytes_per_second is not None:
        memory_seconds = run.moved_bytes / machine.memory_bytes_per_second
    collectives = _collectives(run)

    def at_once(host: float, compute: float) -> float:
        return max(host, compute, memory_seconds or 0.0, collectives.low)

    def one_by_one(host: float, compute: float) -> float:
        return host + max(compute, memory_seconds or 0.0) + collectives.high

    if calibration is None:
        compute = prior.ETA.inverse(peak_seconds)
        launches = run.executions * prior.LAUNCH_SECONDS
        host = Interval(launches, launches + run.tensors * prior.TENSOR_SECONDS)
        scenarios = tuple(
            form(host_seconds, compute_seconds)
            for form in (at_once, one_by_one)
            for host_seconds in (host.low, host.high)
            for compute_seconds in (compute.low, compute.high)
        )
        return StepTime(host, compute, memory_seconds, collectives, scenarios, 0.0)
    both = (calibration.overlapping, calibration.adding)
    scenarios = tuple(
        form(fit.host_seconds * run.executions, fit.slowdown * peak_seconds)
        for form, fit in zip((at_once, one_by_one), both, strict=True)
    )
    return StepTime(
        host=calibration.execution_seconds * run.executions,
        compute=calibration.eta.inverse(peak_seconds),
        memory_seconds=memory_seconds,
        collectives=collectives,
        scenarios=scenarios,
        spread=calibration.spread,
    )


def _collectives(run: CountedRun) -> Interval:
    """What collectives take where nothing else goes on: a ring's share of the bytes, and a floor for each."""
    if run.worker_count < 2 or not run.collectives:
        return Interval(0.0, 0.0)
    floor = prior.COLLECTIVE_SECONDS * run.collectives
    share = 2 * (run.worker_count - 1) / run.worker_count * run.collective_bytes
    return floor + prior.BUS_BYTES_PER_SECOND.inverse(share) if share else floor
