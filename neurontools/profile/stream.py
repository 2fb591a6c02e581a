"""A profile for somebody who reads along: the chunks of a worker's file, as bytes that wait to be sent."""

from __future__ import annotations

import errno
import os
from threading import Lock

from neurontools.profile import chunks
from neurontools.profile.encoder import ProfileEncoder
from neurontools.profile.metadata import Metadata

MOST_WAITING_BYTES = 64 << 20


class ProfileStream(ProfileEncoder):
    """Collects what is to be sent, for one thread at a time; `take` gives the next of it to another.

    Methods raise OSError once more than MOST_WAITING_BYTES wait, because nobody reads them.
    """

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.size_bytes = 0
        self._waiting = bytearray()
        self._lock = Lock()
        self._put(self.header)

    def take(self) -> bytes:
        """What has come since the last time."""
        with self._lock:
            taken, self._waiting = self._waiting, bytearray()
        return bytes(taken)

    def _chunk(self, kind: bytes, payload: bytes, table: str, rows: int) -> None:
        del table, rows
        self._put(chunks.chunk(kind, payload))

    def _put(self, data: bytes) -> None:
        with self._lock:
            if len(self._waiting) + len(data) > MOST_WAITING_BYTES:
                raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
            self._waiting += data
        self.size_bytes += len(data)
