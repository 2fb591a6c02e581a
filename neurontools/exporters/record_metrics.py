"""The records of neuron-monitor as metrics: what neuron-monitor-prometheus exposes.

Records count within a period, metrics count on: the counts of a process add up for as long as it is in the records,
and go with it. Anybody's records will do, the original's too: what is missing or has an error is left out, and so is
what makes no sense, a text in the place of a number for example; such values are counted.
"""

from __future__ import annotations

import reprlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from neurontools.exporters import aws_families as known
from neurontools.exporters.aws_families import instance_labels
from neurontools.exporters.exposition import FamilyDefinition, LabelTexts, MetricFamily, MetricKind, Sample

_LARGEST = 2.0**64  # above every count, size and time of a host

Reading = tuple[FamilyDefinition, tuple[tuple[str, str], ...], float | None]
"""A family, the labels of a series in it beside the common ones, and the value; None is unknown."""


class RecordProblem(NamedTuple):
    """Something wrong in a record: what, which is the same each time, and the rest."""

    what: str
    detail: str


class RecordValidator:
    """Collects values that are not what belongs in their place."""

    def __init__(self) -> None:
        self.problems: list[RecordProblem] = []

    def mapping(self, value: object, place: str) -> Mapping[str, Any]:
        """A JSON object; an empty one for null, which is unknown, and for what is odd."""
        if isinstance(value, Mapping):
            return value
        if value is not None:
            self._note(value, place)
        return {}

    def items(self, value: object, place: str) -> list[Any]:
        """A JSON array, as `mapping`."""
        if isinstance(value, list):
            return value
        if value is not None:
            self._note(value, place)
        return []

    def number(self, value: object, place: str) -> float | None:
        """A number; None for null and for what is odd, one that no host could have included."""
        if type(value) in (int, float) and abs(value) <= _LARGEST:  # type: ignore[arg-type]
            return value  # type: ignore[return-value]
        if value is not None:
            self._note(value, place)
        return None

    def share(self, percent: object, place: str) -> float | None:
        """A number of percent as a ratio."""
        number = self.number(percent, place)
        return None if number is None else number / 100.0

    def _note(self, value: object, place: str) -> None:
        self.problems.append(RecordProblem(f"{place} is left out where it makes no sense", reprlib.repr(value)))


def _neuroncore_counters(group: Mapping[str, Any], odd: RecordValidator) -> Iterator[Reading]:
    for index, core in odd.mapping(group.get("neuroncores_in_use"), "neuroncores_in_use").items():
        percent = odd.mapping(core, "neuroncores_in_use").get("neuroncore_utilization")
        yield known.UTILIZATION, (("neuroncore", index),), odd.share(percent, "neuroncore_utilization")


def _memory_used(group: Mapping[str, Any], odd: RecordValidator) -> Iterator[Reading]:
    used = odd.mapping(group.get("neuron_runtime_used_bytes"), "neuron_runtime_used_bytes")
    for location in ("host", "neuron_device"):
        size = odd.number(used.get(location), f"neuron_runtime_used_bytes.{location}")
        yield known.RUNTIME_MEMORY, (("memory_location", location),), size
    breakdown = odd.mapping(used.get("usage_breakdown"), "usage_breakdown")
    cores = odd.mapping(breakdown.get("neuroncore_memory_usage"), "neuroncore_memory_usage")
    for index, usage in cores.items():
        sizes = odd.mapping(usage, "neuroncore_memory_usage")
        for category in known.MEMORY_CATEGORIES:
            labels = (("neuroncore", index), ("memory_location", "None"))
            size = odd.number(sizes.get(category), f"neuroncore_memory_usage.{category}")
            yield known.CORE_MEMORY[category], labels, size


def _runtime_vcpu_usage(group: Mapping[str, Any], odd: RecordValidator) -> Iterator[Reading]:
    usage = odd.mapping(group.get("vcpu_usage"), "neuron_runtime_vcpu_usage")
    for mode in ("user", "system"):
        share = odd.share(usage.get(mode), f"neuron_runtime_vcpu_usage.{mode}")
        yield known.RUNTIME_VCPU, (("usage_type", mode),), share


