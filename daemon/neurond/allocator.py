"""Allocates NeuronCores to processes and keeps the latest report of each process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from neurontools import model
from neurontools.driver.environment import LNC, NUM_CORES, VISIBLE_CORES
from neurontools.driver.neuron_runtime import CoreRequest, core_count_not_available, cores_not_available
from neurontools.util.units import bytes_text


@dataclass(frozen=True, slots=True)
class HostShape:
    """Cores and HBM stacks of a host.

    Physical cores are numbered across all devices of the host. Within a device, the numbers follow the logical order of
    its cores.
    """

    device_count: int
    cores_per_device: int
    stacks_per_device: int
    stack_bytes: int
    default_lnc: int
    supported_lncs: tuple[int, ...]

    @property
    def core_count(self) -> int:
        return self.device_count * self.cores_per_device

    def logical_core_count(self, lnc: int) -> int:
        return self.core_count // lnc

    def device_of(self, core_index: int) -> int:
        return core_index // self.cores_per_device

    @property
    def cores_per_stack(self) -> int:
        return self.cores_per_device // self.stacks_per_device

    def stack_of(self, core_index: int) -> int:
        """Returns the index of a physical core's HBM stack. Stacks are numbered across all devices of the host."""
        return core_index // self.cores_per_stack

    def physical_cores(self, logical_index: int, lnc: int) -> tuple[int, ...]:
        return tuple(range(logical_index * lnc, (logical_index + 1) * lnc))


@dataclass(frozen=True, slots=True)
class CoreReport:
    """Counters of one logical core, as the process that holds it reports them."""

    busy_seconds_total: float = 0.0
    flop_total: int = 0
    executions_total: int = 0
    memory: model.DeviceMemory = model.DeviceMemory()
    execution_started_at_unix_seconds: float | None = None
    last_execution_at_unix_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RuntimeReport:
    """One validated report of a process. All core indices, including those of subgraphs, are local to the process."""

    measured_at_seconds: float
    cores: dict[int, CoreReport]
    models: tuple[model.LoadedModel, ...] = ()
    host_memory: model.HostMemory = model.HostMemory()
    executions: model.ExecutionCounters = model.ExecutionCounters()
    errors: model.ErrorCounters = model.ErrorCounters()
    total_latency_histogram: model.LatencyHistogram = model.LatencyHistogram()
    device_latency_histogram: model.LatencyHistogram = model.LatencyHistogram()
    training: model.TrainingCounters | None = None
    counted_since_seconds: float | None = None  # CLOCK_MONOTONIC time when counting began; None: not reported
    operators: tuple[model.OperatorTime, ...] = ()
    advice: tuple[model.ScriptAdvice, ...] = ()
    served_models: tuple[model.ServedModel, ...] = ()


@dataclass(slots=True)
class CoreLease:
    """One attached process: its identity, the logical cores it holds, and its latest report.

    `first` is the index of its first logical core and `count` their number, both at the LNC of this lease. An observer
    holds no cores.
    """

    token: str
    pid: int
    uid: int | None
    user: str | None  # name of the user with this UID
    attached_at_unix_seconds: float
    lnc: int
    synthetic: bool = False
    first: int = 0
    count: int = 0
    tag: str = ""
    runtime_version: str | None = None
    report: RuntimeReport | None = None
    cores: dict[int, CoreReport] = field(default_factory=dict)  # latest report about each core, by local index
    counted_before: dict[int, CoreReport] = field(default_factory=dict)
    """First report of each core, by local index, if the process began before the daemon. Its counts are subtracted."""
    peak_device_memory_bytes: int | None = None  # highest memory use so far, in bytes; None before the first report
    has_final_report: bool = False

    @property
    def logical_cores(self) -> range:
        return range(self.first, self.first + self.count)

    def physical_cores(self) -> range:
        return range(self.first * self.lnc, (self.first + self.count) * self.lnc)

    def devices(self, shape: HostShape) -> tuple[int, ...]:
        """Returns the indices of the devices on which this lease has cores; for an observer, all device indices."""
        if not self.count:
            return tuple(range(shape.device_count))
        return tuple(dict.fromkeys(shape.device_of(core) for core in self.physical_cores()))

    def memory_of(self, core_index: int) -> model.DeviceMemory:
        """Returns the memory use of one physical core of the lease: an equal share of its logical core's memory use.

        All categories are None before the first report about that core.
        """
        local, position = divmod(core_index - self.first * self.lnc, self.lnc)
        report = self.cores.get(local)
        if report is None:
            return _UNKNOWN
        return report.memory if self.lnc == 1 else share(report.memory, position, self.lnc)


