"""Metrics over OTLP/HTTP by the OpenTelemetry SDK, an extra: hw.* where the semantic conventions have a name.

https://opentelemetry.io/docs/specs/semconv/system/hardware-metrics/ knows GPUs and no other accelerators; a Neuron
device is told as one, with its vendor and model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from neurontools.errors import EXIT_USAGE, UserError
from neurontools.health import Severity, Verdict
from neurontools.model import Device, Snapshot, logical_cores

_EVENTS = (
    ("mem_corrected_total", "corrected", "memory"),
    ("mem_uncorrected_total", "uncorrected", "memory"),
    ("sram_corrected_total", "corrected", "sram"),
    ("sram_uncorrected_total", "uncorrected", "sram"),
)
_STATES = {Severity.OK: "ok", Severity.NOTICE: "ok", Severity.WARNING: "degraded", Severity.CRITICAL: "failed"}
_TIMEOUT_SECONDS = 5

Reading = tuple[float, dict[str, str | int]]


class OtlpSender:
    """Sends the latest snapshot at an interval, from a thread of the SDK's.

    A collector that is away costs nothing but a line in the log: the SDK drops what it can't send.
    """

    def __init__(
        self, endpoint: str, interval_seconds: float, verdicts: Callable[[Snapshot], tuple[Verdict, ...]]
    ) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError:
            raise UserError(
                "neurond: --otlp-endpoint needs the OpenTelemetry SDK; install neurontools[otlp]", EXIT_USAGE
            ) from None
        self._verdicts_of = verdicts
        self._snapshot: Snapshot | None = None
        self._verdicts: tuple[Verdict, ...] = ()
        exporter = OTLPMetricExporter(endpoint=metrics_url(endpoint), timeout=_TIMEOUT_SECONDS)
        reader = PeriodicExportingMetricReader(exporter, interval_seconds * 1000, _TIMEOUT_SECONDS * 1000)
        self._provider = MeterProvider([reader], Resource.create({"service.name": "neurond"}), shutdown_on_exit=False)
        self._register(self._provider.get_meter("neurontools"))

    def observe(self, snapshot: Snapshot) -> None:
        """Takes note of the snapshot of a tick; called in the event loop's thread."""
        self._verdicts = self._verdicts_of(snapshot)
        self._snapshot = snapshot

    def close(self) -> None:
        """Sends what is there once more and ends."""
        self._provider.shutdown(timeout_millis=_TIMEOUT_SECONDS * 1000)

    def _register(self, meter: Any) -> None:
        from opentelemetry.metrics import Observation

        def callback(read: Callable[[Snapshot], Iterable[Reading]]) -> Callable[[Any], list[Any]]:
            def observations(_options: Any) -> list[Any]:
                snapshot = self._snapshot
                return [] if snapshot is None else [Observation(value, labels) for value, labels in read(snapshot)]

            return observations

        for name, unit, text, is_counter, read in (
            ("hw.gpu.utilization", "1", "Mean utilization of the device's cores", False, _device_utilization),
            ("hw.gpu.memory.usage", "By", "HBM in use", False, _memory_used),
            ("hw.gpu.memory.limit", "By", "HBM", False, _memory_limit),
            ("hw.gpu.memory.utilization", "1", "Share of the HBM in use", False, _memory_ratio),
            ("hw.errors", "{error}", "ECC events", True, _errors),
            ("hw.status", "1", "1 for the state that the device is in", False, self._status),
            ("neurontools.neuroncore.utilization", "1", "Share of time in executions", False, _core_utilization),
            ("neurontools.neuroncore.held", "1", "1 while a process holds the core", False, _core_held),
            ("neurontools.neuroncore.flops", "{operation}/s", "Floating point operations", False, _core_flops),
            (
                "neurontools.process.executions",
                "{execution}",
                "Executions that finished without error",
                True,
                _executions,
            ),
        ):
            create = meter.create_observable_counter if is_counter else meter.create_observable_gauge
            create(name, [callback(read)], unit, text)

    def _status(self, _snapshot: Snapshot) -> Iterator[Reading]:
        for verdict in self._verdicts:
            state = _STATES[verdict.severity]
            for each in ("ok", "degraded", "failed"):
                yield int(each == state), {"hw.id": f"neuron{verdict.device_index}", "hw.type": "gpu", "hw.state": each}


