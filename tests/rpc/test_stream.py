"""The streaming client against a real grpcio server, and against servers that say what none should."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from neurontools.rpc import hpack, http2
from neurontools.rpc.call import RpcError, Status, UnexpectedReply, Unreachable
from neurontools.rpc.stream import StreamConnection
from tests.harness.raw_server import (
    BODY,
    DATA,
    END,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    GREETING,
    HEADERS,
    PADDED,
    RST_STREAM,
    START,
    WINDOW_UPDATE,
    FrameReader,
    RawServer,
    frame,
    message,
    trailers_only,
)

TIMEOUT_SECONDS = 60.0  # far beyond what any call needs: no test waits for it
SIZES_BYTES = [0, 1, 16_379, 16_384, 60_000, 65_531, 1_000_000]


def zeros(request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
    """A message of each of the sizes that were asked for."""
    for size in request.split():
        yield bytes(int(size))


def two_and_a_failure(_request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    yield b"one"
    yield b"two"
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no third")


def one_and_silence(_request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    ended = threading.Event()
    context.add_callback(ended.set)
    yield b"one"
    ended.wait()


@pytest.fixture(scope="module")
def server_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket of a grpcio server with the handlers above as methods of the service `t`."""
    path = str(tmp_path_factory.mktemp("grpc") / "s.sock")
    server = grpc.server(ThreadPoolExecutor(8))
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        handler.__name__: grpc.unary_stream_rpc_method_handler(handler)
        for handler in (zeros, two_and_a_failure, one_and_silence)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", handlers),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    yield path
    server.stop(None).wait()


def stream(
    path: str,
    method: str = "m",
    request: bytes = b"",
    *,
    timeout_seconds: float | None = None,
    max_reply_bytes: int = 2**20,
    window_bytes: int = http2.MAX_WINDOW_BYTES,
) -> Iterator[bytes]:
    connection = StreamConnection(path, TIMEOUT_SECONDS, max_reply_bytes=max_reply_bytes, window_bytes=window_bytes)
    return connection.messages(f"/t/{method}", request, timeout_seconds=timeout_seconds)


@pytest.mark.parametrize("window_bytes", [http2.DEFAULT_WINDOW_BYTES, 200_000, http2.MAX_WINDOW_BYTES])
def test_messages_of_any_size_through_a_window_of_any_size(server_path: str, window_bytes: int) -> None:
    sizes = SIZES_BYTES * 3
    asked = b" ".join(b"%d" % size for size in sizes)
    messages = list(stream(server_path, "zeros", asked, window_bytes=window_bytes))
    assert [len(message) for message in messages] == sizes


def test_what_came_before_a_failure_arrives(server_path: str) -> None:
    messages = stream(server_path, "two_and_a_failure")
    assert [next(messages), next(messages)] == [b"one", b"two"]
    with pytest.raises(RpcError, match=r"^FAILED_PRECONDITION: no third$"):
        next(messages)


def test_a_deadline_ends_a_stream(server_path: str) -> None:
    messages = stream(server_path, "one_and_silence", timeout_seconds=0.2)
    with pytest.raises(RpcError, match=r"^DEADLINE_EXCEEDED: "):
        list(messages)


def test_abort_ends_a_stream_that_another_thread_waits_for(server_path: str) -> None:
    connection = StreamConnection(server_path, TIMEOUT_SECONDS)
    arrived = threading.Event()

    def read() -> int:
        messages = connection.messages("/t/one_and_silence", b"")
        next(messages)
        arrived.set()
        with pytest.raises(RpcError) as caught:
            next(messages)
        return caught.value.code

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(read)
        assert arrived.wait(TIMEOUT_SECONDS)
        connection.abort()
        assert ended.result(TIMEOUT_SECONDS) == Status.UNAVAILABLE
    connection.abort()


def test_a_connection_is_for_one_stream(server_path: str) -> None:
    connection = StreamConnection(server_path, TIMEOUT_SECONDS)
    assert list(connection.messages("/t/zeros", b"3")) == [bytes(3)]
    with pytest.raises(RpcError, match=r"^UNAVAILABLE: the connection is closed$"):
        list(connection.messages("/t/zeros", b"3"))


def test_who_stops_reading_ends_the_call(server: RawServer) -> None:
    gone = threading.Event()

    def behave(connection: socket.socket) -> None:
        connection.sendall(GREETING + START + BODY)
        while connection.recv(65536):
            pass
        gone.set()

    server.behave = behave
    messages = stream(server.path)
    assert next(messages) == b"fine"
    messages.close()  # type: ignore[attr-defined]
    assert gone.wait(TIMEOUT_SECONDS)


