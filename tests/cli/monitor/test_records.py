"""What neuron-monitor says in its records, against a real daemon, read as real consumers read it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from neurontools.recording.writer import RecordingWriter
from neurontools.rpc.convert import to_message
from tests.harness.monitor_process import LOADED, MOST_RECORDS, Start, finished, line_of
from tests.harness.record_models import Record
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until


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
    assert all(0 < period < HANG_SECONDS for period in later)


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
    assert all(period > 0 for period in periods[1:]), "each is of another snapshot"


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
        # Of a process that first reports after the first record, that one can't know what came before it.
        wait_until(lambda: [each for each in daemon.snapshot().processes if each.measured_at_seconds is not None])
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


def test_a_recording(monitor: Start, start_daemon: StartDaemon, tmp_path: Path, fast: str) -> None:
    daemon = start_daemon(*LOADED)
    file = tmp_path / "host.rec"
    writer = RecordingWriter(str(file))
    first = daemon.snapshot()
    for number in range(20):
        at = {name: getattr(first, name) + number * 0.05 for name in ("taken_at_seconds", "taken_at_unix_seconds")}
        writer.write_snapshot(to_message(replace(daemon.next_snapshot(1), **at)))  # as of a machine that is never late
    writer.close()
    code, out, told = finished(monitor("--replay", str(file), "-c", fast))
    assert (code, told) == (0, "")
    lines = out.splitlines()
    for line in lines:
        Record.model_validate_json(line)
    assert len(lines) == 10
    periods = [json.loads(line)["system_data"]["memory_info"]["period"] for line in lines[1:]]
    assert periods == pytest.approx([0.1] * 9, abs=1e-4)
    assert finished(monitor("--replay", str(file), "--count", "1"))[1].count("\n") == 1
    file.write_bytes(file.read_bytes()[:-20])
    code, out, told = finished(monitor("--replay", str(file), "-c", fast))
    assert code == 1
    assert out
    assert told.startswith("neuron-monitor: ")
    assert finished(monitor("--replay", str(tmp_path / "none")))[0] == 6
    assert finished(monitor("--replay", str(file), "--simulate", "inf2.xlarge"))[0] == 2
