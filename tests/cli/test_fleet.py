"""neuron-ls and neuron-top of many hosts, and of a host that is reached over TLS."""

from __future__ import annotations

import csv
import io
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neurontools.client import Client
from neurontools.model import health
from neurontools.testing import SimulatedFleet
from tests.harness.certificates import needs_openssl
from tests.harness.command import Done, RunCommand, calls
from tests.harness.fleet import ssh_environment
from tests.harness.network_daemon import NetworkDaemon
from tests.harness.paths import NEURON_LS
from tests.harness.running_daemon import starter
from tests.harness.waiting import HANG_SECONDS, wait_until


@pytest.fixture(scope="module")
def fleet() -> Iterator[SimulatedFleet]:
    with SimulatedFleet(3, mix="trn1.2xlarge=2,inf2.xlarge", interval_seconds=0.2) as fleet:
        yield fleet


@pytest.fixture
def neuron_top(clean_environment: dict[str, str]) -> RunCommand:
    return calls("neuron-top", clean_environment | {"COLUMNS": "140"})


def test_a_row_a_host_and_one_that_does_not_answer_is_in_the_exit_code(
    neuron_ls: RunCommand, fleet: SimulatedFleet, tmp_path: Path
) -> None:
    ended = neuron_ls("--hostfile", fleet.hostfile)
    assert (ended.returncode, ended.stderr) == (0, "")
    names = [line.split()[1] for line in ended.stdout.splitlines() if "host-" in line]
    assert names == ["host-000", "host-001", "host-002"]
    hostfile = tmp_path / "hosts"
    hostfile.write_text(f"{Path(fleet.hostfile).read_text()}gone unix:/nowhere/n.sock\n-bad\n")
    ended = neuron_ls("--hostfile", str(hostfile))
    assert ended.returncode == 12
    assert "no daemon: no such file or directory" in ended.stdout
    assert ended.stderr == f"neuron-ls: {hostfile}:5: '-bad' is not a host name\n"
    document = json.loads(neuron_ls("--hostfile", str(hostfile), "-j").stdout)
    assert [host["link"] for host in document["hosts"]] == ["lost", "live", "live", "live"]
    assert document["troubles"] == [f"{hostfile}:5: '-bad' is not a host name"]
    hostfile.write_text("# nobody\n")
    ended = neuron_ls("--hostfile", str(hostfile))
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)


def test_health_has_one_exit_code(neuron_ls: RunCommand, fleet: SimulatedFleet) -> None:
    hosts = ",".join(place.text for place in fleet.places)
    well = neuron_ls("--health", "--hosts", hosts)
    assert (well.returncode, well.stdout) == (0, "all 3 hosts are healthy\n")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
    unreached = neuron_ls("--prometheus", address, "--health")
    assert (unreached.returncode, unreached.stdout) == (7, "health not known: no host was read\n")
    unknown = neuron_ls("--health", "--hosts", f"{hosts},unix:/nowhere/n.sock")
    assert unknown.returncode == 7
    assert unknown.stdout.splitlines() == [
        "n: not known: no daemon: no such file or directory",
        "health of 1 of 4 hosts not known",
    ]


@pytest.mark.slow
def test_a_sick_host_goes_before_one_that_is_not_known(neuron_ls: RunCommand) -> None:
    with SimulatedFleet(1, mix="trn1.2xlarge/ecc-burst", interval_seconds=0.2) as sick:
        place = sick.places[0].text

        def found() -> Done | None:
            ended = neuron_ls("--health", "--hosts", f"{place},unix:/nowhere/n.sock")
            return ended if ended.returncode == 5 else None

        with Client(sick.places[0].address, timeout_seconds=HANG_SECONDS) as asked:
            wait_until(lambda: health.is_healthy(health.verdicts(asked.snapshot())) is False)
        told = wait_until(found).stdout
        assert "host-000: device" in told
        assert told.endswith("1 of 2 hosts unhealthy; health of 1 of 2 hosts not known\n")


def test_documents_of_neuron_top(neuron_top: RunCommand, fleet: SimulatedFleet) -> None:
    at = ("--hostfile", fleet.hostfile)
    document = json.loads(neuron_top(*at, "--json").stdout)
    assert sorted(host["instance_type"] for host in document["hosts"]) == [
        "inf2.xlarge",
        "trn1.2xlarge",
        "trn1.2xlarge",
    ]
    rows = list(csv.DictReader(io.StringIO(neuron_top(*at, "--csv").stdout)))
    assert sorted(row["name"] for row in rows) == ["host-000", "host-001", "host-002"]
    lines = neuron_top(*at, "--json-lines", "-n", "2", "-i", "0.2").stdout.splitlines()
    assert len(list(map(json.loads, lines))) == 2
    assert len(json.loads(neuron_top(*at, "--json", "-n", "2", "-i", "0.2").stdout)) == 2
    schema = json.loads(neuron_top(*at, "--json-schema").stdout)
    assert {"hosts", "jobs"} <= set(schema["properties"])


