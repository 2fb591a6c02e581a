"""The input of every page: a snapshot, its history and the user's selections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neurontools.client.events import HostEvent
from neurontools.model import EndedProcess, Severity, Snapshot, VcpuUsage
from neurontools.views.drawing.figures import DeviceFilter, Figures, ProcessFigures
from neurontools.views.drawing.glyphs import UNICODE, Glyphs
from neurontools.views.drawing.lines import SELECTED, ClickTarget, Line, Run, TextPage, clip, fit, styled

if TYPE_CHECKING:
    from neurontools.client.samples import Series
    from neurontools.driver.processes import ProcessContext, ProcessTreeEntry
    from neurontools.model.health import Verdict

LAYOUTS = ("full", "compact", "classic")
"""Layouts of the overview: all panels; more room for jobs; the panels of AWS's neuron-top, in its order."""
OVERVIEW_PANELS = ("cores", "jobs", "history", "vcpus", "memory")
"""Panels of the overview below the findings, from the top, unless the user moves them."""
PLOT_METRICS = ("utilization", "flops", "executions", "memory")
_LEAST_SCROLL_LINES = 3
SEVERITY_STYLES = {Severity.CRITICAL: "bad", Severity.WARNING: "warn"}


@dataclass(frozen=True, slots=True)
class DisplayThresholds:
    """Thresholds for colours on the pages. They do not affect findings, which the daemon's rules produce."""

    idle_below_ratio: float = 0.02  # a held core below this utilization is idle
    late_after_seconds: float = 30.0  # time since the last execution ended; longer times are highlighted


@dataclass(frozen=True, slots=True)
class ShownMoment:
    """The moment that the page shows, for the title and the scrubber.

    `first` and `last` are the ends of the timeline, and `shown` is the shown moment, in seconds on the timeline.
    """

    badge: str = ""  # state in the title, such as "LIVE", "PAUSED", "REPLAY 2x" or "LOST, data 5 s old"
    style: str = "title_dim"
    problem: str = ""  # problem of the data source, in one line
    is_past: bool = False  # whether the shown moment is past, so that the page has a scrubber
    first: float = 0.0
    last: float = 0.0
    shown: float = 0.0
    shown_at_unix_seconds: float = 0.0
    event_times: tuple[float, ...] = ()
    recording: str = ""
    is_loading_past: bool = False  # a backfill is running
    first_at_unix_seconds: float | None = None  # time at which the known history starts


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """CPU and memory use of neuron-top itself; None means unknown."""

    vcpu_ratio: float | None  # CPU use; 1.0 is one busy vCPU
    resident_bytes: int | None


@dataclass(slots=True)
class RenderContext:
    """All input for drawing a page once. Contexts of the same snapshot may share `figures`."""

    snapshot: Snapshot
    figures: Figures
    series: Series | None = None  # history up to the shown moment; None: no history
    events: tuple[HostEvent, ...] = ()  # events up to the shown moment, oldest first
    verdicts: tuple[Verdict, ...] = ()
    ended: tuple[EndedProcess, ...] = ()  # processes that ended by the shown moment
    vcpus: tuple[VcpuUsage, ...] = ()  # usage of each vCPU since the previous snapshot; empty: unknown
    context_switches_per_second: float | None = None  # since the previous snapshot; None: unknown
    own_cost: ProcessCost | None = None  # CPU and memory use of neuron-top itself; None: not measured
    clock: ShownMoment = ShownMoment()
    glyphs: Glyphs = UNICODE
    page: str = "overview"
    pid: int | None = None  # the current tab's process; None: all processes
    show_flops: bool = False
    layout: str = "full"  # of the overview page: one of LAYOUTS
    panels: tuple[str, ...] = ()  # of the overview, from the top: names of OVERVIEW_PANELS; empty: all
    plot_metric: str = "utilization"  # of the overview's first plot: one of PLOT_METRICS
    is_legend_shown: bool = False  # whether a line above the tabs explains bars, colours and marks
    is_tree_shown: bool = False  # whether the overview page shows the memory tree instead of memory totals
    opened: frozenset[str] = frozenset()  # keys of the unfolded nodes of the memory tree
    unfolded: frozenset[str] = frozenset()  # keys of the unfolded jobs, whose processes are listed
    cursor: int = 0  # selected row of the page's list
    top: int = 0  # first visible row of the page's list
    sort: str = "pid"
    is_descending: bool = False
    then_sort: str = ""  # key of the secondary sort column; "": none
    is_then_descending: bool = False
    columns: tuple[str, ...] = ()  # keys of the columns of the process list; empty: all that fit
    filter_text: str = ""
    search_text: str = ""  # text to search for in the page's list
    match_rows: frozenset[int] = frozenset()  # positions of the list rows that match the search
    match_text: str = ""  # position of the selected row among the matches, such as "match 2 of 5"
    thresholds: DisplayThresholds = DisplayThresholds()
    # Maps the default key of an action to the text of the key that the user bound.
    key_texts: Mapping[str, str] = field(default_factory=dict)
    tagged: frozenset[int] = frozenset()
    details_pid: int | None = None
    is_time_shown: bool = False  # whether to show the time breakdown of a process instead of its details
    process_forest: tuple[ProcessTreeEntry, ...] | None = None  # trees, which replace the process list; None: the list
    process_context: ProcessContext | None = None  # environment and process tree, which replace the plots of a process
    colour_by: str = "utilization"  # colours on the topology page: by "utilization" or "memory"
    device_index: int = 0  # selected device on the topology and history pages
    core_index: int | None = None  # logical core that the history page plots; None: the whole device
    window_seconds: float = 60.0  # time window of the plots
    message: str = ""  # message for the key bar, such as the result of the last key
    is_read_only: bool = False
    has_keys: bool = True  # whether a keyboard is attached; if so, pages show key hints

    @classmethod
    def from_snapshot(
        cls, snapshot: Snapshot, device_filter: DeviceFilter | None = None, **choices: object
    ) -> RenderContext:
        """Returns a render context for a snapshot, limited to what `device_filter` selects; None selects everything."""
        figures = Figures(snapshot) if device_filter is None else device_filter.filtered_figures(snapshot)
        return cls(figures.snapshot, figures, **choices)  # type: ignore[arg-type]

    def key_hint(self, text: str) -> str:
        """Returns `text`, the hint for a key; "" if no keyboard is attached, as in a browser."""
        return text if self.has_keys else ""


