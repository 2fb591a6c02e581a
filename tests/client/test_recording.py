"""Recordings: what is written comes back, whatever happens to the file or its writer."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from neurontools.client import Recording
from neurontools.client.recording import KEY_EVERY, RecordingReader, RecordingWriter
from neurontools.rpc.wire import encode_string
from neurontools.util.errors import UserError
from tests.harness.hostile_user import HOSTILE, needs_two_users, public_directory, successful_attacks
from tests.harness.scenario_host import ScenarioHost
from tests.harness.still_feed import message_of, read_recording, snapshots, write_recording


def test_one_that_is_ended_while_it_is_written_ends_regularly_and_touches_no_other_file(tmp_path: Path) -> None:
    message = message_of(snapshots("trn1.2xlarge")[0])
    writer = RecordingWriter(str(tmp_path / "recording"))
    is_writing, is_closed = threading.Event(), threading.Event()

    def on_call(_frame: object, event: str, what: object) -> None:
        if event == "c_call" and what is os.write:
            is_writing.set()
            is_closed.wait(0.3)  # closing waits for the writing, so that this is in vain

    def write_one() -> None:
        sys.setprofile(on_call)
        writer.write(message)
        sys.setprofile(None)

    thread = threading.Thread(target=write_one)
    thread.start()
    is_writing.wait()
    writer.close()
    with (tmp_path / "other").open("wb") as other:  # gets the number that is free again
        is_closed.set()
        thread.join()
        assert os.fstat(other.fileno()).st_size == 0
    found, trouble = read_recording(tmp_path / "recording")
    assert (len(found), trouble) == (1, "")
    assert (tmp_path / "recording").stat().st_size == writer.bytes_written


@pytest.mark.parametrize("scenario", ["ecc-burst", "training-ramp", "stuck-core"])
def test_what_is_written_comes_back(scenario: str, tmp_path: Path) -> None:
    taken = snapshots("trn1.2xlarge", scenario)
    found, trouble = read_recording(write_recording(tmp_path / "r", taken))
    assert not trouble
    assert tuple(found) == taken


def test_processes_that_come_and_go_come_back(tmp_path: Path) -> None:
    host = ScenarioHost("inf2.24xlarge", "steady")
    taken = [host.at(float(second)) for second in range(1, 21)]
    for number in range(5, 15):
        taken[number] = dataclasses.replace(taken[number], processes=taken[number].processes[: number % 7])
    assert read_recording(write_recording(tmp_path / "r", taken)) == (taken, "")


@pytest.mark.slow
def test_snapshots_of_several_streams_come_back(tmp_path: Path) -> None:
    host = ScenarioHost("trn1.2xlarge", "steady")
    taken = [host.at(float(second)) for second in range(1, KEY_EVERY + 5)]
    found, trouble = read_recording(write_recording(tmp_path / "r", taken))
    assert not trouble
    assert found == taken


@pytest.mark.slow
def test_a_training_of_an_hour_takes_less_than_fifteen_megabytes(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "r", snapshots(scenario="training-ramp"))
    assert path.stat().st_size / len(snapshots()) * 3600 < 15e6


def test_fields_that_this_version_does_not_know_are_recorded(tmp_path: Path) -> None:
    message = message_of(snapshots("trn1.2xlarge")[0]) + encode_string(15, "new")
    writer = RecordingWriter(str(tmp_path / "r"))
    writer.write(message)
    writer.close()
    with closing(RecordingReader(str(tmp_path / "r"))) as reader:
        assert list(reader.messages()) == [message]


def test_a_recording_of_an_older_daemon_is_read() -> None:
    found, trouble = read_recording(Path(__file__).parent / "golden/without_vcpu_times.rec")
    assert (len(found), trouble) == (8, "")
    assert {(len(snapshot.host.vcpus), snapshot.host.vcpu_times, snapshot.health) for snapshot in found} == {
        (4, (), None)
    }


def test_every_shorter_file_is_read_up_to_its_last_whole_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "r"
    write_recording(path, (ScenarioHost("trn1.2xlarge").at(float(second)) for second in range(1, 8)))
    whole = path.read_bytes()
    counts = set()
    for size in range(whole.index(b"\n") + 1, len(whole), 17):
        path.write_bytes(whole[:size])
        found, trouble = read_recording(path)
        assert trouble, size
        counts.add(len(found))
    assert counts >= set(range(7))


def test_damage_is_told_and_what_came_before_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "r"
    write_recording(path, snapshots("trn1.2xlarge")[:20])
    whole = bytearray(path.read_bytes())
    whole[len(whole) * 3 // 4] ^= 0xFF
    path.write_bytes(whole)
    found, trouble = read_recording(path)
    assert 0 < len(found) < 20
    assert "damaged" in trouble or "cut off" in trouble


FOREIGN: dict[bytes | None, str] = {
    None: "there is no such file",
    b"": "not a recording of neuron-top (it is empty)",
    b"root:x:0:0\n": "not a recording of neuron-top (it does not start like one)",
    b"NEURONREC 2 {}": "header of the recording is cut off",
    b"NEURONREC 1 {}\n": "recording format 1, this neuron-top reads 2; make a new recording",
    b"NEURONREC 9 {}\n": "recording format 9, this neuron-top reads 2; take a newer one",
    b"NEURONREC 2 {\n": "header of the recording is damaged",
}


def test_a_foreign_file_is_refused_with_the_reason_and_none_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "r"
    for content, told in FOREIGN.items():
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UserError) as refused:
            RecordingReader(str(path))
        assert told in str(refused.value)
    (tmp_path / "there").write_text("keep me")
    with pytest.raises(UserError, match="the file exists"):
        RecordingWriter(str(tmp_path / "there"))
    assert (tmp_path / "there").read_text() == "keep me"


def test_a_recording_whose_header_does_not_fit_leaves_no_file(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(UserError, match=r"the recording .*/full: File too large; name a file that can be written"):
            RecordingWriter(str(tmp_path / "full"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


@needs_two_users
def test_another_user_neither_changes_a_recording_nor_sends_it_elsewhere() -> None:
    with public_directory() as directory:
        recorded = write_recording(directory / "recorded", snapshots("trn1.2xlarge")[:2])
        assert recorded.stat().st_mode & 0o777 == 0o600
        assert successful_attacks(recorded) == []
        assert len(read_recording(recorded)[0]) == 2
        directory.chmod(0o1777)
        target, planted = directory / "target", directory / "planted"
        planted.symlink_to(target)
        os.lchown(planted, HOSTILE, HOSTILE)
        with pytest.raises(UserError, match="the file exists"):
            RecordingWriter(str(planted))
        assert not target.exists()


def test_a_killed_writer_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r"
    script = (
        "import sys, os, signal\n"
        "from neurontools.client.recording import RecordingWriter\n"
        "from tests.harness.still_feed import message_of, snapshots\n"
        "writer = RecordingWriter(sys.argv[1])\n"
        "for snapshot in snapshots('trn1.2xlarge')[:12]: writer.write(message_of(snapshot))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -signal.SIGKILL
    found, trouble = read_recording(path)
    assert len(found) == 12
    assert "no regular end" in trouble


@pytest.mark.parametrize("moved_seconds", [-120.0, 7200.0], ids=["back", "forward"])
def test_the_last_seconds_of_a_recording_do_not_go_by_a_clock_that_was_set(
    tmp_path: Path, moved_seconds: float
) -> None:
    host = ScenarioHost("trn1.2xlarge")
    taken = []
    for second in range(1, 41):
        snapshot = host.at(float(second))
        moved = moved_seconds if second > 20 else 0.0
        taken.append(dataclasses.replace(snapshot, taken_at_unix_seconds=snapshot.taken_at_unix_seconds + moved))
    write_recording(tmp_path / "r", taken)
    with Recording(tmp_path / "r") as recording:
        assert [snapshot.sequence for snapshot in recording.history(30.0)] == list(range(10, 41))
