"""A gRPC client for unary calls over a unix socket, as quick to start as a bare interpreter and safe to fork.

`import grpc` costs five times the start of Python, and a forked child of a process that uses grpcio can hang. This is
real gRPC (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md) over HTTP/2 (RFC 9113) to the same server.
It does one call at a time, without TLS, compression, metadata or retries; what a server may send beyond that raises
`UnexpectedReply`, so that the caller can turn to grpcio. Imports only C modules and its own HPACK.
"""

import _socket
import sys
from time import monotonic

from neurontools.rpc import hpack

MAX_REPLY_BYTES = 64 * 2**20

# Frame types (RFC 9113, section 6).
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PUSH_PROMISE = 0, 1, 3, 4, 5
_PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 6, 7, 8, 9
# Frame flags; ACK is that of SETTINGS and PING.
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
# Settings (section 6.5.2).
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 1, 2, 4, 5
# Error codes (section 7).
_REFUSED_STREAM, _CANCEL, _ENHANCE_YOUR_CALM, _INADEQUATE_SECURITY = 7, 8, 11, 12

_FRAME_HEADER_BYTES = 9
_DEFAULT_FRAME_BYTES = 2**14  # SETTINGS_MAX_FRAME_SIZE until the peer says otherwise; ours, always
_DEFAULT_WINDOW_BYTES = 2**16 - 1
_MAX_WINDOW_BYTES = 2**31 - 1
_MAX_STREAM_ID = 2**31 - 1
_SETTING_RANGES = {_INITIAL_WINDOW_SIZE: (0, _MAX_WINDOW_BYTES), _MAX_FRAME_SIZE: (_DEFAULT_FRAME_BYTES, 2**24 - 1)}
_MAX_HEADER_BLOCK_BYTES = 2**18
_OUR_SETTINGS = ((_HEADER_TABLE_SIZE, 0), (_ENABLE_PUSH, 0), (_INITIAL_WINDOW_SIZE, _MAX_WINDOW_BYTES))
_RECEIVE_BYTES = 2**18
_MAX_TIMEOUT_SECONDS = 99_999.0  # grpc-timeout has at most 8 digits
_MESSAGE_PREFIX_BYTES = 5  # a compression flag and the length of the message
_HEX_DIGITS = b"0123456789abcdefABCDEF"
_NEEDED_HEADERS = frozenset((b":status", b"content-type", b"grpc-status", b"grpc-message"))


