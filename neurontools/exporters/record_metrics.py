"""Converts neuron-monitor records to metrics, for neuron-monitor-prometheus.

Records have counts of one period, but metrics are cumulative: a process's counts add up while records list the process.
Records of any neuron-monitor work, including AWS's. Missing values and groups with an error are skipped. Invalid
values, such as a string instead of a number, are skipped and counted.
"""

from __future__ import annotations

import reprlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from neurontools.exporters import aws_families as known
from neurontools.exporters.aws_families import instance_labels
from neurontools.exporters.exposition import FamilyDefinition, LabelTexts, MetricFamily, MetricKind, Sample

_LARGEST = 2.0**64  # limit of valid numbers: higher than any count, size or time of a host

Reading = tuple[FamilyDefinition, tuple[tuple[str, str], ...], float | None]
"""A family, the specific labels of a series, and its value; None is unknown."""


class RecordProblem(NamedTuple):
    """An error in a record. Repeated errors have the same `description`, but their `detail` may vary."""

    description: str
    detail: str


class RecordValidator:
    """Checks the types of values in a record, and collects a problem for each invalid value other than null."""

    def __init__(self) -> None:
        self.problems: list[RecordProblem] = []

    def mapping(self, value: object, place: str) -> Mapping[str, Any]:
        """Returns the value if it is a JSON object, otherwise an empty mapping."""
        if isinstance(value, Mapping):
            return value
        if value is not None:
            self._add_problem(value, place)
        return {}

    def items(self, value: object, place: str) -> list[Any]:
        """Returns the value if it is a JSON array, otherwise an empty list."""
        if isinstance(value, list):
            return value
        if value is not None:
            self._add_problem(value, place)
        return []

    def number(self, value: object, place: str) -> float | None:
        """Returns the value if it is a number that a host can have, otherwise None."""
        if type(value) in (int, float) and abs(value) <= _LARGEST:  # type: ignore[arg-type]
            return value  # type: ignore[return-value]
        if value is not None:
            self._add_problem(value, place)
        return None

    def ratio(self, percent: object, place: str) -> float | None:
        number = self.number(percent, place)
        return None if number is None else number / 100.0

    def _add_problem(self, value: object, place: str) -> None:
        self.problems.append(RecordProblem(f"impossible values of {place} are left out", reprlib.repr(value)))


def _neuroncore_counters(group: Mapping[str, Any], validator: RecordValidator) -> Iterator[Reading]:
    for index, core in validator.mapping(group.get("neuroncores_in_use"), "neuroncores_in_use").items():
        percent = validator.mapping(core, "neuroncores_in_use").get("neuroncore_utilization")
        yield known.UTILIZATION, (("neuroncore", index),), validator.ratio(percent, "neuroncore_utilization")


def _memory_used(group: Mapping[str, Any], validator: RecordValidator) -> Iterator[Reading]:
    used = validator.mapping(group.get("neuron_runtime_used_bytes"), "neuron_runtime_used_bytes")
    for location in ("host", "neuron_device"):
        size = validator.number(used.get(location), f"neuron_runtime_used_bytes.{location}")
        yield known.RUNTIME_MEMORY, (("memory_location", location),), size
    breakdown = validator.mapping(used.get("usage_breakdown"), "usage_breakdown")
    cores = validator.mapping(breakdown.get("neuroncore_memory_usage"), "neuroncore_memory_usage")
    for index, usage in cores.items():
        sizes = validator.mapping(usage, "neuroncore_memory_usage")
        for category in known.MEMORY_CATEGORIES:
            labels = (("neuroncore", index), ("memory_location", "None"))
            size = validator.number(sizes.get(category), f"neuroncore_memory_usage.{category}")
            yield known.CORE_MEMORY[category], labels, size


def _runtime_vcpu_usage(group: Mapping[str, Any], validator: RecordValidator) -> Iterator[Reading]:
    usage = validator.mapping(group.get("vcpu_usage"), "neuron_runtime_vcpu_usage")
    for mode in ("user", "system"):
        share = validator.ratio(usage.get(mode), f"neuron_runtime_vcpu_usage.{mode}")
        yield known.RUNTIME_VCPU, (("usage_type", mode),), share


