"""Whatever is asked, it gives one answer to "is it healthy": that of the daemon."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from neurond.load.scenarios import SCENARIOS

from neurontools import health
from neurontools.model import Snapshot
from tests.harness.paths import NEURON_LS, NEURON_TOP, PYTHONPATH
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

OLD_RECORDING = Path(__file__).parents[1] / "recording/golden/without_vcpu_times.rec"
INTERVAL_SECONDS = 4.0
# What takes minutes otherwise is found within seconds.
LIMITS = """
[health]
idle_seconds = 2
stuck_seconds = 3
memory_used_ratio = 0.4
"""
EXPECTED = {
    "idle": set(),
    "steady": {"memory_nearly_full"},
    "training-ramp": set(),
    "memory-leak": {"memory_nearly_full"},
    "stuck-core": {"stuck"},
    "ecc-burst": {"ecc_corrected"},
}


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(program), *arguments],
        env=os.environ | {"PYTHONPATH": PYTHONPATH, "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
    )


def answers(daemon: RunningDaemon, port: int) -> dict[str, Any]:
    """What each of the tools says, as one text or severity a device."""
    listed = run(NEURON_LS, "--socket", daemon.socket, "--health", "-j")
    text = run(NEURON_LS, "--socket", daemon.socket, "--health")
    query = run(NEURON_LS, "--socket", daemon.socket, "--query", "index,health,health.reason", "--format", "json")
    document = json.loads(run(NEURON_TOP, "--socket", daemon.socket, "--json").stdout)
    page = run(NEURON_TOP, "--socket", daemon.socket, "--once", "--page", "health").stdout
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        metrics = reply.read().decode()
    told = re.findall(r'^neurontools_device_health\{neuron_device_index="(\d+)"\} (\d)', metrics, re.MULTILINE)
    heading = re.search(r"─ Health: (.*?) ─", page)
    assert heading is not None, page
    found = json.loads(listed.stdout)
    return {
        "ls": {each["device_index"]: each["severity"] for each in found},
        "ls findings": [[finding["kind"] for finding in each["findings"]] for each in found],
        "ls text": text.stdout.splitlines()[-1],
        "ls codes": (listed.returncode, text.returncode),
        "query": {row["index"]: (row["health"], row["health_reason"]) for row in json.loads(query.stdout)},
        "top": {each["neuron_device"]: each["health"] for each in document["devices"]},
        "top findings": [[finding["kind"] for finding in each["findings"]] for each in document["devices"]],
        "page": heading[1],
        "metrics": {int(index): health.Severity(int(value)).name.lower() for index, value in told},
    }


def check(snapshot: Snapshot, said: dict[str, Any]) -> None:
    verdicts = health.verdicts(snapshot)
    severities = {verdict.device_index: verdict.severity_name for verdict in verdicts}
    assert said["ls"] == said["top"] == said["metrics"] == severities
    assert said["ls findings"] == said["top findings"] == [[f.kind for f in verdict.findings] for verdict in verdicts]
    assert said["ls text"] == said["page"] == health.summary(verdicts, snapshot)
    assert said["ls codes"] == ((0, 0) if health.is_healthy(verdicts) else (5, 5))
    assert said["query"] == {
        verdict.device_index: (verdict.severity_name, verdict.findings[0].reason if verdict.findings else None)
        for verdict in verdicts
    }


def test_every_tool_says_the_same_of_every_load(start_daemon: StartDaemon, tmp_path: Path) -> None:
    limits = tmp_path / "neurond.toml"
    limits.write_text(LIMITS, "utf-8")
    daemons = {}
    for load in SCENARIOS:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        daemons[load] = (
            port,
            start_daemon(
                *("--simulate", "trn1.32xlarge", "--load", load, "--interval", str(INTERVAL_SECONDS)),
                *("--config", str(limits), "--metrics-listen", f"127.0.0.1:{port}"),
                name=f"{load}.sock",
            ),
        )
    for load, (port, daemon) in daemons.items():

        def looked(port: int = port, daemon: RunningDaemon = daemon, load: str = load) -> bool | None:
            """What is expected was found, and while all were asked, there was one snapshot."""
            snapshot = daemon.next_snapshot(1)
            assert snapshot.health is not None
            if not EXPECTED[load] <= {finding.kind for finding in snapshot.health.findings}:
                return None
            said = answers(daemon, port)
            if daemon.snapshot().sequence != snapshot.sequence:
                return None
            check(snapshot, said)
            return True

        assert wait_until(looked)
        daemon.stop()


def test_a_finding_keeps_its_beginning_and_its_words(start_daemon: StartDaemon, tmp_path: Path) -> None:
    limits = tmp_path / "neurond.toml"
    limits.write_text("[health]\nstuck_seconds = 0.5\n", "utf-8")
    daemon = start_daemon(
        *("--simulate", "trn1.2xlarge", "--load", "stuck-core", "--interval", "0.1", "--config", str(limits))
    )

    def stuck() -> health.Finding | None:
        judged = daemon.snapshot().health
        assert judged is not None
        return next((finding for finding in judged.findings if finding.kind == "stuck"), None)

    first = wait_until(stuck)
    since = first.began_at_unix_seconds
    daemon.next_snapshot(5)
    assert stuck() == first, "neither its beginning nor its words change while it lasts"
    (core,) = [core for core in daemon.snapshot().cores if core.execution_started_at_unix_seconds]
    assert core.execution_started_at_unix_seconds == since


@pytest.mark.parametrize("arguments", [("--json",), ("--once", "--page", "health")])
def test_a_recording_from_before_verdicts_is_not_known_to_be_well(arguments: tuple[str, ...]) -> None:
    done = run(NEURON_TOP, "--replay", str(OLD_RECORDING), *arguments)
    assert done.returncode == 0, done.stderr
    if arguments == ("--json",):
        document = json.loads(done.stdout)
        assert [device["health"] for device in document["devices"]] == [None]
    else:
        assert "Health: health of 1 of 1 devices not known: neurond 0.0.0 makes no verdicts" in done.stdout
        assert "nothing to do" not in done.stdout