def metrics_url(endpoint: str) -> str:
    """The URL that metrics go to: a bare endpoint gets the path of the signal, as OTEL_EXPORTER_OTLP_ENDPOINT does."""
    return endpoint if endpoint.rstrip("/").endswith("/v1/metrics") else endpoint.rstrip("/") + "/v1/metrics"


def _labels(snapshot: Snapshot, device: Device) -> dict[str, str | int]:
    labels: dict[str, str | int] = {
        "hw.id": f"neuron{device.index}",
        "hw.name": f"Neuron device {device.index}",
        "hw.type": "gpu",
        "hw.vendor": "AWS",
    }
    if snapshot.instance.device_type:
        labels["hw.model"] = snapshot.instance.device_type
    if device.serial_number:
        labels["hw.serial_number"] = device.serial_number
    return labels


def _device_utilization(snapshot: Snapshot) -> Iterator[Reading]:
    for device in snapshot.devices:
        known = [
            core.utilization_ratio
            for core in snapshot.cores
            if core.device_index == device.index and core.utilization_ratio is not None
        ]
        if known:
            yield sum(known) / len(known), {**_labels(snapshot, device), "hw.gpu.task": "general"}


def _used_bytes(device: Device) -> int | None:
    used = [stack.used_bytes for stack in device.hbm_stacks]
    return None if not used or None in used else sum(size_bytes or 0 for size_bytes in used)


def _memory_used(snapshot: Snapshot) -> Iterator[Reading]:
    for device in snapshot.devices:
        used_bytes = _used_bytes(device)
        if used_bytes is not None:
            yield used_bytes, _labels(snapshot, device)


def _memory_limit(snapshot: Snapshot) -> Iterator[Reading]:
    for device in snapshot.devices:
        yield device.memory_bytes, _labels(snapshot, device)


def _memory_ratio(snapshot: Snapshot) -> Iterator[Reading]:
    for device in snapshot.devices:
        used_bytes = _used_bytes(device)
        if used_bytes is not None and device.memory_bytes:
            yield used_bytes / device.memory_bytes, _labels(snapshot, device)


def _errors(snapshot: Snapshot) -> Iterator[Reading]:
    for device in snapshot.devices:
        for field, kind, place in _EVENTS:
            count = getattr(device.ecc, field)
            if count is not None:
                yield count, {**_labels(snapshot, device), "error.type": f"{place}_ecc_{kind}"}


def _core_utilization(snapshot: Snapshot) -> Iterator[Reading]:
    for core in logical_cores(snapshot):
        if core.utilization_ratio is not None:
            yield core.utilization_ratio, _core_labels(core.index, core.device_index)


def _core_held(snapshot: Snapshot) -> Iterator[Reading]:
    for core in logical_cores(snapshot):
        if core.is_free is not None:
            yield int(not core.is_free), _core_labels(core.index, core.device_index)


def _core_flops(snapshot: Snapshot) -> Iterator[Reading]:
    for core in logical_cores(snapshot):
        if core.flops_per_second is not None:
            yield core.flops_per_second, _core_labels(core.index, core.device_index)


def _core_labels(index: int, device_index: int) -> dict[str, str | int]:
    return {"neuroncore": index, "hw.id": f"neuron{device_index}"}


def _executions(snapshot: Snapshot) -> Iterator[Reading]:
    for process in snapshot.processes:
        if process.core_indices and process.executions is not None:
            labels: dict[str, str | int] = {"process.pid": process.pid, "neuron.runtime_tag": process.tag}
            yield process.executions.completed_total, labels
