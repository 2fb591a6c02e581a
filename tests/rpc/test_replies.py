"""The small clients, for one reply and for a stream, against servers that stray from grpcio."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.rpc import call as calls
from neurontools.rpc import http2
from neurontools.rpc.call import (
    CallError,
    PolledStream,
    RpcError,
    Status,
    StreamConnection,
    UnaryConnection,
    UnexpectedReply,
    Unreachable,
)
from tests.harness.examples import examples
from tests.harness.grpc_server import ServeGrpc
from tests.harness.raw_server import (
    ACK,
    BODY,
    CONTINUATION,
    DATA,
    END,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    GREETING,
    HAS_PRIORITY,
    HEADER_BLOCK,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    START,
    TRAILER_BLOCK,
    VALID,
    WINDOW_UPDATE,
    FrameReader,
    RawServer,
    frame,
    message,
    reply_on,
    setting,
    trailers_only,
)
from tests.harness.waiting import HANG_SECONDS as TIMEOUT_SECONDS

FINE = START + BODY + END
PRIORITIZED = b"\x02" + bytes(5) + HEADER_BLOCK + bytes(2)


def name_of(parameter: object) -> str:
    """A test's name by its text, without the bytes of its reply."""
    return "" if isinstance(parameter, bytes) else str(parameter)


def call(server: RawServer, request: bytes = b"") -> bytes:
    return calls.call(server.path, "/t/m", request, timeout_seconds=TIMEOUT_SECONDS)


@pytest.mark.parametrize(
    "reply",
    [
        VALID,
        GREETING + frame(DATA, b"of another stream", END_STREAM, 3) + FINE,
        GREETING + frame(HEADERS, HEADER_BLOCK, END_HEADERS | END_STREAM, 3) + FINE,
        GREETING + START + frame(77, b"unknown type", 0xFF, 1) + frame(PRIORITY, bytes(5), 0, 1) + BODY + END,
        GREETING + START + frame(DATA, b"\x03" + message(b"fine") + bytes(3), PADDED, 1) + END,
        GREETING + frame(HEADERS, PRIORITIZED, END_HEADERS | PADDED | HAS_PRIORITY, 1) + BODY + END,
        GREETING
        + frame(HEADERS, HEADER_BLOCK[:7], 0, 1)
        + frame(CONTINUATION, HEADER_BLOCK[7:], END_HEADERS, 1)
        + b"".join(frame(DATA, bytes((byte,)), 0, 1) for byte in message(b"fine"))
        + frame(HEADERS, b"", END_STREAM, 1)
        + frame(CONTINUATION, TRAILER_BLOCK, 0, 1)
        + frame(CONTINUATION, b"", END_HEADERS, 1),
        GREETING + frame(PING, b"12345678") + frame(PING, b"12345678", ACK) + frame(SETTINGS, b"", ACK) + FINE,
        GREETING + frame(GOAWAY, (2**31 - 1).to_bytes(4) + bytes(4) + b"bye") + FINE,
        GREETING + frame(HEADERS, http2.encode_headers([(b":status", b"103")]), END_HEADERS, 1) + FINE,
        GREETING + FINE + frame(RST_STREAM, bytes(4), 0, 1),
        GREETING + frame(RST_STREAM, bytes(4), 0, 3) + frame(WINDOW_UPDATE, b"\0\0\0\1", 0, 3) + FINE,
        setting(5, 2**24 - 1) + setting(4, 2**31 - 1) + setting(0x1234, 2**32 - 1) + FINE,
    ],
)
def test_what_http2_allows(server: RawServer, reply: bytes) -> None:
    server.reply_with(reply)
    assert call(server) == b"fine"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not an HTTP/2 server"),
        (FINE, "not an HTTP/2 server"),
        (GREETING + frame(DATA, bytes(16_385), 0, 1), "frame of 16385 bytes"),
        (GREETING + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01", "frame of 16777215 bytes"),
        (frame(SETTINGS, bytes(5)), "SETTINGS frame"),
        (setting(4, 2**31), "value 2147483648 of HTTP/2 setting 4"),
        (setting(5, 16_383), "value 16383 of HTTP/2 setting 5"),
        (GREETING + frame(PING, bytes(7)), "PING frame"),
        (GREETING + frame(WINDOW_UPDATE, bytes(4)), "WINDOW_UPDATE frame"),
        (GREETING + frame(WINDOW_UPDATE, b"\1"), "WINDOW_UPDATE frame"),
        (GREETING + frame(PUSH_PROMISE, bytes(4), END_HEADERS, 1), "PUSH_PROMISE frame"),
        (GREETING + frame(CONTINUATION, b"", END_HEADERS, 1), "without its HEADERS"),
        (GREETING + frame(HEADERS, b"", 0, 1) + frame(CONTINUATION, b"", END_HEADERS, 3), "without its HEADERS"),
        (GREETING + frame(HEADERS, HEADER_BLOCK, 0, 1) + BODY, "inside a header block"),
        (GREETING + frame(HEADERS, b"", 0, 1) + frame(CONTINUATION, bytes(16_384), 0, 1) * 17, "header block of more"),
        (GREETING + frame(HEADERS, b"\xbe", END_HEADERS, 1), "header index 62"),
        (GREETING + frame(HEADERS, bytes(4), END_HEADERS | HAS_PRIORITY, 1), "HEADERS frame too short"),
        (GREETING + frame(DATA, b"", PADDED, 1), "padding longer"),
        (GREETING + frame(DATA, b"\x05" + bytes(4), PADDED, 1), "padding longer"),
        (GREETING + START + frame(DATA, b"\1\0\0\0\4gzip", 0, 1) + END, "compressed reply"),
        (GREETING + START + BODY + BODY + END, "more than one message"),
        (GREETING + START + END, "without a complete message"),
        (GREETING + START + frame(DATA, message(b"fine")[:-1], 0, 1) + END, "without a complete message"),
        (GREETING + START + frame(DATA, message(b"fine"), END_STREAM, 1), "without a gRPC status"),
        (trailers_only((b"grpc-status", b"fine")), "without a gRPC status"),
        (trailers_only((b"grpc-status", b"9" * 5000)), "without a gRPC status"),
        (trailers_only((b":status", b"502"), (b"grpc-status", b"0")), "HTTP status 502"),
        (trailers_only((b"content-type", b"text/html")), "content type text/html"),
        (GREETING + frame(HEADERS, b"", END_HEADERS | END_STREAM, 1), "HTTP status missing"),
    ],
    ids=name_of,
)
def test_what_is_not_grpc_is_unexpected(server: RawServer, reply: bytes, why: str) -> None:
    server.reply_with(reply)
    with pytest.raises(UnexpectedReply, match=why):
        call(server)


