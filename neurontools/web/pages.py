"""What is at which address: pages, their streams, the script, the style sheet, and where a token becomes a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from urllib.parse import parse_qs, quote

from neurontools.net.http.compression import Document, Part
from neurontools.net.http.request import Request
from neurontools.net.http.response import PLAIN_TEXT, Response, refusal
from neurontools.net.http.site import Page
from neurontools.util.formats import element
from neurontools.web.choice import Choice, choice_of
from neurontools.web.gallery import Crowded, Gallery
from neurontools.web.guard import HEADERS, Guard
from neurontools.web.markup import document, notice
from neurontools.web.places import PageView, Places
from neurontools.web.session import Sessions
from neurontools.web.style import style_sheet

BASE = "/top/"
_HTML = "text/html; charset=utf-8"
_STREAM = "text/event-stream"


@cache
def script() -> bytes:
    """The script of all pages."""
    return files("neurontools.web").joinpath("script.js").read_bytes()


class WebPages:
    """The pages of a host, or of many."""

    def __init__(self, gallery: Gallery, places: Places, guard: Guard, sessions: Sessions) -> None:
        self._gallery = gallery
        self._places = places
        self._guard = guard
        self._sessions = sessions
        self._fixed: dict[str, tuple[str, Callable[[], bytes]]] = {
            "style.css": ("text/css; charset=utf-8", style_sheet),
            "script.js": ("text/javascript; charset=utf-8", script),
        }

    @property
    def page(self) -> Page:
        """For a site: who may see what is decided here."""
        return Page(self._answer, is_open=True, methods=("GET", "HEAD", "POST"))

    def _answer(self, request: Request) -> Response:
        response = self._guard.refused(request) or self._response(request)
        return replace(response, headers=(*HEADERS, *response.headers))

    def _response(self, request: Request) -> Response:
        name = request.path.removeprefix(BASE)
        if name == "session":
            return self._session(request)
        if request.method == "POST":
            return refusal(405, "only GET", ("Allow", "GET, HEAD"))
        if name in self._fixed:
            kind, made = self._fixed[name]
            return Response(Document([Part(made())]), kind)
        if not self._sessions.admits(request):
            return self._asking(request)
        if request.role is None:
            return refusal(403, "no name of your certificate is allowed here")
        if name == "":
            return _to(f"{BASE}{self._places.front}")
        try:
            found = self._places.find(name, request.role)
            if found is None:
                return refusal(404, f"no such page; the pages are at {BASE}", close=False)
            view, page = found
            choice = choice_of(page, request.query)
            if _STREAM in request.header("accept"):
                return self._stream(request, view, choice)
            return self._page(view, choice)
        except ValueError as error:
            return refusal(400, str(error), close=False)
        except Crowded as full:
            return refusal(503, str(full), ("Retry-After", "3"))

    def _page(self, view: PageView, choice: Choice) -> Response:
        picture = self._gallery.picture(view, choice)

        def made() -> bytes:
            frame = view.frame(choice, picture.title)
            return document(BASE, frame, picture.rows, picture.version, choice.columns)

        return Response(picture.page(made), _HTML, headers=(("Vary", "Accept, Cookie"),))

    def _stream(self, request: Request, view: PageView, choice: Choice) -> Response:
        since = request.header("last-event-id") or _given(request.query, "since")
        return Response(self._gallery.stream(view, choice, since), _STREAM, headers=(("X-Accel-Buffering", "no"),))

    def _asking(self, request: Request) -> Response:
        """The page that asks for the token; who comes back to a page is sent there again."""
        back = f"{request.path}?{request.query}" if request.query else request.path
        return Response(self._form(back, ""), _HTML, 401, (("WWW-Authenticate", "Bearer"),))

    def _form(self, back: str, trouble: str) -> bytes:
        label = element(
            "label", "Token ", element("input", type="password", name="token", autocomplete="off", required="")
        )
        form = element(
            "form",
            label,
            element("button", "Show"),
            id="session",
            method="post",
            action=f"{BASE}session?to={quote(back)}",
        )
        told = [element("p", trouble, role="alert")] if trouble else []
        return notice(BASE, "neuron-top asks for a token", *told, form)

    def _session(self, request: Request) -> Response:
        if request.method != "POST":
            return Response(self._form(BASE, ""), _HTML)
        back = _given(request.query, "to")
        if not (back.startswith(BASE) and back.isascii() and back.isprintable()):
            back = BASE
        cookie = self._sessions.begin(request)
        if cookie is None:
            return Response(self._form(back, "This is not the token."), _HTML, 401, (("WWW-Authenticate", "Bearer"),))
        return _to(back, ("Set-Cookie", cookie))


def _given(query: str, name: str) -> str:
    try:
        return parse_qs(query, max_num_fields=50).get(name, [""])[0]
    except ValueError:
        return ""


def _to(address: str, *headers: tuple[str, str]) -> Response:
    return Response(b"", PLAIN_TEXT, 303, (("Location", address), *headers))
