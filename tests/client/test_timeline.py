"""Moments in their order whatever the clock is set to, and what ended in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from neurontools.client.backfill import EndedProcessFetch, EndedProcessLog
from neurontools.client.timeline import HostTimeline, Moment, MomentBuilder
from neurontools.model import EndedProcess, Snapshot
from tests.harness.running_daemon import Attachment, StartDaemon
from tests.harness.scenario_host import ScenarioHost
from tests.harness.still_feed import message_of
from tests.harness.waiting import wait_until

HOST = ScenarioHost("trn1.2xlarge", "idle")
TAKEN = [HOST.at(float(second)) for second in range(1, 21)]
SHOWN_SECONDS = 60


def made(maker: MomentBuilder, snapshots: Iterable[Snapshot]) -> list[Moment]:
    return [moment for snapshot in snapshots if (moment := maker.make(message_of(snapshot))) is not None]


def timeline_of(taken: Iterable[Snapshot]) -> HostTimeline:
    timeline = HostTimeline()
    for moment in made(MomentBuilder(), taken):
        timeline.append(moment)
    return timeline


def with_clock(snapshot: Snapshot, moved_seconds: float) -> Snapshot:
    return replace(snapshot, taken_at_unix_seconds=snapshot.taken_at_unix_seconds + moved_seconds)


@pytest.mark.parametrize("moved_seconds", [-120.0, 120.0, -1e8])
def test_a_clock_that_is_set_changes_neither_order_nor_number(moved_seconds: float) -> None:
    taken = [*TAKEN[:10], *(with_clock(snapshot, moved_seconds) for snapshot in TAKEN[10:])]
    timeline = timeline_of(taken)
    assert [timeline.snapshot(index) for index in range(len(timeline))] == taken
    assert [timeline.index_at(moment.at_seconds) for moment in timeline.moments] == list(range(20))
    steps = [round(after.at_seconds - before.at_seconds, 6) for before, after in pairwise(timeline.moments)]
    assert set(steps) == {1.0}
    assert [index for index, moment in enumerate(timeline.moments) if moment.events] == [10]
    assert timeline.moments[10].events[0].at_seconds == timeline.moments[10].at_seconds


def test_what_is_known_already_is_passed_over() -> None:
    maker = MomentBuilder()
    assert len(made(maker, TAKEN)) == 20
    again = [*TAKEN[:5], with_clock(TAKEN[18], 500.0), TAKEN[19]]
    assert made(maker, again) == []


def test_a_daemon_that_begins_anew_with_the_same_pid_goes_on() -> None:
    """As every daemon in a container does, whose PID is 1."""
    anew = [replace(snapshot, sequence=index) for index, snapshot in enumerate(TAKEN[10:], 1)]
    assert len(made(MomentBuilder(), [*TAKEN[:10], *anew])) == 20


def test_a_host_that_was_started_again_goes_on_where_it_ended() -> None:
    again = [replace(with_clock(snapshot, 300.0), daemon_pid=snapshot.daemon_pid + 1) for snapshot in TAKEN[:5]]
    moments = made(MomentBuilder(), [*TAKEN, *again])
    assert len(moments) == 25
    assert all(after.at_seconds > before.at_seconds for before, after in pairwise(moments))
    assert moments[20].at_seconds - moments[19].at_seconds == pytest.approx(281.0)


@pytest.mark.parametrize("seconds", [float("nan"), -1.0, float("inf")])
def test_a_moment_of_no_time_is_none(seconds: float) -> None:
    assert MomentBuilder().make(message_of(replace(TAKEN[0], taken_at_seconds=seconds))) is None
    assert MomentBuilder().make(message_of(replace(TAKEN[0], taken_at_unix_seconds=seconds))) is None


def host_over(seconds: int) -> tuple[list[Snapshot], list[EndedProcess]]:
    """A host on which a process ends every 7 seconds, and snapshots show it for a minute."""
    host = ScenarioHost("trn1.2xlarge", "idle")
    taken = [host.at(float(second)) for second in range(1, seconds)]
    gone = []
    for number in range(0, seconds - 1, 7):
        at = taken[number].taken_at_unix_seconds
        gone.append(EndedProcess(number, 0, "root", "", str(number), None, False, at - 5, at, 1, 1))
    shown = []
    for snapshot in taken:
        ages = ((each, snapshot.taken_at_unix_seconds - each.ended_at_unix_seconds) for each in gone)
        shown.append(replace(snapshot, ended=tuple(each for each, age in ages if 0 <= age <= SHOWN_SECONDS)))
    return shown, gone


def test_everything_that_ended_in_a_timeline_is_found_once() -> None:
    taken, gone = host_over(400)
    book = EndedProcessLog()
    for timeline in (timeline_of(taken[:100]), timeline_of(taken), timeline_of(taken)):
        book.read(timeline)
    assert list(book.until(float("inf"))) == gone
    moment = taken[200].taken_at_unix_seconds
    assert list(book.until(moment)) == [each for each in gone if each.ended_at_unix_seconds <= moment]


def test_gaps_lose_nothing_that_a_moment_shows() -> None:
    taken, _ = host_over(400)
    kept = [snapshot for second, snapshot in enumerate(taken) if second % 49 < 2]
    shown = {each for snapshot in kept for each in snapshot.ended}
    book = EndedProcessLog()
    book.read(timeline_of(kept))
    assert set(book.until(float("inf"))) == shown


def test_a_daemon_tells_what_ended_before_anybody_looked(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    attachment = Attachment(daemon)
    attachment.attach(core_count=2)
    attachment.close()
    fetched = wait_until(lambda: EndedProcessFetch(daemon.socket).wait())
    assert [process.neuroncore_count for process in fetched] == [2]
    assert EndedProcessFetch("/nowhere/n.sock").wait() == ()
