"""Devices as cells: a character each, and hosts whose devices do alike as one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neurontools.fleet.states import HostState, Link, gravity
from neurontools.fleet.summary import DeviceCell
from neurontools.model import Severity
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.line import Line, Run, fit_marked, foreign
from neurontools.views.drawing.style import load_style
from neurontools.views.drawing.thresholds import Thresholds

_IDLE_BELOW_RATIO = Thresholds().idle_below_ratio
_MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class Alike:
    """Hosts of one type whose devices are in the same conditions, one by one."""

    instance_type: str
    states: tuple[HostState, ...]


def folded(states: Sequence[HostState]) -> list[Alike]:
    """All hosts of which something is known, worst first; those alike are one."""
    found: dict[tuple[bool, str, tuple[str, ...]], list[HostState]] = {}
    for state in states:
        if state.summary is not None:
            conditions = tuple([_condition(cell) for cell in state.summary.devices])
            is_lost = state.link is Link.LOST
            found.setdefault((is_lost, state.summary.instance_type, conditions), []).append(state)
    alike = [Alike(instance_type, tuple(hosts)) for (_, instance_type, _), hosts in found.items()]
    return sorted(alike, key=lambda group: (min(map(gravity, group.states)), -len(group.states), group.instance_type))


def cells_of(states: Sequence[HostState], glyphs: Glyphs) -> list[Run]:
    """The devices of hosts that are alike, their utilization the mean of all."""
    runs: list[Run] = []
    summaries = [state.summary for state in states if state.summary is not None]
    if not summaries:
        return runs
    is_lost = states[0].link is Link.LOST
    for position, cell in enumerate(summaries[0].devices):
        ratios = [
            ratio
            for found in summaries
            if position < len(found.devices) and (ratio := found.devices[position].utilization_ratio) is not None
        ]
        text, style = _drawn(cell, sum(ratios) / len(ratios) if ratios else None, glyphs)
        style = "dim" if is_lost else style
        if runs and runs[-1][1] == style:
            runs[-1] = (runs[-1][0] + text, style)
        else:
            runs.append((text, style))
    return runs


def grid(states: Sequence[HostState], glyphs: Glyphs, width: int, height: int) -> list[Line]:
    """A row for hosts that are alike: how many, of what type, their devices, and the first of their names."""
    groups = folded(states)
    if height <= 0:
        return []
    shown = groups if len(groups) <= height else groups[: height - 1]
    cells = max((len(group.states[0].summary.devices) for group in shown if group.states[0].summary), default=0)
    lines = []
    for group in shown:
        names = [foreign(state.place.name, 40) for state in group.states[:_MOST_NAMES]]
        more = len(group.states) - len(names)
        told = ", ".join(names) + (f" and {more} more" if more else "")
        drawn = cells_of(group.states, glyphs)
        gap = " " * (cells - sum(len(text) for text, _ in drawn))
        head = f" {len(group.states):>5} x {foreign(group.instance_type, 40):<16.16} "
        lines.append(fit_marked(((head, "label"), *drawn, (f"{gap}  {told}", "dim")), width))
    if len(shown) < len(groups):
        rest = sum(len(group.states) for group in groups[len(shown) :])
        lines.append(
            fit_marked(((f"       and {rest} hosts in {len(groups) - len(shown)} other states", "dim"),), width)
        )
    return lines


def _condition(cell: DeviceCell) -> str:
    """What a device does, as far as hosts are told apart by it."""
    if not cell.is_present:
        return "missing"
    if cell.severity is not None and cell.severity >= Severity.WARNING:
        return f"severity {cell.severity}"
    if cell.held_neuroncore_count == 0:
        return "free"
    if cell.utilization_ratio is None:
        return "unknown"
    return "busy" if cell.utilization_ratio >= _IDLE_BELOW_RATIO else "idle"


def _drawn(cell: DeviceCell, ratio: float | None, glyphs: Glyphs) -> Run:
    condition = _condition(cell)
    if condition == "missing":
        return "?", "bad"
    if condition.startswith("severity"):
        is_critical = cell.severity is not None and cell.severity >= Severity.CRITICAL
        return (glyphs.bad[:1], "bad") if is_critical else (glyphs.warn[:1], "warn")
    if condition == "free":
        return glyphs.free, "dim"
    if condition == "unknown" or ratio is None:
        return "?", "dim"
    if condition == "idle":
        return glyphs.held, "held"
    level = min(len(glyphs.heat) - 1, int(min(max(ratio, 0.0), 1.0) * len(glyphs.heat)))
    return glyphs.heat[level], load_style(min(max(ratio, 0.0), 1.0), _IDLE_BELOW_RATIO)
