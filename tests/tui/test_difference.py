"""neuron-top --diff: two moments, two recordings, what is told of each, and what can't be compared."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from neurontools.cli.top import command
from neurontools.model import Job, Snapshot
from tests.harness.command import call_main
from tests.harness.running_daemon import RunningDaemon
from tests.harness.still_feed import snapshots, write_recording

Diff = Callable[..., subprocess.CompletedProcess[str]]
RUN = snapshots("trn1.2xlarge", "steady")[10:40]  # its first is of 03:04:16 on 2 January 2026


@pytest.fixture
def diff(tmp_path: Path) -> Diff:
    def done(*arguments: str) -> subprocess.CompletedProcess[str]:
        return call_main(command.main, "--diff", *arguments, cwd=tmp_path, LC_ALL="C.UTF-8", TZ="UTC")

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


def of_job(name: str, taken: Iterable[Snapshot]) -> list[Snapshot]:
    return [
        replace(snapshot, processes=tuple(replace(each, job=Job(name)) for each in snapshot.processes))
        for snapshot in taken
    ]


def of_two_jobs(names: tuple[str, str], commands: tuple[str, str]) -> list[Snapshot]:
    processes = tuple(
        replace(each, job=Job(name), command=command)
        for each, name, command in zip(RUN[-1].processes[:2], names, commands, strict=True)
    )
    return [replace(RUN[-1], processes=processes)]


def test_two_moments_of_a_recording(tmp_path: Path, diff: Diff) -> None:
    *earlier, last = snapshots("trn1.2xlarge", "ecc-burst")[::3]
    later = [*earlier, replace(last, warnings=("one", "two"))]
    write_recording(tmp_path / "a", later)
    ecc = later[-1].devices[0].ecc
    assert ecc.mem_corrected_total
    found = compared(diff("a@first", "a@last", "--json"))
    host = "i-0123456789abcdef0 (trn1.2xlarge)"
    assert found["host", host, host]["warnings"] == (0, 2)
    assert found["device", "ND 0", "ND 0"]["ecc_corrected_total"] == (0, ecc.mem_corrected_total)
    shown = diff("a@first", "a@last").stdout
    for row in ("ND 0", f"  corrected ECC errors +0 +{ecc.mem_corrected_total}", "  warnings +0 +2"):
        assert re.search(f"^{row}$", shown, re.MULTILINE)
    assert diff("a@+89s", "a@last").stdout.splitlines()[-3] == "no differences"


def test_recordings_are_compared_by_means_and_peaks(tmp_path: Path, diff: Diff) -> None:
    slow = []
    for snapshot in RUN:
        halved = (
            replace(core, utilization_ratio=core.utilization_ratio and core.utilization_ratio / 2)
            for core in snapshot.cores
        )
        slow.append(replace(snapshot, cores=tuple(halved)))
    write_recording(tmp_path / "a", of_job("Slurm job 17", RUN))
    write_recording(tmp_path / "b", of_job("Slurm job 18", slow))
    job = compared(diff("a", "b", "--json"))["job", "Slurm job 17", "Slurm job 18"]
    assert set(job) == {"utilization_ratio"}
    known = [core.utilization_ratio for snapshot in RUN for core in snapshot.cores]
    mean = sum(value or 0 for value in known) / len(known)
    assert job["utilization_ratio"] == pytest.approx((mean, mean / 2), rel=1e-4)  # recordings round
    shown = diff("a", "b").stdout
    assert "mean or peak of 30 snapshots" in shown
    assert "Slurm job 17, in B Slurm job 18" in shown
    assert re.search(r"  utilization +\d+\.\d\d% +\d+\.\d\d%  -\d+\.\d points", shown)


def test_jobs_are_found_again_and_others_stand_alone(tmp_path: Path, diff: Diff) -> None:
    write_recording(tmp_path / "a", of_two_jobs(("job of PID 1", "job of PID 2"), ("train.py", "eval.py")))
    write_recording(tmp_path / "b", of_two_jobs(("job of PID 8", "job of PID 9"), ("eval.py", "train.py")))
    pairs = {name[1:] for name in compared(diff("a", "b", "--json")) if name[0] == "job"}
    assert pairs == {("job of PID 1", "job of PID 9"), ("job of PID 2", "job of PID 8")}
    write_recording(tmp_path / "c", [replace(RUN[-1], processes=())])
    assert "job of PID 1 (only in A)" in diff("a", "c").stdout
    assert "job of PID 1" not in diff("a", "c", "-f", "command~eval").stdout


def test_the_summary_of_a_part_of_a_recording(tmp_path: Path) -> None:
    write_recording(tmp_path / "a", of_job("Slurm job 17", snapshots("trn1.2xlarge", "ecc-burst")))

    def summary(*arguments: str) -> str:
        done = call_main(command.main, "--summary", *arguments, cwd=tmp_path, LC_ALL="C.UTF-8", TZ="UTC")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    text, document = summary("a@+50s.."), json.loads(summary("a@+50s..", "--json"))
    assert re.search(r"^  03:0\d:\d\d to 03:05:35  \w+  ND 0: .*ECC", text, re.MULTILINE)
    assert "    do: " in text
    subjects = {
        subject["name"]: {row["name"]: row for row in subject["quantities"]} for subject in document["subjects"]
    }
    utilization = subjects["Slurm job 17"]["utilization_ratio"]
    assert 0 < utilization["lowest"] < utilization["mean"] < utilization["highest"] <= 1
    cells = [f"{utilization[name]:.2%}" for name in ("lowest", "mean", "highest", "last")]
    assert re.search("^  utilization +" + " +".join(cells), text, re.MULTILINE)
    assert subjects["ND 0"]["ecc_corrected_total"]["last"] > 0
    assert re.search(r"^ND 0 +(critical|warning) ", text, re.MULTILINE)
    assert document["recording"]["moments"] == 40
    done = call_main(command.main, "--summary", "a@soon", cwd=tmp_path)
    assert (done.returncode, done.stderr[:47]) == (2, "neuron-top: --summary a@soon: soon is no moment")


def test_moments_of_a_daemon(shared_daemon: RunningDaemon, diff: Diff) -> None:
    done = diff("@first", "@now", "--socket", shared_daemon.socket)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("A: @first, i-simulated (trn1.32xlarge), ")


def test_a_span_times_of_the_clock_and_a_recording_that_is_cut(tmp_path: Path, diff: Diff) -> None:
    path = write_recording(tmp_path / "a@b", RUN)
    lines = diff("a@b@03:04:20..03:04:30", "a@b@2026-01-02T03:04:40Z").stdout.splitlines()
    assert lines[0].endswith("2026-01-02 03:04:20 to 2026-01-02 03:04:30, mean or peak of 11 snapshots")
    assert lines[1].endswith(", 2026-01-02 03:04:40")
    assert "mean or peak of 30 snapshots" in diff("a@b", "a@b@last").stdout
    (tmp_path / "cut").write_bytes(path.read_bytes()[:-40])
    done = diff("a@b", "cut")
    assert done.returncode == 1
    assert done.stdout, "compared as far as it goes"
    assert re.fullmatch(r"neuron-top: cut: cut off within a snapshot.*\n", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("a", "none"), 6, "none: there is no such file"),
        (("a", "a@"), 2, "--diff a@: which moment?"),
        (("a", "a@soon"), 2, "--diff a@soon: soon is no moment; give one such as 14:05"),
        (("a", "a@-5parsec"), 2, "is no moment"),
        (("a", "a@12:00"), 6, "there is no such moment; it has 2026-01-02 03:04:"),
        (("a", "a@last..first"), 2, "it ends before it begins"),
        (("a", "empty"), 1, "empty"),
    ],
)
def test_what_can_not_be_compared(tmp_path: Path, diff: Diff, arguments: tuple[str, ...], code: int, told: str) -> None:
    write_recording(tmp_path / "a", RUN[:3])
    write_recording(tmp_path / "empty", [])
    done = diff(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
