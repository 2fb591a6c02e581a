"""Compresses successive messages of timelines and recordings. Successive messages are mostly alike.

A message is cut into pieces of equal size. Each piece has its own zlib stream, which continues with the same piece of
the next message. A piece takes few bytes if it resembles the same piece of the previous message.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from neurontools.rpc.call import MAX_REPLY_BYTES

MOST_PIECE_BYTES = 28_000
"""Size limit of a piece: the zlib window (32 KiB) must reach back to the same piece of the previous message."""

SMALL_LEVEL = 6  # zlib level; the output is 4 % smaller than at level 5, at the same speed
FAST_LEVEL = 3  # takes half of the time of level 6; the output is 15 % larger
_MESSAGES_PER_STREAM = 32  # messages in a stream of a `Packer`; unpacking the last one takes one or two milliseconds


class MessageCompressor:
    """Compresses successive messages. Starts new streams after `messages_per_stream` messages. Not thread-safe.

    `message_count` is the number of messages in the current streams: 1 if the last message started them.
    """

    def __init__(self, messages_per_stream: int, level: int = SMALL_LEVEL) -> None:
        self.message_count = 0
        self._level = level
        self._messages_per_stream = messages_per_stream
        self._streams: list[zlib._Compress] = []

    def compress(self, message: bytes) -> tuple[bytes, ...]:
        """Returns the compressed pieces of a message. Decompressing them requires the streams' earlier messages."""
        too_long = len(message) > MOST_PIECE_BYTES * len(self._streams)
        if self.message_count in (0, self._messages_per_stream) or too_long:
            self.message_count = 0
            self._streams = [zlib.compressobj(self._level) for _ in range(max(1, -(-len(message) // MOST_PIECE_BYTES)))]
        self.message_count += 1
        size = -(-len(message) // len(self._streams))
        return tuple(
            stream.compress(message[number * size : (number + 1) * size]) + stream.flush(zlib.Z_SYNC_FLUSH)
            for number, stream in enumerate(self._streams)
        )


class MessageDecompressor:
    """Decompresses the messages of one set of streams, in order. A message has at most `limit_bytes`.

    Not thread-safe.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._streams: list[zlib._Decompress] = []

    def decompress(self, pieces: Sequence[bytes]) -> bytes:
        """Returns the next message from its compressed pieces.

        Raises ValueError if the pieces are malformed, if the message has more or fewer pieces than the first message
        had, or if the message has more than `limit_bytes`.
        """
        if not self._streams:
            self._streams = [zlib.decompressobj() for _ in pieces]
        if len(pieces) != len(self._streams):
            raise ValueError(f"{len(pieces)} pieces for {len(self._streams)} streams")
        message = bytearray()
        for stream, piece in zip(self._streams, pieces, strict=True):
            try:
                message += stream.decompress(piece, self._limit_bytes - len(message) + 1)
            except zlib.error as error:
                raise ValueError(str(error)) from error
            if len(message) > self._limit_bytes:
                raise ValueError(f"a message over {self._limit_bytes:,} bytes")
            if stream.eof:
                raise ValueError("a stream ends before its last message")
        return bytes(message)


class PackedMessage:
    """One message in shared zlib streams. Two objects are equal if their messages are equal."""

    __slots__ = ("_number", "_together")

    def __init__(self, together: Sequence[tuple[bytes, ...]], number: int) -> None:
        self._together = together
        self._number = number

    @property
    def streams(self) -> Sequence[tuple[bytes, ...]]:
        """The compressed pieces of all messages in the shared streams, oldest first."""
        return self._together

    @property
    def position(self) -> int:
        """Index of the message in `streams`."""
        return self._number

    @property
    def size_bytes(self) -> int:
        """Memory use of the compressed message."""
        return sum(map(len, self._together[self._number]))

    def message(self) -> bytes:
        """Unpacks and returns the message. Thread-safe."""
        message = b""
        for message in _decompress(self._together[: self._number + 1]):  # noqa: B007
            pass
        return message

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedMessage) and self.message() == other.message()

    def __hash__(self) -> int:
        return hash(self.message())


def _decompress(streams: Iterable[tuple[bytes, ...]]) -> Iterator[bytes]:
    decompressor = MessageDecompressor(MAX_REPLY_BYTES)
    return map(decompressor.decompress, streams)


def unpack(packed: Iterable[PackedMessage]) -> Iterator[bytes]:
    """Yields the messages. Unpacks those with shared streams in one pass, which is faster than one by one."""
    for _, together in groupby(packed, key=lambda each: id(each.streams)):
        group = list(together)
        last = max(each.position for each in group)
        messages = list(_decompress(group[0].streams[: last + 1]))
        yield from [messages[each.position] for each in group]


class Packer:
    """Packs successive messages, so that each can be unpacked at any time. Not thread-safe."""

    def __init__(self, level: int = SMALL_LEVEL) -> None:
        self._compressor = MessageCompressor(_MESSAGES_PER_STREAM, level)
        self._together: list[tuple[bytes, ...]] = []

    def pack(self, message: bytes) -> PackedMessage:
        """Packs the next message."""
        pieces = self._compressor.compress(message)
        if self._compressor.message_count == 1:
            self._together = []
        self._together.append(pieces)
        return PackedMessage(self._together, len(self._together) - 1)