def _execution_stats(group: Mapping[str, Any], validator: RecordValidator) -> Iterator[Reading]:
    for definition, label, part in (
        (known.EXECUTION_ERRORS, "error_type", "error_summary"),
        (known.EXECUTION_STATUS, "status_type", "execution_summary"),
    ):
        for kind, count in validator.mapping(group.get(part), part).items():
            yield definition, ((label, kind),), validator.number(count, part)
    latencies = validator.mapping(group.get("latency_stats"), "latency_stats")
    for percentile, seconds in validator.mapping(latencies.get("total_latency"), "total_latency").items():
        yield known.EXECUTION_LATENCY, (("percentile", percentile),), validator.number(seconds, "total_latency")


def _hw_counters(group: Mapping[str, Any], validator: RecordValidator) -> Iterator[Reading]:
    for item in validator.items(group.get("neuron_devices"), "neuron_devices"):
        device = validator.mapping(item, "neuron_devices")
        index = validator.number(device.get("neuron_device_index"), "neuron_device_index")
        if index is None:
            continue
        for event in known.ECC_EVENTS:
            labels = (("neuron_device_index", str(index)), ("event_type", event))
            yield known.ECC, labels, validator.number(device.get(event), event)


def _memory_info(group: Mapping[str, Any], validator: RecordValidator) -> Iterator[Reading]:
    for definition in (known.MEMORY_TOTAL, known.MEMORY_USED, known.SWAP_TOTAL, known.SWAP_USED):
        name = definition.name.removeprefix("system_")
        yield definition, (), validator.number(group.get(name), name)


def _vcpu_usage(group: Mapping[str, Any], validator: RecordValidator) -> Iterator[Reading]:
    if (usage_data := group.get("usage_data")) is not None:
        yield known.VCPU_COUNT, (), len(validator.mapping(usage_data, "usage_data")) or None
    average = validator.mapping(group.get("average_usage"), "average_usage")
    for name, parts in known.VCPU_USAGE_PARTS.items():
        percents = [validator.number(average.get(part), f"average_usage.{part}") for part in parts]
        values = [percent for percent in percents if percent is not None]
        if len(values) == len(parts):
            yield known.VCPU_USAGE, (("usage_type", name),), min(sum(values), 100.0) / 100.0


GROUP_READERS: dict[str, Callable[[Mapping[str, Any], RecordValidator], Iterator[Reading]]] = {
    "neuroncore_counters": _neuroncore_counters,
    "memory_used": _memory_used,
    "neuron_runtime_vcpu_usage": _runtime_vcpu_usage,
    "execution_stats": _execution_stats,
    "neuron_hw_counters": _hw_counters,
    "memory_info": _memory_info,
    "vcpu_usage": _vcpu_usage,
}


ODD_VALUES = FamilyDefinition(
    "neurontools_odd_record_values", MetricKind.COUNTER, "Invalid values in records, which were skipped"
)


