"""A process in the document of neuron-top: its cores, its work, its training, its models."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model import OperatorTime, ScriptAdvice
from neurontools.util.units import optional_rfc3339_text
from neurontools.views.drawing.figures import ProcessFigures
from neurontools.views.top.training import TopTraining, training_part


@dataclass(frozen=True, slots=True)
class TopModel:
    """One loaded model."""

    model_id: int
    name: str
    uuid: str
    is_running: bool
    neuroncores: tuple[int, ...]
    device_memory_bytes: int | None
    executions_total: int
    busy_seconds_total: float | None
    busy_ratio: float | None  # of the last seconds


@dataclass(frozen=True, slots=True)
class TopProcess:
    """One process that holds NeuronCores or uses the runtime."""

    pid: int
    user: str | None
    uid: int | None
    tag: str
    command: str
    is_synthetic: bool
    is_reporting: bool
    neuroncores: tuple[int, ...]
    are_neuroncores_inferred: bool
    neuron_devices: tuple[int, ...]
    utilization_ratio: float | None
    flops_per_second: float | None
    mfu_ratio: float | None
    device_memory_bytes: int | None
    host_memory_bytes: int | None
    resident_bytes: int | None
    vcpu_user_ratio: float | None
    vcpu_system_ratio: float | None
    executions_per_second: float | None
    latency_p50_seconds: float | None
    latency_p99_seconds: float | None
    executions_completed_total: int | None
    executions_failed_total: int | None
    errors_total: int | None
    since_last_execution_seconds: float | None
    started_at: str | None
    attached_at: str | None
    job: str | None
    training: TopTraining | None
    operators: tuple[OperatorTime, ...]  # the kinds that take most, then the rest, named ""
    advice: tuple[ScriptAdvice, ...]  # of its runtime, what costs most first
    models: tuple[TopModel, ...]


def process_part(figures: ProcessFigures, now_seconds: float) -> TopProcess:
    """What the document has of a process; `now_seconds` is CLOCK_MONOTONIC of its host."""
    process = figures.process
    latency = process.total_latency
    return TopProcess(
        pid=process.pid,
        user=process.user,
        uid=process.uid,
        tag=process.tag,
        command=process.command,
        is_synthetic=process.synthetic,
        is_reporting=process.reporting,
        neuroncores=process.neuroncore_indices,
        are_neuroncores_inferred="core_indices" in process.inferred_fields,
        neuron_devices=process.device_indices,
        utilization_ratio=figures.utilization_ratio,
        flops_per_second=figures.flops_per_second,
        mfu_ratio=figures.mfu_ratio,
        device_memory_bytes=figures.device_memory_bytes,
        host_memory_bytes=figures.host_memory_bytes,
        resident_bytes=process.resident_bytes,
        vcpu_user_ratio=process.vcpu_user_ratio,
        vcpu_system_ratio=process.vcpu_system_ratio,
        executions_per_second=process.executions_per_second,
        latency_p50_seconds=None if latency is None else latency.p50_seconds,
        latency_p99_seconds=None if latency is None else latency.p99_seconds,
        executions_completed_total=None if process.executions is None else process.executions.completed_total,
        executions_failed_total=figures.failed_executions_total,
        errors_total=figures.errors_total,
        since_last_execution_seconds=figures.since_last_execution_seconds,
        started_at=optional_rfc3339_text(process.started_at_unix_seconds),
        attached_at=optional_rfc3339_text(process.attached_at_unix_seconds),
        job=None if process.job is None else process.job.name,
        training=training_part(process, now_seconds),
        operators=process.operators,
        advice=process.advice,
        models=tuple(
            TopModel(
                model.model_id,
                model.name,
                model.uuid,
                model.running,
                tuple(sorted({part.neuroncore_index for part in model.subgraphs})),
                sum(part.device_memory.total_bytes or 0 for part in model.subgraphs),
                model.executions_total,
                model.busy_seconds_total,
                model.busy_ratio,
            )
            for model in process.models
        ),
    )
