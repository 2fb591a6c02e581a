"""Between the model and the messages of the API, which is a public contract."""

from __future__ import annotations

import io
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools import model
from neurontools.model import Finding, Health
from neurontools.rpc import health_reply, neuron_pb2
from neurontools.rpc import neuron_pb2 as pb
from neurontools.rpc.convert import from_message, snapshot_on_demand, to_message
from tests.harness import python_process
from tests.harness.examples import examples
from tests.harness.messages import messages
from tests.harness.model_parts import parts
from tests.harness.scenario_host import ScenarioHost
from tests.harness.waiting import HANG_SECONDS


@pytest.mark.slow
@given(parts(model.Snapshot))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.data_too_large])
def test_any_snapshot_survives_the_wire(snapshot: model.Snapshot) -> None:
    wire = to_message(snapshot).SerializeToString()
    assert from_message(model.Snapshot, pb.Snapshot.FromString(wire)) == snapshot


@pytest.mark.slow
@given(parts(model.Snapshot))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.data_too_large])
def test_who_reads_much_reads_the_same(after_many_reads: None, snapshot: model.Snapshot) -> None:
    wire = to_message(snapshot).SerializeToString()
    assert from_message(model.Snapshot, pb.Snapshot.FromString(wire)) == snapshot


@pytest.fixture(scope="module")
def after_many_reads() -> None:
    """So many messages of each type have been read that readers are compiled."""
    kinds = [kind for kind in vars(model).values() if isinstance(kind, type) and is_dataclass(kind)]
    for kind in kinds:
        for _ in range(300 if hasattr(pb, kind.__name__) else 0):
            with suppress(ValueError):  # an enum of an empty message
                from_message(kind, getattr(pb, kind.__name__)())


def test_unknown_is_not_zero_and_an_absent_part_is_not_an_empty_one() -> None:
    memory = model.DeviceMemory(tensors_bytes=0, constants_bytes=None)
    message = pb.DeviceMemory.FromString(to_message(memory).SerializeToString())
    assert (message.HasField("tensors_bytes"), message.HasField("constants_bytes")) == (True, False)
    again = from_message(model.DeviceMemory, message)
    assert (again.tensors_bytes, again.constants_bytes) == (0, None)
    for host in (model.Host(vcpu_average=None), model.Host(vcpu_average=model.VcpuUsage(0, 0, 0, 0, 0, 0, 0))):
        assert from_message(model.Host, pb.Host.FromString(to_message(host).SerializeToString())) == host


def test_the_enum_values_of_the_api_are_those_of_the_model() -> None:
    for value in pb.SourceKind.DESCRIPTOR.values:
        if value.number:
            read = from_message(model.Snapshot, pb.Snapshot(source=pb.SourceKind.ValueType(value.number)))
            assert f"SOURCE_KIND_{read.source.name}" == value.name
    for number in (0, 77):  # of a later version
        with pytest.raises(ValueError, match=rf"Snapshot\.source is {number}, which this version doesn't know"):
            from_message(model.Snapshot, pb.Snapshot(source=number))  # type: ignore[arg-type]


@dataclass(frozen=True)
class HbmStack:
    """As in the model, but for one field."""

    index: int
    capacity_bytes: int
    spare_bytes: int


def test_a_model_and_a_message_that_differ_and_numbers_that_do_not_fit_are_errors() -> None:
    with pytest.raises(TypeError, match=r"HbmStack and its message differ in \['spare_bytes', 'used_bytes'\]"):
        to_message(HbmStack(0, 0, 0))
    for part in (model.HbmStack(2**32, 0, 0), model.HbmStack(0, -1, 0), model.HbmStack(0, 0, 2**64)):
        with pytest.raises(ValueError):
            to_message(part)


def test_what_changes_now_and_then_is_read_as_it_is() -> None:
    host = ScenarioHost("trn1.2xlarge", "steady")
    taken = [host.at(float(second)) for second in range(1, 61)]
    changed = replace(taken[7], devices=(replace(taken[7].devices[0], numa_node="7"), *taken[7].devices[1:]))
    taken = [*taken, changed, *taken[:20], changed]
    messages = [to_message(snapshot) for snapshot in taken]
    read: list[model.Snapshot] = []
    for _ in range(30):
        read = [from_message(model.Snapshot, message) for message in messages]
        assert read == taken


