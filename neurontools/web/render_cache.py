"""Cache of rendered pages: all viewers of a page share one rendering, and the number of renderings is limited."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from neurontools.net.http_messages import CompressedPart, CompressibleDocument
from neurontools.web.markup import Row
from neurontools.web.page_query import PageQuery

MAX_VIEWERS = 32
_MAX_PAGES = 64
_HEARTBEAT_SECONDS = 10.0  # seconds between heartbeats, so that the browser detects a dead connection
_ROUND_SECONDS = 1.0  # seconds between two rounds of rendering
_EARLY_FRACTION = 0.85  # fraction of the interval after which a page may be redrawn
_MAX_REDRAWS_PER_ROUND = 8  # pages redrawn in one round; later rounds redraw the others
_DRAWINGS_A_SECOND, _MOST_DRAWINGS_SAVED = (
    8.0,
    32.0,
)  # token bucket for renderings on request: rate per second, and burst
_IDLE_SECONDS = 30.0  # seconds after which an unused renderer frees its resources

_log = logging.getLogger(__name__)


class PageRenderer(Protocol):
    """Renders the pages of one host or of many hosts."""

    @property
    def pause_seconds(self) -> float:
        """Seconds between two renderings of a page."""

    def draw(self, choice: PageQuery) -> tuple[str, tuple[Row, ...]]:
        """Returns the window title and the rows of the page."""

    def wake(self) -> None:
        """Prepares to draw, because a first viewer has arrived."""

    def follow(self) -> None:
        """Processes new data, even if no page is drawn."""

    def rest(self) -> None:
        """Frees resources, because the last viewer has left."""


class CapacityExceeded(Exception):
    """Too many viewers, pages or hosts are requested. The text names the limit."""


class RenderCache:
    """Caches rendered pages by renderer and query. Must be used in the event loop's thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._pictures: OrderedDict[tuple[PageRenderer, PageQuery], RenderedPage] = OrderedDict()
        self._asked_at: dict[PageRenderer, float] = {}
        self._has_news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._saved = _MOST_DRAWINGS_SAVED
        self._saved_at = now()
        self.viewers = 0

    def news(self) -> None:
        """Signals that there is new data to draw."""
        self._has_news.set()

    def close(self) -> None:
        """Stops rendering, and frees the resources of all renderers."""
        if self._task is not None:
            self._task.cancel()
        for view in self._asked_at:
            view.rest()
        self._asked_at.clear()

    def picture(self, view: PageRenderer, choice: PageQuery) -> RenderedPage:
        """Returns the rendered page. Redraws it first if it has no viewers and is older than `_ROUND_SECONDS`.

        Raises CapacityExceeded if too many pages are requested at a time.
        """
        now = self._ask(view)
        key = (view, choice)
        picture = self._pictures.get(key)
        if picture is None or (not picture.viewers and now - picture.drawn_at_seconds >= _ROUND_SECONDS):
            self._spend(now)
            if picture is None:
                picture = self._pictures[key] = RenderedPage(lambda: view.draw(choice))
                self._forget_some()
            picture.redraw(now)
        self._pictures.move_to_end(key)
        self._begin()
        return picture

    def stream(self, view: PageRenderer, choice: PageQuery, since: str) -> AsyncGenerator[bytes, None]:
        """Returns a stream of server-sent events: the changes of a page since the version `since`.

        A slow reader skips to the latest version. Raises CapacityExceeded if there are too many viewers or pages.
        """
        if self.viewers >= MAX_VIEWERS:
            raise CapacityExceeded(f"the limit of {MAX_VIEWERS} viewers is reached; try again later")
        return self._events(view, choice, self.picture(view, choice), since)

    async def _events(
        self, view: PageRenderer, choice: PageQuery, picture: RenderedPage, since: str
    ) -> AsyncGenerator[bytes, None]:
        if self.viewers >= MAX_VIEWERS:  # other viewers may have arrived since the request
            return
        self._ask(view)
        picture = self._pictures.setdefault((view, choice), picture)
        self._begin()
        self.viewers += 1
        picture.viewers += 1
        try:
            number = picture.number_of(since)
            yield b"retry: 1000\n\n" if number == picture.number else b""
            while True:
                if number < picture.number:
                    event, number = picture.event_since(number), picture.number
                    yield event
                try:
                    async with asyncio.timeout(_HEARTBEAT_SECONDS):
                        await picture.newer_than(number)
                except TimeoutError:
                    yield b"event: beat\ndata:\n\n"
        finally:
            self.viewers -= 1
            picture.viewers -= 1
            self._asked_at[view] = self._now()

    def _ask(self, view: PageRenderer) -> float:
        """Records that a renderer is in use, and wakes it if necessary. Returns the current time."""
        now = self._now()
        if view not in self._asked_at:
            view.wake()
        self._asked_at[view] = now
        return now

    def _spend(self, now: float) -> None:
        self._saved = min(_MOST_DRAWINGS_SAVED, self._saved + (now - self._saved_at) * _DRAWINGS_A_SECOND)
        self._saved_at = now
        if self._saved < 1:
            raise CapacityExceeded("too many pages are asked for at a time")
        self._saved -= 1

    def _forget_some(self) -> None:
        for key in [key for key, picture in self._pictures.items() if not picture.viewers]:
            if len(self._pictures) <= _MAX_PAGES:
                break
            del self._pictures[key]

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._rounds())

    async def _rounds(self) -> None:
        """Redraws the viewed pages on new data, but at least every second. Ends once all renderers are unused."""
        while self._asked_at:
            began = self._now()
            self._has_news.clear()
            for view in self._asked_at:
                view.follow()
            # Redraws the page with the oldest rendering first.
            watched = [
                picture
                for (view, _), picture in self._pictures.items()
                if picture.viewers and began - picture.drawn_at_seconds >= _EARLY_FRACTION * view.pause_seconds
            ]
            watched.sort(key=lambda picture: picture.drawn_at_seconds)
            for picture in watched[:_MAX_REDRAWS_PER_ROUND]:
                try:
                    picture.redraw(began)
                except Exception:
                    # An error in one page must not stop the other pages. The viewers of that page keep the old version.
                    picture.drawn_at_seconds = began
                    _log.exception("a picture could not be drawn")
                await asyncio.sleep(0)  # lets other coroutines run
            self._let_rest()
            await asyncio.sleep(max(0.0, _EARLY_FRACTION * _ROUND_SECONDS - (self._now() - began)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ROUND_SECONDS):
                    await self._has_news.wait()

    def _let_rest(self) -> None:
        now = self._now()
        for view, asked_at in list(self._asked_at.items()):
            of_view = [key for key in self._pictures if key[0] is view]
            if any(self._pictures[key].viewers for key in of_view):
                self._asked_at[view] = now
            elif now - asked_at > _IDLE_SECONDS:
                for key in of_view:
                    del self._pictures[key]
                del self._asked_at[view]
                view.rest()


_EPOCH = secrets.token_hex(4)
"""Part of each version. A browser that sends the version of another server process gets the whole page."""


class RenderedPage:
    """A rendered page that its viewers share. Counts versions, and encodes the changes between versions.

    `draw` returns the window title and the rows. Must be used in the event loop's thread.
    """

    def __init__(self, draw: Callable[[], tuple[str, tuple[Row, ...]]]) -> None:
        self._draw = draw
        self._epoch = f"{_EPOCH}{secrets.token_hex(3)}"
        self._changed_at: list[int] = []  # for each row, the version of its last change
        self._whole_since = 0  # version of the last change of the row count, a row kind or a cell count
        self._events: dict[int, bytes] = {}
        self._changed = asyncio.Event()
        self._page: tuple[int, CompressibleDocument] | None = None
        self.rows: tuple[Row, ...] = ()
        self.title = ""
        self.number = 0
        self.drawn_at_seconds = float("-inf")
        self.viewers = 0

    @property
    def version(self) -> str:
        """The version of the page as text, valid in this server process only."""
        return f"{self._epoch}.{self.number}"

    def redraw(self, now_seconds: float) -> None:
        """Renders the page again. If the page changed, wakes the streams that wait in `newer_than`."""
        title, rows = self._draw()
        self.drawn_at_seconds = now_seconds
        if rows == self.rows and title == self.title:
            return
        self.number += 1
        if _row_shapes(rows) != _row_shapes(self.rows):
            self._whole_since = self.number
            self._changed_at = [self.number] * len(rows)
        else:
            for place, (row, before) in enumerate(zip(rows, self.rows, strict=True)):
                if row != before:
                    self._changed_at[place] = self.number
        self.rows, self.title = rows, title
        self._events.clear()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def number_of(self, version: str) -> int:
        """Returns the number of a version of this page. Returns 0 if this page did not issue the version."""
        epoch, _, number = version.partition(".")
        is_known = epoch == self._epoch and number.isascii() and number.isdecimal() and len(number) < 12
        return min(int(number), self.number) if is_known else 0

    def event_since(self, number: int) -> bytes:
        """Returns the server-sent event that updates a viewer from version `number` to the latest; cached."""
        event = self._events.get(number)
        if event is None:
            told: dict[str, object] = {"title": self.title}
            if number < self._whole_since:
                told["whole"] = self.rows
            else:
                told["rows"] = [(place, row) for place, row in enumerate(self.rows) if self._changed_at[place] > number]
            text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
            event = self._events[number] = f"event: rows\nid: {self.version}\ndata: {text}\n\n".encode()
        return event

    def page(self, made: Callable[[], bytes]) -> CompressibleDocument:
        """Returns the HTML of the current version, which `made` builds once per version."""
        if self._page is None or self._page[0] != self.number:
            self._page = self.number, CompressibleDocument([CompressedPart(made())])
        return self._page[1]

    async def newer_than(self, number: int) -> None:
        """Waits until the page has a version newer than `number`."""
        while self.number <= number:
            await self._changed.wait()


def _row_shapes(rows: Sequence[Row]) -> list[tuple[str, int]]:
    return [(kind, len(cells)) for kind, cells in rows]
