"""The pages of the daemon's own host, as its settings say."""

from __future__ import annotations

from functools import partial

from neurond.settings import Settings
from neurond.snapshots.store import Store
from neurond.web.store_feed import StoreFeed
from neurontools.net.http.access import Access
from neurontools.net.http.host_check import HostCheck
from neurontools.net.http.site import Page
from neurontools.net.tls.subjects import Role
from neurontools.web.browser_access import BrowserSessions, RequestGuard
from neurontools.web.page_views import HostView
from neurontools.web.pages import BASE, SingleHostRouter, WebPages
from neurontools.web.privacy_filter import PrivacyFilter
from neurontools.web.render_cache import RenderCache


class DaemonPages:
    """Draws while somebody looks; nothing of it costs anything else. Belongs to the event loop's thread."""

    def __init__(self, settings: Settings, store: Store, access: Access) -> None:
        self._gallery = RenderCache()

        def view(hiding: PrivacyFilter) -> HostView:
            feed = partial(StoreFeed, store, settings.interval_seconds, hiding)
            return HostView(BASE, feed, hiding, notes=hiding.notes("[web] of neurond's configuration"))

        shown = PrivacyFilter(settings.web_shows_commands, settings.web_shows_users)
        host = SingleHostRouter({Role.SUMMARY: view(PrivacyFilter()), Role.FULL: view(shown)})
        guard = RequestGuard(HostCheck(settings.metrics_hosts or ()))
        self._pages = WebPages(self._gallery, host, guard, BrowserSessions(access))

    @property
    def page(self) -> Page:
        """What is below `BASE`."""
        return self._pages.page

    def observe(self) -> None:
        """Takes note that there is a new snapshot."""
        self._gallery.news()

    def close(self) -> None:
        """Draws no more."""
        self._gallery.close()