def _execution_stats(group: Mapping[str, Any], odd: RecordValidator) -> Iterator[Reading]:
    for definition, label, part in (
        (known.EXECUTION_ERRORS, "error_type", "error_summary"),
        (known.EXECUTION_STATUS, "status_type", "execution_summary"),
    ):
        for kind, count in odd.mapping(group.get(part), part).items():
            yield definition, ((label, kind),), odd.number(count, part)
    latencies = odd.mapping(group.get("latency_stats"), "latency_stats")
    for percentile, seconds in odd.mapping(latencies.get("total_latency"), "total_latency").items():
        yield known.EXECUTION_LATENCY, (("percentile", percentile),), odd.number(seconds, "total_latency")


def _hw_counters(group: Mapping[str, Any], odd: RecordValidator) -> Iterator[Reading]:
    for item in odd.items(group.get("neuron_devices"), "neuron_devices"):
        device = odd.mapping(item, "neuron_devices")
        index = odd.number(device.get("neuron_device_index"), "neuron_device_index")
        if index is None:
            continue
        for event in known.ECC_EVENTS:
            labels = (("neuron_device_index", str(index)), ("event_type", event))
            yield known.ECC, labels, odd.number(device.get(event), event)


def _memory_info(group: Mapping[str, Any], odd: RecordValidator) -> Iterator[Reading]:
    for definition in (known.MEMORY_TOTAL, known.MEMORY_USED, known.SWAP_TOTAL, known.SWAP_USED):
        name = definition.name.removeprefix("system_")
        yield definition, (), odd.number(group.get(name), name)


def _vcpu_usage(group: Mapping[str, Any], odd: RecordValidator) -> Iterator[Reading]:
    if (usage_data := group.get("usage_data")) is not None:
        yield known.VCPU_COUNT, (), len(odd.mapping(usage_data, "usage_data")) or None
    average = odd.mapping(group.get("average_usage"), "average_usage")
    for name, parts in known.VCPU_USAGE_PARTS.items():
        percents = [odd.number(average.get(part), f"average_usage.{part}") for part in parts]
        told = [percent for percent in percents if percent is not None]
        if len(told) == len(parts):
            yield known.VCPU_USAGE, (("usage_type", name),), min(sum(told), 100.0) / 100.0


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
    "neurontools_odd_record_values", MetricKind.COUNTER, "Values of records that made no sense and were left out"
)


