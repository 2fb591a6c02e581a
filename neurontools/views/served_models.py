"""Facts about served models in the details of a process: requests, latencies, histogram, placement and tokens."""

from __future__ import annotations

from math import log

from neurontools.model import LatencyHistogram, LatencyPercentiles, Process, ServedModel, ServedModelRates
from neurontools.model.execution import bucket_seconds
from neurontools.model.process import age_seconds
from neurontools.util import units
from neurontools.util.units import ranges_text
from neurontools.views.drawing.glyphs import Glyphs, sparkline
from neurontools.views.drawing.lines import printable

_SHOWN_MODELS = 4
_HISTOGRAM_CELLS = 32


def served_model_facts(process: Process, glyphs: Glyphs, now_seconds: float) -> list[tuple[str, str]]:
    """Returns the names and texts of facts about the served models of a process, those with most requests first."""
    found = sorted(process.served_models, key=lambda served: -served.requests_total)
    facts = [fact for served in found[:_SHOWN_MODELS] for fact in _model_facts(served, glyphs, now_seconds)]
    if len(found) > _SHOWN_MODELS:
        facts.append(("serving", f"{len(found) - _SHOWN_MODELS} more models in neuron-top --json"))
    return facts


def _model_facts(served: ServedModel, glyphs: Glyphs, now_seconds: float) -> list[tuple[str, str]]:
    rates = served.rates or ServedModelRates()
    last = units.duration_text(age_seconds(served.last_request_at_seconds, now_seconds))
    batch = units.UNKNOWN if rates.batch_size is None else f"{rates.batch_size:.3g}"
    facts = [
        (
            "serving",
            (
                f"{printable(served.name, 60)}: {units.rate_text(rates.requests_per_second)} requests/s, "
                f"batch {batch}; {units.count_text(served.requests_total)} so far, "
                f"{units.count_text(served.failed_requests_total)} failed, last {last} ago"
            ),
        ),
        ("  latency", f"{_latency_text(rates.total_latency)}; on the core {_latency_text(rates.device_latency)}"),
    ]
    if served.total_latency_histogram.bucket_counts:
        facts.append(("  histogram", latency_histogram_text(served.total_latency_histogram, glyphs)))
    waiting = units.UNKNOWN if served.queue_depth is None else units.count_text(served.queue_depth)
    facts.append(("  queue", f"{waiting} waiting, mean wait {units.duration_text(rates.queue_wait_seconds)}"))
    if served.placements:
        facts.append(
            (
                "  loaded",
                (
                    f"on NC {ranges_text(served.neuroncore_indices)} in {units.duration_text(served.load_seconds)}, "
                    f"HBM {units.bytes_text(served.device_memory_bytes)}"
                ),
            )
        )
    if served.tokens_total is not None:
        facts.append(
            (
                "  tokens",
                (
                    f"{units.rate_text(rates.tokens_per_second)}/s, {units.count_text(served.tokens_total)} so far; "
                    f"first after {_middle_text(rates.time_to_first_token)}, "
                    f"then {_middle_text(rates.time_per_output_token)} each"
                ),
            )
        )
    return facts


def _latency_text(latency: LatencyPercentiles | None) -> str:
    if latency is None:
        return units.UNKNOWN
    return "  ".join(
        f"{name} {units.duration_text(getattr(latency, f'{name}_seconds'))}" for name in ("p50", "p90", "p99", "p100")
    )


def _middle_text(latency: LatencyPercentiles | None) -> str:
    if latency is None:
        return units.UNKNOWN
    return f"{units.duration_text(latency.p50_seconds)} (p99 {units.duration_text(latency.p99_seconds)})"


def latency_histogram_text(histogram: LatencyHistogram, glyphs: Glyphs) -> str:
    """Draws a histogram that is not empty as a sparkline between its bounds, with latencies on a logarithmic scale."""
    shortest, longest = (bucket_seconds(histogram.bucket_indices[end]) for end in (0, -1))
    span = log(longest / shortest)
    bins = [0] * (_HISTOGRAM_CELLS if span else 1)
    for index, count in zip(histogram.bucket_indices, histogram.bucket_counts, strict=True):
        position = log(bucket_seconds(index) / shortest) / span if span else 0.0
        bins[min(len(bins) - 1, int(position * len(bins)))] += count
    drawn = sparkline([count or None for count in bins], len(bins), glyphs, max(bins))
    return f"{units.duration_text(shortest)} {drawn} {units.duration_text(longest)}, all since it began to count"
