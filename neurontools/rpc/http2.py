"""An HTTP/2 client connection over a unix socket (RFC 9113), with one open stream at a time.

Implements frames, settings and flow control; a subclass of `Http2Stream` handles the contents. No TLS, push, priorities
or dynamic header table: a peer that uses them causes ProtocolError. Imports only C modules and `hpack`, because
`neuron-ls` loads this module. A process with such a connection can fork safely.
"""

import _socket
import sys
from time import monotonic

from neurontools.rpc import hpack

# Frame types (RFC 9113, section 6).
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PUSH_PROMISE = 0, 1, 3, 4, 5
_PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 6, 7, 8, 9
# Frame flags (RFC 9113, section 6). ACK is a flag of SETTINGS and PING only.
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
# Settings (RFC 9113, section 6.5.2).
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 1, 2, 4, 5
# Error codes (RFC 9113, section 7).
REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM, INADEQUATE_SECURITY = 7, 8, 11, 12

MAX_WINDOW_BYTES = 2**31 - 1
DEFAULT_WINDOW_BYTES = 2**16 - 1  # flow-control window of each connection and stream until a WINDOW_UPDATE
_FRAME_HEADER_BYTES = 9
_DEFAULT_FRAME_BYTES = 2**14  # limit for received frames, and for sent frames until the peer changes it
MAX_STREAM_ID = 2**31 - 1
_SETTING_RANGES = {_INITIAL_WINDOW_SIZE: (0, MAX_WINDOW_BYTES), _MAX_FRAME_SIZE: (_DEFAULT_FRAME_BYTES, 2**24 - 1)}
_MAX_HEADER_BLOCK_BYTES = 2**18
_RECEIVE_BYTES = 2**16  # size of a read: below malloc's mmap threshold, as mapping costs more than a second read
_MAX_CONNECT_SECONDS = 1e6
_MOST_UNSENT_BYTES = 2**16  # limit for queued acknowledgements, if a server requests but does not read them


class ProtocolError(Exception):
    """The peer violated HTTP/2, or used a feature that this client lacks."""


class StreamReset(Exception):
    """The peer reset the stream; `code` is the HTTP/2 error code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class ConnectionEnded(Exception):
    """The peer closed the connection, or accepts no more streams (GOAWAY). The text is the peer's reason."""


class Http2Stream:
    """One HTTP/2 stream: a request and its reply. Subclasses handle the headers and data of the reply."""

    __slots__ = ("id", "is_ended", "received_bytes", "send_window_bytes")

    def __init__(self) -> None:
        self.id = 0  # stream ID; 0 until the stream is opened
        self.is_ended = False
        self.send_window_bytes = 0
        self.received_bytes = 0  # bytes for which no WINDOW_UPDATE was sent yet

    def receive_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Handles a header block of the reply: its headers or trailers."""

    def receive_data(self, data: bytes) -> None:
        """Handles a part of the reply's body."""


