"""Whatever comes over the wire is a message or a DecodeError, and a part of the model or a ValueError."""

from __future__ import annotations

import re
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools import model
from neurontools.rpc import neuron_pb2 as pb
from neurontools.rpc.convert import from_message, to_message
from tests.harness.examples import examples
from tests.harness.messages import messages

KINDS = [
    kind for kind in vars(pb).values() if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
]
PARTS = [
    model.Snapshot,
    model.Process,
    model.LoadedModel,
    model.Device,
    model.NeuronCore,
    model.DeviceMemory,
    model.LatencyHistogram,
    model.Host,
]


@given(kind=st.sampled_from(KINDS), data=st.binary(max_size=200))
@settings(max_examples=examples(500))
def test_random_bytes_are_a_message_or_a_decode_error(kind: type[Message], data: bytes) -> None:
    try:
        message = kind.FromString(data)
    except DecodeError:
        return
    assert kind.FromString(message.SerializeToString()).SerializeToString() == message.SerializeToString()


@given(kind=st.sampled_from(PARTS), data=st.data())
@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
def test_any_message_is_a_part_of_the_model_or_a_value_error(kind: type[Any], data: st.DataObject) -> None:
    message = data.draw(messages(getattr(pb, kind.__name__)))
    try:
        part = from_message(kind, message)
    except ValueError as refused:
        assert kind is model.Snapshot
        assert re.search(
            r"(Snapshot\.source|Finding\.severity|InjectedFault\.state) is \d+, which this version doesn't know",
            str(refused),
        )
        return
    again = from_message(kind, to_message(part))
    assert repr(again) == repr(part), "compared as text, where a NaN is like another"


@given(data=st.data())
@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
def test_a_damaged_report_is_a_report_or_a_decode_error(data: st.DataObject) -> None:
    wire = bytearray(data.draw(messages(pb.ReportRequest)).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        if wire:
            wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(wire[: data.draw(st.integers(0, len(wire)))])
    try:
        message = pb.ReportRequest.FromString(cut)
    except DecodeError:
        return
    assert isinstance(message.token, str)


@pytest.mark.parametrize("depth", [200, 100_000])
def test_nesting_without_end_does_not_overflow_the_stack(depth: int) -> None:
    """Groups are the only way to nest in a schema that doesn't; the decoder bounds their depth."""
    with pytest.raises(DecodeError):
        pb.ReportRequest.FromString(b"\x83\x01" * depth)
