"""Advice for training scripts: the `Advice` type, the facts that rules evaluate, and the text output.

The rules are in `neurontools.estimate.rules`. Imports no torch, reads no clock and does no I/O.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from neurontools.estimate.calibration import Interval
from neurontools.estimate.counted_run import CountedRun, EstimateError
from neurontools.estimate.instances import InstanceHardware
from neurontools.estimate.report import dollars
from neurontools.estimate.training import StepTime, step_time
from neurontools.profile.analysis.verdict import RunVerdict
from neurontools.util.terminal import escape_controls
from neurontools.util.units import duration_text

DEFAULT_INSTANCE_TYPE = "trn1.32xlarge"
"""Has the peak rates to use if a summary names no instance type."""

_LINE_WIDTH = 100


class Truth(StrEnum):
    """Whether the number that a piece of advice reports also holds on hardware."""

    SCRIPT = "script"  # counted from the script: the same on hardware
    CPU = "this CPU"  # a time measured on this host's CPU: may differ on hardware


class EffectBasis(StrEnum):
    """The source of the expected effect of a piece of advice."""

    PUBLISHED = "published"  # a published measurement of another model
    DOCUMENTED = "documented"  # stated by the documentation of the SDK or framework
    COUNTED = "counted"  # derived from the counters of this run
    GUESS = "to be tried"


@dataclass(frozen=True, slots=True)
class Saving:
    """The predicted saving of a change: seconds of a step, and US dollars of 1,000 steps (None: no list price)."""

    step_seconds: Interval
    thousand_steps_usd: Interval | None
    instance_type: str

    @property
    def text(self) -> str:
        """The saving as text, such as "saves 1.2 ms to 3.4 ms of a step on trn1.2xlarge"."""
        seconds = f"{self.step_seconds.text(duration_text)} of a step"
        if self.thousand_steps_usd is None:
            return f"saves {seconds} on {self.instance_type}"
        return f"saves {seconds}, {self.thousand_steps_usd.text(dollars)} of 1,000 steps on {self.instance_type}"


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice: the measured number, the line of the script, the fix and its expected effect.

    `place` is "file:line" of the script; None if no single line is the cause. `lost_ratio` is the estimated share of
    device time that the fix saves; it ranks advice.
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
    saving: Saving | None = None  # None: no model predicts it

    def document(self) -> dict[str, Any]:
        """Returns the advice as an entry of the JSON summary."""
        saving = self.saving
        ends = {
            "step_seconds": None if saving is None else _ends(saving.step_seconds),
            "thousand_steps_usd": None if saving is None else _ends(saving.thousand_steps_usd),
        }
        return {**asdict(self), "saving": None if saving is None else ends}


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]


@dataclass(frozen=True, slots=True)
class CallSite:
    """The events of one kind that were counted at one line of the script.

    `count` is the number of events; `steps` is the number of training steps in which they occurred. `late_steps` has
    the numbers of the latest steps in which a graph was new, if `event` is a new graph after the warm-up. `seconds` is
    the time of the events; 0 if they have no duration.
    """

    event: str
    file: str
    line: int
    count: int
    steps: int
    late_steps: tuple[int, ...] = ()
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The call site as "train.py:12", which editors can open."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The input of the rules: counters and modelled step time of the rank with the most FLOPs.

    `rank` is the entry of this rank in neuron-run's JSON summary.
    """

    run: CountedRun
    rank: Mapping[str, Any]
    hardware: InstanceHardware
    step: StepTime
    call_sites: tuple[CallSite, ...]

    @classmethod
    def from_summary(cls, document: Mapping[str, Any]) -> RunFacts | None:
        """Parses a JSON summary of neuron-run; returns None for a run without training or an unknown instance type."""
        try:
            run = CountedRun.from_summary(document)
            hardware = InstanceHardware.from_catalog(document.get("instance_type") or DEFAULT_INSTANCE_TYPE)
        except EstimateError:
            return None
        rank = max(document["ranks"], key=lambda each: each.get("flop_total") or 0)
        sites = tuple(parse_call_sites(rank.get("places")))
        return cls(run, rank, hardware, step_time(run, hardware), sites)

    def counter(self, name: str) -> float:
        """Returns the rank's value of a counter; 0 if it is missing."""
        value = self.rank.get(name)
        return float(value) if isinstance(value, (int, float)) else 0.0

    def call_sites_of(self, event_prefix: str) -> list[CallSite]:
        """Returns the call sites whose event name starts with `event_prefix`, in descending order of training steps."""
        return [site for site in self.call_sites if site.event.startswith(event_prefix)]

    def main_call_site(self, event_prefix: str) -> str | None:
        """Returns "file:line" of the call site that has matching events in the most steps; None if no event matches."""
        sites = self.call_sites_of(event_prefix)
        return sites[0].text if sites else None

    @property
    def host_ratio(self) -> float:
        """The share of a modelled step that the host spends launching executions."""
        host = self.step.host.middle
        whole = host + self.step.compute.middle
        return host / whole if whole else 0.0


def parse_call_sites(entries: Any) -> list[CallSite]:
    """Returns the valid call sites, most training steps first; skips malformed entries."""
    sites = []
    for entry in entries if isinstance(entries, list) else ():
        try:
            count = int(entry["count"])
            steps = int(entry.get("steps", count))
            late_steps = tuple(map(int, entry.get("late_steps") or ()))
            seconds = float(entry.get("seconds") or 0.0)
            what, file, line = str(entry["what"]), str(entry["file"]), int(entry["line"])
            sites.append(CallSite(what, file, line, count, steps, late_steps, seconds))
        except (KeyError, TypeError, ValueError):
            continue
    return sorted(sites, key=lambda site: (-site.steps, -site.count))


_TITLES = {
    Truth.SCRIPT: "advice (facts of the script, also true on hardware)",
    Truth.CPU: "advice (times measured on this CPU; they may differ on hardware)",
}


def format_advice(found: Sequence[Advice], limit: int | None = None, verdict: RunVerdict | None = None) -> str:
    """Formats the first `limit` pieces of advice, below the verdict if there is one.

    If `limit` is None, formats all advice, with its sources.
    """
    lines = [] if verdict is None else _wrap(f"verdict: {escape_controls(verdict.text)}", "  ")
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
    if each.saving is not None:
        paragraphs.append(f"    what if (estimate): {each.saving.text}")
    if with_source:
        paragraphs.append(f"    source: {each.source}")
    return [line for paragraph in paragraphs for line in _wrap(paragraph, "      ")]


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _LINE_WIDTH, subsequent_indent=indent, break_on_hyphens=False)
