"""Evaluates the health rules once per tick, and logs, compares and groups their findings."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter

from neurond.verdicts import process_rules
from neurond.verdicts.device_rules import (
    EccRule,
    KernelErrorRule,
    MemoryRule,
    core_errors,
    device_resets,
    missing_devices,
    unhealthy_components,
)
from neurond.verdicts.diagnosis import DiagnosisRecord
from neurond.verdicts.evidence import (
    CounterRestarts,
    HealedProcesses,
    HealthThresholds,
    ProcessIdentity,
    RuleContext,
    build_rule_context,
)
from neurond.verdicts.job_rules import activity_findings, stragglers
from neurond.verdicts.process_rules import ERROR_KINDS, FailingCoreRule, LatencyRule, OrphanedPodRule
from neurond.verdicts.serving_rules import RequestLatencyRule, cores_without_model, duplicated_weights
from neurontools.driver.kernel_log import KernelRecord
from neurontools.faults.kinds import KINDS
from neurontools.model import Device, FaultState, Finding, Health, NeuronCore, Process, Severity, Snapshot, SourceKind
from neurontools.model.finding import FindingKind
from neurontools.model.health import marked_reason
from neurontools.model.jobs import group_processes_by_job
from neurontools.util.units import ranges_text, strip_durations

_MOST_ENDED = 256  # most ended processes whose errors still count
_ANCHORS = 6  # number of earlier snapshots in the window, from which growth is measured

NOTHING_UNKNOWN: Mapping[int, str] = {}

_Rule = Callable[[RuleContext], Iterator[Finding]]
_RULES: tuple[_Rule, ...] = (
    missing_devices,
    unhealthy_components,
    core_errors,
    device_resets,
    activity_findings,
    process_rules.process_errors,
    process_rules.silent_processes,
    stragglers,
    cores_without_model,
    duplicated_weights,
)


class RuleEvaluator:
    """Evaluates the rules and remembers since when each finding holds. Belongs to the event loop's thread.

    Call `evaluate` with every tick's snapshot, in order. `diagnosis` has the failed tests of neuron-diag.
    """

    def __init__(self, limits: HealthThresholds | None = None) -> None:
        self.limits = limits or HealthThresholds()
        self.diagnosis = DiagnosisRecord()
        self._anchors: deque[Snapshot] = deque(maxlen=_ANCHORS)
        self._rules: tuple[_Rule, ...] = (*_RULES, EccRule(), MemoryRule(), LatencyRule(), RequestLatencyRule())
        self._failing_cores = FailingCoreRule()
        self._orphans = OrphanedPodRule()
        self._kernel_errors = KernelErrorRule()
        self._findings: dict[tuple[object, ...], Finding] = {}
        self._keys: dict[int, tuple[object, ...]] = {}  # Finding.identity of each known finding, by id(finding)
        self._health: Health | None = None
        self._ended: deque[tuple[float, Process]] = deque(maxlen=_MOST_ENDED)  # end by CLOCK_MONOTONIC, oldest first
        self._processes: tuple[Process, ...] = ()  # those of the last tick, with their jobs
        self._healed = HealedProcesses()
        self._restarted_cores: CounterRestarts[NeuronCore] = CounterRestarts(lambda core: core.status)
        self._restarted_devices: CounterRestarts[Device] = CounterRestarts(lambda device: device.ecc)

    def mark_healed(self, processes: Mapping[ProcessIdentity, bool], at_seconds: float) -> None:
        """Lets the rules ignore the errors and latencies of these processes before the healing of their faults.

        `processes` has for each whether a fault corrupted its results.
        """
        self._healed.add(processes, at_seconds)
        self._failing_cores.forget_processes(processes)

    def evaluate(
        self,
        snapshot: Snapshot,
        ended: Iterable[Process] = (),
        logged: Iterable[KernelRecord] = (),
        unknown: Mapping[int, str] = NOTHING_UNKNOWN,
    ) -> Snapshot:
        """Returns the tick's snapshot with its findings.

        `ended` are the processes that ended since the last tick, `logged` the kernel log records since the last tick.
        `unknown` says, by device index, why the health of a device is unknown.
        """
        limits, now_seconds, published = self.limits, snapshot.taken_at_seconds, snapshot
        jobs = {process.pid: process.job for process in self._processes} if (new := tuple(ended)) else {}
        new = tuple(replace(process, job=process.job or jobs.get(process.pid)) for process in new)
        self._processes = snapshot.processes
        self._ended.extend((now_seconds, process) for process in new)
        while self._ended and now_seconds - self._ended[0][0] > limits.window_seconds:
            self._ended.popleft()
        gone = [process for _, process in self._ended]
        self._healed.forget_others((*snapshot.processes, *gone))
        since_healing = self._healed.count_since_healing
        snapshot = replace(snapshot, processes=tuple(map(since_healing, snapshot.processes)))
        context = build_rule_context(snapshot, self._anchors, limits, list(map(since_healing, gone)))
        self._update_restarts(snapshot)
        if self._anchors:
            began_seconds = self._anchors[0].taken_at_seconds
            context.cores_before.update(self._restarted_cores.since(began_seconds))
            context.devices.update(self._restarted_devices.since(began_seconds))
        found = chain(
            group_by_job(
                (finding for rule in self._rules for finding in rule(context)), (*context.ended, *snapshot.processes)
            ),
            self._failing_cores.update(snapshot, map(since_healing, new)),
            self._orphans.update(snapshot, limits.idle_seconds),
            self._kernel_errors.update(snapshot, logged, limits.window_seconds),
            self.diagnosis.findings(snapshot.taken_at_unix_seconds),
        )
        findings = self._with_begin_times(mark_injected(found, snapshot, self._healed.corrupted_pids))
        health = Health(evaluated_devices(snapshot), findings=findings).with_unknown(unknown)
        if health != self._health:  # an equal report keeps the old object, which is already serialized
            self._health = health
        spacing_seconds = limits.window_seconds / (_ANCHORS - 1)
        if not self._anchors or now_seconds - self._anchors[-1].taken_at_seconds >= spacing_seconds:
            self._anchors.append(snapshot)
        return replace(published, health=self._health)

    def carry_over(self, snapshot: Snapshot) -> Snapshot:
        """Adds the findings of the last tick to a snapshot between two ticks. Omits findings about ended processes.

        Keeps their errors, which the next tick reports too.
        """
        self._update_restarts(snapshot)
        if self._health is None:
            return snapshot
        pids = {process.pid for process in snapshot.processes}
        findings = tuple(
            finding
            for finding in self._health.findings
            if finding.pid is None or finding.pid in pids or finding.kind in ERROR_KINDS
        )
        if len(findings) == len(self._health.findings):
            return replace(snapshot, health=self._health)
        return replace(snapshot, health=replace(self._health, findings=findings))

    def _update_restarts(self, snapshot: Snapshot) -> None:
        at_seconds, is_simulated = snapshot.taken_at_seconds, snapshot.source is SourceKind.SIMULATED
        self._restarted_cores.update(snapshot.cores, at_seconds, none_is_zero=is_simulated)
        self._restarted_devices.update(snapshot.devices, at_seconds, none_is_zero=is_simulated)

    def _with_begin_times(self, found: Iterable[Finding]) -> tuple[Finding, ...]:
        """Returns the findings, the most severe first, each with the time when it began."""
        by_key: dict[tuple[object, ...], Finding] = {}
        for finding in found:
            key = self._keys.get(id(finding)) or finding.identity
            before = self._findings.get(key)
            if before is finding or before is None or finding.began_at_unix_seconds < before.began_at_unix_seconds:
                by_key[key] = finding
            elif _content(before) == _content(finding):
                by_key[key] = before
            else:
                by_key[key] = replace(finding, began_at_unix_seconds=before.began_at_unix_seconds)
        self._findings = by_key
        self._keys = {id(finding): key for key, finding in by_key.items()}
        return tuple(sorted(by_key.values(), key=lambda finding: -finding.severity))


_content = attrgetter(
    *("severity", "reason", "action", "device_indices", "pid", "pids", "neuroncore_index", "synthetic", "injected")
)


def evaluated_devices(snapshot: Snapshot) -> tuple[int, ...]:
    """Returns the indices of the devices that exist or should exist."""
    indices = {device.index for device in snapshot.devices}
    return tuple(sorted(indices.union(snapshot.instance.expected_device_indices)))


_log = logging.getLogger(__name__)
_REPEAT_SECONDS = 600.0  # a finding that ends and returns within this time is not logged again
_MOST_LINES = 16  # most findings logged per snapshot, so that a failing host does not fill the log


class FindingLogger:
    """Logs new findings and warnings. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._logged_at_seconds: dict[object, float] = {}

    def log_new(self, snapshot: Snapshot) -> None:
        """Logs the findings and warnings that no snapshot of the last ten minutes had."""
        now_seconds = snapshot.taken_at_seconds
        logged_at = self._logged_at_seconds
        new = []
        for warning in snapshot.warnings:
            key = strip_durations(warning)
            if key not in logged_at:
                new.append(warning)
            logged_at[key] = now_seconds
        for finding in snapshot.health.findings if snapshot.health is not None else ():
            if finding.severity > Severity.NOTICE:
                if finding.identity not in logged_at:
                    new.append(_line(finding))
                logged_at[finding.identity] = now_seconds
        for line in new[:_MOST_LINES]:
            _log.warning("%s", line)
        if len(new) > _MOST_LINES:
            _log.warning("and %d more; neuron-ls --health shows all", len(new) - _MOST_LINES)
        old = now_seconds - _REPEAT_SECONDS
        self._logged_at_seconds = {key: at for key, at in logged_at.items() if at > old}