_UNKNOWN = model.DeviceMemory(*[None] * len(model.DeviceMemory.__slots__))


def share(memory: model.DeviceMemory, position: int, parts: int) -> model.DeviceMemory:
    """Splits each memory size into `parts` equal shares, and returns the share at `position`.

    The share at position 0 gets the remainder, so that the shares add up exactly.
    """
    shares: dict[str, int | None] = {}
    for name, size_bytes in model.memory_categories(memory).items():
        each, rest = divmod(size_bytes or 0, parts)
        shares[name] = None if size_bytes is None else each + (rest if position == 0 else 0)
    return model.DeviceMemory(**shares)


def memory_table(
    shape: HostShape, stack: int, holders: Sequence[tuple[CoreLease, int]], asking: CoreLease, asked_bytes: int
) -> str:
    """Formats an out-of-memory error of an HBM stack: the request, then one line per process that uses the stack.

    `holders` are all leases with a core of the stack, and the bytes that each uses there.
    """
    device, stack_on_device = divmod(stack, shape.stacks_per_device)
    free_bytes = shape.stack_bytes - sum(size_bytes for holder, size_bytes in holders if holder is not asking)
    headline = (
        f"out of device memory: PID {asking.pid} asks for {bytes_text(asked_bytes)} on device {device} HBM "
        f"{stack_on_device}, which has {bytes_text(shape.stack_bytes)}, of which {bytes_text(free_bytes)} are free; "
        "free memory or use more NeuronCores"
    )
    lines = [headline, f"{'PID':>10}  {'NEURONCORES':<12} {'BYTES':>16}  SIZE"]
    for holder, size_bytes in holders:
        cores = f"{holder.logical_cores[0]}-{holder.logical_cores[-1]}"
        lines.append(f"{holder.pid:>10}  {cores:<12} {size_bytes:>16}  {bytes_text(size_bytes)}")
    lines.append(f"{asking.pid:>10}  {'asks for':<12} {asked_bytes:>16}  {bytes_text(asked_bytes)}")
    return "\n".join(lines)


_NOTHING = CoreReport()
_MOST_DEPARTED = 4096
_LARGEST_COUNT = 2**63 - 1  # highest core counter that is reported: gRPC messages have int64 fields


class Refusal(Exception):
    """A request is refused. The message gives the cause and the next step. The subclass decides the gRPC status."""


class UnknownToken(Refusal):
    """No attached process has this token."""


class AlreadyAttached(Refusal):
    """The process already holds cores."""


class ImpossibleRequest(Refusal):
    """The host can never satisfy the request."""


class CoresInUse(Refusal):
    """Other processes hold the requested cores."""


class DeviceMemoryExhausted(Refusal):
    """A report exceeds the memory of an HBM stack."""


class InvalidReport(Refusal):
    """A value of a report is out of range or contradicts an earlier report."""


@dataclass(slots=True)
class CoreCounters:
    """Busy time, FLOPs and executions of a physical core, summed over its ended leases."""

    busy_seconds_total: float = 0.0
    flop_total: int = 0
    executions_total: int = 0
    last_execution_at_unix_seconds: float | None = None


