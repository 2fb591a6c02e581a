"""A small gRPC client for unix sockets: unary, streaming and polled calls.

`import grpc` costs five times the start of Python, and a forked child of a process that uses grpcio can hang. This
client speaks real gRPC to the same server, one call at a time. If the server sends something unsupported, the client
raises `UnexpectedReply`, so that the caller can use grpcio instead.

It supports no TLS, compression, metadata or retries. Source:
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

from time import monotonic

from neurontools.rpc import http2

TYPE_CHECKING = False  # importing typing or collections.abc takes as long as a call to the daemon
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

MAX_REPLY_BYTES = 64 * 2**20

MAX_TIMEOUT_SECONDS = 99_999.0  # grpc-timeout has at most 8 digits
_PREFIX_BYTES = 5  # size of a message's prefix: its compression flag and length
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

# gRPC statuses by the HTTP/2 error code of a reset stream ("Errors" in PROTOCOL-HTTP2.md). Other codes: INTERNAL.
_RESET_STATUS = {
    http2.REFUSED_STREAM: Status.UNAVAILABLE,
    http2.CANCEL: Status.CANCELLED,
    http2.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
    http2.INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
}


class CallError(Exception):
    """Base class of the errors of a call."""


class RpcError(CallError):
    """A call ended with a gRPC status other than OK, from the server or the client (deadline, lost connection).

    `code` is one of `Status` or an unknown number. `details` is text from the server and may contain anything.
    """

    def __init__(self, code: int, details: str) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details

    def __str__(self) -> str:
        return f"{STATUS_NAMES.get(self.code, self.code)}: {self.details}"


class Unreachable(CallError):
    """No connection: the socket does not exist, refuses, or denies access. `__cause__` is the OSError."""


class UnexpectedReply(CallError):
    """The reply is not gRPC, or uses a feature that this client lacks. grpcio may be able to read it."""


class Reply(http2.Http2Stream):
    """The reply to a call: messages of at most `max_reply_bytes` each (one if the call is unary), then a status."""

    __slots__ = ("_complete", "_headers", "_is_unary", "_max_reply_bytes", "_partial")

    def __init__(self, max_reply_bytes: int, *, is_unary: bool) -> None:
        super().__init__()
        self._is_unary = is_unary
        self._complete: list[bytes] = []
        self._max_reply_bytes = max_reply_bytes
        self._headers: dict[bytes, bytes] = {}
        self._partial = bytearray()

    def receive_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._headers.update((name, value) for name, value in headers if name in _NEEDED_HEADERS)

    def receive_data(self, data: bytes) -> None:
        """Parses a part of the body. Raises if a message is too large, or if a unary call gets a second message."""
        body = self._partial
        body += data
        start = 0
        while len(body) - start >= _PREFIX_BYTES:
            if body[start]:
                raise UnexpectedReply("compressed reply")
            first = start + _PREFIX_BYTES
            size = int.from_bytes(body[start + 1 : first])
            if size > self._max_reply_bytes:
                text = f"reply of {size} bytes, more than the {self._max_reply_bytes} allowed"
                raise RpcError(Status.RESOURCE_EXHAUSTED, text)
            if len(body) < first + size:
                break
            self._complete.append(bytes(memoryview(body)[first : first + size]))
            start = first + size
        if start:
            del body[:start]
        if self._is_unary and len(self._complete) + bool(body) > 1:
            raise UnexpectedReply("more than one message in the reply to a unary call")

    def messages(self) -> list[bytes]:
        """Returns the messages that were completed since `messages` was called last."""
        complete, self._complete = self._complete, []
        return complete

    def check_end(self) -> None:
        """Checks an ended reply. Raises RpcError for a status other than OK, UnexpectedReply for an invalid reply."""
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
        if self._partial or (self._is_unary and not self._complete):
            raise UnexpectedReply("reply without a complete message")


class CallConnection:
    """Base class of the connections for gRPC calls. Connects when it is created.

    `timeout_seconds` is for connecting; `window_bytes` is the flow-control window. Raises Unreachable, or RpcError
    after the timeout.
    """

    def __init__(
        self,
        socket_path: str,
        timeout_seconds: float,
        *,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        window_bytes: int = http2.MAX_WINDOW_BYTES,
    ) -> None:
        self._max_reply_bytes = max_reply_bytes
        try:
            self._http2 = http2.Http2Connection(socket_path, timeout_seconds, window_bytes=window_bytes)
        except TimeoutError as error:
            raise RpcError(Status.DEADLINE_EXCEEDED, str(error)) from error
        except OSError as error:
            raise Unreachable(error.strerror or str(error)) from error

    def close(self) -> None:
        self._http2.close()

    def _begin(self, reply: Reply, method: str, request: bytes, timeout_seconds: float | None) -> None:
        """Sends a request. If `timeout_seconds` is None, the call has no deadline."""
        if not self._http2.accepts_streams:
            raise RpcError(Status.UNAVAILABLE, "the connection is closed")
        if timeout_seconds is not None:
            timeout_seconds = min(timeout_seconds, MAX_TIMEOUT_SECONDS)
        self._http2.deadline = None if timeout_seconds is None else monotonic() + timeout_seconds
        prefix = b"\0" + len(request).to_bytes(_PREFIX_BYTES - 1)
        self._http2.open(reply, _request_headers(method, timeout_seconds), prefix + request)


def call(
    socket_path: str, method: str, request: bytes, *, timeout_seconds: float, max_reply_bytes: int = MAX_REPLY_BYTES
) -> bytes:
    """Makes one unary call on its own connection. The timeout includes connecting.

    `method` is the full name, "/package.Service/Method". Raises a CallError if the call fails.
    """
    deadline = monotonic() + timeout_seconds
    with UnaryConnection(socket_path, timeout_seconds, max_reply_bytes=max_reply_bytes) as connection:
        return connection.call(method, request, timeout_seconds=deadline - monotonic())


class UnaryConnection(CallConnection):
    """A connection for unary calls, one after the other. Connects when it is created. For one thread of one process.

    A lost connection, a passed deadline or a malformed reply closes the connection. Further calls then raise RpcError
    (UNAVAILABLE). The caller decides whether to reconnect. A status from the server leaves the connection open, even
    DEADLINE_EXCEEDED: the server knows the deadline and may report it first.

    `timeout_seconds` is for connecting, and for each call. Raises Unreachable, or RpcError after the timeout.
    """

    def __init__(self, socket_path: str, timeout_seconds: float, *, max_reply_bytes: int = MAX_REPLY_BYTES) -> None:
        super().__init__(socket_path, timeout_seconds, max_reply_bytes=max_reply_bytes)
        self._timeout_seconds = timeout_seconds

    def __enter__(self) -> "UnaryConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, request: bytes, *, timeout_seconds: float | None = None) -> bytes:
        """Makes one call, like the function `call`. `timeout_seconds` overrides that of the connection."""
        reply = Reply(self._max_reply_bytes, is_unary=True)
        try:
            self._begin(reply, method, request, self._timeout_seconds if timeout_seconds is None else timeout_seconds)
            while not reply.is_ended:
                self._http2.receive()
        except BaseException as error:
            self.close()  # otherwise, the next call could read data of this unfinished reply
            _raise_call_error(error)
        try:
            self._http2.flush()
        except OSError:
            self.close()  # the server may close the connection after a complete reply
        reply.check_end()
        return reply.messages()[0]


def _raise_call_error(error: BaseException) -> "NoReturn":
    """Converts an exception of the HTTP/2 connection to a CallError and raises it. Raises any other unchanged."""
    if isinstance(error, TimeoutError):
        raise RpcError(Status.DEADLINE_EXCEEDED, "no complete answer in time") from error
    if isinstance(error, OSError):
        raise RpcError(Status.UNAVAILABLE, f"connection lost: {error.strerror}") from error
    if isinstance(error, http2.ConnectionEnded):
        raise RpcError(Status.UNAVAILABLE, str(error)) from error
    if isinstance(error, http2.StreamReset):
        status = _RESET_STATUS.get(error.code, Status.INTERNAL)
        raise RpcError(status, f"the server reset the call (HTTP/2 error {error.code})") from error
    if isinstance(error, http2.ProtocolError):
        raise UnexpectedReply(str(error)) from error
    raise error


def _request_headers(method: str, timeout_seconds: float | None) -> list[tuple[bytes, bytes]]:
    """Returns the HTTP/2 headers of a request ("Requests" in PROTOCOL-HTTP2.md)."""
    headers = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", method.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"grpc-accept-encoding", b"identity"),
    ]
    if timeout_seconds is not None:
        timeout_milliseconds = max(1, -int(-timeout_seconds * 1000 // 1))  # gRPC forbids a timeout of 0
        headers.append((b"grpc-timeout", b"%dm" % timeout_milliseconds))
    return headers


def _decode_percent(text: bytes) -> str:
    """Decodes the header grpc-message. Keeps invalid percent encoding as text, and replaces invalid UTF-8."""
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


class StreamConnection(CallConnection):
    """A connection for one streaming call. `abort` may be called from any thread."""

    def messages(self, method: str, request: bytes, *, timeout_seconds: float | None = None) -> "Iterator[bytes]":
        """Makes the call, yields the messages of the reply as they arrive, and closes the connection.

        `timeout_seconds` is for the whole call; None: no limit. Raises a CallError if the call fails.
        """
        reply = Reply(self._max_reply_bytes, is_unary=False)
        try:
            self._begin(reply, method, request, timeout_seconds)
            yield from reply.messages()  # the server may answer before it has read the whole request
            while not reply.is_ended:
                self._http2.receive()
                yield from reply.messages()
            reply.check_end()
        except BaseException as error:
            _raise_call_error(error)
        finally:
            self.close()

    def abort(self) -> None:
        """Ends the call from any thread. A thread that waits in the call gets RpcError (UNAVAILABLE)."""
        self._http2.shut_down()


_CONNECT_SECONDS = 0.001  # a unix socket connects immediately, unless the server's backlog is full


class PolledStream(CallConnection):
    """A streaming call that one thread polls with a selector. Connects and sends the request when it is created.

    Raises a CallError if connecting or sending fails.
    """

    def __init__(self, socket_path: str, method: str, request: bytes, *, max_reply_bytes: int) -> None:
        super().__init__(
            socket_path, _CONNECT_SECONDS, max_reply_bytes=max_reply_bytes, window_bytes=max(2**16, max_reply_bytes * 2)
        )
        self._reply = Reply(max_reply_bytes, is_unary=False)
        try:
            self._begin(self._reply, method, request, None)
            self._http2.flush()
        except BaseException as error:
            self.close()
            _raise_call_error(error)

    def fileno(self) -> int:
        """Returns the descriptor for a selector. It is readable when `messages` has something to read."""
        return self._http2.fileno()

    def messages(self) -> list[bytes]:
        """Returns the messages that have arrived, without waiting.

        After the last message, raises the error of the call, or EOFError if its status is OK.
        """
        try:
            self._http2.receive_available()
        except BaseException as error:
            _raise_call_error(error)
        found = self._reply.messages()
        if self._reply.is_ended and not found:
            self._reply.check_end()
            raise EOFError
        return found
