"""gRPC calls over a unix socket: how they are asked, what a reply is made of, how they can end, and the unary ones.

`import grpc` costs five times the start of Python, and a forked child of a process that uses grpcio can hang. This is
real gRPC to the same server, one call at a time; what a server may send beyond what it knows raises `UnexpectedReply`,
so that the caller can turn to grpcio. `rpc.stream` has the calls whose reply is a stream.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md. Without TLS, compression, metadata and retries.
"""

from time import monotonic

from neurontools.rpc import http2

TYPE_CHECKING = False  # importing typing or collections.abc takes as long as a call to the daemon
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_REPLY_BYTES = 64 * 2**20

MAX_TIMEOUT_SECONDS = 99_999.0  # of one call: grpc-timeout has at most 8 digits
_PREFIX_BYTES = 5  # a compression flag and the length of the message
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
    http2.REFUSED_STREAM: Status.UNAVAILABLE,
    http2.CANCEL: Status.CANCELLED,
    http2.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
    http2.INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
}


class CallError(Exception):
    """A call did not succeed; the base of everything that a call raises."""


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


class Reply(http2.Http2Stream):
    """The answer to a call: messages of at most `max_reply_bytes` each, only one to a unary call, and a status."""

    __slots__ = ("_complete", "_headers", "_is_unary", "_max_reply_bytes", "_partial")

    def __init__(self, max_reply_bytes: int, *, is_unary: bool) -> None:
        super().__init__()
        self._is_unary = is_unary
        self._complete: list[bytes] = []
        self._max_reply_bytes = max_reply_bytes
        self._headers: dict[bytes, bytes] = {}
        self._partial = bytearray()

    def take_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Take the headers, the trailers, or both in one; whatever else the server sends isn't kept."""
        self._headers.update((name, value) for name, value in headers if name in _NEEDED_HEADERS)

    def take_data(self, data: bytes) -> None:
        """Take a part of the messages; raises as soon as one is known to be too large, or one too many."""
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
        """The messages that have become complete since it was last asked."""
        complete, self._complete = self._complete, []
        return complete

    def check_end(self) -> None:
        """Raise what an answer that has ended failed with: RpcError for a status, else UnexpectedReply."""
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
    """A connection for calls, connected from the start: what unary and streaming ones have in common.

    `timeout_seconds` bounds connecting, and `window_bytes` is that of `http2.Connection`. Raises Unreachable, or
    RpcError if the time is over.
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
            raise Unreachable(error.errno, error.strerror or str(error)) from error

    def close(self) -> None:
        """Close the connection; the server cancels a call under way. May be called again."""
        self._http2.close()

    def _begin(self, reply: Reply, method: str, request: bytes, timeout_seconds: float | None) -> None:
        """Send a request; None sets no deadline, neither here nor in the server."""
        if not self._http2.takes_streams:
            raise RpcError(Status.UNAVAILABLE, "the connection is closed")
        if timeout_seconds is not None:
            timeout_seconds = min(timeout_seconds, MAX_TIMEOUT_SECONDS)
        self._http2.deadline = None if timeout_seconds is None else monotonic() + timeout_seconds
        prefix = b"\0" + len(request).to_bytes(_PREFIX_BYTES - 1)
        self._http2.open(reply, _request_headers(method, timeout_seconds), prefix + request)


def call(
    socket_path: str, method: str, request: bytes, *, timeout_seconds: float, max_reply_bytes: int = MAX_REPLY_BYTES
) -> bytes:
    """The reply to one unary call on a connection of its own; connecting counts towards the time-out.

    `method` is the full name, "/package.Service/Method". Raises RpcError, Unreachable or UnexpectedReply.
    """
    deadline = monotonic() + timeout_seconds
    with UnaryConnection(socket_path, timeout_seconds, max_reply_bytes=max_reply_bytes) as connection:
        return connection.call(method, request, timeout_seconds=deadline - monotonic())


class UnaryConnection(CallConnection):
    """A connection for unary calls one after the other, connected from the start; for one thread of one process.

    After a lost connection, a deadline or a malformed reply it is closed, and further calls raise RpcError
    (UNAVAILABLE): whether to connect and to ask again is the caller's decision. A status that the server
    returned leaves it open, DEADLINE_EXCEEDED included: the server knows the deadline and may be first.

    `timeout_seconds` bounds connecting and, each, the calls. Raises Unreachable, or RpcError if the time is over.
    """

    def __init__(self, socket_path: str, timeout_seconds: float, *, max_reply_bytes: int = MAX_REPLY_BYTES) -> None:
        super().__init__(socket_path, timeout_seconds, max_reply_bytes=max_reply_bytes)
        self._timeout_seconds = timeout_seconds

    def __enter__(self) -> "UnaryConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, request: bytes, *, timeout_seconds: float | None = None) -> bytes:
        """The reply to one call, as the function `call`; `timeout_seconds` is the connection's unless given."""
        reply = Reply(self._max_reply_bytes, is_unary=True)
        try:
            self._begin(reply, method, request, self._timeout_seconds if timeout_seconds is None else timeout_seconds)
            while not reply.is_ended:
                self._http2.receive()
        except BaseException as error:
            self.close()  # the stream is half-way, and nothing would keep the next call from mistaking its frames
            failure = call_error(error)
            if failure is None:
                raise
            raise failure from error
        try:
            self._http2.flush()
        except OSError:
            self.close()  # a server may close behind its answer, which is complete all the same
        reply.check_end()
        return reply.messages()[0]


