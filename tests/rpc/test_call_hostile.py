"""The small client against servers that stray from what grpcio sends: rare, broken or hostile ones."""

import random
import socket
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.rpc import call as calls
from neurontools.rpc import hpack
from neurontools.rpc.call import CallError, Connection, RpcError, Status, UnexpectedReply
from tests.harness.examples import examples
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

TIMEOUT_SECONDS = 60.0  # far beyond what any call needs: no test waits for it


def name_of(parameter: object) -> str:
    """A test's name by its text, without the bytes of its reply."""
    return "" if isinstance(parameter, bytes) else str(parameter)


def call(server: RawServer, request: bytes = b"") -> bytes:
    return calls.call(server.path, "/t/m", request, timeout_seconds=TIMEOUT_SECONDS)


@pytest.mark.parametrize(
    "reply",
    [
        VALID,
        GREETING + frame(DATA, b"of another stream", END_STREAM, 3) + START + BODY + END,
        GREETING + frame(HEADERS, HEADER_BLOCK, END_HEADERS | END_STREAM, 3) + START + BODY + END,
        GREETING + START + frame(77, b"unknown type", 0xFF, 1) + frame(PRIORITY, bytes(5), 0, 1) + BODY + END,
        GREETING + START + frame(DATA, b"\x03" + message(b"fine") + bytes(3), PADDED, 1) + END,
        GREETING
        + frame(HEADERS, b"\x02" + bytes(5) + HEADER_BLOCK + bytes(2), END_HEADERS | PADDED | HAS_PRIORITY, 1)
        + BODY
        + END,
        GREETING
        + frame(HEADERS, HEADER_BLOCK[:7], 0, 1)
        + frame(CONTINUATION, HEADER_BLOCK[7:], END_HEADERS, 1)
        + b"".join(frame(DATA, bytes((byte,)), 0, 1) for byte in message(b"fine"))
        + frame(HEADERS, b"", END_STREAM, 1)
        + frame(CONTINUATION, TRAILER_BLOCK, 0, 1)
        + frame(CONTINUATION, b"", END_HEADERS, 1),
        GREETING
        + frame(PING, b"12345678")
        + frame(PING, b"12345678", ACK)
        + frame(SETTINGS, b"", ACK)
        + START
        + BODY
        + END,
        GREETING + frame(GOAWAY, (2**31 - 1).to_bytes(4) + bytes(4) + b"bye") + START + BODY + END,
        GREETING + frame(HEADERS, hpack.encode([(b":status", b"103")]), END_HEADERS, 1) + START + BODY + END,
        GREETING + START + BODY + END + frame(RST_STREAM, bytes(4), 0, 1),
        GREETING + frame(RST_STREAM, bytes(4), 0, 3) + frame(WINDOW_UPDATE, b"\0\0\0\1", 0, 3) + START + BODY + END,
        setting(5, 2**24 - 1) + setting(4, 2**31 - 1) + setting(0x1234, 2**32 - 1) + START + BODY + END,
    ],
)
def test_what_http2_allows(server: RawServer, reply: bytes) -> None:
    server.say(reply)
    assert call(server) == b"fine"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not an HTTP/2 server"),
        (START + BODY + END, "not an HTTP/2 server"),
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
    server.say(reply)
    with pytest.raises(UnexpectedReply, match=why):
        call(server)


@pytest.mark.parametrize(
    ("reply", "code", "details"),
    [
        (
            trailers_only((b"grpc-status", b"5"), (b"grpc-message", b"no %C3%A9, 100%25")),
            Status.NOT_FOUND,
            "no é, 100%",
        ),
        (trailers_only((b"grpc-status", b"5"), (b"grpc-message", b"%4")), Status.NOT_FOUND, "%4"),
        (trailers_only((b"grpc-status", b"5"), (b"grpc-message", b"%+1%_1% 1%")), Status.NOT_FOUND, "%+1%_1% 1%"),
        (trailers_only((b"grpc-status", b"5"), (b"grpc-message", b"%ff\xff")), Status.NOT_FOUND, "\ufffd\ufffd"),
        (trailers_only((b"grpc-status", b"5")), Status.NOT_FOUND, ""),
        (trailers_only((b"grpc-status", b"99")), 99, ""),
        (
            GREETING + frame(RST_STREAM, (7).to_bytes(4), 0, 1),
            Status.UNAVAILABLE,
            "the server reset the call (HTTP/2 error 7)",
        ),
        (
            GREETING + frame(RST_STREAM, (8).to_bytes(4), 0, 1),
            Status.CANCELLED,
            "the server reset the call (HTTP/2 error 8)",
        ),
        (GREETING + frame(RST_STREAM, b"", 0, 1), Status.INTERNAL, "the server reset the call (HTTP/2 error 0)"),
        (GREETING + frame(GOAWAY, bytes(8) + b"too many"), Status.UNAVAILABLE, "too many"),
        (GREETING + frame(GOAWAY, bytes(8)), Status.UNAVAILABLE, "the server is shutting down"),
        (GREETING + frame(GOAWAY, (2**31 - 1).to_bytes(4) + bytes(4) + b"not you"), Status.UNAVAILABLE, "not you"),
        (b"", Status.UNAVAILABLE, "the server closed the connection"),
        (VALID[:-1], Status.UNAVAILABLE, "the server closed the connection"),
        (
            GREETING + START + frame(DATA, b"\0\xff\xff\xff\xff", 0, 1),
            Status.RESOURCE_EXHAUSTED,
            "reply of 4294967295 bytes, more than the 67108864 allowed",
        ),
    ],
    ids=name_of,
)
def test_statuses(server: RawServer, reply: bytes, code: int, details: str) -> None:
    server.say(reply)
    with pytest.raises(RpcError) as caught:
        call(server)
    assert (caught.value.code, caught.value.details) == (code, details)


