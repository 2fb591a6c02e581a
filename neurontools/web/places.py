"""What is to be seen at which path: one host, or many and each of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import unquote

from neurontools.net.tls.subjects import Role
from neurontools.web.choice import Choice
from neurontools.web.fleet_view import FleetView
from neurontools.web.gallery import Crowded, View
from neurontools.web.host_view import HostView
from neurontools.web.markup import Frame

_MOST_HOSTS_AT_A_TIME = 16


class PageView(View, Protocol):
    """A view that has pages."""

    @property
    def page_names(self) -> tuple[str, ...]:
        """Those there are."""

    def frame(self, choice: Choice, title: str) -> Frame:
        """What is around a page."""


class Places(Protocol):
    """Finds what a path is of."""

    front: str
    """The path of the page to begin with."""

    def find(self, path: str, role: Role) -> tuple[PageView, str] | None:
        """The view and its page at a path below the base; None where there is none, Crowded when it can't be now."""


class OneHost:
    """The pages of a host, by how much who asks may see."""

    front = "overview"

    def __init__(self, views: Mapping[Role, HostView]) -> None:
        self._views = views

    def find(self, path: str, role: Role) -> tuple[PageView, str] | None:
        """As in Places."""
        view = self._views[role]
        return (view, path) if path in view.page_names else None


class ManyHosts:
    """The page of many hosts, and the pages of those that are looked at.

    `open_host` makes them of name, base and the socket that `reach` tells, where it does.
    """

    front = "hosts"

    def __init__(
        self,
        base: str,
        view: FleetView,
        reach: Callable[[str], str | None],
        open_host: Callable[[str, str, str], HostView],
    ) -> None:
        self._base = base
        self._reach = reach
        self._view = view
        self._open_host = open_host
        self._hosts: OrderedDict[str, HostView] = OrderedDict()

    def find(self, path: str, role: Role) -> tuple[PageView, str] | None:  # noqa: ARG002
        """As in Places."""
        if path in self._view.page_names:
            return self._view, path
        kind, _, rest = path.partition("/")
        quoted, _, page = rest.partition("/")
        name = unquote(quoted)
        socket_path = self._reach(name) if kind == "host" else None
        if socket_path is None:
            return None
        view = self._hosts.get(name)
        if view is None:
            self._make_room()
            view = self._hosts[name] = self._open_host(name, f"{self._base}host/{quoted}/", socket_path)
        self._hosts.move_to_end(name)
        return (view, page) if page in view.page_names else None

    def _make_room(self) -> None:
        """Forgets the host that was asked for longest ago of those that nobody looks at."""
        if len(self._hosts) < _MOST_HOSTS_AT_A_TIME:
            return
        resting = next((name for name, view in self._hosts.items() if not view.is_awake), None)
        if resting is None:
            raise Crowded(f"{_MOST_HOSTS_AT_A_TIME} hosts are looked at, and more may not; try again in a minute")
        del self._hosts[resting]
