"""The page of many hosts: what they are together, their devices, and a row a host, worst first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from neurontools.fleet.jobs import FleetJob
from neurontools.fleet.states import HostState, Link, by_name, worst_first
from neurontools.model import Severity, SourceKind
from neurontools.util import units
from neurontools.util.units import clock_text
from neurontools.util.version import __version__
from neurontools.views.drawing.glyphs import ASCII, UNICODE, Glyphs
from neurontools.views.drawing.line import (
    Line,
    Page,
    Run,
    Target,
    ascii_only,
    clip,
    fit,
    fit_marked,
    foreign,
    line_width,
)
from neurontools.views.drawing.scene import visible_top
from neurontools.views.fleet.cells import grid
from neurontools.views.fleet.job_list import job_lines, worst_jobs_first
from neurontools.views.fleet.listing import Listed
from neurontools.views.fleet.rows import heading, row, worst_text

_MOST_NAME_CELLS, _LEAST_NAME_CELLS = 28, 8
_ROOMY_HEIGHT = 16
_KEYS = (
    ("q", "quit", "q"),
    ("Enter", "look at it", "enter"),
    ("s", "sort", "s"),
    ("b", "group by", "b"),
    ("/", "filter", "slash"),
    ("g", "cells", "g"),
    ("?", "keys", "question_mark"),
)


def _busiest(states: Iterable[HostState]) -> list[HostState]:
    return sorted(by_name(states), key=lambda state: -((state.summary and state.summary.utilization_ratio) or 0.0))


def _freest(states: Iterable[HostState]) -> list[HostState]:
    def free(state: HostState) -> int:
        count = None if state.summary is None else state.summary.free_neuroncore_count
        return -1 if count is None else count

    return sorted(by_name(states), key=free, reverse=True)


SORTS: dict[str, Callable[[Iterable[HostState]], list[HostState]]] = {
    "worst first": worst_first,
    "by name": by_name,
    "busiest first": _busiest,
    "most free first": _freest,
}


@dataclass(slots=True)
class FleetScene:
    """What the page is drawn from."""

    rows: Sequence[Listed]  # in order, those that pass the filter
    all_states: tuple[HostState, ...]
    jobs: tuple[FleetJob, ...]
    now_seconds: float  # time.monotonic()
    now_unix_seconds: float
    interval_seconds: float
    sort: str = "worst first"
    group_by: str = ""
    filter_text: str = ""
    is_filter_edited: bool = False
    cursor: int = -1  # -1: nothing is chosen
    top: int = 0
    is_grid_shown: bool = True
    message: str = ""
    notes: tuple[str, ...] = ()  # what is wrong with what is known
    glyphs: Glyphs = UNICODE


def passes(state: HostState, text: str) -> bool:
    """Whether all words of a filter are somewhere in the row of a host."""
    if not text:
        return True
    found = state.summary
    jobs = " ".join((*(job.name or "" for job in found.jobs), *found.users)) if found is not None else ""
    kind = found.instance_type if found is not None else ""
    labels = " ".join(f"{name}={value}" for name, value in state.place.labels)
    where = f"{state.place.name} {kind} {state.link} {worst_text(state)} {jobs} {labels}".lower()
    return all(word in where for word in text.lower().split())


def fleet_page(scene: FleetScene, width: int, height: int) -> Page:
    """The whole screen, exactly `width` cells wide and `height` lines high."""
    page = Page([_title(scene, width), _totals(scene, width)][:height])
    for note in scene.notes[: max(0, height // 8)]:
        page.add(fit_marked(((f" {scene.glyphs.warn} {foreign(note)}", "warn"),), width))
    if height >= _ROOMY_HEIGHT and scene.is_grid_shown:
        rows = grid(scene.all_states, scene.glyphs, width, max(2, (height - 6) // 3))
        if rows:
            page.add(_rule(scene, "Devices, hosts that are alike together", width), *rows)
    if height >= _ROOMY_HEIGHT:
        found = worst_jobs_first(scene.jobs)
        rows = job_lines(found, scene.glyphs, width, min(len(found) + 1, max(3, (height - len(page.lines)) // 3)))
        if found:
            page.add(_rule(scene, f"Jobs over the hosts: {len(found)}, what is held up first", width), *rows)
    title = f"Hosts by {scene.group_by}" if scene.group_by else "Hosts"
    page.add(_rule(scene, f"{title}, {scene.sort}", width))
    names = [len(listed.name) for listed in scene.rows]
    name_width = min(
        _MOST_NAME_CELLS, max(_LEAST_NAME_CELLS, max(names, default=0)), max(_LEAST_NAME_CELLS, width // 4)
    )
    summaries = [listed.state.summary for listed in scene.rows]
    cells = max((len(found.devices) for found in summaries if found is not None), default=0)
    page.add(heading(width, name_width, cells))
    room = max(1, height - len(page.lines) - 1)
    top = visible_top(max(0, scene.cursor), scene.top, room, len(scene.rows))
    shown = [
        row(listed, scene.now_seconds, scene.glyphs, width, name_width, cells, is_selected=top + at == scene.cursor)
        for at, listed in enumerate(scene.rows[top : top + room])
    ]
    page.add_list(shown, len(scene.rows), room, top)
    while len(page.lines) < height - 1:
        page.add(fit((), width))
    page.lines = page.lines[: max(0, height - 1)]
    page.append(_key_bar(scene, width))
    if scene.glyphs is ASCII:
        page.lines = [ascii_only(line) for line in page.lines]
    return page


def fleet_lines(scene: FleetScene, width: int) -> list[Line]:
    """All rows, for a text that is printed once."""
    page = fleet_page(scene, width, len(scene.rows) + 8 + max(8, len(scene.all_states)))
    return [line for line in page.lines[:-1] if any(text.strip() for text, _ in line)]


def _title(scene: FleetScene, width: int) -> Line:
    states = scene.all_states
    count = {link: sum(state.link is link for state in states) for link in Link}
    parts = [f"{count[Link.LIVE]} live"]
    parts += [f"{count[link]} {link}" for link in (Link.LOST, Link.CONNECTING, Link.WAITING) if count[link]]
    known = [state.summary for state in states if state.summary is not None]
    notes = ["simulated"] if any(found.source is SourceKind.SIMULATED for found in known) else []
    notes += ["synthetic load"] if any(found.synthetic_load for found in known) else []
    note = f" [{', '.join(notes)}]" if notes else ""
    left = f" neuron-top {__version__}: {len(states)} host{'s' if len(states) != 1 else ''}, {', '.join(parts)}{note}"
    right: list[Run] = []
    for severity, noun, style in (
        (Severity.CRITICAL, "critical", "title_critical"),
        (Severity.WARNING, "with warnings", "title_warning"),
    ):
        hosts = sum(state.severity is severity for state in states)
        if hosts:
            mark = scene.glyphs.bad if severity is Severity.CRITICAL else scene.glyphs.warn
            right.append((f" {mark} {hosts} {noun} ", style))
    moment = clock_text(scene.now_unix_seconds)
    right.append((f" every {scene.interval_seconds:g} s {moment} ", "title_dim"))
    while right and line_width(right) > width // 2:
        right.pop()
    left = clip(left, max(0, width - line_width(right)), mark=True)
    gap = " " * (width - line_width(right) - line_width([(left, "")]))
    return fit(((left, "title"), (gap, "title"), *right), width, "title")


def _totals(scene: FleetScene, width: int) -> Line:
    """The live hosts together."""
    live = [state.summary for state in scene.all_states if state.link is Link.LIVE and state.summary is not None]

    def total(name: str) -> int | None:
        """Of the hosts that tell it; None: of none is it known."""
        known = [count for found in live if (count := getattr(found, name)) is not None]
        return sum(known) if known or not live else None

    counts = {word: total(f"{word}_neuroncore_count") for word in ("held", "busy", "free", "unknown")}
    used = [
        (found.utilization_ratio * found.held_neuroncore_count, found.held_neuroncore_count)
        for found in live
        if found.utilization_ratio is not None and found.held_neuroncore_count is not None
    ]
    flops = [found.flops_per_second for found in live if found.flops_per_second is not None]
    ratio = sum(part for part, _ in used) / sum(count for _, count in used) if any(count for _, count in used) else None
    text = (
        f" {sum(len(found.devices) for found in live):,} devices, {_counted(total('neuroncore_count'))} NeuronCores: "
    )
    text += ", ".join(f"{_counted(count)} {word}" for word, count in counts.items() if count or word != "unknown")
    more = f"   utilization {units.percent_text(ratio, 1)}   {units.flops_text(sum(flops) if flops else None)}"
    jobs = total("job_count")
    again = sum(max(0, (job.host_count or 1) - 1) for job in scene.jobs)  # one of several hosts is told by each
    count = None if jobs is None else max(len(scene.jobs), jobs - again)
    more += "" if count is None else f"   {count:,} job{'s' * (count != 1)}"
    return fit(((clip(text + more, width, mark=True), "strong"),), width)


def _counted(count: int | None) -> str:
    return units.UNKNOWN if count is None else f"{count:,}"


def _rule(scene: FleetScene, text: str, width: int) -> Line:
    if scene.filter_text or scene.is_filter_edited:
        text += f", with: {foreign(scene.filter_text)}" if text.startswith("Hosts") else ""
    line = scene.glyphs.rule * max(0, width - line_width([(f" {text} ", "")]) - 1)
    return fit(((f"{scene.glyphs.rule}", "rule"), (f" {text} ", "heading"), (line, "rule")), width)


def _key_bar(scene: FleetScene, width: int) -> Page:
    if scene.is_filter_edited:
        return Page([fit(((" filter: ", "label"), (f"{foreign(scene.filter_text)}_", "strong")), width)])
    if scene.message:
        return Page([fit(((f" {clip(foreign(scene.message), width - 2, mark=True)}", "strong"),), width)])
    runs: list[Run] = []
    targets, left = [], 0
    for key, text, name in _KEYS:
        cells = len(key) + len(text) + 3
        if left + cells > width:
            break
        runs += [(f" {key}", "key"), (f" {text} ", "dim")]
        targets.append(Target(0, left, left + cells, "key", name))
        left += cells
    return Page([fit(runs, width)], targets)