def _line(finding: Finding) -> str:
    indices = finding.device_indices
    place = f"device{'s' if len(indices) > 1 else ''} {ranges_text(indices)}" if indices else "host"
    return f"{place}: {finding.severity.name.lower()}: {marked_reason(finding)}; {finding.action}"


class FindingDiff:
    """Compares the findings of two ticks. At the first tick all findings begin."""

    def __init__(self) -> None:
        self._health: Health | None = None
        self._findings: dict[tuple[object, ...], Finding] = {}

    def update(self, health: Health | None) -> tuple[list[Finding], list[Finding]]:
        """Returns the findings that began, and the last state of those that ended."""
        if health is self._health:
            return [], []
        now = {finding.identity: finding for finding in health.findings} if health is not None else {}
        began = [finding for identity, finding in now.items() if identity not in self._findings]
        ended = [finding for identity, finding in self._findings.items() if identity not in now]
        self._health, self._findings = health, now
        return began, ended


def mark_injected(
    found: Iterable[Finding], snapshot: Snapshot, corrupted_pids: Collection[int] = ()
) -> Iterator[Finding]:
    """Marks a finding as injected if an injected fault on the same device causes findings of this kind.

    Also marks numerical errors of the processes in which a healed fault may have left NaN.
    """
    if not snapshot.injected_faults and not corrupted_pids:
        yield from found
        return
    caused = {
        (finding, device_index)
        for fault in snapshot.injected_faults
        if fault.state is not FaultState.WAITING and fault.kind in KINDS
        for finding in KINDS[fault.kind].findings
        for device_index in fault.device_indices
    }
    devices = {process.pid: process.device_indices for process in snapshot.processes}
    for finding in found:
        indices = finding.device_indices or (devices.get(finding.pid, ()) if finding.pid is not None else ())
        is_caused = any((finding.kind, index) in caused for index in indices) or (
            finding.kind == FindingKind.NUMERICAL_ERRORS and any(pid in corrupted_pids for pid in finding.pids)
        )
        yield replace(finding, injected=True) if is_caused else finding


