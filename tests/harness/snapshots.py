"""Snapshots of hosts of the catalog's types, for the tests of views and commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neurontools import catalog
from neurontools.catalog import Fact
from neurontools.model import Device, Instance, Job, NeuronCore, Process, Snapshot, SourceKind

INSTANCE_ID = "i-0123456789abcdef0"


def snapshot_of(instance_type: str, processes: Sequence[Process] = ()) -> Snapshot:
    """A host of this type as the catalog knows it."""
    kind = catalog.load(instance_type)
    family = kind.family
    physical = family.physical_cores_per_device
    memory_bytes = family.device_memory_bytes.value
    assert memory_bytes is not None
    facts: list[dict[str, Fact[str]]] = [
        {"bdf": facts.bdf, "cpu_affinity": facts.cpu_affinity, "numa_node": facts.numa_node} for facts in kind.devices
    ]
    instance = Instance(
        instance_type=kind.name,
        instance_id=INSTANCE_ID,
        device_count=kind.device_count,
        physical_cores_per_device=physical,
        logical_neuroncore_config=family.lnc_default,
        logical_neuroncore_configs=family.lnc_supported,
        device_memory_bytes=memory_bytes,
        hbm_stack_bytes=memory_bytes // family.hbm_stack_count,
        topology=kind.topology.kind,
    )
    devices = tuple(
        Device(
            index=index,
            bdf=device_facts["bdf"].value,
            cpu_affinity=device_facts["cpu_affinity"].value,
            numa_node=device_facts["numa_node"].value,
            connected_to=kind.topology.connected_to[index],
            memory_bytes=memory_bytes,
            inferred_fields=tuple(
                name for name, fact in device_facts.items() if fact.value is not None and not fact.certain
            ),
        )
        for index, device_facts in enumerate(facts)
    )
    cores = tuple(
        NeuronCore(
            index=index,
            device_index=index // physical,
            index_on_device=index % physical,
            hbm_stack_index=index % physical * family.hbm_stack_count // physical,
        )
        for index in range(physical * kind.device_count)
    )
    return Snapshot(
        sequence=1,
        taken_at_unix_seconds=1_767_323_045.0,
        taken_at_seconds=100.0,
        interval_seconds=1.0,
        source=SourceKind.SIMULATED,
        instance=instance,
        devices=devices,
        cores=cores,
        processes=tuple(sorted(processes, key=lambda process: process.pid)),
    )


def process_of(
    pid: int, command: str, device_indices: Sequence[int], runtime_version: str | None = "2.34.10"
) -> Process:
    """A process on these devices; without a runtime version an observer, such as a monitor."""
    return Process(
        pid=pid,
        uid=0,
        user="root",
        command=command,
        tag=str(pid),
        runtime_version=runtime_version,
        started_at_unix_seconds=None,
        attached_at_unix_seconds=None,
        synthetic=False,
        logical_neuroncore_config=1,
        device_indices=tuple(device_indices),
    )


def rank_of(number: int, job: Job, **fields: object) -> Process:
    """A process that is a rank of a job, reports, and holds the core of its number."""
    return replace(
        process_of(100 + number, "python train.py", (0,)),
        core_indices=(number % 32,),
        neuroncore_indices=(number % 32,),
        job=job,
        **{"reporting": True} | fields,  # type: ignore[arg-type]
    )


def with_device(snapshot: Snapshot, index: int, **changes: object) -> Snapshot:
    """The same host with one device changed."""
    devices = list(snapshot.devices)
    devices[index] = replace(devices[index], **changes)  # type: ignore[arg-type]
    return replace(snapshot, devices=tuple(devices))


def host_with_links(links: Sequence[tuple[int, ...]], topology: str = "torus_2d") -> Snapshot:
    """A host with these links between its devices and no other fact of interest."""
    snapshot = snapshot_of("trn1.2xlarge")
    devices = tuple(replace(snapshot.devices[0], index=i, connected_to=to) for i, to in enumerate(links))
    return replace(snapshot, devices=devices, instance=replace(snapshot.instance, topology=topology))
