"""torch_xla.utils.utils: data for tests and timing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class SampleGenerator:
    """Yields the same data a number of times."""

    def __init__(self, data: Any, sample_count: int) -> None:
        self._data = data
        self._sample_count = sample_count

    def __iter__(self) -> Iterator[Any]:
        return iter([self._data] * self._sample_count)

    def __len__(self) -> int:
        return self._sample_count
