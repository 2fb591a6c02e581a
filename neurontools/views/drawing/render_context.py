"""The input of every page: a snapshot, its history and what the user has selected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neurontools.client.events import HostEvent
from neurontools.model import EndedProcess, Snapshot, VcpuUsage
from neurontools.views.drawing.figures import DeviceFilter, Figures, ProcessFigures
from neurontools.views.drawing.glyphs import UNICODE, Glyphs
from neurontools.views.drawing.lines import Line, Run, clip, fit

if TYPE_CHECKING:
    from neurontools.client.series import Series
    from neurontools.driver.process_context import ProcessContext
    from neurontools.model.health import Verdict


@dataclass(frozen=True, slots=True)
class DisplayThresholds:
    """Thresholds of colours on the pages. The daemon's rules decide about findings; these do not."""

    idle_below_ratio: float = 0.02  # a held core below this utilization is idle
    late_after_seconds: float = 30.0  # since the last execution ended


@dataclass(frozen=True, slots=True)
class ShownMoment:
    """The moment on the screen, for the title and the scrubber. Times are seconds of the timeline."""

    badge: str = ""  # "STARTING", then "LIVE", "PAUSED", "REPLAY" or "LOST"
    style: str = "title_dim"
    trouble: str = ""  # what is wrong with the data source, in one line
    is_past: bool = False  # shows the scrubber
    first: float = 0.0
    last: float = 0.0
    shown: float = 0.0
    shown_at_unix_seconds: float = 0.0
    event_times: tuple[float, ...] = ()
    recording: str = ""
    is_loading_past: bool = False  # a backfill is running
    first_at_unix_seconds: float | None = None  # start of the known history


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """CPU and memory use of this program; None: unknown."""

    vcpu_ratio: float | None  # 1.0 is one busy vCPU
    resident_bytes: int | None


@dataclass(slots=True)
class RenderContext:
    """Everything a page is drawn from. One per drawing; the contexts of a snapshot may share `figures`."""

    snapshot: Snapshot
    figures: Figures
    series: Series | None = None  # history up to the shown moment; None: no history
    events: tuple[HostEvent, ...] = ()  # up to the shown moment, oldest first
    verdicts: tuple[Verdict, ...] = ()
    ended: tuple[EndedProcess, ...] = ()  # processes that ended by the shown moment
    vcpus: tuple[VcpuUsage, ...] = ()  # usage of each vCPU since the previous snapshot; empty: unknown
    own_cost: ProcessCost | None = None  # of this program; None: not measured
    clock: ShownMoment = ShownMoment()
    glyphs: Glyphs = UNICODE
    page: str = "overview"
    pid: int | None = None  # the current tab's process; None: all processes
    show_flops: bool = False
    is_compact: bool = False  # overview: show the most jobs, the other sections in few lines
    is_tree_shown: bool = False  # overview: show the memory tree instead of the summary
    opened: frozenset[str] = frozenset()  # open nodes of the memory tree
    unfolded: frozenset[str] = frozenset()  # jobs whose processes are listed
    cursor: int = 0  # selected row of the page's list
    top: int = 0  # first visible row of the page's list
    sort: str = "pid"
    is_descending: bool = False
    then_sort: str = ""  # the secondary sort column
    is_then_descending: bool = False
    columns: tuple[str, ...] = ()  # of the process list; empty: those that fit
    filter_text: str = ""
    search_text: str = ""  # the search in the page's list
    found: frozenset[int] = frozenset()  # positions of the matching rows
    found_text: str = ""  # the current match and the number of matches, as text
    thresholds: DisplayThresholds = DisplayThresholds()
    key_texts: Mapping[str, str] = field(default_factory=dict)  # rebound keys as text, by default key
    tagged: frozenset[int] = frozenset()
    details_pid: int | None = None
    is_time_shown: bool = False  # show where the time of the process goes instead of its details
    surroundings: ProcessContext | None = None  # environment and process tree, shown instead of the plots
    colour_by: str = "utilization"  # topology: utilization or memory
    device_index: int = 0  # selected device of topology and history
    core_index: int | None = None  # history: a logical core; None: the whole device
    window_seconds: float = 60.0  # of the plots
    message: str = ""  # result of the last key, in one line
    is_read_only: bool = False
    has_keys: bool = True  # a keyboard is attached, so pages show key hints
    notes: list[str] = field(default_factory=list)

    @classmethod
    def from_snapshot(
        cls, snapshot: Snapshot, narrowing: DeviceFilter | None = None, **choices: object
    ) -> RenderContext:
        """Returns a context of one snapshot, or of the part that a filter selects."""
        figures = Figures(snapshot) if narrowing is None else narrowing.filtered_figures(snapshot)
        return cls(figures.snapshot, figures, **choices)  # type: ignore[arg-type]

    def key_hint(self, text: str) -> str:
        """Returns `text`, or "" without a keyboard."""
        return text if self.has_keys else ""


def heading(context: RenderContext, text: str, width: int, right: str = "") -> Line:
    """Draws the heading of a section: its text in a rule of the whole width."""
    rule = context.glyphs.rule
    text = clip(text, max(1, width - 3), mark=True)
    runs: list[Run] = [(rule + " ", "rule"), (text, "heading"), (" ", "rule")]
    used = 3 + len(text)
    if right and used + len(right) + 3 <= width:
        runs += [(rule * (width - used - len(right) - 3), "rule"), (f" {right} ", "dim"), (rule, "rule")]
    else:
        runs.append((rule * max(0, width - used), "rule"))
    return fit(runs, width)


def visible_top(cursor: int, top: int, height: int, count: int) -> int:
    """Returns the first visible row of a list, scrolled as little as possible to show the selected row."""
    height = max(1, height)
    top = min(max(0, top), max(0, count - height))
    if cursor < top:
        return max(0, cursor)
    if cursor >= top + height:
        return cursor - height + 1
    return top


def shown_devices(context: RenderContext, pid: int | None) -> set[int] | None:
    """Returns the devices of a process; None, for all devices, if `pid` is None."""
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
    """A row of a list as the search sees it. It matches by its text, or by a filter on one of its processes."""

    key: str  # unique in the list and stable between snapshots
    text: str = ""
    processes: tuple[ProcessFigures, ...] = ()
    within: tuple[str, ...] = ()  # keys of the rows that must be unfolded to show it
