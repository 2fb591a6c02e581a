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
    """What a client asks for. `headers` are by lower-case name; those that were sent twice are joined by commas."""

    method: str
    path: str  # as it was sent: not decoded
    query: str
    authority: str  # host and port that the client means, "" when an old one doesn't say
    headers: Mapping[str, str]
    role: Role | None = Role.FULL  # how much the client may see; None: its certificate is for nothing here
    body: bytes = b""  # of a POST, where it is short; else the connection ends behind the response

    def header(self, name: str) -> str:
        """A header by its lower-case name; "" when there is none."""
        return self.headers.get(name, "")


def request_of(
    method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], role: Role | None = Role.FULL
) -> HttpRequest:
    """The request of what a parser has read, the names of headers in lower case."""
    named: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        named[name] = f"{named[name]}, {value}" if name in named else value
    rest, authority = target.decode("latin-1"), named.get("host", "")
    scheme, separator, behind = rest.partition("://")
    if separator and scheme.lower() in ("http", "https"):  # the form for proxies, in which Host doesn't count
        authority, slash, path = behind.partition("/")
        rest = slash + path or "/"
    path, _, query = rest.partition("?")
    return HttpRequest(method.decode("latin-1"), path, query, authority, named, role)


PLAIN_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a page answers. A `Document` is sent compressed to who asks for it; a generator is sent piece by piece.

    It is closed when the client goes away, and the connection ends with it.
    """

    body: bytes | CompressibleDocument | AsyncGenerator[bytes, None]
    content_type: str = PLAIN_TEXT
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    close: bool = False  # end the connection behind it


def refusal(status: int, text: str, *headers: tuple[str, str], close: bool = True) -> HttpResponse:
    """A response that says in a line why there is no other."""
    return HttpResponse(f"{text}\n".encode(), PLAIN_TEXT, status, headers, close)


_LEVEL = 1  # the next ones take longer and save little: metrics become 20 times smaller by this one
_RAW = -15  # the largest window, without head and end
_SMALLEST_BYTES = 1024  # below this, one packet is one packet
# RFC 1952: magic, deflate, no flags, no time, fastest, of an unknown system.
_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
_LAST_BLOCK = b"\x03\x00"  # and empty
_GZIP_END = struct.Struct("<II")  # checksum and length of the content


class CompressedPart:
    """A part of documents; one that is in many of them is compressed once."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    @cached_property
    def deflated(self) -> bytes:
        """Whole deflate blocks that refer to nothing before them, so that any others may follow and precede."""
        compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
        return compressor.compress(self.content) + compressor.flush(zlib.Z_FULL_FLUSH)


class CompressibleDocument:
    """Bytes that are sent to many, in parts."""

    def __init__(self, parts: Iterable[CompressedPart]) -> None:
        self._parts = tuple(parts)
        self.content = b"".join([part.content for part in self._parts])

    @property
    def compressible(self) -> bool:
        """Whether compressing it is worth the while."""
        return len(self.content) >= _SMALLEST_BYTES

    @cached_property
    def gzipped(self) -> bytes:
        """The content as a gzip file, made for the first who asks."""
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
