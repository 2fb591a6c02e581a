"""What rules look at: what one worker counted, and what the model says of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neurontools.estimate import CountedRun, EstimateError
from neurontools.estimate.machine import Machine
from neurontools.estimate.step_time import StepTime, step_time

_USUAL_TYPE = "trn1.32xlarge"  # whose rates stand in where the run says no type


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the script, how often something happened there, and in how many steps of training."""

    what: str
    file: str
    line: int
    count: int
    steps: int

    @property
    def text(self) -> str:
        """As editors take it: "train.py:12"."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The worker with the most work. `rank` is its part of the summary, `step` the modelled time of a step."""

    run: CountedRun
    rank: Mapping[str, Any]
    machine: Machine
    step: StepTime
    places: tuple[Place, ...]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Evidence | None:
        """Reads a summary; None where it has no training in it."""
        try:
            run = CountedRun.from_summary(document)
            machine = Machine.of(document.get("instance_type") or _USUAL_TYPE)
        except EstimateError:
            return None
        rank = max(document["ranks"], key=lambda each: each.get("flop_total") or 0)
        places = tuple(_places(rank.get("places")))
        return cls(run, rank, machine, step_time(run, machine), places)

    def count(self, name: str) -> float:
        """A counter of the worker; 0 where it has none."""
        value = self.rank.get(name)
        return float(value) if isinstance(value, (int, float)) else 0.0

    def a_step(self, name: str) -> float:
        """A counter, for each step."""
        return self.count(name) / self.run.steps_total

    def at(self, what: str) -> list[Place]:
        """Where something happened, first the place where it did in most steps; `what` is how it begins."""
        return [place for place in self.places if place.what.startswith(what)]

    def first(self, what: str) -> str | None:
        """The place where it happened in most steps, as text."""
        found = self.at(what)
        return found[0].text if found else None

    @property
    def host_ratio(self) -> float:
        """The share of a modelled step that the host launches."""
        host = self.step.host.middle
        whole = host + self.step.compute.middle
        return host / whole if whole else 0.0


def _places(listed: Any) -> list[Place]:
    found = []
    for each in listed if isinstance(listed, list) else ():
        try:
            count = int(each["count"])
            steps = int(each.get("steps", count))
            found.append(Place(str(each["what"]), str(each["file"]), int(each["line"]), count, steps))
        except (KeyError, TypeError, ValueError):
            continue
    return sorted(found, key=lambda place: (-place.steps, -place.count))
