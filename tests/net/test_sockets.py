"""Places for those who come to a listening socket."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neurontools.net.acceptor import ConnectionLimiter, ConnectionSlot


def nothing() -> None:
    """Makes no room."""


def test_the_longest_waiting_makes_room() -> None:
    places = ConnectionLimiter(most=3, share=3)
    gone: list[str] = []
    first, second, _ = (places.enter("a", lambda name=name: gone.append(name)) for name in "abc")  # type: ignore[misc]
    assert first is not None
    assert second is not None
    second.busy()
    first.busy()
    first.wait()
    assert places.enter("a", nothing) is not None
    assert gone == ["c"], "the first has waited for less long, the second is busy"
    assert places.enter("a", nothing) is not None
    assert gone == ["c", "a"]
    first.leave()
    assert len(places) == 3


def test_when_all_are_busy_nobody_comes_in() -> None:
    places = ConnectionLimiter(most=4, share=2)
    for _ in range(2):
        place = places.enter("a", nothing)
        assert place is not None
        place.busy()
    assert places.enter("a", nothing) is None
    assert places.enter("b", nothing) is not None


@given(st.lists(st.tuples(st.sampled_from("enter busy wait leave".split()), st.integers(0, 9)), max_size=200))
def test_the_limits_hold_whatever_happens(steps: list[tuple[str, int]]) -> None:
    places = ConnectionLimiter(most=6, share=2)
    inside: list[ConnectionSlot] = []
    for step, number in steps:
        if step == "enter":
            lost: list[ConnectionSlot] = []
            made: list[ConnectionSlot] = []

            def make_room(made: list[ConnectionSlot] = made, lost: list[ConnectionSlot] = lost) -> None:
                lost.extend(made)

            place = places.enter(number % 5, make_room)
            if place is not None:
                made.append(place)
                inside.append(place)
        elif inside:
            getattr(inside[number % len(inside)], step)()
        assert len(places) <= 6
    for place in inside:
        place.leave()
    assert len(places) == 0
