"""Snapshots by the clock of the host, where that was set since the daemon began."""

from __future__ import annotations

from dataclasses import replace

from neurontools.model import EndedProcess, Finding, Health, InjectedFault, LoadedModel, NeuronCore, Process, Snapshot


def by_wall_clock(snapshot: Snapshot, moved_seconds: float) -> Snapshot:
    """The snapshot with all its moments so much later, the ages being the same; itself where the clock has not moved.

    Moments that the driver tells are by the host's clock already.
    """
    if not moved_seconds:
        return snapshot

    def moved(at_unix_seconds: float | None) -> float | None:
        return _moved(at_unix_seconds, moved_seconds)

    def core(one: NeuronCore) -> NeuronCore:
        started, last = one.execution_started_at_unix_seconds, one.last_execution_at_unix_seconds
        if started is None and last is None:
            return one
        return replace(
            one, execution_started_at_unix_seconds=moved(started), last_execution_at_unix_seconds=moved(last)
        )

    def model(one: LoadedModel) -> LoadedModel:
        return replace(one, last_execution_at_unix_seconds=moved(one.last_execution_at_unix_seconds))

    def process(one: Process) -> Process:
        return replace(
            one,
            started_at_unix_seconds=moved(one.started_at_unix_seconds),
            attached_at_unix_seconds=moved(one.attached_at_unix_seconds),
            models=tuple(map(model, one.models)),
        )

    def finding(one: Finding) -> Finding:
        return replace(one, began_at_unix_seconds=max(0.0, one.began_at_unix_seconds + moved_seconds))

    def health(judged: Health) -> Health:
        return replace(judged, findings=tuple(map(finding, judged.findings)))

    return replace(
        snapshot,
        taken_at_unix_seconds=snapshot.taken_at_unix_seconds + moved_seconds,
        cores=tuple(map(core, snapshot.cores)),
        processes=tuple(map(process, snapshot.processes)),
        health=None if snapshot.health is None else health(snapshot.health),
        injected_faults=tuple(fault_by_wall_clock(fault, moved_seconds) for fault in snapshot.injected_faults),
    )


def fault_by_wall_clock(fault: InjectedFault, moved_seconds: float) -> InjectedFault:
    """An injected fault, its moments so much later."""
    return replace(
        fault,
        injected_at_unix_seconds=max(0.0, fault.injected_at_unix_seconds + moved_seconds),
        began_at_unix_seconds=_moved(fault.began_at_unix_seconds, moved_seconds),
        ended_at_unix_seconds=_moved(fault.ended_at_unix_seconds, moved_seconds),
    )


def ended_by_wall_clock(ended: EndedProcess, moved_seconds: float) -> EndedProcess:
    """What has just ended, its moments so much later: in a log they stay as the clock of the host showed them."""
    if not moved_seconds:
        return ended
    return replace(
        ended,
        began_at_unix_seconds=max(0.0, ended.began_at_unix_seconds + moved_seconds),
        ended_at_unix_seconds=max(0.0, ended.ended_at_unix_seconds + moved_seconds),
    )


def _moved(at_unix_seconds: float | None, moved_seconds: float) -> float | None:
    return None if at_unix_seconds is None else max(0.0, at_unix_seconds + moved_seconds)
