"""RuntimeService of the gRPC API: processes attach to cores and report their counters."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import isfinite
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from neurond.allocator import (
    AlreadyAttached,
    CoreAllocator,
    CoreLease,
    CoreReport,
    CoresInUse,
    DeviceMemoryExhausted,
    ImpossibleRequest,
    InvalidReport,
    Refusal,
    RuntimeReport,
    UnknownToken,
)
from neurond.faults import FaultInjector
from neurond.snapshots.store import TickSchedule
from neurond.system.clocks import SteadyClock
from neurontools import model
from neurontools.driver.neuron_runtime import CoreRequest
from neurontools.model import execution
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import from_message
from neurontools.rpc.report_limits import (
    LONGEST_ADVICE,
    LONGEST_COLLECTIVE,
    LONGEST_OPERATOR_NAME,
    LONGEST_SERVED_MODEL,
    MOST_ADVICE,
    MOST_MODELS,
    MOST_OPERATORS,
    MOST_PLACEMENTS,
    MOST_SERVED_MODELS,
    MOST_SUBGRAPHS,
)
from neurontools.util.rate_limited_log import RateLimitedLogger
from neurontools.util.version import __version__

_log_refusal = RateLimitedLogger(logging.getLogger(__name__), logging.WARNING)

Context = grpc.aio.ServicerContext[Any, Any]

MAX_TAG_CHARACTERS = 255
MAX_VERSION_CHARACTERS = 64

STATUS = {
    UnknownToken: grpc.StatusCode.UNAUTHENTICATED,
    AlreadyAttached: grpc.StatusCode.FAILED_PRECONDITION,
    ImpossibleRequest: grpc.StatusCode.OUT_OF_RANGE,
    CoresInUse: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeviceMemoryExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    InvalidReport: grpc.StatusCode.INVALID_ARGUMENT,
}


class RuntimeService:
    """Implements the calls Attach and Report. `faults` is None on a host with real devices."""

    def __init__(
        self,
        allocator: CoreAllocator,
        instance_type: str,
        ticks: TickSchedule,
        clock: SteadyClock,
        faults: FaultInjector | None = None,
    ) -> None:
        self._faults = faults
        self._allocator = allocator
        self._instance_type = instance_type
        self._ticks = ticks
        self._clock = clock

    async def attach(self, request: neuron_pb2.AttachRequest, context: Context) -> bytes:
        try:
            lease = self._attach(request)
        except Refusal as refusal:
            await context.abort(STATUS[type(refusal)], str(refusal))
        return self._attach_response(lease).SerializeToString()

    async def report(self, request: neuron_pb2.ReportRequest, context: Context) -> bytes:
        """Stores a report of the calling process, unless an injected fault loses its reports."""
        try:
            self._report(request.token, request.report, is_final=False)
        except Refusal as refusal:
            await context.abort(STATUS[type(refusal)], str(refusal))
        return b""

    def final_report(self, token: str, message: bytes) -> None:
        """Stores the serialized final report of a process. Logs a report that is invalid."""
        try:
            self._report(token, neuron_pb2.Report.FromString(message), is_final=True)
        except (Refusal, DecodeError) as error:
            _log_refusal("a final report is refused: %s", error)

    def _report(self, token: str, message: neuron_pb2.Report, *, is_final: bool) -> None:
        report = read_report(message, self._allocator.find_lease(token).count, time.monotonic(), self._clock)
        if self._faults is None or not self._faults.loses_reports(token):
            self._allocator.report(token, report, is_final=is_final)

    def _attach(self, request: neuron_pb2.AttachRequest) -> CoreLease:
        if len(request.tag) > MAX_TAG_CHARACTERS:
            raise InvalidReport(f"the tag is longer than {MAX_TAG_CHARACTERS} characters; shorten it")
        if len(request.runtime_version) > MAX_VERSION_CHARACTERS:
            raise InvalidReport(f"runtime_version is longer than {MAX_VERSION_CHARACTERS} characters")
        lease = self._allocator.attach(request.token, _core_request(request), request.tag, request.runtime_version)
        if self._faults is not None:
            self._faults.send_active_faults(request.token)
        return lease

    def _attach_response(self, lease: CoreLease) -> neuron_pb2.AttachResponse:
        shape = self._allocator.shape
        response = neuron_pb2.AttachResponse(
            instance_type=self._instance_type,
            logical_neuroncore_config=lease.lnc,
            interval_seconds=self._ticks.interval_seconds,
            daemon_version=__version__,
            pid=lease.pid,
            report_at_seconds=self._ticks.report_at(lease.pid),
        )
        for index in lease.logical_cores:
            physical = shape.physical_cores(index, lease.lnc)
            response.cores.add(
                neuroncore_index=index,
                device_index=shape.device_of(physical[0]),
                core_indices=physical,
                hbm_bytes=shape.stack_bytes,
                hbm_index=shape.stack_of(physical[0]) % shape.stacks_per_device,
            )
        return response


def _core_request(request: neuron_pb2.AttachRequest) -> CoreRequest:
    lnc = request.logical_neuroncore_config or None
    match request.WhichOneof("cores"):
        case "visible_cores":
            return CoreRequest(request.visible_cores.first, request.visible_cores.count, lnc)
        case "core_count":
            return CoreRequest(count=request.core_count, logical_neuroncore_config=lnc)
        case "all_cores":
            return CoreRequest(logical_neuroncore_config=lnc)
        case _:
            raise InvalidReport("no cores asked for; set visible_cores, core_count or all_cores")


MAX_NAME_CHARACTERS = 1024
LARGEST_COUNT = 2**63 - 1
LONGEST_SECONDS = 1e12  # far above any Unix time
_UUID_DIGITS = frozenset("0123456789abcdef")
_CLOCK_SLACK_SECONDS = 1.0
_MOMENTS = (
    "compiling_since_seconds",
    "last_step_at_seconds",
    "collective_since_seconds",
    "checkpointing_since_seconds",
)


def read_report(
    message: neuron_pb2.Report, core_count: int, now_seconds: float, clock: SteadyClock | None = None
) -> RuntimeReport:
    """Validates and converts a report. Raises InvalidReport, which names the invalid value.

    `core_count` is the number of logical cores that the process holds, `now_seconds` the daemon's CLOCK_MONOTONIC.
    Processes report Unix times by the host's clock; `clock` converts them to times by the daemon's clock.
    """
    measured_at_seconds = _seconds(message.measured_at_seconds, "measured_at_seconds")
    if measured_at_seconds > now_seconds + _CLOCK_SLACK_SECONDS:
        raise InvalidReport("measured_at_seconds lies in the future; it must be CLOCK_MONOTONIC of this host")
    if len(message.cores) > core_count:
        raise InvalidReport(f"{len(message.cores)} cores reported, {core_count} held")
    clock_moved_seconds = _clock_difference(message, measured_at_seconds, clock)
    cores = {core.local_index: _core(core, clock_moved_seconds) for core in message.cores}
    if len(cores) != len(message.cores):
        raise InvalidReport("a core is reported twice")
    return RuntimeReport(
        measured_at_seconds=measured_at_seconds,
        cores=cores,
        models=_models(message.models, core_count, clock_moved_seconds),
        host_memory=_checked_counts(from_message(model.HostMemory, message.host_memory), "host_memory"),
        executions=_checked_counts(from_message(model.ExecutionCounters, message.executions), "executions"),
        errors=_checked_counts(from_message(model.ErrorCounters, message.errors), "errors"),
        total_latency_histogram=_histogram(message.total_latency_histogram, "total_latency_histogram"),
        device_latency_histogram=_histogram(message.device_latency_histogram, "device_latency_histogram"),
        training=_training(message.training, measured_at_seconds) if message.HasField("training") else None,
        counted_since_seconds=_counted_since(message, measured_at_seconds),
        operators=_operators(message.operators),
        advice=_advice(message.advice),
        served_models=_served_models(message.served_models, core_count, measured_at_seconds),
    )


def _clock_difference(message: neuron_pb2.Report, measured_at_seconds: float, clock: SteadyClock | None) -> float:
    """Returns by how many seconds the host's clock, as the process read it, is ahead of the daemon's clock."""
    if clock is None:
        return 0.0
    if not message.HasField("measured_at_unix_seconds"):
        return clock.moved_seconds()
    return _seconds(message.measured_at_unix_seconds, "measured_at_unix_seconds") - clock.at(measured_at_seconds)


def _counted_since(message: neuron_pb2.Report, measured_at_seconds: float) -> float | None:
    if not message.HasField("counted_since_seconds"):
        return None
    since_seconds = _seconds(message.counted_since_seconds, "counted_since_seconds")
    if since_seconds > measured_at_seconds:
        raise InvalidReport("counted_since_seconds is later than measured_at_seconds; both are CLOCK_MONOTONIC")
    return since_seconds


def _core(message: neuron_pb2.ReportedCore, clock_moved_seconds: float) -> CoreReport:
    where = f"core {message.local_index}"
    return CoreReport(
        busy_seconds_total=_seconds(message.busy_seconds_total, f"{where} busy_seconds_total"),
        flop_total=_count(message.flop_total, f"{where} flop_total"),
        executions_total=_count(message.executions_total, f"{where} executions_total"),
        memory=_checked_counts(from_message(model.DeviceMemory, message.memory), f"{where} memory"),
        execution_started_at_unix_seconds=_moment(message, "execution_started_at_unix_seconds", clock_moved_seconds),
        last_execution_at_unix_seconds=_moment(message, "last_execution_at_unix_seconds", clock_moved_seconds),
    )


def _models(
    messages: Sequence[neuron_pb2.LoadedModel], core_count: int, clock_moved_seconds: float
) -> tuple[model.LoadedModel, ...]:
    # Check the counts before the conversion: converted messages take a hundred times as much memory.
    if len(messages) > MOST_MODELS:
        raise InvalidReport(f"more than {MOST_MODELS} models")
    if sum(len(message.subgraphs) for message in messages) > MOST_SUBGRAPHS:
        raise InvalidReport(f"more than {MOST_SUBGRAPHS} subgraphs in all models")
    models: list[model.LoadedModel] = []
    for message in messages:
        loaded = from_message(model.LoadedModel, message)
        where = f"model {loaded.model_id}"
        if len(loaded.name) > MAX_NAME_CHARACTERS:
            raise InvalidReport(f"{where} has a name of more than {MAX_NAME_CHARACTERS} characters")
        if len(loaded.uuid) != 32 or not _UUID_DIGITS.issuperset(loaded.uuid):
            raise InvalidReport(f"{where} has a uuid that is not 32 lower-case hexadecimal digits")
        for subgraph in loaded.subgraphs:
            if subgraph.neuroncore_index >= core_count:
                raise InvalidReport(f"{where} lies on core {subgraph.neuroncore_index}, the process holds {core_count}")
            _checked_counts(subgraph.device_memory, where)
            _checked_counts(subgraph.host_memory, where)
        _count(loaded.executions_total, where)
        last_at = _moment(message, "last_execution_at_unix_seconds", clock_moved_seconds)
        if loaded.busy_seconds_total is not None:
            _seconds(loaded.busy_seconds_total, f"{where} busy_seconds_total")
        if last_at != loaded.last_execution_at_unix_seconds or loaded.busy_ratio is not None:
            loaded = replace(loaded, last_execution_at_unix_seconds=last_at, busy_ratio=None)
        models.append(loaded)
    if len({loaded.model_id for loaded in models}) != len(models):
        raise InvalidReport("two models have the same model_id")
    return tuple(models)


def _histogram(message: neuron_pb2.LatencyHistogram, name: str) -> model.LatencyHistogram:
    if len(message.bucket_indices) > execution.BUCKET_COUNT:
        raise InvalidReport(f"{name}: more than {execution.BUCKET_COUNT} buckets")
    histogram = from_message(model.LatencyHistogram, message)
    indices = histogram.bucket_indices
    if len(indices) != len(histogram.bucket_counts):
        raise InvalidReport(f"{name}: {len(indices)} indices and {len(histogram.bucket_counts)} counts")
    if indices and indices[-1] >= execution.BUCKET_COUNT:
        raise InvalidReport(f"{name}: bucket {indices[-1]}; the last one is {execution.BUCKET_COUNT - 1}")
    if any(later <= earlier for earlier, later in pairwise(indices)):
        raise InvalidReport(f"{name}: bucket indices must ascend")
    if sum(histogram.bucket_counts) > LARGEST_COUNT:
        raise InvalidReport(f"{name}: counts are out of range")
    _seconds(histogram.sum_seconds, f"{name} sum_seconds")
    return histogram


def _training(message: neuron_pb2.TrainingCounters, measured_at_seconds: float) -> model.TrainingCounters:
    counters = from_message(model.TrainingCounters, message)
    for name in counters.__slots__:
        value = getattr(counters, name)
        if isinstance(value, float):
            _seconds(value, f"training.{name}")
        elif isinstance(value, str):
            if len(value) > LONGEST_COLLECTIVE or not value.isprintable():
                raise InvalidReport(f"training.{name} is no name of at most {LONGEST_COLLECTIVE} characters")
        elif value is not None:
            _count(value, f"training.{name}")
    for name in _MOMENTS:
        if (getattr(counters, name) or 0.0) > measured_at_seconds + _CLOCK_SLACK_SECONDS:
            raise InvalidReport(f"training.{name} is later than measured_at_seconds; both are CLOCK_MONOTONIC")
    return counters


def _operators(messages: Sequence[neuron_pb2.OperatorTime]) -> tuple[model.OperatorTime, ...]:
    if len(messages) > MOST_OPERATORS:
        raise InvalidReport(f"more than {MOST_OPERATORS} kinds of operators")
    found = []
    for message in messages:
        if len(message.name) > LONGEST_OPERATOR_NAME:
            raise InvalidReport(f"an operator has a name of more than {LONGEST_OPERATOR_NAME} characters")
        seconds = _seconds(message.seconds_total, "operators.seconds_total")
        executions = _count(message.executions_total, "operators.executions_total")
        found.append(model.OperatorTime(message.name, seconds, executions))
    if len({operator.name for operator in found}) != len(found):
        raise InvalidReport("a kind of operators is reported twice")
    return tuple(found)


def _advice(messages: Sequence[neuron_pb2.ScriptAdvice]) -> tuple[model.ScriptAdvice, ...]:
    if len(messages) > MOST_ADVICE:
        raise InvalidReport(f"more than {MOST_ADVICE} pieces of advice")
    for message in messages:
        if any(len(getattr(message, name)) > LONGEST_ADVICE for name in model.ScriptAdvice.__slots__):
            raise InvalidReport(f"advice has a text of more than {LONGEST_ADVICE} characters")
    return tuple(from_message(model.ScriptAdvice, message) for message in messages)


_LONGEST_WEIGHTS_ID = 64  # characters


def _served_models(
    messages: Sequence[neuron_pb2.ServedModel], core_count: int, measured_at_seconds: float
) -> tuple[model.ServedModel, ...]:
    if len(messages) > MOST_SERVED_MODELS:
        raise InvalidReport(f"more than {MOST_SERVED_MODELS} served models")
    found = tuple(_served_model(message, core_count, measured_at_seconds) for message in messages)
    if len({served.name for served in found}) != len(found):
        raise InvalidReport("two served models have the same name")
    return found


def _served_model(message: neuron_pb2.ServedModel, core_count: int, measured_at_seconds: float) -> model.ServedModel:
    where = "a served model"
    if not 1 <= len(message.name) <= LONGEST_SERVED_MODEL or not message.name.isprintable():
        raise InvalidReport(f"{where} has a name that is not 1 to {LONGEST_SERVED_MODEL} printable characters")
    if len(message.placements) > MOST_PLACEMENTS:
        raise InvalidReport(f"{where} has more than {MOST_PLACEMENTS} placements")
    for placement in message.placements:
        if placement.neuroncore_index >= core_count:
            raise InvalidReport(f"{where} lies on core {placement.neuroncore_index}, the process holds {core_count}")
        if len(placement.weights_id) > _LONGEST_WEIGHTS_ID or not placement.weights_id.isprintable():
            raise InvalidReport(f"{where} has a weights_id that is no text of at most {_LONGEST_WEIGHTS_ID} characters")
        _seconds(placement.load_seconds, f"{where} load_seconds")
        _count(placement.device_memory_bytes, f"{where} device_memory_bytes")
        _count(placement.weights_bytes, f"{where} weights_bytes")
    for name in "requests_total", "failed_requests_total", "calls_total", "samples_total", "tokens_total":
        _count(getattr(message, name), f"{where} {name}")
    for name in "queue_wait_seconds_total", "last_request_at_seconds":
        _seconds(getattr(message, name), f"{where} {name}")
    if message.last_request_at_seconds > measured_at_seconds + _CLOCK_SLACK_SECONDS:
        raise InvalidReport(
            f"{where} last_request_at_seconds is later than measured_at_seconds; both are CLOCK_MONOTONIC"
        )
    for name in _SERVED_HISTOGRAMS:
        _histogram(getattr(message, name), f"{where} {name}")
    return replace(from_message(model.ServedModel, message), rates=None)


_SERVED_HISTOGRAMS = tuple(name for name in model.ServedModel.__slots__ if name.endswith("_histogram"))


def _checked_counts(part: Any, name: str) -> Any:
    """Returns a part of a report unchanged. Raises InvalidReport if a count in it or the sum is out of range."""
    total = 0
    for field in part.__slots__:
        value = getattr(part, field)
        if value is not None:
            total += _count(value, f"{name}.{field}")
    _count(total, name)
    return part


def _count(value: int, name: str) -> int:
    if value > LARGEST_COUNT:
        raise InvalidReport(f"{name} is out of range: at most 2^63 - 1")
    return value


def _seconds(value: float, name: str) -> float:
    if not isfinite(value) or not 0 <= value <= LONGEST_SECONDS:
        raise InvalidReport(f"{name} is not a time: a number from 0 to 10^12")
    return value


def _moment(message: Any, name: str, clock_moved_seconds: float) -> float | None:
    """Converts a reported Unix time to the daemon's clock. Returns None when the report lacks this time."""
    if not message.HasField(name):
        return None
    seconds = _seconds(getattr(message, name), name)
    if not clock_moved_seconds:
        return seconds
    # Rounded to milliseconds, so that an unchanged time stays equal from report to report.
    return max(0.0, round(seconds - clock_moved_seconds, 3))