MANY_DEVICES = """
from dataclasses import replace
from neurontools.model import Device, EccCounters, HostMemory
from neurontools.rpc.convert import from_message, to_message
first = Device(0, None, None, None, (), 1)
made = [
    replace(first, ecc=EccCounters(n % 4), host_memory=HostMemory(tensors_bytes=n if n < 4998 else 7))
    for n in range(5000)
]
read = [from_message(Device, to_message(device)) for device in made]
print(read == made, read[-1].ecc is read[-5].ecc, read[-1].host_memory is read[-2].host_memory)
"""


def test_what_mostly_is_as_before_is_remembered_and_what_mostly_is_not_is_not() -> None:
    command = [sys.executable, "-c", MANY_DEVICES]  # other tests of this process have read other devices
    environment = python_process.user_environment()
    done = python_process.run(command, loaded=python_process.MONITORS, env=environment, text=True)
    assert (done.stdout, done.stderr) == ("True True False\n", "")


HOST = ScenarioHost("trn1.2xlarge", "steady").at(30.0)


@settings(max_examples=examples(25))
@given(parts(model.Snapshot))
def test_both_are_equal_from_either_side(snapshot: model.Snapshot) -> None:
    message = to_message(snapshot)
    assert snapshot_on_demand(message) == from_message(model.Snapshot, message)
    assert from_message(model.Snapshot, message) == snapshot_on_demand(message)
    assert repr(snapshot_on_demand(message)) == repr(snapshot)


def test_a_part_is_made_once_and_only_where_it_is_asked_for() -> None:
    message = to_message(HOST)
    process = snapshot_on_demand(message).processes[0]
    for name in ("before", "after"):
        message.processes[0].models[0].name = name
        assert process.models == (replace(HOST.processes[0].models[0], name="before"),)
    with pytest.raises(AttributeError):
        getattr(process, "colour")  # noqa: B009


def test_a_changed_one_is_an_ordinary_one() -> None:
    process = snapshot_on_demand(to_message(HOST)).processes[0]
    changed = replace(process, tag="other")
    assert type(changed) is model.Process
    assert isinstance(process, model.Process)
    same = [name for field in fields(model.Process) if (name := field.name) != "tag"]
    assert [getattr(changed, name) for name in same] == [getattr(HOST.processes[0], name) for name in same]
    assert hash(process) == hash(HOST.processes[0])


@settings(max_examples=examples(100))
@given(parts(Health), st.floats(0, 1e10), st.text(max_size=20))
def test_reads_what_protobuf_reads(health: Health, at: float, version: str) -> None:
    reply: Any = neuron_pb2.GetSnapshotResponse()
    reply.snapshot.taken_at_unix_seconds = at
    reply.snapshot.daemon_version = version
    reply.snapshot.health.CopyFrom(to_message(health))
    read, read_at, read_version = health_reply.read_health(reply.SerializeToString())
    assert read == from_message(Health, reply.snapshot.health)
    assert (read_at, read_version) == (at, version)


def test_knows_all_fields_of_a_finding() -> None:
    assert len(fields(Finding)) == len(neuron_pb2.Finding.DESCRIPTOR.fields) == health_reply.LAST_FIELD


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_rubbish_is_a_value_error_and_nothing_else(rubbish: bytes) -> None:
    for reply in (rubbish, b"\x0a" + bytes([len(rubbish) % 128]) + rubbish, b"\x8a\x01\x02\x1a\x00" + rubbish):
        try:
            health_reply.read_health(reply)
        except ValueError:
            continue


