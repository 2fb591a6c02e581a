"""A host in a browser: the pages of neuron-top from a feed, without cursor and keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neurontools.client.history.feed import Feed, Link
from neurontools.model.finding import Severity
from neurontools.model.health import counts
from neurontools.tui.dashboard_state import SENSELESS, DashboardState
from neurontools.tui.settings import Settings
from neurontools.views.drawing.glyphs import BLOCKS
from neurontools.views.drawing.line import Page, Target, fit, foreign
from neurontools.views.drawing.scene import Scene
from neurontools.views.drawing.tabs import tab_bar
from neurontools.views.frame import title
from neurontools.views.pages import PAGES, page_named
from neurontools.views.processes.columns import BY_KEY
from neurontools.web.choice import LONGEST_TEXT, WINDOWS_SECONDS, Choice
from neurontools.web.hiding import Hiding
from neurontools.web.markup import Frame
from neurontools.web.rows import Kind, Row, rows_of
from neurontools.web.rows import Link as LinkOf

PAGE_NAMES = tuple(page.name for page in PAGES)
_USUAL_LINES = 50  # of a page whose lists are short
_MOST_LINES = 2000


class HostView:
    """Draws the pages of one host. `open_feed` is called when somebody looks, and what it gave closed when nobody does.

    `base` is where its pages are, with a slash at its end; `notes` stand below each of them. Of many hosts it is the
    one called `name`, and links to where they are, texts and addresses, are `above`. What the feed gives is `hiding`
    what viewers aren't shown. Belongs to one thread.
    """

    def __init__(
        self,
        base: str,
        open_feed: Callable[[], Feed],
        hiding: Hiding,
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
        self._states: dict[Choice, DashboardState] = {}

    @property
    def page_names(self) -> tuple[str, ...]:
        """The pages there are."""
        return tuple(name for name in PAGE_NAMES if self._hiding.shows_users or name != "usage")

    @property
    def is_awake(self) -> bool:
        """Whether somebody has looked lately."""
        return self._feed is not None

    pause_seconds = 1.0

    def wake(self) -> None:
        """As in View."""
        if self._feed is None:
            self._feed = self._open_feed()

    def follow(self) -> None:
        """As in View."""
        if self._feed is not None:
            self._feed.drain()

    def rest(self) -> None:
        """As in View."""
        feed, self._feed = self._feed, None
        self._states.clear()
        if feed is not None:
            feed.close()

    def draw(self, choice: Choice) -> tuple[str, tuple[Row, ...]]:
        """As in View."""
        feed = self._feed
        if feed is None:
            return "neuron-top", ()
        feed.drain()
        state = self._state(choice, feed)
        width = choice.columns
        try:
            scene = state.scene()
            if scene is None:
                return "neuron-top", _told(feed.status.text or "waiting for the first snapshot", width)
            scene.has_keys = False
            scene.ended = self._hiding.ended(scene.ended)
            scene.cursor = -1 if choice.page not in ("topology", "history") else scene.cursor
            return self._drawn(scene, choice, width)
        except SENSELESS as error:
            return "neuron-top", _told(f"this moment can't be drawn: {type(error).__name__}: {error}", width)

    def _drawn(self, scene: Scene, choice: Choice, width: int) -> tuple[str, tuple[Row, ...]]:
        link = self._link(scene, choice)
        page = page_named(choice.page)
        body = page.draw(scene, width, _USUAL_LINES)
        hidden = body.list_count - body.list_height
        if hidden > 0:
            body = page.draw(scene, width, min(_MOST_LINES, _USUAL_LINES + hidden))
        rows = [*rows_of(title(scene, width), link), *rows_of(body, link)]
        if scene.clock.trouble:
            rows += rows_of(_line(scene.clock.trouble, "bad", width), link)
        rows += rows_of(tab_bar(scene, width), link, Kind.TABS)
        return self._window_title(scene), tuple(rows)

    def _window_title(self, scene: Scene) -> str:
        instance = scene.snapshot.instance
        found = counts(scene.snapshot)
        words = [(Severity.CRITICAL, "critical"), (Severity.WARNING, "warning")]
        told = [f"{found[severity]} {word}" for severity, word in words if found.get(severity)]
        if self._feed is not None and self._feed.status.link is not Link.LIVE:
            told = [scene.clock.badge]
        badge = f"{', '.join(told)}: " if told else ""
        return f"{badge}{foreign(self._name or instance.instance_id or instance.instance_type, 60)} - neuron-top"

    def frame(self, choice: Choice, title: str) -> Frame:
        """As in View."""
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
            options.append(("Memory", self._either(choice, "tree", "summary", "by process, device and model")))
        elif choice.page == "processes" and choice.details is not None:
            options.append(("Process", self._either(choice, "time", "facts and plots", "where its time goes")))
        search = None
        if choice.page == "processes" and choice.details is None:
            search = choice.filter, tuple((name, str(value)) for name, value in choice.told(filter=""))
        return Frame(title, (*above, *links), tuple(options), search, self._notes, foreign(self._name, 80))

    def _either(self, choice: Choice, name: str, no: str, yes: str) -> tuple[tuple[str, str, bool], ...]:
        """The two sides of a choice."""
        is_chosen = bool(getattr(choice, name))
        sides: tuple[dict[str, Any], ...] = ({name: 0}, {name: 1})
        addresses = [self.address(choice, **side) for side in sides]
        return (no, addresses[0], not is_chosen), (yes, addresses[1], is_chosen)

    def _state(self, choice: Choice, feed: Feed) -> DashboardState:
        """The state of the dashboard that shows what was chosen."""
        state = self._states.get(choice)
        if state is None:
            if len(self._states) >= 64:
                self._states.clear()
            settings = Settings(window_seconds=float(choice.window), is_descending=bool(choice.descending))
            if choice.sort in BY_KEY:
                settings.sort = choice.sort
            state = self._states[choice] = DashboardState(feed, settings, BLOCKS, is_read_only=True)
            state.page = choice.page
            state.device_index, state.core_index = choice.device, choice.core
            state.filter_text = choice.filter
            state.is_tree_shown, state.is_time_shown = bool(choice.tree), bool(choice.time)
            state.unfolded = frozenset({choice.open}) if choice.open else frozenset()
        state.pid, state.details_pid = choice.pid, choice.details
        return state

    def _link(self, scene: Scene, choice: Choice) -> LinkOf:
        """Where the targets of a page lead."""
        rows = None

        def link(target: Target) -> str:
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
                is_again = argument == scene.sort
                return self.address(choice, sort=argument, descending=int(is_again and not scene.is_descending))
            if action == "row" and choice.page in ("overview", "processes"):
                if rows is None:
                    rows = self._states[choice].rows(scene) or ()
                row = rows[int(argument)] if int(argument) < len(rows) else None
                if row is None:
                    return ""
                if row.rank is None and len(row.key) > LONGEST_TEXT:
                    return ""
                if row.rank is None:
                    return self.address(choice, open="" if row.is_open else row.key)
                return self.address(choice, "processes", details=row.rank.process.pid)
            return ""

        return link

    def address(self, choice: Choice, page: str = "", **changes: object) -> str:
        """The address of another choice; a page begins without what was chosen on the one before."""
        if page and page != choice.page:
            kept = {"columns": choice.columns, "pid": choice.pid, "device": choice.device, **changes}
            return f"{self.base}{page}{Choice(page, **kept).query()}"  # type: ignore[arg-type]
        return f"{self.base}{choice.page}{choice.query(**changes)}"


def _line(text: str, style: str, width: int) -> Page:
    return Page([fit(((f" {foreign(text)}", style),), width)])


def _told(text: str, width: int) -> tuple[Row, ...]:
    above = rows_of(_line("neuron-top", "title", width), _nowhere)
    return (*above, *rows_of(_line(text, "strong", width), _nowhere))


def _nowhere(_target: Target) -> str:
    return ""
