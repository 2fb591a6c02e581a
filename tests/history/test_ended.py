"""What a view knows to have ended, from its timeline and from a daemon."""

from __future__ import annotations

from dataclasses import replace

from neurontools.history.ended import EndedBook, EndedFetch
from neurontools.history.moment import MomentMaker
from neurontools.history.timeline import Timeline
from neurontools.model import EndedProcess, Snapshot
from tests.harness.running_daemon import Attachment, StartDaemon
from tests.harness.scenario_host import ScenarioHost
from tests.harness.still_feed import message_of
from tests.harness.waiting import wait_until

SHOWN_SECONDS = 60


def ended(pid: int, at_unix_seconds: float) -> EndedProcess:
    return EndedProcess(pid, 0, "root", "", str(pid), None, False, at_unix_seconds - 5, at_unix_seconds, 1, 1)


def timeline_of(taken: list[Snapshot]) -> Timeline:
    maker, timeline = MomentMaker(), Timeline()
    for snapshot in taken:
        moment = maker.make(message_of(snapshot))
        assert moment is not None
        timeline.append(moment)
    return timeline


def host_over(seconds: int) -> tuple[list[Snapshot], list[EndedProcess]]:
    """A host on which a process ends every 7 seconds, and snapshots show it for a minute."""
    host = ScenarioHost("trn1.2xlarge", "idle")
    taken = [host.at(float(second)) for second in range(1, seconds)]
    gone = [ended(number, taken[number].taken_at_unix_seconds) for number in range(0, seconds - 1, 7)]
    shown = []
    for snapshot in taken:
        now = snapshot.taken_at_unix_seconds
        shown.append(
            replace(snapshot, ended=tuple(e for e in gone if now - SHOWN_SECONDS <= e.ended_at_unix_seconds <= now))
        )
    return shown, gone


def test_everything_that_ended_in_a_timeline_is_found_once() -> None:
    taken, gone = host_over(400)
    book = EndedBook()
    timeline = timeline_of(taken)
    book.read(timeline)
    book.read(timeline)
    assert list(book.until(float("inf"))) == gone
    moment = taken[200].taken_at_unix_seconds
    assert list(book.until(moment)) == [each for each in gone if each.ended_at_unix_seconds <= moment]


def test_what_comes_later_is_found_too() -> None:
    taken, gone = host_over(300)
    book = EndedBook()
    timeline = timeline_of(taken[:100])
    book.read(timeline)
    whole = timeline_of(taken)
    book.read(whole)
    assert set(book.until(float("inf"))) == set(gone)


def test_gaps_lose_nothing_that_a_moment_shows() -> None:
    taken, _ = host_over(400)
    kept = [snapshot for second, snapshot in enumerate(taken) if second % 49 < 2]
    shown = {each for snapshot in kept for each in snapshot.ended}
    book = EndedBook()
    book.read(timeline_of(kept))
    assert set(book.until(float("inf"))) == shown


def test_a_daemon_tells_what_ended_before_anybody_looked(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    attachment = Attachment(daemon)
    attachment.attach(core_count=2)
    attachment.close()
    fetched = wait_until(lambda: EndedFetch(daemon.socket).wait())
    assert [process.neuroncore_count for process in fetched] == [2]


def test_no_daemon_is_nothing_and_no_fault() -> None:
    assert EndedFetch("/nowhere/n.sock").wait() == ()
