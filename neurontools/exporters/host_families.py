"""Metric families neurontools_… of the host as a whole.

A view of many hosts reads these few series of each host, so Prometheus need not add up the series of the host's cores.
They are the numbers of the host's summary in neuron-top --hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from neurontools.exporters.exposition import (
    LabelTexts,
    MetricFamily,
    MetricKind,
    Sample,
    SamplesByName,
    define_families,
    families_of,
)
from neurontools.fleet.device_conditions import encode_conditions
from neurontools.fleet.summary import device_cells, model_totals, neuroncore_use
from neurontools.model import LogicalNeuronCore, Severity, Snapshot, logical_cores
from neurontools.model.health import count_by_severity
from neurontools.model.jobs import RunningJob
from neurontools.util.units import strip_durations, sum_known

IDLE_FROM_SECONDS = 900.0
"""A held core is idle if it finished its latest execution longer ago."""

_MOST_WARNINGS = 8
_MOST_MODELS = 8  # limit of exported models, those with the most device memory; a model has at most six series

HOST_FAMILIES = define_families(
    "",
    ("pod_allocation", MetricKind.INFO, "Resources that the kubelet allocated to a container, used or not"),
    ("devices_expected", MetricKind.GAUGE, "Expected devices: in a container, those assigned to it"),
    ("devices_foreign", MetricKind.GAUGE, "Devices of the host that are not assigned to this container"),
    ("devices", MetricKind.GAUGE, "Existing devices"),
    (
        "device_conditions",
        MetricKind.GAUGE,
        "Conditions of the first 16 devices as digits in base 9, device 0 lowest; see neurond(8)",
    ),
    ("neuroncores", MetricKind.GAUGE, "NeuronCores of the host"),
    ("neuroncores_held", MetricKind.GAUGE, "NeuronCores that a process holds"),
    ("neuroncores_free", MetricKind.GAUGE, "NeuronCores that no process holds; it may be unknown who holds the others"),
    ("neuroncores_busy", MetricKind.GAUGE, "Held NeuronCores that executed for at least 2 % of the last period"),
    ("neuroncores_idle", MetricKind.GAUGE, "Held NeuronCores that have finished no execution for 15 minutes"),
    ("held_utilization_ratio", MetricKind.GAUGE, "Mean utilization of the held NeuronCores in the last period"),
    ("held_mfu_ratio", MetricKind.GAUGE, "MFU of the held NeuronCores, relative to their bf16 peak"),
    ("memory_bytes", MetricKind.GAUGE, "HBM capacity of all devices"),
    ("memory_used_bytes", MetricKind.GAUGE, "HBM in use on all devices"),
    ("steps_per_second", MetricKind.GAUGE, "Training steps a second of the largest job with a known rate"),
    ("requests_per_second", MetricKind.GAUGE, "Requests for inference a second of all jobs"),
    ("user_processes", MetricKind.GAUGE, "Processes of the user that hold or may hold NeuronCores"),
    ("findings", MetricKind.GAUGE, "Findings of the host by severity; similar findings count once"),
    ("warnings", MetricKind.GAUGE, "Parts of the host that can't be read"),
    ("warning", MetricKind.GAUGE, "1 for each unreadable part of the host, at most eight; the label describes it"),
    ("snapshot_timestamp_seconds", MetricKind.GAUGE, "When the numbers were taken, Unix time"),
)

MODEL_FAMILIES = define_families(
    "host_model_",
    ("neuroncores", MetricKind.GAUGE, "NeuronCores of the host that the model is loaded on"),
    ("requests_per_second", MetricKind.GAUGE, "Requests a second for the model in all processes of the host"),
    ("request_p99_seconds", MetricKind.GAUGE, "99th percentile of the latest request latency, of the slowest process"),
    ("queue_depth", MetricKind.GAUGE, "Requests that wait for the model in all processes of the host"),
    ("queue_wait_seconds", MetricKind.GAUGE, "Mean wait of the latest requests before their execution"),
    ("memory_bytes", MetricKind.GAUGE, "Device memory of the model on all cores of the host"),
)


def host_families(
    jobs: Sequence[RunningJob], snapshot: Snapshot, peak_flops_per_core: float | None, label: LabelTexts
) -> Iterator[MetricFamily]:
    """Yields the families of the host. `jobs` are the jobs of the snapshot, largest first.

    `peak_flops_per_core` is the bf16 peak of a physical core.
    """
    text = label.named()()
    instance = snapshot.instance
    cores = logical_cores(snapshot)
    use = neuroncore_use(cores, peak_flops_per_core)
    of_warning, of_severity = label.named("warning"), label.named("severity")
    of_user = label.named("user", "uid")
    users = Counter(
        (rank.process.user or "", "" if rank.process.uid is None else rank.process.uid)
        for job in jobs
        for rank in job.ranks
    )
    # A changing number of seconds in a label would create a new series every second.
    warnings = dict.fromkeys(strip_durations(warning, "some seconds") for warning in snapshot.warnings[:_MOST_WARNINGS])
    samples: SamplesByName = {name: [] for name in HOST_FAMILIES}
    samples["user_processes"] = [(of_user(*user), count) for user, count in users.items()]
    samples["pod_allocation"] = list(_pod_allocation_samples(snapshot, label))
    samples["warning"] = [(of_warning(warning), 1) for warning in warnings]
    if snapshot.health is not None:
        counts = count_by_severity(snapshot)
        severities = (severity for severity in Severity if severity > Severity.OK)
        samples["findings"] = [(of_severity(each.name.lower()), counts.get(each, 0)) for each in severities]
    values = {
        "devices_expected": len(instance.expected_device_indices) or instance.device_count,
        "devices_foreign": instance.foreign_device_count,
        "devices": len(snapshot.devices),
        "device_conditions": encode_conditions(device_cells(snapshot, cores)),
        "neuroncores": use.neuroncore_count,
        "neuroncores_held": use.held_count,
        "neuroncores_free": use.free_count,
        "neuroncores_busy": use.busy_count,
        "neuroncores_idle": _idle_count(cores, snapshot.taken_at_unix_seconds),
        "held_utilization_ratio": use.utilization_ratio,
        "held_mfu_ratio": use.mfu_ratio,
        "memory_bytes": sum(device.memory_bytes for device in snapshot.devices),
        "memory_used_bytes": sum_known(core.memory.total_bytes for core in snapshot.cores),
        "steps_per_second": next((job.steps_per_second for job in jobs if job.steps_per_second is not None), None),
        "requests_per_second": sum_known(job.requests_per_second for job in jobs),
        "warnings": len(snapshot.warnings),
        "snapshot_timestamp_seconds": snapshot.taken_at_unix_seconds,
    }
    for name, value in values.items():
        if value is not None:
            samples[name].append((text, value))
    yield from families_of(HOST_FAMILIES, samples)
    of_model = label.named("model")
    models: SamplesByName = {name: [] for name in MODEL_FAMILIES}
    for model in model_totals(snapshot.processes)[:_MOST_MODELS]:
        for name, value in (
            ("neuroncores", model.neuroncore_count),
            ("requests_per_second", model.requests_per_second),
            ("request_p99_seconds", model.request_p99_seconds),
            ("queue_depth", model.queue_depth),
            ("queue_wait_seconds", model.queue_wait_seconds),
            ("memory_bytes", model.device_memory_bytes),
        ):
            if value is not None:
                models[name].append((of_model(model.name), value))
    yield from families_of(MODEL_FAMILIES, models)


def _idle_count(cores: Sequence[LogicalNeuronCore], now_unix_seconds: float) -> int | None:
    """Counts the held cores without a recent execution; None if no held core counts its executions."""
    counting = [core for core in cores if core.owner_pids and any(c.executions_total is not None for c in core.cores)]
    if not counting:
        return None
    since = now_unix_seconds - IDLE_FROM_SECONDS
    return sum(max(c.last_execution_at_unix_seconds or 0.0 for c in core.cores) < since for core in counting)


def _pod_allocation_samples(snapshot: Snapshot, label: LabelTexts) -> Iterator[Sample]:
    for name, field in (("neuron_device_index", "device_indices"), ("neuroncore", "neuroncore_indices")):
        of_container = label.named("pod", "namespace", "container", name)
        for allocation in snapshot.pod_allocations:
            for index in getattr(allocation, field):
                yield of_container(allocation.pod_name, allocation.pod_namespace, allocation.container_name, index), 1
