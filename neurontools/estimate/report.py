"""Formats estimates as text for the terminal and as JSON data for --summary-json."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from itertools import chain
from typing import Any

from neurontools.estimate.calibration import (
    BEST_ETA,
    DECODER_ETA,
    IMAGE_VCPU_SECONDS,
    ROWS,
    ROWS_HELD,
    UNMEASURED_TENSOR_SECONDS,
    Interval,
)
from neurontools.estimate.counted_run import CountedRun
from neurontools.estimate.families import ModelFamily
from neurontools.estimate.instances import ON_DEMAND, Price
from neurontools.estimate.training import NOT_PREDICTED, Estimate, PeerMeasurement, TrainingCost, WhatIf
from neurontools.util.formats import Column, ascii_table
from neurontools.util.units import UNKNOWN, count_text, duration_text, flops_text, iec_bytes_text, percent_text
from neurontools.util.units import counted as number_of

_LEAST_SHARE = 0.01
_PEER_MARK = "(your row)"
_WIDTH = 100
FLOAT32_PEAK = "float32 is multiplied at the float32 peak: --auto-cast is none by default since SDK 2.27."
_SHORT_NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def format_estimates(
    estimates: Sequence[Estimate],
    today: date,
    counted: CountedRun | None = None,
    *,
    peers: Sequence[PeerMeasurement] = (),
    lists_unpredicted: bool = False,
) -> str:
    """Formats one estimate in full, several as a table. Warns of prices more than a year older than `today`.

    `peers` are rows of the table that the user measured. `counted` is the run as it was counted, if the estimates are
    of other batches or workers. With `lists_unpredicted`, ends with the changes whose effect the model can't predict.
    """
    if not estimates:
        return ""
    first = estimates[0]
    lines = _counter_lines(counted or first.run)
    if len(estimates) + len(peers) > 1:
        batches = {each.run.batch_samples for each in estimates}
        columns = _columns(
            _memory_origin(first.run, counted),
            has_batches=len(batches) > 1 or bool(peers),
            has_epochs=any(cost.epoch_usd for each in estimates for cost in each.costs),
            has_free_cores=any(each.fit.worker_count < each.fit.core_count for each in estimates),
        )
        rows: list[_Row] = [*estimates, *peers]
        lines += ["", *ascii_table(columns, [[row] for row in rows]).splitlines()]
    else:
        lines += ["", *_full_lines(first, _memory_origin(first.run, counted))]
        lines += ["", *what_if_lines(first.what_ifs)]
    lines.append("")
    if peers:
        lines.append(f"Rows {_PEER_MARK} are measurements that you gave with --calibrate, and no estimates.")
    for sentence in _caveats(estimates, today, counted, lists_unpredicted=lists_unpredicted):
        lines += textwrap.wrap(sentence, _WIDTH, subsequent_indent="  ")
    return "\n".join(lines) + "\n"


def dollars(usd: float) -> str:
    """Formats US dollars with three significant digits: "$0.0123", "$4.56", "$1,234"."""
    if usd >= 100:
        return f"${usd:,.0f}"
    if usd >= 1 or usd <= 0:
        return f"${usd:.2f}"
    return f"${usd:.{2 - math.floor(math.log10(usd))}f}"


def work_text(flops_by_dtype: Mapping[str, float]) -> str:
    """Formats FLOPs and the share of each element type: "2.1 GFLOP (100% fp32)"."""
    total = sum(flops_by_dtype.values())
    dtypes = ", ".join(f"{flops / total:.0%} {_SHORT_NAMES.get(name, name)}" for name, flops in flops_by_dtype.items())
    return f"{flops_text(total).replace('FLOPS', 'FLOP')} ({dtypes})"


def _counter_lines(run: CountedRun) -> list[str]:
    batch = "" if run.batch_samples is None else f", batch {run.batch_samples}"
    rows = [
        ("counted", f"{count_text(run.steps_total)} steps of {number_of(run.worker_count, 'worker')}{batch}"),
        ("a step", f"{work_text(run.flops_by_dtype)}, {_amount(run.executions, 'execution')}"),
    ]
    if run.collectives:
        rows.append(
            ("", f"{_amount(run.collectives, 'collective')} of {iec_bytes_text(round(run.collective_bytes))} in total")
        )
    return align_columns(rows)


def _amount(value: float, noun: str) -> str:
    """Formats a mean number of things: "1 execution", "1.25 executions"."""
    return f"{value:.3g} {noun}{'' if value == 1 else 's'}"


def _memory_origin(run: CountedRun, counted: CountedRun | None) -> str:
    """Returns the origin of the memory and the cores of an estimate: counted in a run, or calculated for another."""
    return "counted" if counted is None or run is counted else "calculated"


def _full_lines(estimate: Estimate, origin: str) -> list[str]:
    fit, step = estimate.fit, estimate.step
    verdict = "fits" if fit.fits else f"DOES NOT FIT: {fit.obstacle}"
    parts = [
        f"{name} {iec_bytes_text(size)}"
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
            f"  HBM ({origin})",
            f"{_memory_text(estimate)} a core, {_headroom_text(fit.headroom_bytes)}",
        ),
        ("", ", ".join(parts) or "its parts are unknown"),
        (
            "  largest batch",
            UNKNOWN
            if fit.largest_batch is None
            else f"{count_text(fit.largest_batch)} a worker, if all but weights, gradients and optimizer grows with it",
        ),
        (f"  cores ({origin})", f"{fit.worker_count} used of {fit.core_count} paid"),
        (
            "  step (estimate)",
            f"{step.total.text(duration_text)}; {_binding_text(estimate)}"
            if fit.fits
            else f"{UNKNOWN}: the run does not fit",
        ),
        ("  samples/s", interval_text(estimate.samples_per_second, rate_text)),
        ("  MFU", interval_text(estimate.mfu, _mfu_text)),
    ]
    for cost in estimate.costs:
        rows += [("  price (list)", cost.price.text()), *(("", f"  {line}") for line in _cost_lines(cost))]
        if cost is estimate.costs[0] and cost.all_cores_million_usd and fit.worker_count < fit.core_count:
            usd = cost.all_cores_million_usd.text(dollars)
            rows.append(("", f"  {usd} with all {fit.core_count} cores as busy, for which you pay"))
    if not estimate.costs:
        rows.append(("  price", "none is published; give your own with --prices"))
    return align_columns(rows)


def _memory_text(estimate: Estimate) -> str:
    return f"{iec_bytes_text(estimate.fit.peak_bytes)} of {iec_bytes_text(estimate.fit.core_memory_bytes)}"


def _headroom_text(headroom_bytes: int) -> str:
    if headroom_bytes < 0:
        return f"{iec_bytes_text(-headroom_bytes)} too much"
    return f"{iec_bytes_text(headroom_bytes)} left"


def _binding_text(estimate: Estimate) -> str:
    (longest, seconds), *others = estimate.step.parts.items()
    sentence = f"{longest} binds"
    if others:
        name, next_seconds = others[0]
        share = next_seconds / seconds if seconds else 0.0
        sentence += f", {name} is {share:.0%} of that" if share >= _LEAST_SHARE else ", all else is below 1%"
    return sentence


def _cost_lines(cost: TrainingCost) -> list[str]:
    lines = []
    if cost.thousand_steps_usd is not None:
        lines.append(f"{cost.thousand_steps_usd.text(dollars)} for 1,000 steps")
    if cost.million_samples_usd is not None:
        lines.append(f"{cost.million_samples_usd.text(dollars)} for a million samples")
    if cost.epoch_usd is not None:
        lines.append(f"{cost.epoch_usd.text(dollars)} an epoch")
    return lines


def what_if_lines(what_ifs: Sequence[WhatIf]) -> list[str]:
    """Returns two lines for each change: its text, and its predicted effect."""
    if not what_ifs:
        return ["what if: no change with a predictable effect applies"]
    rows = [
        (
            f"  {each.change}",
            UNKNOWN if each.speedup is None else f"{each.speedup.text(_two_digits)} times the samples/s",
        )
        for each in what_ifs
    ]
    reasons = (f"    {each.why}" for each in what_ifs)
    return ["what if (estimate)", *chain.from_iterable(zip(align_columns(rows), reasons, strict=True))]


def _caveats(
    estimates: Sequence[Estimate], today: date, counted: CountedRun | None, *, lists_unpredicted: bool
) -> list[str]:
    first = estimates[0]
    lines = []
    if first.calibration is None:
        assumed = f"{BEST_ETA} of the peak, {1e6 * UNMEASURED_TENSOR_SECONDS:.0f} us of the host a tensor of a graph"
        if first.run.family is ModelFamily.DECODER:
            assumed = f"{DECODER_ETA} of the peak"
        lines.append(
            f'Times are estimates for an unmeasured model of the family "{first.run.family}": {assumed}, divided and '
            f"multiplied by 2. Such an interval contained the measurement for {ROWS_HELD} of {ROWS} published rows; "
            "--calibrate narrows it."
        )
    else:
        count = first.calibration.row_count
        lines.append(
            f"Times are calibrated on {count} measured row(s): {first.calibration.eta.text(_two_digits)} of the peak, "
            f"{first.calibration.execution_seconds.text(duration_text)} an execution, plus or minus "
            f"{first.calibration.spread:.0%}."
        )
    if first.run.flops_by_dtype.get("float32"):
        lines.append(FLOAT32_PEAK)
    if counted is not None and first.run is not counted:
        lines.append(
            "Batches, workers and degrees are calculated, not run: collectives inside a copy of the model and waits of "
            "pipeline stages are left out."
        )
    decoding = [
        f"{each.step.with_images.text(duration_text)} on {each.instance_type}"
        for each in estimates
        if each.step.with_images is not None and each.fit.fits
    ]
    if decoding:
        lines.append(
            f"If the host decodes each image ({1e3 * IMAGE_VCPU_SECONDS:.0f} ms of a vCPU), a step takes "
            f"{', '.join(decoding)}."
        )
    lines.append("Not included: compilation (minutes, once per cache), data loading, evaluation and checkpoints.")
    lines += old_price_warnings((cost.price for each in estimates for cost in each.costs), today)
    if lists_unpredicted:
        lines.append("Not predicted: " + "; ".join(f"{change} ({why})" for change, why in NOT_PREDICTED) + ".")
    return lines


def old_price_warnings(prices: Iterable[Price], today: date) -> list[str]:
    """Returns a warning for each source with a price more than a year older than `today`."""
    old = sorted({price.source for price in prices if price.is_old(today)})
    return [f"Warning: prices of {source} are older than a year; give current ones with --prices." for source in old]


def interval_text(interval: Interval | None, unit: Callable[[float], str]) -> str:
    """Formats an interval; "-" for None."""
    return UNKNOWN if interval is None else interval.text(unit)


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


def _mfu_text(ratio: float) -> str:
    return percent_text(ratio, 1 if ratio >= 0.01 else 4)


def rate_text(value: float) -> str:
    """Formats a rate: whole numbers from 100 on, such as "1,234"; below 100, three digits, such as "12.3"."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def align_columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Returns a line for each name and value, with all values in one column."""
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}".rstrip() for name, value in rows]


