"""Sends metrics over OTLP/HTTP with the OpenTelemetry SDK (an optional extra).

A metric has the hw.* name that OpenTelemetry's semantic conventions define for it, if any. GPUs are the only
accelerators in the conventions (https://opentelemetry.io/docs/specs/semconv/system/hardware-metrics/), so a Neuron
device is reported as a GPU with its own vendor and model.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from operator import attrgetter
from typing import Any

from neurontools.model import (
    Device,
    DeviceMemory,
    HostMemory,
    LogicalNeuronCore,
    Process,
    ServedModel,
    ServedModelRates,
    Snapshot,
    SourceKind,
    logical_cores,
    memory_categories,
)
from neurontools.model.finding import Severity
from neurontools.model.health import age_seconds, verdicts
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.units import mean_known, ranges_text, sum_known

_PACKAGES = ("opentelemetry.sdk.metrics", "opentelemetry.exporter.otlp.proto.http")
_EVENTS = (
    ("mem_corrected_total", "corrected", "memory"),
    ("mem_uncorrected_total", "uncorrected", "memory"),
    ("mem_repairable_uncorrected_total", "repairable_uncorrected", "memory"),
    ("sram_corrected_total", "corrected", "sram"),
    ("sram_uncorrected_total", "uncorrected", "sram"),
)
_STATES = {Severity.OK: "ok", Severity.NOTICE: "ok", Severity.WARNING: "degraded", Severity.CRITICAL: "failed"}
_PERCENTILES = ("p50", "p90", "p99", "p100")
_TIMEOUT_SECONDS = 5
_LAST_SECONDS = 1.0  # timeout of the last export, when the daemon ends
_SILENCE_SECONDS = 600.0
_COMPRESSION = ("OTEL_EXPORTER_OTLP_COMPRESSION", "OTEL_EXPORTER_OTLP_METRICS_COMPRESSION")
_SDK_LOGGERS = ("opentelemetry.exporter.otlp.proto.http.metric_exporter", "opentelemetry.sdk.metrics._internal.export")


Attributes = dict[str, str | int]
Reading = tuple[float | None, Attributes]
"""A value with its attributes. An unknown value (None) is not exported."""


@dataclass(frozen=True, slots=True)
class Instrument:
    """One OTLP metric: name, unit (UCUM), description, and the function that reads its values from a snapshot."""

    name: str
    unit: str
    text: str
    read: Callable[[Snapshot], Iterable[Reading]]
    is_counter: bool = False


class OtlpSender:
    """Sends the latest snapshot at an interval, from a thread of the OpenTelemetry SDK.

    If the collector is unreachable, the SDK drops the metrics, and a rate-limited line is logged. The resource
    attributes come from the snapshot `first`.
    """

    def __init__(self, endpoint: str, interval_seconds: float, first: Snapshot) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http import Compression
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError:
            raise otlp_not_installed_error() from None
        self._snapshot: Snapshot | None = None
        url = metrics_url(endpoint)
        for name in _SDK_LOGGERS:
            logging.getLogger(name).addFilter(_OncePerOutage(url))
        # Uses gzip, which saves 90 %, unless an environment variable sets the compression. None lets the SDK read it.
        compression = None if any(name in os.environ for name in _COMPRESSION) else Compression.Gzip
        exporter = OTLPMetricExporter(endpoint=url, timeout=_TIMEOUT_SECONDS, compression=compression)
        reader = PeriodicExportingMetricReader(exporter, interval_seconds * 1000, _TIMEOUT_SECONDS * 1000)
        self._provider = MeterProvider([reader], Resource.create(host_attributes(first)), shutdown_on_exit=False)
        self._register(self._provider.get_meter("neurontools"))

    def observe(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    async def close(self) -> None:
        """Exports once more and shuts down. Waits at most a second for the collector."""
        loop = asyncio.get_running_loop()
        is_sent = asyncio.Event()

        def end() -> None:
            # Runs in a daemon thread, so that a slow collector can't delay the exit. Unsent metrics are lost.
            with contextlib.suppress(Exception):
                self._provider.shutdown(timeout_millis=_LAST_SECONDS * 1000)
            with contextlib.suppress(RuntimeError):  # the event loop is already closed
                loop.call_soon_threadsafe(is_sent.set)

        threading.Thread(target=end, name="otlp-end", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(is_sent.wait(), _LAST_SECONDS)

    def _register(self, meter: Any) -> None:
        from opentelemetry.metrics import Observation

        def callback(read: Callable[[Snapshot], Iterable[Reading]]) -> Callable[[Any], list[Any]]:
            def observations(_options: Any) -> list[Any]:
                snapshot = self._snapshot
                readings = () if snapshot is None else read(snapshot)
                return [Observation(value, labels) for value, labels in readings if value is not None]

            return observations

        for each in INSTRUMENTS:
            create = meter.create_observable_counter if each.is_counter else meter.create_observable_gauge
            create(each.name, [callback(each.read)], each.unit, each.text)


class _OncePerOutage(logging.Filter):
    """Shortens the SDK's messages about an unreachable collector, and logs at most one every ten minutes."""

    _logged_at_seconds: float | None = None  # time of the last message, shared by all loggers

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now = time.monotonic()
        if _OncePerOutage._logged_at_seconds is not None and now - _OncePerOutage._logged_at_seconds < _SILENCE_SECONDS:
            return False
        _OncePerOutage._logged_at_seconds = now
        cause = " ".join(record.getMessage().split())
        record.msg, record.args, record.exc_info = "metrics can't be sent to %s: %s", (self._url, cause[:300]), None
        return True


