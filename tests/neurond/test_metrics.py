"""The HTTP listener of a real daemon, as scrapers and others use it."""

from __future__ import annotations

import contextlib
import gzip
import re
import socket
import urllib.error
import urllib.request

import pytest

from tests.harness.original_families import HELP, helps
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until


@pytest.fixture
def daemon(start_daemon: StartDaemon, port: int) -> RunningDaemon:
    return start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05", "--metrics-listen", f"127.0.0.1:{port}")


def scrape(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=HANG_SECONDS) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_formats(daemon: RunningDaemon, port: int) -> None:
    assert scrape(port, "/")[::2] == (200, "neurond: metrics are at /metrics\n")
    assert scrape(port, "/other")[::2] == (404, "metrics are at /metrics\n")
    status, kind, text = scrape(port)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "# TYPE neurontools_neuroncore_held gauge" in text
    status, kind, text = scrape(port, Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.1")
    assert (status, kind) == (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert text.endswith("# EOF\n")


def test_families_of_the_original_have_its_help_texts(start_daemon: StartDaemon, port: int) -> None:
    start_daemon(
        *("--simulate", "trn1.2xlarge", "--load", "steady", "--interval", "0.05"),
        *("--metrics-listen", f"127.0.0.1:{port}"),
    )
    wait_until(lambda: helps(scrape(port)[2]) == HELP)


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
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=HANG_SECONDS) as reply:
        assert gzip.decompress(reply.read()).decode() == first
    openmetrics = scrape(port, Accept="application/openmetrics-text")[2]
    assert re.search(r"neurontools_scrape_duration_seconds \d\S*", openmetrics)
    assert "neurontools_scrapes_total 3\n" in openmetrics


def test_clients_that_misbehave_leave_nothing_behind(daemon: RunningDaemon, port: int) -> None:
    before = daemon.descriptor_count()
    crowd = [socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS) for _ in range(300)]
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
