"""The Host check: a page of somebody else's must not read ours through the visitor's browser.

Such a page can have its own name resolve to our address (DNS rebinding); the browser then takes our pages for its own.
What it can't do is name us otherwise: the name it sends is its own. So the name must be the host's or one that was
allowed; numeric addresses are always right, since nobody can make one resolve to another.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable


class HostCheck:
    """Which names of ours a request may be for: localhost, the host's own, and `allowed`, all without a port."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        own = socket.gethostname()
        self._names = {name.lower().rstrip(".") for name in ("localhost", own, own.partition(".")[0], *allowed) if name}

    def admits(self, authority: str) -> bool:
        """Whether a request for this host, with or without a port, is meant for us."""
        host = _without_port(authority.strip()).lower().rstrip(".")
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return host in self._names or host.endswith(".localhost")
        return True


def _without_port(authority: str) -> str:
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]