class Status:
    """The gRPC status codes (https://github.com/grpc/grpc/blob/master/doc/statuscodes.md)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


STATUS_NAMES = {code: name for name, code in vars(Status).items() if name.isupper()}

# The status of a stream that the server reset, by error code ("Errors" in PROTOCOL-HTTP2.md); INTERNAL for the others.
_RESET_STATUS = {
    _REFUSED_STREAM: Status.UNAVAILABLE,
    _CANCEL: Status.CANCELLED,
    _ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
    _INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
}


class CallError(Exception):
    """A call did not succeed; the base of everything that this module raises."""


class RpcError(CallError):
    """A gRPC status other than OK, from the server or, as gRPC has it, on its behalf: a deadline, a lost connection.

    `code` is one of `Status`, or a number that gRPC doesn't know; `details` is the server's text and may hold anything.
    """

    def __init__(self, code: int, details: str) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details

    def __str__(self) -> str:
        return f"{STATUS_NAMES.get(self.code, self.code)}: {self.details}"


class Unreachable(CallError):
    """There was no connection: no such file, refused, not permitted. The OSError is its cause.

    `errno` is that of the OSError, None if it had none (a path too long for a unix socket).
    """

    def __init__(self, errno: int | None, reason: str) -> None:
        super().__init__(errno, reason)
        self.errno = errno
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class UnexpectedReply(CallError):
    """The peer said something that this client doesn't do, or that isn't gRPC; grpcio may know better."""


def call(
    socket_path: str, method: str, request: bytes, *, timeout_seconds: float, max_reply_bytes: int = MAX_REPLY_BYTES
) -> bytes:
    """The reply to one unary call on a connection of its own; connecting counts towards the time-out.

    `method` is the full name, "/package.Service/Method". Raises RpcError, Unreachable or UnexpectedReply.
    """
    deadline = monotonic() + timeout_seconds
    with Connection(socket_path, timeout_seconds, max_reply_bytes=max_reply_bytes) as connection:
        return connection.call(method, request, timeout_seconds=deadline - monotonic())


class Connection:
    """A connection for unary calls one after the other, connected from the start; for one thread of one process.

    After a lost connection, a deadline or a malformed reply it is closed, and further calls raise RpcError
    (UNAVAILABLE): whether to connect and to ask again is the caller's decision. A status that the server
    returned leaves it open, DEADLINE_EXCEEDED included: the server knows the deadline and may be first.

    `timeout_seconds` bounds connecting and, each, the calls. Raises Unreachable, or RpcError if the time is over.
    """

    def __init__(self, socket_path: str, timeout_seconds: float, *, max_reply_bytes: int = MAX_REPLY_BYTES) -> None:
        self._timeout_seconds = timeout_seconds
        self._max_reply_bytes = max_reply_bytes
        self._deadline = 0.0
        self._received = bytearray()
        self._peer_settings = {_INITIAL_WINDOW_SIZE: _DEFAULT_WINDOW_BYTES, _MAX_FRAME_SIZE: _DEFAULT_FRAME_BYTES}
        self._is_greeted = False
        self._is_going_away = False
        self._send_window_bytes = _DEFAULT_WINDOW_BYTES
        self._consumed_bytes = 0
        self._next_stream_id = 1
        self._stream = _Stream(0, 0, 0)
        self._header_block: _HeaderBlock | None = None
        # Every answer fits in the windows: each stream's is as large as can be, and the connection's is refilled
        # before each call.
        self._unsent = bytearray(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0, b"".join(key.to_bytes(2) + value.to_bytes(4) for key, value in _OUR_SETTINGS))
            + _window_update(_MAX_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES)
        )
        self._sock = _connect(socket_path, timeout_seconds)
        self._is_open = True

    def call(self, method: str, request: bytes, *, timeout_seconds: float | None = None) -> bytes:
        """The reply to one call, as the function `call`; `timeout_seconds` is the connection's unless given."""
        if timeout_seconds is None:
            timeout_seconds = self._timeout_seconds
        timeout_seconds = min(timeout_seconds, _MAX_TIMEOUT_SECONDS)
        self._deadline = monotonic() + timeout_seconds
        try:
            stream = self._exchange(method, request, timeout_seconds)
        except BaseException as error:
            self.close()  # the stream is half-way, and nothing would keep the next call from mistaking its frames
            if isinstance(error, TimeoutError):
                raise RpcError(Status.DEADLINE_EXCEEDED, "no complete answer in time") from error
            if isinstance(error, OSError):
                raise RpcError(Status.UNAVAILABLE, f"connection lost: {error.strerror}") from error
            raise
        return stream.message()

    def close(self) -> None:
        """Close the connection; the server cancels a call under way. May be called again."""
        self._is_open = False
        self._sock.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exchange(self, method: str, request: bytes, timeout_seconds: float) -> "_Stream":
        """Send a request and receive until the server ends the stream."""
        if not self._is_open or self._is_going_away or self._next_stream_id > _MAX_STREAM_ID:
            raise RpcError(Status.UNAVAILABLE, "the connection is closed")
        stream = self._stream = _Stream(
            self._next_stream_id, self._peer_settings[_INITIAL_WINDOW_SIZE], self._max_reply_bytes
        )
        self._next_stream_id += 2
        if self._consumed_bytes:
            self._unsent += _window_update(self._consumed_bytes)
            self._consumed_bytes = 0
        self._unsent += _request_headers(stream.id, method, timeout_seconds)
        self._send_message(stream, b"\0" + len(request).to_bytes(4) + request)
        while not stream.is_ended:
            self._receive_frame()
        try:
            self._flush()
        except OSError:
            self.close()  # a server may close behind its answer, which is complete all the same
        return stream

    def _send_message(self, stream: "_Stream", message: bytes) -> None:
        """Send DATA frames as far as the peer's windows allow, and receive while they don't (section 5.2)."""
        sent = 0
        while sent < len(message) and not stream.is_ended:
            room = min(self._peer_settings[_MAX_FRAME_SIZE], self._send_window_bytes, stream.send_window_bytes)
            if room <= 0:
                self._receive_frame()
                continue
            chunk = message[sent : sent + room]
            sent += len(chunk)
            self._send_window_bytes -= len(chunk)
            stream.send_window_bytes -= len(chunk)
            self._unsent += _frame(_DATA, _END_STREAM if sent == len(message) else 0, stream.id, chunk)
        if sent < len(message):  # answered before it was asked: an error, and nobody wants the rest
            self._unsent += _frame(_RST_STREAM, 0, stream.id, _CANCEL.to_bytes(4))

    def _flush(self) -> None:
        if self._unsent:
            self._ready_socket().sendall(self._unsent)
            self._unsent.clear()

    def _take(self, size: int) -> bytes:
        """The next bytes from the server; what waits to be sent goes out before it waits for them."""
        while len(self._received) < size:
            self._flush()
            chunk = self._ready_socket().recv(_RECEIVE_BYTES)
            if not chunk:
                raise RpcError(Status.UNAVAILABLE, "the server closed the connection")
            self._received += chunk
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def _ready_socket(self) -> _socket.socket:
        """The socket, its time-out set to what is left; TimeoutError if nothing is."""
        remaining_seconds = self._deadline - monotonic()
        if remaining_seconds <= 0:
            raise TimeoutError
        self._sock.settimeout(remaining_seconds)
        return self._sock

    def _receive_frame(self) -> None:
        """Receive one frame and act on it (section 4.1); frames of unknown types and of other streams are dropped."""
        header = self._take(_FRAME_HEADER_BYTES)
        length, kind, flags = int.from_bytes(header[:3]), header[3], header[4]
        stream_id = int.from_bytes(header[5:]) & _MAX_STREAM_ID
        if not self._is_greeted and kind != _SETTINGS:
            raise UnexpectedReply("not an HTTP/2 server")
        if length > _DEFAULT_FRAME_BYTES:
            raise UnexpectedReply(f"frame of {length} bytes, more than the {_DEFAULT_FRAME_BYTES} allowed")
        if self._header_block is not None and kind != _CONTINUATION:
            raise UnexpectedReply(f"frame of type {kind} inside a header block")
        payload = self._take(length)
        self._is_greeted = True
        handler = self._FRAME_HANDLERS.get(kind)
        if handler is not None:
            handler(self, flags, stream_id, payload)

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Section 6.1. The padding counts towards flow control, and so do frames of a stream long gone."""
        self._consumed_bytes += len(payload)
        if self._consumed_bytes > _MAX_WINDOW_BYTES:
            raise UnexpectedReply("more data than the window allows")
        if stream_id == self._stream.id:
            self._stream.add_data(_unpad(flags, payload))
            self._stream.is_ended = bool(flags & _END_STREAM)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Section 6.2."""
        fragment = _unpad(flags, payload)
        if flags & _PRIORITY:
            if len(fragment) < 5:
                raise UnexpectedReply("HEADERS frame too short")
            fragment = fragment[5:]
        self._header_block = _HeaderBlock(stream_id, bool(flags & _END_STREAM))
        self._on_continuation(flags, stream_id, fragment)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Section 6.10."""
        block = self._header_block
        if block is None or block.stream_id != stream_id:
            raise UnexpectedReply("CONTINUATION frame without its HEADERS")
        block.octets += payload
        if len(block.octets) > _MAX_HEADER_BLOCK_BYTES:
            raise UnexpectedReply(f"header block of more than {_MAX_HEADER_BLOCK_BYTES} bytes")
        if flags & _END_HEADERS:
            self._header_block = None
            if stream_id == self._stream.id:
                self._stream.add_headers(bytes(block.octets))
                self._stream.is_ended = block.ends_stream

    def _on_rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        """Section 6.4."""
        if stream_id == self._stream.id:
            error = int.from_bytes(payload[:4])
            status = _RESET_STATUS.get(error, Status.INTERNAL)
            raise RpcError(status, f"the server reset the call (HTTP/2 error {error})")

    def _on_settings(self, flags: int, _stream_id: int, payload: bytes) -> None:
        """Section 6.5. A new initial window moves that of the open stream as well (6.9.2)."""
        if flags & _ACK:
            return
        if len(payload) % 6:
            raise UnexpectedReply("SETTINGS frame of a wrong size")
        old_window_bytes = self._peer_settings[_INITIAL_WINDOW_SIZE]
        for start in range(0, len(payload), 6):
            setting, value = int.from_bytes(payload[start : start + 2]), int.from_bytes(payload[start + 2 : start + 6])
            lowest, highest = _SETTING_RANGES.get(setting, (0, value))
            if not lowest <= value <= highest:
                raise UnexpectedReply(f"value {value} of HTTP/2 setting {setting}")
            if setting in self._peer_settings:
                self._peer_settings[setting] = value
        self._stream.send_window_bytes += self._peer_settings[_INITIAL_WINDOW_SIZE] - old_window_bytes
        self._unsent += _frame(_SETTINGS, _ACK, 0, b"")

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        """Section 6.6; the client's SETTINGS forbid it."""
        raise UnexpectedReply("PUSH_PROMISE frame")

    def _on_ping(self, flags: int, _stream_id: int, payload: bytes) -> None:
        """Section 6.7."""
        if len(payload) != 8:
            raise UnexpectedReply("PING frame of a wrong size")
        if not flags & _ACK:
            self._unsent += _frame(_PING, _ACK, 0, payload)

    def _on_goaway(self, _flags: int, _stream_id: int, payload: bytes) -> None:
        """Section 6.8. A call that the server still counts in is answered; the next one needs a new connection."""
        self._is_going_away = True
        last_stream_id = int.from_bytes(payload[:4]) & _MAX_STREAM_ID
        if self._stream.id > last_stream_id:
            reason = payload[8:].decode(errors="replace") or "the server is shutting down"
            raise RpcError(Status.UNAVAILABLE, reason)

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        """Section 6.9."""
        increment = int.from_bytes(payload) & _MAX_WINDOW_BYTES
        if len(payload) != 4 or not increment:
            raise UnexpectedReply("WINDOW_UPDATE frame without an increment")
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


