"""HTTP servers for tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from neurontools.http.access import Access
from neurontools.http.limits import Limits
from neurontools.http.site import Page, Site
from tests.harness.http_server import Serve, Served


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves pages: serve({"/": Page(handler)}, access=..., limits=...)."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    opened: list[Served] = []

    def start(pages: dict[str, Page], access: Access | None = None, limits: Limits | None = None) -> Served:
        site = Site(pages, Page(pages["/"].handler, is_open=True), access or Access())
        opened.append(Served(loop, site, limits or Limits()))
        return opened[-1]

    yield start
    for each in opened:
        each.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
