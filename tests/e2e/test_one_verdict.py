"""Whatever is asked, it gives one answer to "is it healthy": that of the daemon."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from neurond.load.scenarios import SCENARIOS

from neurontools import health
from neurontools.client import Client, read_snapshot
from neurontools.errors import EXIT_TIMED_OUT
from neurontools.exporters.prometheus import SnapshotMetrics
from neurontools.model import Snapshot
from neurontools.views.pages import PAGES
from tests.harness.older_daemon import RECORDING, OlderDaemon
from tests.harness.paths import NEURON_LS, NEURON_TOP, PYTHONPATH, ROOT
from tests.harness.ports import free_port
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

NEURON_MONITOR = ROOT / "neurontools/cli/monitor/command.py"
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
    """Run it until the daemon, which the machine may have kept from its work, has answered it."""

    def answered() -> subprocess.CompletedProcess[str] | None:
        done = subprocess.run(
            [sys.executable, str(program), *arguments],
            env=os.environ | {"PYTHONPATH": PYTHONPATH, "COLUMNS": "400"},
            capture_output=True,
            text=True,
            check=False,
        )
        return None if done.returncode == EXIT_TIMED_OUT else done

    return wait_until(answered)


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


@pytest.mark.long
def test_every_tool_says_the_same_of_every_load(start_daemon: StartDaemon, tmp_path: Path) -> None:
    limits = tmp_path / "neurond.toml"
    limits.write_text(LIMITS, "utf-8")
    daemons = {}
    for load in SCENARIOS:
        port = free_port()
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
            """What is expected was found, and while all were asked, the daemon said the same of all its snapshots."""
            snapshot = daemon.next_snapshot(1)
            assert snapshot.health is not None
            if not EXPECTED[load] <= {finding.kind for finding in snapshot.health.findings}:
                return None
            said = answers(daemon, port)
            with Client(daemon.socket, timeout_seconds=HANG_SECONDS) as client:
                meanwhile = [*client.history(after_sequence=snapshot.sequence), client.snapshot()]
            if any(health.verdicts(each) != health.verdicts(snapshot) for each in meanwhile):
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


@pytest.fixture
def older_daemon(socket_directory: Path) -> Iterator[OlderDaemon]:
    daemon = OlderDaemon(str(socket_directory / "old.sock"))
    yield daemon
    daemon.close()


UNKNOWN = "health of 1 of 1 devices not known: neurond 0.0.0 makes no verdicts"


def test_an_older_daemon_that_makes_no_verdicts_is_not_known_to_be_well(older_daemon: OlderDaemon) -> None:
    def ask(program: Path, *arguments: str) -> tuple[int, str]:
        done = run(program, "--socket", older_daemon.socket_path, *arguments)
        return done.returncode, done.stdout

    assert ask(NEURON_LS, "--health") == (7, UNKNOWN + "\n")
    code, listed = ask(NEURON_LS, "--health", "-j")
    assert (code, json.loads(listed)) == (
        7,
        [{"device_index": 0, "severity": None, "healthy": None, "findings": []}],
    )
    code, query = ask(NEURON_LS, "--query", "index,health,health.reason", "--format", "json")
    assert (code, json.loads(query)) == (0, [{"index": 0, "health": None, "health_reason": None}])
    code, document = ask(NEURON_TOP, "--json")
    assert (code, [device["health"] for device in json.loads(document)["devices"]]) == (0, [None])
    for page in (kind.name for kind in PAGES):
        code, text = ask(NEURON_TOP, "--once", "--page", page)
        assert code == 0
        assert not re.search(r"healthy|\bwell\b|\bok\b|nothing to do", text), text
        assert page != "health" or UNKNOWN in text


def test_metrics_of_an_older_daemon_have_no_health(older_daemon: OlderDaemon) -> None:
    """Neither those of its snapshots nor those of the records that are made of them."""
    snapshot = read_snapshot(older_daemon.message)
    families = list(SnapshotMetrics(0.0).families(snapshot, None, None))
    told = {family.definition.name for family in families if family.samples}
    assert "hardware_ecc_events" in told, "what it knows is told"
    assert not [name for name in told if "health" in name or "finding" in name]
    records = run(NEURON_MONITOR, "--socket", older_daemon.socket_path, "--once")
    assert records.returncode == 0, records.stderr
    record = json.loads(records.stdout)
    assert record["system_data"]["memory_info"]["error"] == ""
    assert not re.search(r"health|finding|well", records.stdout)


@pytest.mark.parametrize("arguments", [("--json",), ("--once", "--page", "health")])
def test_a_recording_from_before_verdicts_is_not_known_to_be_well(arguments: tuple[str, ...]) -> None:
    done = run(NEURON_TOP, "--replay", str(RECORDING), *arguments)
    assert done.returncode == 0, done.stderr
    if arguments == ("--json",):
        document = json.loads(done.stdout)
        assert [device["health"] for device in document["devices"]] == [None]
    else:
        assert f"Health: {UNKNOWN}" in done.stdout
        assert "nothing to do" not in done.stdout
