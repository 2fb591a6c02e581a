"""A server that says any bytes at all, for what the small client makes of rare, broken and hostile ones."""

import socket
import threading
from collections.abc import Callable

from neurontools.rpc import http2

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY, ACK = 0x1, 0x4, 0x8, 0x20, 0x1


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream_id: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream_id.to_bytes(4) + payload


def message(body: bytes) -> bytes:
    return b"\0" + len(body).to_bytes(4) + body


def setting(key: int, value: int) -> bytes:
    return frame(SETTINGS, key.to_bytes(2) + value.to_bytes(4))


GREETING = frame(SETTINGS)
HEADER_BLOCK = http2.encode_headers([(b":status", b"200"), (b"content-type", b"application/grpc")])
TRAILER_BLOCK = http2.encode_headers([(b"grpc-status", b"0")])
BODY = frame(DATA, message(b"fine"), 0, 1)
START = frame(HEADERS, HEADER_BLOCK, END_HEADERS, 1)
END = frame(HEADERS, TRAILER_BLOCK, END_HEADERS | END_STREAM, 1)
VALID = GREETING + START + BODY + END


def reply_on(stream_id: int, data: bytes, data_flags: int = 0) -> bytes:
    """A whole reply."""
    return (
        frame(HEADERS, HEADER_BLOCK, END_HEADERS, stream_id)
        + frame(DATA, data, data_flags, stream_id)
        + frame(HEADERS, TRAILER_BLOCK, END_HEADERS | END_STREAM, stream_id)
    )


def trailers_only(*headers: tuple[bytes, bytes]) -> bytes:
    block = HEADER_BLOCK + http2.encode_headers(list(headers))
    return GREETING + frame(HEADERS, block, END_HEADERS | END_STREAM, 1)


class RawServer:
    """Serves each connection in turn, in a thread, as `behave` says: at a path, or else on a port of its own."""

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.behave: Callable[[socket.socket], None] = lambda _connection: None
        self._failure: Exception | None = None
        self._listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self._listener.bind(path or ("127.0.0.1", 0))
        self._listener.listen()
        self.port: int = 0 if path else self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def reply_with(self, reply: bytes) -> None:
        """Send these bytes to whoever connects, whatever it says, and then no more."""

        def behave(connection: socket.socket) -> None:
            connection.sendall(reply)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass

        self.behave = behave

    def close(self) -> None:
        """Stop, and raise what went wrong in `behave`."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    self.behave(connection)
                except OSError:
                    continue  # the client has gone, as it may
                except Exception as error:
                    self._failure = error


class FrameReader:
    """The frames of one client, from its preface on."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rb")
        assert self._file.read(24) == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

    def next(self) -> tuple[int, int, int, bytes]:
        """Type, flags, stream and payload; OSError when the client has gone."""
        header = self._file.read(9)
        if len(header) < 9:
            raise ConnectionResetError
        return header[3], header[4], int.from_bytes(header[5:]), self._file.read(int.from_bytes(header[:3]))