def test_a_daemon_without_verdicts_has_none_and_fields_of_another_form_are_refused() -> None:
    assert health_reply.read_health(b"")[0] is None
    reply = pb.GetSnapshotResponse(snapshot=pb.Snapshot(sequence=7))
    assert health_reply.read_health(reply.SerializeToString())[0] is None
    for snapshot in (b"\x11\0\0", b"\x8a\x01\x02\x1a\x05", b"\x88\x01\x05", b"\x6a\x01"):
        with pytest.raises(ValueError):
            health_reply.read_health(b"\x0a" + bytes([len(snapshot)]) + snapshot)


PARTS = [getattr(model, name) for name in "Snapshot Process LoadedModel Device LatencyHistogram Host".split()]


@pytest.mark.slow
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


CHECK = Path(__file__).parents[2] / "scripts/check-api"


def checked(*arguments: str) -> tuple[int, str]:
    """The exit code of the script and what it says of errors."""
    script = runpy.run_path(str(CHECK))
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(io.StringIO()) as said:
        patch.setattr(sys, "argv", [str(CHECK), *arguments])
        return script["main"](), said.getvalue()


def message_of(file: FileDescriptorProto, name: str) -> DescriptorProto:
    return next(each for each in file.message_type if each.name == name)


def sequence(file: FileDescriptorProto) -> FieldDescriptorProto:
    return next(each for each in message_of(file, "Snapshot").field if each.name == "sequence")


def severity(file: FileDescriptorProto) -> EnumDescriptorProto:
    return next(each for each in file.enum_type if each.name == "Severity")


GONE: dict[str, Any] = {
    "name": "gone",
    "number": 5000,
    "label": FieldDescriptorProto.LABEL_OPTIONAL,
    "type": FieldDescriptorProto.TYPE_BOOL,
}
FORGET = {"name": "Forget", "input_type": ".neurontools.v1.Snapshot", "output_type": ".x"}


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (lambda file: message_of(file, "Snapshot").field.add(**GONE), "Snapshot.gone = 5000 is gone"),
        (lambda file: setattr(sequence(file), "type", FieldDescriptorProto.TYPE_STRING), "Snapshot.sequence = "),
        (lambda file: setattr(sequence(file), "name", "number"), "Snapshot.number = "),
        (
            lambda file: setattr(sequence(file), "label", FieldDescriptorProto.LABEL_REPEATED),
            "was repeated uint64 sequence and is optional uint64 sequence",
        ),
        (lambda file: file.message_type.add(name="Forgotten"), "message Forgotten is gone"),
        (
            lambda file: severity(file).value.add(name="SEVERITY_DOOM", number=99),
            "Severity: SEVERITY_DOOM = 99 is gone",
        ),
        (lambda file: file.service[0].method.add(**FORGET), "MonitorService.Forget is gone"),
        (
            lambda file: setattr(file.service[0].method[0], "server_streaming", True),
            "MonitorService.GetSnapshot asks or answers otherwise",
        ),
        (lambda file: file.service.add(name="ForgottenService"), "service ForgottenService is gone"),
        (lambda file: setattr(file, "package", "neurontools.v0"), "package neurontools.v0 is neurontools.v1 now"),
    ],
)
def test_a_break_is_refused(plant: Callable[[FileDescriptorProto], object], told: str, tmp_path: Path) -> None:
    released = FileDescriptorProto.FromString(neuron_pb2.DESCRIPTOR.serialized_pb)
    plant(released)  # so that what is there now lacks it, or has it otherwise
    file = tmp_path / "released.binpb"
    file.write_bytes(released.SerializeToString())
    code, said = checked("--against", str(file))
    assert (code, said.count("\n")) == (1, 1)
    assert told in said


def test_what_is_new_is_no_break(tmp_path: Path) -> None:
    released = FileDescriptorProto.FromString(neuron_pb2.DESCRIPTOR.serialized_pb)
    del message_of(released, "Snapshot").field[-1]
    del released.message_type[-1]
    del released.service[-1]
    file = tmp_path / "released.binpb"
    file.write_bytes(released.SerializeToString())
    assert checked("--against", str(file)) == (0, "")


def test_the_api_keeps_what_was_released() -> None:
    done = subprocess.run([sys.executable, str(CHECK)], capture_output=True, timeout=HANG_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
