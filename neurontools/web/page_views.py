"""Renderers of the browser pages of one host, and of the page of many hosts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from neurontools.client.feed import Feed, FeedState
from neurontools.fleet.feed import FleetFeed
from neurontools.fleet.states import USER, grouping_choices
from neurontools.model.finding import Severity
from neurontools.model.health import count_devices_by_severity
from neurontools.views.drawing.glyphs import BLOCKS
from neurontools.views.drawing.lines import ClickTarget, TextPage, fit, printable
from neurontools.views.drawing.render_context import RenderContext
from neurontools.views.feed_view import CORRUPT_DATA_ERRORS, DashboardSettings, FeedView
from neurontools.views.fleet_hosts import list_rows
from neurontools.views.fleet_page import SORTS, FleetContext, fleet_page, matches_filter
from neurontools.views.process_table import BY_KEY
from neurontools.views.screen import PAGES, page_named, tab_bar, title_bar
from neurontools.web.markup import Link as LinkOf
from neurontools.web.markup import PageFrame, Row, RowKind, rows_of
from neurontools.web.page_query import MAX_TEXT_LENGTH, WINDOWS_SECONDS, PageQuery
from neurontools.web.privacy_filter import PrivacyFilter

PAGE_NAMES = tuple(page.name for page in PAGES)
_DEFAULT_LINES = 50  # lines of a page; more if its lists need them
_MAX_LINES = 2000


class HostView:
    """Renders the pages of one host. Not thread-safe.

    Opens the feed with `open_feed` for the first viewer, and closes it after the last viewer. `base` is the URL path of
    the pages and ends with a slash. `notes` appear below each page. `hiding` removes data that viewers may not see. If
    the server shows many hosts, `above` has text and URL of links to the page of all hosts; `name` is this host's name.
    """

    def __init__(
        self,
        base: str,
        open_feed: Callable[[], Feed],
        hiding: PrivacyFilter,
        *,
        notes: tuple[str, ...] = (),
        above: tuple[tuple[str, str], ...] = (),
        name: str = "",
    ) -> None:
        self.base = base
        self._notes = notes
        self._above = above
        self._name = name
        self._open_feed = open_feed
        self._hiding = hiding
        self._feed: Feed | None = None
        self._states: dict[PageQuery, FeedView] = {}

    @property
    def page_names(self) -> tuple[str, ...]:
        """The names of the pages. Omits the usage page if users are hidden."""
        return tuple(name for name in PAGE_NAMES if self._hiding.shows_users or name != "usage")

    @property
    def is_awake(self) -> bool:
        """Whether the feed is open."""
        return self._feed is not None

    pause_seconds = 1.0

    def start(self) -> None:
        """Opens the feed for the first viewer."""
        if self._feed is None:
            self._feed = self._open_feed()

    def process_data(self) -> None:
        """Moves new snapshots of the feed into its timeline."""
        if self._feed is not None:
            self._feed.drain()

    def stop(self) -> None:
        feed, self._feed = self._feed, None
        self._states.clear()
        if feed is not None:
            feed.close()

    def draw(self, choice: PageQuery) -> tuple[str, tuple[Row, ...]]:
        """Returns the window title and the rows of a page, or a message if there is no snapshot."""
        feed = self._feed
        if feed is None:
            return "neuron-top", ()
        feed.drain()
        state = self._state(choice, feed)
        width = choice.columns
        try:
            context = state.render_context()
            if context is None:
                return "neuron-top", _message_rows(feed.status.text or "waiting for the first snapshot", width)
            context.has_keys = False
            context.ended = self._hiding.ended(context.ended)
            context.cursor = -1 if choice.page not in ("topology", "history") else context.cursor
            return self._draw_page(context, choice, width)
        except CORRUPT_DATA_ERRORS as error:
            return "neuron-top", _message_rows(f"this moment can't be drawn: {type(error).__name__}: {error}", width)

    def _draw_page(self, context: RenderContext, choice: PageQuery, width: int) -> tuple[str, tuple[Row, ...]]:
        link = self._link(context, choice)
        page = page_named(choice.page)
        body = page.draw(context, width, _DEFAULT_LINES)
        hidden = body.list_count - body.list_height
        if hidden > 0:
            body = page.draw(context, width, min(_MAX_LINES, _DEFAULT_LINES + hidden))
        rows = [*rows_of(title_bar(context, width), link), *rows_of(body, link)]
        if context.clock.problem:
            rows += rows_of(_line(context.clock.problem, "bad", width), link)
        rows += rows_of(tab_bar(context, width), link, RowKind.TABS)
        return self._window_title(context), tuple(rows)

    def _window_title(self, context: RenderContext) -> str:
        instance = context.snapshot.instance
        found = count_devices_by_severity(context.snapshot)
        words = [(Severity.CRITICAL, "critical"), (Severity.WARNING, "warning")]
        parts = [f"{found[severity]} {word}" for severity, word in words if found.get(severity)]
        if self._feed is not None and self._feed.status.link is not FeedState.LIVE:
            parts = [context.clock.badge]
        badge = f"{', '.join(parts)}: " if parts else ""
        return f"{badge}{printable(self._name or instance.instance_id or instance.instance_type, 60)} - neuron-top"

    def frame(self, choice: PageQuery, title: str) -> PageFrame:
        """Returns the navigation, options, search form and notes of a page."""
        above = [(text, address, False) for text, address in self._above]
        links = [(page_named(name).title, self.address(choice, name), name == choice.page) for name in self.page_names]
        options: list[tuple[str, tuple[tuple[str, str, bool], ...]]] = []
        if page_named(choice.page).shows_past:
            windows = tuple(
                (f"{seconds // 60} min", self.address(choice, window=seconds), seconds == choice.window)
                for seconds in WINDOWS_SECONDS
            )
            options.append(("Time shown", windows))
        if choice.page == "overview":
            options.append(("Memory", self._toggle_links(choice, "tree", "summary", "by process, device and model")))
        elif choice.page == "processes" and choice.details is not None:
            options.append(("Process", self._toggle_links(choice, "time", "facts and plots", "where its time goes")))
        search = None
        if choice.page == "processes" and choice.details is None:
            search = choice.filter, tuple((name, str(value)) for name, value in choice.parameters(filter=""))
        return PageFrame(title, (*above, *links), tuple(options), search, self._notes, printable(self._name, 80))

    def _toggle_links(self, choice: PageQuery, name: str, no: str, yes: str) -> tuple[tuple[str, str, bool], ...]:
        """Returns the links that turn the option `name` off and on: text, URL, and whether it is the current value."""
        is_chosen = bool(getattr(choice, name))
        changes: tuple[dict[str, Any], ...] = ({name: 0}, {name: 1})
        off, on = (self.address(choice, **change) for change in changes)
        return (no, off, not is_chosen), (yes, on, is_chosen)

    def _state(self, choice: PageQuery, feed: Feed) -> FeedView:
        """Returns the state of the view for a query, from a cache of at most 64 states."""
        state = self._states.get(choice)
        if state is None:
            if len(self._states) >= 64:
                self._states.clear()
            settings = DashboardSettings(window_seconds=float(choice.window), is_descending=bool(choice.descending))
            if choice.sort in BY_KEY:
                settings.sort = choice.sort
            state = self._states[choice] = FeedView(feed, settings, BLOCKS, is_read_only=True)
            state.page = choice.page
            state.device_index, state.core_index = choice.device, choice.core
            state.filter_text = choice.filter
            state.is_tree_shown, state.is_time_shown = bool(choice.tree), bool(choice.time)
            state.unfolded = frozenset({choice.open}) if choice.open else frozenset()
        state.pid, state.details_pid = choice.pid, choice.details
        return state

    def _link(self, context: RenderContext, choice: PageQuery) -> LinkOf:
        """Returns a function that maps a click target to the URL of its link."""
        rows = None

        def link(target: ClickTarget) -> str:
            nonlocal rows
            action, argument = target.action, target.argument
            if action == "page":
                return self.address(choice, argument)
            if action == "tab":
                return self.address(choice, pid=int(argument) if argument else None, details=None)
            if action == "device":
                on = choice.page if choice.page in ("topology", "history") else "topology"
                return self.address(choice, on, device=int(argument), core=None)
            if action == "core":
                return self.address(choice, core=int(argument))
            if action == "sort":
                is_again = argument == context.sort
                return self.address(choice, sort=argument, descending=int(is_again and not context.is_descending))
            if action == "row" and choice.page in ("overview", "processes"):
                if rows is None:
                    rows = self._states[choice].rows(context) or ()
                row = rows[int(argument)] if int(argument) < len(rows) else None
                if row is not None and row.rank is not None:
                    return self.address(choice, "processes", details=row.rank.process.pid)
                if row is not None and _fits_in_query(row.key):
                    return self.address(choice, open="" if row.is_open else row.key)
            return ""

        return link

    def address(self, choice: PageQuery, page: str = "", **changes: object) -> str:
        """Returns the URL of a page for the options `choice` with `changes`.

        If `page` is not the page of `choice`, keeps only the options columns, PID and device.
        """
        if page and page != choice.page:
            query = {"columns": choice.columns, "pid": choice.pid, "device": choice.device, **changes}
            return f"{self.base}{page}{PageQuery(page, **query).query()}"  # type: ignore[arg-type]
        return f"{self.base}{choice.page}{choice.query(**changes)}"


def _line(text: str, style: str, width: int) -> TextPage:
    return TextPage([fit(((f" {printable(text)}", style),), width)])


def _message_rows(text: str, width: int) -> tuple[Row, ...]:
    above = rows_of(_line("neuron-top", "title", width), _no_link)
    return (*above, *rows_of(_line(text, "strong", width), _no_link))


def _no_link(_target: ClickTarget) -> str:
    return ""


_MAX_HOSTS_PER_PAGE = 500  # maximum number of hosts on one page
_MIN_REDRAW_SECONDS = 1.0


class FleetView:
    """Renders the page of many hosts. Not thread-safe.

    `base` is the URL path of the pages and ends with a slash. `reach` returns the socket path of a host without
    blocking, None if the host is not reachable yet. `hiding` removes data that viewers may not see.
    """

    page_names = ("hosts",)

    def __init__(
        self,
        base: str,
        feed: FleetFeed,
        reach: Callable[[str], str | None],
        hiding: PrivacyFilter,
        problems: tuple[str, ...] = (),
    ) -> None:
        self.base = base
        self._feed = feed
        self._reach = reach
        self._hiding = hiding
        self._problems = problems

    @property
    def pause_seconds(self) -> float:
        """Seconds between two renderings: 1 s until every host has answered or is lost, then the feed's interval."""
        return max(_MIN_REDRAW_SECONDS, self._feed.interval_seconds) if self._feed.is_settled else _MIN_REDRAW_SECONDS

    def start(self) -> None:
        """Does nothing, because the feed of hosts always runs."""

    def process_data(self) -> None:
        """Does nothing, because `draw` reads the current state of the hosts."""

    def stop(self) -> None:
        """Does nothing, because the feed of hosts always runs."""

    def draw(self, choice: PageQuery) -> tuple[str, tuple[Row, ...]]:
        """Returns the window title and the rows of the page of many hosts."""
        every = self._hiding.hosts(self._feed.states)
        sort = choice.sort if choice.sort in SORTS else next(iter(SORTS))
        group_by = choice.group if choice.group in self._grouping_choices() else ""
        if group_by == USER:
            self._feed.request_users()
        found = [state for state in every if matches_filter(state, choice.filter)]
        rows = list_rows(found, SORTS[sort], group_by, (choice.open,))
        shown = rows[choice.first : choice.first + _MAX_HOSTS_PER_PAGE]
        context = FleetContext(
            rows=shown,
            all_states=every,
            jobs=self._hiding.jobs(self._feed.jobs),
            now_seconds=time.monotonic(),
            now_unix_seconds=time.time(),
            interval_seconds=self._feed.interval_seconds,
            sort=sort,
            group_by=group_by,
            filter_text=choice.filter,
            notes=(*self._problems[:1], *self._feed.notes),
            glyphs=BLOCKS,
        )
        # The height has room for all rows of the table and the largest header.
        page = fleet_page(context, choice.columns, len(shown) + 8 + max(8, min(len(every), _MAX_HOSTS_PER_PAGE)))
        del page.lines[-1:]  # removes the key bar, which is useless in a browser

        def link(target: ClickTarget) -> str:
            if target.action != "row" or int(target.argument) >= len(shown):
                return ""
            row = shown[int(target.argument)]
            if row.group is None:
                return "" if self._reach(row.key) is None else self.host_address(choice, row.key)
            opened = "" if row.key == choice.open else row.key
            return self.address(choice, open=opened) if _fits_in_query(row.key) else ""

        return f"{len(every)} host{'s' * (len(every) != 1)} - neuron-top", rows_of(page, link)

    def frame(self, choice: PageQuery, title: str) -> PageFrame:
        """Returns the navigation, sort and group options, and search form of the page."""
        count = len(self._feed.states)
        sorts = tuple(
            (name, self.address(choice, sort=name), name == (choice.sort or next(iter(SORTS)))) for name in SORTS
        )
        choices = ("", *self._grouping_choices())
        chosen = choice.group if choice.group in choices else ""
        groups = tuple(
            (printable(way, 40) or "none", self.address(choice, group=way, open="", first=0), way == chosen)
            for way in choices
            if _fits_in_query(way)
        )
        options = [("Order", sorts), ("Group by", groups)]
        if count > _MAX_HOSTS_PER_PAGE:
            starts = range(0, count, _MAX_HOSTS_PER_PAGE)
            pages = tuple(
                (f"{first + 1} to {end}", self.address(choice, first=first), first == choice.first)
                for first, end in ((start, min(count, start + _MAX_HOSTS_PER_PAGE)) for start in starts)
            )
            options.append(("Hosts", pages))
        others = tuple((name, str(value)) for name, value in choice.parameters(filter="", first=0))
        return PageFrame(title, (("Hosts", self.address(choice), True),), tuple(options), (choice.filter, others))

    def _grouping_choices(self) -> tuple[str, ...]:
        """Returns the properties by which viewers can group hosts. Omits the user if users are hidden."""
        return tuple([way for way in grouping_choices(self._feed.states) if way != USER or self._hiding.shows_users])

    def address(self, choice: PageQuery, **changes: object) -> str:
        """Returns the URL of the page of many hosts for the options `choice` with `changes`."""
        return f"{self.base}hosts{choice.query(**changes)}"

    def host_address(self, choice: PageQuery, name: str) -> str:
        return f"{self.base}host/{quote(name, safe='')}/overview{PageQuery('', columns=choice.columns).query()}"


def _fits_in_query(text: str) -> bool:
    return len(text) <= MAX_TEXT_LENGTH
