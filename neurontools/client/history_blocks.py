"""Converts moments of the history to messages of the gRPC API and back. Snapshots stay compressed."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import groupby

from neurontools.client.events import EventSeverity, HostEvent
from neurontools.client.packing import PackedMessage
from neurontools.client.samples import HostSample
from neurontools.client.timeline import Moment, has_valid_times
from neurontools.rpc import neuron_pb2
from neurontools.util.terminal import escape_controls

_OPTIONAL_FIELDS = ("pid", "device_index", "core_index")


def encode_blocks(moments: Iterable[Moment]) -> Iterator[neuron_pb2.HistoryBlock]:
    """Yields a block for each group of successive moments whose snapshots share zlib streams."""
    for _, group in groupby(moments, key=lambda moment: id(moment.packed.streams)):
        together = sorted(group, key=lambda moment: moment.packed.position)
        streams = together[0].packed.streams[: together[-1].packed.position + 1]
        yield neuron_pb2.HistoryBlock(
            snapshots=[neuron_pb2.CompressedSnapshot(pieces=pieces) for pieces in streams],
            moments=map(_encode_moment, together),
        )


def decode_block(block: neuron_pb2.HistoryBlock, begun_seconds: float) -> list[Moment]:
    """Returns the moments of a block, oldest first. `begun_seconds` is timeline time minus the host's CLOCK_MONOTONIC.

    Raises ValueError if the block is malformed. A malformed snapshot is noticed when it is unpacked.
    """
    streams = [tuple(snapshot.pieces) for snapshot in block.snapshots]
    return [_decode_moment(message, streams, begun_seconds) for message in block.moments]


def _encode_moment(moment: Moment) -> neuron_pb2.HistoryMoment:
    sample = moment.sample
    return neuron_pb2.HistoryMoment(
        position=moment.packed.position,
        sequence=moment.sequence,
        taken_at_unix_seconds=moment.at_unix_seconds,
        taken_at_seconds=moment.at_seconds,
        interval_seconds=sample.interval_seconds,
        daemon_pid=moment.daemon_pid,
        owner_pids=sample.owners,
        pids=sample.pids,
        numbers=sample.numbers,
        events=map(_encode_event, moment.events),
    )


def _encode_event(event: HostEvent) -> neuron_pb2.HistoryEvent:
    message = neuron_pb2.HistoryEvent(
        at_unix_seconds=event.at_unix_seconds,
        kind=event.kind,
        severity=event.severity,
        text=event.text,
        subject=event.subject,
        noun=event.noun,
        quantity=event.quantity,
    )
    for name in _OPTIONAL_FIELDS:
        value = getattr(event, name)
        if value is not None:
            setattr(message, name, value)
    return message


def _decode_moment(message: neuron_pb2.HistoryMoment, streams: list[tuple[bytes, ...]], begun_seconds: float) -> Moment:
    owners, pids, numbers = tuple(message.owner_pids), tuple(message.pids), array("f", message.numbers)
    is_complete = len(numbers) == 3 * len(owners) + 2 * len(pids) and message.position < len(streams)
    if not is_complete or not has_valid_times(message):
        raise ValueError("a block of the daemon's history is malformed")
    at_seconds = begun_seconds + message.taken_at_seconds
    return Moment(
        at_seconds,
        message.taken_at_unix_seconds,
        message.sequence,
        message.daemon_pid,
        PackedMessage(streams, message.position),
        HostSample.interned(at_seconds, owners, pids, numbers, message.interval_seconds),
        tuple([_decode_event(event, at_seconds) for event in message.events]),
    )


def _decode_event(message: neuron_pb2.HistoryEvent, at_seconds: float) -> HostEvent:
    pid, device_index, core_index = (
        getattr(message, name) if message.HasField(name) else None  # type: ignore[arg-type]
        for name in _OPTIONAL_FIELDS
    )
    return HostEvent(
        message.at_unix_seconds,
        escape_controls(message.kind),
        EventSeverity(message.severity),
        escape_controls(message.text),
        pid,
        device_index,
        at_seconds,
        core_index,
        escape_controls(message.subject),
        escape_controls(message.noun),
        message.quantity,
    )
