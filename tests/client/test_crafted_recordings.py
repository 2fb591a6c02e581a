"""A recording is input like any other: whatever is in it, reading it ends soon, with what it holds or with a line.

NEURONTOOLS_FUZZ_MUTANTS says how many mutants of real recordings are tried; a campaign tries 100000.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.client.packing import MessageCompressor, MessageDecompressor
from neurontools.rpc import neuron_pb2
from neurontools.rpc.wire import decode_varint, encode_varint
from neurontools.util.errors import UserError
from tests.harness.examples import examples
from tests.harness.still_feed import read_recording, snapshots, write_recording
from tests.harness.waiting import run_to_end

MUTANTS = int(os.environ.get("NEURONTOOLS_FUZZ_MUTANTS", examples(400)))
ODD_VALUES = (0.5, 1e308, -1e308, float("nan"), float("inf"), "", "\x1b[31m", "x" * 5000, True)
ODD = (0, 1, -1, 127, 128, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, 2**64, -(2**70))
Record = tuple[bytes, bytes]


@cache
def recorded(instance_type: str) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        return write_recording(Path(directory) / "r", snapshots(instance_type, "steady")[:5]).read_bytes()


def taken_apart(content: bytes) -> tuple[bytes, list[Record]]:
    header, _, rest = content.partition(b"\n")
    records = []
    while rest:
        length, size = decode_varint(rest, 1)
        records.append((rest[:1], rest[size : size + length]))
        rest = rest[size + length + 4 :]
    return header, records


def put_together(header: bytes, records: list[Record]) -> bytes:
    out = bytearray(header + b"\n")
    for kind, payload in records:
        out += kind + encode_varint(len(payload)) + payload + zlib.crc32(kind + payload).to_bytes(4)
    return bytes(out)


def with_bytes_changed(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(changed) + 1)
        changed[at : at + chance.randrange(9)] = chance.randbytes(chance.randrange(9))
    return bytes(changed)


def with_values_changed(message: object, chance: random.Random) -> None:
    """Any field of a snapshot, or of a message in it, to anything that its type can hold."""
    field = chance.choice(list(message.DESCRIPTOR.fields))  # type: ignore[attr-defined]
    value = getattr(message, field.name)
    if field.message_type is not None:
        if not hasattr(value, "add"):
            with_values_changed(value, chance)
        elif value and chance.random() < 0.8:
            with_values_changed(chance.choice(value), chance)
        else:
            value.add()
        return
    odd: object = chance.choice((*ODD, *ODD_VALUES))
    try:
        value.append(odd) if hasattr(value, "append") else setattr(message, field.name, odd)
    except (TypeError, ValueError, OverflowError):
        return


def pieces_of(payload: bytes) -> list[bytes]:
    pieces = []
    while payload:
        length, at = decode_varint(payload, 0)
        pieces.append(payload[at : at + length])
        payload = payload[at + length :]
    return pieces


def payload_of(pieces: Iterable[bytes]) -> bytes:
    return b"".join(encode_varint(len(piece)) + piece for piece in pieces)


def messages_of(records: list[Record]) -> list[bytes]:
    decompressor = MessageDecompressor(2**22)
    return [decompressor.decompress(pieces_of(payload)) for kind, payload in records if kind in b"KD"]


def records_of(messages: Iterable[bytes]) -> list[Record]:
    compressor = MessageCompressor(600)
    payloads = [payload_of(compressor.compress(message)) for message in messages]
    return [*((b"D" if number else b"K", payload) for number, payload in enumerate(payloads)), (b"E", b"")]


def mutant(content: bytes, chance: random.Random) -> bytes:
    """A recording with something wrong: in its bytes, or inside, with all checksums right."""
    header, records = taken_apart(content)
    how = chance.randrange(6)
    if how == 0:
        return with_bytes_changed(content, chance)
    if how == 1:
        about = json.loads(header.split(b" ", 2)[2])
        for _ in range(chance.randrange(1, 4)):
            name = chance.choice([*about["fields"], "Quantum"])
            about["fields"][name] = chance.choice((*ODD[:6], None, "1", []))
        header = b"NEURONREC 2 " + json.dumps(about).encode()
    elif how == 2:
        at = chance.randrange(len(records))
        records[at] = (chance.choice((records[at][0], b"K", b"D", b"X")), with_bytes_changed(records[at][1], chance))
    elif how == 3:
        at = chance.randrange(len(records))
        pieces = pieces_of(records[at][1])
        pieces[: chance.randrange(2)] = [b"", *pieces][: chance.randrange(4)]
        records[at] = (records[at][0], payload_of(pieces))
    else:
        messages = messages_of(records)
        at = chance.randrange(len(messages))
        if how == 4:
            messages[at] = with_bytes_changed(messages[at], chance)
        else:
            reply = neuron_pb2.GetSnapshotResponse.FromString(messages[at])
            for _ in range(chance.choice((1, 1, 3, 20))):
                with_values_changed(reply.snapshot, chance)
            messages[at] = reply.SerializeToString()
        records = records_of(messages)
    return put_together(header, records)


@settings(max_examples=MUTANTS, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**64))
def test_mutants_are_read_or_refused_in_a_line(tmp_path: Path, seed: int) -> None:
    chance, path = random.Random(seed), tmp_path / "r"
    path.write_bytes(mutant(recorded(chance.choice(("trn1.2xlarge", "inf2.xlarge"))), chance))
    try:
        _, told = read_recording(path)
    except UserError as error:
        told = str(error)
    assert "\n" not in told
    assert "\x1b" not in told
    assert len(told) < 1000


def test_taken_apart_and_put_together_it_is_the_same(tmp_path: Path) -> None:
    content = recorded("trn1.2xlarge")
    header, records = taken_apart(content)
    assert put_together(header, records) == content
    assert records_of(messages_of(records)) == records
    (tmp_path / "r").write_bytes(content)
    snapshots, trouble = read_recording(tmp_path / "r")
    assert (len(snapshots), trouble) == (5, "")


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (b'{"fields": {"Snapshot": 15, "Host": 1000, "Quantum": 1}}', "fields of Host, Quantum that this version"),
        (b"[" * 4000, "damaged"),
        (b'{"a":' * 800, "damaged"),
        (b'{"fields": []}', "its list of fields is wrong"),
        (b'{"fields": {"Snapshot": true}}', "its list of fields is wrong"),
        (b'{"fields": {"Snapshot": ' + b"9" * 4000 + b"}}", "fields of Snapshot that"),
        (b'{"a": "\xff"}', "damaged"),
        (json.dumps({"fields": {"\x1b]0;owned\x07": 1}}).encode(), "owned"),
    ],
)
def test_headers_that_no_writer_wrote(tmp_path: Path, header: bytes, told: str) -> None:
    _, records = taken_apart(recorded("trn1.2xlarge"))
    (tmp_path / "r").write_bytes(put_together(b"NEURONREC 2 " + header, records))
    with pytest.raises(UserError) as refused:
        read_recording(tmp_path / "r")
    assert told in str(refused.value)
    assert str(refused.value).isprintable()


def of_no_source(message: bytes) -> bytes:
    reply = neuron_pb2.GetSnapshotResponse.FromString(message)
    reply.snapshot.source = neuron_pb2.SOURCE_KIND_UNSPECIFIED
    return reply.SerializeToString()


def of_no_time(message: bytes) -> bytes:
    reply = neuron_pb2.GetSnapshotResponse.FromString(message)
    reply.snapshot.taken_at_unix_seconds = -1
    return reply.SerializeToString()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda records: records[1:], "a snapshot without a key snapshot before it"),
        (lambda records: [(b"K", records[0][1][:-1])], "the pieces of a snapshot are wrong"),
        (lambda records: [(b"K", b"\x80")], "cut off inside a varint"),
        (lambda records: records_of([b"\xff"]), "Error parsing message"),
        (lambda records: records_of(map(of_no_source, messages_of(records))), "Snapshot.source is 0, which this"),
        (lambda records: records_of(map(of_no_time, messages_of(records))), "a snapshot of no time that can be shown"),
    ],
)
def test_snapshots_that_no_writer_wrote(
    tmp_path: Path, change: Callable[[list[Record]], list[Record]], told: str
) -> None:
    header, records = taken_apart(recorded("trn1.2xlarge"))
    (tmp_path / "r").write_bytes(put_together(header, change(records)))
    found, trouble = read_recording(tmp_path / "r")
    assert found == []
    assert trouble.endswith("; it is shown up to there")
    assert f"({told}" in trouble


def test_records_of_other_types_are_skipped(tmp_path: Path) -> None:
    header, records = taken_apart(recorded("trn1.2xlarge"))
    (tmp_path / "r").write_bytes(put_together(header, [(b"X", b"new"), *records[:2], (b"X", b""), *records[2:]]))
    found, trouble = read_recording(tmp_path / "r")
    assert (len(found), trouble) == (5, "")


def bomb(name: str) -> list[Record]:
    """A small file that would be large in memory, or take long."""
    key = taken_apart(recorded("trn1.2xlarge"))[1][0]
    if name == "a long piece":
        return [(b"K", payload_of([zlib.compress(bytes(2**28))]))]
    if name == "a long piece later":
        return [key, (b"D", payload_of([zlib.compress(bytes(2**28))[2:-4]]))]
    if name == "many pieces":
        return [(b"K", bytes(2**23))]
    if name == "many devices":
        snapshot = neuron_pb2.Snapshot(devices=[neuron_pb2.Device()] * 200_000)
    else:
        assert name == "many processes"
        snapshot = neuron_pb2.Snapshot(processes=[neuron_pb2.Process()] * 200_000)
    return records_of([neuron_pb2.GetSnapshotResponse(snapshot=snapshot).SerializeToString()])


SLOW_BOMBS = [pytest.param(name, marks=pytest.mark.slow) for name in ("many processes", "a long piece later")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["many devices", "many pieces", "a long piece", *SLOW_BOMBS])
def test_a_small_file_is_not_large_in_memory(tmp_path: Path, name: str) -> None:
    header, _ = taken_apart(recorded("trn1.2xlarge"))
    (tmp_path / "r").write_bytes(put_together(header, bomb(name)))
    script = (
        "import re, sys; from neurontools.client.recording import RecordingReader\n"
        "reader = RecordingReader(sys.argv[1]); count = sum(1 for _ in reader.messages())\n"
        # getrusage's ru_maxrss begins with what our process had when it forked.
        "peak = int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "print(count, peak // 1024, reader.trouble)"
    )
    done = run_to_end(
        [sys.executable, "-c", script, str(tmp_path / "r")],
        cwd=Path(__file__).parents[2],
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (60, 60)),
    )
    count, peak_mib, trouble = done.stdout.split(" ", 2)
    assert int(count) <= 1
    assert int(peak_mib) < 300
    assert "damaged after" in trouble


def test_a_recording_is_read_from_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(recorded("trn1.2xlarge"),))
    writer.start()
    snapshots, trouble = read_recording(tmp_path / "pipe")
    writer.join()
    assert (len(snapshots), trouble) == (5, "")
