"""Reads a slow source beside the event loop, and goes on without it while it doesn't answer."""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
import time

from neurond.sources.source import Source

_SWITCH_SECONDS = 0.0005

_log = logging.getLogger(__name__)


class Refresher:
    """Refreshes a source in a thread that ends with the process; a read of hardware may hang for ever."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._asked: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = queue.SimpleQueue()
        self._pending: asyncio.Future[None] | None = None
        self._pending_since = 0.0
        self._failure = ""
        if source.is_slow:
            # How long the event loop may have to wait for the interpreter while a reading is put together.
            sys.setswitchinterval(_SWITCH_SECONDS)
            threading.Thread(target=self._work, name="source", daemon=True).start()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the devices' state is old, if it is."""
        if self._pending is not None and not self._pending.done():
            seconds = time.monotonic() - self._pending_since
            return (f"the driver has not answered for {seconds:.0f} s: what is shown of the devices is that old",)
        return (self._failure,) if self._failure else ()

    async def refresh(self, patience_seconds: float) -> None:
        """Has the source read its hardware; returns when it has, or when patience ends and it goes on reading."""
        if not self._source.is_slow:
            return
        if self._pending is None or self._pending.done():
            loop = asyncio.get_running_loop()
            self._pending = loop.create_future()
            self._pending_since = time.monotonic()
            self._asked.put((loop, self._pending))
        await asyncio.wait({self._pending}, timeout=patience_seconds)

    def _work(self) -> None:
        while True:
            loop, future = self._asked.get()
            try:
                self._source.refresh()
                self._failure = ""
            except Exception as error:
                # A fault in one reading must not end all later ones.
                self._failure = f"the devices could not be read: {error}"
                _log.exception("the devices could not be read")
            try:
                loop.call_soon_threadsafe(_finish, future)
            except RuntimeError:  # the loop is closed: the daemon has ended
                return


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
