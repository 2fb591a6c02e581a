"""Browser access: cross-site protection, security headers and signed session cookies."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from neurontools.net.http_site import HostCheck, HttpAccess, HttpRequest, HttpResponse, refusal

SECURITY_HEADERS = (
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


class RequestGuard:
    """Rejects cross-site requests and requests for other host names."""

    def __init__(self, hosts: HostCheck) -> None:
        self._hosts = hosts

    def refused(self, request: HttpRequest) -> HttpResponse | None:
        """Returns the error response if the request is not allowed, else None."""
        if not request.authority or not self._hosts.admits(request.authority):
            return refusal(421, f"not for {request.authority[:100]!a}; ask for this host by its address or its name")
        if not _is_same_origin_request(request):
            return refusal(403, "asked for by a page of somebody else")
        return None


def _is_same_origin_request(request: HttpRequest) -> bool:
    """Returns whether a request comes from our own page, from direct navigation, or from a non-browser program."""
    origin, site = request.header("origin"), request.header("sec-fetch-site") or "none"
    # Under our "Referrer-Policy: no-referrer", browsers send our own forms with the origin "null".
    is_own_form = origin == "null" and site == "same-origin"
    if origin and not is_own_form and not _origin_matches(origin, request.authority):
        return False
    if site in ("same-origin", "none"):
        return True
    is_visit = request.header("sec-fetch-mode") == "navigate" and request.header("sec-fetch-dest") == "document"
    return is_visit and request.method == "GET"


def _origin_matches(origin: str, authority: str) -> bool:
    """Returns whether an Origin header names this host and port. Ignores the scheme, which a proxy may change."""
    scheme, separator, place = origin.partition("://")
    usual = _PORTS.get(scheme)
    if not separator or usual is None:
        return False
    return _with_port(place, usual) == _with_port(authority, usual)


def _with_port(authority: str, usual: str) -> str:
    host, colon, port = authority.lower().rpartition(":")
    return f"{authority.lower()}:{usual}" if not colon or port.endswith("]") else f"{host}:{port}"


SESSION_SECONDS = 7 * 86_400
_PURPOSE = "neurontools web session until "


class BrowserSessions:
    """Admits browser requests with the bearer token, or with a session cookie signed with the token.

    The server stores no sessions. So a session survives a restart of the server, and ends when the token changes.
    """

    def __init__(self, access: HttpAccess, now: Callable[[], float] = time.time) -> None:
        self._access = access
        self._now = now
        # Browsers accept a cookie name with the prefix __Host- only over TLS.
        self._name = "neurontools-session" if access.context is None else "__Host-neurontools-session"

    def admits(self, request: HttpRequest) -> bool:
        """Returns whether a request has a valid bearer token or session cookie."""
        return self._access.admits(request.header("authorization")) or self._has_session(request.header("cookie"))

    def begin(self, request: HttpRequest) -> str | None:
        """Returns the Set-Cookie value if the submitted form contains the correct token, else None."""
        try:
            given = parse_qs(request.body.decode("ascii"), max_num_fields=4).get("token", [""])[0]
        except ValueError:
            return None
        if not given or not given.isascii() or not self._access.admits(f"Bearer {given}"):
            return None
        until = str(int(self._now()) + SESSION_SECONDS)
        secure = "" if self._access.context is None else "; Secure"
        value = f"{until}.{self._access.signature(_PURPOSE + until)}"
        return f"{self._name}={value}; Path=/; Max-Age={SESSION_SECONDS}; HttpOnly; SameSite=Strict{secure}"

    def _has_session(self, cookies: str) -> bool:
        if not self._access.requires_token or self._name not in cookies:
            return False
        try:
            morsel = SimpleCookie(cookies).get(self._name)
        except CookieError:
            return False
        until, _, signature = ("" if morsel is None else morsel.value).partition(".")
        if not (until.isascii() and until.isdecimal() and len(until) < 12 and signature.isascii()):
            return False
        is_signed = hmac.compare_digest(signature, self._access.signature(_PURPOSE + until))
        return is_signed and self._now() < int(until)
