"""Snapshots of idle hosts of the catalog's instance types, for tests to change."""

from __future__ import annotations

from collections.abc import Sequence

from neurontools import catalog
from neurontools.catalog import Fact
from neurontools.catalog.facts import required_value, simulated_serial_number
from neurontools.model import Device, EccCounters, HbmStack, Instance, NeuronCore, Process, Snapshot, SourceKind

INSTANCE_ID = "i-0123456789abcdef0"


def idle_host(instance_type: str, logical_neuroncore_config: int | None = None) -> Snapshot:
    """Returns a snapshot of an idle host of this type.

    Raises catalog.UnknownInstanceType, or ValueError for an unsupported LNC (physical cores per logical core).
    """
    kind = catalog.load(instance_type)
    family = kind.family
    per_device = family.physical_cores_per_device
    memory_bytes = required_value(family.device_memory_bytes)
    lnc = family.checked_lnc(logical_neuroncore_config)
    devices = []
    for index, facts in enumerate(kind.devices):
        named: dict[str, Fact[str]] = {
            "bdf": facts.bdf,
            "cpu_affinity": facts.cpu_affinity,
            "numa_node": facts.numa_node,
        }
        devices.append(
            Device(
                index=index,
                **{name: fact.value for name, fact in named.items()},  # type: ignore[arg-type]
                connected_to=kind.topology.connected_to[index],
                memory_bytes=memory_bytes,
                hbm_stacks=tuple(HbmStack(stack, family.hbm_stack_bytes, 0) for stack in range(family.hbm_stack_count)),
                serial_number=simulated_serial_number(family, index),
                ecc=EccCounters(0, 0, 0, 0, 0),
                inferred_fields=_inferred(**named),
            )
        )
    return Snapshot(
        sequence=0,
        taken_at_unix_seconds=0.0,
        taken_at_seconds=0.0,
        interval_seconds=1.0,
        source=SourceKind.SIMULATED,
        instance=Instance(
            instance_type=kind.name,
            instance_id=INSTANCE_ID,
            device_count=kind.device_count,
            physical_cores_per_device=per_device,
            logical_neuroncore_config=lnc,
            logical_neuroncore_configs=family.lnc_supported,
            device_memory_bytes=memory_bytes,
            hbm_stack_bytes=family.hbm_stack_bytes,
            topology=kind.topology.kind.value,
            device_type=family.device_type.value,
            device_version=family.device_version.value,
            neuroncore_version=family.neuroncore_version(lnc).value,
            inferred_fields=_inferred(
                device_memory_bytes=family.device_memory_bytes,
                device_type=family.device_type,
                device_version=family.device_version,
                neuroncore_version=family.neuroncore_version(lnc),
                topology=kind.topology_evidence,
            ),
        ),
        devices=tuple(devices),
        cores=tuple(
            NeuronCore(
                index=index,
                device_index=index // per_device,
                index_on_device=index % per_device,
                hbm_stack_index=index % per_device // family.cores_per_hbm_stack,
                busy_seconds_total=0.0,
                flop_total=0,
                executions_total=0,
            )
            for index in range(kind.physical_core_count)
        ),
        processes=(),
    )


def _inferred(**facts: Fact[str] | Fact[int]) -> tuple[str, ...]:
    return tuple(name for name, fact in facts.items() if fact.value is not None and not fact.certain)


def process_on(
    pid: int,
    command: str,
    *,
    cores: Sequence[int] = (),
    devices: Sequence[int] = (),
    runtime_version: str | None = None,
    tag: str = "",
    logical_neuroncore_config: int = 1,
    started_at_unix_seconds: float | None = None,
) -> Process:
    """Returns a process of root that holds these logical cores, and has these devices open.

    Without a runtime version, the process is an observer, such as a monitor. DriverTree.set_processes adds the devices
    of the cores to the process.
    """
    lnc = logical_neuroncore_config
    return Process(
        pid=pid,
        uid=0,
        user="root",
        command=command,
        tag=tag or str(pid),
        runtime_version=runtime_version,
        started_at_unix_seconds=started_at_unix_seconds,
        attached_at_unix_seconds=None,
        synthetic=False,
        logical_neuroncore_config=lnc,
        core_indices=tuple(core * lnc + part for core in cores for part in range(lnc)),
        neuroncore_indices=tuple(cores),
        device_indices=tuple(devices),
    )
