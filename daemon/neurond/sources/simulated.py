"""A simulated instance: the devices are facts of the catalog, what happens on them is what processes report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from neurond.faults.faults import Faults, with_ecc
from neurond.ownership.ledger import Ledger
from neurond.ownership.shape import Shape
from neurond.sources.source import Reading
from neurontools.catalog import Fact, InstanceType
from neurontools.catalog.simulated import simulated_serial_number
from neurontools.catalog.ultraserver import node_of
from neurontools.model import Device, EccCounters, HbmStack, Instance, NeuronCore, SourceKind, StatusCounters

INSTANCE_ID = "i-simulated"
_NO_ECC = EccCounters(0, 0, 0, 0, 0)


def shape_of(instance_type: InstanceType, lnc: int | None = None) -> Shape:
    """The shape of an instance type under an LNC (default: the family's); ValueError when it can't have that LNC."""
    family = instance_type.family
    return Shape(
        device_count=instance_type.device_count,
        cores_per_device=family.physical_cores_per_device,
        stacks_per_device=family.hbm_stack_count,
        stack_bytes=family.hbm_stack_bytes,
        default_lnc=family.checked_lnc(lnc),
        supported_lncs=family.lnc_supported,
    )


class SimulatedSource:
    """The devices of an instance type, with what the ledger knows of their cores.

    `ecc` gives the ECC counters of a device by index; without it there are no errors but those of injected faults.
    `place` is the id of an UltraServer and which node of it the host is. Cores and devices that did not change since
    the read before are the same objects.
    """

    kind = SourceKind.SIMULATED
    is_slow = False

    def __init__(
        self,
        instance_type: InstanceType,
        ledger: Ledger,
        ecc: Callable[[int], EccCounters] | None = None,
        place: tuple[str, int] | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.instance = _instance(instance_type, ledger.shape)
        if place is not None:
            ultraserver_id, node_index = place
            node = node_of(instance_type.ultraserver, node_index)
            self.instance = replace(self.instance, ultraserver_id=ultraserver_id, ultraserver_node=node)
        self._ledger = ledger
        self._shape = ledger.shape
        self._ecc = ecc
        self._faults = faults
        self._shown_counters = list(ledger.counters)
        self._placed = tuple(_placed(self._shape, index) for index in range(self._shape.core_count))
        self._cores = tuple(self._free_core(index) for index in range(self._shape.core_count))
        self._devices = tuple(
            _device(instance_type, ledger.shape, index) for index in range(instance_type.device_count)
        )

    def refresh(self) -> None:
        """Nothing: the state is in memory."""

    def read(self) -> Reading:
        """The state now."""
        self._cores = self._read_cores()
        self._devices = self._read_devices()
        if self._faults is None:
            return Reading(self._devices, self._cores)
        devices, cores, lost = self._devices, self._cores, self._faults.lost_devices
        if lost:
            # The driver lists neighbours by the number of devices, so that with one all links are gone.
            devices = tuple(replace(device, connected_to=()) for device in devices if device.index not in lost)
            cores = tuple(core for core in cores if core.device_index not in lost)
        return Reading(devices, cores, injected_faults=self._faults.shown)

    def _read_cores(self) -> tuple[NeuronCore, ...]:
        cores = tuple(self._core_now(index) for index in range(self._shape.core_count))
        unchanged = all(now is before for now, before in zip(cores, self._cores, strict=True))
        return self._cores if unchanged else cores

    def _core_now(self, index: int) -> NeuronCore:
        holder = self._ledger.owner(index)
        if holder is None:
            before = self._cores[index]
            # An owner may have come, counted and left since the read before: the counters are others then.
            unchanged = before.owner_pid is None and self._ledger.counters[index] is self._shown_counters[index]
            return before if unchanged and before.status is self._status(index) else self._free_core(index)
        counters = self._ledger.counters_of(index, holder)
        reported = holder.cores.get((index - holder.first * holder.lnc) // holder.lnc)
        return replace(
            self._placed[index],
            owner_pid=holder.pid,
            busy_seconds_total=counters.busy_seconds_total,
            flop_total=counters.flop_total,
            executions_total=counters.executions_total,
            memory=holder.memory_of(index),
            measured_at_seconds=holder.report.measured_at_seconds if holder.report and reported else None,
            execution_started_at_unix_seconds=reported.execution_started_at_unix_seconds if reported else None,
            last_execution_at_unix_seconds=counters.last_execution_at_unix_seconds,
            status=self._status(index),
        )

    def _status(self, index: int) -> StatusCounters | None:
        return self._faults.status(index) if self._faults is not None else None

    def _free_core(self, index: int) -> NeuronCore:
        """A free core: idle for certain, its counters as the latest owner left them."""
        counters = self._shown_counters[index] = self._ledger.counters[index]
        return replace(
            self._placed[index],
            busy_seconds_total=counters.busy_seconds_total,
            flop_total=counters.flop_total,
            executions_total=counters.executions_total,
            last_execution_at_unix_seconds=counters.last_execution_at_unix_seconds,
            utilization_ratio=0.0,
            flops_per_second=0.0,
            status=self._status(index),
        )

    def _read_devices(self) -> tuple[Device, ...]:
        used: dict[int, int] = {}
        for core in self._cores:
            if core.owner_pid is not None:
                stack = self._shape.stack_of(core.index)
                used[stack] = used.get(stack, 0) + (core.memory.total_bytes or 0)
        devices = tuple(self._device_now(device, used) for device in self._devices)
        unchanged = all(now is before for now, before in zip(devices, self._devices, strict=True))
        return self._devices if unchanged else devices

    def _device_now(self, device: Device, used: dict[int, int]) -> Device:
        ecc = self._ecc(device.index) if self._ecc else _NO_ECC
        health = None
        if self._faults is not None:
            ecc, health = with_ecc(ecc, self._faults.ecc(device.index)), self._faults.reported_health(device.index)
        first = device.index * self._shape.stacks_per_device
        used_bytes = [used.get(first + stack.index, 0) for stack in device.hbm_stacks]
        is_used_so = used_bytes == [stack.used_bytes for stack in device.hbm_stacks]
        if ecc == device.ecc and is_used_so and health == device.reported_health:
            return device
        stacks = tuple(
            replace(stack, used_bytes=size_bytes)
            for stack, size_bytes in zip(device.hbm_stacks, used_bytes, strict=True)
        )
        return replace(device, ecc=ecc, hbm_stacks=stacks, reported_health=health)


def _placed(shape: Shape, index: int) -> NeuronCore:
    """Where a core is, and nothing else of it."""
    return NeuronCore(
        index=index,
        device_index=shape.device_of(index),
        index_on_device=index % shape.cores_per_device,
        hbm_stack_index=shape.stack_of(index) % shape.stacks_per_device,
    )


def _device(instance_type: InstanceType, shape: Shape, index: int) -> Device:
    facts = instance_type.devices[index]
    named = {"bdf": facts.bdf, "cpu_affinity": facts.cpu_affinity, "numa_node": facts.numa_node}
    links_known = instance_type.topology_standing
    return Device(
        index=index,
        bdf=facts.bdf.value,
        cpu_affinity=facts.cpu_affinity.value,
        numa_node=facts.numa_node.value,
        connected_to=instance_type.topology.connected_to[index],
        memory_bytes=shape.stacks_per_device * shape.stack_bytes,
        hbm_stacks=tuple(HbmStack(stack, shape.stack_bytes, 0) for stack in range(shape.stacks_per_device)),
        serial_number=simulated_serial_number(instance_type.family, index),
        ecc=_NO_ECC,
        inferred_fields=_inferred(named | {"connected_to": links_known}),
    )


def _instance(instance_type: InstanceType, shape: Shape) -> Instance:
    family = instance_type.family
    core_version = family.neuroncore_version(shape.default_lnc)
    named: dict[str, Fact[str] | Fact[int]] = {
        "device_memory_bytes": family.device_memory_bytes,
        "device_type": family.device_type,
        "device_version": family.device_version,
        "neuroncore_version": core_version,
        "topology": instance_type.topology_standing,
    }
    return Instance(
        instance_type=instance_type.name,
        instance_id=INSTANCE_ID,
        device_count=shape.device_count,
        physical_cores_per_device=shape.cores_per_device,
        logical_neuroncore_config=shape.default_lnc,
        logical_neuroncore_configs=shape.supported_lncs,
        device_memory_bytes=shape.stacks_per_device * shape.stack_bytes,
        hbm_stack_bytes=shape.stack_bytes,
        topology=instance_type.topology.kind.value,
        device_type=family.device_type.value,
        device_version=family.device_version.value,
        neuroncore_version=core_version.value,
        inferred_fields=_inferred(named),
        expected_device_indices=tuple(range(shape.device_count)),
    )


def _inferred(facts: Mapping[str, Fact[str] | Fact[int]]) -> tuple[str, ...]:
    return tuple(name for name, fact in facts.items() if fact.value is not None and not fact.certain)
