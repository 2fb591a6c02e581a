"""One process as the snapshot shows it: what the ledger knows of it and what the operating system does."""

from __future__ import annotations

from dataclasses import replace

from neurond.ownership.holding import CoreReport, Holding
from neurond.ownership.shape import Shape
from neurond.system.processes import ProcessFacts
from neurontools.model import CoreWork, LoadedModel, Process

# A process is silent when this many intervals passed without a report; one late report is no news.
_SILENT_INTERVALS = 3.0
_SILENT_SECONDS = 3.0


def process_record(
    holding: Holding, facts: ProcessFacts, shape: Shape, now_seconds: float, interval_seconds: float
) -> Process:
    """The process of a holding at `now_seconds` of CLOCK_MONOTONIC; its rates are still unknown."""
    report = holding.report
    identity = Process(
        pid=holding.pid,
        uid=holding.uid,
        user=facts.user,
        command=facts.command,
        tag=holding.tag,
        runtime_version=holding.runtime_version,
        started_at_unix_seconds=facts.started_at_unix_seconds,
        attached_at_unix_seconds=holding.attached_at_unix_seconds,
        synthetic=holding.synthetic,
        logical_neuroncore_config=holding.lnc,
        core_indices=tuple(holding.physical_cores()),
        neuroncore_indices=tuple(holding.logical_cores),
        device_indices=holding.devices(shape),
        resident_bytes=facts.resident_bytes,
        cpu_user_seconds_total=facts.cpu_user_seconds_total,
        cpu_system_seconds_total=facts.cpu_system_seconds_total,
        job=facts.job,
    )
    if report is None:
        return identity
    patience_seconds = max(_SILENT_SECONDS, _SILENT_INTERVALS * interval_seconds)
    return replace(
        identity,
        host_memory=report.host_memory,
        models=tuple(_placed(loaded, holding, shape) for loaded in report.models),
        executions=report.executions,
        errors=report.errors,
        total_latency_histogram=report.total_latency_histogram,
        device_latency_histogram=report.device_latency_histogram,
        training=report.training,
        operators=report.operators,
        advice=report.advice,
        counted_since_seconds=report.counted_since_seconds,
        core_work=_work(holding) if report.counted_since_seconds is not None else (),
        measured_at_seconds=report.measured_at_seconds,
        reporting=now_seconds - report.measured_at_seconds <= patience_seconds,
    )


def _work(holding: Holding) -> tuple[CoreWork, ...]:
    """What it has counted on each of its cores; () while it has told of none."""
    if not holding.cores:
        return ()
    reports = (holding.cores.get(local_index, _NOTHING) for local_index in range(holding.count))
    return tuple(CoreWork(report.busy_seconds_total, report.flop_total) for report in reports)


_NOTHING = CoreReport()


def _placed(loaded: LoadedModel, holding: Holding, shape: Shape) -> LoadedModel:
    """A model with its subgraphs on the host's cores instead of the process's own."""
    return replace(
        loaded,
        subgraphs=tuple(
            replace(
                subgraph,
                neuroncore_index=holding.first + subgraph.neuroncore_index,
                device_index=shape.device_of((holding.first + subgraph.neuroncore_index) * holding.lnc),
            )
            for subgraph in loaded.subgraphs
        ),
    )