TOO_MUCH = "reply of 4294967295 bytes, more than the 67108864 allowed"


def not_found(text: bytes) -> bytes:
    return trailers_only((b"grpc-status", b"5"), (b"grpc-message", text))


def reset(code: bytes) -> bytes:
    return GREETING + frame(RST_STREAM, code, 0, 1)


@pytest.mark.parametrize(
    ("reply", "code", "details"),
    [
        (not_found(b"no %C3%A9, 100%25"), Status.NOT_FOUND, "no é, 100%"),
        (not_found(b"%4"), Status.NOT_FOUND, "%4"),
        (not_found(b"%+1%_1% 1%"), Status.NOT_FOUND, "%+1%_1% 1%"),
        (not_found(b"%ff\xff"), Status.NOT_FOUND, "\ufffd\ufffd"),
        (trailers_only((b"grpc-status", b"5")), Status.NOT_FOUND, ""),
        (trailers_only((b"grpc-status", b"99")), 99, ""),
        (reset((7).to_bytes(4)), Status.UNAVAILABLE, "the server reset the call (HTTP/2 error 7)"),
        (reset((8).to_bytes(4)), Status.CANCELLED, "the server reset the call (HTTP/2 error 8)"),
        (reset(b""), Status.INTERNAL, "the server reset the call (HTTP/2 error 0)"),
        (GREETING + frame(GOAWAY, bytes(8) + b"too many"), Status.UNAVAILABLE, "too many"),
        (GREETING + frame(GOAWAY, bytes(8)), Status.UNAVAILABLE, "the server is shutting down"),
        (GREETING + frame(GOAWAY, (2**31 - 1).to_bytes(4) + bytes(4) + b"not you"), Status.UNAVAILABLE, "not you"),
        (b"", Status.UNAVAILABLE, "the server closed the connection"),
        (VALID[:-1], Status.UNAVAILABLE, "the server closed the connection"),
        (GREETING + START + frame(DATA, b"\0\xff\xff\xff\xff", 0, 1), Status.RESOURCE_EXHAUSTED, TOO_MUCH),
    ],
    ids=name_of,
)
def test_statuses(server: RawServer, reply: bytes, code: int, details: str) -> None:
    server.reply_with(reply)
    with pytest.raises(RpcError) as caught:
        call(server)
    assert (caught.value.code, caught.value.details) == (code, details)


