"""Families of jobs: what Prometheus joins over hosts by run, bounded, and silent about what is not known."""

from __future__ import annotations

from dataclasses import replace

from neurontools.exporters.exposition import LabelTexts, encode_text
from neurontools.exporters.neurontools_families import job_families
from neurontools.fleet.summary import summarize_host
from neurontools.model import Job, Process, RecentSteps, Snapshot, TrainingCounters, TrainingRates
from neurontools.model.jobs import running_jobs
from neurontools.model.process import STEP_PARTS, WAIT_PART
from tests.harness.snapshots import rank_of, snapshot_of

RUN = "0123456789ab"


def rank(number: int, job: Job, wait: float | None = 0.25) -> Process:
    parts = [0.0] * len(STEP_PARTS)
    parts[0], parts[WAIT_PART] = 0.5, wait or 0.0
    return rank_of(
        number,
        job,
        training=TrainingCounters(steps_total=50, last_step_at_seconds=0.5),
        training_rates=TrainingRates(steps_per_second=1.25),
        recent_steps=None if wait is None else RecentSteps(16, tuple(parts), wait, wait),
    )


def told(*ranks: Process) -> list[str]:
    snapshot: Snapshot = replace(snapshot_of("trn1.32xlarge", list(ranks)), taken_at_seconds=3.0)
    text = encode_text(job_families(running_jobs(snapshot), snapshot, None, LabelTexts())).decode()
    count, *lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert count == f"neurontools_jobs {len(running_jobs(snapshot))}"
    return [line.removeprefix("neurontools_job_") for line in lines]


def test_a_job_of_several_hosts_tells_its_part_with_its_run() -> None:
    ranks = [rank(number, Job("torchrun exp1", number, 8, RUN, 4, 4)) for number in (4, 5, 7)]
    labels = f'job_name="torchrun exp1",run_id="{RUN}"'
    assert told(*ranks) == [
        f"ranks{{{labels}}} 3",
        f"world_size{{{labels}}} 8",
        f"missing_ranks{{{labels}}} 1",
        f"neuroncores{{{labels}}} 3",
        f'state{{{labels},state="training"}} 1',
        f"seconds_since_last_step{{{labels}}} 2.5",
        f"steps_per_second{{{labels}}} 1.25",
        f"step_seconds{{{labels}}} 0.75",
        *(
            f'rank_collective_wait_seconds{{job_name="torchrun exp1",rank="{number}",run_id="{RUN}"}} 0.25'
            for number in (4, 5, 7)
        ),
    ]


def test_jobs_are_counted_as_summaries_count_them_and_none_is_0() -> None:
    alone = replace(rank(7, Job("process group 7")), job=None)
    of_two = [rank(number, Job("process group 9")) for number in (1, 2)]
    for processes, count in (([], 0), ([alone], 1), ([alone, *of_two], 2)):
        snapshot = snapshot_of("trn1.32xlarge", processes)
        text = encode_text(job_families(running_jobs(snapshot), snapshot, None, LabelTexts())).decode()
        assert f"\nneurontools_jobs {count}\n" in text
        assert summarize_host(snapshot, "a").job_count == count


def test_what_works_alone_is_no_job_and_what_is_not_known_has_no_sample() -> None:
    assert told(rank(0, Job("process group 7"))) == []
    silent = [replace(rank(number, Job("process group 7"), None), training=None) for number in range(2)]
    names = {line.partition("{")[0] for line in told(*silent)}
    assert names == {"ranks", "missing_ranks", "neuroncores", "state"}


def test_of_many_jobs_the_largest_are_told() -> None:
    ranks = [rank(number, Job(f"process group {number // 2}")) for number in range(200)]
    lines = told(*ranks)
    assert sum(line.startswith("ranks{") for line in lines) == 32
