from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings

from neurontools import model
from neurontools.rpc import neuron_pb2 as pb
from neurontools.rpc.convert import _Plan, _plans, from_message, to_message
from tests.harness.examples import examples
from tests.harness.model_parts import parts
from tests.harness.scenario_host import ScenarioHost


@given(parts(model.Snapshot))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.data_too_large])
def test_any_snapshot_survives_the_wire(snapshot: model.Snapshot) -> None:
    wire = to_message(snapshot).SerializeToString()
    assert from_message(model.Snapshot, pb.Snapshot.FromString(wire)) == snapshot


@given(parts(model.Snapshot))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.data_too_large])
def test_who_reads_much_reads_the_same(snapshot: model.Snapshot) -> None:
    before = {plan: plan.read for plan in _plans.values()}
    for plan in before:
        plan.read = plan._compiled()
    try:
        assert (
            from_message(model.Snapshot, pb.Snapshot.FromString(to_message(snapshot).SerializeToString())) == snapshot
        )
    finally:
        for plan, read in before.items():
            plan.read = read


def test_reading_is_compiled_for_who_reads_much() -> None:
    plan = _Plan(model.HbmStack)
    message = to_message(model.HbmStack(1, 2, None))
    interpreted = plan.read
    for _ in range(300):
        assert plan.read(message) == model.HbmStack(1, 2, None)
    assert plan.read != interpreted
    assert plan.read(message) == model.HbmStack(1, 2, None)


def test_unknown_is_not_zero() -> None:
    memory = model.DeviceMemory(tensors_bytes=0, constants_bytes=None)
    message = pb.DeviceMemory.FromString(to_message(memory).SerializeToString())
    assert message.HasField("tensors_bytes")
    assert not message.HasField("constants_bytes")
    again = from_message(model.DeviceMemory, message)
    assert (again.tensors_bytes, again.constants_bytes) == (0, None)


def test_a_part_that_is_absent_is_not_an_empty_one() -> None:
    nothing_ran = model.Host(vcpu_average=None)
    all_zero = model.Host(vcpu_average=model.VcpuUsage(0, 0, 0, 0, 0, 0, 0))
    for host in (nothing_ran, all_zero):
        assert from_message(model.Host, pb.Host.FromString(to_message(host).SerializeToString())) == host


@pytest.mark.parametrize("number", [0, 77])
def test_an_enum_value_of_a_later_version_is_an_error(number: int) -> None:
    with pytest.raises(ValueError, match=rf"Snapshot\.source is {number}, which this version doesn't know"):
        from_message(model.Snapshot, pb.Snapshot(source=number))  # type: ignore[arg-type]


def test_every_enum_value_of_the_api_is_in_the_model() -> None:
    for value in pb.SourceKind.DESCRIPTOR.values:
        if value.number:
            message = pb.Snapshot(source=pb.SourceKind.ValueType(value.number))
            read = from_message(model.Snapshot, message)
            assert f"SOURCE_KIND_{read.source.name}" == value.name


@dataclass(frozen=True)
class HbmStack:
    """As in the model, but for one field."""

    index: int
    capacity_bytes: int
    spare_bytes: int


def test_a_model_and_a_message_that_differ_are_seen_when_the_plan_is_made() -> None:
    with pytest.raises(TypeError, match=r"HbmStack and its message differ in \['spare_bytes', 'used_bytes'\]"):
        _Plan(HbmStack)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (model.HbmStack(2**32, 0, 0), "index"),
        (model.HbmStack(0, -1, 0), "capacity_bytes"),
        (model.HbmStack(0, 0, 2**64), "used_bytes"),
    ],
)
def test_a_number_that_does_not_fit_its_field_is_an_error(part: model.HbmStack, name: str) -> None:
    del name
    with pytest.raises(ValueError):
        to_message(part)


def test_what_changes_now_and_then_is_read_as_it_is() -> None:
    """Over hours in which some parts change with every snapshot, some now and then, and some never."""
    host = ScenarioHost("trn1.2xlarge", "steady")
    taken = [host.at(float(second)) for second in range(1, 61)]
    changed = replace(taken[7], devices=(replace(taken[7].devices[0], numa_node="7"), *taken[7].devices[1:]))
    taken = [*taken, changed, *taken[:20], changed]
    messages = [to_message(snapshot) for snapshot in taken]
    read: list[model.Snapshot] = []
    for _ in range(30):
        read = [from_message(model.Snapshot, message) for message in messages]
        assert read == taken


def test_what_mostly_is_as_before_is_remembered_and_what_mostly_is_not_is_not() -> None:
    stacks = [model.HbmStack(number, 2, None) for number in range(5000)]
    messages = [to_message(stack) for stack in stacks]
    same, changing = _Plan(model.HbmStack), _Plan(model.HbmStack)
    for number in range(5000):
        assert same.take(messages[number % 4]) == stacks[number % 4]
        assert changing.take(messages[number]) == stacks[number]
    assert same.take(messages[2]) is same.take(messages[2])
    assert changing.take(messages[2]) is not changing.take(messages[2])
    assert not changing._recalled