class CoreAllocator:
    """The leases and reports of one host. Belongs to the event loop's thread.

    Core counters start at `began_seconds` (CLOCK_MONOTONIC). They exclude the work that processes counted earlier,
    while a previous daemon ran.
    """

    def __init__(
        self, shape: HostShape, on_ownership_change: Callable[[], None] = lambda: None, began_seconds: float = 0.0
    ) -> None:
        self.shape = shape
        self.began_seconds = began_seconds
        self.counters = [CoreCounters() for _ in range(shape.core_count)]
        self._owners: list[CoreLease | None] = [None] * shape.core_count
        self._leases: dict[str, CoreLease] = {}
        self._departed: deque[CoreLease] = deque(maxlen=_MOST_DEPARTED)
        self._on_ownership_change = on_ownership_change

    @property
    def leases(self) -> Iterable[CoreLease]:
        return self._leases.values()

    def owner(self, core_index: int) -> CoreLease | None:
        return self._owners[core_index]

    def enter(
        self,
        token: str,
        pid: int,
        uid: int | None,
        now_unix_seconds: float,
        *,
        user: str | None = None,
        synthetic: bool = False,
    ) -> CoreLease:
        """Adds a process as an observer. `token` is its secret and must be new. `user` is the name of `uid`."""
        if token in self._leases:
            raise AlreadyAttached("this token is in use; connect to the attach socket for a new one")
        lnc = self.shape.default_lnc
        lease = CoreLease(token, pid, uid, user, now_unix_seconds, lnc, synthetic=synthetic, tag=str(pid))
        self._leases[token] = lease
        self._on_ownership_change()
        return lease

    def leave(self, token: str) -> None:
        """Removes a process and frees its cores at once. An unknown token is ignored."""
        lease = self._leases.pop(token, None)
        if lease is None:
            return
        for core_index in lease.physical_cores():
            self._owners[core_index] = None
            self.counters[core_index] = self.counters_of(core_index, lease)
        if lease.count:
            self._departed.append(lease)
        self._on_ownership_change()

    def pop_departed(self) -> tuple[CoreLease, ...]:
        """Returns the leases that ended since the last call, with their last reports."""
        departed = tuple(self._departed)
        self._departed.clear()
        return departed

    def attach(self, token: str, request: CoreRequest, tag: str = "", runtime_version: str = "") -> CoreLease:
        """Gives a process the requested cores. If it raises Refusal, nothing changes."""
        lease = self.find_lease(token)
        if any(other.count and other.pid == lease.pid for other in self._leases.values()):
            raise AlreadyAttached(f"PID {lease.pid} already holds cores; a process attaches once")
        lnc = self._check_lnc(request.logical_neuroncore_config)
        first, count = self._choose_cores(request, lnc)
        lease.lnc, lease.first, lease.count = lnc, first, count
        lease.tag = tag or str(lease.pid)
        lease.runtime_version = runtime_version
        for core_index in lease.physical_cores():
            self._owners[core_index] = lease
        self._on_ownership_change()
        return lease

    def report(self, token: str, report: RuntimeReport, *, is_final: bool = False) -> None:
        """Stores the report of a process. Ignores reports after a final one. If it raises Refusal, nothing changes."""
        lease = self.find_lease(token)
        if lease.has_final_report:  # the report was on its way over the other connection
            return
        if not lease.count:
            raise InvalidReport("this process holds no cores; call Attach before Report")
        for local_index, core in report.cores.items():
            if not 0 <= local_index < lease.count:
                raise InvalidReport(f"core {local_index} is not one of the {lease.count} cores of this process")
            _check_counters(lease.cores.get(local_index), core, local_index)
        if lease.report is not None:
            _check_progress(lease.report, report)
        self._check_memory(lease, report.cores)
        since_seconds = report.counted_since_seconds
        if since_seconds is not None and since_seconds < self.began_seconds:
            for local_index, core in report.cores.items():
                lease.counted_before.setdefault(local_index, core)
        lease.report = report
        lease.has_final_report = is_final
        lease.cores.update(report.cores)
        used_bytes = sum(core.memory.total_bytes or 0 for core in lease.cores.values())
        lease.peak_device_memory_bytes = max(used_bytes, lease.peak_device_memory_bytes or 0)

    def counters_of(self, core_index: int, lease: CoreLease) -> CoreCounters:
        """Returns the counters of a physical core under this lease, including the latest report.

        A physical core has the full busy time and executions of its logical core, but an equal share of the FLOPs.
        """
        base = self.counters[core_index]
        local, position = divmod(core_index - lease.first * lease.lnc, lease.lnc)
        report = lease.cores.get(local)
        if report is None:
            return base
        before = lease.counted_before.get(local, _NOTHING)
        flop, rest = divmod(report.flop_total - before.flop_total, lease.lnc)
        return CoreCounters(
            base.busy_seconds_total + report.busy_seconds_total - before.busy_seconds_total,
            min(base.flop_total + flop + (rest if position == 0 else 0), _LARGEST_COUNT),
            min(base.executions_total + report.executions_total - before.executions_total, _LARGEST_COUNT),
            report.last_execution_at_unix_seconds or base.last_execution_at_unix_seconds,
        )

    def find_lease(self, token: str) -> CoreLease:
        """Returns the lease of this token. Raises UnknownToken if there is none."""
        try:
            return self._leases[token]
        except KeyError:
            raise UnknownToken(
                "no process with this token is attached; connect to the attach socket and keep the connection open"
            ) from None

    def _check_lnc(self, lnc: int | None) -> int:
        if lnc is None:
            return self.shape.default_lnc
        if lnc not in self.shape.supported_lncs:
            possible = " or ".join(map(str, self.shape.supported_lncs))
            raise ImpossibleRequest(f"{LNC}={lnc} is not possible on this hardware; set it to {possible}, or unset it")
        return lnc

    def _choose_cores(self, request: CoreRequest, lnc: int) -> tuple[int, int]:
        """Returns the index of the first logical core for a request, and the number of cores."""
        available = self.shape.logical_core_count(lnc)
        if request.first is None and request.count is not None:
            return self._first_fit(request.count, lnc), request.count
        first = request.first or 0
        count = available if request.count is None else request.count
        last = first + count - 1
        if first < 0 or count < 1 or last >= available:
            raise ImpossibleRequest(
                f"{VISIBLE_CORES}={first}-{last}: this host has NeuronCores 0-{available - 1}; ask for those"
            )
        busy = [index for index in range(first, last + 1) if self._holders(index, lnc)]
        if busy:
            text = cores_not_available(first, last, count - len(busy), lnc)
            raise CoresInUse(f"{text}; {self._holders_text(busy, lnc)}")
        return first, count

    def _first_fit(self, count: int, lnc: int) -> int:
        total = self.shape.logical_core_count(lnc)
        if not 1 <= count <= total:
            raise ImpossibleRequest(f"{NUM_CORES}={count}: this host has {total} NeuronCores; ask for 1 to {total}")
        run = free = 0
        busy = []
        for index in range(total):
            if self._holders(index, lnc):
                run = 0
                busy.append(index)
            else:
                run += 1
                free += 1
                if run == count:
                    return index - count + 1
        text = core_count_not_available(count, free, lnc)
        apart = " (free ones are not contiguous)" if free >= count else ""
        raise CoresInUse(f"{text}{apart}; {self._holders_text(busy, lnc)}")

    def _holders(self, logical_index: int, lnc: int) -> list[CoreLease]:
        owners = (self._owners[core] for core in self.shape.physical_cores(logical_index, lnc))
        return [owner for owner in owners if owner is not None]

    def _holders_text(self, logical_indices: list[int], lnc: int) -> str:
        pids = dict.fromkeys(owner.pid for index in logical_indices for owner in self._holders(index, lnc))
        listed = [str(pid) for pid in pids]
        more = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
        return f"held by PID {', '.join(listed[:4])}{more}; end them or ask for other cores"

    def _check_memory(self, lease: CoreLease, cores: dict[int, CoreReport]) -> None:
        """Raises DeviceMemoryExhausted if the processes on an HBM stack together use more than its size."""
        requested: dict[int, int] = {}
        for local_index in {*lease.cores, *cores}:
            core = cores.get(local_index) or lease.cores[local_index]
            physical = self.shape.physical_cores(lease.first + local_index, lease.lnc)[0]
            stack = self.shape.stack_of(physical)
            requested[stack] = requested.get(stack, 0) + (core.memory.total_bytes or 0)
        for stack, size_bytes in requested.items():
            holders = [(holder, self.stack_bytes_of(holder, stack)) for holder in self.holders_of_stack(stack)]
            used_bytes = sum(held_bytes for holder, held_bytes in holders if holder is not lease)
            if size_bytes + used_bytes > self.shape.stack_bytes:
                raise DeviceMemoryExhausted(memory_table(self.shape, stack, holders, lease, size_bytes))

    def holders_of_stack(self, stack: int) -> list[CoreLease]:
        size = self.shape.cores_per_stack
        holders = self._owners[stack * size : (stack + 1) * size]
        return list({holder.token: holder for holder in holders if holder is not None}.values())

    def stack_bytes_of(self, lease: CoreLease, stack: int) -> int:
        return sum(
            core.memory.total_bytes or 0
            for local_index, core in lease.cores.items()
            if self.shape.stack_of((lease.first + local_index) * lease.lnc) == stack
        )


def _check_counters(before: CoreReport | None, now: CoreReport, local_index: int) -> None:
    for name in ("busy_seconds_total", "flop_total", "executions_total"):
        earlier = getattr(before, name) if before else 0
        if getattr(now, name) < earlier:
            raise InvalidReport(f"{name} of core {local_index} fell from {earlier} to {getattr(now, name)}")


def _check_progress(before: RuntimeReport, now: RuntimeReport) -> None:
    if before.counted_since_seconds != now.counted_since_seconds:
        raise InvalidReport("counted_since_seconds differs from the report before; attach again after a counter reset")
    if now.measured_at_seconds < before.measured_at_seconds:
        raise InvalidReport("measured_at_seconds is earlier than in the report before")
    for part in ("executions", "errors", "training"):
        earlier, later = getattr(before, part), getattr(now, part)
        if earlier is None or later is None:
            continue
        for name in earlier.__slots__:
            if name.endswith("_total") and (getattr(later, name) or 0) < (getattr(earlier, name) or 0):
                raise InvalidReport(f"{part}.{name} fell from {getattr(earlier, name)} to {getattr(later, name)}")
