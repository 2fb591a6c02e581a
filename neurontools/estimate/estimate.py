"""An estimate for one instance type: what is counted, what is listed and what is estimated, apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neurontools.estimate.calibration import Calibration
from neurontools.estimate.cost import Cost, cost
from neurontools.estimate.counted_run import CountedRun
from neurontools.estimate.fit import Fit, fit
from neurontools.estimate.interval import Interval
from neurontools.estimate.machine import Machine
from neurontools.estimate.prices import Price, list_prices
from neurontools.estimate.step_time import StepTime, step_time
from neurontools.estimate.what_if import WhatIf, what_ifs


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run would need, take and cost on one instance type.

    `fit` is counted, `prices` in `costs` are of a list, the rest is estimated. `mfu` is the share of the peak of
    bfloat16, as everywhere else; `costs` is empty where no price is published.
    """

    instance_type: str
    run: CountedRun
    machine: Machine
    fit: Fit
    step: StepTime
    samples_per_second: Interval | None
    mfu: Interval | None
    costs: tuple[Cost, ...]
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
    """Estimates a run on an instance type; EstimateError for a type that isn't known.

    `prices` are one's own; those of this type are shown before the catalog's.
    """
    machine = Machine.of(instance_type)
    step = step_time(run, machine, calibration)
    samples = None if run.samples is None else run.samples * run.worker_count
    peak = machine.peak_flops.get("bfloat16")
    own = [price for price in prices if price.instance_type == instance_type]
    return Estimate(
        instance_type=instance_type,
        run=run,
        machine=machine,
        fit=fit(run, machine),
        step=step,
        samples_per_second=None if samples is None else step.total.inverse(samples),
        mfu=None if peak is None else step.total.inverse(run.flops / peak),
        costs=tuple(cost(price, step.total, samples, epoch_samples) for price in (*own, *list_prices(instance_type))),
        what_ifs=tuple(what_ifs(run, machine, calibration)),
        calibration=calibration,
    )
