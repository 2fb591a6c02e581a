"""Data classes for processes: their cores, memory, executions, training, container, pod and job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from neurontools.model.device import DeviceMemory, HostMemory
from neurontools.model.execution import ErrorCounters, ExecutionCounters, LatencyHistogram, LatencyPercentiles
from neurontools.model.representation import repr_of_fields
from neurontools.model.serving import ServedModel
from neurontools.util.units import sum_known


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The part of a loaded model on one logical NeuronCore. Its memory is also counted in the memory of the core."""

    index: int
    neuroncore_index: int  # index of the logical core on the host, under the LNC of the process
    device_index: int
    device_memory: DeviceMemory = DeviceMemory()
    host_memory: HostMemory = HostMemory()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One model (NEFF) that a process has loaded."""

    model_id: int  # number that the process assigned to the model
    name: str
    uuid: str  # 32 hexadecimal digits
    running: bool  # whether the model was executed in the last reporting period
    subgraphs: tuple[Subgraph, ...] = ()
    executions_total: int = 0
    last_execution_at_unix_seconds: float | None = None
    busy_seconds_total: float | None = None  # seconds spent in executions; None: not reported
    busy_ratio: float | None = None  # fraction of the last few seconds spent in executions

    __repr__ = repr_of_fields("model_id", "name", "running", "executions_total")


@dataclass(frozen=True, slots=True)
class CoreWork:
    """Work of a process on one logical NeuronCore since its counters started, without work of earlier owners."""

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
    command: str  # the command line; "" if unreadable
    tag: str  # value of NEURON_PROCESS_TAG, else the PID as text
    runtime_version: str | None  # version of the Neuron runtime; None if the process does not use it
    started_at_unix_seconds: float | None
    attached_at_unix_seconds: float | None
    synthetic: bool  # whether the process is part of a synthetic load, not a real one
    logical_neuroncore_config: int  # LNC of this process: physical cores per logical core
    core_indices: tuple[int, ...] = ()  # physical cores that the process holds
    neuroncore_indices: tuple[int, ...] = ()  # the held cores as logical cores, under the LNC of this process
    device_indices: tuple[int, ...] = ()  # devices of the held cores; for an observer, the devices that it has open
    host_memory: HostMemory = HostMemory()
    resident_bytes: int | None = None
    cpu_user_seconds_total: float | None = None
    cpu_system_seconds_total: float | None = None
    models: tuple[LoadedModel, ...] = ()
    executions: ExecutionCounters | None = ExecutionCounters()  # None if the outcomes of executions are unknown
    errors: ErrorCounters | None = ErrorCounters()
    total_latency_histogram: LatencyHistogram = LatencyHistogram()  # latencies of queueing plus execution
    device_latency_histogram: LatencyHistogram = LatencyHistogram()  # latencies of execution, without queueing
    measured_at_seconds: float | None = None  # CLOCK_MONOTONIC of the last report; None before the first report
    reporting: bool = False  # if false, the next report is overdue, so the numbers are old
    vcpu_user_ratio: float | None = None  # vCPU use in user mode; 2.0 is two busy vCPUs
    vcpu_system_ratio: float | None = None
    executions_per_second: float | None = None
    total_latency: LatencyPercentiles | None = None  # latencies between the last two reports; None: no executions
    device_latency: LatencyPercentiles | None = None
    attribution: Attribution | None = None  # container, pod and job; None if none is known
    training: TrainingCounters | None = None  # None if the runtime has no training counters for the process
    training_rates: TrainingRates | None = None  # rates of training between the last two reports
    # names of fields with an inferred value; has core_indices if the only evidence is who has the device open
    inferred_fields: tuple[str, ...] = ()
    counted_since_seconds: float | None = None
    """CLOCK_MONOTONIC when the process started to count executions, errors, latencies and training. None: not reported.

    A restart of the daemon does not change this time. `neurontools.model.snapshot.counters_continue` compares two
    such times.
    """

    job: Job | None = None
    core_work: tuple[CoreWork, ...] = ()
    """Work on each core in `neuroncore_indices` since `counted_since_seconds`. Empty if not reported."""

    operators: tuple[OperatorTime, ...] = ()  # longest total time first, unlisted operators last; empty if not reported
    advice: tuple[ScriptAdvice, ...] = ()  # advice on the training script, highest cost first
    served_models: tuple[ServedModel, ...] = ()  # models that the process runs for requests; empty if not reported
    recent_steps: RecentSteps | None = None  # recent step times; None if there are too few, or waits are not reported
    power_ratio: float | None = None
    """Share of the process in the power of its devices in the last full minute; 1.0 is one device at its maximum.

    The driver measures power per device. The daemon divides it by the busy time of the cores, so a share is inferred.
    None: the driver reports no power, or the busy time of a core on the device is unknown.
    """

    energy_full_power_seconds: float | None = None
    """Energy of the process in the minutes that the daemon saw; 1.0 is one device at its maximum power for a second."""

    __repr__ = repr_of_fields("pid", "user", "command", "neuroncore_indices", "device_indices")

    @property
    def job_name(self) -> str | None:
        """Name of the process's job; None if unknown."""
        return None if self.job is None else self.job.name

    @property
    def label(self) -> str:
        """Name of the process: its tag, else the name of its job without the number, else its PID as text."""
        if self.tag in ("", str(self.pid)) and self.job is not None:
            return split_job_name(self.job.name)[0]
        return self.tag or str(self.pid)


