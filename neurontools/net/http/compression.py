"""gzip, where a client asks for it: documents are compressed once, however many ask, and parts that stay not again."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from functools import cached_property

_LEVEL = 1  # the next ones take longer and save little: metrics become 20 times smaller by this one
_RAW = -15  # the largest window, without head and end
_SMALLEST_BYTES = 1024  # below this, one packet is one packet
# RFC 1952: magic, deflate, no flags, no time, fastest, of an unknown system.
_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
_LAST_BLOCK = b"\x03\x00"  # and empty
_GZIP_END = struct.Struct("<II")  # checksum and length of the content


class Part:
    """A part of documents; one that is in many of them is compressed once."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    @cached_property
    def deflated(self) -> bytes:
        """Whole deflate blocks that refer to nothing before them, so that any others may follow and precede."""
        compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
        return compressor.compress(self.content) + compressor.flush(zlib.Z_FULL_FLUSH)


class Document:
    """Bytes that are sent to many, in parts."""

    def __init__(self, parts: Iterable[Part]) -> None:
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
