"""FaultService of a real daemon: who may, what is refused, what everybody is shown."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from neurontools.errors import UserError
from neurontools.faults.kinds import KINDS
from neurontools.faults.request import FaultRequest
from neurontools.health import Kind
from neurontools.model import FaultState
from neurontools.rpc import faults, neuron_pb2
from neurontools.rpc.call import RpcError, Status
from neurontools.testing import DriverTree
from tests.harness.hostile_user import HOSTILE, needs_two_users
from tests.harness.paths import PYTHONPATH
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

INJECT, HEAL = "/neurontools.v1.FaultService/InjectFaults", "/neurontools.v1.FaultService/HealFaults"


def told_findings(daemon: RunningDaemon) -> dict[str, bool]:
    """The findings that there are, and whether they are marked as injected."""
    health = daemon.snapshot().health
    assert health is not None
    return {finding.kind: finding.injected for finding in health.findings}


def test_an_injected_error_is_a_finding_that_says_so_until_it_is_healed(daemon: RunningDaemon) -> None:
    (fault,) = faults.inject(daemon.socket, [FaultRequest("hbm-uncorrectable", device_index=3)])
    assert (fault.kind, fault.state, fault.device_indices) == ("hbm-uncorrectable", FaultState.HOLDS, (3,))
    snapshot = daemon.snapshot()
    assert snapshot.devices[3].ecc.mem_uncorrected_total == 1
    assert snapshot.injected_faults == (fault,) == faults.listed(daemon.socket)
    wait_until(lambda: told_findings(daemon) == {Kind.ECC_UNCORRECTED: True})
    assert faults.heal(daemon.socket, [fault.number]) == 1
    wait_until(lambda: not told_findings(daemon))
    assert daemon.snapshot().injected_faults == ()


def test_corrected_errors_grow_into_a_finding(daemon: RunningDaemon) -> None:
    daemon.next_snapshot()
    faults.inject(daemon.socket, [FaultRequest("ecc-corrected", device_index=0, amount=40)])
    wait_until(lambda: told_findings(daemon) == {Kind.ECC_CORRECTED: True})


def test_a_fault_ends_by_itself(daemon: RunningDaemon) -> None:
    (fault,) = faults.inject(daemon.socket, [FaultRequest("dma-abort", device_index=0, for_seconds=0.01)])
    (ended,) = wait_until(lambda: [f for f in faults.listed(daemon.socket) if f.state is FaultState.OVER])
    assert ended.number == fault.number
    assert ended.began_at_unix_seconds is not None
    assert ended.ended_at_unix_seconds == pytest.approx(ended.began_at_unix_seconds + 0.01)


def test_injecting_waits_until_the_process_knows(daemon: RunningDaemon, attached: Attachment) -> None:
    attached.attach()
    with ThreadPoolExecutor(1) as another:
        asking = another.submit(faults.inject, daemon.socket, [FaultRequest("dma-abort", device_index=0)])
        line = attached.connection.recv(4096)
        assert line.startswith(b'fault {"number":1,"kind":"dma-abort","cores":[[0,0,0],[1,0,1]]')
        attached.connection.send(b"armed 1\n")
        (injected,) = asking.result()
    assert injected.number == 1
    attached.connection.send(b"met 1 1\ntold 1 1\n" + b"x" * 10_000 + b"\nmet 1 1\n")
    (fault,) = wait_until(lambda: [f for f in faults.listed(daemon.socket) if f.met_total == 2])
    assert fault.state is FaultState.HOLDS
    assert daemon.find(os.getpid()) is not None


@pytest.mark.parametrize(
    ("requests", "code", "exit_code", "said"),
    [
        ([{"kind": "nonsense", "device_index": 0}], Status.INVALID_ARGUMENT, 2, "'nonsense' is no kind of fault"),
        ([{"kind": "dma-abort"}], Status.INVALID_ARGUMENT, 2, "give one of a device"),
        ([{"kind": "x" * 10_000, "device_index": 0}], Status.INVALID_ARGUMENT, 2, "longer than 64"),
        ([{"kind": "dma-abort", "device_index": 0}] * 1001, Status.INVALID_ARGUMENT, 2, "more than 1000 faults"),
        ([{"kind": "dma-abort", "device_index": 99}], Status.NOT_FOUND, 6, "no device 99"),
        ([{"kind": "dma-abort", "probability": float("nan"), "pid": 1}], Status.INVALID_ARGUMENT, 2, "no probability"),
    ],
)
def test_rubbish_injects_nothing(
    shared_daemon: RunningDaemon, requests: list[dict[str, object]], code: int, exit_code: int, said: str
) -> None:
    asked = [neuron_pb2.FaultRequest(kind="ecc-corrected", device_index=1)]
    asked += [neuron_pb2.FaultRequest(**request) for request in requests]  # type: ignore[arg-type]
    with pytest.raises(RpcError, match=said) as refused:
        shared_daemon.call(INJECT, neuron_pb2.InjectFaultsRequest(faults=asked))
    assert refused.value.code == code
    assert shared_daemon.snapshot().injected_faults == ()


def test_there_is_nothing_to_heal_of_a_number_that_is_not_there(shared_daemon: RunningDaemon) -> None:
    with pytest.raises(UserError, match="there is no fault 7") as refused:
        faults.heal(shared_daemon.socket, [7])
    assert refused.value.exit_code == 6
    assert faults.heal(shared_daemon.socket) == 0


def test_faults_are_for_simulated_devices(start_daemon: StartDaemon) -> None:
    with DriverTree("inf2.xlarge") as tree:
        daemon = start_daemon(*tree.flags, "--interval", "0.05")
        with pytest.raises(UserError, match="its devices are real") as refused:
            faults.inject(daemon.socket, [FaultRequest("dma-abort", device_index=0)])
        assert refused.value.exit_code == 1


@needs_two_users
def test_faults_are_for_the_user_of_the_daemon(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05")
    Path(daemon.socket).chmod(0o666)
    Path(daemon.socket).parent.chmod(0o755)
    asks = (
        "import os, sys; from neurontools.rpc import faults, grpcio_call\n"
        "from neurontools.faults.request import FaultRequest\n"
        f"os.setgroups([]); os.setgid({HOSTILE}); os.setuid({HOSTILE})\n"
        "faults.inject(sys.argv[1], [FaultRequest('dma-abort', device_index=0)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", asks, daemon.socket],
        env={"PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "refuses: faults are for the user of the daemon" in done.stderr
    assert faults.listed(daemon.socket) == ()


def test_observers_are_told_nothing(daemon: RunningDaemon) -> None:
    observer = Attachment(daemon)
    holder = Attachment(daemon)
    holder.attach(core_count=1)
    holder.connection.send(b"armed 1\n" * 3)
    faults.inject(daemon.socket, [FaultRequest("execution-unit-lost", device_index=0)])
    assert holder.connection.recv(4096).startswith(b"fault ")
    observer.connection.setblocking(False)
    with pytest.raises(BlockingIOError):
        observer.connection.recv(1, socket.MSG_PEEK)
    observer.close()
    holder.close()


def test_every_kind_can_be_injected(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn2.48xlarge", "--interval", "0.05")
    names = [kind.name for kind in KINDS.values() if not kind.loses_host]
    made = faults.inject(daemon.socket, [FaultRequest(name, device_index=0) for name in names])
    assert [fault.kind for fault in made] == names
    assert faults.heal(daemon.socket) == len(names)


def test_a_host_that_is_none_of_a_fleet_cannot_be_lost(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05")
    with pytest.raises(UserError, match="it is none of a simulated fleet; see neuron-fleet-sim"):
        faults.inject(daemon.socket, [FaultRequest("host-lost")])
