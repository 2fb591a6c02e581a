"""Jobs as a real Prometheus joins them over hosts: the same by our rules and without them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from neurontools.fleet.jobs import FleetJob, SlowFleetRank, StepSeconds
from neurontools.fleet.models import FleetModel
from neurontools.fleet.prometheus.feed import PrometheusFeed
from neurontools.fleet.prometheus.queries import MOST_JOBS
from neurontools.model import Severity
from tests.harness.answering_server import ReceivedRequest, Reply, answering
from tests.harness.prometheus_server import Prometheus, needs_prometheus
from tests.harness.waiting import HANG_SECONDS, wait_until

pytestmark = [needs_prometheus, pytest.mark.slow]
RUN, STUCK_RUN = "0123456789ab", "ba9876543210"


def part(name: str, run_id: str, state: str, *, ranks: int = 2, waits: dict[int, float] | None = None) -> str:
    """What a host tells of its part of a job of four ranks."""
    job = f'job_name="{name}",run_id="{run_id}"'
    told: dict[str, float] = {"ranks": ranks, "world_size": 4, "neuroncores": 2 * ranks}
    if state == "training":
        told |= {"steps_per_second": 2, "step_seconds": 0.5, "mfu_ratio": 0.25, "seconds_since_last_step": 1}
    lines = [f"neurontools_job_{metric}{{{job}}} {value}" for metric, value in told.items()]
    lines.append(f'neurontools_job_state{{{job},state="{state}"}} 1')
    for rank, wait in (waits or {}).items():
        lines.append(f'neurontools_job_rank_collective_wait_seconds{{{job},rank="{rank}"}} {wait}')
    return "\n".join([*lines, ""])


def model(name: str, **told: float) -> str:
    values = {"queue_depth": 0, **told}
    return "".join(f'neurontools_host_model_{metric}{{model="{name}"}} {each}\n' for metric, each in values.items())


FINDING = (
    'neurontools_finding_seconds{finding="stuck",severity="critical",job_name="torchrun b",neuron_devices="0"} 9\n'
)
HOSTS = (
    "neurontools_health 0\n"
    + part("torchrun a", RUN, "training", waits={0: 0.2, 1: 0.2})
    + part("own", "", "starting")
    + model(
        "llm",
        neuroncores=2,
        requests_per_second=30,
        queue_wait_seconds=0.001,
        request_p99_seconds=0.5,
        memory_bytes=4096,
    )
    + model("idle"),
    "neurontools_health 3\n"
    + FINDING
    + part("torchrun a", RUN, "training", waits={2: 0.2, 3: 0.05})
    + part("torchrun b", STUCK_RUN, "stuck", ranks=1)
    + model(
        "llm", neuroncores=2, requests_per_second=10, queue_wait_seconds=0.005, request_p99_seconds=0.25, queue_depth=3
    ),
)
MODELS = (
    FleetModel("llm", 4, 40.0, 0.5, 3, 0.002, 4096, host_count=2),
    FleetModel("idle", None, None, None, 0, None, None, host_count=1),
)


@contextmanager
def telling(texts: tuple[str, ...], directory: Path) -> Iterator[Path]:
    """A file of targets, each of which tells its text as a neurond would."""

    def reply(asked: ReceivedRequest) -> Reply:
        text = f"{texts[int(asked.path[1:])]}neurontools_snapshot_timestamp_seconds {time.time()}\n"
        return Reply(text.encode(), headers={"Content-Type": "text/plain; version=0.0.4"})

    with answering(reply) as (url, _):
        targets = [
            {
                "targets": [url.removeprefix("http://")],
                "labels": {"instance": f"trn-{at}:8000", "__metrics_path__": f"/{at}"},
            }
            for at in range(len(texts))
        ]
        file = directory / "targets.json"
        file.write_text(json.dumps(targets))
        yield file


def asked(server: Prometheus) -> tuple[tuple[FleetJob, ...], tuple[str, ...], dict[str, str], tuple[FleetModel, ...]]:
    with PrometheusFeed(server.url) as feed:
        feed.start()
        assert feed.wait_settled(HANG_SECONDS)
        assert feed.query_count <= 10
        return feed.jobs, feed.notes, feed.query_texts, feed.models


@pytest.mark.parametrize("rules", [True, False])
def test_jobs_are_told_with_and_without_our_rules(tmp_path: Path, *, rules: bool) -> None:
    with (
        telling(HOSTS, tmp_path) as targets,
        Prometheus(tmp_path, file_sd=targets, rules=rules, interval="1s") as server,
    ):

        def look() -> dict[str, FleetJob] | None:
            jobs, notes, texts, models = asked(server)
            assert not [note for note in notes if "jobs" in note]
            found = {job.name: job for job in jobs}
            is_whole = len(found) == 3 and found["torchrun a"].host_count == 2 and found["torchrun a"].slow_rank
            return found if is_whole and models == MODELS and ("run:" in texts["jobs"]) is rules else None

        found = wait_until(look)
    trained = found["torchrun a"]
    assert (trained.run_id, trained.host_names, trained.host_count) == (RUN, (), 2)
    assert (trained.rank_count, trained.world_size) == (4, 4)
    assert (trained.neuroncore_count, trained.missing_rank_count) == (8, 0)
    assert (trained.state, trained.state_seconds, trained.steps_per_second) == ("training", 1.0, 2.0)
    assert (trained.mfu_ratio, trained.step_seconds) == (0.25, StepSeconds(None, 0.5, None))
    assert (trained.severity, trained.utilization_ratio) == (Severity.OK, None)
    slow = trained.slow_rank
    assert slow is not None
    assert slow == SlowFleetRank(3, "trn-1:8000", None, None, slow.gain_seconds, slow.gain_ratio)
    assert (round(slow.gain_seconds, 6), round(slow.gain_ratio, 6)) == (0.15, 0.3)
    stuck, own = found["torchrun b"], found["own"]
    assert (stuck.state, stuck.severity) == ("stuck", Severity.CRITICAL)
    assert (stuck.rank_count, stuck.missing_rank_count) == (1, 3)
    assert (stuck.steps_per_second, stuck.mfu_ratio, stuck.step_seconds, stuck.state_seconds) == (None,) * 4
    assert (own.run_id, own.host_names, own.state, own.severity) == (None, ("trn-0:8000",), "starting", Severity.OK)


def test_of_many_jobs_the_worst_and_largest_are_told(tmp_path: Path) -> None:
    well = "".join(part(f"job {at}", "", "training", ranks=4) for at in range(MOST_JOBS + 20))
    with (
        telling((well + part("small", RUN, "stuck", ranks=1),), tmp_path) as targets,
        Prometheus(tmp_path, file_sd=targets, rules=False, interval="1s") as server,
    ):
        jobs, notes, _, _ = wait_until(lambda: found if (found := asked(server))[0] else None)
    assert len(jobs) == MOST_JOBS
    assert "small" in {job.name for job in jobs}
    assert f"of {MOST_JOBS + 21} jobs the {MOST_JOBS} that are worst or largest are shown" in notes
