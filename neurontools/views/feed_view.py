"""View of a feed: holds the user's selections and builds the render context that pages are drawn from.

The terminal dashboard and the browser pages share this module.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from neurontools.client.backfill import EndedProcessFetch, EndedProcessLog
from neurontools.client.events import HostEvent
from neurontools.client.feed import Feed, LiveFeed
from neurontools.driver.processes import (
    OwnUsage,
    ProcessContext,
    ProcessTreeEntry,
    read_process_context,
    read_process_forest,
)
from neurontools.model import EndedProcess, Host, Snapshot, VcpuUsage
from neurontools.model.health import verdicts
from neurontools.model.host import vcpu_usage_between
from neurontools.views.dashboard_settings import DashboardSettings
from neurontools.views.drawing.figures import DeviceFilter, Figures
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.render_context import DisplayThresholds, ProcessCost, RenderContext
from neurontools.views.overview_page import job_rows
from neurontools.views.process_table import JobRow
from neurontools.views.process_tree import tree_rows
from neurontools.views.processes_page import process_rows
from neurontools.views.screen import list_entries, match_position, matching_rows, page_named
from neurontools.views.time_cursor import TimeCursor

# Errors that corrupt data in a recording can cause; callers report the error and can still show other moments.
CORRUPT_DATA_ERRORS = (ArithmeticError, LookupError, ValueError, TypeError, OSError)
DEVICE_PAGES = ("topology", "history")
JOB_PAGES = ("overview", "processes")
_VERDICT_PAGES = ("health", "topology")
_EVENT_PAGES = ("overview", "health", "history", "heatmap", "processes")
_AGAIN_SECONDS = 5.0
_COST_SECONDS = 1.0
_LONGEST_APART_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class HostRates:
    """Use of each vCPU and rate of context switches, from the snapshot before to the one taken at `at_seconds`."""

    at_seconds: float
    vcpus: tuple[VcpuUsage, ...] = ()
    context_switches_per_second: float | None = None


class AuxiliaryData:
    """Data that a snapshot lacks: ended processes, vCPU use, neuron-top's own cost, and environments of processes.

    Reads each kind only when a page needs it. Not thread-safe.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._ended_log = EndedProcessLog()
        self._fetch: EndedProcessFetch | None = None
        self._process_context: tuple[float, ProcessContext] | None = None
        self._process_forest: tuple[float, tuple[ProcessTreeEntry, ...]] | None = None
        self._host: tuple[float, Host] | None = None  # time and host of the last snapshot of `host_rates`
        self._rates = HostRates(-1.0)
        self._own_usage = OwnUsage()
        self._own_at_seconds = float("-inf")

    def ended(self, snapshot: Snapshot) -> tuple[EndedProcess, ...]:
        """Returns the processes that ended before a snapshot. Asks the daemon once for the processes that it knows."""
        if self._fetch is None and isinstance(self._feed, LiveFeed):
            self._fetch = EndedProcessFetch(self._feed.socket_path)
        if self._fetch is not None:
            self._ended_log.add(self._fetch.take_reply())
        self._ended_log.read(self._feed.timeline)
        return self._ended_log.until(snapshot.taken_at_unix_seconds)

    def host_rates(self, snapshot: Snapshot, index: int) -> HostRates:
        """Returns rates since the previous snapshot. `index` is the timeline index of `snapshot`."""
        at_seconds, host = snapshot.taken_at_seconds, snapshot.host
        if self._rates.at_seconds == at_seconds:
            return self._rates
        before = self._host
        if (before is None or not 0 < at_seconds - before[0] <= _LONGEST_APART_SECONDS) and index > 0:
            earlier = self._feed.timeline.moments[index - 1].snapshot()
            before = earlier.taken_at_seconds, earlier.host
        vcpus, per_second = host.vcpus, None
        if before is not None and before[0] < at_seconds:
            spent = vcpu_usage_between(host.vcpu_times, before[1].vcpu_times) if before[1].vcpu_times else None
            vcpus = spent[1] if spent is not None else vcpus
            totals = before[1].context_switches_total, host.context_switches_total
            if totals[0] is not None and totals[1] is not None and totals[0] <= totals[1]:
                per_second = (totals[1] - totals[0]) / (at_seconds - before[0])
        self._host, self._rates = (at_seconds, host), HostRates(at_seconds, vcpus, per_second)
        return self._rates

    def own_cost(self) -> ProcessCost | None:
        """Returns the CPU and memory use of neuron-top itself over the last second; None for a recording."""
        if not isinstance(self._feed, LiveFeed):
            return None
        now_seconds = time.monotonic()
        if now_seconds - self._own_at_seconds >= _COST_SECONDS:
            self._own_at_seconds = now_seconds
            self._own_usage.measure()
        return ProcessCost(self._own_usage.vcpu_ratio, self._own_usage.resident_bytes)

    def process_context(self, figures: Figures, pid: int | None) -> ProcessContext | None:
        """Returns the environment and tree of a process, as far as this user may read them. Reads them every 5 s."""
        selected = figures.by_pid.get(pid) if pid is not None else None
        if selected is None or pid is None:
            return None
        if not isinstance(self._feed, LiveFeed):
            text = "a recording has neither environment nor tree: they are read where a process runs"
            return ProcessContext(pid, text)
        if selected.process.synthetic:
            return ProcessContext(pid, "synthetic: there is no such process")
        now_seconds = time.monotonic()
        cached = self._process_context
        if cached is None or cached[1].pid != pid or now_seconds - cached[0] >= _AGAIN_SECONDS:
            found = read_process_context(pid, selected.process.started_at_unix_seconds)
            cached = self._process_context = now_seconds, found
        return cached[1]

    def process_forest(self, figures: Figures) -> tuple[ProcessTreeEntry, ...]:
        """Returns the trees of the processes that use devices and run here. Reads them every 5 s; () in a replay."""
        if not isinstance(self._feed, LiveFeed):
            return ()
        now_seconds = time.monotonic()
        cached = self._process_forest
        if cached is None or now_seconds - cached[0] >= _AGAIN_SECONDS:
            processes = [each.process for each in figures.by_pid.values() if not each.process.synthetic]
            found = read_process_forest({process.pid: process.started_at_unix_seconds for process in processes})
            cached = self._process_forest = now_seconds, found
        return cached[1]


