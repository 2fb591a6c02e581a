"""Processes on the devices: what they hold, execute and train, and their container, pod and job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from neurontools.model.device import DeviceMemory, HostMemory
from neurontools.model.execution import ErrorCounters, ExecutionCounters, LatencyHistogram, LatencyPercentiles
from neurontools.model.representation import repr_of_fields
from neurontools.util.units import sum_known


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The part of a loaded model on one logical NeuronCore. The core's memory includes its memory."""

    index: int
    neuroncore_index: int  # logical, on the host, under the LNC of the process
    device_index: int
    device_memory: DeviceMemory = DeviceMemory()
    host_memory: HostMemory = HostMemory()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One model (NEFF) that a process has loaded."""

    model_id: int  # assigned by the process
    name: str
    uuid: str  # 32 hexadecimal digits
    running: bool  # executed in the last reporting period
    subgraphs: tuple[Subgraph, ...] = ()
    executions_total: int = 0
    last_execution_at_unix_seconds: float | None = None
    busy_seconds_total: float | None = None  # in executions; None: not reported
    busy_ratio: float | None = None  # in the last few seconds

    __repr__ = repr_of_fields("model_id", "name", "running", "executions_total")


@dataclass(frozen=True, slots=True)
class CoreWork:
    """Work of a process on one logical NeuronCore since it began to count, without other owners' work."""

    busy_seconds_total: float = 0.0
    flop_total: int = 0


@dataclass(frozen=True, slots=True)
class Process:
    """A process that has devices of the host open.

    A process without cores is an observer, such as a monitor. The original `neuron-ls` shows observers with
    `--show-all-procs`.
    """

    pid: int
    uid: int | None
    user: str | None
    command: str  # the command line; "" when it cannot be read
    tag: str  # NEURON_PROCESS_TAG, else the PID as text
    runtime_version: str | None  # None for a process that does not use the runtime
    started_at_unix_seconds: float | None
    attached_at_unix_seconds: float | None
    synthetic: bool  # part of a synthetic load, no real process
    logical_neuroncore_config: int  # physical cores per logical core, as this process sees it
    core_indices: tuple[int, ...] = ()  # physical cores held
    neuroncore_indices: tuple[int, ...] = ()  # the same as logical cores under its own LNC
    device_indices: tuple[int, ...] = ()  # devices of these cores; for an observer, its open devices
    host_memory: HostMemory = HostMemory()
    resident_bytes: int | None = None
    cpu_user_seconds_total: float | None = None
    cpu_system_seconds_total: float | None = None
    models: tuple[LoadedModel, ...] = ()
    executions: ExecutionCounters | None = ExecutionCounters()  # None: the driver's counts cannot be attributed
    errors: ErrorCounters | None = ErrorCounters()
    total_latency_histogram: LatencyHistogram = LatencyHistogram()  # queueing plus execution
    device_latency_histogram: LatencyHistogram = LatencyHistogram()  # execution alone
    measured_at_seconds: float | None = None  # CLOCK_MONOTONIC of its last report; None before the first
    reporting: bool = False  # False: its report is overdue, so its numbers are old
    vcpu_user_ratio: float | None = None  # 2.0 is two busy vCPUs
    vcpu_system_ratio: float | None = None
    executions_per_second: float | None = None
    total_latency: LatencyPercentiles | None = None  # in the last period; None: no executions
    device_latency: LatencyPercentiles | None = None
    attribution: Attribution | None = None  # None: no known container, pod or job
    training: TrainingCounters | None = None  # None: not counted by its runtime
    training_rates: TrainingRates | None = None  # of the last period
    inferred_fields: tuple[str, ...] = ()  # as in Device; core_indices if only this process has the device open
    counted_since_seconds: float | None = None
    """CLOCK_MONOTONIC since when the process counts executions, errors, latencies and training. None: not reported.

    A restart of the daemon does not change it. `neurontools.model.snapshot.counters_continue` compares it.
    """

    job: Job | None = None
    core_work: tuple[CoreWork, ...] = ()
    """Work on each of `neuroncore_indices` since `counted_since_seconds`. Empty: not reported."""

    operators: tuple[OperatorTime, ...] = ()  # longest first, the rest last; empty: not reported
    advice: tuple[ScriptAdvice, ...] = ()  # highest cost first
    recent_steps: RecentSteps | None = None  # None: too few steps, or wait times not reported

    __repr__ = repr_of_fields("pid", "user", "command", "neuroncore_indices", "device_indices")


