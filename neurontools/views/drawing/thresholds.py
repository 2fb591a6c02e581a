"""From which values on pages show something in another colour. What is wrong is for the daemon to say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Chosen by the reader."""

    idle_below_ratio: float = 0.02  # a core that is held and less busy than this is idle
    late_after_seconds: float = 30.0  # since the last execution ended
