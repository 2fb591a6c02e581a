"""The pages of the daemon's own host, as its settings say."""

from __future__ import annotations

from functools import partial

from neurond.settings import Settings
from neurond.snapshots.store import Store
from neurond.web.store_feed import StoreFeed
from neurontools.http.access import Access
from neurontools.http.host_check import HostCheck
from neurontools.http.site import Page
from neurontools.tls.subjects import Role
from neurontools.web.gallery import Gallery
from neurontools.web.guard import Guard
from neurontools.web.host_view import HostView
from neurontools.web.pages import BASE, WebPages
from neurontools.web.session import Sessions


class DaemonPages:
    """Draws while somebody looks; nothing of it costs anything else. Belongs to the event loop's thread."""

    def __init__(self, settings: Settings, store: Store, access: Access) -> None:
        self._gallery = Gallery()

        def view(*, shows_commands: bool, shows_users: bool) -> HostView:
            feed = partial(
                StoreFeed, store, settings.interval_seconds, shows_commands=shows_commands, shows_users=shows_users
            )
            notes = hidden_notes(shows_commands=shows_commands, shows_users=shows_users)
            return HostView(BASE, feed, shows_users=shows_users, notes=notes)

        views = {
            Role.SUMMARY: view(shows_commands=False, shows_users=False),
            Role.FULL: view(shows_commands=settings.web_shows_commands, shows_users=settings.web_shows_users),
        }
        guard = Guard(HostCheck(settings.metrics_hosts or ()))
        self._pages = WebPages(self._gallery, views, guard, Sessions(access))

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


def hidden_notes(*, shows_commands: bool, shows_users: bool) -> tuple[str, ...]:
    """What is hidden, and who decides that."""
    hidden = [name for name, is_shown in (("commands", shows_commands), ("users", shows_users)) if not is_shown]
    if not hidden:
        return ()
    text = " and ".join(hidden).capitalize()
    return (f"{text} are hidden here; [web] of neurond's configuration says what is shown.",)