def test_the_deadline_is_that_of_the_call_and_not_of_a_read(server: RawServer) -> None:
    def never_stop(connection: socket.socket) -> None:
        connection.sendall(GREETING)
        while True:
            connection.sendall(frame(WINDOW_UPDATE, b"\0\0\0\1", 0, 3))

    ended = threading.Event()

    def never_read(connection: socket.socket) -> None:
        connection.sendall(setting(4, 2**31 - 1) + frame(WINDOW_UPDATE, (2**30).to_bytes(4)))
        ended.wait()

    try:
        for behave, request in ((never_stop, b""), (never_read, bytes(10_000_000))):
            server.behave = behave
            with pytest.raises(RpcError, match=r"^DEADLINE_EXCEEDED"):
                calls.call(server.path, "/t/m", request, timeout_seconds=0.1)
    finally:
        ended.set()


def test_the_reason_of_a_server_that_has_closed_is_read(server: RawServer) -> None:
    closed = threading.Semaphore(0)

    def behave(connection: socket.socket) -> None:
        connection.sendall(trailers_only((b"grpc-status", b"14"), (b"grpc-message", b"the daemon is ending")))
        connection.close()
        closed.release()

    server.behave = behave
    unary, streamed = UnaryConnection(server.path, TIMEOUT_SECONDS), StreamConnection(server.path, TIMEOUT_SECONDS)
    polled = PolledStream(server.path, "/t/m", b"", max_reply_bytes=4)
    for ask in (lambda: unary.call("/m", bytes(10**6)), lambda: list(streamed.messages("/m", b"")), polled.messages):
        assert closed.acquire(timeout=TIMEOUT_SECONDS)
        with pytest.raises(RpcError, match=r"^UNAVAILABLE: the daemon is ending$"):
            ask()
    unary.close()
    polled.close()


def test_a_deadline_closes_the_connection(server: RawServer) -> None:
    def behave(connection: socket.socket) -> None:
        while connection.recv(65536):
            pass

    server.behave = behave
    with UnaryConnection(server.path, TIMEOUT_SECONDS) as connection:
        with pytest.raises(RpcError, match=r"^DEADLINE_EXCEEDED: no complete answer in time$"):
            connection.call("/t/m", b"", timeout_seconds=0.05)
        with pytest.raises(RpcError, match=r"^UNAVAILABLE: the connection is closed$"):
            connection.call("/t/m", b"")


@pytest.mark.parametrize(
    ("initial_bytes", "stream_grant_bytes", "connection_grant_bytes"),
    [(10, 2_000, 50_000), (2**31 - 1, 1, 3_000), (0, 20_000, 20_000)],
)
def test_requests_keep_to_the_windows_of_the_server(
    server: RawServer, initial_bytes: int, stream_grant_bytes: int, connection_grant_bytes: int
) -> None:
    """The client may fill the default window before it learns another one: then that is below zero (6.9.2)."""
    request = bytes(range(256)) * 1000
    chunks: list[bytes] = []

    def behave(connection: socket.socket) -> None:
        reader = FrameReader(connection)
        stream_window = connection_window = 65_535
        connection.sendall(setting(4, initial_bytes))
        knows_settings = False
        while True:
            kind, flags, stream_id, payload = reader.next()
            if kind == DATA:
                assert stream_id == 1
                assert len(payload) <= min(stream_window, connection_window, 16_384)
                stream_window -= len(payload)
                connection_window -= len(payload)
                chunks.append(payload)
                if flags & END_STREAM:
                    break
            elif kind == SETTINGS and flags & ACK:
                knows_settings = True
                stream_window += initial_bytes - 65_535
            while knows_settings and stream_window <= 0:
                connection.sendall(frame(WINDOW_UPDATE, stream_grant_bytes.to_bytes(4), 0, 1))
                stream_window += stream_grant_bytes
            while knows_settings and connection_window <= 0:
                connection.sendall(frame(WINDOW_UPDATE, connection_grant_bytes.to_bytes(4)))
                connection_window += connection_grant_bytes
        connection.sendall(START + BODY + END)

    server.behave = behave
    assert call(server, request) == b"fine"
    assert b"".join(chunks) == message(request)