@dataclass(frozen=True, slots=True)
class Attribution:
    """Container, pod and job of a process, from its cgroup, its environment and the kubelet. None: not in one.

    The pod's name and namespace come from the kubelet or the process's environment.
    """

    container_id: str | None = None  # 64 hexadecimal digits
    container_name: str | None = None
    pod_uid: str | None = None
    pod_name: str | None = None
    pod_namespace: str | None = None
    slurm_job_id: str | None = None
    slurm_step_id: str | None = None
    pod_group: str | None = None  # JobSet, Job or leader of cooperating pods, from their environment


@dataclass(frozen=True, slots=True)
class Job:
    """The job of a process: cooperating processes on one or several hosts."""

    name: str
    """Its name on this host: "Slurm job 17", "pod default/train-0", "torchrun exp1", "job of PID 4711",
    "process group 4711", "synthetic load steady"."""

    rank: int | None = None
    world_size: int | None = None  # ranks on all hosts
    run_id: str | None = None
    """12 hexadecimal digits that identify the run across hosts. None: the launcher reports a single-host run."""

    first_rank_here: int | None = None  # first of the consecutive ranks that the launcher started here
    ranks_here: int | None = None  # number of these ranks


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """Devices that the kubelet allocated to a container, used or not."""

    pod_name: str
    pod_namespace: str
    container_name: str
    device_indices: tuple[int, ...] = ()
    neuroncore_indices: tuple[int, ...] = ()  # logical, under the LNC of the host


@dataclass(frozen=True, slots=True)
class TrainingCounters:
    """Training counters of a process. None: not seen (samples without MpDeviceLoader) or not reported."""

    steps_total: int = 0  # calls of an optimizer's step
    samples_total: int | None = None  # first dimension of MpDeviceLoader's batches
    compilations_total: int | None = None  # compiled graphs, without cache hits
    compile_seconds_total: float | None = None
    collectives_total: int | None = None
    collective_seconds_total: float | None = None  # part of busy time: a waiting core is busy
    collective_bytes_total: int | None = None  # contributed by this process
    to_device_bytes_total: int | None = None
    from_device_bytes_total: int | None = None
    input_wait_seconds_total: float | None = None  # waiting for the loader's batches
    checkpoints_total: int | None = None  # written
    checkpoint_seconds_total: float | None = None  # spent writing them
    host_seconds_total: float | None = None
    """Step time splits into host, input wait and the four fields below. They sum to the time since the process began to
    count. Host time is the remainder: tracing, Python and the script itself."""

    compile_wait_seconds_total: float | None = None  # waiting for a program to be compiled or read, and loaded
    transfer_seconds_total: float | None = None  # copies between host and device that the script waits for
    compute_seconds_total: float | None = None  # executing, including data movement of collectives
    collective_wait_seconds_total: float | None = None  # part of collective_seconds_total: until all ranks arrived
    compiling_since_seconds: float | None = None  # CLOCK_MONOTONIC; None: not waiting, or not reported
    last_step_at_seconds: float | None = None  # CLOCK_MONOTONIC; end of the last step; None: none yet
    collective_since_seconds: float | None = None  # CLOCK_MONOTONIC; None: not in one, or not reported
    latest_collective: str | None = None  # current or last one, "all_reduce"; None: none yet
    checkpointing_since_seconds: float | None = None  # CLOCK_MONOTONIC; None: not writing, or not reported

    def compiling_for_seconds(self, now_seconds: float) -> float | None:
        """Returns how long the process has waited for a program. None: not waiting, or not reported."""
        return age_seconds(self.compiling_since_seconds, now_seconds)

    def since_last_step_seconds(self, now_seconds: float) -> float | None:
        """Returns the time since the last step. None: no step yet, or not reported."""
        return age_seconds(self.last_step_at_seconds, now_seconds)


