"""HTTP handler of the browser pages: routes, event streams, token form and session cookies."""

from __future__ import annotations

import hmac
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from http.cookies import CookieError, SimpleCookie
from typing import Protocol
from urllib.parse import parse_qs, quote, unquote

from neurontools.net.bearer_token import TokenCheck
from neurontools.net.http_site import (
    PLAIN_TEXT,
    CompressedPart,
    CompressibleDocument,
    HttpAccess,
    HttpPage,
    HttpRequest,
    HttpResponse,
    refusal,
    token_refusal,
)
from neurontools.net.tls import Role
from neurontools.util.formats import element
from neurontools.web.document import PageFrame, notice_document, page_document, script, style_sheet
from neurontools.web.page_query import PageQuery, parse_page_query
from neurontools.web.page_views import FleetView, HostView
from neurontools.web.render_cache import CapacityExceeded, PageRenderer, RenderCache

BASE = "/top/"
_HTML = "text/html; charset=utf-8"
_STREAM = "text/event-stream"
_MAX_ACTIVE_HOSTS = 16
SESSION_SECONDS = 7 * 86_400
_PURPOSE = "neurontools web session until "
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_PAGE_HEADERS = (("Content-Security-Policy", _CONTENT_POLICY), ("Cross-Origin-Opener-Policy", "same-origin"))


