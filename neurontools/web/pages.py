"""What is at which address: pages, their streams, the script, the style sheet, and where a token becomes a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, quote

from neurontools.http.compression import Document, Part
from neurontools.http.request import Request
from neurontools.http.response import PLAIN_TEXT, Response, refusal
from neurontools.http.site import Page
from neurontools.text.markup import element
from neurontools.tls.subjects import Role
from neurontools.views.pages import page_named
from neurontools.web.choice import WINDOWS_SECONDS, Choice, choice_of
from neurontools.web.gallery import Crowded, Gallery
from neurontools.web.guard import HEADERS, Guard
from neurontools.web.host_view import HostView
from neurontools.web.markup import Frame, document, notice
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
    """The pages of a host, by how much who asks may see."""

    def __init__(self, gallery: Gallery, views: Mapping[Role, HostView], guard: Guard, sessions: Sessions) -> None:
        self._gallery = gallery
        self._views = views
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
        view = self._views[request.role]
        if name == "":
            return _to(f"{BASE}{view.page_names[0]}")
        if name not in view.page_names:
            return refusal(404, f"no such page; the pages are at {BASE}", close=False)
        try:
            choice = choice_of(name, request.query)
            if _STREAM in request.header("accept"):
                return self._stream(request, view, choice)
            return self._page(view, choice)
        except ValueError as error:
            return refusal(400, str(error), close=False)
        except Crowded as full:
            return refusal(503, str(full), ("Retry-After", "3"))

    def _page(self, view: HostView, choice: Choice) -> Response:
        picture = self._gallery.picture(view, choice)
        made = document(_frame(view, choice, picture.title), picture.rows, picture.version, choice.columns)
        return Response(Document([Part(made)]), _HTML, headers=(("Vary", "Accept, Cookie"),))

    def _stream(self, request: Request, view: HostView, choice: Choice) -> Response:
        self._gallery.check_room()
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


def _frame(view: HostView, choice: Choice, title: str) -> Frame:
    links = tuple((page_named(name).title, view.address(choice, name), name == choice.page) for name in view.page_names)
    options: list[tuple[str, tuple[tuple[str, str, bool], ...]]] = []
    if page_named(choice.page).shows_past:
        windows = tuple(
            (f"{seconds // 60} min", view.address(choice, window=seconds), seconds == choice.window)
            for seconds in WINDOWS_SECONDS
        )
        options.append(("Time shown", windows))
    if choice.page == "overview":
        options.append(("Memory", _either(view, choice, "tree", "summary", "by process, device and model")))
    elif choice.page == "processes" and choice.details is not None:
        options.append(("Process", _either(view, choice, "time", "facts and plots", "where its time goes")))
    search = None
    if choice.page == "processes" and choice.details is None:
        others = replace(choice, filter="").told()
        search = (choice.filter, tuple((name, str(value)) for name, value in others))
    return Frame(BASE, title, links, tuple(options), search, view.notes)


def _either(view: HostView, choice: Choice, name: str, no: str, yes: str) -> tuple[tuple[str, str, bool], ...]:
    """The two sides of a choice."""
    is_chosen = bool(getattr(choice, name))
    sides: tuple[dict[str, Any], ...] = ({name: 0}, {name: 1})
    addresses = [view.address(choice, **side) for side in sides]
    return (no, addresses[0], not is_chosen), (yes, addresses[1], is_chosen)


def _given(query: str, name: str) -> str:
    try:
        return parse_qs(query, max_num_fields=50).get(name, [""])[0]
    except ValueError:
        return ""


def _to(address: str, *headers: tuple[str, str]) -> Response:
    return Response(b"", PLAIN_TEXT, 303, (("Location", address), *headers))
