"""What answers where a Prometheus should: each thing that can go wrong is a line."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from neurontools.errors import UserError
from neurontools.fleet.prometheus.access import Access, read_access
from neurontools.fleet.prometheus.server import PrometheusProblem, PrometheusServer

VECTOR = {"resultType": "vector", "result": [{"metric": {"instance": "a"}, "value": [1.5, "2"]}]}
GOOD = json.dumps({"status": "success", "data": VECTOR}).encode()
ASK_SECONDS = 120.0


@dataclass
class Reply:
    body: bytes = GOOD
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: str
    connection: object


@contextmanager
def answering(reply: Callable[[Asked], Reply] | Reply) -> Iterator[tuple[str, list[Asked]]]:
    """The address of a server with these answers, and what it is asked."""
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
            asked.append(Asked(self.command, self.path, dict(self.headers), body, self.client_address))
            found = reply if isinstance(reply, Reply) else reply(asked[-1])
            self.send_response(found.status)
            for name, value in found.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(found.body)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(found.body)

        do_GET = do_POST  # noqa: N815 - as http.server calls it

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def problem(url: str, seconds: float = ASK_SECONDS) -> str:
    server = PrometheusServer(url, Access())
    with pytest.raises(PrometheusProblem) as raised:
        server.query("up", seconds)
    server.close()
    return str(raised.value)


def test_an_answer_below_a_path_on_a_connection_that_is_kept() -> None:
    packed = Reply(gzip.compress(GOOD), headers={"Content-Encoding": "gzip"})
    with answering(packed) as (url, asked):
        server = PrometheusServer(f"{url}/prometheus/", Access(tenant="team"))
        for _ in range(2):
            answer = server.query("sum(up)", ASK_SECONDS)
            assert [(dict(each.labels), each.value) for each in answer.samples] == [({"instance": "a"}, 2.0)]
            assert answer.size_bytes == len(packed.body)
        server.close()
    assert {(each.method, each.path) for each in asked} == {("POST", "/prometheus/api/v1/query")}
    assert asked[0].headers["X-Scope-OrgID"] == "team"
    assert "query=sum%28up%29" in asked[0].body
    assert asked[0].connection == asked[1].connection


def test_one_that_wants_get_is_asked_so() -> None:
    def reply(asked: Asked) -> Reply:
        return Reply(b"", 405) if asked.method == "POST" else Reply()

    with answering(reply) as (url, asked):
        server = PrometheusServer(url, Access())
        server.query("up", ASK_SECONDS)
        server.query("up", ASK_SECONDS)
        server.close()
    assert [each.method for each in asked] == ["POST", "GET", "GET"]


def test_a_connection_that_was_closed_meanwhile_is_made_again() -> None:
    with answering(Reply(headers={"Connection": "close"})) as (url, asked):
        server = PrometheusServer(url, Access())
        server.query("up", ASK_SECONDS)
        server.query("up", ASK_SECONDS)
        server.close()
    assert asked[0].connection != asked[1].connection


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"warnings": ["store s3 is away"]}, ("store s3 is away",)),
        ({"isPartial": True}, ("partial answer",)),
        ({"warnings": ["x\x1b[2J"]}, ("x\\x1b[2J",)),
        ({"isPartial": False, "warnings": None}, ()),
    ],
)
def test_partial_answers_say_so(document: dict[str, object], told: tuple[str, ...]) -> None:
    with answering(Reply(json.dumps({"status": "success", "data": VECTOR, **document}).encode())) as (url, _):
        server = PrometheusServer(url, Access())
        assert server.query("up", ASK_SECONDS).warnings == told
        server.close()


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (
            Reply(b"<html>", headers={"Content-Type": "text/html; charset=utf-8"}),
            "it is no Prometheus: status 200 with text/html",
        ),
        (Reply(b"no", 404), "is the path right?"),
        (Reply(b"[]"), "it is no Prometheus"),
        (Reply(b'{"status": "success", "data": {"resultType": "matrix", "result": []}}'), "it is no Prometheus"),
        (Reply(GOOD.replace(b'"2"', b"2")), "it is no Prometheus"),
        (Reply(GOOD.replace(b'"a"', b"[]")), "it is no Prometheus"),
        (Reply(b"[" * 200_000), "it is no Prometheus"),
        (Reply(b"\xff\xfe"), "it is no Prometheus"),
        (Reply(b"", 401), "it wants credentials (status 401); name them in --prometheus-config"),
        (Reply(b"", 403), "it refuses these credentials (status 403)"),
        (Reply(b'{"status":"error","error":"query timed out"}', 503), "query timed out (status 503)"),
        (
            Reply(b'{"status":"error","error":"too many \\u001b[2J samples"}', 422),
            "too many \\x1b[2J samples (status 422)",
        ),
        (Reply(b"no gzip", headers={"Content-Encoding": "gzip"}), "its answer can't be unpacked"),
        (
            Reply(b"", 302, {"Location": "http://192.0.2.1/login"}),
            "it redirects to http://192.0.2.1/login, which is not followed",
        ),
        (Reply(b"", 302, {"Location": "/again"}), "it redirects in a circle"),
        (Reply(b"", 302, {"Location": "http://[x"}), "it redirects to"),
    ],
)
def test_what_is_no_answer(reply: Reply, cause: str) -> None:
    with answering(reply) as (url, _):
        told = problem(url)
    assert cause in told
    assert "\n" not in told
    assert "\x1b" not in told


def test_a_redirection_within_the_server_is_followed() -> None:
    def reply(asked: Asked) -> Reply:
        return Reply() if asked.path == "/there/query" else Reply(b"", 307, {"Location": "/there/query"})

    with answering(reply) as (url, _):
        server = PrometheusServer(url, Access())
        assert server.query("up", ASK_SECONDS).samples
        server.close()


def test_an_answer_without_end_is_not_read() -> None:
    bomb = gzip.compress(b" " * (33 * 2**20), 9)
    with answering(Reply(bomb, headers={"Content-Encoding": "gzip"})) as (url, _):
        assert problem(url) == "its answer is larger than 32 MiB"


def test_one_that_says_nothing_or_no_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert problem(url, 0.2) == "no answer within 0.2 s"
        with suppress(TimeoutError):
            listener.accept()[0].close()

        def garble() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=garble)
        thread.start()
        assert "no HTTP" in problem(url)
        thread.join()
    assert problem(url) == "not reached: connection refused"


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("prometheus:9090", "is no address"),
        ("ftp://a", "is no address"),
        ("http://", "is no address"),
        ("http://a:99999", "give an address"),
        ("http://a/?q=1", "is no address"),
        ("http://me:secret@a", "can be read by all users"),
    ],
)
def test_addresses_that_cannot_be_meant(url: str, cause: str) -> None:
    with pytest.raises(UserError, match="--prometheus") as raised:
        PrometheusServer(url, Access())
    assert cause in str(raised.value)
    assert "secret" not in str(raised.value)


def test_credentials_come_from_files_and_are_not_sent_in_clear(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "password").write_text("pass\n")
    file = tmp_path / "access.toml"
    file.write_text(f'bearer_token_file = "{tmp_path}/token"\n')
    bearer = read_access(str(file))
    with pytest.raises(UserError, match="not sent over plain http"):
        PrometheusServer("http://prometheus.example:9090", bearer)
    with answering(Reply()) as (url, asked):
        for token in ("s3cret", "renewed"):
            (tmp_path / "token").write_text(f"{token}\n")
            with closing(PrometheusServer(url, bearer)) as server:
                server.query("up", ASK_SECONDS)
        file.write_text(f'basic_user = "me"\nbasic_password_file = "{tmp_path}/password"\n')
        with closing(PrometheusServer(url, read_access(str(file)))) as server:
            server.query("up", ASK_SECONDS)
    assert [each.headers["Authorization"] for each in asked] == [
        "Bearer s3cret",
        "Bearer renewed",
        "Basic bWU6cGFzcw==",
    ]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('token = "x"', "'token' is not known; there are tenant, bearer_token_file"),
        ("tenant = 3", "tenant is no text in quotes"),
        ('tenant = "a\\nb"', "is no line of ASCII"),
        ("= no", "is no TOML"),
        ('basic_user = "me"', "go together"),
        ('tls_key = "k"', "tls_key needs tls_certificate"),
        ('bearer_token_file = "/nowhere"', "bearer_token_file: /nowhere: No such file"),
        ('tls_ca = "/nowhere"', "tls_ca, tls_certificate, tls_key: No such file"),
    ],
)
def test_files_that_cannot_be_meant(tmp_path: Path, text: str, cause: str) -> None:
    file = tmp_path / "access.toml"
    file.write_text(text)
    with pytest.raises(UserError) as raised:
        read_access(str(file))
    assert str(raised.value).startswith(f"--prometheus-config {file}: ")
    assert cause in str(raised.value)
    assert "\n" not in str(raised.value)
