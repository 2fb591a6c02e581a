"""A streaming gRPC call that nobody waits in: for one thread that watches many servers with a selector."""

from __future__ import annotations

from neurontools.rpc.call import CallConnection, Reply, call_error

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
