"""Estimates as text for people."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from datetime import date

from neurontools.estimate import prior
from neurontools.estimate.cost import Cost
from neurontools.estimate.estimate import Estimate
from neurontools.estimate.interval import Interval
from neurontools.estimate.prices import ON_DEMAND
from neurontools.estimate.what_if import NOT_PREDICTED
from neurontools.util.formats import Column, ascii_table
from neurontools.util.units import UNKNOWN, bytes_text, count_text, duration_text, flops_text, percent_text

_LEAST_SHARE = 0.01
_WIDTH = 100
_SHORT_NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def text(estimates: Sequence[Estimate], today: date) -> str:
    """One estimate whole; several as a table, and then what they share."""
    if not estimates:
        return ""
    first = estimates[0]
    lines = _counted(first)
    if len(estimates) > 1:
        lines += ["", *ascii_table(_COLUMNS, [[each] for each in estimates]).splitlines()]
    else:
        lines += ["", *_whole(first)]
        lines += ["", *_what_ifs(first)]
    lines.append("")
    for sentence in _honesty(estimates, today):
        lines += textwrap.wrap(sentence, _WIDTH, subsequent_indent="  ")
    return "\n".join(lines) + "\n"


def dollars(usd: float) -> str:
    """Dollars with three digits that mean something: "$0.0123", "$4.56", "$1,234"."""
    if usd >= 100:
        return f"${usd:,.0f}"
    if usd >= 1 or usd <= 0:
        return f"${usd:.2f}"
    return f"${usd:.{2 - math.floor(math.log10(usd))}f}"


def _counted(estimate: Estimate) -> list[str]:
    run = estimate.run
    dtypes = ", ".join(
        f"{flops / run.flops:.0%} {_SHORT_NAMES.get(dtype, dtype)}" for dtype, flops in run.flops_by_dtype.items()
    )
    batch = "" if run.batch_samples is None else f", batch {run.batch_samples}"
    rows = [
        ("counted", f"{count_text(run.steps_total)} steps of {run.worker_count} worker(s){batch}"),
        ("a step", f"{flops_text(run.flops).replace('FLOPS', 'FLOP')} ({dtypes}), {run.executions:.3g} execution(s)"),
    ]
    if run.collectives:
        rows.append(("", f"{run.collectives:.3g} collective(s) of {bytes_text(round(run.collective_bytes))} in all"))
    return _aligned(rows)


def _whole(estimate: Estimate) -> list[str]:
    fit, step = estimate.fit, estimate.step
    verdict = "fits" if fit.fits else "DOES NOT FIT"
    if fit.worker_count > fit.core_count:
        verdict += f": {fit.worker_count} workers, {fit.core_count} cores"
    parts = [
        f"{name} {bytes_text(size)}"
        for name, size in (
            ("weights", fit.weight_bytes),
            ("gradients", fit.gradient_bytes),
            ("optimizer", fit.optimizer_state_bytes),
            ("activations and the rest", fit.rest_bytes),
        )
        if size is not None
    ]
    rows = [
        (estimate.instance_type, verdict),
        (
            "  HBM (counted)",
            f"{_memory(estimate)} a core, {_headroom(fit.headroom_bytes)}",
        ),
        ("", ", ".join(parts) or "its parts are not known"),
        (
            "  largest batch",
            UNKNOWN
            if fit.largest_batch is None
            else f"{count_text(fit.largest_batch)} a worker, if all but weights, gradients and optimizer grow with it",
        ),
        ("  cores (counted)", f"{fit.worker_count} used of {fit.core_count} paid"),
        ("  step (estimate)", step.total.text(duration_text) + f"; {_terms(estimate)}"),
        ("  samples/s", _interval(estimate.samples_per_second, _rate)),
        ("  MFU", _interval(estimate.mfu, _mfu)),
    ]
    for cost in estimate.costs:
        rows += [("  price (list)", cost.price.text()), *(("", f"  {line}") for line in _cost(cost))]
    if not estimate.costs:
        rows.append(("  price", "none is published; give your own with --prices"))
    return _aligned(rows)


def _memory(estimate: Estimate) -> str:
    return f"{bytes_text(estimate.fit.peak_bytes)} of {bytes_text(estimate.fit.core_memory_bytes)}"


def _headroom(headroom_bytes: int) -> str:
    if headroom_bytes < 0:
        return f"{bytes_text(-headroom_bytes)} too much"
    return f"{bytes_text(headroom_bytes)} left"


def _terms(estimate: Estimate) -> str:
    (longest, seconds), *others = estimate.step.parts.items()
    told = f"{longest} binds"
    if others:
        name, next_seconds = others[0]
        share = next_seconds / seconds if seconds else 0.0
        told += f", {name} is {share:.0%} of that" if share >= _LEAST_SHARE else ", all else is far below"
    return told


def _cost(cost: Cost) -> list[str]:
    told = [f"{cost.thousand_steps_usd.text(dollars)} for 1,000 steps"]
    if cost.million_samples_usd is not None:
        told.append(f"{cost.million_samples_usd.text(dollars)} for a million samples")
    if cost.epoch_usd is not None:
        told.append(f"{cost.epoch_usd.text(dollars)} an epoch")
    return told


def _what_ifs(estimate: Estimate) -> list[str]:
    if not estimate.what_ifs:
        return ["what if: nothing of what can be told applies"]
    rows = []
    for each in estimate.what_ifs:
        effect = UNKNOWN if each.speedup is None else f"{each.speedup.text(_two_digits)} times the samples/s"
        rows += [(f"  {each.change}", effect), ("", f"  {each.why}")]
    return ["what if (estimate)", *_aligned(rows)]


def _honesty(estimates: Sequence[Estimate], today: date) -> list[str]:
    first = estimates[0]
    lines = []
    if first.calibration is None:
        eta = f"{prior.ETA.low:.2f} to {prior.ETA.high:.2f}"
        lines.append(
            f"Times are estimates for a model that nobody measured: {eta} of the peak, and what the host launches. "
            f"Such an interval held {prior.FAMILIES_HELD} of {prior.FAMILIES} families of published rows; --calibrate "
            "narrows it."
        )
    else:
        count = first.calibration.row_count
        lines.append(
            f"Times are calibrated on {count} measured row(s): {first.calibration.eta.text(_two_digits)} of the peak, "
            f"{first.calibration.execution_seconds.text(duration_text)} an execution, {first.calibration.spread:.0%} "
            "more or less."
        )
    if first.run.flops_by_dtype.get("float32"):
        lines.append("float32 is multiplied at its own peak: --auto-cast is none by default since SDK 2.27.")
    lines.append(
        "Compiling takes minutes once a cache, and data, evaluation and checkpoints come on top: none of it is in here."
    )
    old = sorted({c.price.source for e in estimates for c in e.costs if c.price.is_old(today)})
    lines += [f"Warning: prices of {source} are older than a year; give today's with --prices." for source in old]
    lines.append("Not predicted: " + "; ".join(f"{what} ({why})" for what, why in NOT_PREDICTED) + ".")
    return lines


def _interval(interval: Interval | None, unit: Callable[[float], str]) -> str:
    return UNKNOWN if interval is None else interval.text(unit)


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


def _mfu(ratio: float) -> str:
    return percent_text(ratio, 1 if ratio >= 0.01 else 4)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}".rstrip() for name, value in rows]


def _price_cell(estimate: Estimate) -> str:
    if not estimate.costs:
        return UNKNOWN
    price = estimate.costs[0].price
    return f"${price.usd_per_hour:,.4g}" + ("" if price.kind == ON_DEMAND else f" ({price.kind})")


def _cost_cell(estimate: Estimate, read: Callable[[Cost], Interval | None]) -> str:
    return _interval(read(estimate.costs[0]), dollars) if estimate.costs else UNKNOWN


_COLUMNS: tuple[Column[Estimate], ...] = (
    Column(("INSTANCE", "TYPE"), lambda e: e.instance_type),
    Column(
        ("HBM A CORE", "(counted)"),
        _memory,
    ),
    Column(("FITS",), lambda e: "yes" if e.fit.fits else "NO"),
    Column(("CORES", "USED"), lambda e: f"{e.fit.worker_count} of {e.fit.core_count}"),
    Column(("STEP", "(estimate)"), lambda e: e.step.total.text(duration_text)),
    Column(("BINDS",), lambda e: e.step.binds),
    Column(("SAMPLES/S", "(estimate)"), lambda e: _interval(e.samples_per_second, _rate)),
    Column(("LIST PRICE", "AN HOUR"), _price_cell),
    Column(("1,000 STEPS", "(estimate)"), lambda e: _cost_cell(e, lambda cost: cost.thousand_steps_usd)),
    Column(("A MILLION SAMPLES", "(estimate)"), lambda e: _cost_cell(e, lambda cost: cost.million_samples_usd)),
)
