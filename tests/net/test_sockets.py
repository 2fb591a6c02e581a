"""Places for those who come to a listening socket."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neurontools.net.acceptor import ConnectionLimiter, ConnectionSlot


def nothing() -> None:
    """Makes no room."""


def test_the_longest_waiting_makes_room() -> None:
    limiter = ConnectionLimiter(most=3, share=3)
    gone: list[str] = []
    first, second, _ = (limiter.acquire("a", lambda name=name: gone.append(name)) for name in "abc")  # type: ignore[misc]
    assert first is not None
    assert second is not None
    second.mark_busy()
    first.mark_busy()
    first.mark_waiting()
    assert limiter.acquire("a", nothing) is not None
    assert gone == ["c"], "the first has waited for less long, the second is busy"
    assert limiter.acquire("a", nothing) is not None
    assert gone == ["c", "a"]
    first.release()
    assert len(limiter) == 3


def test_when_all_are_busy_nobody_comes_in() -> None:
    limiter = ConnectionLimiter(most=4, share=2)
    for _ in range(2):
        place = limiter.acquire("a", nothing)
        assert place is not None
        place.mark_busy()
    assert limiter.acquire("a", nothing) is None
    assert limiter.acquire("b", nothing) is not None


@given(
    st.lists(
        st.tuples(st.sampled_from("acquire mark_busy mark_waiting release".split()), st.integers(0, 9)), max_size=200
    )
)
def test_the_limits_hold_whatever_happens(steps: list[tuple[str, int]]) -> None:
    limiter = ConnectionLimiter(most=6, share=2)
    inside: list[ConnectionSlot] = []
    for step, number in steps:
        if step == "acquire":
            lost: list[ConnectionSlot] = []
            accepted: list[ConnectionSlot] = []

            def make_room(accepted: list[ConnectionSlot] = accepted, lost: list[ConnectionSlot] = lost) -> None:
                lost.extend(accepted)

            place = limiter.acquire(number % 5, make_room)
            if place is not None:
                accepted.append(place)
                inside.append(place)
        elif inside:
            getattr(inside[number % len(inside)], step)()
        assert len(limiter) <= 6
    for place in inside:
        place.release()
    assert len(limiter) == 0
