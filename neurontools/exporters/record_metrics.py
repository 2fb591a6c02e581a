"""The records of neuron-monitor as metrics: what neuron-monitor-prometheus exposes.

Records count within a period, metrics count on: the counts of a process add up for as long as it is in the records,
and go with it. Anybody's records will do, the original's too: what is missing or has an error is left out, and so is
what makes no sense, a text in the place of a number for example; such values are counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from neurontools.exporters import neuron_families as known
from neurontools.exporters.exposition import Definition, Family, Kind, Sample
from neurontools.exporters.labels import LabelTexts
from neurontools.exporters.neuron_families import instance_labels
from neurontools.exporters.record_readings import READERS, Oddities, Problem

ODD_VALUES = Definition(
    "neurontools_odd_record_values", Kind.COUNTER, "Values of records that made no sense and were left out"
)


class RecordMetrics:
    """Takes record after record; not safe for threads."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._labels = LabelTexts()
        self._levels: dict[str, dict[Definition, dict[str, float]]] = {}  # by runtime tag and group, "" for the host
        self._counts: dict[str, dict[Definition, dict[str, tuple[float, float]]]] = {}  # by runtime tag: total, since
        self._info: dict[Definition, str] = {}
        self._odd_values = 0

    def take(self, record: Mapping[str, Any]) -> list[Problem]:
        """Takes a record in; returns what is wrong with it. ValueError when it is none at all."""
        info = record.get("instance_info")
        if not isinstance(info, Mapping):
            raise ValueError("not a record of neuron-monitor: it has no instance_info")
        base = instance_labels(info)
        if base != self._labels.base:
            self._labels = LabelTexts(base)
        problems: list[Problem] = []
        odd = Oddities()
        items = odd.items(record.get("neuron_runtime_data"), "neuron_runtime_data")
        runtimes = [odd.mapping(item, "neuron_runtime_data") for item in items]
        tags = [str(runtime.get("neuron_runtime_tag", "")) for runtime in runtimes]
        for gone in (self._levels.keys() | self._counts.keys()) - {*tags, ""}:
            self._levels.pop(gone, None)
            self._counts.pop(gone, None)
        seen: set[str] = set()
        for tag, runtime in zip(tags, runtimes, strict=True):
            if runtime.get("error"):
                problems.append(Problem(f"runtime {tag}", str(runtime["error"])))
            elif tag:
                report = odd.mapping(runtime.get("report"), "report")
                problems += self._take_groups(tag, report, odd, is_first=tag not in seen)
                seen.add(tag)
        system = odd.mapping(record.get("system_data"), "system_data")
        problems += self._take_groups("", system, odd, is_first=True)
        self._take_info(odd.mapping(record.get("neuron_hardware_info"), "neuron_hardware_info"))
        self._odd_values += len(odd.problems)
        return problems + odd.problems

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
        yield Family(ODD_VALUES, [("", self._odd_values)])

    def _take_groups(self, tag: str, groups: Mapping[str, Any], odd: Oddities, *, is_first: bool) -> Iterator[Problem]:
        for name, item in groups.items():
            read = READERS.get(name)
            if read is None:
                continue
            group = odd.mapping(item, name)
            if group.get("error"):
                yield Problem(f"{name}{f' of runtime {tag}' if tag else ''}", str(group["error"]))
                self._forget(tag, name)
                continue
            if is_first:  # processes that share a tag add up, one after the other
                self._forget(tag, name)
            for definition, labels, value in read(group, odd):
                if value is not None:  # null is unknown
                    self._put(tag, definition, labels, value)

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

    def _take_info(self, hardware: Mapping[str, Any]) -> None:
        self._info[known.INSTANCE_INFO] = self._labels.named()()
        if hardware and not hardware.get("error"):
            values = [str(hardware.get(name, "")) for name in known.HARDWARE_LABELS]
            self._info[known.HARDWARE_INFO] = self._labels.named(*known.HARDWARE_LABELS)(*values)


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
