"""neuron-monitor-prometheus as a process, behind neuron-monitor and behind hand-written records."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from tests.harness import python_process
from tests.harness.original_families import HELP, helps
from tests.harness.running_daemon import StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

COMMAND = [sys.executable, "-m", "neurontools.cli.monitor.prometheus"]


def scrape(port: int, accept: str = "") -> str | None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=HANG_SECONDS) as reply:
            body: bytes = reply.read()
            return body.decode()
    except OSError:
        return None


@pytest.fixture
def piped(port: int) -> Iterator[subprocess.Popen[str]]:
    process = python_process.popen(
        [*COMMAND, "--port", str(port), "--address", "127.0.0.1", "--enable-k8s-info"],
        loaded=python_process.MONITORS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    yield process
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def record(*tags: str, completed: int = 1, **extra: object) -> str:
    stats = {
        "period": 1.0,
        "error": "",
        "error_summary": {"generic": 0},
        "execution_summary": {"completed": completed},
        "latency_stats": {"total_latency": None, "device_latency": None},
    }
    runtimes = [
        {"pid": 1, "address": "", "neuron_runtime_tag": tag, "error": "", "report": {"execution_stats": stats}}
        for tag in tags
    ]
    document = {"neuron_runtime_data": runtimes, "system_data": {}, "instance_info": {"instance_id": "i-1"}, **extra}
    return json.dumps(document) + "\n"


def test_behind_neuron_monitor(start_daemon: StartDaemon, port: int) -> None:
    daemon = start_daemon(
        "--simulate", "trn1.32xlarge", "--load", "steady", "--load-neuroncores", "2", "--interval", "0.1"
    )
    monitor = python_process.popen(
        [sys.executable, "-m", "neurontools.cli.monitor.command", "--socket", daemon.socket],
        loaded=python_process.MONITORS,
        stdout=subprocess.PIPE,
    )
    exporter = python_process.popen([*COMMAND, "-p", str(port)], loaded=python_process.MONITORS, stdin=monitor.stdout)
    try:
        text = wait_until(lambda: (found := scrape(port)) and "system_memory_total_bytes" in found and found)
        assert isinstance(text, str)
        assert "neuron_hardware_info{" in text
        wait_until(lambda: helps(scrape(port) or "") == HELP)
        busy = r'neuroncore_utilization_ratio\{.*neuroncore="1".*runtime_tag="synthetic-1".*\} 0\.\d+'
        wait_until(lambda: re.search(busy, scrape(port) or ""))
        openmetrics = scrape(port, "application/openmetrics-text; version=1.0.0")
        assert openmetrics is not None
        assert openmetrics.endswith("# EOF\n")
    finally:
        monitor.kill()
        monitor.wait()
        assert monitor.stdout is not None
        monitor.stdout.close()
        assert exporter.wait(HANG_SECONDS) == 0, "its input has ended"


def test_counts_add_up_and_series_vanish_with_their_process(piped: subprocess.Popen[str], port: int) -> None:
    assert piped.stdin is not None
    assert piped.stdout is not None
    for line in (record("a", "b", completed=3), record("a", completed=4), record("a", "a", completed=10)):
        piped.stdin.write(line)
        assert piped.stdout.readline() == line, "written on for a command that comes behind"
    text = scrape(port)
    assert text is not None
    (total,) = re.findall(r'execution_status_total\{.*runtime_tag="a",status_type="completed".*\} (\d+)', text)
    assert total == "27"
    assert 'runtime_tag="b"' not in text
    assert "execution_latency_seconds" not in text


def test_what_is_no_record_is_skipped_and_told_once(piped: subprocess.Popen[str], port: int) -> None:
    assert piped.stdin is not None
    assert piped.stdout is not None
    bad = ["\n", "{\n", "[1]\n", "{}\n", '{"instance_info": 3}\n', "null\n", "[" * 5000 + "\n", "{\n"]
    odd = record("a", system_data={"memory_info": {"error": ""}, "vcpu_usage": {"error": "no"}})
    for line in (*bad, odd, record("a", neuron_runtime_data=None), record("late")):
        piped.stdin.write(line)
        assert piped.stdout.readline() == line
    text = scrape(port)
    assert text is not None
    assert 'runtime_tag="late"' in text
    assert piped.stderr is not None
    piped.stdin.close()
    assert piped.wait(HANG_SECONDS) == 0
    told = piped.stderr.read()
    assert "neuron-monitor-prometheus: vcpu_usage: no" in told
    assert "a line is skipped" in told
    assert len(told.splitlines()) < len(bad)


def test_an_odd_value_takes_nothing_else_away_and_is_told_once(piped: subprocess.Popen[str], port: int) -> None:
    assert piped.stdin is not None
    assert piped.stdout is not None
    for _ in range(3):
        line = record("a", completed="x").replace('"generic": 0', f'"generic": {10**400}')  # type: ignore[arg-type]
        piped.stdin.write(line)
        assert piped.stdout.readline() == line
    text = scrape(port)
    assert text is not None
    assert "instance_info{" in text
    assert "neurontools_odd_record_values_total 6\n" in text
    assert piped.stderr is not None
    piped.stdin.close()
    assert piped.wait(HANG_SECONDS) == 0
    odd = "is left out where it makes no sense"
    assert piped.stderr.read().splitlines() == [
        f"neuron-monitor-prometheus: error_summary {odd}: 100000000000000000...0000000000000000000",
        f"neuron-monitor-prometheus: execution_summary {odd}: 'x'",
    ]


def test_a_port_that_is_taken(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        done = subprocess.run(
            [*COMMAND, "--port", str(port), "--address", "127.0.0.1"], capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == (
        f"neuron-monitor-prometheus: can't serve on 127.0.0.1:{port}: Address already in use; give another --port\n"
    )
