"""What the HTTP/2 frames of a client ask of a server (RFC 9113, section 4.1)."""

from __future__ import annotations

_PREFACE_BYTES = 24
_HEADER_BYTES = 9
_HEADERS = 1
CALL = 1.0
FRAME = 0.05
BYTE = 1.0 / 2**8  # to read a report takes a microsecond a byte


class FrameWeight:
    """Weighs the bytes of one client as they come: one for each call it begins, little for every other frame and byte.

    A call that is cancelled as soon as it is made weighs as much as any other.
    """

    __slots__ = ("_header", "_skip")

    def __init__(self) -> None:
        self._header = b""
        self._skip = _PREFACE_BYTES

    def weigh(self, data: memoryview) -> float:
        """The work in the next bytes, in calls."""
        size = len(data)
        work = size * BYTE
        position = self._skip
        while position < size:
            header = self._header + data[position : position + _HEADER_BYTES - len(self._header)]
            if len(header) < _HEADER_BYTES:
                self._header = header
                position = size
                break
            position += _HEADER_BYTES - len(self._header) + int.from_bytes(header[:3])
            self._header = b""
            work += CALL if header[3] == _HEADERS else FRAME
        self._skip = position - size
        return work
