"""Hosts in groups by user: who is not known is so, and has no empty name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools.fleet.groups import USER, groups, ways
from neurontools.fleet.jobs import fleet_jobs
from neurontools.fleet.states import HostState
from neurontools.fleet.summary_job import SummaryJob
from neurontools.model import Severity
from tests.harness.fleet import live, lost
from tests.harness.snapshots import snapshot_of

IDLE = snapshot_of("trn1.2xlarge")


def job(*users: str, run_id: str | None = None) -> SummaryJob:
    return SummaryJob(
        "train", 2, 1, 1, None, None, None, Severity.OK, run_id, users=users, user_count=len(users) or None
    )


def host(name: str, *jobs: SummaryJob, further: tuple[str, ...] = (), user_count: int | None = None) -> HostState:
    return live(name, IDLE, jobs=jobs, job_count=len(jobs), further_users=further, user_count=user_count)


def by_user(*states: HostState) -> dict[str, list[str]]:
    return {group.value: [state.place.name for state in group.states] for group in groups(states, USER)}


def test_a_host_is_with_each_of_its_users() -> None:
    one = host("a", job("ada"), user_count=1)
    several = host("b", job("ada"), job("bob"), further=("eve",), user_count=3)
    assert by_user(one, several) == {"ada": ["a", "b"], "bob": ["b"], "eve": ["b"]}


def test_nobody_is_not_the_same_as_unknown() -> None:
    idle, unknown = live("idle", IDLE), host("unknown", job())
    assert by_user(idle, unknown, lost("gone", "no route")) == {
        "no user": ["idle"],
        "user unknown": ["unknown", "gone"],
    }
    assert by_user(host("told nothing", job("")), host("old", job())) == {"user unknown": ["told nothing", "old"]}


def test_a_daemon_that_tells_no_users_tells_whether_anything_runs() -> None:
    idle = live("idle", IDLE, user_count=None)
    assert by_user(idle, host("busy", job())) == {"no user": ["idle"], "user unknown": ["busy"]}


def test_where_not_all_users_are_told_the_host_is_among_the_unknown_too() -> None:
    assert by_user(host("many", job("ada"), user_count=9)) == {"ada": ["many"], "user unknown": ["many"]}


def test_a_job_over_hosts_has_the_users_of_its_parts() -> None:
    states = [host("a", job("ada", run_id="x" * 12)), host("b", job("bob", "ada", run_id="x" * 12))]
    assert [(found.users, found.user_count) for found in fleet_jobs(states)] == [(("ada", "bob"), 2)]


@pytest.mark.parametrize("untold", [job(run_id="x" * 12), replace(job("bob", run_id="x" * 12), user_count=9)])
def test_how_many_users_a_job_has_is_unknown_where_a_host_does_not_name_all(untold: SummaryJob) -> None:
    (found,) = fleet_jobs([host("a", job("ada", run_id="x" * 12)), host("b", untold)])
    assert (found.users, found.user_count) == (("ada", *untold.users), None)


def test_of_one_host_their_number_is_that_of_the_host() -> None:
    alone = [replace(job("ada", "bob"), user_count=9), replace(job(), user_count=3), job()]
    found = [each for one in alone for each in fleet_jobs([host("a", one)])]
    assert [(each.users, each.user_count) for each in found] == [(("ada", "bob"), 9), ((), 3), ((), None)]


def test_a_label_that_is_called_like_a_way_of_ours_is_no_second_one() -> None:
    state = live("a", IDLE)
    labelled = replace(state, place=replace(state.place, labels=(("user", "x"), ("rack", "1"), ("job", "y"))))
    assert ways([labelled]) == ("alike", "type", "job", "user", "rack")