def test_what_was_read_is_given_back_to_the_connection_window(server: RawServer) -> None:
    updates: list[int] = []

    def behave(connection: socket.socket) -> None:
        reader = FrameReader(connection)
        connection.sendall(GREETING)
        while True:
            kind, flags, stream_id, payload = reader.next()
            if kind == WINDOW_UPDATE and stream_id == 0:
                updates.append(int.from_bytes(payload))
            if kind == DATA and flags & END_STREAM:
                connection.sendall(reply_on(stream_id, b"\x03" + message(b"fine") + bytes(3), PADDED))

    server.behave = behave
    with UnaryConnection(server.path, TIMEOUT_SECONDS) as connection:
        assert [connection.call("/t/m", b"") for _ in range(3)] == [b"fine"] * 3
    assert updates == [2**31 - 1 - 65_535, 13, 13]


def test_settings_and_pings_are_acknowledged(server: RawServer) -> None:
    seen: list[tuple[int, int, bytes]] = []

    def behave(connection: socket.socket) -> None:
        reader = FrameReader(connection)
        connection.sendall(GREETING + frame(PING, b"12345678"))
        while len(seen) < 2:
            kind, flags, _, payload = reader.next()
            if kind in (SETTINGS, PING) and flags & ACK:
                seen.append((kind, flags, payload))
        connection.sendall(START + BODY + END)

    server.behave = behave
    assert call(server) == b"fine"
    assert seen == [(SETTINGS, ACK, b""), (PING, ACK, b"12345678")]


def test_an_early_answer_cancels_the_rest_of_the_request(server: RawServer) -> None:
    """Else the stream would stay half-open in the server for as long as the connection."""
    resets: list[tuple[int, bytes]] = []

    def behave(connection: socket.socket) -> None:
        reader = FrameReader(connection)
        connection.sendall(trailers_only((b"grpc-status", b"12")))
        while True:
            kind, _, stream_id, payload = reader.next()
            if kind == RST_STREAM:
                resets.append((stream_id, payload))
                connection.sendall(frame(WINDOW_UPDATE, (100_000).to_bytes(4)) + reply_on(3, message(b"fine")))

    server.behave = behave
    with UnaryConnection(server.path, TIMEOUT_SECONDS) as connection:
        with pytest.raises(RpcError, match=r"^UNIMPLEMENTED"):
            connection.call("/t/m", bytes(100_000))
        assert connection.call("/t/m", b"") == b"fine"
    assert resets == [(1, (8).to_bytes(4))]


def test_after_goaway_the_connection_takes_no_more_calls(server: RawServer) -> None:
    server.reply_with(GREETING + frame(GOAWAY, (1).to_bytes(4) + bytes(4)) + FINE)
    with UnaryConnection(server.path, TIMEOUT_SECONDS) as connection:
        assert connection.call("/t/m", b"") == b"fine"
        with pytest.raises(RpcError, match=r"^UNAVAILABLE: the connection is closed$"):
            connection.call("/t/m", b"")


