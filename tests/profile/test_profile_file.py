from __future__ import annotations

import json
import os
import resource
import signal
import struct
import tracemalloc
import zlib
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.profile import (
    ColumnTable,
    Engine,
    Profile,
    ProfileState,
    SpanKind,
    chunks,
    read_directory,
    read_profile,
)
from neurontools.profile.writer import NewDefinitions, ProfileWriter
from neurontools.util.errors import UserError
from tests.harness.profiles import METADATA, profiles, write
from tests.harness.trained_profiles import COLLECTIVE_NS, COMPUTE_NS, STEP_NS, trained

MIB = 1 << 20
_anywhere = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def _fresh(directory: Path) -> Path:
    path = directory / "a.neuronprofile"
    path.unlink(missing_ok=True)
    return path


@pytest.mark.slow
@_anywhere
@given(profile=profiles(), parts=st.integers(1, 3))
def test_what_is_written_is_read(tmp_path: Path, profile: Profile, parts: int) -> None:
    path = _fresh(tmp_path)
    write(path, profile, parts)
    assert read_profile(path) == profile


@pytest.mark.slow
@_anywhere
@given(profile=profiles(), data=st.data())
def test_a_file_that_ends_anywhere_is_read_as_far_as_it_goes_or_refused_in_a_line(
    tmp_path: Path, profile: Profile, data: st.DataObject
) -> None:
    path = _fresh(tmp_path)
    write(path, profile, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    try:
        found = read_profile(path)
    except UserError as error:
        assert "\n" not in str(error)
        return
    assert list(found.steps) == list(profile.steps)[: len(found.steps)]
    assert list(found.executions) == list(profile.executions)[: len(found.executions)]
    assert found.operator_ns == profile.operator_ns[: len(found.operator_ns)]


def read_or_refused(path: Path) -> None:
    try:
        list(read_profile(path).events())
    except UserError as error:
        assert "\n" not in str(error)


@pytest.mark.slow
@_anywhere
@given(profile=profiles(), data=st.data())
def test_a_file_with_changed_bytes_never_raises_anything_but_a_line(
    tmp_path: Path, profile: Profile, data: st.DataObject
) -> None:
    path = _fresh(tmp_path)
    write(path, profile)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    read_or_refused(path)


@_anywhere
@given(kind=st.sampled_from([*chunks.TABLES, b"D", b"S", b"O", b"?"]), payload=st.binary(max_size=200))
def test_a_chunk_with_a_right_checksum_and_anything_in_it_is_read_or_refused(
    tmp_path: Path, kind: bytes, payload: bytes
) -> None:
    path = _fresh(tmp_path)
    write(path, trained(2)[0])
    path.write_bytes(path.read_bytes() + chunks.pack_chunk(kind, payload))
    read_or_refused(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a profile"),
        (b"\x80\x04}", "not a profile"),
        (b"NEURONPROFILE 1 {", "ends in its first line"),
        (b"NEURONPROFILE 9 {}\n", "another version (9)"),
        (b"NEURONPROFILE 1 []\n", "first line"),
        (b'NEURONPROFILE 1 {"rank": "x"}\n', "first line"),
        (b"NEURONPROFILE \x1b[31m {}\n", "another version"),
    ],
)
def test_a_foreign_file_is_refused_in_a_line_that_says_what_to_give(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "b.neuronprofile"
    path.write_bytes(content)
    with pytest.raises(UserError, match="give a directory that neuron-run --profile wrote") as caught:
        read_profile(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_older_files_further_parts_of_definitions_and_files_of_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.neuronprofile"
    write(path, trained(2)[0])
    written = path.read_bytes()
    later = {"names": [], "places": [["a.py", 1, "f", False, "later"]], "stacks": [], "graphs": [], "operators": []}
    for content in (
        written.replace(b"NEURONPROFILE 2 ", b"NEURONPROFILE 1 ", 1),
        written + chunks.pack_chunk(chunks.DEFINITIONS, json.dumps(later).encode()),
    ):
        assert content != written
        path.write_bytes(content)
        read = read_profile(path)
        assert (read.operators, read.is_damaged, read.owner) == (trained(2)[0].operators, False, None)
    if os.geteuid() == 0:
        os.chown(path, 54_321, -1)
        assert read_profile(path).owner == "54321"


def test_pipes_devices_and_directories_are_refused_at_once(tmp_path: Path) -> None:
    pipe, device, directory = (tmp_path / f"{name}.neuronprofile" for name in ("pipe", "device", "directory"))
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    directory.mkdir()
    for path, said in ((pipe, "no regular file"), (device, "no regular file"), (directory, "Is a directory")):
        with pytest.raises(UserError, match=f"^[^\n]*{said}[^\n]*$"):
            read_profile(path)


def test_a_chunk_that_would_unpack_to_far_more_than_it_says_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "c.neuronprofile"
    write(path, trained(2)[0])
    compressor = zlib.compressobj(1)
    packed = b"".join([*(compressor.compress(bytes(MIB)) for _ in range(128)), compressor.flush()])
    for told in (16, chunks.MOST_CHUNK_BYTES + 1, 0xFFFFFFFF):
        bomb = struct.pack("<cIII", b"T", len(packed), told, zlib.crc32(b"T" + packed)) + packed
        broken = tmp_path / "d.neuronprofile"
        broken.write_bytes(path.read_bytes() + bomb)
        tracemalloc.start()
        try:
            found = read_profile(broken)
            assert tracemalloc.get_traced_memory()[1] < 32 * MIB
        finally:
            tracemalloc.stop()
        assert found.is_damaged
        assert len(found.steps) == 2


def test_references_to_what_is_not_there_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "e.neuronprofile"
    profile = trained(2)[0]
    write(path, replace(profile, spans=ColumnTable.from_rows(profile.spans.kind, [profile.spans[0]._replace(name=7)])))
    with pytest.raises(UserError, match="spans with a name that isn't there"):
        read_profile(path)


def test_events_have_their_names_times_and_places() -> None:
    made = trained(2)[0]
    first, second, *others = made.operators
    profile = replace(made, operators=(first, replace(second, stack=None), *others))
    assert profile.steps[1].host_ns == STEP_NS - 150_000 - COMPUTE_NS - COLLECTIVE_NS
    events = list(profile.events())
    kinds = [event.kind for event in events]
    assert kinds.count(SpanKind.STEP) == 2
    assert kinds.count(SpanKind.EXECUTION) == 2
    assert kinds.count(SpanKind.OPERATOR) == 8
    product = next(event for event in events if event.name == "aten::mm")
    assert (product.engine, product.flops, product.correlation) == (Engine.TENSOR, 4_000_000, 1)
    assert str(product.place) == "/home/me/train.py:12"
    assert product.start_ns == METADATA.began_ns + 3_200_000
    added = next(event for event in events if event.name == "aten::gelu")
    assert (added.start_ns, added.duration_ns, added.place) == (product.end_ns, 50_000, None)
    launched = next(event for event in events if event.kind is SpanKind.LAUNCH)
    assert (launched.name, launched.core) == ("MarkStep", None)


def test_a_long_profile_keeps_its_latest_events_and_all_its_steps_within_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "f.neuronprofile"
    profile = trained(2)[0]
    writer = ProfileWriter(path, METADATA, most_event_bytes=20_000)
    writer.add_definitions(
        NewDefinitions(list(profile.names), list(profile.stacks), list(profile.graphs), list(profile.operators))
    )
    steps = array("q", range(100))
    for second in range(100):
        first = second * 100
        noise = array("q", os.urandom(8 * 100))
        begun = array("q", (METADATA.began_ns + (first + step) * 1_000 for step in steps))
        ended = array("q", (each + 900 for each in begun))
        numbers = array("q", (first + step for step in steps))
        zeros, fives = array("q", [0] * 100), array("q", [5] * 100)
        writer.add_rows("steps", [numbers, begun, ended, *[zeros] * 7])
        executions = [zeros, zeros, numbers, numbers, zeros, begun, begun, ended, fives]
        times = array("q", (each & 1023 for each in noise * 5))
        writer.add_executions(executions, times)
        writer.write_state(ProfileState(recorded={"executions": first + 100}))
        assert writer.size_bytes < 70_000
    writer.close()
    found = read_profile(path)
    assert list(found.steps.column("step")) == list(range(10_000))
    kept = len(found.executions)
    assert 100 <= kept < 10_000
    assert list(found.executions.column("step")) == list(range(10_000 - kept, 10_000))
    assert len(found.operator_ns) == 5 * kept
    assert found.state.dropped == {"executions": 10_000 - kept, "operator_ns": 50_000 - 5 * kept}
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_totals_that_are_written_again_and_again_do_not_make_the_file_grow(tmp_path: Path) -> None:
    writer = ProfileWriter(tmp_path / "g.neuronprofile", METADATA, most_event_bytes=20_000)
    for number in range(1_000):
        writer.add_rows("span_totals", [array("q", [number])] * 5)
        writer.write_state(ProfileState())
    assert writer.size_bytes < 60_000
    writer.close()


def test_what_a_full_disk_did_not_take_is_not_in_the_file(tmp_path: Path) -> None:
    whole, partly = tmp_path / "h.neuronprofile", tmp_path / "i.neuronprofile"
    profile = trained(2)[0]
    write(whole, profile)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole.stat().st_size - 10, limit[1]))
    try:
        with pytest.raises(OSError):
            write(partly, profile)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    found = read_profile(partly)
    assert not found.is_damaged
    assert found.steps == profile.steps


def test_a_directory_gives_its_workers_by_rank_and_says_when_it_has_none(tmp_path: Path) -> None:
    for rank in (1, 0):
        write(tmp_path / f"rank{rank}.neuronprofile", replace(trained(2)[0], metadata=replace(METADATA, rank=rank)))
    (tmp_path / ".rank2.neuronprofile.draft").write_bytes(b"")
    assert [each.metadata.rank for each in read_directory(tmp_path)] == [0, 1]
    assert len(read_directory(tmp_path / "rank1.neuronprofile")) == 1
    empty = tmp_path / "empty"
    empty.mkdir()
    for where, said in ((empty, "no profile in it"), (tmp_path / "nowhere", "No such file")):
        with pytest.raises(UserError, match=f"^[^\n]*{said}[^\n]*$"):
            read_directory(where)
