"""Signals that come while nothing may raise."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from neurontools.util.signals import DeferredSignals, closing_undisturbed, defer_signals


class Came(Exception):
    """What the handler of the signal raises."""


@pytest.fixture(autouse=True)
def _raises() -> Iterator[None]:
    def handler(_number: int, _frame: object) -> None:
        raise Came

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_what_came_raises_afterwards() -> None:
    done = []

    def work() -> None:
        with defer_signals():
            signal.raise_signal(signal.SIGUSR1)
            done.append("all")

    with pytest.raises(Came):
        work()
    assert done == ["all"]


def test_each_is_told_whether_it_comes_before_somebody_listens_or_later() -> None:
    told: list[int] = []
    held = DeferredSignals()
    signal.raise_signal(signal.SIGUSR1)
    held.on_signal(told.append)
    assert told == [signal.SIGUSR1]
    signal.raise_signal(signal.SIGUSR1)
    assert told == [signal.SIGUSR1] * 2
    with pytest.raises(Came):
        held.release()


def test_what_is_closed_is_closed_whole() -> None:
    class Thing:
        is_closed = False

        def close(self) -> None:
            signal.raise_signal(signal.SIGUSR1)
            self.is_closed = True

    with pytest.raises(Came), closing_undisturbed(Thing()) as thing:
        pass
    assert thing.is_closed