class _HeaderBlock:
    """A header block that has not ended yet."""

    __slots__ = ("ends_stream", "octets", "stream_id")

    def __init__(self, stream_id: int, ends_stream: bool) -> None:
        self.stream_id = stream_id
        self.ends_stream = ends_stream
        self.octets = bytearray()


class _Stream:
    """One call: the window for its request, and what has arrived of its reply."""

    __slots__ = ("_body", "_headers", "_max_reply_bytes", "id", "is_ended", "send_window_bytes")

    def __init__(self, stream_id: int, send_window_bytes: int, max_reply_bytes: int) -> None:
        self.id = stream_id
        self.send_window_bytes = send_window_bytes
        self.is_ended = False
        self._max_reply_bytes = max_reply_bytes
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()

    def add_headers(self, block: bytes) -> None:
        """Take the headers, the trailers, or both in one; whatever else the server sends isn't kept."""
        try:
            headers = hpack.decode(block)
        except ValueError as error:
            raise UnexpectedReply(str(error)) from error
        self._headers.update((name, value) for name, value in headers if name in _NEEDED_HEADERS)

    def add_data(self, data: bytes) -> None:
        """Take a part of the message; RpcError as soon as it is known to be too large."""
        body = self._body
        body += data
        if len(body) < _MESSAGE_PREFIX_BYTES:
            return
        if body[0]:
            raise UnexpectedReply("compressed reply")
        size = int.from_bytes(body[1:_MESSAGE_PREFIX_BYTES])
        if size > self._max_reply_bytes:
            text = f"reply of {size} bytes, more than the {self._max_reply_bytes} allowed"
            raise RpcError(Status.RESOURCE_EXHAUSTED, text)
        if len(body) > _MESSAGE_PREFIX_BYTES + size:
            raise UnexpectedReply("more than one message in the reply to a unary call")

    def message(self) -> bytes:
        """The reply of a stream that has ended; RpcError if it is a status instead."""
        http_status = self._headers.get(b":status", b"")
        content_type = self._headers.get(b"content-type", b"")
        status = self._headers.get(b"grpc-status", b"")
        if http_status != b"200":
            raise UnexpectedReply(f"HTTP status {http_status.decode(errors='replace') or 'missing'}")
        if not content_type.startswith(b"application/grpc"):
            raise UnexpectedReply(f"content type {content_type.decode(errors='replace') or 'missing'}")
        if not status.isdigit() or len(status) > 9:
            raise UnexpectedReply("reply without a gRPC status")
        if int(status) != Status.OK:
            raise RpcError(int(status), _decode_percent(self._headers.get(b"grpc-message", b"")))
        body = self._body
        if len(body) < _MESSAGE_PREFIX_BYTES or len(body) != _MESSAGE_PREFIX_BYTES + int.from_bytes(body[1:5]):
            raise UnexpectedReply("reply without a complete message")
        return bytes(memoryview(body)[_MESSAGE_PREFIX_BYTES:])


