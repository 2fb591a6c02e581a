"""The summary and the estimate that neuron-run prints when the script has ended."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neurontools.cli.line import whole_option
from neurontools.util.command_lifecycle import write_text
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.formats import json_text
from neurontools.util.units import UNKNOWN, count_text, duration_text, flops_text, iec_bytes_text, percent_text

if TYPE_CHECKING:
    from neurontools.estimate import Calibration, CalibrationRow, CountedRun, Price
    from neurontools.estimate.parallelism import Degrees


_SUMMED_FIELDS = (
    *("samples_total", "graphs_compiled_total", "executions_total", "failed_executions_total", "busy_seconds"),
    *("flop_total", "to_device_bytes", "from_device_bytes", "collective_seconds", "collective_bytes"),
    *("collectives_total", "numerical_errors_total", "fallbacks_total", "compile_seconds"),
)
_MAX_FIELDS = (
    *("steps_total", "hbm_peak_bytes", "step_p50_seconds", "step_p99_seconds", "execution_p50_seconds"),
    *("execution_p99_seconds", "collective_p50_seconds", "collective_p99_seconds", "training_seconds"),
)


def read_workers(directory: Path | None) -> list[dict[str, Any]]:
    """Returns the last counters of each worker, sorted by rank. After a kill, they may be a second old."""
    found = []
    for path in directory.glob("*.json") if directory is not None else ():
        try:
            found.append(json.loads(path.read_text()))
        except (OSError, ValueError):
            continue
    return sorted((w for w in found if isinstance(w, dict)), key=lambda worker: worker.get("rank", 0))


def combine_workers(
    workers: list[dict[str, Any]], exit_code: int, wall_seconds: float, worker_count: int | None = None
) -> dict[str, Any]:
    """Returns the summary of all workers: the sums of their counters, and their highest step times and peaks.

    `worker_count` includes workers that wrote no counters; None means the length of `workers`.
    """
    count = len(workers) if worker_count is None else worker_count
    document: dict[str, Any] = {"exit_code": exit_code, "wall_seconds": wall_seconds, "workers": count}
    for name in _SUMMED_FIELDS:
        values = [worker[name] for worker in workers if worker.get(name) is not None]
        document[name] = sum(values) if values else None
    for name in _MAX_FIELDS:
        document[name] = max((w[name] for w in workers if w.get(name) is not None), default=None)
    training = document["training_seconds"]
    steps = document["steps_total"]
    document["steps_per_second"] = (steps - 1) / training if training and steps and steps > 1 else None
    for name, total in (("samples_per_second", "samples_total"), ("flops_per_second", "flop_total")):
        document[name] = _per_second(workers, total, document["steps_per_second"])
    document["instance_type"] = _first_value(workers, "instance_type")
    document["cores"] = sorted({core for worker in workers for core in worker.get("cores", ())})
    document["mfu_ratio"] = _mfu_ratio(document, _first_value(workers, "logical_neuroncore_config"))
    document["ranks"] = workers
    return document


def can_have_advice(document: dict[str, Any]) -> bool:
    """Returns whether the run has training steps, matrix multiplications or traced models, which the rules need."""
    has_counts = any(document[name] for name in ("steps_total", "flop_total"))
    return has_counts or any(worker.get("traced_models") for worker in document["ranks"])


def _per_second(workers: list[dict[str, Any]], total: str, steps_per_second: float | None) -> float | None:
    """Returns the growth per second of the counter `total` of all workers in steady-state training; None if unknown."""
    a_step = []
    for worker in workers:
        counted = worker.get("steady_state") or worker
        if counted.get(total) is not None and counted.get("steps_total"):
            a_step.append(counted[total] / counted["steps_total"])
    return sum(a_step) * steps_per_second if a_step and steps_per_second else None


def _first_value(workers: list[dict[str, Any]], name: str) -> Any:
    return next((worker[name] for worker in workers if worker.get(name)), None)


def _mfu_ratio(document: dict[str, Any], logical_neuroncore_config: int | None) -> float | None:
    """Returns the achieved share of the bf16 peak FLOP/s of the cores in use; None if unknown."""
    achieved, instance_type = document["flops_per_second"], document["instance_type"]
    if achieved is None or instance_type is None or not document["cores"] or not logical_neuroncore_config:
        return None
    from neurontools import catalog

    peak = catalog.peak_flops_per_core(instance_type)
    if peak is None:
        return None
    return float(achieved / (peak * logical_neuroncore_config * len(document["cores"])))


def summary_text(document: dict[str, Any]) -> str:
    rate, samples = document["steps_per_second"], document["samples_per_second"]
    count = {name: count_text(value) for name, value in document.items() if name.endswith("_total")}
    size = {name: iec_bytes_text(value) for name, value in document.items() if name.endswith("_bytes")}
    execution_time = _percentile_text(document["execution_p50_seconds"], document["execution_p99_seconds"])
    training = (
        ("steps", count["steps_total"] + (f" ({rate:.1f}/s)" if rate else "")),
        ("step time", _percentile_text(document["step_p50_seconds"], document["step_p99_seconds"])),
        ("samples", count["samples_total"] + (f" ({samples:.1f}/s)" if samples else "")),
    )
    rows = [
        ("workers", count_text(document["workers"])),
        ("wall time", duration_text(document["wall_seconds"])),
        *(training if document["steps_total"] else ()),
        *_served_rows(document["ranks"]),
        ("graphs", f"{count['graphs_compiled_total']} compiled in {duration_text(document['compile_seconds'])}"),
        ("executions", f"{count['executions_total']}, {execution_time}"),
        ("compute", f"{flops_text(document['flops_per_second'])}, MFU {percent_text(document['mfu_ratio'], 4)}"),
        ("HBM peak", size["hbm_peak_bytes"]),
        ("transfers", f"{size['to_device_bytes']} to, {size['from_device_bytes']} from the device"),
        ("collectives", count["collectives_total"] + _collective_text(document)),
        ("errors", f"{count['failed_executions_total']} failed, {count['numerical_errors_total']} with NaN"),
    ]
    cost = _cost_text(document)
    if cost is not None:
        rows.append(("would cost", cost))
    if document["fallbacks_total"]:
        rows.append(("fallbacks", f"{count['fallbacks_total']} operators ran on the host"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows) + "\n"


def _served_rows(workers: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Returns a row for each model that a worker has served."""
    return [
        (
            "served",
            (
                f"{served['name']}: {count_text(served['requests_total'])} requests, "
                f"{count_text(served['failed_requests_total'])} failed, "
                f"{_percentile_text(served['latency_p50_seconds'], served['latency_p99_seconds'])}"
            ),
        )
        for worker in workers
        for served in worker.get("served_models", ())
    ]


