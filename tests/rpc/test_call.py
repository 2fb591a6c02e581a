"""The small client against real grpcio servers on real unix sockets."""

import asyncio
import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import grpc.aio
import pytest

from neurontools.rpc import call as calls
from neurontools.rpc.call import Connection, RpcError, Status, UnexpectedReply, Unreachable

TIMEOUT_SECONDS = 60.0  # far beyond what any call needs: no test waits for it
SIZES_BYTES = [0, 1, 100, 16_379, 16_384, 60_000, 65_531, 5_000_000]
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

release = threading.Event()  # lets go of the handler `wait`


def echo(request: bytes, _context: grpc.ServicerContext) -> bytes:
    return request


def zeros(request: bytes, _context: grpc.ServicerContext) -> bytes:
    return bytes(int(request))


def fail(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.set_trailing_metadata((("k-bin", bytes(range(256))), ("rich", "v" * 500)))
    context.abort(grpc.StatusCode.PERMISSION_DENIED, request.decode())


def crash(_request: bytes, _context: grpc.ServicerContext) -> bytes:
    raise ValueError("boom")


def wait(_request: bytes, _context: grpc.ServicerContext) -> bytes:
    release.wait()
    return b""


def many_headers(_request: bytes, context: grpc.ServicerContext) -> bytes:
    context.send_initial_metadata(tuple((f"header-{index}", "v" * 200) for index in range(200)))
    return b"with headers"


def time_remaining(_request: bytes, context: grpc.ServicerContext) -> bytes:
    return str(context.time_remaining()).encode()


def compressed(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.set_compression(grpc.Compression.Gzip)
    return request


HANDLERS: "dict[str, grpc.RpcMethodHandler[bytes, bytes]]" = {
    handler.__name__: grpc.unary_unary_rpc_method_handler(handler)
    for handler in (echo, zeros, fail, crash, wait, many_headers, time_remaining, compressed)
}


@pytest.fixture(scope="module")
def server_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket of a grpcio server with the handlers above as methods of the service `t`."""
    path = str(tmp_path_factory.mktemp("grpc") / "s.sock")
    server = grpc.server(ThreadPoolExecutor(8), options=UNLIMITED)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", HANDLERS),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    yield path
    release.set()
    server.stop(None).wait()


def call(path: str, method: str, request: bytes = b"", timeout_seconds: float = TIMEOUT_SECONDS) -> bytes:
    return calls.call(path, f"/t/{method}", request, timeout_seconds=timeout_seconds)


@pytest.mark.parametrize("size_bytes", SIZES_BYTES)
def test_requests_and_replies_of_any_size(server_path: str, size_bytes: int) -> None:
    request = os.urandom(size_bytes)
    assert call(server_path, "echo", request) == request


@pytest.mark.parametrize("size_bytes", SIZES_BYTES)
async def test_requests_and_replies_of_any_size_with_an_asyncio_server(tmp_path: Path, size_bytes: int) -> None:
    async def async_echo(request: bytes, _context: object) -> bytes:
        return request

    path = str(tmp_path / "a.sock")
    server = grpc.aio.server(options=UNLIMITED)
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"echo": grpc.unary_unary_rpc_method_handler(async_echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", handlers),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        request = os.urandom(size_bytes)
        assert await asyncio.to_thread(call, path, "echo", request) == request
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    "details",
    [
        "",
        "plain",
        'no \u00e9 access: 100% "quoted"\nsecond line\ttab',
        "%41 %zz %",
        "\u65e5\u672c\u8a9e \U0001f9e0 \x00\x7f",
        "long " * 2_000,  # 10 kB
        "\u00e9" * 1_300,  # 7.8 kB once percent-encoded
    ],
)
def test_details_arrive_as_they_were_given(server_path: str, details: str) -> None:
    with pytest.raises(RpcError) as caught:
        call(server_path, "fail", details.encode())
    assert (caught.value.code, caught.value.details) == (Status.PERMISSION_DENIED, details)


def test_a_header_block_over_one_frame_is_continued(server_path: str) -> None:
    assert call(server_path, "many_headers") == b"with headers"  # 40 kB of headers


def test_unknown_method_is_unimplemented(server_path: str) -> None:
    with pytest.raises(RpcError, match=r"^UNIMPLEMENTED: .*not found") as caught:
        call(server_path, "nothing")
    assert caught.value.code == Status.UNIMPLEMENTED


def test_an_error_that_comes_before_the_request_is_through(server_path: str) -> None:
    with Connection(server_path, TIMEOUT_SECONDS) as connection:
        with pytest.raises(RpcError, match=r"^UNIMPLEMENTED"):
            connection.call("/t/nothing", bytes(5_000_000))
        assert connection.call("/t/echo", b"still open") == b"still open"


def test_an_exception_in_the_server_is_unknown(server_path: str) -> None:
    with pytest.raises(RpcError, match="boom") as caught:
        call(server_path, "crash")
    assert caught.value.code == Status.UNKNOWN


def test_deadline(server_path: str) -> None:
    """Both sides know the deadline, and either may be first to say so."""
    with pytest.raises(RpcError, match=r"^DEADLINE_EXCEEDED: ") as caught:
        call(server_path, "wait", timeout_seconds=0.05)
    assert caught.value.code == Status.DEADLINE_EXCEEDED


@pytest.mark.parametrize("timeout_seconds", [0.0, -1.0, 1e-7])
def test_no_time_at_all(server_path: str, timeout_seconds: float) -> None:
    with pytest.raises(RpcError, match=r"^DEADLINE_EXCEEDED"):
        call(server_path, "echo", timeout_seconds=timeout_seconds)


def test_the_server_learns_the_deadline(server_path: str) -> None:
    assert 0 < float(call(server_path, "time_remaining", timeout_seconds=40)) <= 40.001


def test_an_endless_timeout_is_cut_to_what_grpc_can_say(server_path: str) -> None:
    assert 90_000 < float(call(server_path, "time_remaining", timeout_seconds=float("inf"))) <= 100_000


def test_a_compressed_reply_is_unexpected(server_path: str) -> None:
    with pytest.raises(UnexpectedReply, match="compressed"):
        call(server_path, "compressed", bytes(10_000))


def test_a_reply_over_the_limit_is_exhausted(server_path: str) -> None:
    with pytest.raises(RpcError, match="reply of 1001 bytes, more than the 1000 allowed") as caught:
        calls.call(server_path, "/t/zeros", b"1001", timeout_seconds=TIMEOUT_SECONDS, max_reply_bytes=1000)
    assert caught.value.code == Status.RESOURCE_EXHAUSTED
    reply = calls.call(server_path, "/t/zeros", b"1000", timeout_seconds=TIMEOUT_SECONDS, max_reply_bytes=1000)
    assert reply == bytes(1000)


def test_many_calls_at_once(server_path: str) -> None:
    requests = [b"%d" % index * 1000 for index in range(200)]
    barrier = threading.Barrier(len(requests))

    def one(request: bytes) -> bytes:
        barrier.wait()
        return call(server_path, "echo", request)

    with ThreadPoolExecutor(len(requests)) as pool:
        assert list(pool.map(one, requests)) == requests


def test_many_calls_on_one_connection(server_path: str) -> None:
    with Connection(server_path, TIMEOUT_SECONDS) as connection:
        for index in range(1000):
            request = b"%d" % index * (index % 7)
            assert connection.call("/t/echo", request) == request
        for size_bytes in SIZES_BYTES * 2:
            assert connection.call("/t/echo", bytes(size_bytes)) == bytes(size_bytes)


def test_a_status_leaves_the_connection_open(server_path: str) -> None:
    with Connection(server_path, TIMEOUT_SECONDS) as connection:
        for method in ("fail", "nothing", "crash"):
            with pytest.raises(RpcError):
                connection.call(f"/t/{method}", b"")
            assert connection.call("/t/echo", b"open") == b"open"


def test_closing_twice_is_fine(server_path: str) -> None:
    connection = Connection(server_path, TIMEOUT_SECONDS)
    connection.close()
    connection.close()
    with pytest.raises(RpcError, match=r"^UNAVAILABLE: the connection is closed$"):
        connection.call("/t/echo", b"")


def test_a_stopped_server_is_unavailable(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", HANDLERS),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    with Connection(path, TIMEOUT_SECONDS) as connection:
        assert connection.call("/t/echo", b"up") == b"up"
        server.stop(None).wait()
        for _ in range(2):
            with pytest.raises(RpcError) as caught:
                connection.call("/t/echo", b"")
            assert caught.value.code == Status.UNAVAILABLE


def test_no_such_socket(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="No such file") as caught:
        call(str(tmp_path / "none.sock"), "echo")
    assert caught.value.errno == errno.ENOENT
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_nobody_listens(tmp_path: Path) -> None:
    path = str(tmp_path / "dead.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with pytest.raises(Unreachable, match="refused") as caught:
        call(path, "echo")
    assert caught.value.errno == errno.ECONNREFUSED


def test_not_a_socket(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a socket")
    with pytest.raises(Unreachable) as caught:
        call(str(tmp_path / "file"), "echo")
    assert caught.value.errno == errno.ECONNREFUSED


def test_a_path_too_long_for_a_socket() -> None:
    with pytest.raises(Unreachable, match="too long") as caught:
        call("/tmp/" + "x" * 200, "echo")
    assert caught.value.errno is None


def test_permission_denied(tmp_path: Path) -> None:
    """In another process, because root must turn into somebody else to be refused."""
    (tmp_path / "closed").mkdir()
    path = tmp_path / "closed" / "s.sock"
    script = """
import os, sys
from neurontools.rpc.call import Unreachable
from neurontools.rpc.call import call
if os.getuid() == 0:
    os.setuid(65534)
try:
    call(sys.argv[1], "/t/echo", b"", timeout_seconds=60)
except Unreachable as error:
    print(error.errno, error)
"""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.parent.chmod(0)
        try:
            run = subprocess.run(
                [sys.executable, "-c", script, path],
                capture_output=True,
                text=True,
                check=True,
                timeout=TIMEOUT_SECONDS,
            )
        finally:
            path.parent.chmod(0o700)
    assert run.stdout == f"{errno.EACCES} Permission denied\n"


def test_a_full_backlog_ends_with_the_deadline(tmp_path: Path) -> None:
    path = str(tmp_path / "busy.sock")
    waiting: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        try:
            while True:
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                waiting[-1].connect(path)
        except BlockingIOError:
            pass
        with pytest.raises(RpcError, match=r"^DEADLINE_EXCEEDED: the server accepted no connection within 0.05 s$"):
            call(path, "echo", timeout_seconds=0.05)
        for one in waiting:
            one.close()


def test_forked_children_call_while_the_parent_has_a_connection(server_path: str) -> None:
    """In a process of its own, because this one contains grpcio."""
    script = """
import os, sys, threading
from neurontools.rpc.call import Connection, call

stop = threading.Event()
def report():
    with Connection(sys.argv[1], 60) as connection:
        while not stop.is_set():
            assert connection.call("/t/echo", b"parent") == b"parent"

reporter = threading.Thread(target=report)
reporter.start()
mine = Connection(sys.argv[1], 60)
failed = 0
for _ in range(50):
    pid = os.fork()
    if pid == 0:
        ok = call(sys.argv[1], "/t/echo", b"child", timeout_seconds=60) == b"child"
        os._exit(0 if ok else 1)
    assert mine.call("/t/echo", b"mine") == b"mine"
    failed += os.waitpid(pid, 0)[1] != 0
stop.set()
reporter.join()
mine.close()
print(failed, sorted({"grpc", "socket", "struct", "re", "typing", "enum", "dataclasses"} & set(sys.modules)))
"""
    run = subprocess.run(
        # From Python 3.12 on a fork beside threads warns, which is what is tried here.
        [sys.executable, "-S", "-W", "ignore::DeprecationWarning", "-c", script, server_path],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_SECONDS,
        env={"PYTHONPATH": str(Path(calls.__file__).parents[2])},
    )
    assert (run.stdout, run.stderr) == ("0 []\n", "")


def test_importing_it_brings_nothing_else() -> None:
    script = (
        "import sys; before = set(sys.modules); import neurontools.rpc.call; print(*sorted(set(sys.modules) - before))"
    )
    run = subprocess.run(
        [sys.executable, "-S", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(calls.__file__).parents[2])},
    )
    assert run.stdout.split() == [
        "_socket",
        "neurontools",
        "neurontools.rpc",
        "neurontools.rpc.call",
        "neurontools.rpc.hpack",
        "neurontools.rpc.http2",
        "neurontools.rpc.wire",
    ]
