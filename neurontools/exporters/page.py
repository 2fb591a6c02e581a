"""The page of an exporter: its metrics, in the format that the scraper asks for."""

from __future__ import annotations

from typing import Protocol

from neurontools.exporters.exposition import OPENMETRICS_CONTENT_TYPE, TEXT_CONTENT_TYPE, wants_openmetrics
from neurontools.net.http_access import Handler
from neurontools.net.http_messages import CompressibleDocument, HttpRequest, HttpResponse


class Exporter(Protocol):
    """What has metrics."""

    def text(self, *, openmetrics: bool) -> CompressibleDocument:
        """The metrics in a format, the same object for as long as they are the same."""
        ...


def metrics_page(exporter: Exporter) -> Handler:
    """The page for these metrics."""

    def page(request: HttpRequest) -> HttpResponse:
        openmetrics = wants_openmetrics(request.header("accept"))
        kind = OPENMETRICS_CONTENT_TYPE if openmetrics else TEXT_CONTENT_TYPE
        return HttpResponse(exporter.text(openmetrics=openmetrics), kind, headers=(("Vary", "Accept"),))

    return page