FRAMES = st.lists(
    st.builds(
        frame,
        st.integers(0, 11),
        st.binary(max_size=40) | st.sampled_from([HEADER_BLOCK, TRAILER_BLOCK, message(b"fine"), bytes(4)]),
        st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2D, 0xFF]),
        st.sampled_from([0, 1, 1, 1, 3, 2**32 - 1]),
    ),
    max_size=12,
).map(b"".join)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid reply with some bytes changed, left out or added."""
    chooser = draw(st.randoms(use_true_random=False))
    reply = bytearray(VALID)
    for _ in range(draw(st.integers(1, 4))):
        position = chooser.randrange(len(reply))
        match chooser.randrange(3):
            case 0:
                reply[position] = chooser.randrange(256)
            case 1:
                del reply[position : position + chooser.randrange(1, 8)]
            case _:
                reply[position:position] = chooser.randbytes(chooser.randrange(1, 8))
    return bytes(reply)


@pytest.mark.slow
@settings(max_examples=examples(900), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=500) | FRAMES.map(lambda frames: GREETING + frames) | mutated())
def test_any_reply_is_an_answer_or_a_documented_error_and_never_waits_for_the_deadline(
    server: RawServer, reply: bytes
) -> None:
    server.reply_with(reply)
    try:
        answer = call(server)
    except CallError as error:
        assert "in time" not in str(error)
    else:
        assert isinstance(answer, bytes)


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
    yield b"one"
    if context.add_callback(ended.set):  # no: the call has ended already
        ended.wait()


@pytest.fixture(scope="module")
def server_path(serve_grpc: ServeGrpc) -> str:
    """The socket of a grpcio server with the handlers above as methods of the service `t`."""
    streams = (zeros, two_and_a_failure, one_and_silence)
    return serve_grpc({each.__name__: grpc.unary_stream_rpc_method_handler(each) for each in streams})


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


def test_what_came_before_a_failure_arrives_and_a_deadline_ends_a_stream(server_path: str) -> None:
    messages = stream(server_path, "two_and_a_failure")
    assert [next(messages), next(messages)] == [b"one", b"two"]
    with pytest.raises(RpcError, match=r"^FAILED_PRECONDITION: no third$"):
        next(messages)
    with pytest.raises(RpcError, match=r"^DEADLINE_EXCEEDED: "):
        list(stream(server_path, "one_and_silence", timeout_seconds=0.2))


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
                asked.append(dict(http2.decode_headers(payload)))
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


def test_messages_are_found_however_they_are_cut_into_frames(server: RawServer) -> None:
    for chunks, complete in (
        ([bytes((byte,)) for byte in message(b"fine") + message(b"") + message(b"!")], 3),
        ([message(b"fine") * 50], 50),
        ([message(b"a") + message(b"bc")[:6], message(b"bc")[6:]], 2),
        ([], 0),
    ):
        server.reply_with(GREETING + START + b"".join(frame(DATA, chunk, 0, 1) for chunk in chunks) + END)
        assert len(list(stream(server.path))) == complete


@pytest.mark.parametrize(
    ("reply", "code", "details"),
    [
        (GREETING + START + BODY + frame(DATA, message(b"fine")[:-1], 0, 1) + END, None, "without a complete message"),
        (GREETING + START + BODY + frame(DATA, b"", END_STREAM, 1), None, "without a gRPC status"),
        (GREETING + START + BODY, Status.UNAVAILABLE, "the server closed the connection"),
        (
            GREETING + START + BODY + frame(RST_STREAM, (8).to_bytes(4), 0, 1),
            Status.CANCELLED,
            "reset the call (HTTP/2",
        ),
        (GREETING + START + frame(DATA, b"\0\0\x10\0\1", 0, 1), Status.RESOURCE_EXHAUSTED, "reply of 1048577 bytes"),
    ],
    ids=name_of,
)
def test_how_a_stream_can_end(server: RawServer, reply: bytes, code: int | None, details: str) -> None:
    server.reply_with(reply)
    with pytest.raises(UnexpectedReply if code is None else RpcError) as caught:
        list(stream(server.path))
    assert details in str(caught.value)
    assert getattr(caught.value, "code", None) == code


def test_an_answer_that_does_not_wait_for_the_request_arrives(server: RawServer, tmp_path: Path) -> None:
    server.reply_with(GREETING + START + BODY + END)
    assert list(stream(server.path, request=bytes(1_000_000))) == [b"fine"]
    with pytest.raises(Unreachable, match="No such file"):
        stream(str(tmp_path / "none.sock"))
