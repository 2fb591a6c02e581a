"""Sessions of browsers: the token is told once, and what the browser keeps is a cookie that the token has signed.

Nothing is kept here, so a session outlives a restart, and ends when the token becomes another one.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from neurontools.net.http.access import Access
from neurontools.net.http.request import Request

SESSION_SECONDS = 7 * 86_400
_PURPOSE = "neurontools web session until "


class Sessions:
    """Who may see the pages: who sends the token, or a cookie that was given for it."""

    def __init__(self, access: Access, now: Callable[[], float] = time.time) -> None:
        self._access = access
        self._now = now
        # A name with this prefix can only be set over TLS, by this host, for all of it.
        self._name = "neurontools-session" if access.context is None else "__Host-neurontools-session"

    def admits(self, request: Request) -> bool:
        """Whether a request is of somebody who may see the pages."""
        return self._access.admits(request.header("authorization")) or self._has_session(request.header("cookie"))

    def begin(self, request: Request) -> str | None:
        """The Set-Cookie for who sends the token in a form; None for who doesn't."""
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
        if not self._access.asks_for_token or self._name not in cookies:
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
