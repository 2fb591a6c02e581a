"""What is measured with noise, and is to be one thing that begins and ends, and not many."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Level(Enum):
    """Where something is that was measured: over its limit, clearly better, or between the two."""

    OVER = auto()
    BETWEEN = auto()
    BETTER = auto()


@dataclass(slots=True)
class _State:
    holds_since_seconds: float | None = None  # from when on it was over the limit; None: it does not hold
    otherwise_since_seconds: float | None = None  # since when everything measured says the contrary


class Hysteresis(Generic[Key]):
    """Something holds once it has been over its limit for a while, until it has been clearly better for a while.

    Show it every measurement, in order; times are by a clock that nobody sets.
    """

    def __init__(self) -> None:
        self._states: dict[Key, _State] = {}

    def holds_since(
        self, key: Key, level: Level, now_seconds: float, *, begins_after_seconds: float, ends_after_seconds: float
    ) -> float | None:
        """Since when it holds, with this measurement; None where it does not."""
        state = self._states.get(key)
        if state is None:
            if level is not Level.OVER:
                return None
            state = self._states[key] = _State()
        holds = state.holds_since_seconds is not None
        if level is not (Level.BETTER if holds else Level.OVER):
            state.otherwise_since_seconds = None
        elif state.otherwise_since_seconds is None:
            state.otherwise_since_seconds = now_seconds
        since = state.otherwise_since_seconds
        if since is not None and now_seconds - since >= (ends_after_seconds if holds else begins_after_seconds):
            state.holds_since_seconds = None if holds else since
            state.otherwise_since_seconds = None
        if state.holds_since_seconds is None and state.otherwise_since_seconds is None:
            del self._states[key]
        return state.holds_since_seconds

    def is_known(self, key: Key) -> bool:
        """Whether it holds, or is over its limit: of others only what is over it has to be shown."""
        return key in self._states

    def keep(self, keys: Collection[Key]) -> None:
        """Forgets all others."""
        for key in self._states.keys() - set(keys):
            del self._states[key]
