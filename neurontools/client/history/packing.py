"""Snapshots packed one after the other: each takes what differs from the one before it."""

from __future__ import annotations

import zlib

_TOGETHER = 32  # packed after each other; to unpack the last of them takes a millisecond or two
_LEVEL = 6  # takes 4 % less than 5 does, and no longer
_MOST_PIECE_BYTES = 28_000  # zlib looks back 32 KiB, where the same part of the message before has to be


class Packed:
    """One message, packed. Equal ones hold the same message."""

    __slots__ = ("_number", "_together")

    def __init__(self, together: list[tuple[bytes, ...]], number: int) -> None:
        self._together = together
        self._number = number

    @property
    def size_bytes(self) -> int:
        """What it takes."""
        return sum(map(len, self._together[self._number]))

    def message(self) -> bytes:
        """The message. From any thread."""
        streams = [zlib.decompressobj() for _ in self._together[self._number]]
        message: list[bytes] = []
        for pieces in self._together[: self._number + 1]:
            message = [stream.decompress(piece) for stream, piece in zip(streams, pieces, strict=True)]
        return b"".join(message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Packed) and self.message() == other.message()

    def __hash__(self) -> int:
        return hash(self.message())


class Packer:
    """Packs messages that are much alike, in the order they come; for one thread."""

    def __init__(self) -> None:
        self._together: list[tuple[bytes, ...]] = []
        self._streams: list[zlib._Compress] = []

    def pack(self, message: bytes) -> Packed:
        """The message, packed behind those before it."""
        if len(self._together) in (0, _TOGETHER):
            self._together = []
            count = max(1, -(-len(message) // _MOST_PIECE_BYTES))
            self._streams = [zlib.compressobj(_LEVEL) for _ in range(count)]
        size = -(-len(message) // len(self._streams))
        self._together.append(
            tuple(
                stream.compress(message[number * size : (number + 1) * size]) + stream.flush(zlib.Z_SYNC_FLUSH)
                for number, stream in enumerate(self._streams)
            )
        )
        return Packed(self._together, len(self._together) - 1)
