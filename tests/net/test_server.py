"""The server over real sockets, as clients use it and as they should not; who may see what, and compression."""

from __future__ import annotations

import asyncio
import gzip
import resource
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.net import http_site
from neurontools.net.bearer_token import MOST_GUESSES, GuessLimiter, read_token
from neurontools.net.http_server import HttpLimits
from neurontools.net.http_site import HttpAccess, HttpPage, HttpRequest, HttpResponse, Site
from neurontools.net.secret_files import FileProblem
from neurontools.net.tls import ServerFiles, ServerTls
from tests.harness.certificates import Authority, needs_openssl
from tests.harness.connections import client_hello, is_closed
from tests.harness.http_server import Serve, Served
from tests.harness.secret_file import TOKEN, write_secret
from tests.harness.waiting import HANG_SECONDS, wait_until
from tests.harness.web_site import Site as Client


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves pages: serve({"/": Page(handler)}, access=..., limits=...)."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    opened: list[Served] = []

    def start(
        pages: dict[str, HttpPage],
        access: HttpAccess | None = None,
        limits: HttpLimits | None = None,
        guard: http_site.RequestGuard | None = None,
    ) -> Served:
        site = Site(pages, HttpPage(pages["/"].handler, is_open=True), access or HttpAccess(), guard)
        opened.append(Served(loop, site, limits or HttpLimits()))
        return opened[-1]

    yield start
    for each in opened:
        each.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


LINES = b"water_level_ratio 0.5\n" * 10_000
FRONT = HttpPage(lambda _: HttpResponse(b"front\n"), is_open=True)
CHUNKED = "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
HELLO = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def echo(request: HttpRequest) -> HttpResponse:
    words = (request.method, request.path, request.query, request.authority, request.header("x-word"))
    return HttpResponse(" | ".join(words).encode())


