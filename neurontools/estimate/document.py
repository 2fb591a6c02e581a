"""Estimates as data, for --summary-json."""

from __future__ import annotations

from typing import Any

from neurontools.estimate import prior
from neurontools.estimate.cost import Cost
from neurontools.estimate.estimate import Estimate
from neurontools.estimate.interval import Interval
from neurontools.estimate.what_if import NOT_PREDICTED


def document(estimate: Estimate) -> dict[str, Any]:
    """One estimate; an interval is a list of its ends, and None is what isn't known."""
    fit, step = estimate.fit, estimate.step
    return {
        "instance_type": estimate.instance_type,
        "counted": {
            "fits": fit.fits,
            "core_memory_bytes": fit.core_memory_bytes,
            "hbm_peak_bytes": fit.peak_bytes,
            "weight_bytes": fit.weight_bytes,
            "gradient_bytes": fit.gradient_bytes,
            "optimizer_state_bytes": fit.optimizer_state_bytes,
            "rest_bytes": fit.rest_bytes,
            "headroom_bytes": fit.headroom_bytes,
            "largest_batch": fit.largest_batch,
            "worker_count": fit.worker_count,
            "core_count": fit.core_count,
            "flops_by_dtype": dict(estimate.run.flops_by_dtype),
            "executions_per_step": estimate.run.executions,
        },
        "estimated": {
            "step_seconds": _ends(step.total),
            "host_seconds": _ends(step.host),
            "compute_seconds": _ends(step.compute),
            "memory_seconds": step.memory_seconds,
            "collective_seconds": _ends(step.collectives),
            "binds": step.binds,
            "samples_per_second": _ends(estimate.samples_per_second),
            "mfu_ratio": _ends(estimate.mfu),
        },
        "costs": [_cost(cost) for cost in estimate.costs],
        "what_ifs": [
            {"change": each.change, "speedup": _ends(each.speedup), "peak_bytes": each.peak_bytes, "why": each.why}
            for each in estimate.what_ifs
        ],
        "not_predicted": [what for what, _ in NOT_PREDICTED],
        "calibrated_on_rows": None if estimate.calibration is None else estimate.calibration.row_count,
        "coverage": None if estimate.calibration is not None else [prior.FAMILIES_HELD, prior.FAMILIES],
    }


def _cost(cost: Cost) -> dict[str, Any]:
    price = cost.price
    return {
        "kind": price.kind,
        "usd_per_hour": price.usd_per_hour,
        "region": price.region,
        "date": None if price.read_on is None else price.read_on.isoformat(),
        "source": price.source,
        "thousand_steps_usd": _ends(cost.thousand_steps_usd),
        "million_samples_usd": _ends(cost.million_samples_usd),
        "epoch_usd": _ends(cost.epoch_usd),
    }


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]
