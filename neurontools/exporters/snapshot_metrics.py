"""Converts snapshots to AWS's metric families and our own. Counters include ended processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import add, attrgetter

from neurontools.exporters import aws_families as known
from neurontools.exporters.aws_families import instance_labels
from neurontools.exporters.exposition import FamilyDefinition, LabelTexts, MetricFamily, MetricKind, Sample, label_text
from neurontools.exporters.monitor.metric_groups import instance_info
from neurontools.exporters.neurontools_families import HOST_VIEW_FAMILIES, neurontools_families
from neurontools.model import EndedProcess, LatencyHistogram, LatencyPercentiles, Process, Snapshot, execution
from neurontools.model.snapshot import count_key, counted_since_unix_seconds, counters_continue
from neurontools.util.units import sum_known

ERROR_TYPES = ("generic", "numerical", "transient", "model", "runtime", "hardware")
EXECUTION_ERRORS = FamilyDefinition(
    "neurontools_execution_errors",
    MetricKind.COUNTER,
    "Errors of executions on the host by type, including ended processes",
)
FLEET_FAMILIES = HOST_VIEW_FAMILIES | {EXECUTION_ERRORS, known.INSTANCE_INFO}
"""The families of the page /metrics/fleet."""

_read_errors = attrgetter(*(f"{kind}_total" for kind in ERROR_TYPES))
_ERROR_LABELS = tuple(label_text([("error_type", kind)]) for kind in ERROR_TYPES)
_NO_ERRORS = (0,) * len(ERROR_TYPES)

_Counts = tuple[int, ...]
_ProcessKey = tuple[int, float | None]
_UNTAGGED = "untagged"
_VCPU_MODES = ("user", "system")
_STATUS_TYPES = (
    "completed",
    "completed_with_err",
    "completed_with_num_err",
    "timed_out",
    "incorrect_input",
    "failed_to_queue",
)
_COUNTERS = {
    part: (kinds, attrgetter(*(f"{kind}_total" for kind in kinds)))
    for part, kinds in (("errors", ERROR_TYPES), ("executions", _STATUS_TYPES))
}
_read_vcpu = attrgetter(*(f"vcpu_{mode}_ratio" for mode in _VCPU_MODES))
_read_percentiles = attrgetter(*(f"{percentile}_seconds" for percentile in known.PERCENTILES))
_read_ecc = attrgetter(*(event.replace("_ecc", "") + "_total" for event in known.ECC_EVENTS))
_read_memory = attrgetter(*(f"{category}_bytes" for category in known.MEMORY_CATEGORIES))


class HostErrorTotals:
    """Sums the execution errors of all processes by type, including ended processes.

    A process that fails usually ends, and snapshots list an ended process for one minute. So callers pass snapshots in
    order, at least one per minute.
    """

    def __init__(self, counting_since_unix_seconds: float) -> None:
        self._since = counting_since_unix_seconds
        self._by_pid: dict[int, _Counts] = {}  # counts of running processes and of those that ended in the last minute
        self._errors_of_ended = _NO_ERRORS

    def add_snapshot(self, snapshot: Snapshot) -> None:
        current: dict[int, _Counts] = {}
        everybody: list[Process | EndedProcess] = [*snapshot.processes, *snapshot.ended]
        for process in everybody:
            counts = _NO_ERRORS if process.errors is None else _read_errors(process.errors)
            before = current.get(process.pid) or self._by_pid.get(process.pid, _NO_ERRORS)
            current[process.pid] = counts if counts == before else tuple(map(max, before, counts))
        for pid, counts in self._by_pid.items():
            if pid not in current:
                self._errors_of_ended = tuple(map(add, self._errors_of_ended, counts))
        self._by_pid = current

    def family(self) -> MetricFamily:
        totals = _sum_counts((self._errors_of_ended, *self._by_pid.values()))
        return MetricFamily(
            EXECUTION_ERRORS,
            list(zip(_ERROR_LABELS, totals, strict=True)),
            [(labels, self._since) for labels in _ERROR_LABELS],
        )


@dataclass(frozen=True, slots=True)
class _TagCounts:
    processes: Mapping[_ProcessKey, _Counts]
    gone: Mapping[_ProcessKey, _Counts]  # last counts of processes that are gone and whose records did not appear yet
    ended: _Counts  # sums over the other ended processes of the tag
    since_unix_seconds: float


class TagTotals:
    """Sums the counts of all processes that share a tag. Includes ended processes while a process with the tag runs.

    Without ended processes, the sum would fall when a process ends, and readers would see a counter reset.
    """

    def __init__(self) -> None:
        self._tags: dict[str, _TagCounts] = {}

    def update_totals(
        self, current: Mapping[str, Iterable[tuple[Process, float, _Counts]]], finals: Mapping[int, _Counts]
    ) -> dict[str, tuple[_Counts, float]]:
        """Updates the sums. `current` maps each tag to its processes, with their start times and counts.

        `finals` maps the PIDs of recently ended processes to their final counts, which include the work after the last
        report. Returns the sums and the start time (Unix time in seconds) of each tag.
        """
        self._tags = {
            tag: _add_snapshot(self._tags.get(tag), list(processes), finals) for tag, processes in current.items()
        }
        return {
            tag: (
                _sum_counts((totals.ended, *totals.processes.values(), *totals.gone.values())),
                totals.since_unix_seconds,
            )
            for tag, totals in self._tags.items()
        }


_MOST_GONE = 256  # most processes of a tag that wait for their records


def _add_snapshot(
    before: _TagCounts | None, current: list[tuple[Process, float, _Counts]], finals: Mapping[int, _Counts]
) -> _TagCounts:
    now = {_process_key(process): counts for process, _, counts in current}
    since = min(since for _, since, _ in current)
    if before is None:
        return _TagCounts(now, {}, (0,) * len(current[0][2]), since)
    gone = {key: counts for key, counts in (*before.gone.items(), *before.processes.items()) if key not in now}
    ended = [before.ended]
    for key, counts in tuple(gone.items()):
        if key[0] in finals or len(gone) > _MOST_GONE:
            ended.append(tuple(map(max, gone.pop(key), finals.get(key[0], counts))))
    return _TagCounts(now, gone, _sum_counts(ended), min(since, before.since_unix_seconds))


def _process_key(process: Process) -> _ProcessKey:
    return count_key(process) or (process.pid, process.attached_at_unix_seconds or process.started_at_unix_seconds)


def _sum_counts(counts: Iterable[_Counts]) -> _Counts:
    return tuple(map(sum, zip(*counts, strict=True)))


class SnapshotMetrics:
    """Converts the snapshots of one host, in order, to metric families.

    `counting_since_unix_seconds` is the start of the daemon. It is also the start of counters with an unknown start.
    With `untagged_together`, processes without a tag share the tag "untagged"; otherwise the tag of each is its PID.
    """

    def __init__(self, counting_since_unix_seconds: float, *, untagged_together: bool = False) -> None:
        self._since = counting_since_unix_seconds
        self._untagged_together = untagged_together
        self._totals = {part: TagTotals() for part in _COUNTERS}
        self._labels = LabelTexts()  # for AWS's families
        self._own_labels = LabelTexts()

    def families(
        self,
        snapshot: Snapshot,
        before: Snapshot | None,
        peak_flops_per_core: float | None,
    ) -> Iterator[MetricFamily]:
        """Yields all families of a snapshot.

        `before` is the snapshot of the previous tick. `peak_flops_per_core` is the peak of a physical core.
        """
        base = instance_labels(instance_info(snapshot.instance))
        if base != self._labels.base:
            self._labels = LabelTexts(base)
        holders = [p for p in snapshot.processes if p.core_indices or p.runtime_version is not None]
        yield from self._runtime_families(snapshot, holders, before)
        yield from self._system_families(snapshot)
        yield from neurontools_families(snapshot, holders, peak_flops_per_core, self._own_labels)

    def _runtime_families(
        self, snapshot: Snapshot, holders: list[Process], before: Snapshot | None
    ) -> Iterator[MetricFamily]:
        label = self._labels
        by_tag: dict[str, list[Process]] = {}
        for process in holders:
            by_tag.setdefault(self._tag(process), []).append(process)
        utilization: list[Sample] = []
        memory: dict[str, list[Sample]] = {category: [] for category in known.MEMORY_CATEGORIES}
        of_core = label.named("runtime_tag", "neuroncore")
        of_memory = label.named("runtime_tag", "neuroncore", "memory_location")
        for process in holders:
            tag, lnc = self._tag(process), process.logical_neuroncore_config
            for position, neuroncore_index in enumerate(process.neuroncore_indices):
                physical = process.core_indices[position * lnc : (position + 1) * lnc]
                cores = [core for index in physical if (core := snapshot.core(index)) is not None]
                busy = [core.utilization_ratio for core in cores if core.utilization_ratio is not None]
                if busy:
                    utilization.append((of_core(tag, neuroncore_index), sum(busy) / len(busy)))
                text = of_memory(tag, neuroncore_index, "None")
                read = [_read_memory(core.memory) for core in cores]
                for samples, *sizes in zip(memory.values(), *read, strict=True):
                    if None not in sizes:
                        samples.append((text, sum(sizes)))
        yield MetricFamily(known.UTILIZATION, utilization)
        for category, samples in memory.items():
            yield MetricFamily(known.CORE_MEMORY[category], samples)
        yield from self._process_families(by_tag, snapshot, before)

    def _tag(self, process: Process) -> str:
        return _UNTAGGED if self._untagged_together and process.tag == str(process.pid) else process.tag

    def _process_families(
        self, by_tag: dict[str, list[Process]], snapshot: Snapshot, before: Snapshot | None
    ) -> Iterator[MetricFamily]:
        """Yields the families with a tag label. Values of processes that share a tag, such as ranks, add up."""
        label = self._labels
        used: list[Sample] = []
        vcpu: list[Sample] = []
        latencies: list[Sample] = []
        vcpu_count = snapshot.host.vcpu_count
        memory_rows = label.rows("runtime_tag", "memory_location", last=("host", "neuron_device"))
        vcpu_rows = label.rows("runtime_tag", "usage_type", last=_VCPU_MODES)
        percentile_rows = label.rows("runtime_tag", "percentile", last=known.PERCENTILES)
        for tag, processes in by_tag.items():
            host = [_neuron_host_bytes(process) for process in processes]
            device = [_neuron_device_bytes(process, snapshot) for process in processes]
            for text, sizes in zip(memory_rows(tag), (host, device), strict=True):
                size_bytes = sum_known(sizes)
                if size_bytes is not None:
                    used.append((text, size_bytes))
            # Synthetic processes use no vCPU time, so theirs counts as 0.
            ratios = [(0.0, 0.0) if process.synthetic else _read_vcpu(process) for process in processes]
            for text, mode in zip(vcpu_rows(tag), zip(*ratios, strict=True), strict=True):
                if vcpu_count and None not in mode:
                    vcpu.append((text, sum(mode) / vcpu_count))
            measured = _shared_latency(processes, before)
            if measured is not None:
                latencies.extend(zip(percentile_rows(tag), _read_percentiles(measured), strict=True))
        yield MetricFamily(known.RUNTIME_MEMORY, used)
        yield MetricFamily(known.RUNTIME_VCPU, vcpu)
        yield self._counters(known.EXECUTION_ERRORS, by_tag, snapshot, "error_type", "errors")
        yield self._counters(known.EXECUTION_STATUS, by_tag, snapshot, "status_type", "executions")
        yield MetricFamily(known.EXECUTION_LATENCY, latencies)

    def _counters(
        self,
        definition: FamilyDefinition,
        by_tag: dict[str, list[Process]],
        snapshot: Snapshot,
        label_name: str,
        part_name: str,
    ) -> MetricFamily:
        """Returns the counters in `errors` or `executions` of the processes; skips processes without them."""
        kinds, read = _COUNTERS[part_name]
        rows = self._labels.rows("runtime_tag", label_name, last=kinds)
        processes_by_tag: dict[str, list[tuple[Process, float, tuple[int, ...]]]] = {}
        for tag, processes in by_tag.items():
            for process in processes:
                part = getattr(process, part_name)
                if part is not None:
                    since = counted_since_unix_seconds(process, snapshot) or self._since
                    processes_by_tag.setdefault(tag, []).append((process, since, read(part)))
        parts = ((record.pid, getattr(record, part_name)) for record in snapshot.ended)
        finals = {pid: read(part) for pid, part in parts if part is not None}
        totals: list[Sample] = []
        created: list[Sample] = []
        for tag, (counts, since) in self._totals[part_name].update_totals(processes_by_tag, finals).items():
            texts = rows(tag)
            totals.extend(zip(texts, counts, strict=True))
            created.extend([(text, since) for text in texts])
        return MetricFamily(definition, totals, created)

    def _system_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        label, host, instance = self._labels, snapshot.host, snapshot.instance
        alone = label.named()()
        events: list[Sample] = []
        event_rows = label.rows("neuron_device_index", "event_type", last=known.ECC_EVENTS)
        for device in snapshot.devices:
            for text, count in zip(event_rows(device.index), _read_ecc(device.ecc), strict=True):
                if count is not None:
                    events.append((text, count))
        yield MetricFamily(known.ECC, events, [(labels, self._since) for labels, _ in events])
        for definition in (known.MEMORY_TOTAL, known.MEMORY_USED, known.SWAP_TOTAL, known.SWAP_USED, known.VCPU_COUNT):
            value = getattr(host, definition.name.removeprefix("system_"))
            yield MetricFamily(definition, [] if value is None else [(alone, value)])
        average = host.vcpu_average
        usage: list[Sample] = []
        if average is not None:
            for name, parts in known.VCPU_USAGE_PARTS.items():
                ratio = min(1.0, sum(getattr(average, f"{part}_ratio") for part in parts))
                usage.append((label.named("usage_type")(name), ratio))
        yield MetricFamily(known.VCPU_USAGE, usage)
        yield MetricFamily(known.INSTANCE_INFO, [(alone, 1)])
        hardware = label.named(*known.HARDWARE_LABELS)(
            instance.device_count,
            instance.physical_cores_per_device // instance.logical_neuroncore_config,
            instance.device_memory_bytes,
        )
        yield MetricFamily(known.HARDWARE_INFO, [(hardware, 1)])


def _neuron_host_bytes(process: Process) -> int | None:
    """Returns a process's host memory in the categories of neuron-monitor; None if unknown."""
    memory = process.host_memory
    sizes = (memory.application_memory_bytes, memory.constants_bytes, memory.dma_buffers_bytes, memory.tensors_bytes)
    return sum_known(sizes)


def _neuron_device_bytes(process: Process, snapshot: Snapshot) -> int | None:
    """Returns a process's device memory in the categories of neuron-monitor; None if unknown."""
    return sum_known(size for core in snapshot.cores_of(process) for size in _read_memory(core.memory))


def _shared_latency(processes: list[Process], before: Snapshot | None) -> LatencyPercentiles | None:
    """Returns the latency over the last tick of processes that share a tag; None without executions."""
    if len(processes) == 1:
        return processes[0].total_latency
    earlier = {p.pid: p for p in before.processes} if before is not None else {}
    counts: dict[int, int] = {}
    for process in processes:
        past = earlier.get(process.pid)
        if past is None or not counters_continue(past, process):
            continue
        try:
            recent = execution.subtract_histograms(process.total_latency_histogram, past.total_latency_histogram)
        except ValueError:  # the process's counts restarted
            continue
        for index, count in zip(recent.bucket_indices, recent.bucket_counts, strict=True):
            counts[index] = counts.get(index, 0) + count
    ordered = sorted(counts)
    return execution.latency_percentiles(LatencyHistogram(tuple(ordered), tuple(counts[index] for index in ordered)))
