"""The small client against real grpcio servers on real unix sockets."""

import errno
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from neurontools.rpc import call as calls
from neurontools.rpc.call import RpcError, Status, UnaryConnection, UnexpectedReply, Unreachable
from tests.harness.grpc_server import ServeGrpc, started
from tests.harness.waiting import HANG_SECONDS, run_to_end

TIMEOUT_SECONDS = HANG_SECONDS  # no test waits for it
SIZES_BYTES = [0, 1, 100, 16_379, 16_384, 60_000, 65_531, 5_000_000]

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
def server_path(serve_grpc: ServeGrpc) -> Iterator[str]:
    """The socket of a grpcio server with the handlers above as methods of the service `t`."""
    release.clear()  # a worker may begin with this module twice
    yield serve_grpc(HANDLERS)
    release.set()


def output_of(*arguments: str) -> str:
    """What a Python that sees the small client alone prints."""
    run = run_to_end([sys.executable, *arguments], check=True, env={"PYTHONPATH": str(Path(calls.__file__).parents[2])})
    assert run.stderr == ""
    return run.stdout


def call(path: str, method: str, request: bytes = b"", timeout_seconds: float = TIMEOUT_SECONDS) -> bytes:
    return calls.call(path, f"/t/{method}", request, timeout_seconds=timeout_seconds)


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


def test_a_status_leaves_the_connection_open(server_path: str) -> None:
    statuses = {"nothing": "UNIMPLEMENTED: .*not found", "crash": "UNKNOWN: .*boom", "fail": "PERMISSION_DENIED: "}
    with UnaryConnection(server_path, TIMEOUT_SECONDS) as connection:
        for method, text in statuses.items():
            with pytest.raises(RpcError, match=f"^{text}") as caught:
                connection.call(f"/t/{method}", b"")
            assert caught.value.code == getattr(Status, text.partition(":")[0])
            assert connection.call("/t/echo", b"open") == b"open"
        with pytest.raises(RpcError, match=r"^UNIMPLEMENTED"):
            connection.call("/t/nothing", bytes(5_000_000))  # the answer comes before it is through
        assert connection.call("/t/echo", b"still open") == b"still open"
    connection.close()  # twice is fine
    with pytest.raises(RpcError, match=r"^UNAVAILABLE: the connection is closed$"):
        connection.call("/t/echo", b"")


@pytest.mark.parametrize(("method", "timeout_seconds"), [("wait", 0.05), ("echo", 0.0), ("echo", -1.0), ("echo", 1e-7)])
def test_deadline(server_path: str, method: str, timeout_seconds: float) -> None:
    with pytest.raises(RpcError, match=r"^DEADLINE_EXCEEDED: ") as caught:
        call(server_path, method, timeout_seconds=timeout_seconds)
    assert caught.value.code == Status.DEADLINE_EXCEEDED


@pytest.mark.parametrize(("given", "least", "most"), [(40, 0, 40.001), (float("inf"), 90_000, 100_000)])
def test_the_server_learns_the_deadline(server_path: str, given: float, least: float, most: float) -> None:
    assert least < float(call(server_path, "time_remaining", timeout_seconds=given)) <= most


def test_a_reply_that_is_compressed_or_over_the_limit(server_path: str) -> None:
    with pytest.raises(UnexpectedReply, match="compressed"):
        call(server_path, "compressed", bytes(10_000))
    with pytest.raises(RpcError, match="reply of 1001 bytes, more than the 1000 allowed") as caught:
        calls.call(server_path, "/t/zeros", b"1001", timeout_seconds=TIMEOUT_SECONDS, max_reply_bytes=1000)
    assert caught.value.code == Status.RESOURCE_EXHAUSTED
    reply = calls.call(server_path, "/t/zeros", b"1000", timeout_seconds=TIMEOUT_SECONDS, max_reply_bytes=1000)
    assert reply == bytes(1000)


def test_many_calls_on_one_connection(server_path: str) -> None:
    with UnaryConnection(server_path, TIMEOUT_SECONDS) as connection:
        for index in range(200):
            request = b"%d" % index * (index % 7)
            assert connection.call("/t/echo", request) == request
        for size_bytes in SIZES_BYTES * 2:
            request = os.urandom(size_bytes)
            assert connection.call("/t/echo", request) == request
        assert connection.call("/t/many_headers", b"") == b"with headers"  # 40 kB of them, in more than one frame


def test_a_stopped_server_is_unavailable(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    server = started(path, HANDLERS)
    with UnaryConnection(path, TIMEOUT_SECONDS) as connection:
        assert connection.call("/t/echo", b"up") == b"up"
        server.stop(None).wait()
        for _ in range(2):
            with pytest.raises(RpcError, match=r"^UNAVAILABLE"):
                connection.call("/t/echo", b"")


def test_sockets_that_nobody_can_be_reached_at(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead"))
    (tmp_path / "file").write_text("not a socket")
    for name, cause, number in (
        ("none", "No such file", errno.ENOENT),
        ("dead", "refused", errno.ECONNREFUSED),
        ("file", "refused", errno.ECONNREFUSED),
        ("x" * 200, "too long", None),
    ):
        with pytest.raises(Unreachable, match=cause) as caught:
            call(str(tmp_path / name), "echo")
        assert getattr(caught.value.__cause__, "errno", "") == number


def test_permission_denied(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    path = tmp_path / "closed" / "s.sock"
    user = os.geteuid()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.parent.chmod(0)
        try:
            if user == 0:
                os.seteuid(65534)  # root is refused nothing
            with pytest.raises(Unreachable, match=r"^Permission denied$") as caught:
                call(str(path), "echo")
        finally:
            os.seteuid(user)
            path.parent.chmod(0o700)
    assert getattr(caught.value.__cause__, "errno", None) == errno.EACCES


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
from neurontools.rpc.call import UnaryConnection, call

stop = threading.Event()
def report():
    with UnaryConnection(sys.argv[1], 300) as connection:
        while not stop.is_set():
            assert connection.call("/t/echo", b"parent") == b"parent"

reporter = threading.Thread(target=report)
reporter.start()
mine = UnaryConnection(sys.argv[1], 300)
failed = 0
for _ in range(50):
    pid = os.fork()
    if pid == 0:
        ok = call(sys.argv[1], "/t/echo", b"child", timeout_seconds=300) == b"child"
        os._exit(0 if ok else 1)
    assert mine.call("/t/echo", b"mine") == b"mine"
    failed += os.waitpid(pid, 0)[1] != 0
stop.set()
reporter.join()
mine.close()
print(failed, sorted({"grpc", "socket", "struct", "re", "typing", "enum", "dataclasses"} & set(sys.modules)))
"""
    # From Python 3.12 on a fork beside threads warns, which is what is tried here.
    assert output_of("-S", "-W", "ignore::DeprecationWarning", "-c", script, server_path) == "0 []\n"


def test_importing_it_brings_nothing_else() -> None:
    script = (
        "import sys; before = set(sys.modules); import neurontools.rpc.call; print(*sorted(set(sys.modules) - before))"
    )
    own = ["neurontools", *(f"neurontools.rpc{name}" for name in ("", ".call", ".http2", ".wire"))]
    assert output_of("-S", "-c", script).split() == ["_socket", *own]
