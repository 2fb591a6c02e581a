"""A recording as a trace: what the snapshots say is on its tracks, and nothing is where they say nothing."""

from __future__ import annotations

import errno
import math
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from neurontools.cli.top.command import main as neuron_top
from neurontools.client.events import events_between
from neurontools.exporters.perfetto import HostTrace
from neurontools.model import (
    Finding,
    Health,
    LogicalNeuronCore,
    Severity,
    Snapshot,
    logical_cores,
)
from neurontools.rpc.convert import to_message
from tests.harness import chromium, still_feed
from tests.harness.command import call_main
from tests.harness.full_host import full_host
from tests.harness.perfetto_trace import Read, packet_text, read
from tests.harness.perfetto_ui import FOLDERS, perfetto_ui
from tests.harness.pictures import is_as_stored
from tests.harness.still_feed import write_recording

GOLDEN = Path(__file__).parent / "golden/host_trace.txt"
CORE = "Neuron device 0 (simulated)/NeuronCore 0"


def moments(instance_type: str, scenario: str, count: int) -> list[Snapshot]:
    return list(still_feed.snapshots(instance_type, scenario)[:count])


def traced(snapshots: list[Snapshot]) -> Read:
    trace = HostTrace()
    content = b"".join(trace.add_snapshot(each.taken_at_seconds, each, ()) for each in snapshots)
    return read(content + trace.end())


def nanoseconds(snapshot: Snapshot) -> int:
    return round(snapshot.taken_at_seconds * 1e9)


def same(shown: float, value: float | None) -> bool:
    return math.isnan(shown) if value is None else shown == value


def export(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return call_main(neuron_top, *map(str, arguments))


@pytest.mark.parametrize("scenario", ["idle", "training-ramp", "memory-leak", "stuck-core", "ecc-burst"])
def test_every_core_has_its_values_at_every_moment(scenario: str) -> None:
    snapshots = moments("trn1.2xlarge", scenario, 40)
    found = traced(snapshots)
    for snapshot in snapshots:
        at_ns = nanoseconds(snapshot)
        for core in logical_cores(snapshot):
            track = f"Neuron device 0 (simulated)/NeuronCore {core.index}"
            name = f"{track}/NeuronCore {core.index}"
            busy = core.utilization_ratio
            assert same(found.value_at(f"{name} busy", at_ns), None if busy is None else 100.0 * busy)
            assert same(found.value_at(f"{name} FLOPS", at_ns), core.flops_per_second)
            assert same(found.value_at(f"{name} HBM", at_ns), core.memory.total_bytes)
            assert holders(found, track, at_ns) == set(core.owner_pids)


def holders(found: Read, track: str, at_ns: int) -> set[int]:
    return {
        each.notes["pid"]
        for each in found.slices
        if each.track == track and each.begun_ns <= at_ns and (each.ended_ns is None or at_ns < each.ended_ns)
    }


def test_what_has_not_changed_takes_no_room() -> None:
    first, *_ = moments("trn1.2xlarge", "steady", 2)
    still = [replace(first, taken_at_seconds=first.taken_at_seconds + second) for second in range(100)]
    once, often = HostTrace(), HostTrace()
    short = once.add_snapshot(still[0].taken_at_seconds, still[0], ()) + once.end()
    long = b"".join(often.add_snapshot(each.taken_at_seconds, each, ()) for each in still) + often.end()
    assert len(long) == len(short)


def test_a_process_that_ends_leaves_nothing_that_goes_on() -> None:
    snapshots = moments("trn1.2xlarge", "steady", 6)
    gone = [
        replace(
            each,
            processes=(),
            cores=tuple(replace(core, owner_pid=None, utilization_ratio=None) for core in each.cores),
        )
        for each in snapshots[3:]
    ]
    found = traced([*snapshots[:3], *gone])
    at_ns = nanoseconds(gone[0])
    (name,) = {track.split("/")[0] for track in found.values if track.endswith("rank 0 of 2/HBM")}
    assert math.isnan(found.value_at(f"{name}/HBM", at_ns))
    assert math.isnan(found.value_at(f"{CORE}/NeuronCore 0 busy", at_ns))
    assert not math.isnan(found.value_at(f"{CORE}/NeuronCore 0 HBM", at_ns))
    assert {each.ended_ns for each in found.slices} == {at_ns}


def test_nothing_is_told_of_a_pause_in_the_recording() -> None:
    snapshots = moments("trn1.2xlarge", "steady", 60)
    kept = snapshots[:5] + snapshots[40:]
    found = traced(kept)
    slices = [each for each in found.slices if each.track == CORE]
    assert [each.begun_ns for each in slices] == [nanoseconds(kept[0]), nanoseconds(kept[5])]
    assert slices[0].ended_ns == nanoseconds(kept[4]) + 10**9
    assert math.isnan(found.value_at(f"{CORE}/NeuronCore 0 HBM", nanoseconds(kept[4]) + 10**9))
    assert not math.isnan(found.value_at(f"{CORE}/NeuronCore 0 HBM", nanoseconds(kept[5])))


def test_a_recording_with_long_intervals_has_no_pauses() -> None:
    found = traced(moments("trn1.2xlarge", "steady", 60)[::10])
    assert len([each for each in found.slices if each.track == CORE]) == 1


def test_cores_are_the_logical_ones_and_memory_is_by_category() -> None:
    (snapshot,) = moments("trn2.3xlarge", "steady", 1)
    found = traced([snapshot])
    cores: list[LogicalNeuronCore] = list(logical_cores(snapshot))
    names = {name.rpartition("/")[2] for name in found.names.values()}
    assert {name for name in names if name.startswith("NeuronCore ") and name[11:].isdigit()} == {
        f"NeuronCore {core.index}" for core in cores
    }
    tensors = sum(core.memory.tensors_bytes or 0 for core in snapshot.cores)
    assert found.value_at("Neuron device 0 (simulated)/HBM: tensors", nanoseconds(snapshot)) == tensors
    assert "Neuron device 0 (simulated)/HBM: dma rings" not in found.values


def test_the_packets_of_a_host_are_as_stored() -> None:
    before, now = full_host()
    trace = HostTrace()
    content = trace.add_snapshot(now.taken_at_seconds, now, events_between(to_message(before), to_message(now)))
    assert is_as_stored(packet_text(content + trace.end()), GOLDEN), "UPDATE_GOLDEN=1 writes it anew"


def test_findings_last_as_long_as_they_hold() -> None:
    first, second, third, fourth = moments("trn1.2xlarge", "idle", 4)
    finding = Finding("stuck", Severity.CRITICAL, "no execution ended", "look at it", 1.0, pid=7)
    held = [replace(each, health=Health(findings=(finding,))) for each in (second, third)]
    found = traced([replace(first, health=Health()), *held, replace(fourth, health=Health())])
    (told,) = [each for each in found.slices if each.track.startswith("Events and health/")]
    assert (told.track, told.text) == ("Events and health/stuck of PID 7", "no execution ended")
    assert told.notes == {"severity": "critical", "action": "look at it"}
    assert (told.begun_ns, told.ended_ns) == (nanoseconds(second), nanoseconds(fourth))


def test_names_from_elsewhere_are_harmless() -> None:
    (snapshot,) = moments("trn1.2xlarge", "steady", 1)
    process = replace(snapshot.processes[0], command="python \x1b[31m\u202etrain.py", tag="\x9b\ud800")
    found = traced([replace(snapshot, processes=(process, *snapshot.processes[1:]))])
    texts = [*found.names.values(), *(each.text for each in found.slices), *(str(each.notes) for each in found.slices)]
    assert any("\\x1b[31m\\u202etrain.py" in text for text in texts)
    assert all(text.isprintable() for text in texts)


def test_the_command_writes_what_the_recording_has(tmp_path: Path) -> None:
    recording, out = (
        write_recording(tmp_path / "r", moments("trn1.2xlarge", "ecc-burst", 60)),
        tmp_path / "host.pftrace",
    )
    done = export("--replay", recording, "--export-perfetto", out)
    found = read(out.read_bytes())
    assert (done.returncode, done.stdout) == (0, "")
    assert [each.text for each in found.instants if "corrected HBM ECC" in each.text]
    assert done.stderr.startswith(f"neuron-top: {out}: {len(found.slices)} slices, ")
    assert f" and {len(found.instants)} events, " in done.stderr
    recording.write_bytes(recording.read_bytes()[:-30])
    done = export("--replay", recording, "--export-perfetto", out)
    assert done.returncode == 1
    assert "cut off within a snapshot" in done.stderr
    assert read(out.read_bytes()).slices, "it is written as far as it goes"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--replay", "r", "--export-perfetto", "r"], 2, "that is the recording; name another file"),
        (["--replay", "r", "--export-perfetto", "missing/out"], 1, "No such file or directory; name a file that can"),
        (["--replay", "r", "--export-perfetto", "/dev/full"], 1, os.strerror(errno.ENOSPC)),
        (["--replay", "r", "--export-perfetto", "out", "-d", "9"], 6, "no device 9 on this host"),
    ],
)
def test_what_cannot_be_written_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    content = write_recording(Path("r"), moments("trn1.2xlarge", "steady", 2)).read_bytes()
    done = export(*arguments)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (code, "", 1)
    assert told in done.stderr
    assert Path("r").read_bytes() == content


