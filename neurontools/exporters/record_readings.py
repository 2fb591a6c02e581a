"""What the groups of a record of neuron-monitor say, as series; what is odd in them is left out and noted."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from neurontools.exporters import neuron_families as known
from neurontools.exporters.exposition import Definition

_LARGEST = 2.0**64  # above every count, size and time of a host

Reading = tuple[Definition, tuple[tuple[str, str], ...], float | None]
"""A family, the labels of a series in it beside the common ones, and the value; None is unknown."""


class Problem(NamedTuple):
    """Something wrong in a record: what, which is the same each time, and the rest."""

    what: str
    detail: str


class Oddities:
    """Collects values that are not what belongs in their place."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

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
        self.problems.append(Problem(f"{place} is left out where it makes no sense", reprlib.repr(value)))


def _neuroncore_counters(group: Mapping[str, Any], odd: Oddities) -> Iterator[Reading]:
    for index, core in odd.mapping(group.get("neuroncores_in_use"), "neuroncores_in_use").items():
        percent = odd.mapping(core, "neuroncores_in_use").get("neuroncore_utilization")
        yield known.UTILIZATION, (("neuroncore", index),), odd.share(percent, "neuroncore_utilization")


def _memory_used(group: Mapping[str, Any], odd: Oddities) -> Iterator[Reading]:
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


def _runtime_vcpu_usage(group: Mapping[str, Any], odd: Oddities) -> Iterator[Reading]:
    usage = odd.mapping(group.get("vcpu_usage"), "neuron_runtime_vcpu_usage")
    for mode in ("user", "system"):
        share = odd.share(usage.get(mode), f"neuron_runtime_vcpu_usage.{mode}")
        yield known.RUNTIME_VCPU, (("usage_type", mode),), share


def _execution_stats(group: Mapping[str, Any], odd: Oddities) -> Iterator[Reading]:
    for definition, label, part in (
        (known.EXECUTION_ERRORS, "error_type", "error_summary"),
        (known.EXECUTION_STATUS, "status_type", "execution_summary"),
    ):
        for kind, count in odd.mapping(group.get(part), part).items():
            yield definition, ((label, kind),), odd.number(count, part)
    latencies = odd.mapping(group.get("latency_stats"), "latency_stats")
    for percentile, seconds in odd.mapping(latencies.get("total_latency"), "total_latency").items():
        yield known.EXECUTION_LATENCY, (("percentile", percentile),), odd.number(seconds, "total_latency")


def _hw_counters(group: Mapping[str, Any], odd: Oddities) -> Iterator[Reading]:
    for item in odd.items(group.get("neuron_devices"), "neuron_devices"):
        device = odd.mapping(item, "neuron_devices")
        index = odd.number(device.get("neuron_device_index"), "neuron_device_index")
        if index is None:
            continue
        for event in known.ECC_EVENTS:
            labels = (("neuron_device_index", str(index)), ("event_type", event))
            yield known.ECC, labels, odd.number(device.get(event), event)


def _memory_info(group: Mapping[str, Any], odd: Oddities) -> Iterator[Reading]:
    for definition in (known.MEMORY_TOTAL, known.MEMORY_USED, known.SWAP_TOTAL, known.SWAP_USED):
        name = definition.name.removeprefix("system_")
        yield definition, (), odd.number(group.get(name), name)


def _vcpu_usage(group: Mapping[str, Any], odd: Oddities) -> Iterator[Reading]:
    if (usage_data := group.get("usage_data")) is not None:
        yield known.VCPU_COUNT, (), len(odd.mapping(usage_data, "usage_data")) or None
    average = odd.mapping(group.get("average_usage"), "average_usage")
    for name, parts in known.VCPU_USAGE_PARTS.items():
        percents = [odd.number(average.get(part), f"average_usage.{part}") for part in parts]
        told = [percent for percent in percents if percent is not None]
        if len(told) == len(parts):
            yield known.VCPU_USAGE, (("usage_type", name),), min(sum(told), 100.0) / 100.0


READERS: dict[str, Callable[[Mapping[str, Any], Oddities], Iterator[Reading]]] = {
    "neuroncore_counters": _neuroncore_counters,
    "memory_used": _memory_used,
    "neuron_runtime_vcpu_usage": _runtime_vcpu_usage,
    "execution_stats": _execution_stats,
    "neuron_hw_counters": _hw_counters,
    "memory_info": _memory_info,
    "vcpu_usage": _vcpu_usage,
}
