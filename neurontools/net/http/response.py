"""A response, as pages give it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from neurontools.net.http.compression import Document

PLAIN_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    """What a page answers. A `Document` is sent compressed to who asks for it; a generator is sent piece by piece.

    It is closed when the client goes away, and the connection ends with it.
    """

    body: bytes | Document | AsyncGenerator[bytes, None]
    content_type: str = PLAIN_TEXT
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    close: bool = False  # end the connection behind it


def refusal(status: int, text: str, *headers: tuple[str, str], close: bool = True) -> Response:
    """A response that says in a line why there is no other."""
    return Response(f"{text}\n".encode(), PLAIN_TEXT, status, headers, close)
