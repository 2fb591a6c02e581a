"""The pages for browsers about the daemon's own host."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from neurond.settings import Settings
from neurond.snapshots.store import SnapshotStore
from neurontools.client.feed import Feed, FeedState, FeedStatus
from neurontools.client.timeline import Moment, MomentBuilder, PastMomentBuilder
from neurontools.net.http_site import HttpAccess, HttpPage
from neurontools.net.tls import Role
from neurontools.web.page_views import HostView
from neurontools.web.pages import BASE, BrowserSessions, SingleHostRouter, WebPages
from neurontools.web.privacy_filter import FilteredTimeline, PrivacyFilter
from neurontools.web.render_cache import RenderCache


class DaemonPages:
    """Serves the pages, and renders them only while a browser requests them. Belongs to the event loop's thread."""

    def __init__(self, settings: Settings, store: SnapshotStore, access: HttpAccess) -> None:
        self._render_cache = RenderCache()

        def view(hiding: PrivacyFilter) -> HostView:
            feed = partial(StoreFeed, store, settings.interval_seconds, hiding)
            return HostView(BASE, feed, hiding, notes=hiding.notes("[web] in the configuration of neurond"))

        shown = PrivacyFilter(settings.web_shows_commands, settings.web_shows_users)
        host = SingleHostRouter({Role.SUMMARY: view(PrivacyFilter()), Role.FULL: view(shown)})
        # The HTTP handler of all pages below `BASE`.
        self.page: HttpPage = WebPages(self._render_cache, host, BrowserSessions(access)).page

    def observe(self) -> None:
        """Notifies the pages of a new snapshot."""
        self._render_cache.notify()

    def close(self) -> None:
        """Stops rendering."""
        self._render_cache.close()


_MOST_BYTES = 8 * 2**20
_MOMENTS_AT_ONCE = 60
_REST_SECONDS = 0.02  # pause before each part of the history, in which the event loop can serve clients


class StoreFeed(Feed):
    """Feeds pages with the snapshots of a store, and with its history, newest first.

    It needs no thread: `drain` reads the latest snapshot, and a task loads the history in small pieces.
    """

    def __init__(self, store: SnapshotStore, interval_seconds: float, hiding: PrivacyFilter) -> None:
        self.interval_seconds = interval_seconds
        super().__init__(FilteredTimeline(_MOST_BYTES, hiding))
        self._store = store
        self._maker = MomentBuilder()
        self._sequence = -1
        self.drain()
        self._loading = asyncio.get_running_loop().create_task(self._load(self.timeline.moments[-1]))

    @property
    def is_loading_past(self) -> bool:
        """Whether the task still loads history."""
        return not self._loading.done()

    def drain(self) -> int:
        """Adds the latest snapshot and the loaded history to the timeline. Returns the number of added snapshots."""
        entry = self._store.latest
        if entry.snapshot.sequence != self._sequence:
            self._sequence = entry.snapshot.sequence
            moment = self._maker.make(entry.message)
            if moment is not None:
                self._incoming.append((moment, self._maker.latest))
                self.status = FeedStatus(FeedState.LIVE, since_seconds=time.monotonic())
        return super().drain()

    def close(self) -> None:
        """Stops loading history."""
        super().close()
        self._loading.cancel()

    async def _load(self, newest: Moment) -> None:
        past = PastMomentBuilder(newest, None)
        moments = self._store.history(before_sequence=newest.sequence)
        for first in range(0, len(moments), _MOMENTS_AT_ONCE):
            await asyncio.sleep(_REST_SECONDS)
            if self.timeline.is_full:
                break
            self._older.append(past.add(moments[first : first + _MOMENTS_AT_ONCE]))
