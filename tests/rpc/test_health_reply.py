from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.model import Finding, Health
from neurontools.rpc import health_reply, neuron_pb2
from neurontools.rpc.convert import from_message, to_message
from tests.harness.examples import examples
from tests.harness.model_parts import parts


@settings(max_examples=examples(100))
@given(parts(Health), st.floats(0, 1e10), st.text(max_size=20))
def test_reads_what_protobuf_reads(health: Health, at: float, version: str) -> None:
    reply: Any = neuron_pb2.GetSnapshotResponse()
    reply.snapshot.taken_at_unix_seconds = at
    reply.snapshot.daemon_version = version
    reply.snapshot.health.CopyFrom(to_message(health))
    read, read_at, read_version = health_reply.judged(reply.SerializeToString())
    assert read == from_message(Health, reply.snapshot.health)
    assert (read_at, read_version) == (at, version)


def test_knows_all_fields_of_a_finding() -> None:
    assert len(fields(Finding)) == len(neuron_pb2.Finding.DESCRIPTOR.fields) == health_reply.LAST_FIELD


def test_a_daemon_without_verdicts_has_none() -> None:
    assert health_reply.judged(b"")[0] is None
    reply = neuron_pb2.GetSnapshotResponse(snapshot=neuron_pb2.Snapshot(sequence=7))
    assert health_reply.judged(reply.SerializeToString())[0] is None


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_rubbish_is_a_value_error_and_nothing_else(rubbish: bytes) -> None:
    for reply in (rubbish, b"\x0a" + bytes([len(rubbish) % 128]) + rubbish, b"\x8a\x01\x02\x1a\x00" + rubbish):
        try:
            health_reply.judged(reply)
        except ValueError:
            continue


@pytest.mark.parametrize("snapshot", [b"\x11\0\0", b"\x8a\x01\x02\x1a\x05", b"\x88\x01\x05", b"\x6a\x01"])
def test_fields_of_another_form_are_refused(snapshot: bytes) -> None:
    with pytest.raises(ValueError):
        health_reply.judged(b"\x0a" + bytes([len(snapshot)]) + snapshot)