class Http2Connection:
    """A connection to the server at a socket. Connects when it is created. For one thread of one process.

    `deadline` is a time.monotonic() value; after it, sending and receiving raise TimeoutError. None: no deadline. After
    any error, only `close` is allowed.

    `window_bytes` is our flow-control window, at least DEFAULT_WINDOW_BYTES. It is refilled before each stream and when
    half of it is used.

    Raises OSError of connect(2), ValueError for an impossible path, TimeoutError if no server accepts within
    `timeout_seconds`.
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
        self._goaway_text = ""
        self._next_stream_id = 1
        self._stream = Http2Stream()
        # The incomplete header block: stream ID, whether it ends the stream, its bytes so far.
        self._header_block: tuple[int, bool, bytearray] | None = None
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
    def accepts_streams(self) -> bool:
        """Whether the client may open another stream. Does not check whether the server closed the connection."""
        return not self._is_closed and not self._is_going_away and self._next_stream_id <= MAX_STREAM_ID

    def open(self, stream: Http2Stream, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Opens a stream and sends its request. The reply may start while the peer's window delays the request."""
        stream.id = self._next_stream_id
        stream.send_window_bytes = self._peer_settings[_INITIAL_WINDOW_SIZE]
        self._next_stream_id += 2
        self._stream = stream
        self._return_window()
        self._unsent += _frame(_HEADERS, _END_HEADERS, stream.id, hpack.encode(headers))
        self._send_body(stream, body)

    def receive(self) -> None:
        """Receives and handles one frame (RFC 9113, section 4.1). Drops frames of unknown types or other streams."""
        header = self._receive_exactly(_FRAME_HEADER_BYTES)
        length, kind, flags = int.from_bytes(header[:3]), header[3], header[4]
        stream_id = int.from_bytes(header[5:]) & MAX_STREAM_ID
        if not self._is_greeted and kind != _SETTINGS:
            raise ProtocolError("not an HTTP/2 server")
        if length > _DEFAULT_FRAME_BYTES:
            raise ProtocolError(f"frame of {length} bytes, more than the {_DEFAULT_FRAME_BYTES} allowed")
        if self._header_block is not None and kind != _CONTINUATION:
            raise ProtocolError(f"frame of type {kind} inside a header block")
        payload = self._receive_exactly(length)
        self._is_greeted = True
        handler = self._FRAME_HANDLERS.get(kind)
        if handler is not None:
            handler(self, flags, stream_id, payload)

    def fileno(self) -> int:
        """Returns the descriptor of the socket, for a selector."""
        return self._sock.fileno()

    def receive_available(self) -> None:
        """Handles the frames that have arrived and sends queued data, without waiting.

        Reads the socket once, so that a peer that sends without end does not starve other connections.
        """
        self._sock.settimeout(0.0)
        try:
            chunk = self._sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            chunk = None
        if chunk == b"":
            raise ConnectionEnded(self._goaway_text or "the server closed the connection")
        self._received += chunk or b""
        while self._has_frame():
            self.receive()
        try:
            del self._unsent[: self._sock.send(self._unsent) if self._unsent else 0]
        except BlockingIOError:
            if len(self._unsent) > _MOST_UNSENT_BYTES:
                raise ProtocolError("the server takes nothing of what it asks for") from None

    def _has_frame(self) -> bool:
        """Whether `receive` can handle the next frame without waiting: it is complete, or longer than allowed."""
        if len(self._received) < _FRAME_HEADER_BYTES:
            return False
        length = int.from_bytes(self._received[:3])
        return length > _DEFAULT_FRAME_BYTES or len(self._received) >= _FRAME_HEADER_BYTES + length

    def flush(self) -> None:
        """Sends queued data, such as acknowledgements. `receive` calls this before it waits."""
        if self._unsent:
            self._ready_socket().sendall(self._unsent)
            self._unsent.clear()

    def shut_down(self) -> None:
        """Ends the connection from any thread. A thread that waits in it gets ConnectionEnded."""
        try:  # noqa: SIM105 - importing contextlib takes as long as a call
            self._sock.shutdown(_socket.SHUT_RDWR)
        except OSError:
            pass  # the socket is closed already

    def close(self) -> None:
        """Closes the connection; the peer cancels an open stream. May be called again."""
        self._is_closed = True
        self._sock.close()

    def _send_body(self, stream: Http2Stream, body: bytes) -> None:
        """Sends a body as DATA frames. While the peer's windows are full, receives frames (RFC 9113, 5.2)."""
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
        if sent < len(body):  # the server replied before it got the whole request, so the rest is dropped
            self._unsent += _frame(_RST_STREAM, 0, stream.id, CANCEL.to_bytes(4))

    def _receive_exactly(self, size: int) -> bytes:
        """Returns the next `size` bytes from the server. Sends queued data before it waits."""
        while len(self._received) < size:
            self.flush()
            chunk = self._ready_socket().recv(_RECEIVE_BYTES)
            if not chunk:
                raise ConnectionEnded(self._goaway_text or "the server closed the connection")
            self._received += chunk
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    def _ready_socket(self) -> _socket.socket:
        """Returns the socket, with the time until the deadline as timeout. Raises TimeoutError after the deadline."""
        remaining_seconds = None if self.deadline is None else self.deadline - monotonic()
        if remaining_seconds is not None and remaining_seconds <= 0:
            raise TimeoutError
        self._sock.settimeout(remaining_seconds)
        return self._sock

    def _return_window(self) -> None:
        """Lets the peer send as many bytes as were received since the last WINDOW_UPDATE (RFC 9113, section 5.2)."""
        self._widen_window(0, self._received_bytes)
        self._received_bytes = 0
        stream = self._stream
        if not stream.is_ended:
            self._widen_window(stream.id, stream.received_bytes)
            stream.received_bytes = 0

    def _widen_window(self, stream_id: int, increment_bytes: int) -> None:
        """Sends WINDOW_UPDATE for a stream, or for the connection (stream 0), if the increment is not 0."""
        if increment_bytes:
            self._unsent += _frame(_WINDOW_UPDATE, 0, stream_id, increment_bytes.to_bytes(4))

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Handles DATA (RFC 9113, section 6.1). Padding and frames of closed streams count for flow control too."""
        stream = self._stream
        self._received_bytes += len(payload)
        if stream_id == stream.id:
            stream.received_bytes += len(payload)
            stream.receive_data(_unpadded(flags, payload))
            stream.is_ended = bool(flags & _END_STREAM)
        if self._received_bytes > self._window_bytes // 2:
            self._return_window()

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Handles HEADERS (RFC 9113, section 6.2)."""
        fragment = _unpadded(flags, payload)
        if flags & _PRIORITY:
            if len(fragment) < 5:
                raise ProtocolError("HEADERS frame too short")
            fragment = fragment[5:]
        self._header_block = stream_id, bool(flags & _END_STREAM), bytearray()
        self._on_continuation(flags, stream_id, fragment)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Handles CONTINUATION (RFC 9113, section 6.10)."""
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
                self._stream.receive_headers(headers)
                self._stream.is_ended = ends_stream

    def _on_rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        """Handles RST_STREAM (RFC 9113, section 6.4)."""
        if stream_id == self._stream.id:
            raise StreamReset(int.from_bytes(payload[:4]))

    def _on_settings(self, flags: int, _stream_id: int, payload: bytes) -> None:
        """Handles SETTINGS (RFC 9113, section 6.5).

        A new initial window size also changes the window of the open stream (section 6.9.2).
        """
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
        """Refuses PUSH_PROMISE (RFC 9113, section 6.6), because the client's SETTINGS forbid it."""
        raise ProtocolError("PUSH_PROMISE frame")

    def _on_ping(self, flags: int, _stream_id: int, payload: bytes) -> None:
        """Handles PING (RFC 9113, section 6.7)."""
        if len(payload) != 8:
            raise ProtocolError("PING frame of a wrong size")
        if not flags & _ACK:
            self._unsent += _frame(_PING, _ACK, 0, payload)

    def _on_goaway(self, _flags: int, _stream_id: int, payload: bytes) -> None:
        """Handles GOAWAY (RFC 9113, section 6.8).

        The peer still answers streams up to the last stream ID; later streams need a new connection.
        """
        self._is_going_away = True
        last_stream_id = int.from_bytes(payload[:4]) & MAX_STREAM_ID
        self._goaway_text = payload[8:].decode(errors="replace")
        if self._stream.id > last_stream_id:
            raise ConnectionEnded(self._goaway_text or "the server is shutting down")

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        """Handles WINDOW_UPDATE (RFC 9113, section 6.9)."""
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
    """Connects to a unix socket. Raises TimeoutError if the server does not accept in time.

    While the server's backlog is full, a non-blocking connect to a unix socket fails immediately, and no event reports
    when it can succeed. So this uses a blocking connect with SO_SNDTIMEO as its timeout (unix(7), socket(7)).
    Afterwards the socket has no timeout in Python.
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


def send_goaway(connection: _socket.socket, reason: str, last_stream_id: int = 0, error_code: int = 0) -> None:
    """Sends a client an empty SETTINGS frame and GOAWAY with the reason, and shuts down our side for writing.

    Does nothing if the client has disconnected.
    """
    payload = last_stream_id.to_bytes(4) + error_code.to_bytes(4) + reason.encode("utf-8", "replace")
    try:
        connection.send(_frame(_SETTINGS, 0, 0, b"") + _frame(_GOAWAY, 0, 0, payload))
        connection.shutdown(_socket.SHUT_WR)
    except OSError:
        return


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream_id.to_bytes(4) + payload


def _unpadded(flags: int, payload: bytes) -> bytes:
    """Removes the padding of DATA and HEADERS frames (RFC 9113, section 6.1)."""
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ProtocolError("padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]
