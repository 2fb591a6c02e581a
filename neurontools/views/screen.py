"""The whole screen of neuron-top: page table, title, tabs, scrubber, key bar, and the search in a page's list."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from neurontools.model import Severity, SourceKind, health
from neurontools.util import units
from neurontools.util.units import clock_text, date_text
from neurontools.util.version import __version__
from neurontools.views.drawing.glyphs import ASCII, Glyphs
from neurontools.views.drawing.heat_scale import heat_legend
from neurontools.views.drawing.lines import (
    BLANK,
    FOUND,
    LOADS,
    ClickTarget,
    Line,
    Run,
    TextPage,
    append_run,
    ascii_only,
    clip,
    fit,
    line_width,
    printable,
    styled,
    width_of,
)
from neurontools.views.drawing.render_context import RenderContext, SearchEntry, add_scroll_bar, framed

_LEAST_LINES_WITH_LEGEND = 12
_FRAME_CELLS, _FRAME_LINES = 100, 30  # least size of a screen whose panels have frames
_LEAST_NAME_CELLS = 5  # least cells for the instance type in the title
_FINDING_STYLES = ("title_critical", "title_warning")
_TIME_HINTS = (("p", "pause", "p"), ("[ ]", "time", "left_square_bracket"))
_TABS_LABEL = "Neuron Apps "
_LONGEST_TAG = 20


@dataclass(frozen=True, slots=True)
class PageSpec:
    """A page of neuron-top. `hints` lists keys for the key bar, each as key label, text and key name.

    `drawer` and `lister` name a module and its function. A module is imported when its page is first drawn, so that the
    first page appears sooner.
    """

    name: str
    key: str
    title: str
    short_title: str
    drawer: str
    lister: str
    hints: tuple[tuple[str, str, str], ...]
    has_folds: bool = False
    shows_past: bool = False  # whether the page shows history, not only the current snapshot

    def draw(self, context: RenderContext, width: int, height: int) -> TextPage:
        page: TextPage = _imported(self.drawer)(context, width, height)
        return page


def _imported(place: str) -> Callable[..., Any]:
    module, _, function = place.partition(".")
    return getattr(import_module(f"neurontools.views.{module}"), function)  # type: ignore[no-any-return]


PAGES = (
    PageSpec(
        *("overview", "o", "Overview", "Over"),
        *("overview_page.overview_page", "overview_page.overview_entries"),
        (("x", "tree", "x"), ("f", "FLOPS", "f"), ("v", "layout", "v"), *_TIME_HINTS),
        has_folds=True,
    ),
    PageSpec(
        *("processes", "w", "Who holds my cores", "Who"),
        *("processes_page.process_page", "processes_page.process_entries"),
        (("/", "filter", "slash"), ("s", "sort", "s"), ("x", "jobs", "x"), *_TIME_HINTS),
        has_folds=True,
    ),
    PageSpec(
        *("topology", "t", "Topology", "Topo"),
        *("topology_page.topology_page", "history_page.device_entries"),
        (("c", "colour", "c"), *_TIME_HINTS),
    ),
    PageSpec(
        *("history", "h", "History", "Hist"),
        *("history_page.history_page", "history_page.device_entries"),
        (("l", "window", "l"), *_TIME_HINTS),
        shows_past=True,
    ),
    PageSpec(
        *("heatmap", "m", "Heat map", "Map"),
        *("history_page.heatmap_page", "history_page.core_entries"),
        (("l", "window", "l"), *_TIME_HINTS),
        shows_past=True,
    ),
    PageSpec(
        *("health", "e", "Events and health", "Events"),
        *("health_page.health_page", "health_page.event_entries"),
        (("n", "next event", "n"), *_TIME_HINTS),
        shows_past=True,
    ),
    PageSpec(*("usage", "u", "Users", "Users"), *("usage_page.usage_page", "usage_page.ended_entries"), _TIME_HINTS),
    PageSpec(*("host", "H", "Host", "Host"), *("host_page.host_page", "host_page.traffic_entries"), _TIME_HINTS),
)


@cache
def page_named(name: str) -> PageSpec:
    """Returns the page with this name; the first page if the name is unknown."""
    return next((page for page in PAGES if page.name == name), PAGES[0])


def draw_screen(context: RenderContext, width: int, height: int) -> TextPage:
    """Draws the whole screen: exactly `height` lines of `width` cells."""
    if width <= 0 or height <= 0:
        return TextPage()
    page = title_bar(context, width)
    foot = TextPage()
    if context.clock.is_past and height >= 6:
        foot.append_page(scrubber(context, width))
    if context.is_legend_shown and height >= _LEAST_LINES_WITH_LEGEND:
        foot.add_lines(legend_line(context.glyphs, width))
    if height >= 5:
        foot.append_page(tab_bar(context, width))
    if height >= 4:
        foot.append_page(key_bar(context, width))
    is_framed = width >= _FRAME_CELLS and height >= _FRAME_LINES
    body_lines = height - 1 - len(foot.lines) - is_framed
    if body_lines > 0:
        body = page_named(context.page).draw(context, width - 2 * is_framed, body_lines)
        del body.lines[body_lines:]
        body.lines.extend([BLANK] * (body_lines - len(body.lines)))
        for target in body.targets if context.match_rows else ():
            if target.action == "row" and int(target.argument) in context.match_rows and target.row < len(body.lines):
                body.lines[target.row] = styled(body.lines[target.row], FOUND)
        _fit_lines(body, width - 2 * is_framed)
        page.append_page(framed(context, body, width) if is_framed else body)
        if is_framed and context.has_keys:
            add_scroll_bar(page, width, context.glyphs)
    page.append_page(foot)
    del page.lines[height:]
    if context.glyphs is ASCII:
        page.lines = [ascii_only(line) for line in page.lines]
    return page


def _fit_lines(page: TextPage, width: int) -> None:
    """Cuts or pads the lines of a page that are not `width` cells wide."""
    page.lines = [line if line_width(line) == width else fit(line, width) for line in page.lines]


@cache
def legend_line(glyphs: Glyphs, width: int) -> Line:
    """Draws the legend of bars, colours and marks in one line, as far as it fits."""
    items: tuple[tuple[Run, ...], ...] = (
        ((glyphs.full * 2, LOADS[-2]), (" utilization", "dim")),
        ((glyphs.full * 2, "held"), (" held but idle", "dim")),
        ((glyphs.thin_full * 2, "memory"), (" HBM", "dim")),
        ((glyphs.bad, "bad"), (" critical", "dim")),
        ((glyphs.warn, "warn"), (" warning", "dim")),
        (("-", "text"), (" unknown", "dim")),
        (("Esc", "key"), (" hides this line, ", "dim"), ("?", "key"), (" shows it", "dim")),
        (*heat_legend(glyphs), (" utilization", "dim")),
        ((glyphs.heat[3:7], LOADS[3]), (" last minutes", "dim")),
    )
    runs: list[Run] = []
    for item in items:
        if line_width(runs) + line_width(item) + 2 <= width:
            runs += [("  " if runs else " ", "dim"), *item]
    return fit(runs, width)


def title_bar(context: RenderContext, width: int) -> TextPage:
    """Draws the title line: version, instance, finding counts, recording and shown moment."""
    instance = context.snapshot.instance
    where = f"{printable(instance.instance_id or 'this host', 60)} ({printable(instance.instance_type, 40)})"
    text = f" neuron-top {__version__} running on {where}"
    if width < 100:
        text = f" neuron-top {where}" if width >= 60 else f" {printable(instance.instance_type, 40)}"
    notes = []
    if hidden := context.figures.hidden_devices:
        notes.append(f"{len(context.snapshot.devices) - len(hidden)} of {len(context.snapshot.devices)} devices")
    if context.snapshot.source is SourceKind.SIMULATED:
        notes.append("simulated")
    if context.snapshot.synthetic_load:
        notes.append(f"synthetic load: {printable(context.snapshot.synthetic_load, 30)}")
    note = f" [{', '.join(notes)}]" if notes else ""
    needed = notes[:1] if hidden else []
    needed += ["synthetic"] if context.snapshot.synthetic_load else ["simulated"] if "simulated" in notes else []
    short = f" [{', '.join(needed)}]" if needed else ""
    name = f" {printable(instance.instance_type, 40)}"
    right = _right_of_title(context, width - width_of(short) - _LEAST_NAME_CELLS)
    room = max(0, width - line_width(right))
    for left in (text + note, text + short, f" neuron-top {where}{short}", name + short):
        if width_of(left) <= room:
            break
    else:
        # If nothing fits, cuts the instance type, because the mark for simulated data must stay visible.
        left = clip(name, max(0, room - width_of(short)), mark=True) + short
    runs: list[Run] = [(left, "title"), (" " * (room - width_of(left)), "title")]
    targets = []
    at = width - line_width(right)
    for run_text, style in right:
        if style in _FINDING_STYLES:
            targets.append(ClickTarget(0, at, at + width_of(run_text), "page", "health"))
        at += width_of(run_text)
    return TextPage([fit((*runs, *right), width, "title")], targets)


def _right_of_title(context: RenderContext, room: int) -> list[Run]:
    """Returns the right end of the title: recording, finding counts and clock, as far as they fit.

    Never leaves out the state of the feed, such as "LIVE".
    """
    clock = context.clock
    moment = clock_text(context.snapshot.taken_at_unix_seconds)
    recording: list[Run] = []
    if clock.recording:
        recording = [(f" {context.glyphs.recording} {clip(clock.recording, 24, mark=True)} ", "title_bad")]
    badge: list[Run] = [(f" {clock.badge} ", clock.style)] if clock.badge else []
    full: list[Run] = [(f" {clock.badge} {moment} " if clock.badge else f" {moment} ", clock.style)]
    found = health.count_devices_by_severity(context.snapshot)
    counts, brief_counts = [_finding_counts(context, found, is_brief=is_brief) for is_brief in (False, True)]
    for right in ([*recording, *counts, *full], [*counts, *full], [*brief_counts, *full], [*brief_counts, *badge]):
        if line_width(right) <= room:
            return right
    return badge or full


def _finding_counts(context: RenderContext, found: Mapping[Severity, int], *, is_brief: bool) -> list[Run]:
    """Formats the numbers of sick devices, and the key that opens the health page.

    `found` has the number of devices by severity. If `is_brief`, formats only that of the highest severity.
    """
    runs: list[Run] = []
    for severity, noun, mark, style in (
        (Severity.CRITICAL, "critical", context.glyphs.bad, _FINDING_STYLES[0]),
        (Severity.WARNING, "warning", context.glyphs.warn, _FINDING_STYLES[1]),
    ):
        count = found.get(severity, 0)
        if count and (not is_brief or not runs):
            plural = "s" if count > 1 and severity is Severity.WARNING else ""
            runs.append((f" {mark} {count} " if is_brief or runs else f" {mark} {count} {noun}{plural} ", style))
    if runs and not is_brief and context.clock.badge and context.has_keys:
        runs[-1] = (f"{runs[-1][0]}{context.glyphs.track} e ", runs[-1][1])
    return runs


def tab_pids(context: RenderContext) -> list[int | None]:
    """Returns the PIDs of the tabs; the first is None, the tab of all processes."""
    return [None, *context.figures.ranks]


def tab_bar(context: RenderContext, width: int) -> TextPage:
    """Draws the tabs of processes, such as `[1]:all [2]:tag`, scrolled to the current tab."""
    pids = tab_pids(context)
    current = pids.index(context.pid) if context.pid in pids else -1

    def text_at(position: int) -> str:
        pid = pids[position]
        tag = "all" if pid is None else printable(context.figures.ranks[pid].process.tag, 80)
        name = clip(tag, _LONGEST_TAG, mark=True)
        label = f"[{position + 1}]:{name or pid}"
        return f"{context.glyphs.left}{label}{context.glyphs.right}" if position == current else f" {label} "

    room = width - len(_TABS_LABEL)
    first = max(0, current)
    while first > 0 and sum(width_of(text_at(position)) for position in range(first - 1, current + 1)) <= room:
        first -= 1
    runs: list[Run] = [(_TABS_LABEL, "label")]
    targets, left = [], len(_TABS_LABEL)
    for position in range(first, len(pids)):
        text = text_at(position)
        runs.append((text, "tab_current" if position == current else "tab"))
        pid = pids[position]
        targets.append(ClickTarget(0, left, left + width_of(text), "tab", "" if pid is None else str(pid)))
        left += width_of(text)
        if left >= width:
            break
    if left > width and len(runs) > 2:  # an ellipsis replaces a tab that does not fit
        runs[-1] = (f" {context.glyphs.ellipsis}", "tab")
        targets.pop()
    return TextPage([fit(runs, width)], targets)


def scrubber(context: RenderContext, width: int) -> TextPage:
    """Draws the scrubber: the position of the shown moment in the known history. A click on a cell moves there."""
    clock = context.clock
    before = clock.last - clock.shown
    before_text = f"{units.duration_text(before)} back" if before > 0 else "latest"
    text = f" {date_text(clock.shown_at_unix_seconds)} {before_text} "
    span = f" of {units.duration_text(clock.last - clock.first)} " if width >= 50 else ""
    room = max(1, width - len(text) - len(span) - 4)
    cells: list[Run] = [(context.glyphs.rule, "rule")] * room

    def place(at: float) -> int:
        share = (at - clock.first) / (clock.last - clock.first) if clock.last > clock.first else 1.0
        return min(room - 1, max(0, round(share * (room - 1))))

    for at in clock.event_times:
        if clock.first <= at <= clock.last:
            cells[place(at)] = ("!", "warn")
    cells[place(clock.shown)] = (context.glyphs.position, "strong")
    runs: list[Run] = []
    for character, style in cells:
        append_run(runs, character, style)
    left = len(text) + 1
    targets = [
        ClickTarget(0, left + position, left + position + 1, "scrub", str(position / max(1, room - 1)))
        for position in range(room)
    ]
    return TextPage([fit(((text, "strong"), ("[", "key"), *runs, ("]", "key"), (span, "dim")), width)], targets)


def key_bar(context: RenderContext, width: int) -> TextPage:
    """Draws the key bar: the keys of all pages and of the current page. An error or message replaces it."""
    problem = context.clock.problem or context.message
    if problem:
        style = "bad" if context.clock.problem else "strong"
        return TextPage([fit(((f" {clip(printable(problem), width - 2, mark=True)}", style),), width)])
    runs: list[Run] = []
    targets: list[ClickTarget] = []
    left = 0

    def item(key: str, text: str, action: str, argument: str, *, usual_key: str = "", is_current: bool = False) -> None:
        nonlocal left
        key = context.key_texts.get(usual_key, key)
        if left + len(key) + len(text) + 3 > width:
            return
        runs.extend([(f" {key}", "key"), (f" {text} ", "tab_current" if is_current else "dim")])
        cells = len(key) + len(text) + 3
        targets.append(ClickTarget(0, left, left + cells, action, argument))
        left += cells

    item("q", "quit", "key", "q", usual_key="q")
    item("?", "help", "key", "question_mark", usual_key="question_mark")
    for page in PAGES:
        title = page.title if width >= 100 else page.short_title
        item(page.key, title, "page", page.name, usual_key=page.key, is_current=page.name == context.page)
    if width >= 72:
        for key, text, argument in page_named(context.page).hints:
            item(key, text, "key", argument, usual_key=argument)
    return TextPage([fit(runs, width)], targets)


def list_entries(context: RenderContext, *, every: bool = False) -> list[SearchEntry]:
    """Returns the rows of the page's list as search entries. `every` includes rows that are folded away."""
    page = page_named(context.page)
    entries: list[SearchEntry] = _imported(page.lister)(context, *([every] if page.has_folds else []))
    return entries