class RecordMetrics:
    """Converts successive records to metrics; not thread-safe."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._labels = LabelTexts()
        # Values of metrics. Keys, outermost first: runtime tag ("" for the host), family, label text.
        self._gauges: dict[str, dict[FamilyDefinition, dict[str, float]]] = {}
        self._counts: dict[str, dict[FamilyDefinition, dict[str, tuple[float, float]]]] = {}  # values: total, start
        self._info: dict[FamilyDefinition, str] = {}
        self._odd_values = 0

    def add_record(self, record: Mapping[str, Any]) -> list[RecordProblem]:
        """Adds a record; returns its invalid values and reported errors. Raises ValueError without instance_info."""
        info = record.get("instance_info")
        if not isinstance(info, Mapping):
            raise ValueError("not a record of neuron-monitor: it has no instance_info")
        base = instance_labels(info)
        if base != self._labels.base:
            self._labels = LabelTexts(base)
        problems: list[RecordProblem] = []
        validator = RecordValidator()
        items = validator.items(record.get("neuron_runtime_data"), "neuron_runtime_data")
        runtimes = [validator.mapping(item, "neuron_runtime_data") for item in items]
        tags = [str(runtime.get("neuron_runtime_tag", "")) for runtime in runtimes]
        for tag_gone in (self._gauges.keys() | self._counts.keys()) - {*tags, ""}:
            self._gauges.pop(tag_gone, None)
            self._counts.pop(tag_gone, None)
        added_tags: set[str] = set()
        for tag, runtime in zip(tags, runtimes, strict=True):
            if runtime.get("error"):
                problems.append(RecordProblem(f"runtime {tag}", str(runtime["error"])))
            elif tag:
                report = validator.mapping(runtime.get("report"), "report")
                problems += self._add_groups(tag, report, validator, is_first=tag not in added_tags)
                added_tags.add(tag)
        system = validator.mapping(record.get("system_data"), "system_data")
        problems += self._add_groups("", system, validator, is_first=True)
        self._add_info(validator.mapping(record.get("neuron_hardware_info"), "neuron_hardware_info"))
        self._odd_values += len(validator.problems)
        return problems + validator.problems

    def families(self) -> Iterator[MetricFamily]:
        """Yields all families with their values after the latest record."""
        levels: dict[FamilyDefinition, dict[str, float]] = {}
        for groups in self._gauges.values():
            for definition, samples in groups.items():
                levels.setdefault(definition, {}).update(samples)
        for definition in _GAUGES:
            yield MetricFamily(definition, list(levels.get(definition, {}).items()))
        for definition in _COUNTERS:
            totals: list[Sample] = []
            created: list[Sample] = []
            for counters in self._counts.values():
                for labels, (total, since) in counters.get(definition, {}).items():
                    totals.append((labels, total))
                    created.append((labels, since))
            yield MetricFamily(definition, totals, created)
        for definition, labels in self._info.items():
            yield MetricFamily(definition, [(labels, 1)])
        yield MetricFamily(ODD_VALUES, [("", self._odd_values)])

    def _add_groups(
        self, tag: str, groups: Mapping[str, Any], validator: RecordValidator, *, is_first: bool
    ) -> Iterator[RecordProblem]:
        for name, item in groups.items():
            read = GROUP_READERS.get(name)
            if read is None:
                continue
            group = validator.mapping(item, name)
            if group.get("error"):
                yield RecordProblem(f"{name}{f' of runtime {tag}' if tag else ''}", str(group["error"]))
                self._drop_gauges(tag, name)
                continue
            if is_first:  # values of later processes with this tag are added to those of the tag's first process
                self._drop_gauges(tag, name)
            for definition, labels, value in read(group, validator):
                if value is not None:  # null is unknown
                    self._set_sample(tag, definition, labels, value)

    def _set_sample(
        self, tag: str, definition: FamilyDefinition, labels: tuple[tuple[str, str], ...], value: float
    ) -> None:
        if tag:
            labels = (("runtime_tag", tag), *labels)
        text = self._labels.named(*(name for name, _ in labels))(*(label for _, label in labels))
        if definition in _COUNTERS:
            counters = self._counts.setdefault(tag, {}).setdefault(definition, {})
            total, since = counters.get(text, (0, self._now()))
            counters[text] = (total + max(0, value), since)
        else:
            levels = self._gauges.setdefault(tag, {}).setdefault(definition, {})
            if definition in _SUMMED_GAUGES and text in levels:
                levels[text] += value
            else:
                levels[text] = value

    def _drop_gauges(self, tag: str, group: str) -> None:
        for definition in _GAUGES_OF_GROUP[group]:
            self._gauges.get(tag, {}).pop(definition, None)

    def _add_info(self, hardware: Mapping[str, Any]) -> None:
        self._info[known.INSTANCE_INFO] = self._labels.named()()
        if hardware and not hardware.get("error"):
            values = [str(hardware.get(name, "")) for name in known.HARDWARE_LABELS]
            self._info[known.HARDWARE_INFO] = self._labels.named(*known.HARDWARE_LABELS)(*values)


_GAUGES_OF_GROUP: dict[str, tuple[FamilyDefinition, ...]] = {
    "neuroncore_counters": (known.UTILIZATION,),
    "memory_used": (known.RUNTIME_MEMORY, *known.CORE_MEMORY.values()),
    "neuron_runtime_vcpu_usage": (known.RUNTIME_VCPU,),
    "execution_stats": (known.EXECUTION_LATENCY,),
    "neuron_hw_counters": (),
    "memory_info": (known.MEMORY_TOTAL, known.MEMORY_USED, known.SWAP_TOTAL, known.SWAP_USED),
    "vcpu_usage": (known.VCPU_COUNT, known.VCPU_USAGE),
}
_GAUGES = tuple(definition for definitions in _GAUGES_OF_GROUP.values() for definition in definitions)
_COUNTERS = (known.EXECUTION_ERRORS, known.EXECUTION_STATUS, known.ECC)
_SUMMED_GAUGES = frozenset((known.RUNTIME_MEMORY, known.RUNTIME_VCPU))