_Row = Estimate | PeerMeasurement


def _price_cell(row: _Row) -> str:
    if not row.costs:
        return UNKNOWN
    price = row.costs[0].price
    return f"${price.usd_per_hour:,.4g}" + ("" if price.kind == ON_DEMAND else f" ({price.kind})")


def _cost_cell(row: _Row, amount: Callable[[TrainingCost], Interval | None]) -> str:
    return interval_text(amount(row.costs[0]), dollars) if row.costs else UNKNOWN


def _column(
    title: tuple[str, ...],
    estimated: Callable[[Estimate], str],
    measured: Callable[[PeerMeasurement], str] = lambda _: UNKNOWN,
) -> Column[_Row]:
    """Returns a column of estimates, and of what the user measured on instances of other kinds."""
    return Column(title, lambda row: measured(row) if isinstance(row, PeerMeasurement) else estimated(row))


def _cost_column(title: tuple[str, ...], amount: Callable[[TrainingCost], Interval | None]) -> Column[_Row]:
    return Column(title, lambda row: _cost_cell(row, amount))


def _columns(origin: str, *, has_batches: bool, has_free_cores: bool, has_epochs: bool) -> tuple[Column[_Row], ...]:
    batch = _column(
        ("BATCH",),
        lambda e: UNKNOWN if e.run.batch_samples is None else str(e.run.batch_samples),
        lambda peer: str(peer.row.batch),
    )
    all_cores = _cost_column(("A MILLION WITH", "ALL CORES BUSY"), lambda cost: cost.all_cores_million_usd)
    return (
        _column(("INSTANCE", "TYPE"), lambda e: e.instance_type, lambda peer: f"{peer.row.instance_type} {_PEER_MARK}"),
        *((batch,) if has_batches else ()),
        _column(("HBM A CORE", f"({origin})"), _memory_text),
        _column(("FITS",), lambda e: "yes" if e.fit.fits else f"NO: {e.fit.obstacle}"),
        _column(("CORES", "USED"), lambda e: f"{e.fit.worker_count} of {e.fit.core_count}"),
        _column(
            ("STEP", "(estimate)"),
            lambda e: e.step.total.text(duration_text) if e.fit.fits else UNKNOWN,
            lambda peer: duration_text(peer.step_seconds),
        ),
        _column(("BINDS",), lambda e: e.step.binds if e.fit.fits else UNKNOWN),
        _column(
            ("SAMPLES/S", "(estimate)"),
            lambda e: interval_text(e.samples_per_second, rate_text),
            lambda peer: rate_text(peer.row.samples_per_second),
        ),
        Column(("LIST PRICE", "AN HOUR"), _price_cell),
        _cost_column(("1,000 STEPS", "(estimate)"), lambda cost: cost.thousand_steps_usd),
        _cost_column(("A MILLION SAMPLES", "(estimate)"), lambda cost: cost.million_samples_usd),
        *((all_cores,) if has_free_cores else ()),
        *((_cost_column(("AN EPOCH", "(estimate)"), lambda cost: cost.epoch_usd),) if has_epochs else ()),
    )


