"""Feeds that stand still: moments that are there from the start, for screens with fixed data and clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from neurontools.client import read_snapshot
from neurontools.client.feed import Feed, FeedState, FeedStatus
from neurontools.client.recording import RecordingReader, RecordingWriter
from neurontools.client.timeline import HostTimeline, Moment, MomentBuilder
from neurontools.model import HbmStack, Snapshot
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import to_message
from tests.harness.scenario_host import ScenarioHost

MOMENTS = 90


class StillFeed(Feed):
    """A live feed to which nothing comes any more."""

    def __init__(self, snapshots: Iterable[Snapshot]) -> None:
        super().__init__(HostTimeline())
        for moment in _moments(tuple(snapshots)):
            self.timeline.append(moment)
        # A moment far ahead: no age on the screen grows.
        self.status = FeedStatus(FeedState.LIVE, since_seconds=float("inf"))

    def _run(self) -> None:
        self._closing.wait()


_made: dict[tuple[int, ...], tuple[tuple[Snapshot, ...], tuple[Moment, ...]]] = {}


def _moments(snapshots: tuple[Snapshot, ...]) -> tuple[Moment, ...]:
    """Their moments; made once for the same objects, which are kept so that they stay the same."""
    key = tuple(map(id, snapshots))
    if key not in _made:
        maker = MomentBuilder()
        moments = (maker.make(message_of(snapshot)) for snapshot in snapshots)
        _made[key] = (snapshots, tuple(moment for moment in moments if moment is not None))
    return _made[key][1]


def message_of(snapshot: Snapshot) -> bytes:
    return neuron_pb2.GetSnapshotResponse(snapshot=to_message(snapshot)).SerializeToString()


def write_recording(path: Path, snapshots: Iterable[Snapshot]) -> Path:
    """Records these snapshots in a file."""
    writer = RecordingWriter(str(path))
    for snapshot in snapshots:
        writer.write(message_of(snapshot))
    writer.close()
    return path


def read_recording(path: Path) -> tuple[list[Snapshot], str]:
    """What a recording holds, and what is wrong with it."""
    reader = RecordingReader(str(path))
    try:
        return [read_snapshot(message) for message in reader.messages()], reader.trouble
    finally:
        reader.close()


@cache
def snapshots(instance_type: str = "trn1.32xlarge", scenario: str = "ecc-burst") -> tuple[Snapshot, ...]:
    """A minute and a half: real names, sizes and events, the same every time."""
    host = ScenarioHost(instance_type, scenario)
    found = [host.at(float(second)) for second in range(1, MOMENTS + 1)]
    return tuple(found)


def nearly_full(snapshot: Snapshot) -> Snapshot:
    """The same with the first device's first HBM stack nearly full."""
    device = snapshot.devices[0]
    stack = replace(device.hbm_stacks[0], used_bytes=int(device.hbm_stacks[0].capacity_bytes * 0.97))
    assert isinstance(stack, HbmStack)
    return replace(
        snapshot, devices=(replace(device, hbm_stacks=(stack, *device.hbm_stacks[1:])), *snapshot.devices[1:])
    )
