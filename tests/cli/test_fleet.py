"""neuron-ls and neuron-top of many hosts, as scripts use them."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neurontools import health
from neurontools.client import Client
from neurontools.testing import SimulatedFleet
from tests.harness.fleet import ssh_environment
from tests.harness.paths import NEURON_LS, NEURON_TOP
from tests.harness.waiting import HANG_SECONDS, wait_until

TOP = NEURON_TOP


@pytest.fixture(scope="module")
def fleet() -> Iterator[SimulatedFleet]:
    with SimulatedFleet(3, mix="trn1.2xlarge=2,inf2.xlarge", interval_seconds=0.2) as fleet:
        yield fleet


def run(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env=os.environ | {"COLUMNS": "140"} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


def test_a_row_a_host(fleet: SimulatedFleet) -> None:
    ended = run(NEURON_LS, "--hostfile", fleet.hostfile)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [line.split()[1] for line in ended.stdout.splitlines() if "host-" in line] == [
        "host-000",
        "host-001",
        "host-002",
    ]


def test_one_that_does_not_answer_is_in_the_exit_code_and_wrong_lines_are_told(
    fleet: SimulatedFleet, tmp_path: Path
) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text(f"{Path(fleet.hostfile).read_text()}gone unix:/nowhere/n.sock\n-bad\n")
    ended = run(NEURON_LS, "--hostfile", str(hostfile))
    assert ended.returncode == 12
    assert "no daemon: no such file or directory" in ended.stdout
    assert ended.stderr == f"neuron-ls: {hostfile}:5: '-bad' is no name of a host\n"
    document = json.loads(run(NEURON_LS, "--hostfile", str(hostfile), "-j").stdout)
    assert [host["link"] for host in document["hosts"]] == ["lost", "live", "live", "live"]
    assert document["troubles"] == [f"{hostfile}:5: '-bad' is no name of a host"]


def test_health_has_one_exit_code(fleet: SimulatedFleet) -> None:
    hosts = ",".join(place.text for place in fleet.places)
    well = run(NEURON_LS, "--health", "--hosts", hosts)
    assert (well.returncode, well.stdout) == (0, "all 3 hosts are healthy\n")
    unknown = run(NEURON_LS, "--health", "--hosts", f"{hosts},unix:/nowhere/n.sock")
    assert unknown.returncode == 7
    assert unknown.stdout.splitlines() == [
        "n: not known: no daemon: no such file or directory",
        "health of 1 of 4 hosts not known",
    ]
    with SimulatedFleet(1, mix="trn1.2xlarge/ecc-burst", interval_seconds=0.2) as sick:
        place = sick.places[0].text

        def found() -> subprocess.CompletedProcess[str] | None:
            ended = run(NEURON_LS, "--health", "--hosts", f"{place},unix:/nowhere/n.sock")
            return ended if ended.returncode == 5 else None

        with Client(sick.places[0].address) as asked:
            wait_until(lambda: health.is_healthy(health.verdicts(asked.snapshot())) is False)
        told = wait_until(found).stdout
        assert "host-000: device" in told
        assert told.endswith("1 of 2 hosts unhealthy; health of 1 of 2 hosts not known\n")


def test_documents_of_neuron_top(fleet: SimulatedFleet) -> None:
    document = json.loads(run(TOP, "--hostfile", fleet.hostfile, "--json").stdout)
    assert sorted(host["instance_type"] for host in document["hosts"]) == [
        "inf2.xlarge",
        "trn1.2xlarge",
        "trn1.2xlarge",
    ]
    rows = list(csv.DictReader(io.StringIO(run(TOP, "--hostfile", fleet.hostfile, "--csv").stdout)))
    assert sorted(row["name"] for row in rows) == ["host-000", "host-001", "host-002"]
    lines = run(TOP, "--hostfile", fleet.hostfile, "--json-lines", "-n", "2").stdout.splitlines()
    assert len(list(map(json.loads, lines))) == 2
    assert len(json.loads(run(TOP, "--hostfile", fleet.hostfile, "--json", "-n", "2").stdout)) == 2
    schema = json.loads(run(TOP, "--hostfile", fleet.hostfile, "--json-schema").stdout)
    assert {"hosts", "jobs"} <= set(schema["properties"])


@pytest.mark.parametrize("form", [("--csv",), ("--json", "-n", "1"), ("--json-lines",)])
def test_nothing_is_written_before_it_is_known_that_there_is_something(
    fleet: SimulatedFleet, form: tuple[str, ...]
) -> None:
    ended = run(TOP, "--hostfile", fleet.hostfile, "--group-by", "colour", *form)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--group-by colour: give one of " in ended.stderr


def test_the_page_as_text(fleet: SimulatedFleet) -> None:
    ended = run(TOP, "--hostfile", fleet.hostfile, "--once")
    assert ended.returncode == 0
    assert "3 hosts, 3 live" in ended.stdout
    assert sum(f" {place.name} " in ended.stdout for place in fleet.places) == 3
    only = run(TOP, "--hostfile", fleet.hostfile, "--once", "--filter", "inf2").stdout
    assert sum("% " in line or " host-" in line for line in only.split("WORST")[1].splitlines()) == 1


def test_nobody_answers() -> None:
    ended = run(TOP, "--hosts", "unix:/nowhere/n.sock", "--once")
    assert ended.returncode == 12
    assert "lost: no daemon: no such file or directory" in ended.stdout


def test_by_ssh(fleet: SimulatedFleet, tmp_path: Path) -> None:
    environment = ssh_environment(tmp_path, fleet.places[0].address)
    ended = run(NEURON_LS, "--hosts", "trn[1-2],refused", **environment)
    assert ended.returncode == 12
    rows = {line.split()[1]: line for line in ended.stdout.splitlines() if line.startswith("| ")}
    assert " ok " in rows["trn1"]
    assert " ok " in rows["trn2"]
    assert "Connection refused" in rows["refused"]


@pytest.mark.parametrize(
    ("script", "arguments", "cause"),
    [
        (NEURON_LS, ["--hosts", "a;b"], "--hosts: 'a;b' is no name of a host"),
        (NEURON_LS, ["--hosts", ","], "--hosts: names no host"),
        (NEURON_LS, ["--hosts", "a", "--hostfile", "b"], "--hosts and --hostfile"),
        (NEURON_LS, ["--hosts", "a", "--ended"], "--ended is for one host"),
        (TOP, ["--hosts", "a", "--record", "f"], "--hosts and --record"),
        (TOP, ["--hosts", "a", "--interval", "0"], "--interval"),
        (TOP, ["--once", "--group-by", "type"], "--group-by is for many hosts"),
        (TOP, ["--once", "--prometheus-config", "f"], "--prometheus-config needs --prometheus URL"),
        (NEURON_LS, ["--hosts", "a", "--prometheus-config", "f"], "--prometheus-config needs --prometheus URL"),
    ],
)
def test_what_cannot_be_meant(script: Path, arguments: list[str], cause: str) -> None:
    ended = run(script, *arguments)
    assert ended.returncode == 2
    assert cause in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_hostfile_that_is_not_there_or_empty(tmp_path: Path) -> None:
    assert run(NEURON_LS, "--hostfile", str(tmp_path / "none")).returncode == 6
    (tmp_path / "empty").write_text("# nobody\n")
    ended = run(NEURON_LS, "--hostfile", str(tmp_path / "empty"))
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)


def test_the_relay_is_a_connection_and_ends_with_its_reader(fleet: SimulatedFleet) -> None:
    command = [sys.executable, str(NEURON_LS), "--relay", "--socket", fleet.places[0].address]
    relay = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert relay.stdin is not None
    assert relay.stdout is not None
    relay.stdin.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
    relay.stdin.flush()
    assert relay.stdout.read(4)[3] == 4  # a SETTINGS frame
    relay.stdin.close()
    assert relay.wait(HANG_SECONDS) == 0
    relay.stdout.close()
