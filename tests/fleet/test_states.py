"""Which host is worst, hosts in groups by user, and a host under two names."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from neurontools.fleet.document import FleetDocument, csv_text, document, document_json
from neurontools.fleet.feed import DirectFeed
from neurontools.fleet.hosts import HostAddress, Reach
from neurontools.fleet.jobs import fleet_jobs
from neurontools.fleet.states import (
    USER,
    HostState,
    by_name,
    deduplicate_hosts,
    group_hosts,
    grouping_choices,
    worst_first,
)
from neurontools.fleet.summary import SummaryJob
from neurontools.model import Finding, Health, Severity, Snapshot, SourceKind
from neurontools.testing import DriverTree
from tests.harness.fleet import live, lost
from tests.harness.running_daemon import StartDaemon
from tests.harness.snapshots import snapshot_of
from tests.harness.waiting import HANG_SECONDS

WELL = replace(snapshot_of("trn1.2xlarge"), health=Health((0,)))


def sick(severity: Severity) -> Snapshot:
    finding = Finding("stuck", severity, "=1+1 stands still", "end it", 1.7e9, device_indices=(0,))
    return replace(WELL, health=Health((0,), (), (finding,)))


def names(states: Sequence[HostState]) -> list[str]:
    return [state.place.name for state in states]


def test_worst_first() -> None:
    states = [
        live("well-10", WELL),
        live("well-2", WELL),
        live("notice", sick(Severity.NOTICE)),
        HostState(HostAddress("waiting", Reach.SSH, "waiting")),
        live("unjudged", replace(WELL, health=None)),
        live("warning", sick(Severity.WARNING)),
        lost("lost", "gone", live("lost", sick(Severity.CRITICAL))),
        live("critical", sick(Severity.CRITICAL)),
    ]
    assert names(worst_first(states)) == [
        "critical", "lost", "warning", "unjudged", "waiting", "notice", "well-2", "well-10",
    ]  # fmt: skip
    assert names(by_name(states))[-2:] == ["well-2", "well-10"]


def slurm_job(name: str | None, cores: int, steps: float | None = None) -> SummaryJob:
    run_id = "0123456789ab" if name is not None and name.startswith("Slurm") else None
    return SummaryJob(name, cores, cores, 8, 0.5, steps, None, Severity.OK, run_id)


def test_jobs_of_slurm_go_over_hosts_and_others_stay_on_theirs() -> None:
    states = [
        live("a", WELL, jobs=(slurm_job("Slurm job 17", 2, 3.0), slurm_job("process group 9", 1), slurm_job(None, 1))),
        live("b", WELL, jobs=(slurm_job("Slurm job 17", 4, 2.0), slurm_job("process group 9", 1))),
        lost("c", "gone", live("c", WELL, jobs=(slurm_job("Slurm job 17", 2),))),
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
    made = document(states, 100.0, 1.7e9, ("hosts:3: wrong",), jobs=(), models=())
    read = json.loads(document_json(made))
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
    jobs = (job("ada", "@bob", run_id="0123456789ab"),)
    a = live("a", sick(Severity.OK), jobs=jobs, job_count=4, further_users=("eve",), user_count=5)
    states = [a, lost("b", "gone")]
    made = document(states, 100.0, 1.7e9, group_by="user", jobs=fleet_jobs(states), models=())
    read = json.loads(document_json(made))
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
    made = document([live("a", sick(Severity.CRITICAL)), lost("b", "gone")], 100.0, 1.7e9, jobs=(), models=())
    header, a, b = csv.reader(io.StringIO(csv_text(None) + csv_text(made)))
    assert dict(zip(header, a, strict=True))["worst"] == "'=1+1 stands still"
    assert dict(zip(header, b, strict=True))["neuroncore_count"] == ""


IDLE = snapshot_of("trn1.2xlarge")


def job(*users: str, run_id: str | None = None) -> SummaryJob:
    return SummaryJob(
        "train", 2, 1, 1, None, None, None, Severity.OK, run_id, users=users, user_count=len(users) or None
    )


def host(name: str, *jobs: SummaryJob, further: tuple[str, ...] = (), user_count: int | None = None) -> HostState:
    return live(name, IDLE, jobs=jobs, job_count=len(jobs), further_users=further, user_count=user_count)


def by_user(*states: HostState) -> dict[str, list[str]]:
    return {group.value: [state.place.name for state in group.states] for group in group_hosts(states, USER)}


def test_a_host_is_with_each_of_its_users() -> None:
    one = host("a", job("ada"), user_count=1)
    several = host("b", job("ada"), job("bob"), further=("eve",), user_count=3)
    assert by_user(one, several) == {"ada": ["a", "b"], "bob": ["b"], "eve": ["b"]}
    # A label that is called like a way of ours is no second one.
    state = live("a", IDLE)
    labelled = replace(state, place=replace(state.place, labels=(("user", "x"), ("rack", "1"), ("job", "y"))))
    assert grouping_choices([labelled]) == ("alike", "type", "job", "user", "rack")


def test_nobody_is_not_the_same_as_unknown() -> None:
    idle, unknown = live("idle", IDLE), host("unknown", job())
    assert by_user(idle, unknown, lost("gone", "no route")) == {
        "no user": ["idle"],
        "user unknown": ["unknown", "gone"],
    }
    assert by_user(host("told nothing", job("")), host("old", job())) == {"user unknown": ["told nothing", "old"]}
    # A daemon that tells no users tells whether anything runs.
    assert by_user(live("idle", IDLE, user_count=None)) == {"no user": ["idle"]}
    # Where not all users are told, the host is among the unknown too.
    assert by_user(host("many", job("ada"), user_count=9)) == {"ada": ["many"], "user unknown": ["many"]}


def test_how_many_users_a_job_has_is_unknown_where_a_host_does_not_name_all() -> None:
    run = "x" * 12

    def both(other: SummaryJob) -> tuple[tuple[str, ...], int | None]:
        (found,) = fleet_jobs([host("a", job("ada", run_id=run)), host("b", other)])
        return found.users, found.user_count

    assert both(job("bob", "ada", run_id=run)) == (("ada", "bob"), 2)
    assert both(job(run_id=run)) == (("ada",), None)
    assert both(replace(job("bob", run_id=run), user_count=9)) == (("ada", "bob"), None)
    # Of one host it is the number of the host.
    alone = [replace(job("ada", "bob"), user_count=9), replace(job(), user_count=3), job()]
    found = [each for one in alone for each in fleet_jobs([host("a", one)])]
    assert [(each.users, each.user_count) for each in found] == [(("ada", "bob"), 9), ((), 3), ((), None)]


REAL = replace(snapshot_of("trn1.2xlarge"), source=SourceKind.SYSFS)


def told(name: str, booted: float, **changes: object) -> HostState:
    """A real host that was booted then, an hour later."""
    clocks = {"taken_at_unix_seconds": booted + 3600, "taken_at_seconds": 3600.0, "host_name": "trn-1"}
    return live(name, REAL, 100.0, **(clocks | changes))


def test_one_host_is_told_by_its_name_and_when_it_was_booted() -> None:
    later = told("b", 1e9, taken_at_unix_seconds=1e9 + 3605.0003, taken_at_seconds=3605.0)
    states = [told("a", 1e9), later, told("other boot", 1e9 + 2), told("other name", 1e9, host_name="trn-2")]
    assert names(deduplicate_hosts(states)[0]) == ["a", "other boot", "other name"]
    assert deduplicate_hosts(states)[1] == ("b is the same host as a: one row",)
    assert names(deduplicate_hosts([told("a", 1e9), lost("b", "gone", told("b", 1e9))])[0]) == ["a", "b"], (
        "of one that is lost nothing is known"
    )


def test_by_prometheus_the_instance_tells_and_simulated_hosts_are_many_on_one_host() -> None:
    simulated = [told(name, 1e9, source=SourceKind.SIMULATED) for name in "ab"]
    assert names(deduplicate_hosts(simulated)[0]) == ["a", "b"]
    known = {"taken_at_seconds": None, "source": None}
    states = [told(name, 1e9, host_name=name, instance_id="i-1", **known) for name in "abcde"]
    states += [told(name, 1e9, instance_id=None, **known) for name in ("f", "g")]
    assert names(deduplicate_hosts(states)[0]) == ["a", "f", "g"]
    assert deduplicate_hosts(states)[1][-1] == "and 1 more hosts are named twice"


def test_a_daemon_at_two_sockets_is_one_host(start_daemon: StartDaemon, socket_directory: Path) -> None:
    with DriverTree("trn1.2xlarge") as tree:
        daemon = start_daemon(*tree.flags, "--interval", "0.2")
        second = socket_directory / "second.sock"
        second.symlink_to(daemon.socket)
        places = [HostAddress("a", Reach.SOCKET, daemon.socket), HostAddress("b", Reach.SOCKET, str(second))]
        with DirectFeed(places, 0.2) as feed:
            feed.start()
            assert feed.wait_settled(HANG_SECONDS)
            assert [state.place.name for state in feed.states] == ["a"]
            assert feed.notes == ("b is the same host as a: one row",)
