"""A process that uses, or only watches, Neuron devices."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model.attribution import Attribution, Job
from neurontools.model.brief import showing
from neurontools.model.execution import ErrorCounters, ExecutionCounters, LatencyHistogram, LatencyPercentiles
from neurontools.model.memory import DeviceMemory, HostMemory
from neurontools.model.training import OperatorTime, RecentSteps, ScriptAdvice, TrainingCounters, TrainingRates


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The part of a loaded model that lies on one logical NeuronCore; its memory is part of the core's."""

    index: int
    neuroncore_index: int  # logical, on the host, under the LNC of the process
    device_index: int
    device_memory: DeviceMemory = DeviceMemory()
    host_memory: HostMemory = HostMemory()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One model (NEFF) that a process has loaded."""

    model_id: int  # given by the process; unique in it
    name: str
    uuid: str  # 32 hexadecimal digits
    running: bool  # executed within the last reporting period
    subgraphs: tuple[Subgraph, ...] = ()
    executions_total: int = 0
    last_execution_at_unix_seconds: float | None = None
    busy_seconds_total: float | None = None  # in executions; None: nobody tells
    busy_ratio: float | None = None  # the same, of the last seconds

    __repr__ = showing("model_id", "name", "running", "executions_total")


@dataclass(frozen=True, slots=True)
class CoreWork:
    """What a process has done on one logical NeuronCore since it began to count, whoever else has had the core."""

    busy_seconds_total: float = 0.0
    flop_total: int = 0


@dataclass(frozen=True, slots=True)
class Process:
    """A process that is attached to the host's devices.

    One that holds no cores is an observer (a monitor); the original shows those under `neuron-ls --show-all-procs`.
    """

    pid: int
    uid: int | None
    user: str | None
    command: str  # the command line; "" when it cannot be read
    tag: str  # NEURON_PROCESS_TAG, else the PID as text
    runtime_version: str | None  # None for a process that does not use the runtime
    started_at_unix_seconds: float | None
    attached_at_unix_seconds: float | None
    synthetic: bool  # invented by a synthetic load: there is no such process
    logical_neuroncore_config: int  # physical cores per logical core, as this process sees it
    core_indices: tuple[int, ...] = ()  # physical cores held
    neuroncore_indices: tuple[int, ...] = ()  # the same as logical cores under its own LNC
    device_indices: tuple[int, ...] = ()  # devices of these cores; for an observer, those it watches
    host_memory: HostMemory = HostMemory()
    resident_bytes: int | None = None
    cpu_user_seconds_total: float | None = None
    cpu_system_seconds_total: float | None = None
    models: tuple[LoadedModel, ...] = ()
    executions: ExecutionCounters | None = ExecutionCounters()  # None where nobody tells whose they are
    errors: ErrorCounters | None = ErrorCounters()
    total_latency_histogram: LatencyHistogram = LatencyHistogram()  # queueing and execution
    device_latency_histogram: LatencyHistogram = LatencyHistogram()  # execution alone
    measured_at_seconds: float | None = None  # CLOCK_MONOTONIC of its last report; None before the first
    reporting: bool = False  # False while no report has arrived in time: numbers are old
    vcpu_user_ratio: float | None = None  # share of one vCPU; 2.0 is two vCPUs busy
    vcpu_system_ratio: float | None = None
    executions_per_second: float | None = None
    total_latency: LatencyPercentiles | None = None  # of the last period; None when nothing ran
    device_latency: LatencyPercentiles | None = None
    attribution: Attribution | None = None  # None: it runs in no container, pod or job that is known
    training: TrainingCounters | None = None  # None: its runtime does not count these
    training_rates: TrainingRates | None = None  # of the last period
    inferred_fields: tuple[str, ...] = ()  # as in Device; core_indices where it alone has the whole device open
    counted_since_seconds: float | None = None
    """CLOCK_MONOTONIC since when executions, errors, latencies, models' executions and training are counted: since the
    process itself began to, whatever daemon it is attached to. None: it has not told. See `neurontools.model.counting`.
    """

    job: Job | None = None
    core_work: tuple[CoreWork, ...] = ()
    """What it has done on each of `neuroncore_indices`, since `counted_since_seconds`; () where nothing tells."""

    operators: tuple[OperatorTime, ...] = ()  # what takes most first, the rest last; () where nothing tells, or not yet
    advice: tuple[ScriptAdvice, ...] = ()  # what costs most first
    recent_steps: RecentSteps | None = None  # None: too few, or it does not tell for what it waits

    __repr__ = showing("pid", "user", "command", "neuroncore_indices", "device_indices")
