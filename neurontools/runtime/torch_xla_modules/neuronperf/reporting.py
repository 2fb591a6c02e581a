"""Reports of measured models, and their output as text, CSV and JSON."""

from __future__ import annotations

import csv
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Report = dict[str, Any]
SUMMARY_COLS = (
    "throughput_avg",
    "latency_ms_p50",
    "latency_ms_p99",
    "n_models",
    "pipeline_size",
    "workers_per_model",
    "batch_size",
    "model_filename",
)
_PERCENTS = (0, 50, 90, 95, 99, 100)
REPORT_COLS = (
    *("model_name", "model_filename", "device_type", "status", "start_dts", "duration"),
    *("batch_size", "n_models", "workers_per_model", "pipeline_size", "cast_mode", "multiprocess", "multiinterpreter"),
    *("total_infs", "total_s", "throughput_avg", "throughput_peak", "latency_ms_avg"),
    *(f"latency_ms_p{percent}" for percent in _PERCENTS),
    *("load_avg_ms", "warmup_avg_ms", "preprocess_avg_ms", "postprocess_avg_ms", "e2e_avg_ms", "cost_per_1m_inf"),
)
_PEAK_INTERVALS = 10  # parts of the measured time; the one with most inferences has the peak throughput


def get_reports(results: Iterable[tuple[dict[str, Any], dict[str, Any]]]) -> list[Report]:
    """Summarizes results of `benchmark(…, return_timers=True)`: a dictionary for each configuration.

    Throughputs are samples a second, latencies milliseconds. Values are None if nothing was measured.
    """
    return [_report(config, timers) for config, timers in results]


def _report(config: dict[str, Any], timers: dict[str, Any]) -> Report:
    ends: list[float] = timers["ends"]
    latencies = sorted(timers["latencies"])
    seconds = max(ends) - timers["began"] if ends else None
    report = {**config, "status": timers["status"], "total_infs": len(latencies), "total_s": seconds}
    report["latency_ms_avg"] = _mean_ms(latencies)
    for percent in _PERCENTS:
        at = min(len(latencies) - 1, len(latencies) * percent // 100)
        report[f"latency_ms_p{percent}"] = round(latencies[at] * 1000, 3) if latencies else None
    for name in ("load", "warmup", "preprocess", "postprocess", "e2e"):
        report[f"{name}_avg_ms"] = _mean_ms(timers[name])
    average = peak = None
    if seconds:
        interval = seconds / _PEAK_INTERVALS
        counts = Counter(min(_PEAK_INTERVALS - 1, int((end - timers["began"]) / interval)) for end in ends)
        average = round(len(ends) * config["batch_size"] / seconds, 3)
        peak = max(average, round(max(counts.values()) * config["batch_size"] / interval, 3))
    report["throughput_avg"], report["throughput_peak"] = average, peak
    hourly = report.pop("cost_per_hour", None)
    report["cost_per_1m_inf"] = round(hourly / 3600 / average * 1e6, 4) if hourly is not None and average else None
    return report


def _mean_ms(seconds: Sequence[float]) -> float | None:
    return round(sum(seconds) / len(seconds) * 1000, 3) if seconds else None


def print_reports(
    reports: Sequence[Report],
    cols: Sequence[str] = SUMMARY_COLS,
    sort_by: str = "throughput_peak",
    reverse: bool = False,
) -> None:
    """Prints these columns of reports, a report a line, sorted by one column; reports without a value come first."""
    rows = sorted(reports, key=lambda report: (report.get(sort_by) is not None, report.get(sort_by) or 0))
    lines = [[*cols], *([_text(report.get(name)) for name in cols] for report in (rows[::-1] if reverse else rows))]
    widths = [max(len(line[at]) for line in lines) for at in range(len(cols))]
    for line in lines:
        print(" ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def write_csv(reports: Sequence[Report], filename: str | None = None, cols: Sequence[str] = REPORT_COLS) -> str:
    """Writes these columns of reports to a CSV file. Returns its name, made of model and time if none is given."""
    where = Path(filename or _default_name(reports, "csv"))
    with where.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*cols], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(reports)
    return str(where)


def write_json(reports: Sequence[Report], filename: str | None = None) -> str:
    """Writes reports to a JSON file. Returns its name, made of model and time if none is given."""
    where = Path(filename or _default_name(reports, "json"))
    where.write_text(json.dumps([*reports], indent=4) + "\n", "utf-8")
    return str(where)


def _default_name(reports: Sequence[Report], suffix: str) -> str:
    if not reports:
        raise ValueError(f"there are no reports to write; name a file if an empty {suffix} file is wanted")
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in str(reports[0]["model_name"]))
    return f"{name}_{time.strftime('%Y%m%d-%H%M%S')}.{suffix}"
