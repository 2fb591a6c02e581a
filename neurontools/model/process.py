"""Processes and their training, and the pods and jobs they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from neurontools.model.device import DeviceMemory, HostMemory
from neurontools.model.execution import ErrorCounters, ExecutionCounters, LatencyHistogram, LatencyPercentiles
from neurontools.model.representation import repr_of_fields
from neurontools.util.units import sum_known


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

    __repr__ = repr_of_fields("model_id", "name", "running", "executions_total")


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
    process itself began to, whatever daemon it is attached to. None: it has not told. See `neurontools.model.snapshot`.
    """

    job: Job | None = None
    core_work: tuple[CoreWork, ...] = ()
    """What it has done on each of `neuroncore_indices`, since `counted_since_seconds`; () where nothing tells."""

    operators: tuple[OperatorTime, ...] = ()  # what takes most first, the rest last; () where nothing tells, or not yet
    advice: tuple[ScriptAdvice, ...] = ()  # what costs most first
    recent_steps: RecentSteps | None = None  # None: too few, or it does not tell for what it waits

    __repr__ = repr_of_fields("pid", "user", "command", "neuroncore_indices", "device_indices")


@dataclass(frozen=True, slots=True)
class Attribution:
    """What a process runs in, from its cgroup and environment and from the kubelet; None where there is none.

    The pod's name and namespace are known where the kubelet tells them, or the process's environment does.
    """

    container_id: str | None = None  # 64 hexadecimal digits, as the container runtime has it
    container_name: str | None = None
    pod_uid: str | None = None
    pod_name: str | None = None
    pod_namespace: str | None = None
    slurm_job_id: str | None = None
    slurm_step_id: str | None = None
    pod_group: str | None = None  # the JobSet, Job or leader of pods that work together, where their environment has it


@dataclass(frozen=True, slots=True)
class Job:
    """The job that a process is part of: processes that work together, here or on several hosts."""

    name: str
    """Its name on this host: "Slurm job 17", "pod default/train-0", "torchrun exp1", "job of PID 4711",
    "process group 4711", "synthetic load steady"."""

    rank: int | None = None
    world_size: int | None = None  # ranks on all hosts
    run_id: str | None = None
    """12 hexadecimal digits that are the same on all hosts of one run, and of no other; None: it is of this host alone,
    as far as its launcher tells."""

    first_rank_here: int | None = None  # of those that its launcher started on this host, in a row
    ranks_here: int | None = None  # how many these are


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """What the kubelet has given to a container of a pod, used or not."""

    pod_name: str
    pod_namespace: str
    container_name: str
    device_indices: tuple[int, ...] = ()
    neuroncore_indices: tuple[int, ...] = ()  # logical, under the LNC of the host


@dataclass(frozen=True, slots=True)
class TrainingCounters:
    """Counters in the count of one process. None where the runtime has not seen such a thing, as samples where
    the script does not use the loader, or where nobody tells, as collectives of a script that reports by itself."""

    steps_total: int = 0  # calls of an optimizer's step
    samples_total: int | None = None  # along the first dimension of the batches of MpDeviceLoader
    compilations_total: int | None = None  # graphs compiled; those found in the cache are not
    compile_seconds_total: float | None = None
    collectives_total: int | None = None
    collective_seconds_total: float | None = None  # part of the busy time: a core that waits for its peers is in use
    collective_bytes_total: int | None = None  # that this process put in
    to_device_bytes_total: int | None = None
    from_device_bytes_total: int | None = None
    input_wait_seconds_total: float | None = None  # that the script waited for its loader's batches
    checkpoints_total: int | None = None  # written
    checkpoint_seconds_total: float | None = None  # that the script took to write them
    host_seconds_total: float | None = None
    """With input wait and the four below the parts of step time: together the time since the process began to count,
    each moment in one of them. The host's is that in none of the others: tracing, Python, whatever the script does."""

    compile_wait_seconds_total: float | None = None  # for a program: made, by another worker too, or read, and loaded
    transfer_seconds_total: float | None = None  # copying between host and device, while the script waits for it
    compute_seconds_total: float | None = None  # executing, what collectives move and reduce included
    collective_wait_seconds_total: float | None = None  # part of collective_seconds_total: until the others came too
    compiling_since_seconds: float | None = None  # CLOCK_MONOTONIC; None: it waits for no program now, or nobody tells
    last_step_at_seconds: float | None = None  # CLOCK_MONOTONIC of the end of the latest step; None: none yet
    collective_since_seconds: float | None = None  # CLOCK_MONOTONIC; None: it is in no collective, or nobody tells
    latest_collective: str | None = None  # "all_reduce": the one it is in, else its last; None: none yet
    checkpointing_since_seconds: float | None = None  # CLOCK_MONOTONIC; None: it writes none now, or nobody tells

    def compiling_for_seconds(self, now_seconds: float) -> float | None:
        """How long it waits for a program at `now_seconds` of CLOCK_MONOTONIC; None: for none, or nobody tells."""
        return age_seconds(self.compiling_since_seconds, now_seconds)

    def since_last_step_seconds(self, now_seconds: float) -> float | None:
        """How long ago its latest step ended; None: there is none, or nobody tells."""
        return age_seconds(self.last_step_at_seconds, now_seconds)


def age_seconds(at_seconds: float | None, now_seconds: float) -> float | None:
    """How long ago a moment of CLOCK_MONOTONIC was; None for an unknown one."""
    return None if at_seconds is None else max(0.0, now_seconds - at_seconds)