def estimate_document(estimate: Estimate) -> dict[str, Any]:
    """Returns one estimate as JSON data. An interval is a list of its two ends; None means unknown."""
    fit, step = estimate.fit, estimate.step
    return {
        "instance_type": estimate.instance_type,
        "counted": {
            "fits": fit.fits,
            "obstacle": fit.obstacle or None,
            "core_memory_bytes": fit.core_memory_bytes,
            "hbm_peak_bytes": fit.peak_bytes,
            "weight_bytes": fit.weight_bytes,
            "gradient_bytes": fit.gradient_bytes,
            "optimizer_state_bytes": fit.optimizer_state_bytes,
            "rest_bytes": fit.rest_bytes,
            "headroom_bytes": fit.headroom_bytes,
            "largest_batch": fit.largest_batch,
            "worker_count": fit.worker_count,
            "batch_samples": estimate.run.batch_samples,
            "core_count": fit.core_count,
            "flops_by_dtype": dict(estimate.run.flops_by_dtype),
            "executions_per_step": estimate.run.executions,
        },
        "estimated": {
            "step_seconds": ends(step.total) if fit.fits else None,
            "step_seconds_with_images": ends(step.with_images) if fit.fits else None,
            "host_seconds": ends(step.host),
            "compute_seconds": ends(step.compute),
            "memory_seconds": step.memory_seconds,
            "collective_seconds": ends(step.collectives),
            "binds": step.binds,
            "samples_per_second": ends(estimate.samples_per_second),
            "mfu_ratio": ends(estimate.mfu),
        },
        "costs": [_cost_document(cost) for cost in estimate.costs],
        "what_ifs": what_if_documents(estimate.what_ifs),
        "not_predicted": [change for change, _ in NOT_PREDICTED],
        "calibrated_on_rows": None if estimate.calibration is None else estimate.calibration.row_count,
        "coverage": None if estimate.calibration is not None else [ROWS_HELD, ROWS],
    }


