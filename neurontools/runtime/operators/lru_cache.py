"""An LRU cache in which most hits cost one dictionary look-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """An LRU cache of at least the `capacity` most recently used entries, and at most twice as many.

    It has two generations instead of an ordered list, because each operator of a training step makes a look-up. A hit
    in the young generation costs one dictionary look-up. `young` is always the same dictionary.

    Both `put` and `get` can evict. They call `on_evict` with each evicted value.
    """

    def __init__(self, capacity: int, on_evict: Callable[[Value], object] | None = None) -> None:
        self.capacity = capacity
        self._on_evict = on_evict
        self.young: dict[Key, Value] = {}
        self._old: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        """Returns the value of a key, or None. Moves the entry to the young generation."""
        value = self.young.get(key)
        if value is None and self._old:
            value = self._old.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> None:
        self.young[key] = value
        if len(self.young) <= self.capacity:
            return
        evicted, self._old = self._old, dict(self.young)
        self.young.clear()
        if self._on_evict is not None:
            for each in evicted.values():
                self._on_evict(each)

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def values(self) -> Iterator[Value]:
        """Yields all values. The recently used values come last."""
        yield from self._old.values()
        yield from self.young.values()

    def clear(self) -> None:
        """Removes all entries without calling `on_evict`."""
        self.young.clear()
        self._old.clear()
