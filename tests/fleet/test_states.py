"""Which host is worst, and jobs over hosts."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

from pydantic import TypeAdapter

from neurontools.fleet.document import FleetDocument, csv_text, document, text_of
from neurontools.fleet.hosts import Place, Reach
from neurontools.fleet.jobs import fleet_jobs
from neurontools.fleet.states import HostState, by_name, worst_first
from neurontools.fleet.summary_job import SummaryJob
from neurontools.model import Finding, Health, Severity, Snapshot
from tests.harness.fleet import live, lost
from tests.harness.snapshots import snapshot_of

WELL = replace(snapshot_of("trn1.2xlarge"), health=Health((0,)))


def sick(severity: Severity) -> Snapshot:
    finding = Finding("stuck", severity, "=1+1 stands still", "end it", 1.7e9, device_indices=(0,))
    return replace(WELL, health=Health((0,), (), (finding,)))


def names(states: list[HostState]) -> list[str]:
    return [state.place.name for state in states]


def test_worst_first() -> None:
    states = [
        live("well-10", WELL),
        live("well-2", WELL),
        live("notice", sick(Severity.NOTICE)),
        HostState(Place("waiting", Reach.SSH, "waiting")),
        live("unjudged", replace(WELL, health=None)),
        live("warning", sick(Severity.WARNING)),
        lost("lost", "gone", live("lost", sick(Severity.CRITICAL))),
        live("critical", sick(Severity.CRITICAL)),
    ]
    assert names(worst_first(states)) == [
        "critical", "lost", "warning", "unjudged", "waiting", "notice", "well-2", "well-10",
    ]  # fmt: skip
    assert names(by_name(states))[-2:] == ["well-2", "well-10"]


def job(name: str | None, cores: int, steps: float | None = None) -> SummaryJob:
    run_id = "0123456789ab" if name is not None and name.startswith("Slurm") else None
    return SummaryJob(name, cores, cores, 8, 0.5, steps, None, Severity.OK, run_id)


def test_jobs_of_slurm_go_over_hosts_and_others_stay_on_theirs() -> None:
    states = [
        live("a", WELL, jobs=(job("Slurm job 17", 2, 3.0), job("process group 9", 1), job(None, 1))),
        live("b", WELL, jobs=(job("Slurm job 17", 4, 2.0), job("process group 9", 1))),
        lost("c", "gone", live("c", WELL, jobs=(job("Slurm job 17", 2),))),
    ]
    found = fleet_jobs(states)
    assert [(one.name, one.host_names, one.neuroncore_count) for one in found] == [
        ("Slurm job 17", ("a", "b"), 6),
        ("process group 9", ("a",), 1),
        ("process group 9", ("b",), 1),
    ]
    assert (found[0].steps_per_second, found[0].world_size, found[0].utilization_ratio) == (2.0, 8, 0.5)


def test_the_document_is_by_its_schema_and_says_nothing_that_is_not_known() -> None:
    states = [live("a", sick(Severity.CRITICAL), 90.0), lost("b", "gone")]
    made = document(states, 100.0, 1.7e9, ("hosts:3: wrong",), jobs=())
    read = json.loads(text_of(made))
    TypeAdapter(FleetDocument).validate_python(read)
    a, b = read["hosts"]
    assert (a["age_seconds"], a["health"], a["findings"][0]["severity"]) == (10.0, "critical", "critical")
    assert (b["link"], b["trouble"], b["health"], b["neuroncore_count"], b["devices"]) == (
        "lost",
        "gone",
        None,
        None,
        [],
    )
    assert read["troubles"] == ["hosts:3: wrong"]


def test_whose_jobs_they_are_is_told_of_hosts_jobs_and_groups() -> None:
    job = SummaryJob(
        "train", 2, 1, 1, None, None, None, Severity.OK, "0123456789ab", users=("ada", "@bob"), user_count=2
    )
    a = live("a", sick(Severity.OK), jobs=(job,), job_count=4, further_users=("eve",), user_count=5)
    states = [a, lost("b", "gone")]
    made = document(states, 100.0, 1.7e9, group_by="user", jobs=fleet_jobs(states))
    read = json.loads(text_of(made))
    of_a, of_b = read["hosts"]
    assert (of_a["users"], of_a["user_count"]) == (["ada", "@bob", "eve"], 5)
    assert [(told["users"], told["user_count"]) for told in of_a["jobs"]] == [(["ada", "@bob"], 2)]
    assert (of_b["users"], of_b["user_count"]) == ([], None)
    assert [told["users"] for told in read["jobs"]] == [["ada", "@bob"]]
    assert {group["value"]: group["hosts"] for group in read["groups"]} == {
        "ada": ["a"],
        "@bob": ["a"],
        "eve": ["a"],
        "user unknown": ["a", "b"],
    }
    first, second = csv.DictReader(io.StringIO(csv_text(None) + csv_text(made)))
    assert (first["users"], first["user_count"]) == ("ada @bob eve", "5")
    assert (second["users"], second["user_count"]) == ("", "")


def test_csv_is_a_line_a_host_and_no_formula() -> None:
    made = document([live("a", sick(Severity.CRITICAL)), lost("b", "gone")], 100.0, 1.7e9, jobs=())
    header, a, b = csv.reader(io.StringIO(csv_text(None) + csv_text(made)))
    assert dict(zip(header, a, strict=True))["worst"] == "'=1+1 stands still"
    assert dict(zip(header, b, strict=True))["neuroncore_count"] == ""