def peer_document(peer: PeerMeasurement) -> dict[str, Any]:
    """Returns the measurement of an instance of another kind as JSON data."""
    return {
        **asdict(peer.row),
        "step_seconds": peer.step_seconds,
        "costs": [_cost_document(cost) for cost in peer.costs],
    }


def what_if_documents(what_ifs: Sequence[WhatIf]) -> list[dict[str, Any]]:
    """Returns the predicted effects of changes as JSON data."""
    return [
        {"change": each.change, "speedup": ends(each.speedup), "peak_bytes": each.peak_bytes, "why": each.why}
        for each in what_ifs
    ]


def _cost_document(cost: TrainingCost) -> dict[str, Any]:
    price = cost.price
    return {
        "kind": price.kind,
        "usd_per_hour": price.usd_per_hour,
        "region": price.region,
        "date": None if price.read_on is None else price.read_on.isoformat(),
        "source": price.source,
        "thousand_steps_usd": ends(cost.thousand_steps_usd),
        "million_samples_usd": ends(cost.million_samples_usd),
        "epoch_usd": ends(cost.epoch_usd),
        "all_cores_million_usd": ends(cost.all_cores_million_usd),
    }


def ends(interval: Interval | None) -> list[float] | None:
    """Returns the two ends of an interval as JSON data."""
    return None if interval is None else [interval.low, interval.high]
