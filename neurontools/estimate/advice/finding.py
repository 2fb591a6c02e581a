"""One piece of advice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Truth(StrEnum):
    """Where the measured number holds."""

    SCRIPT = "script"  # a fact of the script, true on the device too
    CPU = "this CPU"  # a time of this machine


class Effect(StrEnum):
    """How the expected effect is known."""

    PUBLISHED = "published"  # somebody measured it, on another model
    DOCUMENTED = "documented"  # its owner says so
    COUNTED = "counted"  # it follows from what was counted
    GUESS = "to be tried"


@dataclass(frozen=True, slots=True)
class Advice:
    """What was measured, where, what to do, and what it may bring.

    `place` is the file and line of the script, None where it has none. `lost_ratio` ranks: the share of the run's time
    on the device that it is taken to cost.
    """

    rule: str
    truth: Truth
    measured: str
    place: str | None
    fix: str
    effect: str
    effect_is: Effect
    source: str
    lost_ratio: float

    def document(self) -> dict[str, Any]:
        """As data, for the summary."""
        return asdict(self)
