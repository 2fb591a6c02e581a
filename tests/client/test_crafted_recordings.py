"""A recording is input like any other: whatever is in it, reading it ends soon, with what it holds or with a line.

NEURONTOOLS_FUZZ_MUTANTS says how many mutants of real recordings are tried; a campaign tries 100000.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import zlib
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.client.recording_codec import CURRENT, FIRST, read_integers, write_integers
from neurontools.rpc import neuron_pb2
from neurontools.rpc.wire import append_varint, decode_varint
from neurontools.util.errors import UserError
from tests.harness.examples import examples
from tests.harness.still_feed import read_recording, snapshots, write_recording

MUTANTS = int(os.environ.get("NEURONTOOLS_FUZZ_MUTANTS", examples(400)))
ODD_VALUES = (0.5, 1e308, -1e308, float("nan"), float("inf"), "", "\x1b[31m", "x" * 5000, True)
ODD = (0, 1, -1, 127, 128, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, 2**64, -(2**70), 2**600, -(2**630))
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
        out += kind
        append_varint(out, len(payload))
        out += payload + zlib.crc32(kind + payload).to_bytes(4)
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


def residuals_of(records: list[Record]) -> list[list[int]]:
    inflate = zlib.decompressobj(-15)
    return [read_integers(inflate.decompress(payload), 10**6) for kind, payload in records if kind == b"D"]


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
            about["fields"][name] = chance.choice((*ODD[:6], None, "1", [], FIRST.get(name, 0), CURRENT.get(name, 0)))
        header = b"NEURONREC 1 " + json.dumps(about).encode()
    elif how == 2:
        at = chance.randrange(len(records))
        records[at] = (chance.choice((records[at][0], b"K", b"D", b"X")), with_bytes_changed(records[at][1], chance))
    elif how == 3:
        snapshot = zlib.decompress(records[0][1])
        records[0] = (b"K", zlib.compress(with_bytes_changed(snapshot, chance)))
    elif how == 4:
        message = neuron_pb2.Snapshot.FromString(zlib.decompress(records[0][1]))
        for _ in range(chance.choice((1, 1, 3, 20))):
            with_values_changed(message, chance)
        records[0] = (b"K", zlib.compress(message.SerializeToString()))
    else:
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        changed = []
        for values in residuals_of(records):
            for _ in range(chance.choice((0, 1, 1, 5))):
                at = chance.randrange(len(values))
                values[at : at + chance.randrange(2)] = [chance.choice(ODD)] * chance.choice((1, 1, 1, 0, 40))
            told = write_integers(values)
            changed.append((b"D", deflate.compress(told) + deflate.flush(zlib.Z_SYNC_FLUSH)))
        records = [records[0], *changed, records[-1]]
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
    assert put_together(*taken_apart(content)) == content
    (tmp_path / "r").write_bytes(content)
    snapshots, trouble = read_recording(tmp_path / "r")
    assert (len(snapshots), trouble) == (5, "")


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (b'{"fields": {"Snapshot": 15, "Host": 1000, "Quantum": 1}}', "fields of Host, Quantum that this version"),
        (b"[" * 4000, "damaged (lists within lists)"),
        (b'{"a":' * 800, "damaged"),
        (b'{"fields": {}}', "lacks some that every recording has"),
        (b'{"fields": []}', "its list of fields is wrong"),
        (b'{"fields": {"Snapshot": true}}', "its list of fields is wrong"),
        (b'{"fields": {"Snapshot": 15}}', "lacks some that every recording has"),
        (b'{"fields": {"Snapshot": ' + b"9" * 4000 + b"}}", "fields of Snapshot that"),
        (b'{"a": "\xff"}', "damaged"),
        (json.dumps({"fields": {**FIRST, "\x1b]0;owned\x07": 1}}).encode(), "owned"),
    ],
)
def test_headers_that_no_writer_wrote(tmp_path: Path, header: bytes, told: str) -> None:
    _, records = taken_apart(recorded("trn1.2xlarge"))
    (tmp_path / "r").write_bytes(put_together(b"NEURONREC 1 " + header, records))
    with pytest.raises(UserError) as refused:
        read_recording(tmp_path / "r")
    assert told in str(refused.value)
    assert str(refused.value).isprintable()


def bomb(name: str) -> list[Record]:
    """A small file that would be large in memory, or take long."""
    key = taken_apart(recorded("trn1.2xlarge"))[1][0]
    if name == "a long snapshot":
        return [(b"K", zlib.compress(bytes(2**28)))]
    if name == "many devices":
        many = neuron_pb2.Snapshot()
        for _ in range(100_000):
            many.devices.add()
        return [(b"K", zlib.compress(many.SerializeToString()))]
    if name == "many processes":
        processes = neuron_pb2.Snapshot(processes=[neuron_pb2.Process()] * 200_000)
        return [(b"K", zlib.compress(processes.SerializeToString()))]
    if name == "many zeros":
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        zeros = bytes([0]) + b"\xff\xff\xff\xff\x0f"
        return [key, (b"D", deflate.compress(zeros * 1000) + deflate.flush(zlib.Z_SYNC_FLUSH))]
    assert name == "a long difference"
    return [key, (b"D", zlib.compress(bytes(2**28))[2:-4])]


SLOW_BOMBS = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("a long snapshot", "many processes", "a long difference")
]


@pytest.mark.parametrize("name", ["many devices", "many zeros", *SLOW_BOMBS])
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
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "r")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
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