def host_attributes(snapshot: Snapshot) -> dict[str, str]:
    """Returns OpenTelemetry's resource attributes of this host. Omits unknown ones."""
    instance = snapshot.instance
    name = socket.gethostname()
    attributes = {
        "service.name": "neurond",
        "service.version": snapshot.daemon_version,
        "service.instance.id": name,
        "host.name": name,
        "host.id": instance.instance_id,
        "host.type": instance.instance_type,
    }
    if snapshot.source is not SourceKind.SIMULATED:
        attributes |= {
            "cloud.provider": "aws",
            "cloud.platform": "aws_ec2",
            "cloud.region": instance.region,
            "cloud.availability_zone": instance.availability_zone,
        }
    return {name: value for name, value in attributes.items() if value}


def metrics_url(endpoint: str) -> str:
    """Returns the URL for metrics: appends /v1/metrics if missing, as with OTEL_EXPORTER_OTLP_ENDPOINT."""
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
        ratio = mean_known(core.utilization_ratio for core in snapshot.cores if core.device_index == device.index)
        yield ratio, {**_labels(snapshot, device), "hw.gpu.task": "general"}


def _of_devices(value_of: Callable[[Device], float | None]) -> Callable[[Snapshot], Iterable[Reading]]:
    return lambda snapshot: ((value_of(device), _labels(snapshot, device)) for device in snapshot.devices)


def _of_cores(value_of: Callable[[LogicalNeuronCore], float | None]) -> Callable[[Snapshot], Iterable[Reading]]:
    return lambda snapshot: ((value_of(core), core_attributes(core)) for core in logical_cores(snapshot))


def _used_bytes(device: Device) -> int | None:
    used = [stack.used_bytes for stack in device.hbm_stacks]
    return None if not used or None in used else sum(size_bytes or 0 for size_bytes in used)


def _used_ratio(device: Device) -> float | None:
    used_bytes = _used_bytes(device)
    return None if used_bytes is None or not device.memory_bytes else used_bytes / device.memory_bytes


def _errors(snapshot: Snapshot) -> Iterator[Reading]:
    for device in snapshot.devices:
        for field, kind, place in _EVENTS:
            yield getattr(device.ecc, field), {**_labels(snapshot, device), "error.type": f"{place}_ecc_{kind}"}


def _status(snapshot: Snapshot) -> Iterator[Reading]:
    for verdict in verdicts(snapshot):
        if verdict.severity is None or verdict.device_index is None:  # unknown health, or findings on no device
            continue
        state = _STATES[verdict.severity]
        for each in ("ok", "degraded", "failed"):
            yield int(each == state), {"hw.id": f"neuron{verdict.device_index}", "hw.type": "gpu", "hw.state": each}