def split_job_name(name: str) -> tuple[str, str]:
    """Splits "train.py (4711)" into "train.py" and " (4711)". The second part is "" if the name has no number."""
    title, separator, number = name.rpartition(" (")
    is_number = bool(title) and number.endswith(")") and number[:-1].isdecimal()
    return (title, separator + number) if is_number else (name, "")


@dataclass(frozen=True, slots=True)
class Attribution:
    """Container, pod and Slurm job of a process, from its cgroup, its environment and the kubelet.

    A field is None if the process is not in a container, pod or job. The pod's name and namespace come from the kubelet
    or the environment of the process.
    """

    container_id: str | None = None  # 64 hexadecimal digits
    container_name: str | None = None
    pod_uid: str | None = None
    pod_name: str | None = None
    pod_namespace: str | None = None
    slurm_job_id: str | None = None
    slurm_step_id: str | None = None
    pod_group: str | None = None  # name of the JobSet, Job or leader pod, from the environment of the process


@dataclass(frozen=True, slots=True)
class Job:
    """The job of a process. A job is a group of processes that train together, on one host or several."""

    name: str
    """Name of the job, unique on this host: "Slurm job 17", "pod default/train-0", "torchrun exp1", "train.py (4711)"
    with the PID of the launcher or the process group, "synthetic load steady"."""

    rank: int | None = None
    world_size: int | None = None  # ranks on all hosts
    run_id: str | None = None
    """12 hexadecimal digits that identify the run across hosts. None if the launcher reports a run on a single host."""

    first_rank_here: int | None = None  # first of the consecutive ranks that the launcher started on this host
    ranks_here: int | None = None  # number of ranks that the launcher started on this host


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """Devices that the kubelet allocated to a container, even if the container does not use them."""

    pod_name: str
    pod_namespace: str
    container_name: str
    device_indices: tuple[int, ...] = ()
    neuroncore_indices: tuple[int, ...] = ()  # indices of logical cores, under the LNC of the host


@dataclass(frozen=True, slots=True)
class TrainingCounters:
    """Training counters of a process. None means not reported. Only MpDeviceLoader counts samples."""

    steps_total: int = 0  # number of training steps (iterations of the training loop)
    samples_total: int | None = None  # sum of the batch sizes of MpDeviceLoader (first dimension)
    compilations_total: int | None = None  # number of compiled graphs, without cache hits
    compile_seconds_total: float | None = None
    collectives_total: int | None = None
    collective_seconds_total: float | None = None  # seconds in collectives, waits included; part of busy time
    collective_bytes_total: int | None = None  # bytes that this process put into collectives
    to_device_bytes_total: int | None = None
    from_device_bytes_total: int | None = None
    input_wait_seconds_total: float | None = None  # seconds that steps waited for batches of the loader
    checkpoints_total: int | None = None  # number of checkpoints written
    checkpoint_seconds_total: float | None = None  # seconds spent writing checkpoints
    host_seconds_total: float | None = None
    """Seconds of host time: tracing, Python and the script itself.

    Step time is divided into host time, input wait and the next four fields. These six sum to the time since the
    process started to count, and host time is the remainder."""

    compile_wait_seconds_total: float | None = None  # seconds waiting for a program to be compiled or read, and loaded
    transfer_seconds_total: float | None = None  # seconds that the script waits for copies between host and device
    compute_seconds_total: float | None = None  # seconds executing, including the data movement of collectives
    collective_wait_seconds_total: float | None = None  # seconds in collectives before all ranks entered them
    # CLOCK_MONOTONIC when the process began to wait for a program; None: not waiting, or not reported
    compiling_since_seconds: float | None = None
    last_step_at_seconds: float | None = None  # CLOCK_MONOTONIC at the end of the last step; None: no step yet
    # CLOCK_MONOTONIC when the process entered its current collective; None: in no collective, or not reported
    collective_since_seconds: float | None = None
    latest_collective: str | None = None  # name of the current or last collective, "all_reduce"; None if none yet
    # CLOCK_MONOTONIC when the process began to write a checkpoint; None: not writing, or not reported
    checkpointing_since_seconds: float | None = None

    def compiling_for_seconds(self, now_seconds: float) -> float | None:
        """Returns for how many seconds the process has waited for a program; None: not waiting, or not reported."""
        return age_seconds(self.compiling_since_seconds, now_seconds)

    def since_last_step_seconds(self, now_seconds: float) -> float | None:
        """Returns the seconds since the last step; None: no step yet, or not reported."""
        return age_seconds(self.last_step_at_seconds, now_seconds)


