"""`neuron-top --serve`: HTTP server of the browser pages of one host or of many."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from neurontools.client.feed import Feed, LiveFeed
from neurontools.client.timeline import LIVE_BYTES
from neurontools.fleet.feed import DirectFeed, FleetFeed
from neurontools.net.acceptor import listen_address
from neurontools.net.http_server import HttpLimits, HttpServer
from neurontools.net.http_site import (
    HostCheck,
    HttpAccess,
    HttpPage,
    HttpRequest,
    HttpResponse,
    RequestGuard,
    Site,
    refusal,
    require_auth_off_loopback,
)
from neurontools.net.tls import Role, ServerFiles, ServerTls
from neurontools.util.command_lifecycle import EndedBySignal, write_stderr
from neurontools.util.errors import EXIT_FAILURE, EXIT_USAGE, UserError
from neurontools.util.formats import read_options
from neurontools.util.signals import DeferredSignals
from neurontools.web.page_views import FleetView, HostView
from neurontools.web.pages import (
    BASE,
    BrowserSessions,
    FleetRouter,
    PageRouter,
    SingleHostRouter,
    WebPages,
)
from neurontools.web.privacy_filter import FilteredTimeline, PrivacyFilter, shows_by_default
from neurontools.web.render_cache import RenderCache

_RENEWAL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of the file of --serve-config: access to the pages, and what viewers see."""

    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    tls_client_crl: str | None = None
    bearer_token_file: str | None = None
    hosts: tuple[str, ...] = ()
    show_commands: bool = False
    show_users: bool = False

    def access(self) -> HttpAccess:
        """Returns the rules for access to the server. Raises UserError if a file is invalid."""
        tls = None
        if self.tls_certificate is not None:
            files = ServerFiles(self.tls_certificate, self.tls_key, self.tls_client_ca, self.tls_client_crl)
            tls = ServerTls(files, "--serve-config: tls_")
        elif self.tls_key is not None or self.tls_client_ca is not None:
            raise UserError("--serve-config: tls_key and tls_client_ca need tls_certificate", EXIT_USAGE)
        if self.tls_client_crl is not None and self.tls_client_ca is None:
            raise UserError("--serve-config: tls_client_crl needs tls_client_ca", EXIT_USAGE)
        return HttpAccess(tls, bearer_token_file=self.bearer_token_file, message_prefix="--serve-config: ")


def serve(given: dict[str, str], interval_seconds: float, feed: FleetFeed | str, problems: tuple[str, ...] = ()) -> int:
    """Serves browser pages until a signal arrives. `feed` is a feed of many hosts or the path of a socket."""
    options: dict[str, Any] = {}
    if "serve-config" in given:
        usual = {field.name: field.default for field in fields(ServeSettings)}
        options = read_options("--serve-config", given["serve-config"], usual)
    try:
        host, port = listen_address(given["serve"])
    except ValueError as error:
        raise UserError(f"--serve: {error}", EXIT_USAGE) from None
    is_shown = shows_by_default(host, options.get("hosts"))
    settings = ServeSettings(**{"show_commands": is_shown, "show_users": is_shown, **options})
    access = settings.access()
    require_auth_off_loopback(
        host, access, "--serve", "tls_certificate in --serve-config", "bearer_token_file or tls_client_ca"
    )
    with DeferredSignals() as endings:
        serving = _serve_pages(
            (host, port), given["serve"], access, settings, interval_seconds, feed, problems, endings
        )
        number = asyncio.run(serving)
    raise EndedBySignal(number)


async def _serve_pages(
    address: tuple[str | None, int],
    address_text: str,
    access: HttpAccess,
    settings: ServeSettings,
    interval_seconds: float,
    feed: FleetFeed | str,
    problems: tuple[str, ...],
    endings: DeferredSignals,
) -> int:
    """Serves until a signal arrives. Returns the signal number."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(number: int) -> None:
        if not ended.done():
            ended.set_result(number)

    def call_soon(function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop may be closed already
            loop.call_soon_threadsafe(function, *arguments)

    endings.on_signal(partial(call_soon, end))
    cache = RenderCache()
    hiding = PrivacyFilter(settings.show_commands, settings.show_users)
    router = _page_router(feed, hiding, interval_seconds, partial(call_soon, cache.notify), problems)
    pages = WebPages(cache, router, BrowserSessions(access))
    front = HttpPage(_redirect_to_pages, is_open=True, is_probe=True)
    site = Site({BASE: pages.page}, front, access, RequestGuard(HostCheck(settings.hosts)))
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    server = HttpServer(site, name="pages", limits=HttpLimits().with_files(most_files))
    try:
        bound = await server.listen(*address)
    except OSError as error:
        problem = f"--serve {address_text}: {error.strerror or error}"
        raise UserError(f"{problem}; give another address", EXIT_FAILURE) from None
    try:
        shown = f"[{address[0]}]" if address[0] and ":" in address[0] else address[0] or "this-host"
        write_stderr(f"neuron-top: serving at http{'s' * (access.context is not None)}://{shown}:{bound}{BASE}")
        while not ended.done():
            await asyncio.wait([ended], timeout=_RENEWAL_SECONDS)
            if access.reload():
                server.disconnect_clients()
    finally:
        server.close()
        cache.close()
    return ended.result()


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
