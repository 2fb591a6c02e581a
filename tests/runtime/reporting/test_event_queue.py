from __future__ import annotations

from threading import Event, Thread

from neurontools.runtime.reporting.event_queue import APPLY_BATCH, EventQueue


def test_events_are_applied_in_order_when_asked_and_by_themselves_when_there_are_many() -> None:
    queue, seen = EventQueue(), list[int]()
    for number in range(10 * APPLY_BATCH + 3):
        queue.append(seen.append, number)
        assert len(queue.events) < APPLY_BATCH
    assert seen == list(range(10 * APPLY_BATCH))
    with queue.drained():
        assert seen == list(range(10 * APPLY_BATCH + 3))


def test_event_appended_while_events_are_applied_waits_its_turn() -> None:
    """As by a finalizer that the garbage collector calls in the middle of it."""
    queue, seen = EventQueue(), list[int]()

    def take_many(count: int) -> None:
        for number in range(count):
            queue.append(seen.append, number)

    queue.append(take_many, 2 * APPLY_BATCH)
    with queue.drained():
        assert seen == []
    with queue.drained():
        assert seen == list(range(2 * APPLY_BATCH))


def test_appending_goes_on_while_another_thread_applies() -> None:
    queue, seen = EventQueue(), list[int]()
    inside, leave = Event(), Event()

    def wait_inside() -> None:
        inside.set()
        leave.wait()

    queue.append(wait_inside)
    thread = Thread(target=queue.apply_if_idle)
    thread.start()
    inside.wait()
    for number in range(2 * APPLY_BATCH):
        queue.append(seen.append, number)  # would wait for ever if it waited for the thread
    leave.set()
    thread.join()
    with queue.drained():
        assert seen == list(range(2 * APPLY_BATCH))


def test_an_event_that_fails_is_counted_and_an_interrupt_passed_on_and_the_rest_applied() -> None:
    queue, seen = EventQueue(), list[int]()

    def interrupt() -> None:
        raise KeyboardInterrupt

    queue.append(interrupt)
    queue.append(int, "no number")
    queue.append(seen.append, 1)
    try:
        queue.apply_if_idle()
    except KeyboardInterrupt:
        queue.apply_if_idle()
    assert seen == [1]
    assert queue.ignored == 1
    assert "no number" in str(queue.last_error)


def test_closed_queue_keeps_nothing() -> None:
    queue, seen = EventQueue(), list[int]()
    queue.close()
    for number in range(2 * APPLY_BATCH):
        queue.append(seen.append, number)
    with queue.drained():
        assert (seen, len(queue.events)) == ([], 0)
