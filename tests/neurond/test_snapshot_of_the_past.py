"""GetSnapshot with an age: a state of the recent past in a unary call."""

from __future__ import annotations

import pytest

from neurontools.model import Snapshot
from neurontools.rpc import neuron_pb2
from neurontools.rpc.call import RpcError, Status
from neurontools.rpc.convert import from_message
from tests.harness.running_daemon import MONITOR, RunningDaemon, StartDaemon


def past(daemon: RunningDaemon, age_seconds: float) -> Snapshot:
    request = neuron_pb2.GetSnapshotRequest(age_seconds=age_seconds)
    reply = daemon.call(f"{MONITOR}/GetSnapshot", request)
    return from_message(Snapshot, neuron_pb2.GetSnapshotResponse.FromString(reply).snapshot)


def test_the_latest_that_is_old_enough(shared_daemon: RunningDaemon) -> None:
    now = shared_daemon.next_snapshot(20)
    earlier = past(shared_daemon, 0.2)
    assert earlier.taken_at_seconds <= past(shared_daemon, 0.0).taken_at_seconds - 0.15
    assert earlier.sequence > past(shared_daemon, 3600.0).sequence
    assert past(shared_daemon, 3600.0).sequence <= 3, "the oldest that is kept"
    assert past(shared_daemon, 0.0).sequence >= now.sequence


def test_without_a_past_it_is_the_latest(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "inf2.xlarge", "--history", "0", "--interval", "0.05")
    now = daemon.next_snapshot(3)
    assert past(daemon, 60.0).sequence >= now.sequence


@pytest.mark.parametrize("age_seconds", [-1.0, 1e9, float("nan"), float("inf")])
def test_ages_that_are_none(shared_daemon: RunningDaemon, age_seconds: float) -> None:
    with pytest.raises(RpcError, match="age_seconds must be a number of seconds from 0 to 86400") as refused:
        past(shared_daemon, age_seconds)
    assert refused.value.code == Status.INVALID_ARGUMENT
