"""neuron-top --diff: two moments, two recordings, what is told of each, and what can't be compared."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from neurontools.model import Job, Snapshot
from neurontools.recording.writer import RecordingWriter
from tests.harness.dashboard_terminal import TOP
from tests.harness.running_daemon import RunningDaemon
from tests.harness.still_feed import message_of, snapshots

Write = Callable[[str, Iterable[Snapshot]], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, taken: Iterable[Snapshot]) -> str:
        writer = RecordingWriter(str(tmp_path / name))
        for snapshot in taken:
            writer.write(message_of(snapshot))
        writer.close()
        return name

    return written


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def done(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        return subprocess.run(
            [*TOP, *arguments], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
        )

    return done


def compared(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str | None, str | None], dict[str, object]]:
    """What differs, by kind and both names: quantity to both values."""
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    return {
        (each["kind"], each["a"], each["b"]): {
            row["name"]: (row["a"], row["b"]) for row in each["quantities"] if row["differs"]
        }
        for each in document["compared"]
        if each["differs"]
    }


RUN = snapshots("trn1.2xlarge", "steady")[10:40]


def of_job(name: str, taken: Iterable[Snapshot], command: str = "train.py") -> list[Snapshot]:
    return [
        replace(
            snapshot,
            processes=tuple(replace(each, job=Job(name), command=command) for each in snapshot.processes),
        )
        for snapshot in taken
    ]


def test_two_moments_of_a_recording(write: Write, run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    later = snapshots("trn1.2xlarge", "ecc-burst")
    write("a", later)
    ecc = later[-1].devices[0].ecc
    assert ecc.mem_corrected_total
    found = compared(run("--diff", "a@first", "a@last", "--json"))
    of_device = found["device", "ND 0", "ND 0"]
    assert of_device["ecc_corrected_total"] == (0, ecc.mem_corrected_total)
    shown = run("--diff", "a@first", "a@last").stdout
    assert re.search(r"^ND 0$", shown, re.MULTILINE)
    assert re.search(rf"^  corrected ECC errors +0 +{ecc.mem_corrected_total}$", shown, re.MULTILINE)
    assert run("--diff", "a@+89s", "a@last").stdout.splitlines()[-3] == "nothing differs"


def test_recordings_are_compared_by_means_and_peaks(
    write: Write, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    slow = [
        replace(
            snapshot,
            cores=tuple(
                replace(core, utilization_ratio=core.utilization_ratio and core.utilization_ratio / 2)
                for core in snapshot.cores
            ),
        )
        for snapshot in RUN
    ]
    write("a", of_job("Slurm job 17", RUN))
    write("b", of_job("Slurm job 18", slow))
    found = compared(run("--diff", "a", "b", "--json"))
    job = found["job", "Slurm job 17", "Slurm job 18"]
    assert set(job) == {"utilization_ratio"}
    known = [core.utilization_ratio for snapshot in RUN for core in snapshot.cores]
    mean = sum(value or 0 for value in known) / len(known)
    assert job["utilization_ratio"] == pytest.approx((mean, mean / 2), rel=1e-4)  # recordings round
    shown = run("--diff", "a", "b").stdout
    assert "mean or peak of 30 moments" in shown
    assert "Slurm job 17, in B Slurm job 18" in shown
    assert re.search(r"  utilization +\d+\.\d\d% +\d+\.\d\d%  -\d+\.\d points", shown)


def test_jobs_are_found_again_and_others_stand_alone(
    write: Write, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    def split(names: tuple[str, str], commands: tuple[str, str]) -> list[Snapshot]:
        first, second = RUN[-1].processes[:2]
        processes = tuple(
            replace(each, job=Job(name), command=command)
            for each, name, command in zip((first, second), names, commands, strict=True)
        )
        return [replace(RUN[-1], processes=processes)]

    write("a", split(("job of PID 1", "job of PID 2"), ("train.py", "eval.py")))
    write("b", split(("job of PID 8", "job of PID 9"), ("eval.py", "train.py")))
    pairs = {name[1:] for name in compared(run("--diff", "a", "b", "--json")) if name[0] == "job"}
    assert pairs == {("job of PID 1", "job of PID 9"), ("job of PID 2", "job of PID 8")}
    write("c", [replace(RUN[-1], processes=())])
    shown = run("--diff", "a", "c").stdout
    assert "job of PID 1 (only in A)" in shown
    assert "job of PID 1" not in run("--diff", "a", "c", "-f", "command~eval").stdout


def test_moments_of_a_daemon(daemon: RunningDaemon, run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run("--socket", daemon.socket, "--diff", "@first", "@now")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("A: @first, i-simulated (trn1.32xlarge), ")


def test_a_span_and_times_of_the_clock(write: Write, run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    write("a@b", RUN)  # its first is of 03:04:16 on 2 January 2026
    lines = run("--diff", "a@b@03:04:20..03:04:30", "a@b@2026-01-02T03:04:40Z").stdout.splitlines()
    assert lines[0].endswith("2026-01-02 03:04:20 to 2026-01-02 03:04:30, mean or peak of 11 moments")
    assert lines[1].endswith(", 2026-01-02 03:04:40")
    assert "mean or peak of 30 moments" in run("--diff", "a@b", "a@b@last").stdout


def test_a_damaged_recording_is_compared_as_far_as_it_goes(
    write: Write, run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    write("a", RUN)
    (tmp_path / "cut").write_bytes((tmp_path / "a").read_bytes()[:-40])
    done = run("--diff", "a", "cut")
    assert done.returncode == 1
    assert done.stdout
    assert re.fullmatch(r"neuron-top: cut: cut off within a snapshot.*\n", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("a",), 2, "--diff needs 2 values: --diff A B"),
        (("a", "none"), 6, "none: there is no such file"),
        (("a", "a@"), 2, "--diff a@: which moment?"),
        (("a", "a@soon"), 2, "--diff a@soon: soon is no moment; give one such as 14:05"),
        (("a", "a@-5parsec"), 2, "is no moment"),
        (("a", "a@12:00"), 6, "there is no such moment; it has 2026-01-02 03:04:"),
        (("a", "a@last..first"), 2, "it ends before it begins"),
        (("a", "a", "--once"), 2, "--diff and --once exclude each other"),
        (("a", "empty"), 1, "empty"),
    ],
)
def test_what_can_not_be_compared(
    write: Write,
    run: Callable[..., subprocess.CompletedProcess[str]],
    arguments: tuple[str, ...],
    code: int,
    told: str,
) -> None:
    write("a", RUN[:3])
    write("empty", [])
    done = run("--diff", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