class WebPages:
    """HTTP handler of the browser pages of one host or of many hosts."""

    def __init__(self, cache: RenderCache, router: PageRouter, sessions: BrowserSessions) -> None:
        self._cache = cache
        self._router = router
        self._sessions = sessions
        self._fixed: dict[str, tuple[str, Callable[[], bytes]]] = {
            "style.css": ("text/css; charset=utf-8", style_sheet),
            "script.js": ("text/javascript; charset=utf-8", script),
        }

    @property
    def page(self) -> HttpPage:
        """The HTTP handler of these pages, which checks the bearer token or session cookie itself."""
        return HttpPage(self._answer, is_open=True, methods=("GET", "HEAD", "POST"))

    def _answer(self, request: HttpRequest) -> HttpResponse:
        response = self._response(request)
        return replace(response, headers=(*_PAGE_HEADERS, *response.headers))

    def _response(self, request: HttpRequest) -> HttpResponse:
        name = request.path.removeprefix(BASE)
        if name == "session":
            return self._session(request)
        if request.method == "POST":
            return refusal(405, "only GET", ("Allow", "GET, HEAD"))
        if name in self._fixed:
            kind, body = self._fixed[name]
            return HttpResponse(CompressibleDocument([CompressedPart(body())]), kind)
        check = self._sessions.check(request)
        if check is TokenCheck.TOO_MANY:
            return token_refusal(check)
        if check is not TokenCheck.ADMITTED:
            return self._token_form(request)
        if request.role is None:
            return refusal(403, "no name in your certificate is allowed here")
        if name == "":
            return _redirect(f"{BASE}{self._router.front}")
        try:
            found = self._router.find(name, request.role)
            if found is None:
                return refusal(404, f"no such page; the pages are at {BASE}", close=False)
            view, page = found
            choice = parse_page_query(page, request.query)
            if _STREAM in request.header("accept"):
                return self._stream(request, view, choice)
            return self._page(view, choice)
        except ValueError as error:
            return refusal(400, str(error), close=False)
        except CapacityExceeded as full:
            return refusal(503, str(full), ("Retry-After", "3"))

    def _page(self, view: NavigablePageRenderer, choice: PageQuery) -> HttpResponse:
        page = self._cache.rendered(view, choice)

        def document() -> bytes:
            frame = view.frame(choice, page.title)
            return page_document(BASE, frame, page.content, page.version)

        return HttpResponse(page.page(document), _HTML, headers=(("Vary", "Accept, Cookie"),))

    def _stream(self, request: HttpRequest, view: NavigablePageRenderer, choice: PageQuery) -> HttpResponse:
        since = request.header("last-event-id") or _query_value(request.query, "since")
        return HttpResponse(
            self._cache.stream(view, choice, since, request.client), _STREAM, headers=(("X-Accel-Buffering", "no"),)
        )

    def _token_form(self, request: HttpRequest) -> HttpResponse:
        """Returns the form that asks for the token. A correct token leads to the requested page."""
        back = f"{request.path}?{request.query}" if request.query else request.path
        return HttpResponse(self._form(back, ""), _HTML, 401, (("WWW-Authenticate", "Bearer"),))

    def _form(self, back: str, problem: str) -> bytes:
        token = element("input", type="password", name="token", autocomplete="off", required="")
        content = (element("label", "Token ", token), element("button", "Show"))
        action = f"{BASE}session?to={quote(back)}"
        form = element("form", *content, id="session", method="post", action=action)
        alerts = [element("p", problem, role="alert")] if problem else []
        return notice_document(BASE, "neuron-top asks for a token", *alerts, form)

    def _session(self, request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            return HttpResponse(self._form(BASE, ""), _HTML)
        back = _query_value(request.query, "to")
        if not (back.startswith(BASE) and back.isascii() and back.isprintable()):
            back = BASE
        cookie = self._sessions.begin(request)
        if cookie is TokenCheck.TOO_MANY:
            return token_refusal(cookie)
        if isinstance(cookie, TokenCheck):
            form = self._form(back, "This is not the token.")
            return HttpResponse(form, _HTML, 401, (("WWW-Authenticate", "Bearer"),))
        return _redirect(back, ("Set-Cookie", cookie))


def _query_value(query: str, name: str) -> str:
    try:
        return parse_qs(query, max_num_fields=50).get(name, [""])[0]
    except ValueError:
        return ""


def _redirect(address: str, *headers: tuple[str, str]) -> HttpResponse:
    return HttpResponse(b"", PLAIN_TEXT, 303, (("Location", address), *headers))


class NavigablePageRenderer(PageRenderer, Protocol):
    """A page renderer with named pages, and navigation between them."""

    @property
    def page_names(self) -> tuple[str, ...]:
        """The names of the pages."""

    def frame(self, choice: PageQuery, title: str) -> PageFrame:
        """Returns the parts around the content of a page: navigation, options, search form and notes."""


class PageRouter(Protocol):
    """Maps a URL path to a renderer and the name of a page."""

    front: str
    """The path, below the base, of the page that visitors of the base see."""

    def find(self, path: str, role: Role) -> tuple[NavigablePageRenderer, str] | None:
        """Returns the renderer and the page name for a path below the base; None for an unknown path.

        Raises CapacityExceeded if too many hosts are viewed.
        """


class SingleHostRouter:
    """Routes to the pages of one host. Each role has its own renderer."""

    front = "overview"

    def __init__(self, views: Mapping[Role, HostView]) -> None:
        self._views = views

    def find(self, path: str, role: Role) -> tuple[NavigablePageRenderer, str] | None:
        """Returns the role's renderer and the page name; None for an unknown page."""
        view = self._views[role]
        return (view, path) if path in view.page_names else None


class FleetRouter:
    """Routes to the page of many hosts, and to the pages of each host that is viewed.

    `reach` returns the socket path of a host, None if it is not reachable. `open_host` creates the renderer of a host
    from its name, its base path and its socket path.
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

    def find(self, path: str, role: Role) -> tuple[NavigablePageRenderer, str] | None:  # noqa: ARG002
        """Returns the renderer and page name for `hosts` or `host/NAME/PAGE`; None for an unknown path.

        Raises CapacityExceeded if too many hosts are viewed.
        """
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
        """If the limit of hosts is reached, drops the least recently requested renderer without viewers.

        Raises CapacityExceeded if all renderers have viewers.
        """
        if len(self._hosts) < _MAX_ACTIVE_HOSTS:
            return
        resting = next((name for name, view in self._hosts.items() if not view.is_awake), None)
        if resting is None:
            raise CapacityExceeded(
                f"the limit of {_MAX_ACTIVE_HOSTS} hosts with viewers is reached; try again in a minute"
            )
        del self._hosts[resting]


class BrowserSessions:
    """Admits browser requests with the bearer token, or with a session cookie signed with the token.

    The server stores no sessions. So a session survives a restart of the server, and ends when the token changes.
    """

    def __init__(self, access: HttpAccess, now: Callable[[], float] = time.time) -> None:
        self._access = access
        self._now = now
        # Browsers accept a cookie name with the prefix __Host- only over TLS.
        self._name = "neurontools-session" if access.context is None else "__Host-neurontools-session"

    def check(self, request: HttpRequest) -> TokenCheck:
        """Checks the session cookie of a request, or else its bearer token."""
        return TokenCheck.ADMITTED if self._has_session(request.header("cookie")) else self._access.check_token(request)

    def begin(self, request: HttpRequest) -> str | TokenCheck:
        """Returns the Set-Cookie value if the submitted form contains the correct token, else why there is none."""
        try:
            given = parse_qs(request.body.decode("ascii"), max_num_fields=4).get("token", [""])[0]
        except ValueError:
            return TokenCheck.WRONG
        if not given or not given.isascii():
            return TokenCheck.WRONG if given else TokenCheck.MISSING
        check = self._access.check_token(request, given)
        if check is not TokenCheck.ADMITTED:
            return check
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
