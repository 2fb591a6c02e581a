"""The counters and memory levels of one process, from which its reports are built.

Pure: no threads, no clock, no I/O. All times are CLOCK_MONOTONIC in seconds. A method that raises leaves the counters
unchanged, except that `end_execution` still marks the execution as ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from enum import StrEnum
from hashlib import blake2b
from typing import Literal

from neurontools.model import DeviceMemory, HostMemory, OperatorTime, ScriptAdvice, ServedModel, TrainingCounters
from neurontools.model.execution import LatencyCounts
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import to_message
from neurontools.rpc.report_limits import (
    LONGEST_ADVICE,
    LONGEST_OPERATOR_NAME,
    MOST_ADVICE,
    MOST_MODELS,
    MOST_SERVED_MODELS,
    MOST_SUBGRAPHS,
)

FIRST_MODEL_ID = 10001  # the first model ID of the original runtime
MOST_CORES = 1024  # limit on core indices until the daemon has sent the number of cores
LONGEST_NAME = 1024
LARGEST_COUNT = 2**63 - 1
LARGEST_BYTES = 2**56  # limit on a memory level: more memory than any host has

_COMPLETED = "completed_total"
_WITH_LATENCY = frozenset({_COMPLETED, "completed_with_err_total", "completed_with_num_err_total"})
_DEVICE_CATEGORIES = tuple(each.name for each in fields(DeviceMemory))
_HOST_CATEGORIES = tuple(each.name for each in fields(HostMemory))


StartedExecution = tuple[object, int, float]
"""A started execution: model, core, start in seconds. Pass it to `end` once; equal tuples are different executions."""


class Outcome(StrEnum):
    """The outcome of an execution. Each value plus `_total` is a field of `ExecutionCounters`."""

    COMPLETED = "completed"
    COMPLETED_WITH_ERR = "completed_with_err"
    COMPLETED_WITH_NUM_ERR = "completed_with_num_err"
    TIMED_OUT = "timed_out"
    INCORRECT_INPUT = "incorrect_input"
    FAILED_TO_QUEUE = "failed_to_queue"


class ErrorKind(StrEnum):
    """The kind of an error. Each value plus `_total` is a field of `ErrorCounters`."""

    GENERIC = "generic"
    NUMERICAL = "numerical"
    TRANSIENT = "transient"
    MODEL = "model"
    RUNTIME = "runtime"
    HARDWARE = "hardware"


DeviceMemoryCategory = Literal[
    "constants_bytes",
    "model_code_bytes",
    "model_shared_scratchpad_bytes",
    "runtime_memory_bytes",
    "tensors_bytes",
    "collectives_bytes",
    "dma_rings_bytes",
    "driver_memory_bytes",
    "nonshared_scratchpad_bytes",
    "notifications_bytes",
    "uncategorized_bytes",
]

HostMemoryCategory = Literal[
    "application_memory_bytes",
    "constants_bytes",
    "dma_buffers_bytes",
    "tensors_bytes",
    "dma_rings_bytes",
    "driver_memory_bytes",
    "notifications_bytes",
    "uncategorized_bytes",
]


@dataclass(slots=True)
class _CoreCounters:
    """The counters of one core. `busy_seconds` includes the busy time until `counted_until_seconds`."""

    busy_seconds: float = 0.0
    counted_until_seconds: float = float("-inf")
    flop: int = 0
    executions: int = 0
    last_execution_seconds: float | None = None
    in_flight: dict[int, StartedExecution] = field(default_factory=dict)  # executions by id(), oldest first
    memory: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_DEVICE_CATEGORIES, 0))

    def count_until(self, moment_seconds: float) -> None:
        """Counts busy time up to a moment. Does nothing if the moment is before `counted_until_seconds`."""
        if moment_seconds > self.counted_until_seconds:
            if self.in_flight:
                self.busy_seconds += moment_seconds - self.counted_until_seconds
            self.counted_until_seconds = moment_seconds


@dataclass(slots=True)
class _ModelCounters:
    """The counters of a loaded model.

    A report shows the model as running if an execution is in flight or has ended since the last delivered report.
    """

    model_id: int
    name: str
    uuid: str
    memory: dict[int, DeviceMemory]
    host_memory: HostMemory
    executions: int = 0
    busy_seconds: float = 0.0
    last_execution_seconds: float | None = None
    in_flight: int = 0
    ended: int = 0  # ended executions, including failed ones
    ended_in_report: int = 0
    ended_reported: int = 0


class ProcessCounters:
    """The counters and memory levels of one process. `core_count` is None until the daemon has sent it.

    `counted_since_seconds` is the start of counting, a field of every report.
    """

    def __init__(self, core_count: int | None = None, counted_since_seconds: float = 0.0) -> None:
        self.core_count = core_count
        self.counted_since_seconds = counted_since_seconds
        self._cores: list[_CoreCounters] = []
        self._models: dict[object, _ModelCounters] = {}
        self._next_model_id = FIRST_MODEL_ID
        self._host_memory = dict.fromkeys(_HOST_CATEGORIES, 0)
        self._outcomes = {f"{outcome.value}_total": 0 for outcome in Outcome}
        self._errors = {f"{kind.value}_total": 0 for kind in ErrorKind}
        self._training: TrainingCounters | None = None
        self._operators: tuple[OperatorTime, ...] = ()
        self._advice: tuple[ScriptAdvice, ...] = ()
        self._served_models: tuple[ServedModel, ...] = ()
        self._total_latencies = LatencyCounts()
        self._device_latencies = LatencyCounts()

    def add_model(
        self,
        handle: object,
        name: str,
        uuid: str | None,
        memory: Mapping[int, DeviceMemory],
        host_memory: HostMemory,
    ) -> None:
        """Adds a loaded model and its memory. Without a valid `uuid`, its UUID is a hash of its name."""
        if len(self._models) == MOST_MODELS:
            raise ValueError(f"more than {MOST_MODELS} models are loaded; the rest is not reported")
        if sum(len(model.memory) for model in self._models.values()) + len(memory) > MOST_SUBGRAPHS:
            raise ValueError(f"models are loaded on cores more than {MOST_SUBGRAPHS} times; the rest is not reported")
        for index, size in memory.items():
            self._core(index)
            _check_memory(size)
        _check_memory(host_memory)
        name = truncate_for_protobuf(name, LONGEST_NAME)
        self._models[handle] = _ModelCounters(
            self._next_model_id, name, _normalize_uuid(uuid, name), dict(memory), host_memory
        )
        self._next_model_id += 1

    def remove_model(self, handle: object) -> None:
        """Removes a model and its memory; its executions stay counted."""
        if self._models.pop(handle, None) is None:
            raise ValueError("unload_model of a model that is not loaded")

    def begin_execution(self, started: StartedExecution) -> None:
        """Records the start of an execution, which makes its core busy."""
        handle, index, began_seconds = started
        core = self._core(index)
        core.count_until(began_seconds)
        core.in_flight[id(started)] = started
        model = self._models.get(handle)
        if model is not None:
            model.in_flight += 1

    def end_execution(
        self, started: StartedExecution, ended_seconds: float, flop: int, outcome: Outcome, queued_seconds: float
    ) -> None:
        """Records the end of an execution: its outcome, latency, FLOPs, and the busy time of its core."""
        handle, index, began_seconds = started
        core = self._core(index)
        if id(started) not in core.in_flight:
            raise ValueError("end of an execution that is not in flight")
        core.count_until(ended_seconds)
        del core.in_flight[id(started)]
        model = self._models.get(handle)
        if model is not None:
            model.in_flight -= 1
            model.ended += 1
        # The test by identity avoids hashing an Enum member, which costs as much as the rest of this method.
        field_name = _COMPLETED if outcome is Outcome.COMPLETED else f"{Outcome(outcome).value}_total"
        device_seconds = ended_seconds - began_seconds if ended_seconds > began_seconds else 0.0
        total_seconds = device_seconds + (_check_seconds(queued_seconds) if queued_seconds else 0.0)
        if flop:
            core.flop += _check_range(flop, LARGEST_COUNT, "flop")
        core.executions += 1
        core.last_execution_seconds = ended_seconds
        self._outcomes[field_name] += 1
        if field_name in _WITH_LATENCY:
            bucket = self._device_latencies.add(device_seconds)
            self._total_latencies.add(total_seconds, None if queued_seconds else bucket)
        if model is not None:
            model.executions += 1
            model.busy_seconds += device_seconds
            model.last_execution_seconds = ended_seconds

    def add_memory(self, index: int, category: str, delta_bytes: int) -> None:
        """Adds to the memory in use on a core; a negative `delta_bytes` is memory that was freed.

        A level may be below 0 for a moment, if one thread frees memory before the event of its allocation is applied.
        """
        levels = self._core(index).memory
        levels[_check_category(category, levels)] += _check_range(
            delta_bytes, LARGEST_BYTES, "bytes", lowest=-LARGEST_BYTES
        )

    def set_memory(self, index: int, category: str, size_bytes: int) -> None:
        """Sets the memory in use on a core, excluding the memory of loaded models."""
        _set_level(self._core(index).memory, category, size_bytes)

    def set_host_memory(self, category: str, size_bytes: int) -> None:
        """Sets the host memory in use, excluding the memory of loaded models."""
        _set_level(self._host_memory, category, size_bytes)

    def set_training(self, counters: TrainingCounters, operators: tuple[OperatorTime, ...] = ()) -> None:
        """Sets the training counters and the operator times. Truncates long names of operators."""
        self._training = counters
        self._operators = tuple(
            replace(operator, name=truncate_for_protobuf(operator.name, LONGEST_OPERATOR_NAME))
            for operator in operators
        )

    def set_advice(self, advice: Sequence[ScriptAdvice]) -> None:
        """Sets the advice for the script, largest effect first. Keeps MOST_ADVICE items and truncates long texts."""
        self._advice = tuple(
            ScriptAdvice(*(text and truncate_for_protobuf(text, LONGEST_ADVICE) for text in astuple(each)))
            for each in advice[:MOST_ADVICE]
        )

    def set_served_models(self, served_models: Sequence[ServedModel]) -> None:
        """Sets the counters of the models that the process serves. Keeps the first MOST_SERVED_MODELS."""
        self._served_models = tuple(served_models[:MOST_SERVED_MODELS])

    def add_error(self, kind: ErrorKind) -> None:
        """Counts an error of this kind."""
        self._errors[f"{ErrorKind(kind).value}_total"] += 1

    def build_report(
        self, core_count: int, now_seconds: float, unix_minus_monotonic_seconds: float
    ) -> neuron_pb2.Report:
        """Builds the report as of `now_seconds` for the first `core_count` cores."""
        report = neuron_pb2.Report(
            measured_at_seconds=now_seconds,
            measured_at_unix_seconds=now_seconds + unix_minus_monotonic_seconds,
            counted_since_seconds=self.counted_since_seconds,
        )
        for index in range(core_count):
            self._fill_core(report.cores.add(), index, now_seconds, unix_minus_monotonic_seconds)
        host_memory = dict(self._host_memory)
        for model in self._models.values():
            self._fill_model(report.models.add(), model, core_count, unix_minus_monotonic_seconds)
            _add_levels(host_memory, model.host_memory)
        _fill_memory(report.host_memory, host_memory)
        for name, count in self._outcomes.items():
            setattr(report.executions, name, count)
        for name, count in self._errors.items():
            setattr(report.errors, name, count)
        if self._training is not None:
            report.training.CopyFrom(to_message(self._training))
        report.operators.extend(map(to_message, self._operators))
        report.advice.extend(map(to_message, self._advice))
        report.served_models.extend(map(to_message, self._served_models))
        report.total_latency_histogram.CopyFrom(to_message(self._total_latencies.histogram()))
        report.device_latency_histogram.CopyFrom(to_message(self._device_latencies.histogram()))
        return report

    def mark_delivered(self) -> None:
        """Records that the latest report reached the daemon."""
        for model in self._models.values():
            model.ended_reported = model.ended_in_report

    def _core(self, index: int) -> _CoreCounters:
        count = MOST_CORES if self.core_count is None else self.core_count
        if not 0 <= index < count:
            raise IndexError(f"core {index}: this process has cores 0-{count - 1}")
        while len(self._cores) <= index:
            self._cores.append(_CoreCounters())
        return self._cores[index]

    def _fill_core(
        self, message: neuron_pb2.ReportedCore, index: int, now_seconds: float, unix_minus_monotonic_seconds: float
    ) -> None:
        core = self._core(index)
        core.count_until(now_seconds)
        message.local_index = index
        message.busy_seconds_total = core.busy_seconds
        message.flop_total = min(core.flop, LARGEST_COUNT)
        message.executions_total = core.executions
        memory = dict(core.memory)
        for model in self._models.values():
            if index in model.memory:
                _add_levels(memory, model.memory[index])
        _fill_memory(message.memory, memory)
        if core.in_flight:
            _, _, began_seconds = next(iter(core.in_flight.values()))
            message.execution_started_at_unix_seconds = began_seconds + unix_minus_monotonic_seconds
        if core.last_execution_seconds is not None:
            message.last_execution_at_unix_seconds = core.last_execution_seconds + unix_minus_monotonic_seconds

    def _fill_model(
        self,
        message: neuron_pb2.LoadedModel,
        model: _ModelCounters,
        core_count: int,
        unix_minus_monotonic_seconds: float,
    ) -> None:
        message.model_id = model.model_id
        message.name = model.name
        message.uuid = model.uuid
        message.running = model.in_flight > 0 or model.ended != model.ended_reported
        model.ended_in_report = model.ended
        message.executions_total = model.executions
        message.busy_seconds_total = model.busy_seconds
        if model.last_execution_seconds is not None:
            message.last_execution_at_unix_seconds = model.last_execution_seconds + unix_minus_monotonic_seconds
        for position, index in enumerate(sorted(index for index in model.memory if index < core_count)):
            subgraph = message.subgraphs.add(index=position, neuroncore_index=index)
            _fill_memory(subgraph.device_memory, _memory_levels(model.memory[index]))
            if position == 0:
                _fill_memory(subgraph.host_memory, _memory_levels(model.host_memory))


def _set_level(levels: dict[str, int], category: str, size_bytes: int) -> None:
    levels[_check_category(category, levels)] = _check_range(size_bytes, LARGEST_BYTES, "bytes")


def _check_category(category: str, levels: Mapping[str, int]) -> str:
    if category not in levels:
        raise ValueError(f"{category!r} is not a category of this memory; it has {', '.join(levels)}")
    return category


def truncate_for_protobuf(text: str, longest: int) -> str:
    """Cuts a text to `longest` characters and replaces lone surrogates, which protobuf refuses."""
    return text[:longest].encode(errors="replace").decode()


def _normalize_uuid(uuid: str | None, name: str) -> str:
    digits = (uuid or "").replace("-", "").lower()
    if len(digits) == 32 and all(digit in "0123456789abcdef" for digit in digits):
        return digits
    return blake2b(name.encode(), digest_size=16).hexdigest()


def _add_levels(levels: dict[str, int], memory: DeviceMemory | HostMemory) -> None:
    for category, size_bytes in _memory_levels(memory).items():
        levels[category] += size_bytes


def _memory_levels(memory: DeviceMemory | HostMemory) -> dict[str, int]:
    names = _DEVICE_CATEGORIES if isinstance(memory, DeviceMemory) else _HOST_CATEGORIES
    return {name: value for name in names if (value := getattr(memory, name)) is not None}


def _fill_memory(message: neuron_pb2.DeviceMemory | neuron_pb2.HostMemory, levels: Mapping[str, int]) -> None:
    for category, size_bytes in levels.items():
        setattr(message, category, min(max(0, size_bytes), LARGEST_BYTES))


def _check_memory(memory: DeviceMemory | HostMemory) -> None:
    for category, size_bytes in _memory_levels(memory).items():
        _check_range(size_bytes, LARGEST_BYTES, category)


def _check_range(value: int, highest: int, field: str, lowest: int = 0) -> int:
    whole = int(value)
    if not lowest <= whole <= highest:
        raise ValueError(f"{field} is {whole}, which is out of range")
    return whole


def _check_seconds(value: float) -> float:
    seconds = float(value)
    if not 0 <= seconds <= 1e9:
        raise ValueError(f"queued_seconds is {seconds}, which is out of range")
    return seconds