class RecordMetrics:
    """Takes record after record; not safe for threads."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._labels = LabelTexts()
        self._levels: dict[
            str, dict[FamilyDefinition, dict[str, float]]
        ] = {}  # by runtime tag and group, "" for the host
        self._counts: dict[
            str, dict[FamilyDefinition, dict[str, tuple[float, float]]]
        ] = {}  # by runtime tag: total, since
        self._info: dict[FamilyDefinition, str] = {}
        self._odd_values = 0

    def take(self, record: Mapping[str, Any]) -> list[RecordProblem]:
        """Takes a record in; returns what is wrong with it. ValueError when it is none at all."""
        info = record.get("instance_info")
        if not isinstance(info, Mapping):
            raise ValueError("not a record of neuron-monitor: it has no instance_info")
        base = instance_labels(info)
        if base != self._labels.base:
            self._labels = LabelTexts(base)
        problems: list[RecordProblem] = []
        odd = RecordValidator()
        items = odd.items(record.get("neuron_runtime_data"), "neuron_runtime_data")
        runtimes = [odd.mapping(item, "neuron_runtime_data") for item in items]
        tags = [str(runtime.get("neuron_runtime_tag", "")) for runtime in runtimes]
        for gone in (self._levels.keys() | self._counts.keys()) - {*tags, ""}:
            self._levels.pop(gone, None)
            self._counts.pop(gone, None)
        seen: set[str] = set()
        for tag, runtime in zip(tags, runtimes, strict=True):
            if runtime.get("error"):
                problems.append(RecordProblem(f"runtime {tag}", str(runtime["error"])))
            elif tag:
                report = odd.mapping(runtime.get("report"), "report")
                problems += self._take_groups(tag, report, odd, is_first=tag not in seen)
                seen.add(tag)
        system = odd.mapping(record.get("system_data"), "system_data")
        problems += self._take_groups("", system, odd, is_first=True)
        self._take_info(odd.mapping(record.get("neuron_hardware_info"), "neuron_hardware_info"))
        self._odd_values += len(odd.problems)
        return problems + odd.problems

    def families(self) -> Iterator[MetricFamily]:
        """All families, as of the latest record."""
        levels: dict[FamilyDefinition, dict[str, float]] = {}
        for groups in self._levels.values():
            for definition, samples in groups.items():
                levels.setdefault(definition, {}).update(samples)
        for definition in _LEVELS:
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

    def _take_groups(
        self, tag: str, groups: Mapping[str, Any], odd: RecordValidator, *, is_first: bool
    ) -> Iterator[RecordProblem]:
        for name, item in groups.items():
            read = GROUP_READERS.get(name)
            if read is None:
                continue
            group = odd.mapping(item, name)
            if group.get("error"):
                yield RecordProblem(f"{name}{f' of runtime {tag}' if tag else ''}", str(group["error"]))
                self._forget(tag, name)
                continue
            if is_first:  # processes that share a tag add up, one after the other
                self._forget(tag, name)
            for definition, labels, value in read(group, odd):
                if value is not None:  # null is unknown
                    self._put(tag, definition, labels, value)

    def _put(self, tag: str, definition: FamilyDefinition, labels: tuple[tuple[str, str], ...], value: float) -> None:
        if tag:
            labels = (("runtime_tag", tag), *labels)
        text = self._labels.named(*(name for name, _ in labels))(*(label for _, label in labels))
        if definition in _COUNTERS:
            counters = self._counts.setdefault(tag, {}).setdefault(definition, {})
            total, since = counters.get(text, (0, self._now()))
            counters[text] = (total + max(0, value), since)
        else:
            levels = self._levels.setdefault(tag, {}).setdefault(definition, {})
            if definition in _ADDING and text in levels:
                levels[text] += value
            else:
                levels[text] = value

    def _forget(self, tag: str, group: str) -> None:
        for definition in _OF_GROUP[group]:
            self._levels.get(tag, {}).pop(definition, None)

    def _take_info(self, hardware: Mapping[str, Any]) -> None:
        self._info[known.INSTANCE_INFO] = self._labels.named()()
        if hardware and not hardware.get("error"):
            values = [str(hardware.get(name, "")) for name in known.HARDWARE_LABELS]
            self._info[known.HARDWARE_INFO] = self._labels.named(*known.HARDWARE_LABELS)(*values)


_OF_GROUP: dict[str, tuple[FamilyDefinition, ...]] = {
    "neuroncore_counters": (known.UTILIZATION,),
    "memory_used": (known.RUNTIME_MEMORY, *known.CORE_MEMORY.values()),
    "neuron_runtime_vcpu_usage": (known.RUNTIME_VCPU,),
    "execution_stats": (known.EXECUTION_LATENCY,),
    "neuron_hw_counters": (),
    "memory_info": (known.MEMORY_TOTAL, known.MEMORY_USED, known.SWAP_TOTAL, known.SWAP_USED),
    "vcpu_usage": (known.VCPU_COUNT, known.VCPU_USAGE),
}
_LEVELS = tuple(definition for definitions in _OF_GROUP.values() for definition in definitions)
_COUNTERS = (known.EXECUTION_ERRORS, known.EXECUTION_STATUS, known.ECC)
_ADDING = frozenset((known.RUNTIME_MEMORY, known.RUNTIME_VCPU))
