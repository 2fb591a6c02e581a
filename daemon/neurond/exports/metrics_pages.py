"""The HTTP listener: /metrics, /metrics/fleet, / for probes, and the pages for browsers."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from neurond.access import metrics_access, request_guard
from neurond.settings import Settings
from neurond.snapshots.store import SnapshotStore
from neurond.system.lifecycle import raise_file_limit
from neurontools.exporters.exposition import MetricsText, metrics_page
from neurontools.net.acceptor import listen_address
from neurontools.net.http_server import HttpLimits, HttpServer
from neurontools.net.http_site import HttpPage, HttpRequest, HttpResponse, Site, refusal
from neurontools.util.errors import EXIT_FAILURE, UserError

if TYPE_CHECKING:
    from neurond.web import DaemonPages

_log = logging.getLogger(__name__)


class MetricsPages:
    """Serves metrics, and pages for browsers if enabled. Belongs to the event loop's thread.

    `metrics` also takes the keyword argument `fleet_only`.

    Raises UserError for an invalid certificate or token file.
    """

    def __init__(self, settings: Settings, metrics: MetricsText, store: SnapshotStore) -> None:
        self.access = metrics_access(settings)
        pages = {
            "/": HttpPage(_front, is_open=True, is_probe=True),
            "/metrics": HttpPage(metrics_page(metrics)),
            "/metrics/fleet": HttpPage(metrics_page(partial(metrics, fleet_only=True))),
        }
        self._web: DaemonPages | None = None
        if settings.web:
            from neurond.web import DaemonPages
            from neurontools.web.pages import BASE

            self._web = DaemonPages(settings, store, self.access)
            pages[BASE] = self._web.page
            pages["/"] = HttpPage(_front_with_pages, is_open=True, is_probe=True)
        site = Site(pages, HttpPage(_nothing, is_open=True), self.access, request_guard(settings))
        self._server = HttpServer(site, name="metrics", limits=HttpLimits().with_files(raise_file_limit()))

    async def listen(self, address: str) -> None:
        """Listens on an address such as ":8000". Raises UserError if it can't listen there."""
        host, port = listen_address(address)
        try:
            bound = await self._server.listen(host, port)
        except OSError as error:
            raise UserError(
                f"--metrics-listen {address}: {error.strerror or error}; give another address", EXIT_FAILURE
            ) from None
        shown = f"[{host}]" if host and ":" in host else host or "*"
        _log.info("metrics on %s://%s:%d/metrics", "https" if self.access.context else "http", shown, bound)

    def observe(self) -> None:
        """Handles a new snapshot: reloads changed certificates and updates the pages."""
        if self.access.reload():
            self._server.disconnect_clients()
        if self._web is not None:
            self._web.observe()

    def close(self) -> None:
        self._server.close()
        if self._web is not None:
            self._web.close()


def _front(_: HttpRequest) -> HttpResponse:
    return HttpResponse(b"neurond: metrics are at /metrics\n")


def _front_with_pages(request: HttpRequest) -> HttpResponse:
    """Answers a request for "/": redirects clients that accept HTML to the pages, and sends text to others (probes)."""
    if "text/html" in request.header("accept"):
        return HttpResponse(b"", status=303, headers=(("Location", "/top/"),))
    return HttpResponse(b"neurond: metrics are at /metrics, pages for browsers at /top/\n")


def _nothing(_: HttpRequest) -> HttpResponse:
    return refusal(404, "metrics are at /metrics", close=False)