def test_a_huffman_coded_message_is_read(server: RawServer) -> None:
    coded = bytes.fromhex("f1e3c2e5f23a6ba0ab90f4ff")  # RFC 7541, C.4.1
    field = b"\0" + b"\x0cgrpc-message" + bytes((0x80 | len(coded),)) + coded
    block = HEADER_BLOCK + hpack.encode([(b"grpc-status", b"5")]) + field
    server.say(GREETING + frame(HEADERS, block, END_HEADERS | END_STREAM, 1))
    with pytest.raises(RpcError, match=r"^NOT_FOUND: www\.example\.com$"):
        call(server)


def test_a_server_that_closes_at_once_is_unavailable(server: RawServer) -> None:
    server.behave = lambda connection: connection.close()
    with pytest.raises(RpcError) as caught:
        call(server, bytes(1_000_000))
    assert caught.value.code == Status.UNAVAILABLE


def test_a_server_that_never_stops_talking_meets_the_deadline(server: RawServer) -> None:
    """The deadline is that of the call and not of a read: frames come all the time."""

    def behave(connection: socket.socket) -> None:
        connection.sendall(GREETING)
        while True:
            connection.sendall(frame(WINDOW_UPDATE, b"\0\0\0\1", 0, 3))

    server.behave = behave
    with pytest.raises(RpcError, match=r"^DEADLINE_EXCEEDED"):
        calls.call(server.path, "/t/m", b"", timeout_seconds=0.05)


def test_a_deadline_closes_the_connection(server: RawServer) -> None:
    def behave(connection: socket.socket) -> None:
        while connection.recv(65536):
            pass

    server.behave = behave
    with Connection(server.path, TIMEOUT_SECONDS) as connection:
        with pytest.raises(RpcError, match=r"^DEADLINE_EXCEEDED: no complete answer in time$"):
            connection.call("/t/m", b"", timeout_seconds=0.05)
        with pytest.raises(RpcError, match=r"^UNAVAILABLE: the connection is closed$"):
            connection.call("/t/m", b"")


def test_a_server_that_never_reads_meets_the_deadline(server: RawServer) -> None:
    ended = threading.Event()

    def behave(connection: socket.socket) -> None:
        connection.sendall(setting(4, 2**31 - 1) + frame(WINDOW_UPDATE, (2**30).to_bytes(4)))
        ended.wait()

    server.behave = behave
    try:
        with pytest.raises(RpcError, match=r"^DEADLINE_EXCEEDED"):
            calls.call(server.path, "/t/m", bytes(10_000_000), timeout_seconds=0.2)
    finally:
        ended.set()


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
    with Connection(server.path, TIMEOUT_SECONDS) as connection:
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
    with Connection(server.path, TIMEOUT_SECONDS) as connection:
        with pytest.raises(RpcError, match=r"^UNIMPLEMENTED"):
            connection.call("/t/m", bytes(100_000))
        assert connection.call("/t/m", b"") == b"fine"
    assert resets == [(1, (8).to_bytes(4))]


def test_after_goaway_the_connection_takes_no_more_calls(server: RawServer) -> None:
    server.say(GREETING + frame(GOAWAY, (1).to_bytes(4) + bytes(4)) + START + BODY + END)
    with Connection(server.path, TIMEOUT_SECONDS) as connection:
        assert connection.call("/t/m", b"") == b"fine"
        with pytest.raises(RpcError, match=r"^UNAVAILABLE: the connection is closed$"):
            connection.call("/t/m", b"")


def assert_ends_well(server: RawServer, reply: bytes) -> None:
    """A call ends with an answer or a documented error, and because of the reply: not because of its deadline."""
    server.say(reply)
    try:
        answer = call(server)
    except CallError as error:
        assert "in time" not in str(error)
    else:
        assert isinstance(answer, bytes)


fuzz = settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])


@fuzz
@given(st.binary(max_size=500), st.booleans())
def test_random_bytes(server: RawServer, garbage: bytes, with_greeting: bool) -> None:
    assert_ends_well(server, GREETING + garbage if with_greeting else garbage)


@fuzz
@given(
    st.lists(
        st.builds(
            frame,
            st.integers(0, 11),
            st.one_of(
                st.binary(max_size=40), st.sampled_from([HEADER_BLOCK, TRAILER_BLOCK, message(b"fine"), bytes(4)])
            ),
            st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2D, 0xFF]),
            st.sampled_from([0, 1, 1, 1, 3, 2**32 - 1]),
        ),
        max_size=12,
    )
)
def test_random_frames(server: RawServer, frames: list[bytes]) -> None:
    assert_ends_well(server, GREETING + b"".join(frames))


@fuzz
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_mutated_replies(server: RawServer, seed: int, mutations: int) -> None:
    chooser = random.Random(seed)
    reply = bytearray(VALID)
    for _ in range(mutations):
        position = chooser.randrange(len(reply))
        match chooser.randrange(4):
            case 0:
                reply[position] ^= 1 << chooser.randrange(8)
            case 1:
                reply[position] = chooser.randrange(256)
            case 2:
                del reply[position : position + chooser.randrange(1, 8)]
            case _:
                reply[position:position] = chooser.randbytes(chooser.randrange(1, 8))
    assert_ends_well(server, bytes(reply))
