"""Commands that read a daemon of another host, over TLS."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.certificates import needs_openssl
from tests.harness.network_daemon import NetworkDaemon
from tests.harness.neuron_ls import RunNeuronLs
from tests.harness.paths import NEURON_TOP
from tests.harness.running_daemon import starter
from tests.harness.waiting import HANG_SECONDS

pytestmark = needs_openssl
SCHEME = "grpcs://"


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
    return f"{SCHEME}127.0.0.1:{network.port}"


def test_one_host_is_shown_as_from_its_own_socket(network: NetworkDaemon, at: str, neuron_ls: RunNeuronLs) -> None:
    admin = options(network, "admin")
    near = neuron_ls("--socket", network.daemon.socket)
    far = neuron_ls("--socket", at, *admin)
    assert (far.returncode, far.stdout) == (0, near.stdout), far.stderr
    assert neuron_ls(*admin, NEURONTOOLS_SOCKET=at).stdout == near.stdout
    health = neuron_ls("--health", "--socket", at, *admin)
    assert health.returncode == 0, health.stderr


def test_many_hosts_take_the_role_summary(network: NetworkDaemon, at: str, neuron_ls: RunNeuronLs) -> None:
    viewer = options(network, "viewer")
    listed = neuron_ls("--hosts", at, "-j", *viewer)
    assert listed.returncode == 0, listed.stderr
    assert [host["name"] for host in json.loads(listed.stdout)["hosts"]] == ["127.0.0.1"]
    assert json.loads(listed.stdout)["hosts"][0]["instance_type"] == "trn1.2xlarge"
    shown = subprocess.run(
        [sys.executable, str(NEURON_TOP), "--hosts", at, "--json", *viewer],
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_SECONDS,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["hosts"][0]["instance_type"] == "trn1.2xlarge"
    refused = neuron_ls("--socket", at, *viewer)
    assert refused.returncode == 4
    assert refused.stderr == (
        f"neuron-ls: the monitor daemon at {at} refuses: this shows commands and users, which takes the role full; "
        "your certificate has summary\n"
    )


def test_what_is_wrong_is_told_in_a_line_with_the_address(
    network: NetworkDaemon, at: str, neuron_ls: RunNeuronLs, tmp_path: Path
) -> None:
    nothing = neuron_ls("--socket", at)
    assert nothing.returncode == 2
    assert nothing.stderr.startswith("neuron-ls: a certificate is needed to read over TLS; give --tls-cert")
    admin = options(network, "admin")
    wrong = neuron_ls("--socket", "grpcs://x", *admin)
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "neuron-ls: --socket: 'grpcs://x' is no address; write grpcs://HOST:PORT, such as grpcs://trn-1:8001\n",
    )
    closed = neuron_ls("--socket", at.replace("127.0.0.1", "127.0.0.2"), *admin)
    assert closed.returncode == 12
    assert closed.stderr == (
        f"neuron-ls: the monitor daemon at {at.replace('127.0.0.1', '127.0.0.2')} can't answer (connection refused; "
        "is its neurond started with --listen?); retry, or see its log\n"
    )


@pytest.mark.parametrize("module", ["neurond.__main__", "neurontools.cli.run.command"])
def test_what_serves_or_attaches_takes_no_such_address(at: str, module: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.touch()
    others = ["--simulate", "trn1.2xlarge"] if module == "neurond.__main__" else [str(script)]
    done = subprocess.run(
        [sys.executable, "-c", f"from {module} import main; main()", "--socket", at, *others],
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 2
    assert f"--socket: {at} is an address that monitors read from; give the path of a socket" in done.stderr