def test_pages_see_the_request_and_their_faults_are_answers(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    fault = HttpPage(lambda request: HttpResponse(request.headers["nothing"].encode()))
    served = serve({"/": FRONT, "/echo": HttpPage(echo), "/fault": fault})
    assert served.get("/fault").status == 500
    assert "/fault could not be made" in caplog.text
    assert served.get("/echo?a=b?c", Host="pages:80", X_Word="x").body == b"GET | /echo | a=b?c | pages:80 | x"
    absolute = served.get("http://other:1/echo", Host="pages", X_Word="x")
    assert absolute.body == b"GET | /echo |  | other:1 | x", "the form for proxies, in which Host doesn't count"
    head = served.get("/echo", method="HEAD")
    assert (head.body, head.headers["Content-Length"]) == (b"", str(len("HEAD | /echo |  | 127.0.0.1:00000 | ")))
    refused = served.get("/", method="DELETE")
    assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK"),
        ("GET /?name=x HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK"),
        ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        ("GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        ("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 405 Method Not Allowed"),
        ("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: x\r\n\r\n", "HTTP/1.1 501 Not Implemented"),
        (f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n{CHUNKED}", "HTTP/1.1 400 Bad Request"),
        (f"POST / HTTP/1.1\r\nHost: x\r\n{CHUNKED}", "HTTP/1.1 405 Method Not Allowed"),
        (f"POST / HTTP/1.0\r\nHost: x\r\n{CHUNKED}", "HTTP/1.1 400 Bad Request"),
        ("nonsense\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        (f"GET / HTTP/1.1\r\nX: {'x' * 40_000}\r\n\r\n", "HTTP/1.1 431 Request Header Fields Too Large"),
    ],
    ids=lambda text: text[:30],
)
def test_requests(serve: Serve, request_text: str, status: str) -> None:
    with serve({"/": FRONT}).connect() as connection:
        connection.sendall(request_text.encode())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as reader:
            assert reader.readline().decode().strip() == status
            assert b"HTTP/1.1 " not in reader.read(), "what follows an error is not another request"


def test_a_connection_is_kept_until_either_side_ends_it(serve: Serve) -> None:
    with serve({"/": FRONT}).connect() as connection, connection.makefile("rb") as reader:
        for _ in range(3):
            connection.sendall(HELLO + HELLO)
            for _ in range(2):
                while (line := reader.readline()) != b"\r\n":
                    assert line != b"Connection: close\r\n"
                assert reader.readline() == b"front\n"
        connection.sendall(b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert reader.read().endswith(b"Connection: close\r\n\r\n"), "no body, and then the end"


def test_a_document_is_compressed_once_for_all_who_ask(serve: Serve) -> None:
    document = http_site.CompressibleDocument(
        [http_site.CompressedPart(LINES[:1000]), http_site.CompressedPart(LINES[1000:])]
    )
    made: list[int] = []

    def page(_: HttpRequest) -> HttpResponse:
        made.append(id(document.gzipped) if len(made) > 1 else 0)
        return HttpResponse(document)

    served = serve({"/": FRONT, "/lines": HttpPage(page)})
    plain = served.get("/lines", Accept_Encoding="identity")
    assert (plain.body, plain.headers["Content-Encoding"]) == (LINES, None)
    for _ in range(3):
        reply = served.get("/lines", Accept_Encoding="deflate, gzip;q=0.5")
        assert (gzip.decompress(reply.body), reply.headers["Content-Encoding"]) == (LINES, "gzip")
        assert reply.headers["Vary"] == "Accept-Encoding"
        assert len(reply.body) < len(LINES) // 50
    assert len(set(made[2:])) == 1
    head = served.get("/lines", method="HEAD", Accept_Encoding="gzip")
    assert head.headers["Content-Length"] == str(len(document.gzipped))


def test_a_stream_is_sent_as_it_comes_and_ends_with_its_reader(serve: Serve) -> None:
    ended = threading.Event()
    go_on = asyncio.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            await go_on.wait()
            yield b"second"
            await asyncio.Event().wait()
        finally:
            ended.set()

    served = serve({"/": FRONT, "/events": HttpPage(lambda _: HttpResponse(pieces(), "text/event-stream"))})
    with served.connect() as client:
        client.sendall(HELLO.replace(b"/ ", b"/events "))
        with client.makefile("rb") as reader:
            while reader.readline() != b"\r\n":
                pass
            assert reader.readline() + reader.readline() == b"5\r\nfirst\r\n"
            served.loop.call_soon_threadsafe(go_on.set)
            assert reader.readline() + reader.readline() == b"6\r\nsecond\r\n"
            assert not ended.is_set()
    assert ended.wait(HANG_SECONDS)


def test_half_a_request_gets_a_few_seconds(serve: Serve) -> None:
    served = serve({"/": FRONT}, limits=HttpLimits(head_seconds=0.05))
    for said in (b"", b"GET / HTT", HELLO[:-2]):
        with served.connect() as client, suppress(ConnectionError):  # the few seconds may have been over
            client.sendall(said)
            assert client.recv(1) == b""

    def is_ended_behind_a_whole_one() -> bool:
        with served.connect() as client, suppress(ConnectionError):
            client.sendall(HELLO)
            if not client.recv(2**16).startswith(b"HTTP/1.1 200 OK\r\n"):
                return False  # it came too late
            client.sendall(HELLO[:-2])
            return client.recv(1) == b""
        return False

    wait_until(is_ended_behind_a_whole_one)
    with served.connect() as drips, suppress(ConnectionError):
        drips.sendall(HELLO[:-2])
        wait_until(lambda: drips.send(b"X") and is_closed(drips))


def test_half_sent_requests_of_a_crowd_lock_nobody_out(serve: Serve) -> None:
    served = serve({"/": FRONT}, limits=HttpLimits(connections=16, of_an_address=4, head_seconds=600))
    crowd = [served.connect(f"127.0.0.{10 + number % 8}") for number in range(64)]
    for member in crowd:
        member.sendall(HELLO[:-2])
    with served.connect() as scraper:
        for _ in range(3):
            scraper.sendall(HELLO)
            assert scraper.recv(2**16).startswith(b"HTTP/1.1 200 OK\r\n")
            crowd.append(served.connect("127.0.0.9"))
    wait_until(lambda: sum(not is_closed(member) for member in crowd) <= 16)
    assert served.get("/").status == 200
    for member in crowd:
        member.close()
    wait_until(lambda: served.connections() == 0)


def test_one_address_has_its_share_and_loses_its_own_oldest(serve: Serve) -> None:
    served = serve({"/": FRONT}, limits=HttpLimits(connections=16, of_an_address=4, head_seconds=600, idle_seconds=600))
    with served.connect("127.0.0.2") as other:
        other.sendall(HELLO)
        assert other.recv(2**16)
        crowd = [served.connect() for _ in range(12)]
        for member in crowd[-4:]:
            member.sendall(HELLO)
            assert member.recv(2**16)
        wait_until(lambda: all(is_closed(member) for member in crowd[:8]))
        assert not is_closed(other), "which has been idle for longer"
        for member in crowd:
            member.close()


@needs_openssl
def test_connections_in_the_handshake_count_and_take_little_memory(serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    access = HttpAccess(ServerTls(ServerFiles(str(certificate), str(key)), "tls."))
    served = serve({"/": FRONT}, access, HttpLimits(connections=16, of_an_address=8, head_seconds=600))
    served.context = ssl.create_default_context(cafile=str(authority.file))
    crowd = [served.connect() for _ in range(40)]
    for member in crowd[::2]:
        member.sendall(b"\x16\x03\x01\x02")  # a handshake begins
    wait_until(lambda: sum(not is_closed(member) for member in crowd) <= 8)
    assert served.get("/").status == 200
    wait_until(lambda: served.connections() <= 8)
    unlimited = serve({"/": FRONT}, access)
    hello = client_hello()
    before = resident_bytes()
    for number in range(200):
        crowd.append(unlimited.connect(f"127.0.0.{1 + number % 8}"))
        crowd[-1].sendall(hello)
    assert crowd[-1].recv(1) == b"\x16", "the server goes on with the handshake of the last"
    assert resident_bytes() - before < 15e6, "256 KiB and more each, if asyncio is left alone"
    for member in crowd:
        member.close()
    wait_until(lambda: served.connections() == 0)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()


def test_names_that_are_not_ours_are_misdirected(serve: Serve) -> None:
    guard = http_site.RequestGuard(http_site.HostCheck(["metrics.example.org"]))
    probe = HttpPage(FRONT.handler, is_open=True, is_probe=True)
    served = serve({"/": probe, "/echo": HttpPage(echo)}, guard=guard)
    for name in ("127.0.0.1:8000", "[::1]:8000", "localhost", "a.localhost:1", socket.gethostname(), "10.1.2.3"):
        assert served.get("/echo", Host=name).status == 200
    assert served.get("/echo", Host="METRICS.example.org.:8000").status == 200
    for name in ("evil.example.org", "evil.example.org:8000", "127.0.0.1.evil.example.org", "", "localhost.evil"):
        assert served.get("/echo", Host=name).status == 421
    assert served.get("http://evil.example.org/echo", Host="localhost").status == 421
    assert served.get("/", Host="evil.example.org").status == 200, "probes may use any name"


def test_a_client_that_does_not_read_is_dropped_and_its_stream_waits_in_no_buffer_for_long(serve: Serve) -> None:
    """So who comes late to what is sent piece by piece finds the latest, and not what was."""
    piece, made, ended = bytes(2**14), [0], threading.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                made[0] += 1
                yield piece
        finally:
            ended.set()

    pages = {
        "/": FRONT,
        "/news": HttpPage(lambda _: HttpResponse(pieces())),
        "/lines": HttpPage(lambda _: HttpResponse(LINES * 100)),
    }
    served = serve(pages, limits=HttpLimits(write_seconds=0.5))
    with served.connect() as whole, socket.socket() as silent:
        whole.sendall(HELLO.replace(b"/ ", b"/lines "))
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        silent.settimeout(HANG_SECONDS)
        silent.connect(("127.0.0.1", served.port))
        silent.sendall(HELLO.replace(b"/ ", b"/news "))
        assert ended.wait(HANG_SECONDS)
        wait_until(lambda: served.connections() == 0)
        assert served.get("/").status == 200
    assert made[0] * len(piece) < 2**20


def test_a_token_is_long_private_and_of_ascii(tmp_path: Path) -> None:
    file = write_secret(tmp_path / "token", f" {TOKEN} ")
    assert read_token("t", str(file)) == TOKEN.encode()
    file.chmod(0o640)
    assert read_token("t", str(file)) == TOKEN.encode(), "its group may read it, as defaultMode 0440 does"
    for mode in (0o644, 0o602, 0o601):
        file.chmod(mode)
        with pytest.raises(FileProblem, match=f"holds a token and has the mode {mode:04o}; take it away from others"):
            read_token("t", str(file))
    file.chmod(0o600)
    for content in (b"", b" ", b"x" * 5000, "gehe\u00efm".encode(), b"a" * 40 + b"\nb"):
        file.write_bytes(content)
        with pytest.raises(FileProblem, match="does not hold a token; write one line of ASCII"):
            read_token("t", str(file))
    with pytest.raises(FileProblem, match=r"t: .*: the token has 31 characters; write at least 32"):
        read_token("t", str(write_secret(file, "x" * 31)))
    file.unlink()
    with pytest.raises(FileProblem, match=r"t: .*: No such file or directory; give a readable file"):
        read_token("t", str(file))


def test_wrong_tokens_are_counted_by_address_and_logged(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = write_secret(tmp_path / "token")
    served = serve({"/": FRONT, "/lines": HttpPage(echo)}, HttpAccess(bearer_token_file=str(token)))

    def status(given: str | None, address: str) -> int:
        with closing(Client(served.port, client=address).connect()) as client:
            client.request("GET", "/lines", headers={} if given is None else {"Authorization": f"Bearer {given}"})
            return client.getresponse().status

    assert [status(f"wrong {number}", "127.0.0.2") for number in range(MOST_GUESSES)] == [401] * MOST_GUESSES
    assert status(TOKEN, "127.0.0.2") == 429, "not even the right one is compared"
    assert status(None, "127.0.0.2") == 401, "no token is no guess"
    assert status(TOKEN, "127.0.0.3") == 200
    for number in range(2 * MOST_GUESSES):
        assert status(f"wrong {number}", "127.0.0.3") == 401, "a neighbour of a scraper does not shut it out"
    assert status(TOKEN, "127.0.0.3") == 200
    assert "a client at 127.0.0.2 sent a wrong token; it was number 1" in caplog.text
    assert TOKEN not in caplog.text


def test_a_refused_address_may_try_again_after_a_while() -> None:
    now = [0.0]
    limiter = GuessLimiter(lambda: now[0])
    for _ in range(MOST_GUESSES):
        limiter.record_wrong("a")
    assert limiter.is_refused("a")
    now[0] += 6.0
    assert not limiter.is_refused("a")
    limiter.record_wrong("a")
    assert limiter.is_refused("a")
    for number in range(5000):
        limiter.record_wrong(str(number))
    assert not limiter.is_refused("a"), "a flood of addresses takes no memory"


@given(st.lists(st.binary(max_size=100_000)))
def test_parts_make_one_gzip_file(contents: list[bytes]) -> None:
    document = http_site.CompressibleDocument(map(http_site.CompressedPart, contents))
    assert gzip.decompress(document.gzipped) == document.content == b"".join(contents)


def test_a_part_that_stays_is_not_compressed_again() -> None:
    stays = http_site.CompressedPart(b"level 1\n" * 1000)
    first = http_site.CompressibleDocument([stays, http_site.CompressedPart(b"one")]).gzipped
    kept = stays.deflated
    second = http_site.CompressibleDocument([http_site.CompressedPart(b"two"), stays]).gzipped
    assert kept in first
    assert kept in second
    assert stays.deflated is kept


def test_who_accepts_gzip() -> None:
    for header in ("gzip", "GZIP; q=0.3", "deflate, gzip;q=1.0, *;q=0.5", "*", "br;q=x, gzip;q=x"):
        assert http_site.accepts_gzip(header)
    for header in ("", "gzip;q=0", "gzip; q=0.000, *", "*;q=0", "identity"):
        assert not http_site.accepts_gzip(header)
