"""torch_xla.utils and its module utils: data for tests and timing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def getenv_as(name: str, type: Callable[[str], T], defval: T | None = None) -> T | None:  # noqa: A002  (torch_xla's)
    """Returns an environment variable converted to a type, or the default. For bool, the variable is a number."""
    text = os.environ.get(name)
    if text is None:
        return defval
    return type(int(text)) if type is bool else type(text)


class SampleGenerator:
    """Yields the same data `sample_count` times."""

    def __init__(self, data: Any, sample_count: int) -> None:
        self._data = data
        self._sample_count = sample_count

    def __iter__(self) -> Iterator[Any]:
        return iter([self._data] * self._sample_count)

    def __len__(self) -> int:
        return self._sample_count
