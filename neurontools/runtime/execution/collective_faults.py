"""What an injected fault does to the collectives of the execution that runs now."""

from __future__ import annotations

from collections.abc import Callable


class CollectiveFaults:
    """Called at each collective, under the runtime's lock; none is the rule."""

    __slots__ = ("meets",)

    def __init__(self) -> None:
        self.meets: list[Callable[[], None]] = []


collective_faults = CollectiveFaults()
