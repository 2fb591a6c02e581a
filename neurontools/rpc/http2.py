"""A client's HTTP/2 connection over a unix socket (RFC 9113), with one stream open at a time.

It does frames, settings and flow control; what a stream carries is the business of the subclass of `Stream`. No TLS, no
push, no priorities, and no dynamic header table: what a peer may send beyond that is a ProtocolError.
Imports only C modules and its own HPACK, because `neuron-ls` waits for it, and is safe to fork.
"""

import _socket
import sys
from time import monotonic

from neurontools.rpc import hpack

# Frame types (section 6).
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PUSH_PROMISE = 0, 1, 3, 4, 5
_PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 6, 7, 8, 9
# Frame flags; ACK is that of SETTINGS and PING.
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
# Settings (section 6.5.2).
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 1, 2, 4, 5
# Error codes (section 7).
REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM, INADEQUATE_SECURITY = 7, 8, 11, 12

MAX_WINDOW_BYTES = 2**31 - 1
DEFAULT_WINDOW_BYTES = 2**16 - 1  # of every connection and stream until it is widened
_FRAME_HEADER_BYTES = 9
_DEFAULT_FRAME_BYTES = 2**14  # SETTINGS_MAX_FRAME_SIZE until the peer says otherwise; ours, always
_MAX_STREAM_ID = 2**31 - 1
_SETTING_RANGES = {_INITIAL_WINDOW_SIZE: (0, MAX_WINDOW_BYTES), _MAX_FRAME_SIZE: (_DEFAULT_FRAME_BYTES, 2**24 - 1)}
_MAX_HEADER_BLOCK_BYTES = 2**18
_RECEIVE_BYTES = 2**16  # below what malloc maps and unmaps, which costs more than another look
_MAX_CONNECT_SECONDS = 1e6
_MOST_UNSENT_BYTES = 2**16  # acknowledgements that a server asks for and does not read


class ProtocolError(Exception):
    """The peer said something that HTTP/2 forbids or that this client doesn't do."""


class StreamReset(Exception):
    """The peer reset the open stream; `code` is its HTTP/2 error."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class ConnectionEnded(Exception):
    """The peer closed the connection, or takes no more streams on it; the text is its reason."""


class Http2Stream:
    """One exchange: the window for its request, and what becomes of its answer. Subclasses take headers and data."""

    __slots__ = ("id", "is_ended", "received_bytes", "send_window_bytes")

    def __init__(self) -> None:
        self.id = 0  # until it is opened
        self.is_ended = False
        self.send_window_bytes = 0
        self.received_bytes = 0  # that the peer has not been given back

    def take_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Take a block of headers: the first ones or the trailers."""

    def take_data(self, data: bytes) -> None:
        """Take a part of the body."""