def _connect(socket_path: str, timeout_seconds: float) -> _socket.socket:
    """A connected socket; its time-out is the caller's to set.

    A non-blocking connect to a unix socket fails at once while the server's backlog is full, and offers nothing to wait
    for. SO_SNDTIMEO makes the blocking one wait for so long and no longer (unix(7), socket(7)).
    """
    microseconds = int(min(timeout_seconds, _MAX_TIMEOUT_SECONDS) * 1e6)
    if microseconds <= 0:
        raise RpcError(Status.DEADLINE_EXCEEDED, "no time left to connect")
    timeval = b"".join(part.to_bytes(8, sys.byteorder) for part in divmod(microseconds, 1_000_000))
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, timeval)
        connection.connect(socket_path)
    except BaseException as error:
        connection.close()
        if isinstance(error, BlockingIOError):
            text = f"the server accepted no connection within {timeout_seconds:.3g} s"
            raise RpcError(Status.DEADLINE_EXCEEDED, text) from error
        if isinstance(error, OSError):
            raise Unreachable(error.errno, error.strerror or str(error)) from error
        raise
    return connection


def _request_headers(stream_id: int, method: str, timeout_seconds: float) -> bytes:
    """The HEADERS frame of a request ("Requests" in PROTOCOL-HTTP2.md)."""
    timeout_milliseconds = max(1, -int(-timeout_seconds * 1000 // 1))  # rounded up: 0 is not allowed
    headers = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", method.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"grpc-timeout", b"%dm" % timeout_milliseconds),
        (b"grpc-accept-encoding", b"identity"),
    ]
    return _frame(_HEADERS, _END_HEADERS, stream_id, hpack.encode(headers))


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream_id.to_bytes(4) + payload


def _window_update(increment_bytes: int) -> bytes:
    """A WINDOW_UPDATE frame for the connection."""
    return _frame(_WINDOW_UPDATE, 0, 0, increment_bytes.to_bytes(4))


def _unpad(flags: int, payload: bytes) -> bytes:
    """The payload of DATA and HEADERS without padding (section 6.1)."""
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise UnexpectedReply("padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def _decode_percent(text: bytes) -> str:
    """The text of grpc-message; what isn't percent-encoded or UTF-8 is shown rather than lost, as gRPC demands."""
    first, *rest = text.split(b"%")
    decoded = bytearray(first)
    for part in rest:
        digits = part[:2]
        if len(digits) == 2 and all(digit in _HEX_DIGITS for digit in digits):
            decoded.append(int(digits, 16))
            decoded += part[2:]
        else:
            decoded += b"%" + part
    return decoded.decode(errors="replace")
