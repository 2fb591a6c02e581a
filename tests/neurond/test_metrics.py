"""The HTTP listener of a real daemon, as scrapers and others use it."""

from __future__ import annotations

import contextlib
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.conftest import Attachment, RunningDaemon, StartDaemon, wait_until


@pytest.fixture
def daemon(start_daemon: StartDaemon, port: int) -> RunningDaemon:
    return start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05", "--metrics-listen", f"127.0.0.1:{port}")


@pytest.fixture
def connection(daemon: RunningDaemon, port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as opened:
        yield opened


def scrape(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def answer(connection: socket.socket) -> tuple[str, bytes]:
    """Status line and body of one reply."""
    with connection.makefile("rb") as reader:
        status = reader.readline().decode().strip()
        length = 0
        while (line := reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            if name.lower() == "content-length":
                length = int(value)
        return status, reader.read(length)


def test_formats(daemon: RunningDaemon, port: int) -> None:
    status, kind, text = scrape(port)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "# TYPE neurontools_neuroncore_held gauge" in text
    status, kind, text = scrape(port, Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.1")
    assert (status, kind) == (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert text.endswith("# EOF\n")


def test_processes_come_and_go(daemon: RunningDaemon, port: int) -> None:
    assert "neurontools_process_info" not in scrape(port)[2]
    attachment = Attachment(daemon)
    attachment.attach(core_count=1, tag="mine")
    held = 'neurontools_neuroncore_held{neuron_device_index="0",neuroncore="0"} 1'
    text = wait_until(lambda: (found := scrape(port)[2]) and held in found and found)
    assert isinstance(text, str)
    assert re.search(r'neurontools_neuroncore_owner_info\{.*pid="\d+".*runtime_tag="mine".*\} 1', text)
    assert re.search(r'execution_status_total\{.*runtime_tag="mine".*\} 0', text)
    attachment.close()
    wait_until(lambda: "mine" not in scrape(port)[2])


def test_a_text_is_made_once_a_snapshot(start_daemon: StartDaemon, port: int) -> None:
    start_daemon("--simulate", "trn1.2xlarge", "--interval", "3600", "--metrics-listen", f"127.0.0.1:{port}")
    first = scrape(port)[2]
    assert scrape(port)[2] == first
    assert "neurontools_scrape_duration_seconds" not in first
    openmetrics = scrape(port, Accept="application/openmetrics-text")[2]
    assert re.search(r"neurontools_scrape_duration_seconds 0\.\d+", openmetrics)
    assert "neurontools_scrapes_total 2\n" in openmetrics


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK"),
        ("GET /metrics?name=x HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK"),
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK"),
        ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        ("GET /other HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 404 Not Found"),
        ("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 405 Method Not Allowed"),
        ("nonsense\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        (f"GET /metrics HTTP/1.1\r\nX: {'x' * 40_000}\r\n\r\n", "HTTP/1.1 431 Request Header Fields Too Large"),
    ],
)
def test_requests(connection: socket.socket, request_text: str, status: str) -> None:
    connection.sendall(request_text.encode())
    assert answer(connection)[0] == status


def test_a_connection_is_kept(connection: socket.socket) -> None:
    for _ in range(3):
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        status, body = answer(connection)
        assert status == "HTTP/1.1 200 OK"
        assert body.endswith(b"\n")
    connection.sendall(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    with connection.makefile("rb") as reader:
        assert reader.read().endswith(b"Connection: close\r\n\r\n"), "no body, and then the end"


def test_clients_that_misbehave_leave_nothing_behind(daemon: RunningDaemon, port: int) -> None:
    before = daemon.descriptor_count()
    crowd = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(300)]
    for member in crowd[:256]:
        with contextlib.suppress(ConnectionError):  # it has made room for a later one
            member.sendall(b"GET /met")
    assert scrape(port)[0] == 200, "they lock nobody out"
    for member in crowd:
        member.close()
    wait_until(lambda: daemon.descriptor_count() <= before + 1)
    assert scrape(port)[0] == 200


def test_an_address_that_is_taken_is_told(start_daemon: StartDaemon, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(
            AssertionError, match=r"--metrics-listen 127\.0\.0\.1:\d+: Address already in use; give another"
        ):
            start_daemon("--simulate", "trn1.2xlarge", "--metrics-listen", f"127.0.0.1:{port}")
