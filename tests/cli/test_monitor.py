"""neuron-monitor as a process: against a real daemon, read as real consumers read it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from neurontools.recording.writer import RecordingWriter
from neurontools.rpc.convert import to_message
from tests.harness import python_process
from tests.harness.record_models import Record
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

COMMAND = [sys.executable, "-m", "neurontools.cli.monitor.command"]
MOST_RECORDS = 200  # rather than waiting without end
LOADED = ("--simulate", "trn1.32xlarge", "--load", "steady", "--interval", "0.05", "--load-neuroncores", "3")
FAST = {
    "period": "100ms",
    "neuron_runtimes": [
        {
            "tag_filter": ".*",
            "metrics": [
                {"type": "neuroncore_counters"},
                {"type": "memory_used"},
                {"type": "neuron_runtime_vcpu_usage"},
                {"type": "execution_stats"},
            ],
        }
    ],
    "system_metrics": [
        {"type": "vcpu_usage"},
        {"type": "memory_info"},
        {"type": "neuron_hw_counters", "period": "200ms"},
    ],
}


class Start(Protocol):
    def __call__(self, *arguments: str, **environment: str) -> subprocess.Popen[str]: ...


@pytest.fixture
def monitor(clean_environment: dict[str, str]) -> Iterator[Start]:
    """Starts the command; what still runs at the end of the test is ended."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        clean = clean_environment | {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        running.append(
            python_process.popen(
                [*COMMAND, *arguments],
                loaded=python_process.MONITORS,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                env=clean | environment,
            )
        )
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def fast(tmp_path: Path) -> str:
    file = tmp_path / "fast.json"
    file.write_text(json.dumps(FAST), "utf-8")
    return str(file)


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, told = process.communicate(timeout=HANG_SECONDS)
    return process.returncode, out, told


