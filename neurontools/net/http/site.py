"""The pages of a server, and who may see which."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from neurontools.net.http.access import Access
from neurontools.net.http.request import Request
from neurontools.net.http.response import Response, refusal
from neurontools.net.tls.subjects import Role

Handler = Callable[[Request], Response]
"""A page: it reads nothing but the request, and quickly, for it holds the event loop."""

_METHODS = ("GET", "HEAD")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """A page; `is_open` ones are for everybody, the others for those whom the access admits and who have its role."""

    handler: Handler
    is_open: bool = False
    role: Role = Role.FULL  # SUMMARY: for those too who may see no commands and no users; the handler leaves them out
    methods: tuple[str, ...] = _METHODS


class Site:
    """Pages by their path, and what is answered elsewhere. A path with a slash at its end has all that is below it too.

    Nothing here changes anything: GET and HEAD alone, but where a page says otherwise.
    """

    def __init__(self, pages: Mapping[str, Page], otherwise: Page, access: Access) -> None:
        self.access = access
        self._pages = pages
        self._otherwise = otherwise

    def answer(self, request: Request) -> Response:
        """The response to a request; a fault in a page is one too, and stands in the log."""
        page = self._pages.get(request.path) or self._pages.get(_room(request.path), self._otherwise)
        if not page.is_open:
            if not self.access.admits_host(request.authority):
                return refusal(
                    421, f"not for {request.authority[:100]!a}; ask for this host by its address or its name"
                )
            if not self.access.admits(request.header("authorization")):
                return refusal(401, "a bearer token is needed", ("WWW-Authenticate", "Bearer"))
            if request.role is None:
                return refusal(403, "no name of your certificate is allowed here")
            if request.role is not Role.FULL and page.role is Role.FULL:
                return refusal(403, f"this page is for the role {page.role}, and your certificate has {request.role}")
        if request.method not in page.methods:
            return refusal(405, f"only {page.methods[0]}", ("Allow", ", ".join(page.methods)))
        try:
            return page.handler(request)
        except Exception:
            # A fault in a page must neither end the process nor pass for an empty one.
            _log.exception("%s could not be made", request.path)
            return refusal(500, "this page could not be made; the log says why")


def _room(path: str) -> str:
    """The first part of a path, with the slashes around it."""
    return f"/{path[1:].partition('/')[0]}/"
