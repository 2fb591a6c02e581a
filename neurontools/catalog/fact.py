"""A value together with how surely it is known."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from neurontools.util.light_imports import Generic, TypeVar

T = TypeVar("T")


class Status(StrEnum):
    """How a value is known."""

    DOCUMENTED = "documented"  # AWS says so in its documentation or a blog post
    DRIVER = "driver"  # read in the source of the Neuron driver
    OBSERVED = "observed"  # printed by a real machine, or listed by a public API
    INFERRED = "inferred"  # concluded from other facts; nobody has stated it
    UNKNOWN = "unknown"  # looked for and not found
    NOT_APPLICABLE = "n/a"  # the hardware has no such thing


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """One value and its standing. `value` is None exactly when the status is unknown or n/a.

    `source` holds ids that `catalog.sources()` explains; it is empty where the origin was not written down.
    """

    value: T | None
    status: Status
    source: tuple[str, ...] = ()
    note: str = ""

    @property
    def certain(self) -> bool:
        """Whether the value is known and was stated or seen, not concluded."""
        return self.value is not None and self.status in _CERTAIN


_CERTAIN = frozenset({Status.DOCUMENTED, Status.DRIVER, Status.OBSERVED})