@pytest.mark.parametrize(
    ("timeout_seconds", "told"), [(None, None), (60.0005, b"60001m"), (float("inf"), b"99999000m")]
)
def test_the_server_is_told_the_deadline_that_there_is(
    server: RawServer, timeout_seconds: float | None, told: bytes | None
) -> None:
    asked: list[dict[bytes, bytes]] = []

    def behave(connection: socket.socket) -> None:
        reader = FrameReader(connection)
        while not asked:
            kind, _, _, payload = reader.next()
            if kind == HEADERS:
                asked.append(dict(hpack.decode(payload)))
        connection.sendall(GREETING + START + END)

    server.behave = behave
    connection = StreamConnection(server.path, TIMEOUT_SECONDS)
    messages = connection.messages("/t/m", b"", timeout_seconds=timeout_seconds)
    assert list(messages) == []
    assert asked[0].get(b"grpc-timeout") == told


def test_what_was_read_is_given_back_to_both_windows(server: RawServer) -> None:
    """Padding is given back as well; nothing is before half of a window is used."""
    updates: list[tuple[int, int]] = []
    half = http2.DEFAULT_WINDOW_BYTES // 2
    padded = frame(DATA, b"\xff" + message(bytes(10_000)) + bytes(255), PADDED, 1)
    frame_bytes = len(padded) - 9
    frames_to_half = half // frame_bytes + 1

    def behave(connection: socket.socket) -> None:
        reader = FrameReader(connection)
        connection.sendall(GREETING + START + padded * (frames_to_half - 1))
        while reader.next()[0] != DATA:
            pass
        connection.sendall(padded)
        while len(updates) < 2:
            kind, _, stream_id, payload = reader.next()
            if kind == WINDOW_UPDATE:
                updates.append((stream_id, int.from_bytes(payload)))
        connection.sendall(END)

    server.behave = behave
    messages = list(stream(server.path, window_bytes=http2.DEFAULT_WINDOW_BYTES))
    assert messages == [bytes(10_000)] * frames_to_half
    assert updates == [(0, frames_to_half * frame_bytes), (1, frames_to_half * frame_bytes)]


@pytest.mark.parametrize(
    ("frames", "complete"),
    [
        ([frame(DATA, bytes((byte,)), 0, 1) for byte in message(b"fine") + message(b"") + message(b"!")], 3),
        ([frame(DATA, message(b"fine") * 50, 0, 1)], 50),
        ([frame(DATA, message(b"a") + message(b"bc")[:6], 0, 1), frame(DATA, message(b"bc")[6:], 0, 1)], 2),
        ([], 0),
    ],
)
def test_messages_are_found_however_they_are_cut_into_frames(
    server: RawServer, frames: list[bytes], complete: int
) -> None:
    server.say(GREETING + START + b"".join(frames) + END)
    assert len(list(stream(server.path))) == complete


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (GREETING + START + frame(DATA, b"\1\0\0\0\4gzip", 0, 1) + END, "compressed reply"),
        (GREETING + START + BODY + frame(DATA, message(b"fine")[:-1], 0, 1) + END, "without a complete message"),
        (GREETING + START + BODY + frame(DATA, b"", END_STREAM, 1), "without a gRPC status"),
        (trailers_only((b":status", b"502")), "HTTP status 502"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not an HTTP/2 server"),
        (GREETING + frame(HEADERS, b"\xbe", END_HEADERS, 1), "header index 62"),
    ],
)
def test_what_is_not_grpc_is_unexpected(server: RawServer, reply: bytes, why: str) -> None:
    server.say(reply)
    with pytest.raises(UnexpectedReply, match=why):
        list(stream(server.path))


@pytest.mark.parametrize(
    ("reply", "code", "details"),
    [
        (GREETING + START + BODY, Status.UNAVAILABLE, "the server closed the connection"),
        (
            GREETING + START + BODY + frame(RST_STREAM, (8).to_bytes(4), 0, 1),
            Status.CANCELLED,
            "the server reset the call (HTTP/2 error 8)",
        ),
        (GREETING + START + frame(GOAWAY, bytes(8) + b"bye"), Status.UNAVAILABLE, "bye"),
        (
            GREETING + START + frame(DATA, b"\0\0\x10\0\1", 0, 1),
            Status.RESOURCE_EXHAUSTED,
            "reply of 1048577 bytes, more than the 1048576 allowed",
        ),
        (trailers_only((b"grpc-status", b"12"), (b"grpc-message", b"no")), Status.UNIMPLEMENTED, "no"),
    ],
)
def test_statuses(server: RawServer, reply: bytes, code: int, details: str) -> None:
    server.say(reply)
    with pytest.raises(RpcError) as caught:
        list(stream(server.path))
    assert (caught.value.code, caught.value.details) == (code, details)


def test_an_answer_that_does_not_wait_for_the_request_arrives(server: RawServer) -> None:
    server.say(GREETING + START + BODY + END)
    assert list(stream(server.path, request=bytes(1_000_000))) == [b"fine"]


def test_no_such_socket(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="No such file"):
        stream(str(tmp_path / "none.sock"))
