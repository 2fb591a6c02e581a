"""A gRPC client for unary calls over a unix socket, as quick to start as a bare interpreter and safe to fork.

`import grpc` costs five times the start of Python, and a forked child of a process that uses grpcio can hang. This is
real gRPC to the same server, one call at a time; what a server may send beyond what it knows raises `UnexpectedReply`,
so that the caller can turn to grpcio.
"""

from time import monotonic

from neurontools.rpc.call import MAX_REPLY_BYTES, CallConnection, Reply, call_error


def call(
    socket_path: str, method: str, request: bytes, *, timeout_seconds: float, max_reply_bytes: int = MAX_REPLY_BYTES
) -> bytes:
    """The reply to one unary call on a connection of its own; connecting counts towards the time-out.

    `method` is the full name, "/package.Service/Method". Raises RpcError, Unreachable or UnexpectedReply.
    """
    deadline = monotonic() + timeout_seconds
    with Connection(socket_path, timeout_seconds, max_reply_bytes=max_reply_bytes) as connection:
        return connection.call(method, request, timeout_seconds=deadline - monotonic())


class Connection(CallConnection):
    """A connection for unary calls one after the other, connected from the start; for one thread of one process.

    After a lost connection, a deadline or a malformed reply it is closed, and further calls raise RpcError
    (UNAVAILABLE): whether to connect and to ask again is the caller's decision. A status that the server
    returned leaves it open, DEADLINE_EXCEEDED included: the server knows the deadline and may be first.

    `timeout_seconds` bounds connecting and, each, the calls. Raises Unreachable, or RpcError if the time is over.
    """

    def __init__(self, socket_path: str, timeout_seconds: float, *, max_reply_bytes: int = MAX_REPLY_BYTES) -> None:
        super().__init__(socket_path, timeout_seconds, max_reply_bytes=max_reply_bytes)
        self._timeout_seconds = timeout_seconds

    def __enter__(self) -> "Connection":
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
