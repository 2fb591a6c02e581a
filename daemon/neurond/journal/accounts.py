"""Makes an account of each process that held cores, by comparing snapshots. Does no I/O and reads no clock."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from neurond.allocator import CoreLease
from neurond.system.clocks import ended_by_wall_clock
from neurontools.catalog import peak_flops_per_core  # imported at the start: a tick may find no free descriptor
from neurontools.model import EndedProcess, NeuronCore, Process, Snapshot
from neurontools.model.serving import request_models, requests_total
from neurontools.model.snapshot import counted_since_unix_seconds
from neurontools.util.units import sum_known

MOST_COMMAND_CHARACTERS = 256
_MOST_WAITING = 4096
_MOST_FOUND_LIVING = 256  # at each snapshot, each of them costs a read of /proc/PID/stat


@dataclass(frozen=True, slots=True)
class Departure:
    """An attached process that has disconnected: its token, its last state and its core usage.

    `has_final_report` is None if the process never reported.
    """

    token: str
    process: Process
    use: CoreUsage
    has_final_report: bool | None = None


class ProcessAccounts:
    """Creates an account of each process that ends: owner, cores, times and counts. `is_alive` tests if a process runs.

    Call `observe` with every snapshot in order, and with the processes that disconnected since the previous one. Call
    `end` when an attached process has ended, with its exit status, or when it lives on without cores. A process is
    reported as ended once its last snapshot and its outcome are known. A process that lives on is reported again when
    it ends, with the same identity.
    """

    def __init__(self, is_alive: Callable[[Process], bool]) -> None:
        self._is_alive = is_alive
        self._attached: dict[int, Process] = {}  # attached processes of the latest snapshot, by PID
        self._found: dict[int, DriverAccount] = {}
        # Accounts of processes whose exit status is not known yet, by token.
        self._pending: OrderedDict[str, EndedProcess] = OrderedDict()
        # Accounts of attached processes that live on, by token, and of others that let their devices go.
        self._living: OrderedDict[str, EndedProcess] = OrderedDict()
        self._found_living: deque[tuple[Process, EndedProcess]] = deque(maxlen=_MOST_FOUND_LIVING)
        # Exit statuses of processes that have no account yet, by token.
        self._outcomes: OrderedDict[str, ProcessOutcome] = OrderedDict()
        self._finished: list[EndedProcess] = []
        self._moved_seconds = 0.0

    def end(self, token: str, outcome: ProcessOutcome) -> None:
        ended = self._pending.pop(token, None) or self._living.pop(token, None)
        if ended is not None:
            self._finish(token, ended, outcome)
        else:
            self._outcomes[token] = outcome
            if len(self._outcomes) > _MOST_WAITING:
                self._outcomes.popitem(last=False)

    def observe(
        self, snapshot: Snapshot, departures: Iterable[Departure], moved_seconds: float = 0.0
    ) -> list[EndedProcess]:
        """Returns the new and the completed accounts, with times by the host's clock.

        This clock is ahead of the snapshot's clock by `moved_seconds`.
        """
        self._moved_seconds = moved_seconds
        peak_flops = peak_flops_per_core(snapshot.instance.instance_type)
        for departure in departures:
            self._depart(departure, snapshot, peak_flops)
        self._follow_found_living()
        holders = [process for process in snapshot.processes if process.core_indices]
        self._attached = {each.pid: each for each in holders if each.attached_at_unix_seconds is not None}
        found = {each.pid: each for each in holders if each.attached_at_unix_seconds is None}
        self._follow_found(found, snapshot, peak_flops)
        finished, self._finished = self._finished, []
        return finished

    def take_rest(self) -> list[EndedProcess]:
        """Returns the accounts that are still to be reported, when the daemon ends; some lack the exit status."""
        rest = [*self._finished, *self._pending.values()]
        self._finished, self._pending = [], OrderedDict()
        return rest

    def _depart(self, departure: Departure, snapshot: Snapshot, peak_flops: float | None) -> None:
        process = departure.process
        began = counted_since_unix_seconds(process, snapshot)
        if began is None:
            began = snapshot.taken_at_unix_seconds
        attached = self._attached.get(process.pid)
        if attached is not None and attached.attached_at_unix_seconds == process.attached_at_unix_seconds:
            process = _completed(process, attached)
        ended = _build_ended(process, departure.use, began, snapshot.taken_at_unix_seconds, peak_flops)
        ended = replace(ended_by_wall_clock(ended, self._moved_seconds), counts_are_final=departure.has_final_report)
        outcome = self._outcomes.pop(departure.token, ProcessOutcome() if process.synthetic else None)
        if outcome is not None:
            self._finish(departure.token, ended, outcome)
            return
        self._pending[departure.token] = ended
        if len(self._pending) > _MOST_WAITING:
            self._finished.append(self._pending.popitem(last=False)[1])

    def _finish(self, token: str, ended: EndedProcess, outcome: ProcessOutcome) -> None:
        ended = replace(ended, exit_status=outcome.exit_status, lives_on=outcome.lives_on)
        self._finished.append(ended)
        if outcome.lives_on:
            self._living[token] = ended
            if len(self._living) > _MOST_WAITING:
                self._living.popitem(last=False)

    def _follow_found_living(self) -> None:
        for _ in range(len(self._found_living)):
            process, ended = self._found_living.popleft()
            if self._is_alive(process):
                self._found_living.append((process, ended))
            else:
                self._finished.append(replace(ended, lives_on=False))

    def _follow_found(self, now: dict[int, Process], snapshot: Snapshot, peak_flops: float | None) -> None:
        for pid, account in list(self._found.items()):
            process = now.get(pid)
            if process is not None and process.started_at_unix_seconds == account.process.started_at_unix_seconds:
                continue
            del self._found[pid]
            if pid in self._attached:  # the process has attached meanwhile and reports its own counters
                continue
            now_unix_seconds, began_at = snapshot.taken_at_unix_seconds, account.began_at_unix_seconds
            ended = _build_ended(account.process, account.use, began_at, now_unix_seconds, peak_flops)
            ended = ended_by_wall_clock(ended, self._moved_seconds)
            if self._is_alive(account.process):
                ended = replace(ended, lives_on=True)
                self._found_living.append((account.process, ended))
            self._finished.append(ended)
        for pid, process in now.items():
            driver_account = self._found.get(pid)
            if driver_account is None:
                driver_account = self._found[pid] = DriverAccount(process, snapshot.taken_at_unix_seconds)
            driver_account.observe(process, snapshot)


def _completed(last: Process, latest: Process) -> Process:
    """Returns the last state of a process, completed with user, command and job from a snapshot."""
    return replace(
        last,
        user=last.user if last.user is not None else latest.user,
        command=last.command or latest.command,
        job=latest.job or last.job,
    )


def _build_ended(
    process: Process, use: CoreUsage, began_at_unix_seconds: float, now_unix_seconds: float, peak_flops: float | None
) -> EndedProcess:
    seconds = now_unix_seconds - began_at_unix_seconds
    logical, physical = len(process.neuroncore_indices), len(process.core_indices)
    utilization = mfu = None
    if use.busy_seconds_total is not None and seconds > 0 and logical:
        utilization = min(1.0, use.busy_seconds_total / (logical * seconds))
    if use.flop_total is not None and seconds > 0 and physical and peak_flops:
        mfu = use.flop_total / (peak_flops * physical * seconds)
    return EndedProcess(
        pid=process.pid,
        uid=process.uid,
        user=process.user,
        command=process.command[:MOST_COMMAND_CHARACTERS],
        tag=process.tag,
        job=process.job_name,
        synthetic=process.synthetic,
        began_at_unix_seconds=began_at_unix_seconds,
        ended_at_unix_seconds=now_unix_seconds,
        neuroncore_count=logical,
        logical_neuroncore_config=process.logical_neuroncore_config,
        device_indices=process.device_indices,
        busy_seconds_total=use.busy_seconds_total,
        flop_total=use.flop_total,
        utilization_ratio=utilization,
        mfu_ratio=mfu,
        peak_device_memory_bytes=use.peak_device_memory_bytes,
        executions=process.executions,
        errors=process.errors,
        steps_total=None if process.training is None else process.training.steps_total,
        requests_total=requests_total(process.served_models),
        failed_requests_total=sum(served.failed_requests_total for served in request_models(process.served_models))
        if process.served_models
        else None,
        tokens_total=sum_known(served.tokens_total for served in process.served_models),
        inferred_fields=("neuroncore_count",) if "core_indices" in process.inferred_fields else (),
    )


class DriverAccount:
    """The account of a process that does not attach. Sums the driver's counters of the cores that the process holds."""

    def __init__(self, process: Process, began_at_unix_seconds: float) -> None:
        self.process = process
        self.began_at_unix_seconds = began_at_unix_seconds
        self._lnc = max(1, process.logical_neuroncore_config)
        self._busy_before: dict[int, float] = {}
        self._flop_before: dict[int, int] = {}
        self._busy_seconds: float | None = None
        self._flop: int | None = None
        self._peak_bytes: int | None = None

    @property
    def use(self) -> CoreUsage:
        """Core usage up to the last snapshot. A logical core is as busy as the mean of its physical cores."""
        busy = None if self._busy_seconds is None else self._busy_seconds / self._lnc
        return CoreUsage(busy, sum_known([self._flop]), self._peak_bytes)

    def observe(self, process: Process, snapshot: Snapshot) -> None:
        self.process = process
        used_bytes = None
        for core in snapshot.cores_of(process):
            self._add_growth(core)
            if core.memory.total_bytes is not None:
                used_bytes = (used_bytes or 0) + core.memory.total_bytes
        if used_bytes is not None:
            self._peak_bytes = max(used_bytes, self._peak_bytes or 0)

    def _add_growth(self, core: NeuronCore) -> None:
        if core.busy_seconds_total is not None:
            before = self._busy_before.get(core.index, core.busy_seconds_total)
            self._busy_before[core.index] = core.busy_seconds_total
            # A counter that fell restarted at 0: the driver was reloaded.
            self._busy_seconds = (self._busy_seconds or 0.0) + max(0.0, core.busy_seconds_total - before)
        if core.flop_total is not None:
            flop_before = self._flop_before.get(core.index, core.flop_total)
            self._flop_before[core.index] = core.flop_total
            self._flop = (self._flop or 0) + max(0, core.flop_total - flop_before)


@dataclass(frozen=True, slots=True)
class ProcessOutcome:
    """How a process ended. `exit_status`: exit code, negative signal number (as in subprocess), or None (unknown)."""

    exit_status: int | None = None
    lives_on: bool = False  # whether the process still runs, after it released its cores


@dataclass(frozen=True, slots=True)
class CoreUsage:
    """How much a process used its cores. `busy_seconds_total` is a sum over logical cores. None: unknown."""

    busy_seconds_total: float | None = None
    flop_total: int | None = None
    peak_device_memory_bytes: int | None = None


def reported_usage(lease: CoreLease) -> CoreUsage:
    if not lease.cores:
        return CoreUsage()
    return CoreUsage(
        sum(core.busy_seconds_total for core in lease.cores.values()),
        sum_known(core.flop_total for core in lease.cores.values()),
        lease.peak_device_memory_bytes,
    )