def age_seconds(at_seconds: float | None, now_seconds: float) -> float | None:
    """Returns the seconds since a time of CLOCK_MONOTONIC. None stays None."""
    return None if at_seconds is None else max(0.0, now_seconds - at_seconds)


@dataclass(frozen=True, slots=True)
class TrainingRates:
    """The rates of TrainingCounters in the last period. None: unknown."""

    steps_per_second: float | None = None
    samples_per_second: float | None = None
    collective_ratio: float | None = None  # of the time
    collective_bytes_per_second: float | None = None
    to_device_bytes_per_second: float | None = None
    from_device_bytes_per_second: float | None = None
    input_wait_ratio: float | None = None  # of the time, as the fields below
    host_ratio: float | None = None
    compile_wait_ratio: float | None = None
    transfer_ratio: float | None = None
    compute_ratio: float | None = None
    collective_wait_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of step time, with its fields in TrainingCounters and TrainingRates."""

    name: str
    counter: str
    ratio: str


STEP_PARTS = (
    StepPart("compute", "compute_seconds_total", "compute_ratio"),
    StepPart("collective wait", "collective_wait_seconds_total", "collective_wait_ratio"),
    StepPart("host", "host_seconds_total", "host_ratio"),
    StepPart("input wait", "input_wait_seconds_total", "input_wait_ratio"),
    StepPart("transfer", "transfer_seconds_total", "transfer_ratio"),
    StepPart("compile", "compile_wait_seconds_total", "compile_wait_ratio"),
)
WAIT_PART = 1  # index of "collective wait" in STEP_PARTS


@dataclass(frozen=True, slots=True)
class RecentSteps:
    """Mean durations of a rank's recent steps, measured in two spans of several steps."""

    steps: int
    part_seconds: tuple[float, ...]  # per step, in the order of STEP_PARTS; unreported time is in host
    least_wait_seconds: float  # collective wait per step, in the span with less
    most_wait_seconds: float  # collective wait per step, in the other span

    @property
    def step_seconds(self) -> float:
        """Mean duration of a step."""
        return sum(self.part_seconds)


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Time of all executions of one operator in a process."""

    name: str  # "aten::mm"; "" for all unlisted operators
    seconds_total: float  # estimated from sampled executions
    executions_total: int
    ratio: float | None = None  # in the last few seconds

    __repr__ = repr_of_fields("name", "seconds_total")


@dataclass(frozen=True, slots=True)
class ScriptAdvice:
    """Advice of the runtime on a training script. The texts come from the process, so they are untrusted."""

    rule: str  # "host-read"
    measured: str
    place: str | None  # "train.py:12"
    fix: str
    effect: str

    __repr__ = repr_of_fields("rule", "place")


SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """A process that ended or released its NeuronCores, and what it used.

    Its counters go back to when it began to count, across restarts of the daemon. A process that attaches again after
    releasing its cores gets one record per attachment.
    """

    pid: int
    uid: int | None
    user: str | None
    command: str  # truncated; "" if unreadable
    tag: str
    job: str | None  # "Slurm job 17", "pod default/train-0", "process group 4711"
    synthetic: bool
    began_at_unix_seconds: float
    ended_at_unix_seconds: float
    neuroncore_count: int  # logical, under its own LNC
    logical_neuroncore_config: int
    device_indices: tuple[int, ...] = ()
    busy_seconds_total: float | None = None  # sum over its logical cores
    flop_total: int | None = None
    utilization_ratio: float | None = None  # of its core time
    mfu_ratio: float | None = None  # of its cores' peak for catalog.PEAK_DTYPE
    peak_device_memory_bytes: int | None = None  # highest sample
    executions: ExecutionCounters | None = None
    errors: ErrorCounters | None = None
    steps_total: int | None = None  # calls of an optimizer's step
    exit_status: int | None = None  # as in subprocess: a code, or a negative signal number
    lives_on: bool = False  # the process continued without cores
    inferred_fields: tuple[str, ...] = ()  # as in Process: neuroncore_count

    __repr__ = repr_of_fields("pid", "user", "command", "neuroncore_count", "exit_status")

    @property
    def held_seconds(self) -> float:
        """Seconds for which it held its cores."""
        return max(0.0, self.ended_at_unix_seconds - self.began_at_unix_seconds)

    @property
    def neuroncore_hours(self) -> float:
        """Logical NeuronCores times the hours for which it held them."""
        return self.neuroncore_count * self.held_seconds / SECONDS_PER_HOUR

    @property
    def failed_executions_total(self) -> int | None:
        """Executions that did not complete. None: unknown."""
        return None if self.executions is None else _sum_fields(self.executions) - self.executions.completed_total

    @property
    def errors_total(self) -> int | None:
        """Errors of all kinds. None: unknown."""
        return None if self.errors is None else _sum_fields(self.errors)

    @property
    def how(self) -> str:
        """How it ended: "ok", "exit 7", "signal 9" or "let go"; "-" if unknown."""
        if self.lives_on:
            return "let go"
        status = self.exit_status
        if status is None:
            return "-"
        return "ok" if status == 0 else f"exit {status}" if status > 0 else f"signal {-status}"


@dataclass(frozen=True, slots=True)
class EndedTotal:
    """Total usage of several ended processes. Means are weighted by NeuronCore hours and skip unknown values."""

    name: str | None  # user or job; None: unknown
    process_count: int
    failed_count: int  # non-zero exit code, or a signal
    neuroncore_hours: float
    utilization_ratio: float | None
    mfu_ratio: float | None
    peak_device_memory_bytes: int | None  # highest of any process
    executions_completed_total: int | None
    failed_executions_total: int | None
    errors_total: int | None
    last_ended_at_unix_seconds: float


def total_by_user(ended: Iterable[EndedProcess]) -> list[EndedTotal]:
    """Returns the totals by user, most NeuronCore hours first."""
    return _totals(ended, lambda process: process.user if process.uid is None else process.user or str(process.uid))


def total_by_job(ended: Iterable[EndedProcess]) -> list[EndedTotal]:
    """Returns the totals by job, most NeuronCore hours first. Processes without a job form one group."""
    return _totals(ended, lambda process: process.job)


def _totals(ended: Iterable[EndedProcess], name_of: Callable[[EndedProcess], str | None]) -> list[EndedTotal]:
    groups: dict[str | None, list[EndedProcess]] = {}
    for process in ended:
        groups.setdefault(name_of(process), []).append(process)
    sums = [_total(name, group) for name, group in groups.items()]
    return sorted(sums, key=lambda total: (-total.neuroncore_hours, total.name or ""))


def _total(name: str | None, group: list[EndedProcess]) -> EndedTotal:
    completed = [process.executions.completed_total for process in group if process.executions is not None]
    return EndedTotal(
        name=name,
        process_count=len(group),
        failed_count=sum(1 for process in group if process.exit_status),
        neuroncore_hours=sum(process.neuroncore_hours for process in group),
        utilization_ratio=_mean(group, lambda process: process.utilization_ratio),
        mfu_ratio=_mean(group, lambda process: process.mfu_ratio),
        peak_device_memory_bytes=max(_known(process.peak_device_memory_bytes for process in group), default=None),
        executions_completed_total=sum(completed) if completed else None,
        failed_executions_total=sum_known(process.failed_executions_total for process in group),
        errors_total=sum_known(process.errors_total for process in group),
        last_ended_at_unix_seconds=max(process.ended_at_unix_seconds for process in group),
    )


def _mean(group: list[EndedProcess], read: Callable[[EndedProcess], float | None]) -> float | None:
    known = [(value, process.neuroncore_hours) for process in group if (value := read(process)) is not None]
    hours = sum(part for _, part in known)
    return sum(value * part for value, part in known) / hours if hours > 0 else None


def _known(values: Iterable[int | None]) -> list[int]:
    return [value for value in values if value is not None]


def _sum_fields(counters: ExecutionCounters | ErrorCounters) -> int:
    return sum(getattr(counters, field.name) for field in fields(counters))