def _cost_text(document: dict[str, Any]) -> str | None:
    """Formats the estimated cost of 1,000 steps on real hardware. Returns None if it is unknown."""
    if not document["steps_total"]:
        return None
    from neurontools.estimate import CountedRun, EstimateError, estimate
    from neurontools.estimate.report import dollars

    try:
        costs = estimate(CountedRun.from_summary(document), document["instance_type"] or "").costs
    except EstimateError:
        return None
    if not costs or costs[0].thousand_steps_usd is None:
        return None
    return f"{costs[0].thousand_steps_usd.text(dollars)} for 1,000 steps on {document['instance_type']}, an estimate"


def _collective_text(document: dict[str, Any]) -> str:
    if not document["collectives_total"]:
        return ""
    size, middle = iec_bytes_text(document["collective_bytes"]), duration_text(document["collective_p50_seconds"])
    return f", {size} in {duration_text(document['collective_seconds'])}, p50 {middle}"


def _percentile_text(middle: float | None, high: float | None) -> str:
    if middle is None:
        return UNKNOWN
    return f"p50 {duration_text(middle)}, p99 {duration_text(high)}"


_STDOUT = "-"


def check_summary_path(target: str) -> None:
    """Raises UserError if the summary could not be written to `target`. Does not write."""
    if target == _STDOUT:
        return
    path = Path(target)
    if path.is_dir():
        raise _write_error(target, errno.EISDIR)
    if not path.parent.is_dir():
        raise _write_error(target, errno.ENOENT)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise _write_error(target, errno.EACCES)


def write_summary(target: str, document: dict[str, Any]) -> None:
    text = json_text(document, indent=2) + "\n"
    if target == _STDOUT:
        write_text(text)
        return
    try:
        Path(target).write_text(text)
    except OSError as error:
        raise _write_error(target, error.errno) from None


def _write_error(target: str, number: int | None) -> UserError:
    return UserError(f"--summary-json {target}: {os.strerror(number or errno.EIO)}; give a file that can be written")


_ALL_TYPES = "all"
_INFERENCE_ONLY = "inferentia"  # family name of the first Inferentia generation, which can't train


