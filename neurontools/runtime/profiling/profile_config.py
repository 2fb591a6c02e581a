"""Profile settings from environment variables, which have the names of the original Neuron runtime if it has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from neurontools.driver.environment import (
    INSPECT_ENABLE,
    INSPECT_MOST_EVENTS,
    INSPECT_OUTPUT_DIRECTORY,
    PROFILE_RUN,
    PROFILE_STEPS,
)
from neurontools.driver.neuron_runtime import parse_profile_steps

_DEFAULT_DIRECTORY = "./output"
_DEFAULT_EVENTS = 250_000
_EVENT_BYTES = 32  # the maximum of an event after compression


@dataclass(frozen=True, slots=True)
class ProfileConfig:
    """Settings of a profile: directory, first and last step (None: no end), and maximum number of events.

    `run` is the name of the run in TensorBoard, shared by all workers. If empty, each worker generates a name.
    """

    directory: Path
    first_step: int = 1
    last_step: int | None = None
    most_events: int = _DEFAULT_EVENTS
    run: str = ""

    @property
    def most_event_bytes(self) -> int:
        """Maximum size of the events in the profile file, in bytes."""
        return max(self.most_events, 1_000) * _EVENT_BYTES

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ProfileConfig | None:
        """Parses environment variables. Returns None if they request no profile. Raises InvalidProfileSteps."""
        if environment.get(INSPECT_ENABLE, "").lower() not in ("1", "true"):
            return None
        first, last = parse_profile_steps(environment.get(PROFILE_STEPS, ""))
        most = environment.get(INSPECT_MOST_EVENTS, "")
        return cls(
            Path(environment.get(INSPECT_OUTPUT_DIRECTORY) or _DEFAULT_DIRECTORY).absolute(),
            first,
            last,
            int(most) if most.isdigit() and most.isascii() and 0 < int(most) < 10**9 else _DEFAULT_EVENTS,
            environment.get(PROFILE_RUN, ""),
        )
