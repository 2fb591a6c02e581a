"""A snapshot as metrics: the families that AWS's exporter has, then our own. Pure but for remembered label texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import add, attrgetter

from neurontools import latency
from neurontools.exporters import neuron_families as known
from neurontools.exporters.exposition import Definition, Family, Sample
from neurontools.exporters.labels import LabelTexts
from neurontools.exporters.neuron_families import instance_labels
from neurontools.exporters.own_families import own_families
from neurontools.health import Verdict
from neurontools.model import LatencyHistogram, LatencyPercentiles, Process, Snapshot
from neurontools.monitor.system_groups import instance_info

_ECC_FIELDS = {event: event.replace("_ecc", "") + "_total" for event in known.ECC_EVENTS}
_ERROR_TYPES = ("generic", "numerical", "transient", "model", "runtime", "hardware")
_STATUS_TYPES = (
    "completed",
    "completed_with_err",
    "completed_with_num_err",
    "timed_out",
    "incorrect_input",
    "failed_to_queue",
)


class SnapshotMetrics:
    """Families of the snapshots of one host, one after the other.

    `counting_since_unix_seconds` is when counters began whose beginning isn't known: the start of the daemon.
    """

    def __init__(self, counting_since_unix_seconds: float) -> None:
        self._since = counting_since_unix_seconds
        self._labels = LabelTexts()  # of the original's families
        self._own_labels = LabelTexts()

    def families(
        self,
        snapshot: Snapshot,
        before: Snapshot | None,
        verdicts: Iterable[Verdict],
        peak_flops_per_core: float | None,
    ) -> Iterator[Family]:
        """All families. `before` is the snapshot of the tick before; `peak_flops_per_core` is of a physical core."""
        base = instance_labels(instance_info(snapshot.instance))
        if base != self._labels.base:
            self._labels = LabelTexts(base)
        holders = [p for p in snapshot.processes if p.core_indices or p.runtime_version is not None]
        yield from self._runtime_families(snapshot, holders, before)
        yield from self._system_families(snapshot)
        yield from own_families(snapshot, holders, verdicts, peak_flops_per_core, self._own_labels)

    def _runtime_families(
        self, snapshot: Snapshot, holders: list[Process], before: Snapshot | None
    ) -> Iterator[Family]:
        label = self._labels
        by_tag: dict[str, list[Process]] = {}
        for process in holders:
            by_tag.setdefault(process.tag, []).append(process)
        utilization: list[Sample] = []
        memory: dict[str, list[Sample]] = {category: [] for category in known.MEMORY_CATEGORIES}
        none = ("memory_location", "None")
        for process in holders:
            tag, lnc = ("runtime_tag", process.tag), process.logical_neuroncore_config
            for position, neuroncore_index in enumerate(process.neuroncore_indices):
                physical = process.core_indices[position * lnc : (position + 1) * lnc]
                cores = [core for index in physical if (core := snapshot.core(index)) is not None]
                core_label = ("neuroncore", str(neuroncore_index))
                busy = [core.utilization_ratio for core in cores if core.utilization_ratio is not None]
                if busy:
                    utilization.append((label(tag, core_label), sum(busy) / len(busy)))
                text = label(tag, core_label, none)
                read = [_read_memory(core.memory) for core in cores]
                for samples, *sizes in zip(memory.values(), *read, strict=True):
                    if None not in sizes:
                        samples.append((text, sum(sizes)))
        yield Family(known.UTILIZATION, utilization)
        for category, samples in memory.items():
            yield Family(known.CORE_MEMORY[category], samples)
        yield from self._process_families(by_tag, snapshot, before)

    def _process_families(
        self, by_tag: dict[str, list[Process]], snapshot: Snapshot, before: Snapshot | None
    ) -> Iterator[Family]:
        """Families by tag. Processes may share one (ranks of a job do): their counts add up."""
        label = self._labels
        used: list[Sample] = []
        vcpu: list[Sample] = []
        latencies: list[Sample] = []
        counters: dict[str, tuple[Definition, list[Sample], list[Sample]]] = {
            "errors": (known.EXECUTION_ERRORS, [], []),
            "executions": (known.EXECUTION_STATUS, [], []),
        }
        vcpu_count = snapshot.host.vcpu_count
        for text, processes in by_tag.items():
            tag = ("runtime_tag", text)
            for location, sizes in (
                ("host", [_neuron_host_bytes(process) for process in processes]),
                ("neuron_device", [_neuron_device_bytes(process, snapshot) for process in processes]),
            ):
                known_sizes = [size for size in sizes if size is not None]
                if known_sizes:
                    used.append((label(tag, ("memory_location", location)), sum(known_sizes)))
            for mode in ("user", "system"):
                # An invented process spends no vCPU time; that is known.
                ratios = [0.0 if p.synthetic else getattr(p, f"vcpu_{mode}_ratio") for p in processes]
                if vcpu_count and None not in ratios:
                    vcpu.append((label(tag, ("usage_type", mode)), sum(ratios) / vcpu_count))
            for name, label_name, types in _COUNTERS:
                _, totals, created = counters[name]
                since = min((process.attached_at_unix_seconds or self._since) for process in processes)
                told = [part for process in processes if (part := getattr(process, name)) is not None]
                if not told:
                    continue
                texts = label.each(label_name, types, tag)
                read = _READ_TOTALS[name]
                counts = read(told[0])
                for other in told[1:]:
                    counts = tuple(map(add, counts, read(other)))
                totals.extend(zip(texts, counts, strict=True))
                created.extend((text, since) for text in texts)
            measured = _shared_latency(processes, before)
            if measured is not None:
                texts = label.each("percentile", known.PERCENTILES, tag)
                latencies.extend(zip(texts, _read_percentiles(measured), strict=True))
        yield Family(known.RUNTIME_MEMORY, used)
        yield Family(known.RUNTIME_VCPU, vcpu)
        for definition, totals, created in counters.values():
            yield Family(definition, totals, created)
        yield Family(known.EXECUTION_LATENCY, latencies)

    def _system_families(self, snapshot: Snapshot) -> Iterator[Family]:
        label, host, instance = self._labels, snapshot.host, snapshot.instance
        events: list[Sample] = []
        for device in snapshot.devices:
            for event, field in _ECC_FIELDS.items():
                count = getattr(device.ecc, field)
                if count is not None:
                    events.append((label(("neuron_device_index", str(device.index)), ("event_type", event)), count))
        yield Family(known.ECC, events, [(labels, self._since) for labels, _ in events])
        for definition, value in (
            (known.MEMORY_TOTAL, host.memory_total_bytes),
            (known.MEMORY_USED, host.memory_used_bytes),
            (known.SWAP_TOTAL, host.swap_total_bytes),
            (known.SWAP_USED, host.swap_used_bytes),
            (known.VCPU_COUNT, host.vcpu_count),
        ):
            yield Family(definition, [] if value is None else [(label(), value)])
        average = host.vcpu_average
        usage: list[Sample] = []
        if average is not None:
            for name, parts in known.VCPU_USAGE_PARTS.items():
                ratio = min(1.0, sum(getattr(average, f"{part}_ratio") for part in parts))
                usage.append((label(("usage_type", name)), ratio))
        yield Family(known.VCPU_USAGE, usage)
        yield Family(known.INSTANCE_INFO, [(label(), 1)])
        hardware = label(
            ("neuron_device_count", str(instance.device_count)),
            (
                "neuroncore_per_device_count",
                str(instance.physical_cores_per_device // instance.logical_neuroncore_config),
            ),
            ("neuron_device_memory_size", str(instance.device_memory_bytes)),
        )
        yield Family(known.HARDWARE_INFO, [(hardware, 1)])


_READ_TOTALS = {
    "errors": attrgetter(*(f"{kind}_total" for kind in _ERROR_TYPES)),
    "executions": attrgetter(*(f"{kind}_total" for kind in _STATUS_TYPES)),
}
_read_percentiles = attrgetter(*(f"{percentile}_seconds" for percentile in known.PERCENTILES))
_read_memory = attrgetter(*(f"{category}_bytes" for category in known.MEMORY_CATEGORIES))
_COUNTERS = (("errors", "error_type", _ERROR_TYPES), ("executions", "status_type", _STATUS_TYPES))


def _neuron_host_bytes(process: Process) -> int | None:
    """Host memory in the categories that the original shows; None when none is known."""
    memory = process.host_memory
    sizes = (memory.application_memory_bytes, memory.constants_bytes, memory.dma_buffers_bytes, memory.tensors_bytes)
    known_sizes = [size for size in sizes if size is not None]
    return sum(known_sizes) if known_sizes else None


def _neuron_device_bytes(process: Process, snapshot: Snapshot) -> int | None:
    """Device memory in the categories that the original shows; None when none is known."""
    sizes = [size for core in snapshot.cores_of(process) for size in _read_memory(core.memory) if size is not None]
    return sum(sizes) if sizes else None


def _shared_latency(processes: list[Process], before: Snapshot | None) -> LatencyPercentiles | None:
    """The latency of processes that share a tag, over the last tick; None when nothing ran."""
    if len(processes) == 1:
        return processes[0].total_latency
    earlier = {p.pid: p for p in before.processes} if before is not None else {}
    counts: dict[int, int] = {}
    for process in processes:
        past = earlier.get(process.pid)
        if past is None or past.attached_at_unix_seconds != process.attached_at_unix_seconds:
            continue
        try:
            recent = latency.difference(process.total_latency_histogram, past.total_latency_histogram)
        except ValueError:  # its reporter began anew
            continue
        for index, count in zip(recent.bucket_indices, recent.bucket_counts, strict=True):
            counts[index] = counts.get(index, 0) + count
    ordered = sorted(counts)
    return latency.percentiles(LatencyHistogram(tuple(ordered), tuple(counts[index] for index in ordered)))
