"""Renderers of the browser pages of one host, and of the page of many hosts."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import quote

from neurontools.client.feed import Feed, FeedState
from neurontools.fleet.feed import FleetFeed
from neurontools.fleet.states import USER, grouping_choices
from neurontools.model.health import verdicts
from neurontools.views.dashboard_settings import DashboardSettings
from neurontools.views.drawing.glyphs import BLOCKS
from neurontools.views.drawing.lines import printable
from neurontools.views.drawing.render_context import RenderContext
from neurontools.views.feed_view import CORRUPT_DATA_ERRORS, FeedView
from neurontools.views.fleet_hosts import HostRow, list_rows
from neurontools.views.fleet_page import SORTS, FleetContext, matches_filter
from neurontools.views.screen import PAGES, page_named
from neurontools.web.device_pages import Address
from neurontools.web.document import PageFrame, message_page
from neurontools.web.fleet_page import fleet_page
from neurontools.web.host_pages import SORT_KEYS, host_page, problem_counts_text
from neurontools.web.nodes import Node
from neurontools.web.page_query import MAX_TEXT_LENGTH, WINDOWS_SECONDS, PageQuery
from neurontools.web.privacy_filter import PrivacyFilter

_TITLE = "neuron-top"
PAGE_NAMES = tuple(page.name for page in PAGES)


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

    def draw(self, choice: PageQuery) -> tuple[str, Node]:
        """Returns the window title and the content of a page, or a message if there is no snapshot."""
        feed = self._feed
        if feed is None:
            return _TITLE, message_page(_TITLE, "nobody has asked for this page yet")
        feed.drain()
        try:
            context = self._state(choice, feed).render_context()
            if context is None:
                return _TITLE, message_page(_TITLE, feed.status.text or "waiting for the first snapshot")
            context.has_keys = False
            context.ended = self._hiding.ended(context.ended)
            if choice.page == "overview":
                context.verdicts = verdicts(context.snapshot)
            return self._window_title(context), host_page(context, self._name, self._address_of(choice))
        except CORRUPT_DATA_ERRORS as error:
            text = f"this moment can't be drawn: {type(error).__name__}: {error}"
            return _TITLE, message_page(_TITLE, printable(text))

    def _window_title(self, context: RenderContext) -> str:
        instance = context.snapshot.instance
        badge = problem_counts_text(context)
        if self._feed is not None and self._feed.status.link is not FeedState.LIVE:
            badge = context.clock.badge
        name = printable(self._name or instance.instance_id or instance.instance_type, 60)
        return f"{badge}: {name} - {_TITLE}" if badge else f"{name} - {_TITLE}"

    def frame(self, choice: PageQuery, title: str) -> PageFrame:
        """Returns the navigation, options, search form and notes of a page."""
        links = [((text, address, False), "Escape") for text, address in self._above]
        links += [
            ((page.title, self.address(choice, page.name), page.name == choice.page), page.key)
            for page in PAGES
            if page.name in self.page_names
        ]
        options: list[tuple[str, tuple[tuple[str, str, bool], ...], str]] = []
        if page_named(choice.page).shows_past or choice.page == "overview" or choice.details is not None:
            windows = tuple(
                (f"{seconds // 60} min", self.address(choice, window=seconds), seconds == choice.window)
                for seconds in WINDOWS_SECONDS
            )
            options.append(("Time shown", windows, "l"))
        search = None
        if choice.page == "processes" and choice.details is None:
            search = choice.filter, tuple((name, str(value)) for name, value in choice.parameters(filter=""))
        return PageFrame(title, tuple(links), tuple(options), search, self._notes)

    def _state(self, choice: PageQuery, feed: Feed) -> FeedView:
        """Returns the state of the view for a query, from a cache of at most 64 states."""
        state = self._states.get(choice)
        if state is None:
            if len(self._states) >= 64:
                self._states.clear()
            settings = DashboardSettings(window_seconds=float(choice.window), is_descending=bool(choice.descending))
            if choice.sort in SORT_KEYS:
                settings.sort = choice.sort
            state = self._states[choice] = FeedView(feed, settings, BLOCKS, is_read_only=True)
            state.page = choice.page
            state.device_index, state.core_index = choice.device, choice.core
            state.filter_text = choice.filter
            state.is_tree_shown = bool(choice.tree)
            state.unfolded = frozenset({choice.open}) if choice.open else frozenset()
            state.details_pid = choice.details if choice.page == "processes" else None
        return state

    def _address_of(self, choice: PageQuery) -> Address:
        def address(page: str, **changes: object) -> str:
            key = changes.get("open")
            if isinstance(key, str) and not _fits_in_query(key):
                return ""
            return self.address(choice, page, **changes)

        return address

    def address(self, choice: PageQuery, page: str = "", **changes: object) -> str:
        """Returns the URL of a page for the options `choice` with `changes`.

        If `page` is not the page of `choice`, keeps only the options device and window.
        """
        if page and page != choice.page:
            query = {"device": choice.device, "window": choice.window, **changes}
            return f"{self.base}{page}{PageQuery(page, **query).query()}"  # type: ignore[arg-type]
        return f"{self.base}{choice.page}{choice.query(**changes)}"


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

    def draw(self, choice: PageQuery) -> tuple[str, Node]:
        """Returns the window title and the content of the page of many hosts."""
        every = self._hiding.hosts(self._feed.states)
        sort = choice.sort if choice.sort in SORTS else next(iter(SORTS))
        group_by = choice.group if choice.group in self._grouping_choices() else ""
        if group_by == USER:
            self._feed.request_users()
        found = [state for state in every if matches_filter(state, choice.filter)]
        rows = list_rows(found, SORTS[sort], group_by, (choice.open,))
        context = FleetContext(
            rows=rows[choice.first : choice.first + _MAX_HOSTS_PER_PAGE],
            all_states=every,
            jobs=self._hiding.jobs(self._feed.jobs),
            models=self._feed.models,
            now_seconds=time.monotonic(),
            now_unix_seconds=time.time(),
            interval_seconds=self._feed.interval_seconds,
            sort=sort,
            group_by=group_by,
            filter_text=choice.filter,
            notes=(*self._problems[:1], *self._feed.notes),
            glyphs=BLOCKS,
        )

        def link(row: HostRow) -> str:
            if row.group is None:
                return host_link(row.key)
            opened = "" if row.key == choice.open else row.key
            return self.address(choice, open=opened) + "#hosts" if _fits_in_query(row.key) else ""

        def host_link(name: str) -> str:
            return "" if self._reach(name) is None else self.host_address(name)

        title = f"{len(every)} host{'s' * (len(every) != 1)} - {_TITLE}"
        return title, fleet_page(context, link, host_link)

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
        options = [("Order", sorts, "s"), ("Group by", groups, "b")]
        if count > _MAX_HOSTS_PER_PAGE:
            starts = range(0, count, _MAX_HOSTS_PER_PAGE)
            pages = tuple(
                (f"{first + 1} to {end}", self.address(choice, first=first), first == choice.first)
                for first, end in ((start, min(count, start + _MAX_HOSTS_PER_PAGE)) for start in starts)
            )
            options.append(("Hosts", pages, ""))
        others = tuple((name, str(value)) for name, value in choice.parameters(filter="", first=0))
        link = ("Hosts", self.address(choice), True)
        return PageFrame(title, ((link, "o"),), tuple(options), (choice.filter, others))

    def _grouping_choices(self) -> tuple[str, ...]:
        """Returns the properties by which viewers can group hosts. Omits the user if users are hidden."""
        return tuple([way for way in grouping_choices(self._feed.states) if way != USER or self._hiding.shows_users])

    def address(self, choice: PageQuery, **changes: object) -> str:
        """Returns the URL of the page of many hosts for the options `choice` with `changes`."""
        return f"{self.base}hosts{choice.query(**changes)}"

    def host_address(self, name: str) -> str:
        return f"{self.base}host/{quote(name, safe='')}/overview"


def _fits_in_query(text: str) -> bool:
    return len(text) <= MAX_TEXT_LENGTH