def heading(context: RenderContext, text: str, width: int, right: str = "") -> Line:
    """Draws the heading of a section: `text` at the left of a horizontal rule, and `right` at its end."""
    rule = context.glyphs.rule
    text = clip(text, max(1, width - 3), mark=True)
    runs: list[Run] = [(rule + " ", "rule"), (text, "heading"), (" ", "rule")]
    used = 3 + len(text)
    if right and used + len(right) + 3 <= width:
        runs += [(rule * (width - used - len(right) - 3), "rule"), (f" {right} ", "dim"), (rule, "rule")]
    else:
        runs.append((rule * max(0, width - used), "rule"))
    return fit(runs, width)


def framed(context: RenderContext, page: TextPage, width: int) -> TextPage:
    """Draws a frame of `width` cells around a page. Adds a line at the bottom.

    All lines of the page must be `width - 2` cells wide. The headings of the sections become parts of the frame.
    """
    glyphs = context.glyphs
    top_left, top_right, bottom_left, bottom_right, left, right = ((corner, "rule") for corner in glyphs.corners)
    side: Run = (glyphs.vertical, "rule")
    lines: list[Line] = []
    for number, line in enumerate(page.lines):
        if line and line[0][1] == "rule":  # the heading of a section
            lines.append((left, *line, right) if number else (top_left, *line, top_right))
        else:
            lines.append((side, *line, side))
    lines.append((bottom_left, (glyphs.rule * (width - 2), "rule"), bottom_right))
    targets = [target.moved(0, 1) for target in page.targets]
    return TextPage(lines, targets, page.list_count, page.list_height, page.list_top)


def visible_top(cursor: int, top: int, height: int, count: int) -> int:
    """Returns the first visible row of a list after scrolling just far enough to show the selected row."""
    height = max(1, height)
    top = min(max(0, top), max(0, count - height))
    if cursor < top:
        return max(0, cursor)
    if cursor >= top + height:
        return cursor - height + 1
    return top


def add_scrolled_list(
    context: RenderContext, page: TextPage, count: int, height: int, draw: Callable[[int], Line]
) -> None:
    """Adds the rows of a list that fit in `height` lines, scrolled to the selected row, which is highlighted.

    `draw` returns the line of the row at a position of the list, which has `count` rows.
    """
    height = max(1, height)
    cursor = min(context.cursor, count - 1)
    top = visible_top(cursor, context.top, height, count)
    positions = range(top, min(count, top + height))
    lines = [styled(draw(position), SELECTED) if position == cursor else draw(position) for position in positions]
    page.add_list(lines, count, height, top)


def add_scroll_bar(page: TextPage, width: int, glyphs: Glyphs) -> None:
    """Draws a scroll bar in the frame beside the list if the list has more rows than the framed `page` shows.

    A click on the bar triggers the action "scroll" with the row of the list that becomes the first visible one.
    """
    rows = sorted({target.row for target in page.targets if target.action == "row"})
    hidden = page.list_count - len(rows)
    if hidden <= 0 or len(rows) < _LEAST_SCROLL_LINES:
        return
    thumb = max(1, len(rows) * len(rows) // page.list_count)
    first = round(min(1.0, page.list_top / hidden) * (len(rows) - thumb))
    for number, row in enumerate(rows):
        bar: Run = (glyphs.full, "dim") if first <= number < first + thumb else (glyphs.vertical, "rule")
        page.lines[row] = (*page.lines[row][:-1], bar)  # replaces the right side of the frame
        top = round(number / (len(rows) - 1) * hidden)
        page.targets.append(ClickTarget(row, width - 1, width, "scroll", str(top)))


def severity_mark(glyphs: Glyphs, severity: Severity) -> str:
    """Returns the character that marks a warning or a critical finding; " " for lower severities."""
    return {Severity.CRITICAL: glyphs.bad, Severity.WARNING: glyphs.warn}.get(severity, " ")


def shown_devices(context: RenderContext, pid: int | None) -> set[int] | None:
    """Returns the indices of a process's devices; None, which stands for all devices, if `pid` is None."""
    if pid is None:
        return None
    return {device for figures in context.figures.tab_figures(pid) for device in figures.process.device_indices}


def shown_events(context: RenderContext, pid: int | None) -> tuple[HostEvent, ...]:
    """Returns the events of a process and its devices; all events if `pid` is None."""
    devices = shown_devices(context, pid)
    if devices is None:
        return context.events
    return tuple(
        event for event in context.events if (event.device_index in devices if event.pid is None else event.pid == pid)
    )


@dataclass(frozen=True, slots=True)
class SearchEntry:
    """A searchable row of a list. A search finds the row if its text or one of its processes matches."""

    key: str  # identifies the row; unique in the list and stable between snapshots
    text: str = ""
    processes: tuple[ProcessFigures, ...] = ()
    within: tuple[str, ...] = ()  # keys of the rows to unfold to show this row
