"""Many hosts in a browser: the page of neuron-top, a link to each host that can be reached, groups that open."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import quote

from neurontools.fleet.feed import FleetFeed
from neurontools.fleet.groups import USER, ways
from neurontools.views.drawing.glyphs import BLOCKS
from neurontools.views.drawing.line import Target, foreign
from neurontools.views.fleet.listing import listed
from neurontools.views.fleet.page import SORTS, FleetScene, fleet_page, passes
from neurontools.web.choice import LONGEST_TEXT, Choice
from neurontools.web.hiding import Hiding
from neurontools.web.markup import Frame
from neurontools.web.rows import Row, rows_of

_MOST_HOSTS = 500  # on a page
_LEAST_PAUSE_SECONDS = 1.0


class FleetView:
    """Draws the page of many hosts. `base` is where pages are, with a slash at its end. Belongs to one thread.

    `reach` tells at which socket a host can be asked by now, without waiting for anything. `hiding` is what viewers
    aren't shown.
    """

    page_names = ("hosts",)

    def __init__(
        self,
        base: str,
        feed: FleetFeed,
        reach: Callable[[str], str | None],
        hiding: Hiding,
        troubles: tuple[str, ...] = (),
    ) -> None:
        self.base = base
        self._feed = feed
        self._reach = reach
        self._hiding = hiding
        self._troubles = troubles

    @property
    def pause_seconds(self) -> float:
        """As in View: as often as the hosts say something, for all of their ages have grown then."""
        return max(_LEAST_PAUSE_SECONDS, self._feed.interval_seconds) if self._feed.is_settled else _LEAST_PAUSE_SECONDS

    def wake(self) -> None:
        """As in View: the feed runs anyway."""

    def follow(self) -> None:
        """As in View."""

    def rest(self) -> None:
        """As in View."""

    def draw(self, choice: Choice) -> tuple[str, tuple[Row, ...]]:
        """As in View."""
        every = self._hiding.hosts(self._feed.states)
        sort = choice.sort if choice.sort in SORTS else next(iter(SORTS))
        group_by = choice.group if choice.group in self._ways() else ""
        if group_by == USER:
            self._feed.want_users()
        found = [state for state in every if passes(state, choice.filter)]
        rows = listed(found, SORTS[sort], group_by, (choice.open,))
        shown = rows[choice.first : choice.first + _MOST_HOSTS]
        scene = FleetScene(
            rows=shown,
            all_states=every,
            jobs=self._hiding.jobs(self._feed.jobs),
            now_seconds=time.monotonic(),
            now_unix_seconds=time.time(),
            interval_seconds=self._feed.interval_seconds,
            sort=sort,
            group_by=group_by,
            filter_text=choice.filter,
            notes=(*self._troubles[:1], *self._feed.notes),
            glyphs=BLOCKS,
        )
        # The rows of hosts, and as much room for what is above them as it takes on a large screen.
        page = fleet_page(scene, choice.columns, len(shown) + 8 + max(8, min(len(every), _MOST_HOSTS)))
        del page.lines[-1:]  # keys

        def link(target: Target) -> str:
            if target.action != "row" or int(target.argument) >= len(shown):
                return ""
            row = shown[int(target.argument)]
            if row.group is None:
                return "" if self._reach(row.key) is None else self.host_address(choice, row.key)
            return self.address(choice, open="" if row.key == choice.open else row.key) if _fits(row.key) else ""

        return f"{len(every)} host{'s' * (len(every) != 1)} - neuron-top", rows_of(page, link)

    def frame(self, choice: Choice, title: str) -> Frame:
        """As in View."""
        count = len(self._feed.states)
        sorts = tuple(
            (name, self.address(choice, sort=name), name == (choice.sort or next(iter(SORTS)))) for name in SORTS
        )
        known = ("", *self._ways())
        chosen = choice.group if choice.group in known else ""
        groups = tuple(
            (foreign(way, 40) or "none", self.address(choice, group=way, open="", first=0), way == chosen)
            for way in known
            if _fits(way)
        )
        options = [("Order", sorts), ("Group by", groups)]
        if count > _MOST_HOSTS:
            pages = tuple(
                (
                    f"{first + 1} to {min(count, first + _MOST_HOSTS)}",
                    self.address(choice, first=first),
                    first == choice.first,
                )
                for first in range(0, count, _MOST_HOSTS)
            )
            options.append(("Hosts", pages))
        others = tuple((name, str(value)) for name, value in choice.told(filter="", first=0))
        return Frame(title, (("Hosts", self.address(choice), True),), tuple(options), (choice.filter, others))

    def _ways(self) -> tuple[str, ...]:
        """By what viewers can have the hosts together."""
        return tuple([way for way in ways(self._feed.states) if way != USER or self._hiding.shows_users])

    def address(self, choice: Choice, **changes: object) -> str:
        """The address of another choice."""
        return f"{self.base}hosts{choice.query(**changes)}"

    def host_address(self, choice: Choice, name: str) -> str:
        """Where the pages of a host are."""
        return f"{self.base}host/{quote(name, safe='')}/overview{Choice('', columns=choice.columns).query()}"


def _fits(text: str) -> bool:
    """Whether an address can have it as a choice."""
    return len(text) <= LONGEST_TEXT
