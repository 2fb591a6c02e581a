"""A gRPC client for calls whose reply is a stream of messages, over a unix socket.

For programs that watch for hours: without grpcio they start in half the time, are 15 MiB smaller, wake up only when
something has come, and a blocked call ends at once when another thread closes it.
"""

from __future__ import annotations

from collections.abc import Iterator

from neurontools.rpc.call import CallConnection, Reply, call_error


class StreamConnection(CallConnection):
    """A connection for one streaming call. `abort` may be called from any thread."""

    def messages(self, method: str, request: bytes, *, timeout_seconds: float | None = None) -> Iterator[bytes]:
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
