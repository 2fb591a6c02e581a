"""A mapping that forgets what was not used for long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """Holds at least the `capacity` entries used last and at most twice as many.

    Two generations instead of an ordered list: a hit in the young one costs a single dictionary look-up, which matters
    where it happens for each operator of a training step. `young` is the same object for the mapping's life.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.evictions_total = 0
        self.young: dict[Key, Value] = {}
        self._old: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        """The value of a key; None when it is not there."""
        value = self.young.get(key)
        if value is None and self._old:
            value = self._old.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> list[Value]:
        """Adds an entry; returns the values that were forgotten for it."""
        self.young[key] = value
        if len(self.young) <= self.capacity:
            return []
        forgotten = list(self._old.values())
        self.evictions_total += len(forgotten)
        self._old = dict(self.young)
        self.young.clear()
        return forgotten

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def values(self) -> Iterator[Value]:
        """All values, the recently used ones last."""
        yield from self._old.values()
        yield from self.young.values()

    def clear(self) -> None:
        """Forgets everything."""
        self.young.clear()
        self._old.clear()