@pytest.mark.long
@pytest.mark.skipif(not FOLDERS, reason="Perfetto's user interface is not installed; make viewers does it")
@pytest.mark.skipif(chromium.PROGRAM is None, reason="chromium is not installed")
def test_perfetto_counts_what_we_counted(tmp_path: Path) -> None:
    snapshots = moments("trn1.2xlarge", "training-ramp", 40)
    recording, out = write_recording(tmp_path / "r", snapshots[:20] + snapshots[30:]), tmp_path / "host.pftrace"
    assert export("--replay", recording, "--export-perfetto", out).returncode == 0
    found = read(out.read_bytes())
    with perfetto_ui(out) as ui:
        assert ui.rows("select name from stats where severity in ('error', 'data_loss') and value > 0") == []
        assert ui.rows("select count(*) from slice where dur > 0") == [[len(found.slices)]]
        assert ui.rows("select count(*) from slice where dur = 0") == [[len(found.instants)]]
        assert ui.rows("select count(value) from counter") == [
            [sum(1 for values in found.values.values() for _, value in values if not math.isnan(value))]
        ]
        shown = ui.rows(
            "select t.name, max(c.value) from counter c join counter_track t on t.id = c.track_id "
            "where t.name like 'NeuronCore % FLOPS' group by t.name order by t.name"
        )
        pids = ui.rows("select pid from process where pid > 0 order by pid")
    assert shown == [[track.rpartition("/")[2], highest] for track, highest in highest_values(found, " FLOPS")]
    assert pids == [[process.pid] for process in snapshots[0].processes]


def highest_values(found: Read, ending: str) -> list[tuple[str, float]]:
    return [
        (track, max(value for _, value in values if not math.isnan(value)))
        for track, values in sorted(found.values.items())
        if track.endswith(ending)
    ]