class Http2Connection:
    """A connection to the server at a socket, connected from the start; for one thread of one process.

    `deadline` is the value of time.monotonic() at which sending and receiving end with TimeoutError, None for never.
    After any error the connection is good for nothing but to be closed.

    Each side may send a window of data that the other has not taken yet: ours is `window_bytes`, at least
    DEFAULT_WINDOW_BYTES. What was received is given back before each stream, and when it fills half of the window.

    Raises OSError as connect(2) has it, ValueError for a path that no socket can have and TimeoutError when no server
    accepts within `timeout_seconds`.
    """

    def __init__(self, socket_path: str, timeout_seconds: float, *, window_bytes: int = MAX_WINDOW_BYTES) -> None:
        self.deadline: float | None = None
        self._window_bytes = window_bytes
        self._received = bytearray()
        self._received_bytes = 0
        self._peer_settings = {_INITIAL_WINDOW_SIZE: DEFAULT_WINDOW_BYTES, _MAX_FRAME_SIZE: _DEFAULT_FRAME_BYTES}
        self._send_window_bytes = DEFAULT_WINDOW_BYTES
        self._is_greeted = False
        self._is_going_away = False
        self._farewell = ""
        self._next_stream_id = 1
        self._stream = Http2Stream()
        self._header_block: tuple[int, bool, bytearray] | None = None  # stream, whether it ends it, what came of it
        settings = ((_HEADER_TABLE_SIZE, 0), (_ENABLE_PUSH, 0), (_INITIAL_WINDOW_SIZE, window_bytes))
        self._unsent = bytearray(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0, b"".join(key.to_bytes(2) + value.to_bytes(4) for key, value in settings))
        )
        self._widen_window(0, window_bytes - DEFAULT_WINDOW_BYTES)
        self._sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            connect(self._sock, socket_path, timeout_seconds)
        except BaseException:
            self._sock.close()
            raise
        self._is_closed = False

    @property
    def takes_streams(self) -> bool:
        """Whether another stream can be opened, as far as is known."""
        return not self._is_closed and not self._is_going_away and self._next_stream_id <= _MAX_STREAM_ID

    def open(self, stream: Http2Stream, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Open a stream and send its request; the answer may begin while the request waits for the peer's window."""
        stream.id = self._next_stream_id
        stream.send_window_bytes = self._peer_settings[_INITIAL_WINDOW_SIZE]
        self._next_stream_id += 2
        self._stream = stream
        self._give_back()
        self._unsent += _frame(_HEADERS, _END_HEADERS, stream.id, hpack.encode(headers))
        self._send_body(stream, body)

    def receive(self) -> None:
        """Receive one frame and act on it (section 4.1); frames of unknown types and of other streams are dropped."""
        header = self._take(_FRAME_HEADER_BYTES)
        length, kind, flags = int.from_bytes(header[:3]), header[3], header[4]
        stream_id = int.from_bytes(header[5:]) & _MAX_STREAM_ID
        if not self._is_greeted and kind != _SETTINGS:
            raise ProtocolError("not an HTTP/2 server")
        if length > _DEFAULT_FRAME_BYTES:
            raise ProtocolError(f"frame of {length} bytes, more than the {_DEFAULT_FRAME_BYTES} allowed")
        if self._header_block is not None and kind != _CONTINUATION:
            raise ProtocolError(f"frame of type {kind} inside a header block")
        payload = self._take(length)
        self._is_greeted = True
        handler = self._FRAME_HANDLERS.get(kind)
        if handler is not None:
            handler(self, flags, stream_id, payload)

    def fileno(self) -> int:
        """The descriptor of its socket, to wait for."""
        return self._sock.fileno()

    def receive_available(self) -> None:
        """Act on the frames that have come, and send what can be sent, without waiting for anything.

        One look at the socket, so that who sends without end leaves time for others.
        """
        self._sock.settimeout(0.0)
        try:
            chunk = self._sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            chunk = None
        if chunk == b"":
            raise ConnectionEnded(self._farewell or "the server closed the connection")
        self._received += chunk or b""
        while self._has_frame():
            self.receive()
        try:
            del self._unsent[: self._sock.send(self._unsent) if self._unsent else 0]
        except BlockingIOError:
            if len(self._unsent) > _MOST_UNSENT_BYTES:
                raise ProtocolError("the server takes nothing of what it asks for") from None

    def _has_frame(self) -> bool:
        """Whether the next frame is here as a whole, or is known to be one that `receive` refuses."""
        if len(self._received) < _FRAME_HEADER_BYTES:
            return False
        length = int.from_bytes(self._received[:3])
        return length > _DEFAULT_FRAME_BYTES or len(self._received) >= _FRAME_HEADER_BYTES + length

    def flush(self) -> None:
        """Send what waits to be sent; while it receives, the connection does so by itself."""
        if self._unsent:
            self._ready_socket().sendall(self._unsent)
            self._unsent.clear()

    def shut_down(self) -> None:
        """End what the thread of this connection waits for, from any other: that one gets ConnectionEnded."""
        try:  # noqa: SIM105 - contextlib takes as long to import as a call
            self._sock.shutdown(_socket.SHUT_RDWR)
        except OSError:
            pass  # it was closed already

    def close(self) -> None:
        """Close the connection; the peer cancels an open stream. May be called again."""
        self._is_closed = True
        self._sock.close()

    def _send_body(self, stream: Http2Stream, body: bytes) -> None:
        """Send DATA frames as far as the peer's windows allow, and receive while they don't (section 5.2)."""
        sent = 0
        while sent < len(body) and not stream.is_ended:
            room = min(self._peer_settings[_MAX_FRAME_SIZE], self._send_window_bytes, stream.send_window_bytes)
            if room <= 0:
                self.receive()
                continue
            chunk = body[sent : sent + room]
            sent += len(chunk)
            self._send_window_bytes -= len(chunk)
            stream.send_window_bytes -= len(chunk)
            self._unsent += _frame(_DATA, _END_STREAM if sent == len(body) else 0, stream.id, chunk)
        if sent < len(body):  # answered before it was asked: an error, and nobody wants the rest
            self._unsent += _frame(_RST_STREAM, 0, stream.id, CANCEL.to_bytes(4))

    def _take(self, size: int) -> bytes:
        """The next bytes from the server; what waits to be sent goes out before it waits for them."""
        while len(self._received) < size:
            self.flush()
            chunk = self._ready_socket().recv(_RECEIVE_BYTES)
            if not chunk:
                raise ConnectionEnded(self._farewell or "the server closed the connection")
            self._received += chunk
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def _ready_socket(self) -> _socket.socket:
        """The socket, its time-out set to what is left; TimeoutError if nothing is."""
        remaining_seconds = None if self.deadline is None else self.deadline - monotonic()
        if remaining_seconds is not None and remaining_seconds <= 0:
            raise TimeoutError
        self._sock.settimeout(remaining_seconds)
        return self._sock

    def _give_back(self) -> None:
        """Let the peer send as much again as it has sent (section 5.2)."""
        self._widen_window(0, self._received_bytes)
        self._received_bytes = 0
        stream = self._stream
        if not stream.is_ended:
            self._widen_window(stream.id, stream.received_bytes)
            stream.received_bytes = 0

    def _widen_window(self, stream_id: int, increment_bytes: int) -> None:
        """Send a WINDOW_UPDATE frame, unless it would say nothing; stream 0 is the connection."""
        if increment_bytes:
            self._unsent += _frame(_WINDOW_UPDATE, 0, stream_id, increment_bytes.to_bytes(4))

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Section 6.1. The padding counts towards flow control, and so do frames of a stream long gone."""
        stream = self._stream
        self._received_bytes += len(payload)
        if stream_id == stream.id:
            stream.received_bytes += len(payload)
            stream.take_data(_unpadded(flags, payload))
            stream.is_ended = bool(flags & _END_STREAM)
        if self._received_bytes > self._window_bytes // 2:
            self._give_back()

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Section 6.2."""
        fragment = _unpadded(flags, payload)
        if flags & _PRIORITY:
            if len(fragment) < 5:
                raise ProtocolError("HEADERS frame too short")
            fragment = fragment[5:]
        self._header_block = stream_id, bool(flags & _END_STREAM), bytearray()
        self._on_continuation(flags, stream_id, fragment)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Section 6.10."""
        if self._header_block is None or self._header_block[0] != stream_id:
            raise ProtocolError("CONTINUATION frame without its HEADERS")
        _, ends_stream, octets = self._header_block
        octets += payload
        if len(octets) > _MAX_HEADER_BLOCK_BYTES:
            raise ProtocolError(f"header block of more than {_MAX_HEADER_BLOCK_BYTES} bytes")
        if flags & _END_HEADERS:
            self._header_block = None
            if stream_id == self._stream.id:
                try:
                    headers = hpack.decode(bytes(octets))
                except ValueError as error:
                    raise ProtocolError(str(error)) from error
                self._stream.take_headers(headers)
                self._stream.is_ended = ends_stream

    def _on_rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        """Section 6.4."""
        if stream_id == self._stream.id:
            raise StreamReset(int.from_bytes(payload[:4]))

    def _on_settings(self, flags: int, _stream_id: int, payload: bytes) -> None:
        """Section 6.5. A new initial window moves that of the open stream as well (6.9.2)."""
        if flags & _ACK:
            return
        if len(payload) % 6:
            raise ProtocolError("SETTINGS frame of a wrong size")
        old_window_bytes = self._peer_settings[_INITIAL_WINDOW_SIZE]
        for start in range(0, len(payload), 6):
            setting, value = int.from_bytes(payload[start : start + 2]), int.from_bytes(payload[start + 2 : start + 6])
            lowest, highest = _SETTING_RANGES.get(setting, (0, value))
            if not lowest <= value <= highest:
                raise ProtocolError(f"value {value} of HTTP/2 setting {setting}")
            if setting in self._peer_settings:
                self._peer_settings[setting] = value
        self._stream.send_window_bytes += self._peer_settings[_INITIAL_WINDOW_SIZE] - old_window_bytes
        self._unsent += _frame(_SETTINGS, _ACK, 0, b"")

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        """Section 6.6; the client's SETTINGS forbid it."""
        raise ProtocolError("PUSH_PROMISE frame")

    def _on_ping(self, flags: int, _stream_id: int, payload: bytes) -> None:
        """Section 6.7."""
        if len(payload) != 8:
            raise ProtocolError("PING frame of a wrong size")
        if not flags & _ACK:
            self._unsent += _frame(_PING, _ACK, 0, payload)

    def _on_goaway(self, _flags: int, _stream_id: int, payload: bytes) -> None:
        """Section 6.8. A stream that the server still counts in is answered; the next one needs a new connection."""
        self._is_going_away = True
        last_stream_id = int.from_bytes(payload[:4]) & _MAX_STREAM_ID
        self._farewell = payload[8:].decode(errors="replace")
        if self._stream.id > last_stream_id:
            raise ConnectionEnded(self._farewell or "the server is shutting down")

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        """Section 6.9."""
        increment = int.from_bytes(payload) & MAX_WINDOW_BYTES
        if len(payload) != 4 or not increment:
            raise ProtocolError("WINDOW_UPDATE frame without an increment")
        if stream_id == 0:
            self._send_window_bytes += increment
        elif stream_id == self._stream.id:
            self._stream.send_window_bytes += increment

    _FRAME_HANDLERS = {  # noqa: RUF012 - never changed
        _DATA: _on_data,
        _HEADERS: _on_headers,
        _RST_STREAM: _on_rst_stream,
        _SETTINGS: _on_settings,
        _PUSH_PROMISE: _on_push_promise,
        _PING: _on_ping,
        _GOAWAY: _on_goaway,
        _WINDOW_UPDATE: _on_window_update,
        _CONTINUATION: _on_continuation,
    }


def connect(sock: _socket.socket, socket_path: str, timeout_seconds: float) -> None:
    """Connect a unix socket; TimeoutError if the server does not accept it in time. Its time-out is None afterwards.

    A non-blocking connect to a unix socket fails at once while the server's backlog is full, and offers nothing to wait
    for. SO_SNDTIMEO makes the blocking one wait for so long and no longer (unix(7), socket(7)).
    """
    microseconds = int(min(timeout_seconds, _MAX_CONNECT_SECONDS) * 1e6)
    if microseconds <= 0:
        raise TimeoutError("no time left to connect")
    timeval = b"".join(part.to_bytes(8, sys.byteorder) for part in divmod(microseconds, 1_000_000))
    sock.settimeout(None)
    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, timeval)
    try:
        sock.connect(socket_path)
    except BlockingIOError as error:
        raise TimeoutError(f"the server accepted no connection within {timeout_seconds:.3g} s") from error


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream_id.to_bytes(4) + payload


def _unpadded(flags: int, payload: bytes) -> bytes:
    """The payload of DATA and HEADERS without padding (section 6.1)."""
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ProtocolError("padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]
