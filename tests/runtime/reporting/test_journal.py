from __future__ import annotations

from threading import Event, Thread

from neurontools.runtime.reporting.event_queue import APPLY_BATCH, EventQueue


def test_notes_are_applied_in_order_when_asked_and_by_themselves_when_there_are_many() -> None:
    journal, seen = EventQueue(), list[int]()
    for number in range(10 * APPLY_BATCH + 3):
        journal.note(seen.append, number)
        assert len(journal.notes) < APPLY_BATCH
    assert seen == list(range(10 * APPLY_BATCH))
    with journal.settled():
        assert seen == list(range(10 * APPLY_BATCH + 3))


def test_note_taken_while_notes_are_applied_waits_its_turn() -> None:
    """As by a finalizer that the garbage collector calls in the middle of it."""
    journal, seen = EventQueue(), list[int]()

    def take_many(count: int) -> None:
        for number in range(count):
            journal.note(seen.append, number)

    journal.note(take_many, 2 * APPLY_BATCH)
    with journal.settled():
        assert seen == []
    with journal.settled():
        assert seen == list(range(2 * APPLY_BATCH))


def test_taking_notes_goes_on_while_another_thread_applies() -> None:
    journal, seen = EventQueue(), list[int]()
    inside, leave = Event(), Event()

    def wait_inside() -> None:
        inside.set()
        leave.wait()

    journal.note(wait_inside)
    thread = Thread(target=journal.shorten)
    thread.start()
    inside.wait()
    for number in range(2 * APPLY_BATCH):
        journal.note(seen.append, number)  # would wait for ever if it waited for the thread
    leave.set()
    thread.join()
    with journal.settled():
        assert seen == list(range(2 * APPLY_BATCH))


def test_a_note_that_fails_is_counted_and_an_interrupt_passed_on_and_the_rest_applied() -> None:
    journal, seen = EventQueue(), list[int]()

    def interrupt() -> None:
        raise KeyboardInterrupt

    journal.note(interrupt)
    journal.note(int, "no number")
    journal.note(seen.append, 1)
    try:
        journal.shorten()
    except KeyboardInterrupt:
        journal.shorten()
    assert seen == [1]
    assert journal.ignored == 1
    assert "no number" in str(journal.last_error)


def test_switched_off_journal_keeps_nothing() -> None:
    journal, seen = EventQueue(), list[int]()
    journal.switch_off()
    for number in range(2 * APPLY_BATCH):
        journal.note(seen.append, number)
    with journal.settled():
        assert (seen, len(journal.notes)) == ([], 0)
