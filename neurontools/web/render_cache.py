"""Cache of rendered pages: all viewers of a page share one rendering, and the number of renderings is limited."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from neurontools.net.http_site import CompressedPart, CompressibleDocument
from neurontools.web.nodes import Node, changes, children_of
from neurontools.web.page_query import PageQuery

MAX_VIEWERS = 32
MAX_VIEWERS_OF_CLIENT = 8  # a browser opens at most 6 connections to a host
_MAX_PAGES = 64
_HEARTBEAT_SECONDS = 10.0  # seconds between heartbeats, by which a browser detects a dead connection
_ROUND_SECONDS = 1.0  # seconds between two rounds of rendering
_EARLY_FRACTION = 0.85  # new data may redraw a page early, after this fraction of the page's interval
_MAX_REDRAWS_PER_ROUND = 8  # most pages redrawn in one round; later rounds redraw the others
# Token bucket that limits renderings on request: tokens added per second, and largest number of tokens.
_DRAWINGS_A_SECOND, _MOST_DRAWINGS_SAVED = 8.0, 32.0
_IDLE_SECONDS = 30.0  # seconds after which an unused renderer frees its resources

_log = logging.getLogger(__name__)


class PageRenderer(Protocol):
    """Renders the pages of one host or of many hosts."""

    @property
    def pause_seconds(self) -> float:
        """Seconds between two renderings of a page."""

    def draw(self, choice: PageQuery) -> tuple[str, Node]:
        """Returns the window title and the content of the page."""

    def start(self) -> None:
        """Prepares to draw, because a first viewer has arrived."""

    def process_data(self) -> None:
        """Processes new data, even if no page is drawn."""

    def stop(self) -> None:
        """Frees resources, because the last viewer has left."""


class CapacityExceeded(Exception):
    """Too many viewers, pages or hosts are requested. The text names the limit."""


class RenderCache:
    """Caches rendered pages by renderer and query. Must be used in the event loop's thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._pages: OrderedDict[tuple[PageRenderer, PageQuery], RenderedPage] = OrderedDict()
        self._used_at: dict[PageRenderer, float] = {}
        self._has_news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._tokens = _MOST_DRAWINGS_SAVED
        self._refilled_at = now()
        self.viewers = 0
        self._viewers_of_client: dict[str, int] = {}

    def notify(self) -> None:
        """Signals that there is new data to draw."""
        self._has_news.set()

    def close(self) -> None:
        """Stops rendering, and frees the resources of all renderers."""
        if self._task is not None:
            self._task.cancel()
        for view in self._used_at:
            view.stop()
        self._used_at.clear()

    def rendered(self, view: PageRenderer, choice: PageQuery) -> RenderedPage:
        """Returns the rendered page. Redraws it first if it has no viewers and is older than `_ROUND_SECONDS`.

        Raises CapacityExceeded if too many pages are requested at a time.
        """
        now = self._mark_used(view)
        key = (view, choice)
        page = self._pages.get(key)
        if page is None or (not page.viewers and now - page.drawn_at_seconds >= _ROUND_SECONDS):
            self._consume_token(now)
            if page is None:
                page = self._pages[key] = RenderedPage(lambda: view.draw(choice))
                self._evict_pages()
            page.redraw(now)
        self._pages.move_to_end(key)
        self._start()
        return page

    def stream(self, view: PageRenderer, choice: PageQuery, since: str, client: str) -> AsyncGenerator[bytes, None]:
        """Returns a stream of server-sent events: the changes of a page since the version `since`.

        A slow reader skips to the latest version. Raises CapacityExceeded if there are too many viewers or pages, or
        too many viewers at the address of this client.
        """
        if self.viewers >= MAX_VIEWERS:
            raise CapacityExceeded(f"the limit of {MAX_VIEWERS} viewers is reached; try again later")
        if self._viewers_of_client.get(client, 0) >= MAX_VIEWERS_OF_CLIENT:
            raise CapacityExceeded(
                f"the limit of {MAX_VIEWERS_OF_CLIENT} viewers at one address is reached; close another page"
            )
        return self._events(view, choice, self.rendered(view, choice), since, client)

    async def _events(
        self, view: PageRenderer, choice: PageQuery, page: RenderedPage, since: str, client: str
    ) -> AsyncGenerator[bytes, None]:
        of_client = self._viewers_of_client.get(client, 0)
        if self.viewers >= MAX_VIEWERS or of_client >= MAX_VIEWERS_OF_CLIENT:  # others may have arrived since the check
            return
        self._mark_used(view)
        page = self._pages.setdefault((view, choice), page)
        self._start()
        self.viewers += 1
        self._viewers_of_client[client] = of_client + 1
        page.viewers += 1
        try:
            number = page.number_of(since)
            yield b"retry: 1000\n\n" if number == page.number else b""
            while True:
                if number < page.number:
                    event, number = page.event_since(number), page.number
                    yield event
                try:
                    async with asyncio.timeout(_HEARTBEAT_SECONDS):
                        await page.newer_than(number)
                except TimeoutError:
                    yield b"event: beat\ndata:\n\n"
        finally:
            self.viewers -= 1
            self._viewers_of_client[client] -= 1
            if not self._viewers_of_client[client]:
                del self._viewers_of_client[client]
            page.viewers -= 1
            self._used_at[view] = self._now()

    def _mark_used(self, view: PageRenderer) -> float:
        """Records that a renderer is in use, and starts an unused renderer. Returns the current time."""
        now = self._now()
        if view not in self._used_at:
            view.start()
        self._used_at[view] = now
        return now

    def _consume_token(self, now: float) -> None:
        self._tokens = min(_MOST_DRAWINGS_SAVED, self._tokens + (now - self._refilled_at) * _DRAWINGS_A_SECOND)
        self._refilled_at = now
        if self._tokens < 1:
            raise CapacityExceeded("too many pages are asked for at a time")
        self._tokens -= 1

    def _evict_pages(self) -> None:
        for key in [key for key, page in self._pages.items() if not page.viewers]:
            if len(self._pages) <= _MAX_PAGES:
                break
            del self._pages[key]

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._redraw_loop())

    async def _redraw_loop(self) -> None:
        """Redraws the viewed pages on new data, but at least every second. Ends once all renderers are unused."""
        while self._used_at:
            began = self._now()
            self._has_news.clear()
            for view in self._used_at:
                view.process_data()
            # Redraws the page with the oldest rendering first.
            watched = [
                page
                for (view, _), page in self._pages.items()
                if page.viewers and began - page.drawn_at_seconds >= _EARLY_FRACTION * view.pause_seconds
            ]
            watched.sort(key=lambda page: page.drawn_at_seconds)
            for page in watched[:_MAX_REDRAWS_PER_ROUND]:
                try:
                    page.redraw(began)
                except Exception:
                    # An error in one page must not stop the other pages. The viewers of that page keep the old version.
                    page.drawn_at_seconds = began
                    _log.exception("a page could not be drawn")
                await asyncio.sleep(0)  # lets other coroutines run between two pages
            self._stop_idle_renderers()
            await asyncio.sleep(max(0.0, _EARLY_FRACTION * _ROUND_SECONDS - (self._now() - began)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ROUND_SECONDS):
                    await self._has_news.wait()

    def _stop_idle_renderers(self) -> None:
        now = self._now()
        for view, asked_at in list(self._used_at.items()):
            of_view = [key for key in self._pages if key[0] is view]
            if any(self._pages[key].viewers for key in of_view):
                self._used_at[view] = now
            elif now - asked_at > _IDLE_SECONDS:
                for key in of_view:
                    del self._pages[key]
                del self._used_at[view]
                view.stop()


_EPOCH = secrets.token_hex(4)
"""Part of each version. A browser that sends the version of another server process gets the whole page."""


_MOST_KEPT_VERSIONS = 8  # a viewer with an older version gets the whole page


class RenderedPage:
    """A rendered page that its viewers share. Counts versions, and encodes the changes between versions.

    `draw` returns the window title and the content. Must be used in the event loop's thread.
    """

    def __init__(self, draw: Callable[[], tuple[str, Node]]) -> None:
        self._draw = draw
        self._epoch = f"{_EPOCH}{secrets.token_hex(3)}"
        self._versions: OrderedDict[int, Node] = OrderedDict()  # the latest contents by version
        self._events: dict[int, bytes] = {}
        self._changed = asyncio.Event()
        self._page: tuple[int, CompressibleDocument] | None = None
        self.content: Node = ""
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
        title, content = self._draw()
        self.drawn_at_seconds = now_seconds
        if content == self.content and title == self.title:
            return
        self.number += 1
        self.content, self.title = content, title
        self._versions[self.number] = content
        if len(self._versions) > _MOST_KEPT_VERSIONS:
            self._versions.popitem(last=False)
        self._events.clear()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def number_of(self, version: str) -> int:
        """Returns the number of a version of this page. Returns 0 if this page did not issue the version."""
        epoch, _, number = version.partition(".")
        is_own = epoch == self._epoch and number.isascii() and number.isdecimal() and len(number) < 12
        return min(int(number), self.number) if is_own else 0

    def event_since(self, number: int) -> bytes:
        """Returns, from a cache, the server-sent event that updates a viewer from version `number` to the latest."""
        event = self._events.get(number)
        if event is None:
            known = self._versions.get(number)
            if known is None:
                update: dict[str, object] = {"whole": children_of(self.content)}
            else:
                update = {"changes": list(changes(known, self.content))}
            text = json.dumps({"title": self.title, **update}, ensure_ascii=False, separators=(",", ":"))
            event = self._events[number] = f"event: changes\nid: {self.version}\ndata: {text}\n\n".encode()
        return event

    def page(self, make: Callable[[], bytes]) -> CompressibleDocument:
        """Returns the HTML of the current version, which `make` builds once per version."""
        if self._page is None or self._page[0] != self.number:
            self._page = self.number, CompressibleDocument([CompressedPart(make())])
        return self._page[1]

    async def newer_than(self, number: int) -> None:
        """Waits until the page has a version newer than `number`."""
        while self.number <= number:
            await self._changed.wait()
