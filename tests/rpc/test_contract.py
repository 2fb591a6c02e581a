"""The API is a public contract: what would break a client of the last release is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from neurontools.rpc import neuron_pb2
from tests.harness.waiting import HANG_SECONDS

CHECK = Path(__file__).parents[2] / "scripts/check-api"


def checked(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(CHECK), *arguments], capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )


def message(file: FileDescriptorProto, name: str) -> DescriptorProto:
    return next(each for each in file.message_type if each.name == name)


def field(file: FileDescriptorProto, of: str, name: str) -> FieldDescriptorProto:
    return next(each for each in message(file, of).field if each.name == name)


def removed_field(file: FileDescriptorProto) -> None:
    message(file, "Snapshot").field.add(
        name="gone", number=5000, label=FieldDescriptorProto.LABEL_OPTIONAL, type=FieldDescriptorProto.TYPE_BOOL
    )


def retyped_field(file: FileDescriptorProto) -> None:
    field(file, "Snapshot", "sequence").type = FieldDescriptorProto.TYPE_STRING


def renamed_field(file: FileDescriptorProto) -> None:
    field(file, "Snapshot", "sequence").name = "number"


def repeated_field(file: FileDescriptorProto) -> None:
    field(file, "Snapshot", "sequence").label = FieldDescriptorProto.LABEL_REPEATED


def removed_message(file: FileDescriptorProto) -> None:
    file.message_type.add(name="Forgotten")


def removed_value(file: FileDescriptorProto) -> None:
    next(each for each in file.enum_type if each.name == "Severity").value.add(name="SEVERITY_DOOM", number=99)


def removed_method(file: FileDescriptorProto) -> None:
    file.service[0].method.add(name="Forget", input_type=".neurontools.v1.Snapshot", output_type=".x")


def changed_method(file: FileDescriptorProto) -> None:
    file.service[0].method[0].server_streaming = True


def removed_service(file: FileDescriptorProto) -> None:
    file.service.add(name="ForgottenService")


def other_package(file: FileDescriptorProto) -> None:
    file.package = "neurontools.v0"


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (removed_field, "Snapshot.gone = 5000 is gone"),
        (retyped_field, "Snapshot.sequence = "),
        (renamed_field, "Snapshot.number = "),
        (repeated_field, "was repeated uint64 sequence and is optional uint64 sequence"),
        (removed_message, "message Forgotten is gone"),
        (removed_value, "Severity: SEVERITY_DOOM = 99 is gone"),
        (removed_method, "MonitorService.Forget is gone"),
        (changed_method, "MonitorService.GetSnapshot asks or answers otherwise"),
        (removed_service, "service ForgottenService is gone"),
        (other_package, "package neurontools.v0 is neurontools.v1 now"),
    ],
)
def test_a_break_is_refused(plant: Callable[[FileDescriptorProto], None], told: str, tmp_path: Path) -> None:
    released = FileDescriptorProto.FromString(neuron_pb2.DESCRIPTOR.serialized_pb)
    plant(released)  # so that what is there now lacks it, or has it otherwise
    file = tmp_path / "released.binpb"
    file.write_bytes(released.SerializeToString())
    done = checked("--against", str(file))
    assert done.returncode == 1
    assert told in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_what_is_new_is_no_break(tmp_path: Path) -> None:
    released = FileDescriptorProto.FromString(neuron_pb2.DESCRIPTOR.serialized_pb)
    del message(released, "Snapshot").field[-1]
    del released.message_type[-1]
    del released.service[-1]
    file = tmp_path / "released.binpb"
    file.write_bytes(released.SerializeToString())
    done = checked("--against", str(file))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_api_keeps_what_was_released() -> None:
    done = checked()
    assert (done.returncode, done.stderr) == (0, "")
