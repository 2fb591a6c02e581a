"""What a page is drawn from: a moment of a host, its past, and what the reader has chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neurontools.model import EndedProcess, Snapshot, VcpuUsage
from neurontools.views.drawing.figures import Figures
from neurontools.views.drawing.glyphs import UNICODE, Glyphs
from neurontools.views.drawing.narrowing import Narrowing
from neurontools.views.drawing.thresholds import Thresholds

if TYPE_CHECKING:
    from neurontools.client.history.events import Event
    from neurontools.client.history.series import Series
    from neurontools.driver.process_context import ProcessContext
    from neurontools.model.health import Verdict


@dataclass(frozen=True, slots=True)
class Clock:
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
class Cost:
    """What a program costs; None: not known (yet)."""

    vcpu_ratio: float | None  # 1.0 is one vCPU busy
    resident_bytes: int | None


@dataclass(slots=True)
class Scene:
    """One moment as chosen to be seen. Made anew for each drawing; `figures` may be shared by all of one snapshot."""

    snapshot: Snapshot
    figures: Figures
    series: Series | None = None  # the past up to the moment shown; None: there is none to show
    events: tuple[Event, ...] = ()  # up to the moment shown, oldest first
    verdicts: tuple[Verdict, ...] = ()
    ended: tuple[EndedProcess, ...] = ()  # that is known to have ended by the moment shown
    vcpus: tuple[VcpuUsage, ...] = ()  # one by one, since the moment before; empty where that is not known
    own_cost: Cost | None = None  # of this program; None: it is not measured
    clock: Clock = Clock()
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
    thresholds: Thresholds = Thresholds()
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
    def of(cls, snapshot: Snapshot, narrowing: Narrowing | None = None, **choices: object) -> Scene:
        """A scene of a snapshot alone, or of a part of it."""
        figures = Figures(snapshot) if narrowing is None else narrowing.figures(snapshot)
        return cls(figures.snapshot, figures, **choices)  # type: ignore[arg-type]

    def key_hint(self, text: str) -> str:
        """What tells of a key, where there are keys."""
        return text if self.has_keys else ""


def visible_top(cursor: int, top: int, height: int, count: int) -> int:
    """The first visible row of a list, moved no more than needed for the selected row to be visible."""
    height = max(1, height)
    top = min(max(0, top), max(0, count - height))
    if cursor < top:
        return max(0, cursor)
    if cursor >= top + height:
        return cursor - height + 1
    return top