@pytest.mark.parametrize("form", [("--csv",), ("--json", "-n", "1"), ("--json-lines",)])
def test_nothing_is_written_before_it_is_known_that_there_is_something(
    neuron_top: RunCommand, fleet: SimulatedFleet, form: tuple[str, ...]
) -> None:
    ended = neuron_top("--hostfile", fleet.hostfile, "--group-by", "colour", *form)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--group-by colour: give one of " in ended.stderr


def test_the_page_as_text(neuron_top: RunCommand, fleet: SimulatedFleet) -> None:
    ended = neuron_top("--hostfile", fleet.hostfile, "--once")
    assert ended.returncode == 0
    assert "3 hosts, 3 live" in ended.stdout
    assert "─ Hosts, worst first ─" in ended.stdout
    assert sum(f" {place.name} " in ended.stdout for place in fleet.places) == 3
    only = neuron_top("--hostfile", fleet.hostfile, "--once", "--filter", "inf2", "--ascii").stdout
    assert only.isascii()
    assert sum("% " in line or " host-" in line for line in only.split("WORST")[1].splitlines()) == 1
    nobody = neuron_top("--hosts", "unix:/nowhere/n.sock", "--once")
    assert nobody.returncode == 12
    assert "lost: no daemon: no such file or directory" in nobody.stdout


def test_by_ssh(neuron_ls: RunCommand, fleet: SimulatedFleet, tmp_path: Path) -> None:
    environment = ssh_environment(tmp_path, fleet.places[0].address)
    ended = neuron_ls("--hosts", "trn[1-2],refused", **environment)
    assert ended.returncode == 12
    rows = {line.split()[1]: line for line in ended.stdout.splitlines() if line.startswith("| ")}
    assert " ok " in rows["trn1"]
    assert " ok " in rows["trn2"]
    assert "Connection refused" in rows["refused"]


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


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkDaemon]:
    directory = tmp_path_factory.mktemp("network")
    started = starter(directory)
    yield NetworkDaemon(next(started), directory)
    next(started, None)


def options(network: NetworkDaemon, name: str) -> list[str]:
    certificate, key = getattr(network, name)()
    return ["--tls-cert", str(certificate), "--tls-key", str(key), "--tls-ca", str(network.authority.file)]


@pytest.fixture
def at(network: NetworkDaemon) -> str:
    return f"grpcs://127.0.0.1:{network.port}"


@needs_openssl
def test_one_host_is_shown_as_from_its_own_socket(network: NetworkDaemon, at: str, neuron_ls: RunCommand) -> None:
    admin = options(network, "admin")
    near = neuron_ls("--socket", network.daemon.socket)
    far = neuron_ls("--socket", at, *admin)
    assert (far.returncode, far.stdout) == (0, near.stdout), far.stderr
    assert neuron_ls(*admin, NEURONTOOLS_SOCKET=at).stdout == near.stdout
    health = neuron_ls("--health", "--socket", at, *admin)
    assert health.returncode == 0, health.stderr


@needs_openssl
def test_many_hosts_take_the_role_summary(network: NetworkDaemon, at: str, neuron_ls: RunCommand) -> None:
    viewer = options(network, "viewer")
    listed = neuron_ls("--hosts", at, "-j", *viewer)
    assert listed.returncode == 0, listed.stderr
    assert [host["name"] for host in json.loads(listed.stdout)["hosts"]] == ["127.0.0.1"]
    assert json.loads(listed.stdout)["hosts"][0]["instance_type"] == "trn1.2xlarge"
    shown = calls("neuron-top", {})("--hosts", at, "--json", *viewer)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["hosts"][0]["instance_type"] == "trn1.2xlarge"
    refused = neuron_ls("--socket", at, *viewer)
    assert refused.returncode == 4
    assert refused.stderr == (
        f"neuron-ls: the monitor daemon at {at} refuses: this shows commands and users, which needs the role full; "
        "your certificate has summary\n"
    )


@needs_openssl
def test_what_is_wrong_is_told_in_a_line_with_the_address(
    network: NetworkDaemon, at: str, neuron_ls: RunCommand, tmp_path: Path
) -> None:
    admin = options(network, "admin")
    wrong = neuron_ls("--socket", "grpcs://x", *admin)
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "neuron-ls: --socket: 'grpcs://x' is not an address; write grpcs://HOST:PORT, such as grpcs://trn-1:8001\n",
    )
    closed = neuron_ls("--socket", at.replace("127.0.0.1", "127.0.0.2"), *admin)
    assert closed.returncode == 12
    assert closed.stderr == (
        f"neuron-ls: the monitor daemon at {at.replace('127.0.0.1', '127.0.0.2')} can't answer (connection refused; "
        "is its neurond started with --listen?); retry, or see its log\n"
    )