def matching_rows(context: RenderContext, rows: list[SearchEntry]) -> list[int]:
    """Returns the positions of the rows that match the search.

    Searches for the whole phrase first. If no row contains the phrase, returns the rows that contain every word, or
    have a process that matches the text as a filter.
    """
    if not context.search_text.strip():
        return []
    phrase = re.compile(_word_pattern(" ".join(context.search_text.casefold().split())))
    if whole := [position for position, row in enumerate(rows) if phrase.search(row.text.casefold())]:
        return whole
    matches = _make_matcher(context.search_text)
    return [position for position, row in enumerate(rows) if matches(row)]


def match_position(context: RenderContext) -> str:
    """Returns the position of the selected row among the matches of the search, such as "match 2 of 5"."""
    rows = list_entries(context, every=True)
    matches = matching_rows(context, rows)
    if not matches:
        return "no match"
    shown = list_entries(context)
    key = shown[context.cursor].key if 0 <= context.cursor < len(shown) else None
    keys = [rows[position].key for position in matches]
    return f"match {keys.index(key) + 1} of {len(keys)}" if key in keys else f"{len(keys)} found"


def _word_pattern(word: str) -> str:
    """Returns a regular expression that finds a word, but no part of a number: 3 not in 13, nc7 not in nc70."""
    before = r"(?<!\d)" if word[0].isdecimal() else ""
    after = r"(?!\d)" if word[-1].isdecimal() else ""
    return f"{before}{re.escape(word)}{after}"


def _make_matcher(text: str) -> Callable[[SearchEntry], bool]:
    from neurontools.views.process_filter import InvalidFilter, parse_filter

    words = [re.compile(_word_pattern(word)) for word in text.casefold().split()]
    try:
        passes = parse_filter(text)
    except InvalidFilter:
        passes = None

    def matches(row: SearchEntry) -> bool:
        own = row.text.casefold()
        if own and all(word.search(own) for word in words):
            return True
        return passes is not None and any(map(passes, row.processes))

    return matches