def _findings(snapshot: Snapshot) -> Iterator[Reading]:
    """Yields the age of each finding. Findings that concern no device have no attribute neuron.devices."""
    for finding in snapshot.health.findings if snapshot.health else ():
        attributes: Attributes = {
            "neuron.finding": finding.kind,
            "neuron.finding.severity": finding.severity.name.lower(),
            "neuron.finding.reason": finding.reason,
            "neuron.finding.action": finding.action,
        }
        for mark in ("synthetic", "injected"):
            if getattr(finding, mark):
                attributes[f"neuron.finding.{mark}"] = True
        if finding.device_indices:
            attributes["neuron.devices"] = ranges_text(finding.device_indices)
        yield age_seconds(finding, snapshot), attributes


def _executions(snapshot: Snapshot) -> Iterator[Reading]:
    for process, attributes in _holders(snapshot):
        if process.executions is not None:
            yield process.executions.completed_total, attributes


def core_attributes(core: LogicalNeuronCore) -> Attributes:
    return {"neuroncore": core.index, "hw.id": f"neuron{core.device_index}"}


def process_attributes(process: Process) -> Attributes:
    """Returns the OTLP attributes of a process, such as its user, pod and Slurm job. Omits unknown ones."""
    found: Attributes = {"process.pid": process.pid, "neuron.runtime_tag": process.tag}
    if process.user:
        found["process.owner"] = process.user
    of = process.attribution
    if of is not None:
        for name, value in (
            ("k8s.pod.name", of.pod_name),
            ("k8s.namespace.name", of.pod_namespace),
            ("k8s.container.name", of.container_name),
            ("container.id", of.container_id),
            ("slurm.job.id", of.slurm_job_id),
        ):
            if value:
                found[name] = value
    return found


def _categories(memory: DeviceMemory | HostMemory, attributes: Attributes) -> Iterator[Reading]:
    for field, size_bytes in memory_categories(memory).items():
        yield size_bytes, {**attributes, "category": field.removesuffix("_bytes")}


def _core_memory(snapshot: Snapshot) -> Iterator[Reading]:
    for core in logical_cores(snapshot):
        yield from _categories(core.memory, core_attributes(core))


def _device_host_memory(snapshot: Snapshot) -> Iterator[Reading]:
    for device in snapshot.devices:
        yield from _categories(device.host_memory, {"hw.id": f"neuron{device.index}"})


def _owners(snapshot: Snapshot) -> Iterator[Reading]:
    by_pid = {process.pid: process for process in snapshot.processes}
    for core in logical_cores(snapshot):
        for pid in core.owner_pids:
            process = by_pid.get(pid)
            if process is not None:
                found = core_attributes(core) | process_attributes(process)
                yield 1, found | ({"inferred": "true"} if core.is_owner_inferred else {})


def _holders(snapshot: Snapshot) -> Iterator[tuple[Process, Attributes]]:
    """Yields each process with cores, and all its attributes, because OTLP can't join metrics as Prometheus can."""
    for process in snapshot.processes:
        if process.core_indices:
            yield process, process_attributes(process)


def _process_memory(snapshot: Snapshot) -> Iterator[Reading]:
    for process, attributes in _holders(snapshot):
        yield sum_known(core.memory.total_bytes for core in snapshot.cores_of(process)), attributes


def _process_host_memory(snapshot: Snapshot) -> Iterator[Reading]:
    for process, attributes in _holders(snapshot):
        yield from _categories(process.host_memory, attributes)


def _of_models(read: Callable[[ServedModel], float | None]) -> Callable[[Snapshot], Iterator[Reading]]:
    """Returns a function that reads a value of each served model of each process."""

    def readings(snapshot: Snapshot) -> Iterator[Reading]:
        for process, attributes in _holders(snapshot):
            for served in process.served_models:
                yield read(served), attributes | {"neuron.model.name": served.name}

    return readings


