"""An LRU cache in which most hits cost one dictionary look-up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """An LRU cache of at least the `capacity` most recently used entries, and at most twice as many.

    It has two generations instead of an ordered list, because each operator of a training step makes a look-up. A hit
    in the young generation costs one dictionary look-up. `young` is always the same dictionary.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.evictions_total = 0
        self.young: dict[Key, Value] = {}
        self._old: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        """Returns the value of a key, or None."""
        value = self.young.get(key)
        if value is None and self._old:
            value = self._old.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> list[Value]:
        """Adds an entry and returns the evicted values."""
        self.young[key] = value
        if len(self.young) <= self.capacity:
            return []
        evicted = list(self._old.values())
        self.evictions_total += len(evicted)
        self._old = dict(self.young)
        self.young.clear()
        return evicted

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def values(self) -> Iterator[Value]:
        """Yields all values. The recently used values come last."""
        yield from self._old.values()
        yield from self.young.values()

    def clear(self) -> None:
        self.young.clear()
        self._old.clear()
