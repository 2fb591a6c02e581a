"""A fleet of simulated hosts: what it consists of, that it is served, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from neurond.fleet.command import HostPlan, parse_mix, plan_fleet

from neurontools.client import Client
from neurontools.faults.requests import FaultRequest
from neurontools.model import InjectedFault
from neurontools.rpc import fault_calls
from neurontools.testing import SimulatedFleet
from neurontools.util.errors import UserError
from tests.harness.ports import free_ports
from tests.harness.waiting import HANG_SECONDS, wait_until

COMMAND = [sys.executable, "-m", "neurond.fleet.command"]


def kinds(plans: tuple[HostPlan, ...]) -> list[tuple[str | None, str | None]]:
    return [(host.settings.simulate, host.settings.load) for host in plans]


def test_shares_are_kept_and_a_seed_gives_the_same_fleet_again() -> None:
    mix = parse_mix("trn1.32xlarge/steady=3,inf2.48xlarge")
    fleet = plan_fleet(10, mix, "/d", seed=7)
    assert kinds(fleet).count(("trn1.32xlarge", "steady")) == 8
    assert kinds(fleet).count(("inf2.48xlarge", None)) == 2
    assert fleet == plan_fleet(10, mix, "/d", seed=7)
    assert kinds(fleet) != kinds(plan_fleet(10, mix, "/d", seed=8))
    assert [host.place.name for host in fleet] == [f"host-{number:03d}" for number in range(10)]
    assert len({host.settings.load_seed for host in fleet}) == 10
    # Nodes fill one UltraServer after the other.
    places = [host.settings.ultraserver for host in plan_fleet(6, parse_mix("trn2u.48xlarge"), "/d")]
    assert places == ["us-1:0", "us-1:1", "us-1:2", "us-1:3", "us-2:0", "us-2:1"]
    # Every host has a port of its own.
    listens = [host.settings.metrics_listen for host in plan_fleet(3, mix, "/d", first_metrics_port=9000)]
    assert listens == ["127.0.0.1:9000", "127.0.0.1:9001", "127.0.0.1:9002"]
    with pytest.raises(ValueError, match="there are no 10 ports from 65530 on"):
        plan_fleet(10, mix, "/d", first_metrics_port=65530)


def test_hosts_are_served_as_their_own_and_end_with_the_fleet() -> None:
    first_port = free_ports(3)[0]
    mix = "inf2.xlarge=2,trn1.2xlarge/steady"
    with SimulatedFleet(3, mix=mix, processes=3, metrics_from=first_port) as fleet:
        directory, pids = Path(fleet.directory), fleet.pids
        target = json.loads((directory / "file_sd.json").read_text())[0]  # where Prometheus is told to look
        labels = {"node": "host-000", "__neuron_place__": fleet.places[0].text}
        assert target == {"targets": [f"127.0.0.1:{first_port}"], "labels": labels}
        with urllib.request.urlopen(f"http://{target['targets'][0]}/metrics", timeout=HANG_SECONDS) as reply:
            assert b"neuron" in reply.read()
        assert len(set(pids.values())) == 3
        kept = [int(line.split()[1]) for line in (directory / "pids").read_text().splitlines()]
        assert [os.getpgid(pid) for pid in kept] == kept, "Ctrl-C is for the command alone"
        found = []
        for place in fleet.places:
            with Client(place.address, timeout_seconds=HANG_SECONDS) as client:
                found.append(client.snapshot().instance.instance_type)
        assert sorted(found) == ["inf2.xlarge", "inf2.xlarge", "trn1.2xlarge"]
        fleet.stop("host-001")
        wait_until(lambda: "host-001" in fleet.log)
        again = [*COMMAND, "--hosts", "1", "--mix", "inf2.xlarge", "--directory", fleet.directory]
        ended = subprocess.run(again, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
        assert ended.returncode == 1
        assert "another" in ended.stderr
        with Client(fleet.places[0].address, timeout_seconds=HANG_SECONDS) as client:
            client.snapshot()
    assert not directory.exists()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.values()))


@pytest.mark.slow
def test_a_host_is_lost_while_the_others_stay_and_comes_back_with_the_rest_of_its_story() -> None:
    with SimulatedFleet(2, mix="inf2.xlarge", interval_seconds=0.1) as fleet:
        lost, returns = (place.address for place in fleet.places)
        (fault,) = fault_calls.inject(lost, [FaultRequest("host-lost")])
        assert fault.device_indices == ()
        wait_until(lambda: not Path(lost).exists())
        story = [FaultRequest("host-lost", for_seconds=0.2), FaultRequest("bit-flip", device_index=0)]
        assert [fault.number for fault in fault_calls.inject(returns, story)] == [1, 2]
        wait_until(lambda: [(fault.kind, fault.number) for fault in _faults(returns)] == [("bit-flip", 1)])
        assert not Path(lost).exists()


def _faults(address: str) -> tuple[InjectedFault, ...]:
    """Those of a host; none while it doesn't serve yet."""
    try:
        return fault_calls.list_faults(address)
    except UserError:
        return ()


@pytest.mark.slow
def test_a_signal_takes_the_directory_away_too() -> None:
    readable, writable = os.pipe()
    with os.fdopen(readable, "rb") as ready:
        command = [*COMMAND, "--hosts", "1", "--mix", "inf2.xlarge", "--ready-fd", str(writable)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=(writable,))
        os.close(writable)
        assert Path(ready.readline().decode().strip()).is_dir()
    assert process.stdout is not None
    hostfile = Path(process.stdout.readline().split("--hostfile ")[1].strip())
    assert hostfile.read_text().startswith("host-000 unix:")
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANG_SECONDS) == -signal.SIGTERM
    process.stdout.close()
    assert not hostfile.parent.exists()


KILLED = """
import os, signal, sys
from neurontools.testing import SimulatedFleet
with SimulatedFleet(2, mix="inf2.xlarge", processes=2) as fleet:
    print(fleet.directory, *fleet.pids.values(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_it_ends_and_leaves_nothing_when_its_user_is_killed() -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    directory, *pids = killed.stdout.split()
    assert len(pids) == 2
    wait_until(lambda: not Path(directory).exists())
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