def line_of(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.endswith("\n"), process.stderr.read() if process.stderr else ""
    return json.loads(line)


def test_records_follow_each_other(monitor: Start, start_daemon: StartDaemon, fast: str) -> None:
    daemon = start_daemon(*LOADED)
    code, out, told = finished(monitor("-c", fast, "--socket", daemon.socket, "-n", "6"))
    assert (code, told) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 6
    assert lines == [json.dumps(json.loads(line), separators=(",", ":")) for line in lines], "compact"
    records = [json.loads(line) for line in lines]
    for line in lines:
        Record.model_validate_json(line)
    assert [len(record["neuron_runtime_data"]) for record in records] == [3] * 6
    assert [sorted(record["system_data"]) for record in records[1:3]] != [["memory_info", "vcpu_usage"]] * 2
    later = [record["neuron_runtime_data"][0]["report"]["memory_used"]["period"] for record in records[2:]]
    assert all(0.05 < period < 3 for period in later)


def test_a_period_shorter_than_the_daemons_interval_floods_nobody(
    monitor: Start, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--load", "steady", "--interval", "0.25")
    file = tmp_path / "monitor.json"
    file.write_text('{"period": "10ms", "system_metrics": [{"type": "memory_info"}]}', "utf-8")
    code, out, told = finished(monitor("-c", str(file), "--socket", daemon.socket, "-n", "5", "--verbose", "1"))
    assert code == 0
    assert "the period of 0.01 s can't be met: the monitor daemon looks every 0.25 s" in told
    periods = [json.loads(line)["system_data"]["memory_info"]["period"] for line in out.splitlines()]
    assert all(period > 0.1 for period in periods[1:])


def test_a_private_daemon_looks_as_often_as_is_asked(monitor: Start, tmp_path: Path) -> None:
    file = tmp_path / "monitor.json"
    file.write_text('{"period": "100ms", "system_metrics": [{"type": "memory_info"}]}', "utf-8")
    code, _, told = finished(monitor("-c", str(file), "--simulate", "trn1.2xlarge", "-n", "3", "--verbose", "1"))
    assert (code, told) == (0, "")


def test_counts_add_up_to_what_the_daemon_counted(monitor: Start, daemon: RunningDaemon, fast: str) -> None:
    from neurontools.rpc import neuron_pb2

    attachment = Attachment(daemon)
    attachment.attach(core_count=1)

    def report(executions: int) -> None:
        attachment.report(
            neuron_pb2.Report(
                measured_at_seconds=time.monotonic(),
                executions=neuron_pb2.ExecutionCounters(completed_total=executions),
            )
        )

    process = monitor("-c", fast, "--socket", daemon.socket)

    def completed() -> int:
        (entry,) = line_of(process)["neuron_runtime_data"]
        assert entry["pid"] == os.getpid()
        count: int = entry["report"]["execution_stats"]["execution_summary"]["completed"]
        return count

    assert completed() == 0
    report(5)
    counts: list[int] = []
    while sum(counts) < 5 and len(counts) < MOST_RECORDS:
        counts.append(completed())
    report(1000)
    while sum(counts) < 1000 and len(counts) < 2 * MOST_RECORDS:
        counts.append(completed())
    assert sum(counts) == 1000
    attachment.close()
    assert any(not line_of(process)["neuron_runtime_data"] for _ in range(MOST_RECORDS))


EXECUTES = """
import os, threading
from neurontools.runtime import Reporter

reporter = Reporter.attach()
model = reporter.load_model("m")
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
print("runs", flush=True)
while True:
    with model.execution(flop=1_000_000):
        threading.Event().wait(0.0005)
"""


@pytest.mark.parametrize("period", ["50ms", "170ms"], ids=["as often as reports", "less often than reports"])
def test_what_is_in_one_record_covers_one_interval(
    monitor: Start, daemon: RunningDaemon, tmp_path: Path, period: str
) -> None:
    """FLOPS times the period is what the completed executions took, however reports and records fall."""
    file = tmp_path / "monitor.json"
    metrics = [{"type": "neuroncore_counters"}, {"type": "execution_stats"}]
    file.write_text(json.dumps({"period": period, "neuron_runtimes": [{"metrics": metrics}]}), "utf-8")
    environment = {**os.environ, "NEURONTOOLS_SOCKET": daemon.socket, "NEURON_RT_NUM_CORES": "2"}
    with subprocess.Popen(
        [sys.executable, "-c", EXECUTES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as worker:
        assert worker.stdin
        assert worker.stdout
        assert worker.stdout.readline() == b"runs\n"
        process = monitor("-c", str(file), "--socket", daemon.socket)
        told = 0
        for _ in range(MOST_RECORDS):
            for entry in line_of(process)["neuron_runtime_data"]:
                executions = entry["report"]["execution_stats"]
                cores = entry["report"]["neuroncore_counters"]
                if executions["error"]:
                    continue
                completed = executions["execution_summary"]["completed"]
                flops = sum(core["flops"] for core in cores["neuroncores_in_use"].values())
                assert cores["period"] == executions["period"]
                assert flops * cores["period"] == pytest.approx(completed * 1_000_000, abs=cores["period"])
                told += completed > 0
            if told == 20:
                break
        assert told == 20
        worker.stdin.write(b"x")


@pytest.mark.parametrize(
    ("choice", "listed", "told"),
    [
        ('"devices"', ["0", "1"], ""),
        ('"held"', ["1"], ""),
        ("7", ["0", "1"], 'neuroncores_in_use is 7: it can be "devices" or "held"; "devices" is taken'),
    ],
)
def test_the_configuration_says_which_cores_a_process_lists(
    monitor: Start, daemon: RunningDaemon, tmp_path: Path, choice: str, listed: list[str], told: str
) -> None:
    file = tmp_path / "monitor.json"
    groups = '"neuron_runtimes": [{"metrics": [{"type": "neuroncore_counters"}]}]'
    file.write_text(f'{{"period": "50ms", "neuroncores_in_use": {choice}, {groups}}}', "utf-8")
    code = (
        "from neurontools.runtime import Reporter\nreporter = Reporter.attach()\nreporter.flush(30)\n"
        "print(1, flush=True)\ninput()"
    )
    environment = {**os.environ, "NEURONTOOLS_SOCKET": daemon.socket, "NEURON_RT_VISIBLE_CORES": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as worker:
        assert worker.stdout
        assert worker.stdout.readline() == b"1\n"
        process = monitor("-c", str(file), "--socket", daemon.socket, "-n", "1")
        (entry,) = line_of(process)["neuron_runtime_data"]
        cores = entry["report"]["neuroncore_counters"]["neuroncores_in_use"]
        assert (list(cores), told in finished(process)[2]) == (listed, True)
        worker.communicate(b"\n")


def test_a_closed_pipe_ends_it_at_once_and_quietly(monitor: Start, daemon: RunningDaemon, tmp_path: Path) -> None:
    (tmp_path / "slow.json").write_text(json.dumps({**FAST, "period": "1h"}))  # when the next record would come
    process = monitor("-c", str(tmp_path / "slow.json"), "--socket", daemon.socket)
    line_of(process)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(HANG_SECONDS) == -signal.SIGPIPE
    assert process.stderr.read() == ""


def test_head(monitor: Start, daemon: RunningDaemon) -> None:
    command = f'"{sys.executable}" -m neurontools.cli.monitor.command --socket "{daemon.socket}" | head -n 1'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=HANG_SECONDS, check=True)
    assert json.loads(done.stdout)["instance_info"]["instance_type"] == "trn1.32xlarge"
    assert done.stderr == ""


def test_it_is_seen_while_it_runs(monitor: Start, daemon: RunningDaemon) -> None:
    process = monitor("--socket", daemon.socket)
    line_of(process)
    seen = wait_until(lambda: daemon.find(process.pid))
    assert seen.core_indices == ()
    process.kill()
    wait_until(lambda: daemon.find(process.pid) is None)


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
    _, _, told = finished(process)
    assert "monitor daemon at unix:" in told
    assert told.splitlines()[0].endswith("; going on")
    assert told.endswith("is back\n")
    assert len(told.splitlines()) == 2


def test_simulate_needs_no_daemon(monitor: Start, short_path: Path) -> None:
    code, out, told = finished(monitor("--simulate", "inf2.xlarge", "--once", TMPDIR=str(short_path)))
    assert (code, told) == (0, "")
    record = json.loads(out)
    Record.model_validate(record)
    assert record["neuron_runtime_data"] == []
    assert record["neuron_hardware_info"]["neuron_device_type"] == "inferentia2"
    code, out, told = finished(monitor("-1", NEURONTOOLS_SIMULATE="trn2.48xlarge", TMPDIR=str(short_path)))
    assert json.loads(out)["neuron_hardware_info"]["neuroncore_per_device_count"] == 4
    assert [path.name for path in short_path.iterdir()] == []


def test_a_closed_pipe_leaves_no_private_daemon_behind(monitor: Start, short_path: Path) -> None:
    process = monitor("--simulate", "inf2.xlarge", TMPDIR=str(short_path))
    line_of(process)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(HANG_SECONDS) == -signal.SIGPIPE
    assert [path.name for path in short_path.iterdir()] == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--bogus"], 1, "neuron-monitor: unknown flag --bogus"),
        (["--verbose", "5"], 2, "neuron-monitor: --verbose: '5' is no level; give 0, 1, 2, 3 or 4"),
        (["-n", "0"], 2, "neuron-monitor: --count: '0' is no number of records"),
        (
            ["-c", "/nonexistent"],
            6,
            "neuron-monitor: /nonexistent: No such file or directory; give a readable JSON file",
        ),
        (["--socket", "/nonexistent.sock"], 12, "neuron-monitor: no monitor daemon at unix:/nonexistent.sock"),
        (
            ["--socket", "/x", "--simulate", "inf2.xlarge"],
            2,
            "neuron-monitor: --simulate and --socket exclude each other",
        ),
        (["--simulate", "p5.48xlarge"], 2, "neuron-monitor: can't simulate p5.48xlarge"),
        ([], 12, "neuron-monitor: no monitor daemon at unix:"),
    ],
)
def test_errors_are_one_line_and_nothing_on_standard_output(
    monitor: Start, arguments: list[str], code: int, text: str
) -> None:
    ended, out, told = finished(monitor(*arguments))
    assert (ended, out) == (code, "")
    assert told.startswith(text)
    assert told.count("\n") == 1


def test_check_config(monitor: Start, daemon: RunningDaemon, tmp_path: Path, fast: str) -> None:
    code, out, told = finished(monitor("--check-config", "-c", fast))
    assert (code, told) == (0, "")
    assert out.splitlines()[0] == f"{fast}: the configuration is valid"
    assert "  neuron_runtimes[0], tags that match '.*': execution_stats every 0.1 s" in out
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"system_metrics": [{"type": "gpu"}]}', "utf-8")
    code, out, told = finished(monitor("--check-config", "-c", str(wrong)))
    problem = '.type is "gpu" and is left out; it can be vcpu_usage, memory_info, neuron_hw_counters'
    assert (code, out, told) == (2, "", f"neuron-monitor: {wrong}: system_metrics[0]{problem}\n")
    code, out, told = finished(monitor("--once", "-c", str(wrong), "--socket", daemon.socket))
    assert (code, told) == (0, f"neuron-monitor: {wrong}: system_metrics[0]{problem}\n")
    assert json.loads(out)["system_data"] == {}, "the rest goes on"


def test_documents_about_itself(monitor: Start) -> None:
    schema = json.loads(finished(monitor("--json-schema"))[1])
    assert schema["$ref"] == "#/$defs/Record"
    assert finished(monitor("--version"))[1].startswith("neuron-monitor ")
    script = finished(monitor("--completion", "bash"))[1]
    assert "complete -F _neuron_monitor neuron-monitor" in script


def test_a_recording(monitor: Start, start_daemon: StartDaemon, tmp_path: Path, fast: str) -> None:
    daemon = start_daemon(*LOADED)
    file = tmp_path / "host.rec"
    writer = RecordingWriter(str(file))
    sequences = [writer_sequence(writer, daemon) for _ in range(20)]
    writer.close()
    code, out, told = finished(monitor("--replay", str(file), "-c", fast))
    assert (code, told) == (0, "")
    lines = out.splitlines()
    for line in lines:
        Record.model_validate_json(line)
    assert 5 < len(lines) <= len(set(sequences))
    periods = [json.loads(line)["system_data"]["memory_info"]["period"] for line in lines[1:]]
    assert sum(periods) / len(periods) == pytest.approx(0.1, rel=0.5)
    assert finished(monitor("--replay", str(file), "--count", "1"))[1].count("\n") == 1
    file.write_bytes(file.read_bytes()[:-20])
    code, out, told = finished(monitor("--replay", str(file), "-c", fast))
    assert code == 1
    assert out
    assert told.startswith("neuron-monitor: ")
    assert finished(monitor("--replay", str(tmp_path / "none")))[0] == 6
    assert finished(monitor("--replay", str(file), "--simulate", "inf2.xlarge"))[0] == 2


def writer_sequence(writer: RecordingWriter, daemon: RunningDaemon) -> int:
    snapshot = daemon.next_snapshot(1)
    writer.write_snapshot(to_message(snapshot))
    return snapshot.sequence
