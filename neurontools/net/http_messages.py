"""HTTP requests and responses, and gzip compression of responses."""

from __future__ import annotations

import struct
import zlib
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from neurontools.net.tls import Role


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request. `headers` has lower-case names; values of repeated headers are joined by commas."""

    method: str
    path: str  # as sent, not decoded
    query: str
    authority: str  # host and port from the Host header, "" without this header
    headers: Mapping[str, str]
    role: Role | None = Role.FULL  # None: the client's certificate gives no access
    body: bytes = b""  # body of a short POST; a longer body is not read

    def header(self, name: str) -> str:
        """Returns the value of a header by its lower-case name; "" if the header is missing."""
        return self.headers.get(name, "")


def request_of(
    method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], role: Role | None = Role.FULL
) -> HttpRequest:
    """Builds a request from the values that h11 has parsed."""
    named: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        named[name] = f"{named[name]}, {value}" if name in named else value
    rest, authority = target.decode("latin-1"), named.get("host", "")
    scheme, separator, behind = rest.partition("://")
    # An absolute URL as the target, as for proxies, overrides Host (RFC 9112, section 3.2.2).
    if separator and scheme.lower() in ("http", "https"):
        authority, slash, path = behind.partition("/")
        rest = slash + path or "/"
    path, _, query = rest.partition("?")
    return HttpRequest(method.decode("latin-1"), path, query, authority, named, role)


PLAIN_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response. If `body` is a document, it is compressed for clients that accept gzip.

    If `body` is a generator, its pieces are sent as they come, and the connection is closed after the last. The
    generator is closed when the client disconnects.
    """

    body: bytes | CompressibleDocument | AsyncGenerator[bytes, None]
    content_type: str = PLAIN_TEXT
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    close: bool = False  # close the connection after the response


def refusal(status: int, text: str, *headers: tuple[str, str], close: bool = True) -> HttpResponse:
    """Returns an error response whose body is one line of text."""
    return HttpResponse(f"{text}\n".encode(), PLAIN_TEXT, status, headers, close)


_LEVEL = 1  # zlib level: makes metrics 20 times smaller; higher levels are slower and save little
_RAW = -15  # zlib's wbits: the largest window, raw deflate without header and trailer
_SMALLEST_BYTES = 1024  # least size of a compressed body; a smaller body fits in one packet uncompressed
# gzip header (RFC 1952): magic, deflate, no flags, no time, fastest compression, unknown system.
_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
_LAST_BLOCK = b"\x03\x00"  # an empty deflate block, marked as the last block
_GZIP_END = struct.Struct("<II")  # gzip trailer: CRC-32 and size of the content


class CompressedPart:
    """A part of compressible documents. It is compressed only once, even if several documents contain it."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    @cached_property
    def deflated(self) -> bytes:
        """The part as deflate blocks. They have no references to other parts, so that blocks can be joined."""
        compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
        return compressor.compress(self.content) + compressor.flush(zlib.Z_FULL_FLUSH)


class CompressibleDocument:
    """A response body for many clients. It consists of parts that are compressed separately."""

    def __init__(self, parts: Iterable[CompressedPart]) -> None:
        self._parts = tuple(parts)
        self.content = b"".join([part.content for part in self._parts])

    @property
    def compressible(self) -> bool:
        """Whether the document is large enough for compression."""
        return len(self.content) >= _SMALLEST_BYTES

    @cached_property
    def gzipped(self) -> bytes:
        """The content in gzip format, built at the first access."""
        end = _GZIP_END.pack(zlib.crc32(self.content), len(self.content) % 2**32)
        return b"".join([_GZIP_HEAD, *[part.deflated for part in self._parts], _LAST_BLOCK, end])


def accepts_gzip(accept_encoding: str) -> bool:
    """Returns whether an Accept-Encoding header accepts gzip (RFC 9110, section 12.5.3)."""
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
