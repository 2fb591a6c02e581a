"""A connection of a client that speaks TLS, and the server."""

from __future__ import annotations

import contextlib
import ssl
from typing import ClassVar

from neurond.peers.relay import Relay

_weighed = memoryview(bytearray(2**14))  # a whole record: nothing that is decrypted waits where no selector sees it


class TlsRelay(Relay):
    """As `Relay`; the client is a `ssl.SSLSocket` behind its handshake."""

    _piece: ClassVar = _weighed
    _not_now: ClassVar = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

    __slots__ = ("_end",)

    def end_after(self, seconds: float) -> None:
        """Closes both ends when this time is over; to be called once."""
        self._end = self._loop.call_later(max(0.0, seconds), self.close)

    def close(self) -> None:
        """Closes both ends; the client is told that this is the end of what there is."""
        if self._is_open:
            self._end.cancel()
        if self._is_open and isinstance(self._client, ssl.SSLSocket):
            with contextlib.suppress(OSError, ValueError):
                self._client.unwrap()
        super().close()
