"""Jobs of a snapshot: who works together, and what they do together."""

from __future__ import annotations

from dataclasses import replace

from neurontools.model import (
    DeviceMemory,
    Finding,
    Health,
    NeuronCore,
    Process,
    Severity,
    Snapshot,
    TrainingCounters,
    TrainingRates,
)
from neurontools.model.attribution import Job
from neurontools.model.jobs.running_job import RunningJob, jobs
from tests.harness.snapshots import process_of, snapshot_of

SECONDS = 50.0


def rank(
    number: int,
    *,
    steps_per_second: float | None = 20.0,
    steps_total: int = 1000,
) -> Process:
    """A rank on the core of its number, which has counted for 50 s."""
    held = (number,)
    return replace(
        process_of(100 + number, "python train.py", (0,)),
        core_indices=held,
        neuroncore_indices=held,
        job=Job("Slurm job 7", number, 8),
        reporting=True,
        measured_at_seconds=1000.0,
        counted_since_seconds=1000.0 - SECONDS,
        training=TrainingCounters(steps_total=steps_total),
        training_rates=TrainingRates(steps_per_second=steps_per_second),
    )


def host(*processes: Process, busy: tuple[float | None, ...] = ()) -> Snapshot:
    empty = snapshot_of("trn1.32xlarge", list(processes))
    cores = list(empty.cores)
    for position, ratio in enumerate(busy):
        cores[position] = core(cores[position], ratio)
    return replace(empty, cores=tuple(cores))


def core(before: NeuronCore, ratio: float | None) -> NeuronCore:
    return replace(
        before, owner_pid=100, utilization_ratio=ratio, flops_per_second=1e12, memory=DeviceMemory(tensors_bytes=1000)
    )


def only(snapshot: Snapshot) -> RunningJob:
    (job,) = jobs(snapshot)
    return job


def test_ranks_of_one_name_are_one_job_by_rank_and_others_are_alone() -> None:
    alone = replace(process_of(7, "serve", (4,)), core_indices=(8,), neuroncore_indices=(8,))
    watching = replace(process_of(9, "neuron-monitor", (0,)), runtime_version=None)
    first, second = jobs(host(alone, watching, rank(1), rank(0)))
    assert (first.name, [each.process.pid for each in first.ranks], first.is_several) == (None, [7], False)
    assert (second.name, [each.number for each in second.ranks], second.world_size) == ("Slurm job 7", [0, 1], 8)
    assert second.neuroncore_indices == (0, 1)


def test_a_job_adds_up_its_cores_and_has_the_steps_of_its_slowest_rank() -> None:
    job = only(host(rank(0), rank(1, steps_per_second=19.0), busy=(0.5, 1.0)))
    assert job.utilization_ratio == 0.75
    assert job.flops_per_second == 2e12
    assert job.device_memory_bytes == 2000
    assert job.steps_per_second == 19.0


def test_what_is_not_known_is_none() -> None:
    silent = replace(rank(0), training=None, training_rates=None)
    job = only(host(silent, busy=(None,)))
    assert (job.utilization_ratio, job.steps_per_second) == (None, None)
    assert job.last_execution_at_unix_seconds is None


def test_a_job_has_the_findings_on_its_processes() -> None:
    mine = Finding("stuck", Severity.CRITICAL, "reason", "action", 0.0, (0,), 100, (100, 101))
    other = Finding("idle", Severity.NOTICE, "reason", "action", 0.0, (4,), 7, (7,))
    of_device = Finding("ecc_corrected", Severity.WARNING, "reason", "action", 0.0, (0,))
    alone = replace(process_of(7, "serve", (4,)), core_indices=(8,), neuroncore_indices=(8,))
    judged = replace(host(alone, rank(0), rank(1)), health=Health(findings=(mine, of_device, other)))
    assert [job.findings for job in jobs(judged)] == [(other,), (mine,)]
