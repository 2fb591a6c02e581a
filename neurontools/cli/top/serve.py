"""`neuron-top --serve`: HTTP server of the browser pages of one host or of many."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from neurontools.cli.serving import Listening, SignalFuture, run_until_signal
from neurontools.client.feed import Feed, LiveFeed
from neurontools.client.timeline import LIVE_BYTES
from neurontools.fleet.feed import DirectFeed, FleetFeed
from neurontools.net.http_site import HttpPage, HttpRequest, HttpResponse, refusal
from neurontools.net.tls import Role
from neurontools.util.command_lifecycle import EndedBySignal
from neurontools.web.page_views import FleetView, HostView
from neurontools.web.pages import (
    BASE,
    BrowserSessions,
    FleetRouter,
    PageRouter,
    SingleHostRouter,
    WebPages,
)
from neurontools.web.privacy_filter import FilteredTimeline, PrivacyFilter
from neurontools.web.render_cache import RenderCache


def serve(given: dict[str, str], interval_seconds: float, feed: FleetFeed | str, problems: tuple[str, ...] = ()) -> int:
    """Serves browser pages until a signal arrives. `feed` is a feed of many hosts or the path of a socket."""
    listening = Listening.from_options("neuron-top", given)
    hiding = listening.settings.hiding

    async def serve_pages(stop: SignalFuture) -> int:
        cache = RenderCache()
        try:
            router = _page_router(feed, hiding, interval_seconds, partial(stop.call_soon, cache.notify), problems)
            pages = WebPages(cache, router, BrowserSessions(listening.access))
            front = HttpPage(_redirect_to_pages, is_open=True, is_probe=True)
            return await listening.serve({BASE: pages.page}, front, BASE, stop)
        finally:
            cache.close()

    raise EndedBySignal(run_until_signal(serve_pages))


def _page_router(
    feed: FleetFeed | str,
    hiding: PrivacyFilter,
    interval_seconds: float,
    announce_data: Callable[[], None],
    problems: tuple[str, ...],
) -> PageRouter:
    notes = hiding.notes("the file of --serve-config")

    def opened(path: str) -> Feed:
        feed = _ServedFeed(path, interval_seconds)
        feed.timeline = FilteredTimeline(LIVE_BYTES, hiding)
        feed.start(announce_data)
        return feed

    if isinstance(feed, str):
        return SingleHostRouter({Role.FULL: HostView(BASE, partial(opened, feed), hiding, notes=notes)})
    feed.start(announce_data)
    names = {state.place.name for state in feed.states} if isinstance(feed, DirectFeed) else set()

    def reach(name: str) -> str | None:
        """Returns the socket of a host. None for a host from Prometheus: viewers must not start SSH."""
        return feed.socket_path(name) if name in names else None

    def open_host(name: str, base: str, path: str) -> HostView:
        above = (("Hosts", f"{BASE}hosts"),)
        return HostView(base, partial(opened, path), hiding, notes=notes, above=above, name=name)

    return FleetRouter(BASE, FleetView(BASE, feed, reach, hiding, problems), reach, open_host)


class _ServedFeed(LiveFeed):
    """Live feed that closes in a thread, so that `close` does not block the event loop."""

    def close(self) -> None:
        threading.Thread(target=super().close, daemon=True).start()


def _redirect_to_pages(request: HttpRequest) -> HttpResponse:
    """Redirects the root path to the pages. Answers 404 for other paths."""
    if request.path != "/":
        return refusal(404, f"the pages are at {BASE}", close=False)
    return HttpResponse(b"", status=303, headers=(("Location", BASE),))
