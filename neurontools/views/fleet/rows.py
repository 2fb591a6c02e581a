"""The table of hosts: a row each, with what is worst in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neurontools.fleet.states import HostState, Link
from neurontools.model import Severity
from neurontools.util import units
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.line import Line, Run, cell, fit, fit_marked, foreign, styled
from neurontools.views.drawing.style import SELECTED
from neurontools.views.fleet.cells import cells_of
from neurontools.views.fleet.listing import Listed

_MINUTE_SECONDS = 60
_CLOCK_SECONDS = 60.0  # a clock that is so much wrong is told
_STYLES = {
    Severity.CRITICAL: "bad",
    Severity.WARNING: "warn",
    Severity.NOTICE: "text",
    Severity.OK: "good",
    None: "dim",
}


@dataclass(frozen=True, slots=True)
class HostColumn:
    """A column: title, cells, how it is read, and from how many cells of the screen on it is shown."""

    title: str
    width: int
    read: Callable[[HostState, float], str]
    least_width: int = 0
    is_right: bool = True


def _count(name: str) -> Callable[[HostState, float], str]:
    def text(state: HostState, _now: float) -> str:
        count = None if state.summary is None else getattr(state.summary, name)
        return units.UNKNOWN if count is None else str(count)

    return text


def _percent(name: str) -> Callable[[HostState, float], str]:
    return lambda state, _now: units.percent_text(None if state.summary is None else getattr(state.summary, name), 0)


def _type(state: HostState, _now: float) -> str:
    return foreign(state.summary.instance_type, 40) if state.summary and state.summary.instance_type else units.UNKNOWN


def _steps(state: HostState, _now: float) -> str:
    steps = state.steps_per_second
    return units.UNKNOWN if steps is None else f"{steps:.3g}"


def _age(state: HostState, now_seconds: float) -> str:
    seconds = state.age_seconds(now_seconds)
    if seconds is None:
        return units.UNKNOWN
    return f"{seconds:.0f}s" if round(seconds) < _MINUTE_SECONDS else units.short_duration_text(seconds)


COLUMNS = (
    HostColumn("TYPE", 14, _type, 76, is_right=False),
    HostColumn("HELD", 5, _count("held_neuroncore_count"), 56),
    HostColumn("BUSY", 5, _count("busy_neuroncore_count"), 64),
    HostColumn("FREE", 5, _count("free_neuroncore_count")),
    HostColumn("UTIL", 5, _percent("utilization_ratio")),
    HostColumn("MFU", 5, _percent("mfu_ratio"), 90),
    HostColumn("JOBS", 4, _count("job_count"), 80),
    HostColumn("STEPS/S", 7, _steps, 90),
    HostColumn("AGE", 5, _age),
)


def heading(width: int, name_width: int, cells: int) -> Line:
    """The titles."""
    runs: list[Run] = [(f"   {cell('HOST', name_width)}", "column")]
    runs += [(f" {cell(column.title, column.width, right=column.is_right)}", "column") for column in _shown(width)]
    if _has_cells(width):
        runs.append((f"  {cell('DEVICES', max(cells, 7))}", "column"))
    runs.append(("  WORST", "column"))
    return fit(runs, width, "column")


def row(
    listed: Listed, now_seconds: float, glyphs: Glyphs, width: int, name_width: int, cells: int, *, is_selected: bool
) -> Line:
    """One host, or a group of them; one that is lost is grey, with the age of what is known of it and why."""
    state = listed.state
    is_lost = state.link is not Link.LIVE
    style = "dim" if is_lost else "text" if listed.group is None else "strong"
    mark, mark_style = _mark(state, glyphs)
    runs: list[Run] = [(f" {mark:<1.1} ", mark_style), (cell(foreign(listed.name, 260), name_width), style)]
    runs += [
        (f" {cell(column.read(state, now_seconds), column.width, right=column.is_right)}", style)
        for column in _shown(width)
    ]
    if _has_cells(width):
        drawn = cells_of((state,), glyphs)
        gap = max(cells, 7) - sum(len(text) for text, _ in drawn)
        runs += [("  ", style), *drawn, (" " * max(0, gap), style)]
    runs.append((f"  {worst_text(state)}", "dim" if is_lost else _STYLES[state.severity]))
    line = fit_marked(runs, width)
    return styled(line, SELECTED) if is_selected else line


def worst_text(state: HostState) -> str:
    """The gravest that is known of a host, in words; of one that is lost, why."""
    if state.link is Link.LOST:
        return f"lost: {foreign(state.trouble)}"
    if state.link is not Link.LIVE or state.summary is None:
        return str(state.link)
    found = state.summary
    texts = []
    if abs(state.clock_ahead_seconds) >= _CLOCK_SECONDS:
        direction = "ahead" if state.clock_ahead_seconds > 0 else "behind"
        texts.append(f"its clock is {units.duration_text(abs(state.clock_ahead_seconds))} {direction}")
    if not found.is_judged:
        is_told_by_itself = found.daemon_version is not None
        texts.append("not judged: its neurond makes no verdicts" if is_told_by_itself else "health not known")
    elif found.findings:
        worst = found.findings[0]
        more = found.critical_count + found.warning_count + found.notice_count - 1
        whose = " [synthetic]" if worst.synthetic else ""
        texts.append(
            f"{worst.severity.name.lower()}: {foreign(worst.reason or worst.kind)}{whose}"
            + (f" (and {more} more)" if more > 0 else "")
        )
    elif found.severity:
        texts.append(f"{found.severity.name.lower()}: Enter tells what")
    return "; ".join(reversed(texts))


def _shown(width: int) -> list[HostColumn]:
    return [column for column in COLUMNS if width >= column.least_width]


def _has_cells(width: int) -> bool:
    return width >= 100


def _mark(state: HostState, glyphs: Glyphs) -> Run:
    if state.link is not Link.LIVE:
        return ("-" if state.link is Link.LOST else ".", "dim")
    severity = state.severity
    if severity is Severity.CRITICAL:
        return glyphs.bad, "bad"
    if severity is Severity.WARNING:
        return glyphs.warn, "warn"
    return (glyphs.good, "good") if severity is not None else ("?", "dim")