def age_seconds(at_seconds: float | None, now_seconds: float) -> float | None:
    """Returns the seconds from `at_seconds` to `now_seconds`, at least 0; None if `at_seconds` is None."""
    return None if at_seconds is None else max(0.0, now_seconds - at_seconds)


@dataclass(frozen=True, slots=True)
class TrainingRates:
    """Rates of the counters in `TrainingCounters` between the last two reports. None means unknown."""

    steps_per_second: float | None = None
    samples_per_second: float | None = None
    collective_ratio: float | None = None  # fraction of time spent in collectives
    collective_bytes_per_second: float | None = None
    to_device_bytes_per_second: float | None = None
    from_device_bytes_per_second: float | None = None
    input_wait_ratio: float | None = None  # fraction of time that steps waited for batches
    host_ratio: float | None = None
    compile_wait_ratio: float | None = None
    transfer_ratio: float | None = None
    compute_ratio: float | None = None
    collective_wait_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of step time, with the names of its fields in `TrainingCounters` and `TrainingRates`."""

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
    """Mean times of a rank's recent steps. The steps form two spans, whose collective wait is also given separately."""

    steps: int
    # mean seconds of each part of a step, in the order of STEP_PARTS; unreported time counts as host time
    part_seconds: tuple[float, ...]
    least_wait_seconds: float  # collective wait per step in the span with less wait
    most_wait_seconds: float  # collective wait per step in the span with more wait

    @property
    def step_seconds(self) -> float:
        """Mean duration of a step."""
        return sum(self.part_seconds)


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Total time that a process spent in one operator."""

    name: str  # name of the operator, "aten::mm"; "" for all unlisted operators
    seconds_total: float  # total seconds, estimated from sampled executions
    executions_total: int
    ratio: float | None = None  # fraction of the last few seconds spent in the operator

    __repr__ = repr_of_fields("name", "seconds_total")


@dataclass(frozen=True, slots=True)
class ScriptAdvice:
    """Advice from the runtime on how to speed up a training script. The process sends the texts: they are untrusted."""

    rule: str  # name of the rule, "host-read"
    measured: str
    place: str | None  # source line, "train.py:12"
    fix: str
    effect: str

    __repr__ = repr_of_fields("rule", "place")


SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """A process that ended or released its NeuronCores, with its total usage.

    The totals begin when the process started to count, even if the daemon restarted since. A process that released its
    cores and attached again has a record for each time it was attached.
    """

    pid: int
    uid: int | None
    user: str | None
    command: str  # command line, truncated; "" if unreadable
    tag: str
    job: str | None  # name of the process's job, "Slurm job 17", "pod default/train-0", "train.py (4711)"
    synthetic: bool
    began_at_unix_seconds: float
    ended_at_unix_seconds: float
    neuroncore_count: int  # number of logical cores, under the LNC of the process
    logical_neuroncore_config: int
    device_indices: tuple[int, ...] = ()
    busy_seconds_total: float | None = None  # seconds spent in executions, summed over the held logical cores
    flop_total: int | None = None
    utilization_ratio: float | None = None  # fraction of the time on the held cores spent in executions
    mfu_ratio: float | None = None  # FLOPS as a ratio of the held cores' peak for catalog.PEAK_DTYPE
    peak_device_memory_bytes: int | None = None  # highest sampled use of device memory
    executions: ExecutionCounters | None = None
    errors: ErrorCounters | None = None
    steps_total: int | None = None  # number of training steps (iterations of the training loop)
    exit_status: int | None = None  # like subprocess.returncode: exit code, or negative signal number
    lives_on: bool = False  # whether the process released its cores and continued to run
    inferred_fields: tuple[str, ...] = ()  # names of fields with an inferred value: neuroncore_count
    counts_are_final: bool | None = None
    """Whether the process sent a final report. If False, the work since its last report is missing.

    None: unknown, or the process did not report.
    """
    requests_total: int | None = None  # requests for inference, failed ones included; None: it served no models
    failed_requests_total: int | None = None
    tokens_total: int | None = None  # tokens that its models generated; None: none of them reported tokens

    __repr__ = repr_of_fields("pid", "user", "command", "neuroncore_count", "exit_status")

    @property
    def identity(self) -> tuple[int, float, float]:
        """Two records with this value in common are of one attachment; the later one is more complete."""
        return self.pid, self.began_at_unix_seconds, self.ended_at_unix_seconds

    @property
    def held_seconds(self) -> float:
        """Seconds for which the process held its cores."""
        return max(0.0, self.ended_at_unix_seconds - self.began_at_unix_seconds)

    @property
    def neuroncore_hours(self) -> float:
        """Number of logical NeuronCores times the hours for which the process held them."""
        return self.neuroncore_count * self.held_seconds / SECONDS_PER_HOUR

    @property
    def failed_executions_total(self) -> int | None:
        """Number of executions with an outcome other than completed; None: unknown."""
        return None if self.executions is None else _sum_fields(self.executions) - self.executions.completed_total

    @property
    def errors_total(self) -> int | None:
        """Number of errors of all kinds; None: unknown."""
        return None if self.errors is None else _sum_fields(self.errors)

    @property
    def how(self) -> str:
        """How the process ended: "ok", "exit 7", "signal 9", or "let go" if it released its cores; "-" if unknown."""
        if self.lives_on:
            return "let go"
        status = self.exit_status
        if status is None:
            return "-"
        return "ok" if status == 0 else f"exit {status}" if status > 0 else f"signal {-status}"


@dataclass(frozen=True, slots=True)
class EndedTotal:
    """Total usage of several ended processes. Means are weighted by NeuronCore hours and skip unknown values."""

    name: str | None  # name of the user or job; None: unknown
    process_count: int
    failed_count: int  # number of processes with a non-zero exit code or killed by a signal
    neuroncore_hours: float
    utilization_ratio: float | None
    mfu_ratio: float | None
    peak_device_memory_bytes: int | None  # highest device memory use of any of the processes
    executions_completed_total: int | None
    failed_executions_total: int | None
    errors_total: int | None
    last_ended_at_unix_seconds: float


def total_by_user(ended: Iterable[EndedProcess]) -> list[EndedTotal]:
    """Returns the total usage of each user, most NeuronCore hours first."""
    return _totals(ended, lambda process: process.user if process.uid is None else process.user or str(process.uid))


def total_by_job(ended: Iterable[EndedProcess]) -> list[EndedTotal]:
    """Returns the total usage of each job, most NeuronCore hours first. Processes without a job form one group."""
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
        peak_device_memory_bytes=max(
            _without_none(process.peak_device_memory_bytes for process in group), default=None
        ),
        executions_completed_total=sum(completed) if completed else None,
        failed_executions_total=sum_known(process.failed_executions_total for process in group),
        errors_total=sum_known(process.errors_total for process in group),
        last_ended_at_unix_seconds=max(process.ended_at_unix_seconds for process in group),
    )


def _mean(group: list[EndedProcess], read: Callable[[EndedProcess], float | None]) -> float | None:
    weighted = [(value, process.neuroncore_hours) for process in group if (value := read(process)) is not None]
    hours = sum(part for _, part in weighted)
    return sum(value * part for value, part in weighted) / hours if hours > 0 else None


def _without_none(values: Iterable[int | None]) -> list[int]:
    return [value for value in values if value is not None]


def failure_count(failed_executions_total: int | None, errors_total: int | None) -> int | None:
    """Returns how many failures a process had, as columns named ERR or ERRORS show; None if either number is unknown.

    A failed execution counts as an error too, so this is the larger number and not the sum.
    """
    if failed_executions_total is None or errors_total is None:
        return None
    return max(failed_executions_total, errors_total)


def _sum_fields(counters: ExecutionCounters | ErrorCounters) -> int:
    return sum(getattr(counters, field.name) for field in fields(counters))
