"""Simulates an instance: devices from the catalog, activity from reports of processes or a synthetic load."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import sin
from operator import is_
from random import Random
from typing import TypeVar

from neurond.allocator import CoreAllocator, CoreLease, CoreReport, DeviceMemoryExhausted, HostShape, RuntimeReport
from neurond.faults import FaultInjector, with_ecc
from neurond.sources import DeviceReading
from neurond.sources.simulated_power import SimulatedPower
from neurond.system.processes import ProcessFacts
from neurontools import model
from neurontools.catalog import Fact, InstanceType
from neurontools.catalog.facts import simulated_serial_number, ultraserver_node
from neurontools.driver.neuron_runtime import CoreRequest
from neurontools.model import (
    Device,
    EccCounters,
    HbmStack,
    Instance,
    Job,
    NeuronCore,
    PowerUtilization,
    SourceKind,
    StatusCounters,
    execution,
)

INSTANCE_ID = "i-simulated"
_NO_ECC = EccCounters(0, 0, 0, 0, 0)
T = TypeVar("T")


def simulated_shape(instance_type: InstanceType, lnc: int | None = None) -> HostShape:
    """Returns the shape of an instance type. Raises ValueError if the instance family does not support `lnc`."""
    family = instance_type.family
    return HostShape(
        device_count=instance_type.device_count,
        cores_per_device=family.physical_cores_per_device,
        stacks_per_device=family.hbm_stack_count,
        stack_bytes=family.hbm_stack_bytes,
        default_lnc=family.checked_lnc(lnc),
        supported_lncs=family.lnc_supported,
    )


class SimulatedSource:
    """Simulates the devices of an instance type. The core allocator determines the owners of the cores.

    `ecc` returns a device's ECC counters; if it is None, only injected faults cause ECC errors. `place` has the ID of
    an UltraServer and this node's index in it. Without `power`, the devices report none. `read` reuses the objects of
    unchanged cores and devices.
    """

    kind = SourceKind.SIMULATED
    is_slow = False

    def __init__(
        self,
        instance_type: InstanceType,
        allocator: CoreAllocator,
        ecc: Callable[[int], EccCounters] | None = None,
        place: tuple[str, int] | None = None,
        faults: FaultInjector | None = None,
        power: SimulatedPower | None = None,
    ) -> None:
        self.instance = _instance(instance_type, allocator.shape)
        if place is not None:
            ultraserver_id, node_index = place
            node = ultraserver_node(instance_type.ultraserver, node_index)
            self.instance = replace(self.instance, ultraserver_id=ultraserver_id, ultraserver_node=node)
        self._allocator = allocator
        self._shape = allocator.shape
        self._ecc = ecc
        self._faults = faults
        self._power = power
        self._shown_counters = list(allocator.counters)
        self._empty_cores = tuple(_empty_core(self._shape, index) for index in range(self._shape.core_count))
        self._cores = tuple(self._free_core(index) for index in range(self._shape.core_count))
        self._devices = tuple(
            _device(instance_type, allocator.shape, index) for index in range(instance_type.device_count)
        )

    def refresh(self) -> None:
        """Does nothing: the simulated state is in memory."""

    def read(self) -> DeviceReading:
        self._cores = _reuse(self._cores, tuple(self._core_now(index) for index in range(self._shape.core_count)))
        self._devices = self._read_devices()
        if self._faults is None:
            return DeviceReading(self._devices, self._cores)
        devices, cores, lost = self._devices, self._cores, self._faults.lost_devices
        if lost:
            # The driver derives links from the number of devices: when a device is missing, no links are known.
            devices = tuple(replace(device, connected_to=()) for device in devices if device.index not in lost)
            cores = tuple(core for core in cores if core.device_index not in lost)
        return DeviceReading(devices, cores, injected_faults=self._faults.shown)

    def _core_now(self, index: int) -> NeuronCore:
        holder = self._allocator.owner(index)
        if holder is None:
            before = self._cores[index]
            # A process may have held and released the core since the last read, and so changed its counters.
            unchanged = before.owner_pid is None and self._allocator.counters[index] is self._shown_counters[index]
            return before if unchanged and before.status is self._status(index) else self._free_core(index)
        counters = self._allocator.counters_of(index, holder)
        reported = holder.cores.get((index - holder.first * holder.lnc) // holder.lnc)
        return replace(
            self._empty_cores[index],
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
        return self._faults.counts.status.get(index) if self._faults is not None else None

    def _free_core(self, index: int) -> NeuronCore:
        """Returns a core without an owner: idle, with the counters that its latest owner left."""
        counters = self._shown_counters[index] = self._allocator.counters[index]
        return replace(
            self._empty_cores[index],
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
        powers = [None] * len(self._devices) if self._power is None else self._power.read(self._cores)
        return _reuse(
            self._devices,
            tuple(self._device_now(*each, used) for each in zip(self._devices, powers, strict=True)),
        )

    def _device_now(self, device: Device, power: PowerUtilization | None, used: dict[int, int]) -> Device:
        ecc = self._ecc(device.index) if self._ecc else _NO_ECC
        health = None
        if self._faults is not None:
            ecc = with_ecc(ecc, self._faults.counts.ecc.get(device.index))
            health = self._faults.reported_health.get(device.index)
        first = device.index * self._shape.stacks_per_device
        used_bytes = [used.get(first + stack.index, 0) for stack in device.hbm_stacks]
        is_unchanged = used_bytes == [stack.used_bytes for stack in device.hbm_stacks]
        if ecc == device.ecc and is_unchanged and health == device.reported_health and power is device.power:
            return device
        stacks = tuple(
            replace(stack, used_bytes=size_bytes)
            for stack, size_bytes in zip(device.hbm_stacks, used_bytes, strict=True)
        )
        return replace(device, ecc=ecc, hbm_stacks=stacks, reported_health=health, power=power)


def _reuse(before: tuple[T, ...], now: tuple[T, ...]) -> tuple[T, ...]:
    """Returns the old tuple `before` if both tuples have the same objects. Thus a new tuple always means a change."""
    return before if all(map(is_, before, now)) else now


def _empty_core(shape: HostShape, index: int) -> NeuronCore:
    return NeuronCore(
        index=index,
        device_index=shape.device_of(index),
        index_on_device=index % shape.cores_per_device,
        hbm_stack_index=shape.stack_of(index) % shape.stacks_per_device,
    )


def _device(instance_type: InstanceType, shape: HostShape, index: int) -> Device:
    facts = instance_type.devices[index]
    named = {"bdf": facts.bdf, "cpu_affinity": facts.cpu_affinity, "numa_node": facts.numa_node}
    links_known = instance_type.topology_evidence
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


def _instance(instance_type: InstanceType, shape: HostShape) -> Instance:
    family = instance_type.family
    core_version = family.neuroncore_version(shape.default_lnc)
    named: dict[str, Fact[str] | Fact[int]] = {
        "device_memory_bytes": family.device_memory_bytes,
        "device_type": family.device_type,
        "device_version": family.device_version,
        "neuroncore_version": core_version,
        "topology": instance_type.topology_evidence,
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


MODEL_CODE_BYTES = 96 * 2**20
RUNTIME_MEMORY_BYTES = 16 * 2**20
_MODEL_ID = 10001
_RESERVED_RATIO = 0.01


@dataclass(slots=True)
class SimulatedRank:
    """One process of the synthetic load. A scenario changes it at each step; `report` returns its counters."""

    index: int
    random: Random
    hbm_share_bytes: int  # the part of an HBM stack that this rank may use
    peak_flops: float  # of its core, in bf16
    memory: model.DeviceMemory = model.DeviceMemory()
    busy_seconds: float = 0.0
    flop: int = 0
    executions: int = 0
    errors: model.ErrorCounters = model.ErrorCounters()
    stuck_since_seconds: float | None = None  # start of an endless execution, in seconds since the start of the load
    last_execution_seconds: float | None = None
    latency_counts: dict[int, int] = field(default_factory=dict)
    latency_seconds: float = 0.0
    _owed_executions: float = 0.0

    def load_model(self, constants_ratio: float) -> None:
        """Loads the model. `constants_ratio` is the share of the rank's HBM for its constants."""
        self.memory = replace(
            self.memory,
            constants_bytes=int(constants_ratio * self.hbm_share_bytes),
            model_code_bytes=min(MODEL_CODE_BYTES, self.hbm_share_bytes // 16),
            model_shared_scratchpad_bytes=self.hbm_share_bytes // 16,
            runtime_memory_bytes=min(RUNTIME_MEMORY_BYTES, self.hbm_share_bytes // 64),
        )

    def set_tensors_ratio(self, ratio: float) -> None:
        self.memory = replace(self.memory, tensors_bytes=int(ratio * self.hbm_share_bytes))

    @property
    def most_tensors_ratio(self) -> float:
        """The largest share of the rank's HBM that tensors can take beside its other memory."""
        rest_bytes = (self.memory.total_bytes or 0) - (self.memory.tensors_bytes or 0)
        return (1 - _RESERVED_RATIO) - rest_bytes / self.hbm_share_bytes

    def execute(self, now_seconds: float, step_seconds: float, utilization: float, latency_seconds: float) -> None:
        """Counts the executions of one step. Each takes about this latency.

        Together they keep the core busy for the share `utilization` of the step.
        """
        busy_seconds = step_seconds * utilization
        self.busy_seconds += busy_seconds
        self.flop += int(busy_seconds * self.peak_flops * 0.4)
        self._owed_executions += busy_seconds / latency_seconds
        count = int(self._owed_executions)
        self._owed_executions -= count
        for drawn in range(min(count, _MOST_DRAWN), 0, -1):
            alike = count // drawn  # number of executions that this latency stands for
            count -= alike
            duration_seconds = latency_seconds * self.random.gauss(1.0, 0.03)
            bucket = execution.bucket_index(duration_seconds)
            self.latency_counts[bucket] = self.latency_counts.get(bucket, 0) + alike
            self.latency_seconds += alike * max(0.0, duration_seconds)
            self.executions += alike
            self.last_execution_seconds = now_seconds

    def report(self, now_seconds: float, started_at_unix_seconds: float, started_at_seconds: float) -> RuntimeReport:
        """Returns the rank's report. `now_seconds` counts from the start of the load."""
        counts = dict(sorted(self.latency_counts.items()))
        histogram = model.LatencyHistogram(tuple(counts), tuple(counts.values()), self.latency_seconds)
        last, stuck = self.last_execution_seconds, self.stuck_since_seconds
        last_at = None if last is None else started_at_unix_seconds + last
        core = CoreReport(
            busy_seconds_total=self.busy_seconds,
            flop_total=self.flop,
            executions_total=self.executions,
            memory=self.memory,
            execution_started_at_unix_seconds=None if stuck is None else started_at_unix_seconds + stuck,
            last_execution_at_unix_seconds=last_at,
        )
        return RuntimeReport(
            measured_at_seconds=started_at_seconds + now_seconds,
            cores={0: core},
            models=(self._model(now_seconds, last_at),) if self.memory.model_code_bytes else (),
            host_memory=model.HostMemory(dma_buffers_bytes=2**20, tensors_bytes=4 * 2**20),
            executions=model.ExecutionCounters(completed_total=self.executions),
            errors=self.errors,
            total_latency_histogram=histogram,
            device_latency_histogram=histogram,
            counted_since_seconds=started_at_seconds,
        )

    def _model(self, now_seconds: float, last_at_unix_seconds: float | None) -> model.LoadedModel:
        name = "synthetic/train_step.neff"
        part = replace(self.memory, tensors_bytes=0, model_shared_scratchpad_bytes=0)
        return model.LoadedModel(
            model_id=_MODEL_ID,
            name=name,
            uuid=hashlib.md5(name.encode(), usedforsecurity=False).hexdigest(),
            running=self.last_execution_seconds is not None and now_seconds - self.last_execution_seconds < 1.0,
            subgraphs=(model.Subgraph(0, 0, 0, part),),
            executions_total=self.executions,
            last_execution_at_unix_seconds=last_at_unix_seconds,
        )


STEP_SECONDS = 0.25
"""The shortest step of a load. Hosts with long intervals have longer steps, so that one machine carries many."""
_STEPS_OF_AN_INTERVAL = 4
_LATENCY_SECONDS = 0.05
_MOST_DRAWN = 8  # limit of random latencies in a step; more executions than these share them

Step = Callable[[SimulatedRank, float, float], None]  # a rank, the seconds since the start of the load, and of the step


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario of the synthetic load: its --help text, the step of a rank, and the ECC events of a device."""

    summary: str
    step: Step | None  # None: no processes
    ecc: Callable[[Random, float, EccCounters], EccCounters] | None = None  # called at each step for each device


def _steady(rank: SimulatedRank, now_seconds: float, step_seconds: float) -> None:
    if now_seconds == 0:
        rank.load_model(0.12)
        rank.set_tensors_ratio(0.35)
    utilization = 0.9 + 0.05 * sin(now_seconds / 7 + rank.index) + rank.random.uniform(-0.02, 0.02)
    rank.execute(now_seconds, step_seconds, utilization, _LATENCY_SECONDS)


def _training_ramp(rank: SimulatedRank, now_seconds: float, step_seconds: float) -> None:
    """Loads weights for 5 s, compiles until 15 s, then executes steps at a rate that grows until 60 s."""
    if now_seconds < 5:
        rank.load_model(0.12 * now_seconds / 5)
        return
    rank.load_model(0.12)
    if now_seconds < 15:
        return
    progress = min(1.0, (now_seconds - 15) / 45)
    rank.set_tensors_ratio(0.1 + 0.3 * progress)
    utilization = 0.05 + 0.87 * progress + rank.random.uniform(-0.02, 0.02)
    rank.execute(now_seconds, step_seconds, max(0.0, utilization), _LATENCY_SECONDS * (3 - 2 * progress))


def _memory_leak(rank: SimulatedRank, now_seconds: float, step_seconds: float) -> None:
    """Lets tensors grow by 1 % of the HBM per second until allocations fail. Counts the failures."""
    _steady(rank, now_seconds, step_seconds)
    wanted_ratio, most_ratio = 0.2 + 0.01 * now_seconds, rank.most_tensors_ratio
    rank.set_tensors_ratio(min(wanted_ratio, most_ratio))
    seconds = int(now_seconds) - int(now_seconds - step_seconds)  # that ended in this step
    if wanted_ratio > most_ratio and seconds:
        rank.errors = replace(rank.errors, runtime_total=rank.errors.runtime_total + seconds)


def _stuck_core(rank: SimulatedRank, now_seconds: float, step_seconds: float) -> None:
    """After 10 s, rank 0 starts an execution that never ends, and the other ranks wait for rank 0."""
    if now_seconds < 10:
        _steady(rank, now_seconds, step_seconds)
    elif rank.index == 0:
        if rank.stuck_since_seconds is None:
            rank.stuck_since_seconds = now_seconds
        rank.busy_seconds += step_seconds


def _ecc_burst(random: Random, now_seconds: float, ecc: EccCounters) -> EccCounters:
    """Adds corrected and rare uncorrected HBM errors at one step in four, in bursts of 5 s every 30 s."""
    if now_seconds < 10 or (now_seconds - 10) % 30 >= 5 or random.random() > 0.25:
        return ecc
    uncorrected = 1 if random.random() < 0.02 else 0
    return replace(
        ecc,
        mem_corrected_total=(ecc.mem_corrected_total or 0) + random.randint(1, 40),
        mem_uncorrected_total=(ecc.mem_uncorrected_total or 0) + uncorrected,
    )


SCENARIOS: dict[str, Scenario] = {
    "idle": Scenario("no processes", None),
    "steady": Scenario("one rank per core, about 90 % busy", _steady),
    "training-ramp": Scenario("load, compile, then ever faster steps", _training_ramp),
    "memory-leak": Scenario("steady, with tensors that grow until HBM is full", _memory_leak),
    "stuck-core": Scenario("steady, then one execution that never ends", _stuck_core),
    "ecc-burst": Scenario("steady, with bursts of ECC errors", _steady, _ecc_burst),
}


# Above Linux's highest possible PID (2^22), so no real process has the same PID.
FIRST_PID = 2**22 + 1
RUNTIME_VERSION = "synthetic"

# The seed selects one of these user names. No real user has them, and they fit in nine characters.
USERS = ("synth-ada", "synth-ben", "synth-eva", "synth-kim", "synth-mia")


class SyntheticLoad:
    """Runs a scenario with one process per logical core.

    The state depends only on the scenario, the seed, the number of steps, and the interval between two snapshots.
    """

    def __init__(
        self,
        allocator: CoreAllocator,
        scenario: str,
        *,
        seed: int = 0,
        neuroncores: int | None = None,
        peak_flops_per_core: float = 0.0,
        interval_seconds: float = 1.0,
        started_at_seconds: float | None = None,
        started_at_unix_seconds: float | None = None,
    ) -> None:
        self.scenario = scenario
        self._user = USERS[seed % len(USERS)]
        self._scenario = SCENARIOS[scenario]
        self._allocator = allocator
        self._started_at_seconds = time.monotonic() if started_at_seconds is None else started_at_seconds
        self._started_at_unix_seconds = time.time() if started_at_unix_seconds is None else started_at_unix_seconds
        self._step_seconds = max(STEP_SECONDS, interval_seconds / _STEPS_OF_AN_INTERVAL)
        self._steps = self._ecc_steps = 0
        shape = allocator.shape
        lnc = shape.default_lnc
        available = shape.logical_core_count(lnc)
        count = min(neuroncores or available, available) if self._scenario.step else 0
        share_bytes = shape.stack_bytes * lnc // shape.cores_per_stack
        self._ranks = {
            self._enter(index): SimulatedRank(index, Random(f"{seed} {index}"), share_bytes, peak_flops_per_core * lnc)  # noqa: S311
            for index in range(count)
        }
        self._ecc = [_NO_ECC] * shape.device_count
        self._ecc_random = [Random(f"{seed} device {index}") for index in range(shape.device_count)]  # noqa: S311

    def ecc(self, device_index: int) -> EccCounters:
        return self._ecc[device_index]

    def facts(self, lease: CoreLease) -> ProcessFacts:
        """Returns the facts of a simulated process. For a real process, the operating system has such facts."""
        rank = self._ranks[lease.token].index
        return ProcessFacts(
            command=f"[synthetic load {self.scenario}] rank {rank} of {len(self._ranks)}",
            started_at_unix_seconds=self._started_at_unix_seconds,
            job=Job(f"synthetic load {self.scenario}", rank, len(self._ranks)),
        )

    def advance(self, now_seconds: float) -> None:
        """Advances the load to `now_seconds` (CLOCK_MONOTONIC) and stores a report for each of its processes."""
        age_seconds = now_seconds - self._started_at_seconds
        due = int(age_seconds / self._step_seconds) + 1
        for number in range(self._steps, due):
            self._step(number * self._step_seconds)
        self._steps = max(self._steps, due)
        self._count_ecc(int(age_seconds / STEP_SECONDS) + 1)
        elapsed_seconds = (self._steps - 1) * self._step_seconds
        for token, rank in self._ranks.items():
            report = rank.report(elapsed_seconds, self._started_at_unix_seconds, self._started_at_seconds)
            # A real process may have taken memory of the HBM stack. The rank then keeps its previous report.
            with contextlib.suppress(DeviceMemoryExhausted):
                self._allocator.report(token, report)

    def _step(self, now_seconds: float) -> None:
        step = self._scenario.step
        if step is not None:
            for rank in self._ranks.values():
                step(rank, now_seconds, self._step_seconds)

    def _count_ecc(self, due: int) -> None:
        """Counts ECC events at the shortest steps, because their bursts are short."""
        ecc = self._scenario.ecc
        if ecc is not None:
            for number in range(self._ecc_steps, due):
                pairs = zip(self._ecc_random, self._ecc, strict=True)
                self._ecc = [ecc(random, number * STEP_SECONDS, before) for random, before in pairs]
            self._ecc_steps = max(self._ecc_steps, due)

    def _enter(self, index: int) -> str:
        token = f"synthetic {index}"
        pid, began = FIRST_PID + index, self._started_at_unix_seconds
        self._allocator.enter(token, pid, None, began, user=self._user, synthetic=True)
        self._allocator.attach(token, CoreRequest(index, 1), f"synthetic-{index}", RUNTIME_VERSION)
        return token
