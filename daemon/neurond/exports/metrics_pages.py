"""What the daemon serves over HTTP: /metrics, to those who may read it, and / for probes."""

from __future__ import annotations

import logging

from neurond.access.metrics import metrics_access
from neurond.exports.metrics import Metrics
from neurond.settings import Settings
from neurond.system.supervisor import most_files
from neurontools.errors import EXIT_FAILURE, UserError
from neurontools.exporters.page import metrics_page
from neurontools.http.limits import Limits
from neurontools.http.request import Request
from neurontools.http.response import Response, refusal
from neurontools.http.server import HttpServer
from neurontools.http.site import Page, Site
from neurontools.sockets.listen_address import listen_address

_log = logging.getLogger(__name__)


class MetricsPages:
    """Serves the metrics. Belongs to the event loop's thread; UserError when a file of the access is wrong."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.access = metrics_access(settings)
        pages = {"/metrics": Page(metrics_page(metrics)), "/": Page(_front, is_open=True)}
        site = Site(pages, Page(_nothing, is_open=True), self.access)
        self._server = HttpServer(site, name="metrics", limits=Limits().with_files(most_files()))

    async def listen(self, address: str) -> None:
        """Serves on an address such as ":8000"; UserError when it can't be had."""
        host, port = listen_address(address)
        try:
            bound = await self._server.listen(host, port)
        except OSError as error:
            raise UserError(
                f"--metrics-listen {address}: {error.strerror or error}; give another address", EXIT_FAILURE
            ) from None
        shown = f"[{host}]" if host and ":" in host else host or "*"
        _log.info("metrics on %s://%s:%d/metrics", "https" if self.access.context else "http", shown, bound)

    def close(self) -> None:
        """Stops listening and drops the connections."""
        self._server.close()


def _front(_: Request) -> Response:
    return Response(b"neurond: metrics are at /metrics\n")


def _nothing(_: Request) -> Response:
    return refusal(404, "metrics are at /metrics", close=False)
