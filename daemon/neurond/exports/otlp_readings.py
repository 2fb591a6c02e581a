"""Whose a NeuronCore is and what is in its memory, as readings for OpenTelemetry.

Attributes have the names of the semantic conventions where those have one (https://opentelemetry.io/docs/specs/semconv/),
else the labels of the same metric at /metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from neurontools.model import DeviceMemory, HostMemory, Process, Snapshot, logical_cores, memory_categories

Attributes = dict[str, str | int]
Reading = tuple[float, Attributes]


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric: its unit in UCUM, and how it is read of a snapshot."""

    name: str
    unit: str
    text: str
    read: Callable[[Snapshot], Iterable[Reading]]


def core_attributes(index: int, device_index: int) -> Attributes:
    """Which NeuronCore it is."""
    return {"neuroncore": index, "hw.id": f"neuron{device_index}"}


def process_attributes(process: Process) -> Attributes:
    """Which process it is and whose; what isn't known is left out."""
    found: Attributes = {"process.pid": process.pid, "neuron.runtime_tag": process.tag}
    if process.user:
        found["process.owner"] = process.user
    of = process.attribution
    if of is not None:
        for name, value in (
            ("k8s.pod.name", of.pod_name),
            ("k8s.namespace.name", of.pod_namespace),
            ("k8s.container.name", of.container_name),
            ("container.id", of.container_id),
            ("slurm.job.id", of.slurm_job_id),
        ):
            if value:
                found[name] = value
    return found


def _categories(memory: DeviceMemory | HostMemory, attributes: Attributes) -> Iterator[Reading]:
    for field, size_bytes in memory_categories(memory).items():
        if size_bytes is not None:
            yield size_bytes, {**attributes, "category": field.removesuffix("_bytes")}


def _core_memory(snapshot: Snapshot) -> Iterator[Reading]:
    for group in logical_cores(snapshot):
        yield from _categories(group.memory, core_attributes(group.index, group.device_index))


def _device_host_memory(snapshot: Snapshot) -> Iterator[Reading]:
    for device in snapshot.devices:
        yield from _categories(device.host_memory, {"hw.id": f"neuron{device.index}"})


def _owners(snapshot: Snapshot) -> Iterator[Reading]:
    by_pid = {process.pid: process for process in snapshot.processes}
    for group in logical_cores(snapshot):
        for pid in group.owner_pids:
            process = by_pid.get(pid)
            if process is not None:
                found = core_attributes(group.index, group.device_index) | process_attributes(process)
                yield 1, found | ({"inferred": "true"} if group.is_owner_inferred else {})


def _holders(snapshot: Snapshot) -> Iterator[tuple[Process, Attributes]]:
    """Those that hold cores, with all that they are known by: who reads OTLP has no joins, as Prometheus has."""
    for process in snapshot.processes:
        if process.core_indices:
            yield process, process_attributes(process)


def _process_memory(snapshot: Snapshot) -> Iterator[Reading]:
    for process, attributes in _holders(snapshot):
        sizes = [size for core in snapshot.cores_of(process) if (size := core.memory.total_bytes) is not None]
        if sizes:
            yield sum(sizes), attributes


def _process_host_memory(snapshot: Snapshot) -> Iterator[Reading]:
    for process, attributes in _holders(snapshot):
        yield from _categories(process.host_memory, attributes)


INSTRUMENTS = (
    Instrument("neurontools.neuroncore.owner", "1", "1 for each process that holds the core", _owners),
    Instrument("neurontools.neuroncore.memory", "By", "Device memory by category", _core_memory),
    Instrument("neurontools.device.host_memory", "By", "Host memory that serves the device", _device_host_memory),
    Instrument("neurontools.process.device_memory", "By", "Device memory of the process", _process_memory),
    Instrument("neurontools.process.host_memory", "By", "Host memory of the process by category", _process_host_memory),
)
