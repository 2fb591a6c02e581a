"""How it stands with each host that is looked at, and which of them is worst."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from neurontools.fleet.hosts import Place
from neurontools.fleet.summary import HostSummary
from neurontools.model import Severity


class Link(StrEnum):
    """How the view stands to a host."""

    WAITING = "waiting"  # not asked yet, so that not all are at once
    CONNECTING = "connecting"  # asked, and nothing has come
    LIVE = "live"
    LOST = "lost"  # it is tried again


@dataclass(frozen=True, slots=True)
class HostState:
    """A host as the view knows it. What was known of one that is lost stays, with its age."""

    place: Place
    link: Link = Link.WAITING
    trouble: str = ""  # why it is lost, in a line
    summary: HostSummary | None = None  # the latest
    received_at_seconds: float | None = None  # time.monotonic() here: no clock of another host is asked
    clock_ahead_seconds: float = 0.0  # of the host's clock before ours, when the latest came
    told_steps_per_second: float | None = None  # where the feed tells them and not the jobs that make them

    def age_seconds(self, now_seconds: float) -> float | None:
        """How old what is known of it is, at this time.monotonic(); None: nothing is."""
        return None if self.received_at_seconds is None else max(0.0, now_seconds - self.received_at_seconds)

    @property
    def steps_per_second(self) -> float | None:
        """Of the largest job that tells them."""
        found = None if self.summary is None else self.summary.steps_per_second
        return self.told_steps_per_second if found is None else found

    @property
    def severity(self) -> Severity | None:
        """The gravest that its daemon found; None: not known, as of a host that is not live."""
        return self.summary.severity if self.summary is not None and self.link is Link.LIVE else None

    @property
    def is_settled(self) -> bool:
        """Whether it has answered, or is known not to."""
        return self.link in (Link.LIVE, Link.LOST)


_GRAVITY = {Severity.CRITICAL: 0, Severity.WARNING: 2, None: 3, Severity.NOTICE: 5, Severity.OK: 6}
_LOST, _WAITING = 1, 4


def gravity(state: HostState) -> int:
    """0 for the worst: work is lost, then the host, then what is wrong, not known, waited for, idle and well."""
    if state.link is Link.LOST:
        return _LOST
    return _GRAVITY[state.severity] if state.link is Link.LIVE else _WAITING


def worst_first(states: Iterable[HostState]) -> list[HostState]:
    """By gravity, then by how much is wrong, then by name."""

    def place(state: HostState) -> tuple[int, int, int, tuple[tuple[int, str], ...]]:
        found = state.summary
        counts = (-found.critical_count, -found.warning_count) if found is not None else (0, 0)
        return gravity(state), *counts, _by_number(state.place.name)

    return sorted(states, key=place)


def by_name(states: Iterable[HostState]) -> list[HostState]:
    """host-2 before host-10."""
    return sorted(states, key=lambda state: _by_number(state.place.name))


def _by_number(name: str) -> tuple[tuple[int, str], ...]:
    parts: list[tuple[int, str]] = []
    digits = ""
    for letter in f"{name}\0":
        if letter.isascii() and letter.isdigit():
            digits += letter
            continue
        if digits:
            parts.append((int(digits[:18]), digits))
            digits = ""
        parts.append((-1, letter))
    return tuple(parts)
