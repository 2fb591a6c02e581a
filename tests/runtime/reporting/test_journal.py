from __future__ import annotations

from collections import Counter
from threading import Barrier, Event, Thread

from neurontools.runtime.reporting.journal import LONG, Journal


def test_notes_are_applied_in_order_when_asked() -> None:
    journal, seen = Journal(), list[int]()
    for number in range(5):
        journal.note(seen.append, number)
    assert seen == []
    with journal.settled():
        assert seen == [0, 1, 2, 3, 4]


def test_long_journal_shortens_itself() -> None:
    journal, seen = Journal(), list[int]()
    for number in range(10 * LONG + 3):
        journal.note(seen.append, number)
        assert len(journal.notes) < LONG
    assert seen == list(range(10 * LONG))


def test_no_note_of_many_threads_is_lost_or_applied_twice() -> None:
    journal, seen = Journal(), Counter[tuple[int, int]]()
    barrier = Barrier(8)

    def take(thread: int) -> None:
        barrier.wait()
        for number in range(5000):
            journal.note(seen.update, [(thread, number)])

    threads = [Thread(target=take, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with journal.settled():
        assert len(seen) == 8 * 5000
        assert set(seen.values()) == {1}


def test_note_taken_while_notes_are_applied_waits_its_turn() -> None:
    """As by a finalizer that the garbage collector calls in the middle of it."""
    journal, seen = Journal(), list[int]()

    def take_many(count: int) -> None:
        for number in range(count):
            journal.note(seen.append, number)

    journal.note(take_many, 2 * LONG)
    with journal.settled():
        assert seen == []
    with journal.settled():
        assert seen == list(range(2 * LONG))


def test_taking_notes_goes_on_while_another_thread_applies() -> None:
    journal, seen = Journal(), list[int]()
    inside, leave = Event(), Event()

    def wait_inside() -> None:
        inside.set()
        leave.wait()

    journal.note(wait_inside)
    thread = Thread(target=journal.shorten)
    thread.start()
    inside.wait()
    for number in range(2 * LONG):
        journal.note(seen.append, number)  # would wait for ever if it waited for the thread
    leave.set()
    thread.join()
    with journal.settled():
        assert seen == list(range(2 * LONG))


def test_note_that_fails_is_counted_and_the_rest_applied() -> None:
    journal, seen = Journal(), list[int]()
    journal.note(int, "no number")
    journal.note(seen.append, 1)
    with journal.settled():
        assert seen == [1]
        assert journal.ignored == 1
        assert "no number" in str(journal.last_error)


def test_interrupt_while_notes_are_applied_leaves_the_journal_usable() -> None:
    journal, seen = Journal(), list[int]()

    def interrupt() -> None:
        raise KeyboardInterrupt

    journal.note(interrupt)
    journal.note(seen.append, 1)
    try:
        journal.shorten()
    except KeyboardInterrupt:
        journal.shorten()
    assert seen == [1]


def test_switched_off_journal_keeps_nothing() -> None:
    journal, seen = Journal(), list[int]()
    journal.switch_off()
    for number in range(2 * LONG):
        journal.note(seen.append, number)
    with journal.settled():
        assert seen == []
        assert len(journal.notes) == 0
