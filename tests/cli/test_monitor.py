"""neuron-monitor and the exporter behind it: records, read as real consumers read them, starts, ends and failures."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neurontools.client.recording import RecordingWriter
from tests.harness import python_process
from tests.harness.command import RunCommand, calls, streams
from tests.harness.original_families import HELP, helps
from tests.harness.python_process import MONITORS
from tests.harness.record_models import Record
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.still_feed import message_of
from tests.harness.waiting import HANG_SECONDS, wait_until

COMMAND = [sys.executable, "-m", "neurontools.cli.monitor.command"]
MOST_RECORDS = 200  # rather than waiting without end
LOADED = ("--simulate", "trn1.32xlarge", "--load", "steady", "--interval", "0.05", "--load-neuroncores", "3")
OF_PROCESSES = ("neuroncore_counters", "memory_used", "neuron_runtime_vcpu_usage", "execution_stats")
FAST = {
    "period": "100ms",
    "neuron_runtimes": [{"tag_filter": ".*", "metrics": [{"type": name} for name in OF_PROCESSES]}],
    "system_metrics": [
        {"type": "vcpu_usage"},
        {"type": "memory_info"},
        {"type": "neuron_hw_counters", "period": "200ms"},
    ],
}
Start = Callable[..., "subprocess.Popen[str]"]


def line_of(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.endswith("\n"), process.stderr.read() if process.stderr else ""
    return json.loads(line)


@pytest.fixture
def monitor(clean_environment: dict[str, str]) -> Iterator[Start]:
    """Starts the command; what still runs at the end of the test is ended."""
    with ExitStack() as stack:

        def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
            process = python_process.popen(
                [*COMMAND, *arguments],
                loaded=MONITORS,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                env=clean_environment | environment,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
def called(clean_environment: dict[str, str]) -> RunCommand:
    """Calls the command in this process; for what ends by itself."""
    return calls("neuron-monitor", clean_environment)


@pytest.fixture
def fast(tmp_path: Path) -> str:
    file = tmp_path / "fast.json"
    file.write_text(json.dumps(FAST), "utf-8")
    return str(file)


def test_records_follow_each_other(called: RunCommand, start_daemon: StartDaemon, fast: str) -> None:
    daemon = start_daemon(*LOADED)
    done = called("-c", fast, "--socket", daemon.socket, "-n", "6")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert lines == [json.dumps(json.loads(line), separators=(",", ":")) for line in lines], "compact"
    records = [json.loads(line) for line in lines]
    for line in lines:
        Record.model_validate_json(line)
    assert [len(record["neuron_runtime_data"]) for record in records] == [3] * 6
    assert [sorted(record["system_data"]) for record in records[1:3]] != [["memory_info", "vcpu_usage"]] * 2
    later = [record["neuron_runtime_data"][0]["report"]["memory_used"]["period"] for record in records[2:]]
    assert all(0 < period < HANG_SECONDS for period in later)


def test_a_period_shorter_than_the_daemons_interval_floods_nobody(
    called: RunCommand, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--load", "steady", "--interval", "0.25")
    file = tmp_path / "monitor.json"
    file.write_text('{"period": "10ms", "system_metrics": [{"type": "memory_info"}]}', "utf-8")
    done = called("-c", str(file), "--socket", daemon.socket, "-n", "5", "--verbose", "1")
    assert done.returncode == 0
    assert "the period of 0.01 s can't be met: the monitor daemon samples every 0.25 s" in done.stderr
    periods = [json.loads(line)["system_data"]["memory_info"]["period"] for line in done.stdout.splitlines()]
    assert all(period > 0 for period in periods[1:]), "each is of another snapshot"


@pytest.mark.slow
def test_a_private_daemon_looks_as_often_as_is_asked(called: RunCommand, tmp_path: Path) -> None:
    file = tmp_path / "monitor.json"
    file.write_text('{"period": "100ms", "system_metrics": [{"type": "memory_info"}]}', "utf-8")
    done = called("-c", str(file), "--simulate", "trn1.2xlarge", "-n", "3", "--verbose", "1")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_lost_daemon_is_an_error_in_the_records_until_it_is_back(
    monitor: Start, start_daemon: StartDaemon, fast: str
) -> None:
    daemon = start_daemon(*LOADED)
    process = monitor("-c", fast, "--socket", daemon.socket, "--verbose", "1")
    assert line_of(process)["neuron_runtime_data"]
    daemon.stop()
    records = (line_of(process) for _ in range(MOST_RECORDS))
    lost = next(record for record in records if record["system_data"].get("memory_info", {}).get("error"))
    Record.model_validate(lost)
    assert lost["neuron_runtime_data"] == []
    assert lost["instance_info"]["instance_type"] == "trn1.32xlarge"
    start_daemon(*LOADED)
    records = (line_of(process) for _ in range(MOST_RECORDS))
    back = next(record for record in records if record["neuron_runtime_data"])
    assert back["system_data"]["memory_info"]["error"] == ""
    process.terminate()
    _, told = process.communicate(timeout=HANG_SECONDS)
    assert "monitor daemon at unix:" in told
    assert told.splitlines()[0].endswith("; going on")
    assert told.endswith("is back\n")
    assert len(told.splitlines()) == 2


def test_a_recording(called: RunCommand, start_daemon: StartDaemon, tmp_path: Path, fast: str) -> None:
    daemon = start_daemon(*LOADED)
    file = tmp_path / "host.rec"
    writer = RecordingWriter(str(file))
    first = daemon.snapshot()
    for number in range(20):
        at = {name: getattr(first, name) + number * 0.05 for name in ("taken_at_seconds", "taken_at_unix_seconds")}
        writer.write(message_of(replace(daemon.next_snapshot(1), **at)))  # as of a machine that is never late
    writer.close()
    done = called("--replay", str(file), "-c", fast)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    for line in lines:
        Record.model_validate_json(line)
    assert len(lines) == 10
    periods = [json.loads(line)["system_data"]["memory_info"]["period"] for line in lines[1:]]
    assert periods == pytest.approx([0.1] * 9, abs=1e-4)
    assert called("--replay", str(file), "--count", "1").stdout.count("\n") == 1
    file.write_bytes(file.read_bytes()[:-20])
    done = called("--replay", str(file), "-c", fast)
    assert done.returncode == 1
    assert done.stdout
    assert done.stderr.startswith("neuron-monitor: ")
    assert called("--replay", str(tmp_path / "none")).returncode == 6
    assert called("--replay", str(file), "--simulate", "inf2.xlarge").returncode == 2


def test_a_closed_pipe_ends_it_at_once_and_quietly(
    monitor: Start, shared_daemon: RunningDaemon, tmp_path: Path
) -> None:
    (tmp_path / "slow.json").write_text(json.dumps({**FAST, "period": "1h"}))  # when the next record would come
    process = monitor("-c", str(tmp_path / "slow.json"), "--socket", shared_daemon.socket)
    line_of(process)
    records, errors = streams(process)
    records.close()
    assert process.wait(HANG_SECONDS) == -signal.SIGPIPE
    assert errors.read() == ""


def test_it_is_seen_while_it_runs(monitor: Start, shared_daemon: RunningDaemon) -> None:
    process = monitor("--socket", shared_daemon.socket)
    line_of(process)
    seen = wait_until(lambda: shared_daemon.find(process.pid))
    assert seen.core_indices == ()
    process.kill()
    wait_until(lambda: shared_daemon.find(process.pid) is None)


def test_simulate_needs_no_daemon_and_leaves_none_behind(
    monitor: Start, called: RunCommand, socket_directory: Path
) -> None:
    done = called("--simulate", "inf2.xlarge", "--once", TMPDIR=str(socket_directory))
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    Record.model_validate(record)
    assert record["neuron_runtime_data"] == []
    assert record["neuron_hardware_info"]["neuron_device_type"] == "inferentia2"
    done = called("-1", NEURONTOOLS_SIMULATE="trn2.48xlarge", TMPDIR=str(socket_directory))
    assert json.loads(done.stdout)["neuron_hardware_info"]["neuroncore_per_device_count"] == 4
    process = monitor("--simulate", "inf2.xlarge", TMPDIR=str(socket_directory))
    line_of(process)
    streams(process)[0].close()
    assert process.wait(HANG_SECONDS) == -signal.SIGPIPE
    assert [path.name for path in socket_directory.iterdir()] == []


def test_check_config(called: RunCommand, daemon: RunningDaemon, tmp_path: Path, fast: str) -> None:
    done = called("--check-config", "-c", fast)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"{fast}: the configuration is valid"
    assert "  neuron_runtimes[0], tags that match '.*': execution_stats every 0.1 s" in done.stdout
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"system_metrics": [{"type": "gpu"}]}', "utf-8")
    done = called("--check-config", "-c", str(wrong))
    problem = '.type is "gpu" and is left out; it can be vcpu_usage, memory_info, neuron_hw_counters'
    told = f"neuron-monitor: {wrong}: system_metrics[0]{problem}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)
    done = called("--once", "-c", str(wrong), "--socket", daemon.socket)
    assert (done.returncode, done.stderr) == (0, told)
    assert json.loads(done.stdout)["system_data"] == {}, "the rest goes on"


def test_documents_about_itself(called: RunCommand) -> None:
    assert json.loads(called("--json-schema").stdout)["$ref"] == "#/$defs/Record"
    assert called("--version").stdout.startswith("neuron-monitor ")
    assert "complete -F _neuron_monitor neuron-monitor" in called("--completion", "bash").stdout


PROMETHEUS = [sys.executable, "-m", "neurontools.cli.monitor.prometheus"]


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
        [*PROMETHEUS, "--port", str(port), "--address", "127.0.0.1", "--enable-k8s-info"],
        loaded=MONITORS,
        **python_process.PIPES,
        bufsize=1,
    )
    with process:
        yield process
        process.kill()


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


def test_behind_neuron_monitor(start_daemon: StartDaemon, port: int, fast: str) -> None:
    daemon = start_daemon(
        "--simulate", "trn1.32xlarge", "--load", "steady", "--load-neuroncores", "2", "--interval", "0.1"
    )
    monitor = python_process.popen(
        [sys.executable, "-m", "neurontools.cli.monitor.command", "-c", fast, "--socket", daemon.socket],
        loaded=MONITORS,
        stdout=subprocess.PIPE,
    )
    exporter = python_process.popen([*PROMETHEUS, "-p", str(port)], loaded=MONITORS, stdin=monitor.stdout)
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


def test_records_good_and_bad(piped: subprocess.Popen[str], port: int) -> None:
    """Counts add up, series vanish with their process, what makes no sense is left out and told of once."""
    assert piped.stdin is not None
    assert piped.stdout is not None
    assert piped.stderr is not None

    def text_after(*lines: str) -> str:
        assert piped.stdin is not None
        assert piped.stdout is not None
        for line in lines:
            piped.stdin.write(line)
            assert piped.stdout.readline() == line, "written on for a command that comes behind"
        text = scrape(port)
        assert text is not None
        return text

    text = text_after(record("a", "b", completed=3), record("a", completed=4), record("a", "a", completed=10))
    (total,) = re.findall(r'execution_status_total\{.*runtime_tag="a",status_type="completed".*\} (\d+)', text)
    assert total == "27"
    assert 'runtime_tag="b"' not in text
    assert "execution_latency_seconds" not in text
    bad = ["\n", "{\n", "[1]\n", "{}\n", '{"instance_info": 3}\n', "null\n", "[" * 5000 + "\n", "{\n"]
    odd = record("a", system_data={"memory_info": {"error": ""}, "vcpu_usage": {"error": "no"}})
    assert 'runtime_tag="late"' in text_after(*bad, odd, record("a", neuron_runtime_data=None), record("late"))
    line = record("a", completed="x").replace('"generic": 0', f'"generic": {10**400}')  # type: ignore[arg-type]
    text = text_after(line, line, line)
    assert "instance_info{" in text
    assert "neurontools_odd_record_values_total 6\n" in text
    piped.stdin.close()
    assert piped.wait(HANG_SECONDS) == 0
    told = [line.removeprefix("neuron-monitor-prometheus: ") for line in piped.stderr.read().splitlines()]
    assert "vcpu_usage: no" in told
    assert any("a line is skipped" in line for line in told)
    for name, value in (("error_summary", "100000000000000000...0000000000000000000"), ("execution_summary", "'x'")):
        assert told.count(f"impossible values of {name} are left out: {value}") == 1
    assert len(told) < len(bad) + 2


def test_a_port_that_is_taken(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        done = calls("neuron-monitor-prometheus", {})("--port", str(port), "--address", "127.0.0.1")
    assert done.returncode == 1
    assert done.stderr == (
        f"neuron-monitor-prometheus: can't serve on 127.0.0.1:{port}: Address already in use; give another --port\n"
    )
