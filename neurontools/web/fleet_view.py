"""Many hosts in a browser: the page of neuron-top, a link to each host that can be reached."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import quote

from neurontools.fleet.feed import FleetFeed
from neurontools.views.drawing.glyphs import BLOCKS
from neurontools.views.drawing.line import Target
from neurontools.views.fleet.listing import Listed
from neurontools.views.fleet.page import SORTS, FleetScene, fleet_page, passes
from neurontools.web.choice import Choice
from neurontools.web.markup import Frame
from neurontools.web.rows import Row, rows_of

_MOST_HOSTS = 500  # on a page
_LEAST_PAUSE_SECONDS = 1.0


class FleetView:
    """Draws the page of many hosts. `base` is where pages are, with a slash at its end. Belongs to one thread.

    `reach` tells at which socket a host can be asked by now, without waiting for anything.
    """

    page_names = ("hosts",)

    def __init__(
        self, base: str, feed: FleetFeed, reach: Callable[[str], str | None], troubles: tuple[str, ...] = ()
    ) -> None:
        self.base = base
        self._feed = feed
        self._reach = reach
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
        every = self._feed.states
        sort = choice.sort if choice.sort in SORTS else next(iter(SORTS))
        found = SORTS[sort]([state for state in every if passes(state, choice.filter)])
        shown = found[choice.first : choice.first + _MOST_HOSTS]
        scene = FleetScene(
            rows=[Listed(state, state.place.name) for state in shown],
            all_states=every,
            jobs=self._feed.jobs,
            now_seconds=time.monotonic(),
            now_unix_seconds=time.time(),
            interval_seconds=self._feed.interval_seconds,
            sort=sort,
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
            name = shown[int(target.argument)].place.name
            return "" if self._reach(name) is None else self.host_address(choice, name)

        return f"{len(every)} host{'s' * (len(every) != 1)} - neuron-top", rows_of(page, link)

    def frame(self, choice: Choice, title: str) -> Frame:
        """As in View."""
        count = len(self._feed.states)
        sorts = tuple(
            (name, self.address(choice, sort=name), name == (choice.sort or next(iter(SORTS)))) for name in SORTS
        )
        options = [("Order", sorts)]
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

    def address(self, choice: Choice, **changes: object) -> str:
        """The address of another choice."""
        return f"{self.base}hosts{choice.query(**changes)}"

    def host_address(self, choice: Choice, name: str) -> str:
        """Where the pages of a host are."""
        return f"{self.base}host/{quote(name, safe='')}/overview{Choice('', columns=choice.columns).query()}"
