"""Moments in their order, whatever the clock of the host is set to."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from neurontools.history.moment import Moment, MomentMaker
from neurontools.history.timeline import Timeline
from neurontools.model import Snapshot
from tests.harness.scenario_host import ScenarioHost
from tests.harness.still_feed import message_of

HOST = ScenarioHost("trn1.2xlarge", "idle")
TAKEN = [HOST.at(float(second)) for second in range(1, 21)]


def with_clock(snapshot: Snapshot, moved_seconds: float) -> Snapshot:
    return replace(snapshot, taken_at_unix_seconds=snapshot.taken_at_unix_seconds + moved_seconds)


def made(maker: MomentMaker, snapshots: list[Snapshot]) -> list[Moment]:
    return [moment for snapshot in snapshots if (moment := maker.make(message_of(snapshot))) is not None]


@pytest.mark.parametrize("moved_seconds", [-120.0, 120.0, -1e8])
def test_a_clock_that_is_set_changes_neither_order_nor_number(moved_seconds: float) -> None:
    taken = [*TAKEN[:10], *(with_clock(snapshot, moved_seconds) for snapshot in TAKEN[10:])]
    timeline = Timeline()
    for moment in made(MomentMaker(), taken):
        timeline.append(moment)
    assert [timeline.snapshot(index) for index in range(len(timeline))] == taken
    assert [timeline.index_at(moment.at_seconds) for moment in timeline.moments] == list(range(20))
    steps = [round(after.at_seconds - before.at_seconds, 6) for before, after in pairwise(timeline.moments)]
    assert set(steps) == {1.0}
    assert [index for index, moment in enumerate(timeline.moments) if moment.events] == [10]
    assert timeline.moments[10].events[0].at_seconds == timeline.moments[10].at_seconds


def test_what_is_known_already_is_passed_over() -> None:
    maker = MomentMaker()
    assert len(made(maker, TAKEN)) == 20
    again = [*TAKEN[:5], with_clock(TAKEN[18], 500.0), TAKEN[19]]
    assert made(maker, again) == []


def test_a_daemon_that_begins_anew_with_the_same_pid_goes_on() -> None:
    """As every daemon in a container does, whose PID is 1."""
    anew = [replace(snapshot, sequence=index) for index, snapshot in enumerate(TAKEN[10:], 1)]
    assert len(made(MomentMaker(), [*TAKEN[:10], *anew])) == 20


def test_a_host_that_was_started_again_goes_on_where_it_ended() -> None:
    again = [
        replace(
            snapshot, daemon_pid=snapshot.daemon_pid + 1, taken_at_unix_seconds=snapshot.taken_at_unix_seconds + 300.0
        )
        for snapshot in TAKEN[:5]
    ]
    moments = made(MomentMaker(), [*TAKEN, *again])
    assert len(moments) == 25
    assert all(after.at_seconds > before.at_seconds for before, after in pairwise(moments))
    assert moments[20].at_seconds - moments[19].at_seconds == pytest.approx(281.0)


@pytest.mark.parametrize("seconds", [float("nan"), -1.0, float("inf")])
def test_a_moment_of_no_time_is_none(seconds: float) -> None:
    assert MomentMaker().make(message_of(replace(TAKEN[0], taken_at_seconds=seconds))) is None
    assert MomentMaker().make(message_of(replace(TAKEN[0], taken_at_unix_seconds=seconds))) is None