@dataclass(slots=True)
class ListState:
    """Cursor and scroll position of a list: selected row, first visible row, visible rows and all rows."""

    cursor: int = 0
    top: int = 0
    height: int = 1
    count: int = 0


@dataclass
class FeedView:
    """The user's selections in the view of a feed; builds the render context from them. Not thread-safe."""

    feed: Feed
    settings: DashboardSettings
    glyphs: Glyphs
    is_read_only: bool = False
    pid: int | None = None
    is_tree_shown: bool = False
    opened: frozenset[str] = frozenset()
    unfolded: frozenset[str] = frozenset()
    filter_text: str = ""
    searches: dict[str, str] = field(default_factory=dict)  # search text by list
    selected_rows: dict[str, str] = field(default_factory=dict)  # key of the selected job or process, by page
    is_forest_shown: bool = False  # whether the process list shows the tree of all processes
    details_pid: int | None = None
    is_context_shown: bool = False  # whether process details show environment and process tree, not plots
    is_time_shown: bool = False  # whether process details show the time breakdown, not plots
    device_index: int = 0
    core_index: int | None = None
    device_filter: DeviceFilter = DeviceFilter()
    hidden_devices: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.time = TimeCursor(self.feed)
        self.auxiliary = AuxiliaryData(self.feed)
        self.page = page_named(self.settings.first_page).name
        self.is_tree_shown |= self.settings.layout == "classic"
        self.lists: dict[str, ListState] = {}
        self._figures: Figures | None = None
        self._shown: Snapshot | None = None

    @property
    def list(self) -> ListState:
        """Cursor and scroll position of the visible list."""
        return self.lists.setdefault(self._list_name, ListState())

    @property
    def _list_name(self) -> str:
        if self.page == "processes" and self.details_pid is None and self.is_forest_shown:
            return "forest"
        return "context" if self.is_context_list else self.page

    @property
    def search_text(self) -> str:
        return self.searches.get(self._list_name, "")

    @search_text.setter
    def search_text(self, text: str) -> None:
        self.searches[self._list_name] = text

    @property
    def is_context_list(self) -> bool:
        """Whether the visible list is the environment and process tree of a process."""
        are_shown = self.is_context_shown and not self.is_time_shown
        return self.page == "processes" and self.details_pid is not None and are_shown

    @property
    def current_filter(self) -> str:
        """The filter to apply. The dashboard overrides this property while the user types a filter."""
        return self.filter_text

    @property
    def current_search(self) -> str:
        """The search to apply. The dashboard overrides this property while the user types a search."""
        return self.search_text

    def recording_name(self) -> str:
        """Returns the file name of the recording in progress; "" if no recording is written."""
        return ""

    def show_message(self, text: str) -> None:
        """Shows a message for some seconds. Overridden by the dashboard; browser pages ignore messages."""

    def render_context(self) -> RenderContext | None:
        """Returns the render context of the shown moment; None before the first snapshot."""
        timeline = self.feed.timeline
        index = self.time.index
        if index is None:
            return None
        snapshot = timeline.snapshot(index)
        if self._figures is None or self._shown is not snapshot:
            self._shown, self._figures = snapshot, self.device_filter.filtered_figures(snapshot, self.hidden_devices)
        snapshot = self._figures.snapshot
        if self.pid is not None and self.pid not in self._figures.ranks:
            self.show_message(f"PID {self.pid} holds no cores any more; all processes are shown")
            self.pid = None
        settings = self.settings
        where = self.list
        if self.page in DEVICE_PAGES:
            where.cursor = self.device_index
        context = RenderContext(
            snapshot=snapshot,
            figures=self._figures,
            series=timeline.series(index),
            events=self._shown_events(index) if self.page in _EVENT_PAGES else (),
            clock=self.time.clock(self.recording_name()),
            glyphs=self.glyphs,
            page=self.page,
            pid=self.pid,
            show_flops=settings.show_flops,
            layout=settings.layout,
            is_legend_shown=settings.is_legend_shown,
            is_tree_shown=self.is_tree_shown,
            opened=self.opened,
            unfolded=self.unfolded,
            cursor=where.cursor,
            top=where.top,
            sort=settings.sort,
            is_descending=settings.is_descending,
            then_sort=settings.then_sort,
            is_then_descending=settings.is_then_descending,
            columns=settings.columns,
            filter_text=self.current_filter,
            search_text=self.current_search,
            thresholds=DisplayThresholds(settings.idle_below_percent / 100, settings.late_after_seconds),
            details_pid=self.details_pid,
            is_time_shown=self.is_time_shown,
            colour_by=settings.colour_by,
            panels=settings.panels,
            plot_metric=settings.plot_metric,
            device_index=min(self.device_index, max(0, len(snapshot.devices) - 1)),
            core_index=self.core_index,
            window_seconds=settings.window_seconds,
            is_read_only=self.is_read_only,
        )
        if self.page in _VERDICT_PAGES:
            context.verdicts = verdicts(snapshot)
        if self.is_context_list:
            context.process_context = self.auxiliary.process_context(self._figures, self.details_pid)
        elif self.page in JOB_PAGES:
            if self._list_name == "forest":
                context.process_forest = self.auxiliary.process_forest(self._figures)
            self._follow_selected(context)
        elif self.page == "usage":
            context.ended = self.device_filter.filter_ended(self.auxiliary.ended(snapshot), snapshot, self._hidden)
        elif self.page == "host":
            rates = self.auxiliary.host_rates(snapshot, index)
            context.vcpus, context.context_switches_per_second = rates.vcpus, rates.context_switches_per_second
            context.own_cost = self.auxiliary.own_cost()
        if context.search_text:
            context.match_rows = frozenset(matching_rows(context, list_entries(context)))
            context.match_text = match_position(context)
        return context

    @property
    def _hidden(self) -> frozenset[int]:
        """Indices of the devices that are not shown."""
        return self._figures.hidden_devices if self._figures is not None else frozenset()

    def _shown_events(self, index: int) -> tuple[HostEvent, ...]:
        hidden, events = self._hidden, self.feed.timeline.events(index)
        return tuple(each for each in events if each.device_index not in hidden) if hidden else events

    def hide_devices(self, indices: frozenset[int]) -> None:
        self.hidden_devices = indices
        self._shown = None

    def rows(self, context: RenderContext) -> Sequence[JobRow] | None:
        """Returns the rows of jobs and processes on the current page; None if the page lists something else."""
        if context.page == "processes":
            is_list = context.process_context is None and context.process_forest is None
            return process_rows(context) if is_list else None
        return job_rows(context) if context.page == "overview" and not context.is_tree_shown else None

    def row_keys(self, context: RenderContext) -> Sequence[str] | None:
        """Returns the keys of the rows of jobs and processes on the current page; None if it lists something else."""
        if context.process_forest is not None:
            return [str(entry.pid) for entry in tree_rows(context)]
        rows = self.rows(context)
        return None if rows is None else [row.key for row in rows]

    def _follow_selected(self, context: RenderContext) -> None:
        """Moves the cursor to the current row of the selected job or process. Rows can move between snapshots."""
        keys = self.row_keys(context)
        if keys is None:
            return
        where = self.list
        selected = self.selected_rows.get(self.page)
        if selected in keys:
            where.cursor = keys.index(selected)
        elif keys:
            where.cursor = min(where.cursor, len(keys) - 1)
            self.selected_rows[self.page] = keys[where.cursor]
        context.cursor = where.cursor
