"""Advice for training scripts: its data, the facts that rules look at, and its text. No torch, no clock, no I/O.

The rules are in `neurontools.estimate.rules`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from neurontools.estimate.counted_run import CountedRun, EstimateError
from neurontools.estimate.estimate import StepTime, step_time
from neurontools.estimate.instances import InstanceHardware
from neurontools.util.terminal import escape_controls

IGNORED_RULES = "NEURONTOOLS_IGNORE_ADVICE"
"""Environment variable with the names of rules to skip while a script runs, separated by commas, or `all`."""

EVERY_RULE = "all"

_DEFAULT_INSTANCE_TYPE = "trn1.32xlarge"  # its peak rates are used if the summary names no instance type
_LINE_WIDTH = 100


class Truth(StrEnum):
    """Whether the measured number also holds on hardware."""

    SCRIPT = "script"  # a property of the script: the same on hardware
    CPU = "this CPU"  # a time measured on this host


class EffectBasis(StrEnum):
    """How the expected effect is known."""

    PUBLISHED = "published"  # measured on another model, and published
    DOCUMENTED = "documented"  # stated by the documentation of the SDK or framework
    COUNTED = "counted"  # follows from the counters of this run
    GUESS = "to be tried"


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice: the measured number, the line of the script, the fix and its expected effect.

    `place` is "file:line" of the script, or None if there is no single line. `lost_ratio` ranks advice: the estimated
    share of the time on the device that the fix saves.
    """

    rule: str
    truth: Truth
    measured: str
    place: str | None
    fix: str
    effect: str
    effect_is: EffectBasis
    source: str
    lost_ratio: float

    def document(self) -> dict[str, Any]:
        """Returns the advice as an entry of the JSON summary."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CallSite:
    """A line of the script with the events counted there; `steps` is in how many training steps they happened."""

    event: str
    file: str
    line: int
    count: int
    steps: int

    @property
    def text(self) -> str:
        """The line in the form that editors accept: "train.py:12"."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the rules look at: the counters and the modelled step time of the rank with the most FLOPs.

    `rank` is the entry of that rank in the summary.
    """

    run: CountedRun
    rank: Mapping[str, Any]
    hardware: InstanceHardware
    step: StepTime
    call_sites: tuple[CallSite, ...]

    @classmethod
    def from_summary(cls, document: Mapping[str, Any]) -> RunFacts | None:
        """Parses a summary of neuron-run; returns None if it contains no training."""
        try:
            run = CountedRun.from_summary(document)
            hardware = InstanceHardware.from_catalog(document.get("instance_type") or _DEFAULT_INSTANCE_TYPE)
        except EstimateError:
            return None
        rank = max(document["ranks"], key=lambda each: each.get("flop_total") or 0)
        return cls(run, rank, hardware, step_time(run, hardware), tuple(_parse_call_sites(rank.get("places"))))

    def counter(self, name: str) -> float:
        """Returns a counter of the rank; 0 if the rank has none."""
        value = self.rank.get(name)
        return float(value) if isinstance(value, (int, float)) else 0.0

    def call_sites_of(self, event_prefix: str) -> list[CallSite]:
        """Returns the call sites of matching events, in descending order of training steps."""
        return [site for site in self.call_sites if site.event.startswith(event_prefix)]

    def main_call_site(self, event_prefix: str) -> str | None:
        """Returns, as "file:line", the call site where matching events happened in most steps."""
        sites = self.call_sites_of(event_prefix)
        return sites[0].text if sites else None

    @property
    def host_ratio(self) -> float:
        """The share of a modelled step that the host spends launching executions."""
        host = self.step.host.middle
        whole = host + self.step.compute.middle
        return host / whole if whole else 0.0


def _parse_call_sites(entries: Any) -> list[CallSite]:
    """Skips entries that are malformed."""
    sites = []
    for entry in entries if isinstance(entries, list) else ():
        try:
            count = int(entry["count"])
            steps = int(entry.get("steps", count))
            sites.append(CallSite(str(entry["what"]), str(entry["file"]), int(entry["line"]), count, steps))
        except (KeyError, TypeError, ValueError):
            continue
    return sorted(sites, key=lambda site: (-site.steps, -site.count))


_TITLES = {
    Truth.SCRIPT: "advice (facts of the script, also true on hardware)",
    Truth.CPU: "advice (times measured on this CPU; they may differ on hardware)",
}


def format_advice(found: Sequence[Advice], limit: int | None = None) -> str:
    """Formats the first `limit` pieces of advice, or all of them with their sources; "" if there is none."""
    lines: list[str] = []
    shown = found[:limit]
    for truth, title in _TITLES.items():
        group = [each for each in shown if each.truth is truth]
        if group:
            lines.append(title)
        for each in group:
            lines += _advice_lines(each, with_source=limit is None)
    if len(shown) < len(found):
        lines.append(f"{len(found) - len(shown)} more with --advise")
    return "\n".join(lines) + "\n" if lines else ""


def _advice_lines(each: Advice, *, with_source: bool) -> list[str]:
    where = "" if each.place is None else f" at {escape_controls(each.place)}"
    paragraphs = [
        f"  {each.rule}{where}: {escape_controls(each.measured)}",
        f"    do: {each.fix}",
        f"    effect ({each.effect_is.value}): {each.effect}",
    ]
    if with_source:
        paragraphs.append(f"    source: {each.source}")
    return [
        line
        for paragraph in paragraphs
        for line in textwrap.wrap(paragraph, _LINE_WIDTH, subsequent_indent="      ", break_on_hyphens=False)
    ]
