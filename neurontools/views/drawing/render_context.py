"""The input of every page: a snapshot, its history and what the user has selected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neurontools.client.history.events import Event
from neurontools.model import EndedProcess, Snapshot, VcpuUsage
from neurontools.views.drawing.figures import DeviceFilter, Figures, ProcessFigures
from neurontools.views.drawing.glyphs import UNICODE, Glyphs
from neurontools.views.drawing.lines import Line, Run, clip, fit

if TYPE_CHECKING:
    from neurontools.client.history.series import Series
    from neurontools.driver.process_context import ProcessContext
    from neurontools.model.health import Verdict


@dataclass(frozen=True, slots=True)
class DisplayThresholds:
    """Chosen by the reader."""

    idle_below_ratio: float = 0.02  # a core that is held and less busy than this is idle
    late_after_seconds: float = 30.0  # since the last execution ended


@dataclass(frozen=True, slots=True)
class ShownMoment:
    """Which moment is shown, as the title and the scrubber tell it. Moments are places in the timeline, in seconds."""

    badge: str = ""  # "LIVE", "PAUSED", "REPLAY", "LOST"; "STARTING" until it is known which
    style: str = "title_dim"
    trouble: str = ""  # a line: what is wrong with the source
    is_past: bool = False  # the scrubber is to be seen
    first: float = 0.0
    last: float = 0.0
    shown: float = 0.0
    shown_at_unix_seconds: float = 0.0
    event_times: tuple[float, ...] = ()
    recording: str = ""
    is_loading_past: bool = False  # more of the past is still to come than is known
    first_at_unix_seconds: float | None = None  # since when the past is known


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """What a program costs; None: not known (yet)."""

    vcpu_ratio: float | None  # 1.0 is one vCPU busy
    resident_bytes: int | None


@dataclass(slots=True)
class RenderContext:
    """One moment as chosen to be seen. Made anew for each drawing; `figures` may be shared by all of one snapshot."""

    snapshot: Snapshot
    figures: Figures
    series: Series | None = None  # the past up to the moment shown; None: there is none to show
    events: tuple[Event, ...] = ()  # up to the moment shown, oldest first
    verdicts: tuple[Verdict, ...] = ()
    ended: tuple[EndedProcess, ...] = ()  # that is known to have ended by the moment shown
    vcpus: tuple[VcpuUsage, ...] = ()  # one by one, since the moment before; empty where that is not known
    own_cost: ProcessCost | None = None  # of this program; None: it is not measured
    clock: ShownMoment = ShownMoment()
    glyphs: Glyphs = UNICODE
    page: str = "overview"
    pid: int | None = None  # the current tab: a process, or None for all
    show_flops: bool = False
    is_compact: bool = False  # the overview: as many jobs as there is room for, and the rest in few lines
    is_tree_shown: bool = False  # the memory tree in place of its summary
    opened: frozenset[str] = frozenset()  # open nodes of the memory tree
    unfolded: frozenset[str] = frozenset()  # jobs whose processes are listed
    cursor: int = 0  # the selected row of the page's list
    top: int = 0  # its first visible row
    sort: str = "pid"
    is_descending: bool = False
    then_sort: str = ""  # the column that decides where the first is alike
    is_then_descending: bool = False
    columns: tuple[str, ...] = ()  # of the process list; none: those that there is room for
    filter_text: str = ""
    search_text: str = ""  # what is looked for in the page's list
    found: frozenset[int] = frozenset()  # its rows in which that is, by position
    found_text: str = ""  # which match the cursor is at, of how many
    thresholds: DisplayThresholds = DisplayThresholds()
    key_texts: Mapping[str, str] = field(default_factory=dict)  # keys that were changed: by the usual key, in words
    tagged: frozenset[int] = frozenset()
    details_pid: int | None = None
    is_time_shown: bool = False  # in place of the details: where the time of the process goes
    surroundings: ProcessContext | None = None  # of the process of the details, in place of its plots
    colour_by: str = "utilization"  # of the topology: utilization, memory
    device_index: int = 0  # the device that topology and history look at
    core_index: int | None = None  # of the history: a logical core, or None for the whole device
    window_seconds: float = 60.0  # of the plots
    message: str = ""  # what the last key did, in a line
    is_read_only: bool = False
    has_keys: bool = True  # of a keyboard, so that pages tell those that lead on
    notes: list[str] = field(default_factory=list)

    @classmethod
    def from_snapshot(
        cls, snapshot: Snapshot, narrowing: DeviceFilter | None = None, **choices: object
    ) -> RenderContext:
        """A context of a snapshot alone, or of a part of it."""
        figures = Figures(snapshot) if narrowing is None else narrowing.filtered_figures(snapshot)
        return cls(figures.snapshot, figures, **choices)  # type: ignore[arg-type]

    def key_hint(self, text: str) -> str:
        """What tells of a key, where there are keys."""
        return text if self.has_keys else ""


def heading(context: RenderContext, text: str, width: int, right: str = "") -> Line:
    """A section's heading: its text in a rule over the whole width."""
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
    """The first visible row of a list, moved no more than needed for the selected row to be visible."""
    height = max(1, height)
    top = min(max(0, top), max(0, count - height))
    if cursor < top:
        return max(0, cursor)
    if cursor >= top + height:
        return cursor - height + 1
    return top


def shown_devices(context: RenderContext, pid: int | None) -> set[int] | None:
    """The devices of a process; None, all of them, where none is chosen."""
    if pid is None:
        return None
    return {device for figures in context.figures.tab_figures(pid) for device in figures.process.device_indices}


def shown_events(context: RenderContext, pid: int | None) -> tuple[Event, ...]:
    """What has happened to a process and to its devices; all for None."""
    devices = shown_devices(context, pid)
    if devices is None:
        return context.events
    return tuple(
        event for event in context.events if (event.device_index in devices if event.pid is None else event.pid == pid)
    )


@dataclass(frozen=True, slots=True)
class SearchEntry:
    """One row. It is found by the words of its text, and by what finds one of its processes."""

    key: str  # unique in the list, and the same from one moment to the next
    text: str = ""
    processes: tuple[ProcessFigures, ...] = ()
    within: tuple[str, ...] = ()  # the rows that have to be open for it to be seen
