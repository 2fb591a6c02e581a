"""Pages with more than numbers aren't served to everybody: over a network only by TLS, to those who are known."""

from __future__ import annotations

import ipaddress

from neurontools.net.http.access import Access
from neurontools.util.errors import EXIT_USAGE, UserError


def is_loopback(host: str | None) -> bool:
    """Whether only this host reaches what listens there; None is all addresses."""
    if host is None:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def refuse_open(host: str | None, access: Access, option: str, certificate: str, token: str) -> None:
    """UserError when an address that others reach would be served without TLS, or to everybody.

    The names say what is refused, and by which settings it is let in.
    """
    if is_loopback(host):
        return
    trouble = ""
    if access.context is None:
        trouble = f"there is no TLS; listen on 127.0.0.1, or set {certificate}"
    elif not access.knows_clients:
        trouble = f"everybody would be let in; listen on 127.0.0.1, or set {token}"
    if trouble:
        raise UserError(f"{option}: others reach this address, and {trouble}", EXIT_USAGE)
