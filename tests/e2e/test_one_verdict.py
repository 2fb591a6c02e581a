"""Whatever is asked, it gives one answer to "is it healthy": that of the daemon."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from neurond.exports.otlp import INSTRUMENTS

from neurontools.cli.healthcheck.command import main as neuron_healthcheck
from neurontools.cli.ls.command import main as neuron_ls
from neurontools.cli.ls.fleet import fleet_health_text
from neurontools.cli.monitor.command import main as neuron_monitor
from neurontools.cli.top.command import main as neuron_top
from neurontools.client import read_snapshot
from neurontools.exporters.exposition import encode_text
from neurontools.exporters.snapshot_metrics import SnapshotMetrics
from neurontools.fleet.hosts import HostAddress, Reach
from neurontools.fleet.states import HostGroup, HostLink, HostState, combine_group
from neurontools.fleet.summary import summarize_host
from neurontools.model import Snapshot, health
from neurontools.model.finding import Severity
from neurontools.views.screen import PAGES
from tests.harness.command import call_main
from tests.harness.older_daemon import RECORDING, OlderDaemon, SnapshotServer
from tests.harness.scenario_host import ScenarioHost
from tests.harness.still_feed import message_of

EXPECTED = {
    "idle": set[str](),
    "steady": set[str](),
    "training-ramp": set[str](),
    "memory-leak": {"memory_nearly_full"},
    "stuck-core": {"stuck"},
    "ecc-burst": {"ecc_corrected", "ecc_uncorrected"},
}
UNKNOWN = "health of 1 of 1 devices not known: neurond 0.0.0 makes no verdicts"


def ask(main: Callable[[], object], server: SnapshotServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    return call_main(main, "--socket", server.socket_path, *arguments, COLUMNS="400")


def answers(server: SnapshotServer, snapshot: Snapshot) -> dict[str, Any]:
    """What each of the tools says, as one text or severity a device."""
    listed = ask(neuron_ls, server, "--health", "-j")
    text = ask(neuron_ls, server, "--health")
    query = ask(neuron_ls, server, "--query", "index,health,health.reason", "--format", "json")
    document = json.loads(ask(neuron_top, server, "--json").stdout)
    page = ask(neuron_top, server, "--once", "--page", "health").stdout
    metrics = encode_text(SnapshotMetrics(0.0).families(snapshot, None, None)).decode()
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
        "metrics": {int(index): Severity(int(value)).name.lower() for index, value in told},
    }


@pytest.mark.parametrize("load", EXPECTED)
def test_every_tool_says_the_same_of_every_load(load: str, socket_directory: Path) -> None:
    host = ScenarioHost("trn1.32xlarge" if load == "ecc-burst" else "trn1.2xlarge", load)
    host.at(5)
    snapshot = host.at(400)
    server = SnapshotServer(str(socket_directory / "n.sock"), message_of(snapshot))
    try:
        said = answers(server, snapshot)
    finally:
        server.close()
    verdicts = health.verdicts(snapshot)
    assert {finding.kind for verdict in verdicts for finding in verdict.findings} == EXPECTED[load]
    severities = {verdict.device_index: verdict.severity_name for verdict in verdicts}
    assert said["ls"] == said["top"] == said["metrics"] == severities
    assert said["ls findings"] == said["top findings"] == [[f.kind for f in verdict.findings] for verdict in verdicts]
    assert said["ls text"] == said["page"] == health.summary(verdicts, snapshot)
    assert said["ls codes"] == ((0, 0) if health.is_healthy(verdicts) else (5, 5))
    first = {verdict.device_index: next(iter(verdict.findings), None) for verdict in verdicts}
    reasons = {index: None if finding is None else health.marked_reason(finding) for index, finding in first.items()}
    assert said["query"] == {index: (severity, reasons[index]) for index, severity in severities.items()}


def test_every_tool_says_that_health_is_unknown_and_why(socket_directory: Path) -> None:
    why = "neuron0/stats/hardware/mem_ecc_uncorrected can't be read: is empty"
    snapshot = ScenarioHost("trn1.2xlarge", "idle").at(5)
    assert snapshot.health is not None
    snapshot = replace(snapshot, health=snapshot.health.with_unknown({0: why}))
    server = SnapshotServer(str(socket_directory / "n.sock"), message_of(snapshot))
    try:
        said = answers(server, snapshot)
        checks = {kind: ask(neuron_healthcheck, server, "--format", kind) for kind in ("text", "json", "npd", "nagios")}
    finally:
        server.close()
    text = f"health of 1 of 1 devices not known: {why}"
    assert said["ls"] == said["top"] == {0: None}
    assert (said["ls text"], said["page"], said["ls codes"]) == (text, text, (7, 7))
    assert (said["query"], said["metrics"]) == ({0: (None, why)}, {})
    assert [check.returncode for check in checks.values()] == [2, 2, 2, 3]
    assert all(text in check.stdout for check in checks.values())
    families = SnapshotMetrics(0.0).families(snapshot, None, None)
    assert not [family.definition.name for family in families if family.samples and "health" in family.definition.name]
    (status,) = (instrument for instrument in INSTRUMENTS if instrument.name == "hw.status")
    assert list(status.read(snapshot)) == []
    state = HostState(HostAddress("a", Reach.SSH, "a"), HostLink.LIVE, summary=summarize_host(snapshot, "a"))
    assert (state.severity, combine_group(HostGroup("all", "all", (state,))).severity) == (None, None)
    told = "a: device 0: not known: neuron-ls --health tells why there\nhealth of 1 of 1 hosts not known\n"
    assert fleet_health_text([state]) == told


def test_a_finding_keeps_its_beginning_and_its_words() -> None:
    host = ScenarioHost("trn1.2xlarge", "stuck-core")
    host.at(5)
    found = []
    for second in (400, 500):
        snapshot = host.at(second)
        assert snapshot.health is not None
        found.append(next(finding for finding in snapshot.health.findings if finding.kind == "stuck"))
    assert found[0] == found[1], "neither its beginning nor its words change while it lasts"
    (core,) = [core for core in snapshot.cores if core.execution_started_at_unix_seconds]
    assert core.execution_started_at_unix_seconds == found[0].began_at_unix_seconds


@pytest.fixture
def older_daemon(socket_directory: Path) -> Iterator[OlderDaemon]:
    daemon = OlderDaemon(str(socket_directory / "old.sock"))
    yield daemon
    daemon.close()


def test_an_older_daemon_that_makes_no_verdicts_is_not_known_to_be_well(older_daemon: OlderDaemon) -> None:
    def told(main: Callable[[], object], *arguments: str) -> tuple[int, str]:
        done = ask(main, older_daemon, *arguments)
        return done.returncode, done.stdout

    assert told(neuron_ls, "--health") == (7, UNKNOWN + "\n")
    code, listed = told(neuron_ls, "--health", "-j")
    (unknown,) = json.loads(listed)
    assert (code, unknown["severity"], unknown["healthy"], unknown["findings"]) == (7, None, None, [])
    code, query = told(neuron_ls, "--query", "index,health,health.reason", "--format", "json")
    assert (code, json.loads(query)) == (0, [{"index": 0, "health": None, "health_reason": None}])
    code, document = told(neuron_top, "--json")
    assert (code, [device["health"] for device in json.loads(document)["devices"]]) == (0, [None])
    for page in (kind.name for kind in PAGES):
        code, text = told(neuron_top, "--once", "--page", page)
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
    records = ask(neuron_monitor, older_daemon, "--once")
    assert records.returncode == 0, records.stderr
    record = json.loads(records.stdout)
    assert record["system_data"]["memory_info"]["error"] == ""
    assert not re.search(r"health|finding|well", records.stdout)


def test_a_recording_from_before_verdicts_is_not_known_to_be_well() -> None:
    done = call_main(neuron_top, "--replay", str(RECORDING), "--json")
    assert done.returncode == 0, done.stderr
    assert [device["health"] for device in json.loads(done.stdout)["devices"]] == [None]
    done = call_main(neuron_top, "--replay", str(RECORDING), "--once", "--page", "health")
    assert f"Health: {UNKNOWN}" in done.stdout
    assert "nothing to do" not in done.stdout
