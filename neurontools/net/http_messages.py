"""HTTP requests and responses, and gzip compression of responses."""

from __future__ import annotations

import struct
import zlib
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from neurontools.net.client_roles import Role


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request. `headers` have lower-case names; repeated headers are joined by commas."""

    method: str
    path: str  # as sent, not decoded
    query: str
    authority: str  # host and port of the Host header, "" if it is missing
    headers: Mapping[str, str]
    role: Role | None = Role.FULL  # None: the client's certificate gives no access
    body: bytes = b""  # of a short POST; a longer body is not read and the connection is closed

    def header(self, name: str) -> str:
        """Returns a header by its lower-case name; "" if it is missing."""
        return self.headers.get(name, "")


def request_of(
    method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], role: Role | None = Role.FULL
) -> HttpRequest:
    """Makes a request from the values of the parser."""
    named: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        named[name] = f"{named[name]}, {value}" if name in named else value
    rest, authority = target.decode("latin-1"), named.get("host", "")
    scheme, separator, behind = rest.partition("://")
    # absolute form, for proxies: it overrides Host (RFC 9112, section 3.2.2)
    if separator and scheme.lower() in ("http", "https"):
        authority, slash, path = behind.partition("/")
        rest = slash + path or "/"
    path, _, query = rest.partition("?")
    return HttpRequest(method.decode("latin-1"), path, query, authority, named, role)


PLAIN_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response. A document is compressed if the client accepts gzip; a generator is sent piece by piece.

    The generator is closed when the client disconnects. The connection ends after it.
    """

    body: bytes | CompressibleDocument | AsyncGenerator[bytes, None]
    content_type: str = PLAIN_TEXT
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    close: bool = False  # close the connection after the response


def refusal(status: int, text: str, *headers: tuple[str, str], close: bool = True) -> HttpResponse:
    """A response with the reason in one line of text."""
    return HttpResponse(f"{text}\n".encode(), PLAIN_TEXT, status, headers, close)


_LEVEL = 1  # higher levels are slower and save little: this level makes metrics 20 times smaller
_RAW = -15  # largest window, raw deflate without header and trailer
_SMALLEST_BYTES = 1024  # smaller bodies fit in one packet anyway
# RFC 1952: magic, deflate, no flags, no time, fastest compression, unknown system.
_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
_LAST_BLOCK = b"\x03\x00"  # an empty block, marked as the last
_GZIP_END = struct.Struct("<II")  # CRC-32 and size of the content


class CompressedPart:
    """A part of documents. It is compressed once, even if several documents contain it."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    @cached_property
    def deflated(self) -> bytes:
        """The part as deflate blocks without back-references to other parts, so that parts can be joined."""
        compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
        return compressor.compress(self.content) + compressor.flush(zlib.Z_FULL_FLUSH)


class CompressibleDocument:
    """A response body that many clients get, made of parts."""

    def __init__(self, parts: Iterable[CompressedPart]) -> None:
        self._parts = tuple(parts)
        self.content = b"".join([part.content for part in self._parts])

    @property
    def compressible(self) -> bool:
        """Whether the document is large enough for compression."""
        return len(self.content) >= _SMALLEST_BYTES

    @cached_property
    def gzipped(self) -> bytes:
        """The content as a gzip file. Made at the first request."""
        end = _GZIP_END.pack(zlib.crc32(self.content), len(self.content) % 2**32)
        return b"".join([_GZIP_HEAD, *[part.deflated for part in self._parts], _LAST_BLOCK, end])


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header asks for gzip (RFC 9110, 12.5.3)."""
    accepted: dict[str, bool] = {}
    for part in accept_encoding.split(","):
        coding, *parameters = (piece.strip().lower() for piece in part.split(";"))
        accepted[coding] = not any(_is_refusal(parameter) for parameter in parameters)
    return accepted.get("gzip", accepted.get("*", False))


def _is_refusal(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    try:
        return name.strip() == "q" and float(value) <= 0
    except ValueError:
        return False