def _model_latencies(snapshot: Snapshot) -> Iterator[Reading]:
    for process, attributes in _holders(snapshot):
        for served in process.served_models:
            rates = served.rates or ServedModelRates()
            for name, latency in (
                ("request", rates.total_latency),
                ("device", rates.device_latency),
                ("first_token", rates.time_to_first_token),
                ("output_token", rates.time_per_output_token),
            ):
                for percentile in _PERCENTILES:
                    value = getattr(latency, f"{percentile}_seconds", None)
                    of_model: Attributes = {"neuron.model.name": served.name, "latency": name, "percentile": percentile}
                    yield value, attributes | of_model


INSTRUMENTS = (
    Instrument("hw.gpu.utilization", "1", "Mean utilization of the device's cores", _device_utilization),
    Instrument("hw.gpu.memory.usage", "By", "HBM in use", _of_devices(_used_bytes)),
    Instrument("hw.gpu.memory.limit", "By", "HBM", _of_devices(lambda device: device.memory_bytes)),
    Instrument("hw.gpu.memory.utilization", "1", "Share of the HBM in use", _of_devices(_used_ratio)),
    Instrument("hw.errors", "{error}", "ECC events", _errors, is_counter=True),
    Instrument("hw.status", "1", "1 for the state that the device is in", _status),
    Instrument("neurontools.finding.age", "s", "Age of a finding", _findings),
    Instrument(
        "neurontools.neuroncore.utilization",
        "1",
        "Share of time in executions",
        _of_cores(lambda core: core.utilization_ratio),
    ),
    Instrument(
        "neurontools.neuroncore.held",
        "1",
        "1 while a process holds the core",
        _of_cores(lambda core: None if core.is_free is None else int(not core.is_free)),
    ),
    Instrument(
        "neurontools.neuroncore.flops",
        "{operation}/s",
        "Floating point operations",
        _of_cores(lambda core: core.flops_per_second),
    ),
    Instrument(
        "neurontools.process.executions",
        "{execution}",
        "Executions that finished without error",
        _executions,
        is_counter=True,
    ),
    Instrument("neurontools.neuroncore.owner", "1", "1 for each process that holds the core", _owners),
    Instrument("neurontools.neuroncore.memory", "By", "Device memory by category", _core_memory),
    Instrument("neurontools.device.host_memory", "By", "Host memory that serves the device", _device_host_memory),
    Instrument("neurontools.process.device_memory", "By", "Device memory of the process", _process_memory),
    Instrument("neurontools.process.host_memory", "By", "Host memory of the process by category", _process_host_memory),
    *(
        Instrument(f"neurontools.model.{name}", unit, description, _of_models(attrgetter(field)), is_counter=True)
        for name, unit, description, field in (
            ("requests", "{request}", "Requests that ended, including failed ones", "requests_total"),
            ("failed_requests", "{request}", "Requests that failed", "failed_requests_total"),
            ("calls", "{call}", "Executions of the model", "calls_total"),
            ("samples", "{sample}", "Sum of the batch sizes of all executions", "samples_total"),
            ("queue_wait", "s", "Sum of the waits of all requests", "queue_wait_seconds_total"),
            ("tokens", "{token}", "Tokens that the model generated", "tokens_total"),
        )
    ),
    Instrument("neurontools.model.queue_depth", "{request}", "Waiting requests", _of_models(attrgetter("queue_depth"))),
    Instrument(
        "neurontools.model.device_memory",
        "By",
        "Device memory of the model on all cores of the process",
        _of_models(attrgetter("device_memory_bytes")),
    ),
    Instrument("neurontools.model.latency", "s", "Latencies of the last ten seconds by percentile", _model_latencies),
)


def otlp_is_installed() -> bool:
    """Whether the OpenTelemetry packages are installed. Imports none of them."""
    try:
        return all(find_spec(package) is not None for package in _PACKAGES)
    except ImportError:  # the parent package is missing or broken
        return False


def otlp_not_installed_error() -> UserError:
    return UserError("--otlp-endpoint needs the OpenTelemetry SDK; install neurontools[otlp]", EXIT_USAGE)