@dataclass(frozen=True, slots=True)
class TrainingRates:
    """The same over the last period; None is unknown."""

    steps_per_second: float | None = None
    samples_per_second: float | None = None
    collective_ratio: float | None = None  # of the time
    collective_bytes_per_second: float | None = None
    to_device_bytes_per_second: float | None = None
    from_device_bytes_per_second: float | None = None
    input_wait_ratio: float | None = None  # of the time, as those below
    host_ratio: float | None = None
    compile_wait_ratio: float | None = None
    transfer_ratio: float | None = None
    compute_ratio: float | None = None
    collective_wait_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of step time: its name, and the fields of TrainingCounters and TrainingRates that have it."""

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
WAIT_PART = 1  # where among them the waiting for other ranks is


@dataclass(frozen=True, slots=True)
class RecentSteps:
    """What the latest steps of a rank took, in two spans of some steps each."""

    steps: int
    part_seconds: tuple[float, ...]  # a step, in the order of STEP_PARTS; what it does not tell is in host
    least_wait_seconds: float  # a step in collective wait, in the span where they were fewer
    most_wait_seconds: float  # in the other span

    @property
    def step_seconds(self) -> float:
        """How long a step took."""
        return sum(self.part_seconds)


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """The operators of one kind that a process has executed."""

    name: str  # "aten::mm"; "" for all that are not listed, or not told apart yet
    seconds_total: float  # in the count of the process, by samples of its executions
    executions_total: int
    ratio: float | None = None  # of the last seconds

    __repr__ = repr_of_fields("name", "seconds_total")


@dataclass(frozen=True, slots=True)
class ScriptAdvice:
    """One thing that a training script could do better, as its runtime judges it; texts come from the process."""

    rule: str  # "host-read"
    measured: str
    place: str | None  # "train.py:12"
    fix: str
    effect: str

    __repr__ = repr_of_fields("rule", "place")


SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """A process that has ended, or has let its NeuronCores go, and what it used while it held them.

    What it counts goes back to when it began to count, whichever daemon it was attached to. A process that attaches
    again after it has let its cores go is one of these for each time.
    """

    pid: int
    uid: int | None
    user: str | None
    command: str  # its beginning; "" when it could not be read
    tag: str
    job: str | None  # "Slurm job 17", "pod default/train-0", "process group 4711"
    synthetic: bool
    began_at_unix_seconds: float
    ended_at_unix_seconds: float
    neuroncore_count: int  # logical, under its own LNC
    logical_neuroncore_config: int
    device_indices: tuple[int, ...] = ()
    busy_seconds_total: float | None = None  # summed over its logical cores
    flop_total: int | None = None
    utilization_ratio: float | None = None  # of the time of its cores
    mfu_ratio: float | None = None  # of the peak for catalog.PEAK_DTYPE of its cores
    peak_device_memory_bytes: int | None = None  # the most that was seen
    executions: ExecutionCounters | None = None
    errors: ErrorCounters | None = None
    steps_total: int | None = None  # calls of an optimizer's step
    exit_status: int | None = None  # as subprocess has it: a code, or the negative number of a signal
    lives_on: bool = False  # the process went on, without cores
    inferred_fields: tuple[str, ...] = ()  # as in Process: neuroncore_count

    __repr__ = repr_of_fields("pid", "user", "command", "neuroncore_count", "exit_status")

    @property
    def held_seconds(self) -> float:
        """How long it held its cores."""
        return max(0.0, self.ended_at_unix_seconds - self.began_at_unix_seconds)

    @property
    def neuroncore_hours(self) -> float:
        """Hours of logical NeuronCores that it held."""
        return self.neuroncore_count * self.held_seconds / SECONDS_PER_HOUR

    @property
    def failed_executions_total(self) -> int | None:
        """Executions that did not complete; None: not known."""
        return None if self.executions is None else _sum_fields(self.executions) - self.executions.completed_total

    @property
    def errors_total(self) -> int | None:
        """Errors of every kind; None: not known."""
        return None if self.errors is None else _sum_fields(self.errors)

    @property
    def how(self) -> str:
        """How it ended, in a few words: "ok", "exit 7", "signal 9", "let go"; "-" where nobody knows."""
        if self.lives_on:
            return "let go"
        status = self.exit_status
        if status is None:
            return "-"
        return "ok" if status == 0 else f"exit {status}" if status > 0 else f"signal {-status}"


@dataclass(frozen=True, slots=True)
class EndedTotal:
    """What several ended processes used together; a mean is by NeuronCore hours, of those where it is known."""

    name: str | None  # the user or the job; None: not known
    process_count: int
    failed_count: int  # ended with another code than 0, or by a signal
    neuroncore_hours: float
    utilization_ratio: float | None
    mfu_ratio: float | None
    peak_device_memory_bytes: int | None  # of one process
    executions_completed_total: int | None
    failed_executions_total: int | None
    errors_total: int | None
    last_ended_at_unix_seconds: float


def total_by_user(ended: Iterable[EndedProcess]) -> list[EndedTotal]:
    """A sum for each user, the largest use first."""
    return _totals(ended, lambda process: process.user if process.uid is None else process.user or str(process.uid))


def total_by_job(ended: Iterable[EndedProcess]) -> list[EndedTotal]:
    """A sum for each job, the largest use first; processes of no known job are together."""
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
