"""How neuron-monitor starts, ends and fails, and what it says about itself."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.monitor_process import FAST, Start, finished, line_of
from tests.harness.record_models import Record
from tests.harness.running_daemon import RunningDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until


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