def group_by_job(found: Iterable[Finding], processes: Sequence[Process]) -> Iterator[Finding]:
    """Merges findings of one kind and part about several processes of a job into one about the first process."""
    jobs: dict[int, str] | None = None
    alike: dict[tuple[str, str | None, str], list[Finding]] = {}
    for finding in found:
        if finding.pid is None or finding.job is not None:
            yield finding
            continue
        if jobs is None:
            jobs = _jobs(processes)
        job = jobs.get(finding.pid)
        if job is None:
            yield finding
        else:
            alike.setdefault((finding.kind, finding.part, job), []).append(finding)
    for (_, _, job), findings in alike.items():
        yield findings[0] if len(findings) == 1 else _merge(findings, job)


def _jobs(processes: Sequence[Process]) -> dict[int, str]:
    """Returns the job name of each process, by PID."""
    groups = [(processes[0].job, processes) for processes in group_processes_by_job(processes)]
    return {process.pid: job.name for job, processes in groups if job is not None for process in processes}


def _merge(findings: list[Finding], job: str) -> Finding:
    first = findings[0]
    more = len(findings) - 1
    return replace(
        first,
        severity=max(finding.severity for finding in findings),
        reason=f"{first.reason}; so {'does' if more == 1 else 'do'} {more} more of {job}",
        began_at_unix_seconds=min(finding.began_at_unix_seconds for finding in findings),
        device_indices=tuple(sorted({index for finding in findings for index in finding.device_indices})),
        pids=tuple(sorted({pid for finding in findings for pid in finding.pids})),
        neuroncore_index=None,
        job=job,
    )