def call_error(error: BaseException) -> CallError | None:
    """What ends a call when this has ended its connection; None for what is no business of calls."""
    if isinstance(error, TimeoutError):
        return RpcError(Status.DEADLINE_EXCEEDED, "no complete answer in time")
    if isinstance(error, OSError):
        return RpcError(Status.UNAVAILABLE, f"connection lost: {error.strerror}")
    if isinstance(error, http2.ConnectionEnded):
        return RpcError(Status.UNAVAILABLE, str(error))
    if isinstance(error, http2.StreamReset):
        status = _RESET_STATUS.get(error.code, Status.INTERNAL)
        return RpcError(status, f"the server reset the call (HTTP/2 error {error.code})")
    if isinstance(error, http2.ProtocolError):
        return UnexpectedReply(str(error))
    return None


def _request_headers(method: str, timeout_seconds: float | None) -> list[tuple[bytes, bytes]]:
    """The headers of a request ("Requests" in PROTOCOL-HTTP2.md)."""
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
        timeout_milliseconds = max(1, -int(-timeout_seconds * 1000 // 1))  # rounded up: 0 is not allowed
        headers.append((b"grpc-timeout", b"%dm" % timeout_milliseconds))
    return headers


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


class StreamConnection(CallConnection):
    """A connection for one streaming call. `abort` may be called from any thread."""

    def messages(self, method: str, request: bytes, *, timeout_seconds: float | None = None) -> "Iterator[bytes]":
        """The messages of the reply as they come; raises as `Connection.call`. The end closes the connection.

        `timeout_seconds` bounds the whole of it; None: it may go on for ever.
        """
        reply = Reply(self._max_reply_bytes, is_unary=False)
        try:
            self._begin(reply, method, request, timeout_seconds)
            yield from reply.messages()  # of a server that did not wait for the whole request
            while not reply.is_ended:
                self._http2.receive()
                yield from reply.messages()
            reply.check_end()
        except BaseException as error:
            failure = call_error(error)
            if failure is None:
                raise
            raise failure from error
        finally:
            self.close()

    def abort(self) -> None:
        """End the call, also while another thread waits in it: that one gets RpcError (UNAVAILABLE)."""
        self._http2.shut_down()


_CONNECT_SECONDS = 0.001  # a unix socket is connected at once, or its server has more than it takes


class PolledStream(CallConnection):
    """A call under way; for one thread. Making it connects and asks. Raises as `StreamConnection`."""

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
            failure = call_error(error)
            if failure is None:
                raise
            raise failure from error

    def fileno(self) -> int:
        """For a selector: readable when `messages` has something to do."""
        return self._http2.fileno()

    def messages(self) -> list[bytes]:
        """The messages that have come since, without waiting; raises at the end of the call, however it ended."""
        try:
            self._http2.receive_available()
            found = self._reply.messages()
            if self._reply.is_ended and not found:
                self._reply.check_end()
                raise EOFError
        except BaseException as error:
            failure = call_error(error)
            if failure is None:
                raise
            raise failure from error
        return found
