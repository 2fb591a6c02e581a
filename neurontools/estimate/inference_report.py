"""Formats estimates of inference as text for the terminal and as JSON data for --summary-json."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import date
from typing import Any

from neurontools.estimate.inference import LATENCY_FITS, BatchEstimate, InferenceEstimate
from neurontools.estimate.report import (
    FLOAT32_PEAK,
    align_columns,
    dollars,
    ends,
    interval_text,
    old_price_warnings,
    rate_text,
    what_if_documents,
    what_if_lines,
    work_text,
)
from neurontools.util.formats import Column, ascii_table
from neurontools.util.terminal import escape_controls
from neurontools.util.units import UNKNOWN, count_text, duration_text, iec_bytes_text, percent_text

_WIDTH = 100
_NOT_PREDICTED = (
    "Not included: queues of a server, tokenizers and other host code, compilation. Not predicted: padding inside a "
    "sample, several calls at a time on a core, collectives of models on several cores, kernels (NKI), SDK releases."
)


def format_inference(estimates: Sequence[InferenceEstimate], today: date) -> str:
    """Formats the estimates of one run. One instance type gets a table by batch size, several types one line each."""
    if not estimates:
        return ""
    lines: list[str] = []
    types = dict.fromkeys(each.instance_type for each in estimates)
    models = dict.fromkeys(id(each.model) for each in estimates)
    for model in models:
        of_model = [each for each in estimates if id(each.model) == model]
        lines += _counted_lines(of_model[0])
        if len(types) > 1:
            lines += ["", *ascii_table(_TYPE_COLUMNS, [[each] for each in of_model]).splitlines(), ""]
            continue
        (each,) = of_model
        lines += ["", *_instance_lines(each), ""]
        lines += [*ascii_table(_BATCH_COLUMNS, [[batch] for batch in each.batches]).splitlines(), ""]
        lines += [*what_if_lines(each.what_ifs), ""]
    for sentence in _caveats(estimates, today):
        lines += textwrap.wrap(sentence, _WIDTH, subsequent_indent="  ")
    return "\n".join(lines) + "\n"


def _counted_lines(estimate: InferenceEstimate) -> list[str]:
    model = estimate.model
    batch = "" if model.batch_samples is None else f", batch {model.batch_samples}"
    rows = [
        ("counted", f"{escape_controls(model.name)}: {count_text(model.executions_total)} executions{batch}"),
        ("an execution", f"{work_text(model.flops_by_dtype)}, {model.family}"),
    ]
    if model.cores_per_execution > 1:
        rows.append(("", f"on each of {model.cores_per_execution} cores"))
    if model.padding_ratio:
        rows.append(("padding", f"{percent_text(model.padding_ratio, 0)} of the rows"))
    return align_columns(rows)


def _memory_text(estimate: InferenceEstimate) -> str:
    return f"{iec_bytes_text(estimate.traced.core_bytes)} of {iec_bytes_text(estimate.core_memory_bytes)}"


def _instance_lines(estimate: InferenceEstimate) -> list[str]:
    traced = estimate.traced
    rows = [
        (estimate.instance_type, "fits" if traced.fits else "DOES NOT FIT"),
        (
            "  HBM (counted)",
            f"{_memory_text(estimate)} a core, weights and code are {iec_bytes_text(estimate.model.fixed_bytes)}",
        ),
        ("  cores (counted)", f"{estimate.used_cores} used of {estimate.core_count} paid; the rates below use all"),
        (
            "  price (list)",
            "none is published; give your own with --prices" if not estimate.price else estimate.price.text(),
        ),
    ]
    return align_columns(rows)


_BATCH_COLUMNS: tuple[Column[BatchEstimate], ...] = (
    Column(("BATCH",), lambda e: UNKNOWN if e.batch_samples is None else str(e.batch_samples)),
    Column(("LATENCY OF A CALL", "(estimate)"), lambda e: e.latency_seconds.text(duration_text)),
    Column(("CALLS/S", "(estimate)"), lambda e: e.executions_per_second.text(rate_text)),
    Column(("SAMPLES/S", "(estimate)"), lambda e: interval_text(e.samples_per_second, rate_text)),
    Column(("A MILLION", "(estimate)"), lambda e: interval_text(e.million_usd, dollars)),
    Column(("HBM A CORE",), lambda e: iec_bytes_text(e.core_bytes) + ("" if e.fits else " (TOO MUCH)")),
)

_TYPE_COLUMNS: tuple[Column[InferenceEstimate], ...] = (
    Column(("INSTANCE", "TYPE"), lambda e: e.instance_type),
    Column(("HBM A CORE", "(counted)"), _memory_text),
    Column(("FITS",), lambda e: "yes" if e.traced.fits else "NO"),
    Column(("CORES", "USED"), lambda e: f"{e.used_cores} of {e.core_count}"),
    Column(("LATENCY OF A CALL", "(estimate)"), lambda e: e.traced.latency_seconds.text(duration_text)),
    Column(("CALLS/S, ALL CORES", "(estimate)"), lambda e: e.traced.executions_per_second.text(rate_text)),
    Column(("LIST PRICE", "AN HOUR"), lambda e: UNKNOWN if e.price is None else f"${e.price.usd_per_hour:,.4g}"),
    Column(("A MILLION", "(estimate)"), lambda e: interval_text(e.traced.million_usd, dollars)),
)


def _caveats(estimates: Sequence[InferenceEstimate], today: date) -> list[str]:
    lines = []
    for family in dict.fromkeys(each.model.family for each in estimates):
        fit = LATENCY_FITS[family]
        lines.append(
            f'Latency, family "{family}": {fit.launch_seconds.text(duration_text)} for the launch, compute at '
            f"{fit.eta.text(lambda value: f'{value:.2f}')} of the peak, times or divided by {fit.factor:g}. Fitted to "
            "published rows; see docs/estimate.md for their errors."
        )
    if any(each.model.flops_by_dtype.get("float32") for each in estimates):
        lines.append(FLOAT32_PEAK)
    if any(each.model.batch_samples is None for each in estimates):
        lines.append("Batches are known for traced models only (torch_neuronx.trace); a million are executions here.")
    lines += old_price_warnings((each.price for each in estimates if each.price is not None), today)
    lines.append(_NOT_PREDICTED)
    return lines


def inference_document(estimate: InferenceEstimate) -> dict[str, Any]:
    """Returns one estimate as JSON data. An interval is a list of its two ends; None means unknown."""
    model, price = estimate.model, estimate.price
    return {
        "instance_type": estimate.instance_type,
        "model": model.name,
        "counted": {
            "fits": estimate.traced.fits,
            "core_memory_bytes": estimate.core_memory_bytes,
            "fixed_bytes": model.fixed_bytes,
            "activation_bytes": model.activation_bytes,
            "executions_total": model.executions_total,
            "batch_samples": model.batch_samples,
            "padding_ratio": model.padding_ratio,
            "flops_by_dtype": dict(model.flops_by_dtype),
            "family": str(model.family),
            "cores_per_execution": model.cores_per_execution,
            "used_cores": estimate.used_cores,
            "core_count": estimate.core_count,
        },
        "estimated": {
            "batches": [
                {
                    "batch_samples": each.batch_samples,
                    "latency_seconds": ends(each.latency_seconds),
                    "executions_per_second": ends(each.executions_per_second),
                    "samples_per_second": ends(each.samples_per_second),
                    "million_usd": ends(each.million_usd),
                    "core_bytes": each.core_bytes,
                    "fits": each.fits,
                }
                for each in estimate.batches
            ]
        },
        "price": None if price is None else {"kind": price.kind, "usd_per_hour": price.usd_per_hour},
        "what_ifs": what_if_documents(estimate.what_ifs),
    }