@dataclass(frozen=True)
class EstimateRequest:
    """Parsed options of --estimate. Parsing runs before the script, so that errors appear early."""

    instance_types: tuple[str, ...]
    rows: tuple[CalibrationRow, ...]
    prices: tuple[Price, ...]
    epoch_samples: int | None
    batches: tuple[int | None, ...] = (None,)
    degrees: Degrees | None = None

    @classmethod
    def from_options(cls, given: dict[str, str], epoch_samples: int | None) -> EstimateRequest:
        from neurontools.estimate import EstimateError, read_prices, read_rows
        from neurontools.estimate.instances import InstanceHardware

        request = given["estimate"]
        try:
            names = tuple(dict.fromkeys(filter(None, request.split(","))))
            if request == _ALL_TYPES:
                names = _training_instance_types()
            for name in names:
                InstanceHardware.from_catalog(name)
        except EstimateError as error:
            raise UserError(f"--estimate: {error}", EXIT_USAGE) from None
        if not names:
            raise UserError("--estimate: no instance type given; give some, separated by commas, or all", EXIT_USAGE)
        try:
            rows = read_rows(Path(given["calibrate"])) if "calibrate" in given else []
        except EstimateError as error:
            raise UserError(f"--calibrate {error}", EXIT_USAGE) from None
        try:
            prices = read_prices(Path(given["prices"])) if "prices" in given else []
        except EstimateError as error:
            raise UserError(f"--prices {error}", EXIT_USAGE) from None
        return cls(names, tuple(rows), tuple(prices), epoch_samples, _parse_batches(given), _parse_degrees(given))

    def simulated_type(self, workers: int) -> str:
        """Returns the type to run the script on: one with enough cores if there is one, and the most HBM a core."""
        from neurontools.estimate.instances import InstanceHardware

        hardware = [InstanceHardware.from_catalog(name) for name in self.instance_types]
        return max(hardware, key=lambda each: (each.core_count >= workers, each.core_memory_bytes)).name

    def of_run(self, summary: dict[str, Any], *, lists_unpredicted: bool = False) -> str:
        """Returns the estimate as text, or the reason why there is none. Adds the estimate to `summary`."""
        from neurontools.estimate import CountedRun, EstimateError, estimate
        from neurontools.estimate.parallelism import scale_run
        from neurontools.estimate.report import estimate_document, format_estimates, peer_document
        from neurontools.estimate.training import peer_measurement

        today = datetime.now(UTC).date()
        try:
            if not summary.get("steps_total"):
                return self._of_inference(summary, today)
            run = CountedRun.from_summary(summary)
            calibration = self._calibration(run)
            estimates = [
                estimate(scaled, name, calibration=calibration, prices=self.prices, epoch_samples=self.epoch_samples)
                for scaled in [scale_run(run, self.degrees, batch) for batch in self.batches]
                for name in self.instance_types
            ]
        except EstimateError as error:
            summary["estimates"] = []
            return f"neuron-run: no estimate: {error}"
        peers = [peer_measurement(row, self.prices, self.epoch_samples) for row in self.rows if row.is_peer]
        summary["estimates"] = [estimate_document(each) for each in estimates]
        summary["peers"] = [peer_document(each) for each in peers]
        return format_estimates(estimates, today, run, peers=peers, lists_unpredicted=lists_unpredicted)

    def _of_inference(self, summary: dict[str, Any], today: date) -> str:
        from neurontools.estimate import counted_models, estimate_inference
        from neurontools.estimate.inference_report import format_inference, inference_document

        models = counted_models(summary)
        estimates = [estimate_inference(each, name, self.prices) for each in models for name in self.instance_types]
        summary["estimates"] = [inference_document(each) for each in estimates]
        return format_inference(estimates, today)

    def _calibration(self, run: CountedRun) -> Calibration | None:
        from neurontools.estimate import Calibration, EstimateError

        rows = [row for row in self.rows if not row.is_peer]
        if not rows:
            return None
        if run.samples is None:
            raise EstimateError(
                "samples were not counted, so rows can't be compared; load with torch_xla's MpDeviceLoader"
            )
        return Calibration.of(
            rows,
            run.flops / run.samples,
            run.worker_count,
            run.tensors / run.executions if run.executions else None,
        )


_MOST_DEGREE = 100_000


def _parse_batches(given: dict[str, str]) -> tuple[int | None, ...]:
    if "batch" not in given:
        return (None,)
    texts = given["batch"].split(",")
    if not all(text.isdecimal() and 0 < int(text) <= _MOST_DEGREE for text in texts):
        raise UserError(f"--batch {given['batch']}: give batches of a worker, such as 8,16,32", EXIT_USAGE)
    return tuple(dict.fromkeys(map(int, texts)))


def _parse_degrees(given: dict[str, str]) -> Degrees | None:
    from neurontools.estimate import EstimateError
    from neurontools.estimate.parallelism import Degrees

    names = ("workers", "tensor-parallel", "pipeline-parallel")
    if not any(name in given for name in names):
        return None
    workers, tensor, pipeline = (whole_option(given, name, None, 1, _MOST_DEGREE) for name in names)
    tensor, pipeline = tensor or 1, pipeline or 1
    try:
        return Degrees(workers or tensor * pipeline, tensor, pipeline)
    except EstimateError as error:
        raise UserError(f"--workers: {error}", EXIT_USAGE) from None


def _training_instance_types() -> tuple[str, ...]:
    from neurontools import catalog

    return tuple(name for name in catalog.names() if catalog.load(name).family.name != _INFERENCE_ONLY)
