"""What keeps other pages in the visitor's browser, and other names of this host, away; and what a browser is told."""

from __future__ import annotations

from neurontools.net.http.host_check import HostCheck
from neurontools.net.http.request import Request
from neurontools.net.http.response import Response, refusal

HEADERS = (
    (
        "Content-Security-Policy",
        (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
            "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'"
        ),
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
_PORTS = {"http": "80", "https": "443"}


class Guard:
    """Refuses what no page of ours and no person's own navigation sends."""

    def __init__(self, hosts: HostCheck) -> None:
        self._hosts = hosts

    def refused(self, request: Request) -> Response | None:
        """The refusal; None for a request that may be answered."""
        if not request.authority or not self._hosts.admits(request.authority):
            return refusal(421, f"not for {request.authority[:100]!a}; ask for this host by its address or its name")
        if not _is_own(request):
            return refusal(403, "asked for by a page of somebody else")
        return None


def _is_own(request: Request) -> bool:
    """Whether a page of ours asks, or a person who follows a link or types an address; or no browser at all."""
    origin, site = request.header("origin"), request.header("sec-fetch-site") or "none"
    # Pages that send no referrer send their forms with the origin "null", as ours do.
    is_own_form = origin == "null" and site == "same-origin"
    if origin and not is_own_form and not _is_origin_of(origin, request.authority):
        return False
    if site in ("same-origin", "none"):
        return True
    is_visit = request.header("sec-fetch-mode") == "navigate" and request.header("sec-fetch-dest") == "document"
    return is_visit and request.method == "GET"


def _is_origin_of(origin: str, authority: str) -> bool:
    """Whether an origin is this host and port; a proxy before us may have another scheme."""
    scheme, separator, place = origin.partition("://")
    usual = _PORTS.get(scheme)
    if not separator or usual is None:
        return False
    return _with_port(place, usual) == _with_port(authority, usual)


def _with_port(authority: str, usual: str) -> str:
    host, colon, port = authority.lower().rpartition(":")
    return f"{authority.lower()}:{usual}" if not colon or port.endswith("]") else f"{host}:{port}"
