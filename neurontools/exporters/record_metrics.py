"""The records of neuron-monitor as metrics: what neuron-monitor-prometheus exposes.

Records count within a period, metrics count on: the counts of a process add up for as long as it is in the records,
and go with it. Anybody's records will do, the original's too: what is missing or has an error is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from neurontools.exporters import neuron_families as known
from neurontools.exporters.exposition import Definition, Family, Sample
from neurontools.exporters.labels import LabelTexts
from neurontools.exporters.neuron_families import instance_labels


class RecordMetrics:
    """Takes record after record; not safe for threads."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._labels = LabelTexts()
        self._levels: dict[str, dict[Definition, dict[str, float]]] = {}  # by runtime tag and group, "" for the host
        self._counts: dict[str, dict[Definition, dict[str, tuple[float, float]]]] = {}  # by runtime tag: total, since
        self._info: dict[Definition, str] = {}

    def take(self, record: Mapping[str, Any]) -> list[str]:
        """Takes a record in; returns what is wrong with it, in words. ValueError when it is none at all."""
        try:
            info = record["instance_info"]
            base = instance_labels(info)
        except (KeyError, TypeError, AttributeError):
            raise ValueError("not a record of neuron-monitor: it has no instance_info") from None
        if base != self._labels.base:
            self._labels = LabelTexts(base)
        problems: list[str] = []
        runtimes = record.get("neuron_runtime_data") or []
        alive = {str(runtime["neuron_runtime_tag"]) for runtime in runtimes} | {""}
        for gone in (self._levels.keys() | self._counts.keys()) - alive:
            self._levels.pop(gone, None)
            self._counts.pop(gone, None)
        seen: set[str] = set()
        for runtime in runtimes:
            tag = str(runtime["neuron_runtime_tag"])
            if runtime.get("error"):
                problems.append(f"runtime {tag}: {runtime['error']}")
                continue
            self._take_groups(tag, runtime.get("report") or {}, problems, is_first=tag not in seen)
            seen.add(tag)
        self._take_groups("", record.get("system_data") or {}, problems, is_first=True)
        self._take_info(record)
        return problems

    def families(self) -> Iterator[Family]:
        """All families, as of the latest record."""
        levels: dict[Definition, dict[str, float]] = {}
        for groups in self._levels.values():
            for definition, samples in groups.items():
                levels.setdefault(definition, {}).update(samples)
        for definition in _LEVELS:
            yield Family(definition, list(levels.get(definition, {}).items()))
        for definition in _COUNTERS:
            totals: list[Sample] = []
            created: list[Sample] = []
            for counters in self._counts.values():
                for labels, (total, since) in counters.get(definition, {}).items():
                    totals.append((labels, total))
                    created.append((labels, since))
            yield Family(definition, totals, created)
        for definition, labels in self._info.items():
            yield Family(definition, [(labels, 1)])

    def _take_groups(self, tag: str, groups: Mapping[str, Any], problems: list[str], *, is_first: bool) -> None:
        for name, group in groups.items():
            read = _READERS.get(name)
            if read is None:
                continue
            if group.get("error"):
                problems.append(f"{name}{f' of runtime {tag}' if tag else ''}: {group['error']}")
                self._forget(tag, name)
                continue
            if is_first:  # processes that share a tag add up, one after the other
                self._forget(tag, name)
            try:
                for definition, labels, value in read(group):
                    if value is not None:  # null is unknown
                        self._put(tag, definition, labels, value)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                problems.append(f"{name}: {type(error).__name__}: {error}")

    def _put(self, tag: str, definition: Definition, labels: tuple[tuple[str, str], ...], value: float) -> None:
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

    def _take_info(self, record: Mapping[str, Any]) -> None:
        self._info[known.INSTANCE_INFO] = self._labels.named()()
        hardware = record.get("neuron_hardware_info")
        if isinstance(hardware, Mapping) and not hardware.get("error"):
            values = [str(hardware.get(name, "")) for name in known.HARDWARE_LABELS]
            self._info[known.HARDWARE_INFO] = self._labels.named(*known.HARDWARE_LABELS)(*values)


_Reading = tuple[Definition, tuple[tuple[str, str], ...], float | None]


def _neuroncore_counters(group: Mapping[str, Any]) -> Iterator[_Reading]:
    for index, core in (group["neuroncores_in_use"] or {}).items():
        yield known.UTILIZATION, (("neuroncore", str(index)),), core["neuroncore_utilization"] / 100.0


def _memory_used(group: Mapping[str, Any]) -> Iterator[_Reading]:
    used = group["neuron_runtime_used_bytes"]
    for location in ("host", "neuron_device"):
        yield known.RUNTIME_MEMORY, (("memory_location", location),), used[location]
    cores = (used.get("usage_breakdown") or {}).get("neuroncore_memory_usage") or {}
    for index, usage in cores.items():
        for category in known.MEMORY_CATEGORIES:
            labels = (("neuroncore", str(index)), ("memory_location", "None"))
            yield known.CORE_MEMORY[category], labels, usage[category]


def _runtime_vcpu_usage(group: Mapping[str, Any]) -> Iterator[_Reading]:
    for mode in ("user", "system"):
        yield known.RUNTIME_VCPU, (("usage_type", mode),), group["vcpu_usage"][mode] / 100.0


def _execution_stats(group: Mapping[str, Any]) -> Iterator[_Reading]:
    for kind, count in group["error_summary"].items():
        yield known.EXECUTION_ERRORS, (("error_type", kind),), count
    for kind, count in group["execution_summary"].items():
        yield known.EXECUTION_STATUS, (("status_type", kind),), count
    for percentile, seconds in (group["latency_stats"].get("total_latency") or {}).items():
        yield known.EXECUTION_LATENCY, (("percentile", percentile),), seconds


def _hw_counters(group: Mapping[str, Any]) -> Iterator[_Reading]:
    for device in group["neuron_devices"] or ():
        place = ("neuron_device_index", str(device["neuron_device_index"]))
        for event in known.ECC_EVENTS:
            if event in device:
                yield known.ECC, (place, ("event_type", event)), device[event]


def _memory_info(group: Mapping[str, Any]) -> Iterator[_Reading]:
    for definition in (known.MEMORY_TOTAL, known.MEMORY_USED, known.SWAP_TOTAL, known.SWAP_USED):
        yield definition, (), group[definition.name.removeprefix("system_")]


def _vcpu_usage(group: Mapping[str, Any]) -> Iterator[_Reading]:
    yield known.VCPU_COUNT, (), len(group["usage_data"])
    for name, parts in known.VCPU_USAGE_PARTS.items():
        percent = sum(group["average_usage"][part] for part in parts)
        yield known.VCPU_USAGE, (("usage_type", name),), min(percent, 100.0) / 100.0


_READERS: dict[str, Callable[[Mapping[str, Any]], Iterator[_Reading]]] = {
    "neuroncore_counters": _neuroncore_counters,
    "memory_used": _memory_used,
    "neuron_runtime_vcpu_usage": _runtime_vcpu_usage,
    "execution_stats": _execution_stats,
    "neuron_hw_counters": _hw_counters,
    "memory_info": _memory_info,
    "vcpu_usage": _vcpu_usage,
}
_OF_GROUP: dict[str, tuple[Definition, ...]] = {
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
