"""neuron-top off a terminal: screens of text, JSON, CSV, and its errors."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import stat
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from neurond.sources.simulated import SCENARIOS

from neurontools.cli.monitor import command as monitor_command
from neurontools.cli.top import command, options
from neurontools.tui import keys
from tests.harness.command import call_main
from tests.harness.dashboard_terminal import TOP, training
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.still_feed import snapshots, write_recording
from tests.harness.waiting import HANG_SECONDS, run_to_end, wait_until

run = partial(call_main, command.main, LC_ALL="C.UTF-8", TZ="UTC")


@pytest.fixture(scope="module")
def job(shared_daemon: RunningDaemon) -> Iterator[subprocess.Popen[str]]:
    with training(shared_daemon.socket) as process:
        yield process


def test_without_a_terminal_one_screen_is_printed(shared_daemon: RunningDaemon, job: subprocess.Popen[str]) -> None:
    done = run("--socket", shared_daemon.socket, COLUMNS="100")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "NeuronCore v2 Utilization" in done.stdout
    assert "\x1b" not in done.stdout
    assert str(job.pid) in run("--socket", shared_daemon.socket, "--once", "--page", "processes").stdout
    for page in options.PAGE_NAMES:
        done = run("--socket", shared_daemon.socket, "--once", "--page", page, LC_ALL="C")
        assert (done.returncode, done.stderr) == (0, ""), page
        assert done.stdout.isascii(), page


def test_documents_agree_with_their_schema(shared_daemon: RunningDaemon, job: subprocess.Popen[str]) -> None:
    def printed(*arguments: str) -> str:
        return run("--socket", shared_daemon.socket, *arguments).stdout

    schema = json.loads(run("--json-schema").stdout)
    one = json.loads(printed("--json"))
    assert set(one) == set(schema["properties"]) == set(schema["required"])
    assert [process["pid"] for process in one["processes"]] == [job.pid]
    assert one["processes"][0]["neuroncores"] == [0, 1]
    several = json.loads(printed("--json", "-n", "2", "-i", "0.1"))
    assert several[0]["sequence"] < several[1]["sequence"]
    lines = printed("--json-lines", "-n", "3", "-i", "0.1", "-f", "tag=other").splitlines()
    assert [json.loads(line)["processes"] for line in lines] == [[], [], []]
    header, row = csv.reader(io.StringIO(printed("--csv")))
    assert dict(zip(header, row, strict=True))["pid"] == str(job.pid)


def test_devices_cores_users_and_pids_narrow_it(shared_daemon: RunningDaemon, job: subprocess.Popen[str]) -> None:
    def document(*arguments: str, cores: str = "") -> dict[str, list[dict[str, object]]]:
        done = run("--socket", shared_daemon.socket, "--json", *arguments, NEURON_RT_VISIBLE_CORES=cores)
        found: dict[str, list[dict[str, object]]] = json.loads(done.stdout)
        return found

    part = document("-d", "2,4-5")
    assert [device["neuron_device"] for device in part["devices"]] == [2, 4, 5]
    assert [core["neuroncore"] for core in part["neuroncores"]] == [4, 5, 8, 9, 10, 11]
    assert [core["neuroncore"] for core in document("--only-visible", cores="3-4")["neuroncores"]] == [3, 4]
    assert "3 of 16 devices" in run("--socket", shared_daemon.socket, "--once", "-d", "2,4-5").stdout
    for arguments, pids in (
        (("-p", str(job.pid), "-f", "nobody or mlp"), [job.pid]),
        (("-p", "1", "-f", "nobody or mlp"), []),
        (("-u", "no one"), []),
    ):
        assert [process["pid"] for process in document(*arguments)["processes"]] == pids


def test_a_reader_that_goes_away_ends_it_quietly_and_ctrl_c_does(shared_daemon: RunningDaemon) -> None:
    top = [*TOP, "--socket", shared_daemon.socket, "--json-lines", "-i", "0.05"]
    shell = ["bash", "-c", f"{' '.join(top)} | head -1 | wc -l"]
    done = run_to_end(shell, check=True)
    assert (done.stdout.strip(), done.stderr) == ("1", "")
    with subprocess.Popen(top, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as endless:
        assert endless.stdout is not None
        assert endless.stdout.readline()
        endless.send_signal(signal.SIGINT)
        _, errors = endless.communicate(timeout=HANG_SECONDS)  # also while it writes to a full pipe
        assert (endless.returncode, errors) == (130, "")


def test_documents_of_a_recording(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "five.neurec", snapshots("trn1.2xlarge", "steady")[:5])
    replay = ("--replay", str(path))
    lines = [json.loads(line) for line in run(*replay, "--json-lines").stdout.splitlines()]
    assert [line["sequence"] for line in lines] == [1, 2, 3, 4, 5]
    assert json.loads(run(*replay, "--json").stdout) == lines[-1], "one document is the last moment"
    assert json.loads(run(*replay, "--json", "-n", "2").stdout)[0] == lines[0]
    assert lines[-1]["taken_at"][11:19] in run(*replay, "--once").stdout.splitlines()[0]
    path.write_bytes(path.read_bytes()[:-40])
    damaged = [call_main(command.main, *replay, kind) for kind in ("--once", "--json", "--json-lines", "--csv")]
    for done in (*damaged, call_main(monitor_command.main, *replay)):
        assert done.returncode == 1, "shown as far as it goes, and failed"
        assert done.stdout
        assert re.fullmatch(
            r"[\w-]+: .*five.neurec: cut off within a snapshot.*; it is shown up to there\n", done.stderr
        )
    done = run("--replay", str(write_recording(tmp_path / "empty", ())), "--csv")
    assert (done.returncode, done.stderr) == (0, "")
    (header,) = done.stdout.splitlines()
    assert header.startswith("taken_at,")


def test_output_replaces_a_file_as_a_whole_and_only_at_the_end(tmp_path: Path) -> None:
    replay = ("--replay", str(write_recording(tmp_path / "five.neurec", snapshots("trn1.2xlarge", "steady")[:5])))
    file, link = tmp_path / "out" / "top.txt", tmp_path / "out" / "link"
    file.parent.mkdir()
    done = run(*replay, "--output", str(file))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert file.read_text() == run(*replay, "--once").stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    with file.open() as reader:  # a reader of the old file is not disturbed
        old = reader.read(10)
        assert run(*replay, "--json-lines", "--output", str(file)).returncode == 0
        assert len(file.read_text().splitlines()) == 5
        assert (old + reader.read()).count("neuron-top") == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    before = file.read_bytes()
    link.symlink_to(file)
    for arguments, code, told in (
        (("--replay", "/etc/passwd", "--output", str(file)), 1, "not a recording"),
        ((*replay, "--output", str(link)), 2, "link: is a symbolic link; name a regular file"),
        ((*replay, "--output", f"{file.parent}/"), 2, "is not a regular file"),
        ((*replay, "--output", str(tmp_path / "none" / "file")), 1, "No such file or directory; name a file"),
        (("--socket", "/x", "--json-lines", "--output", str(file)), 2, "add --count N"),
    ):
        done = run(*arguments)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (code, "", 1), done.stderr
        assert told in done.stderr
    assert sorted(os.listdir(file.parent)) == ["link", "top.txt"]  # noqa: PTH208
    assert (file.read_bytes(), link.is_symlink()) == (before, True)


def test_help_names_pages_themes_loads_and_actions() -> None:
    shown = run("--help").stdout
    for words in (options.PAGE_NAMES, options.THEME_NAMES, options.LOADS):
        assert ", ".join(words) in shown
    assert list(SCENARIOS) == list(options.LOADS)
    listed = run("--help-keys").stdout
    assert all(f"  {action.name} " in listed for action in keys.ACTIONS)


@pytest.mark.slow
def test_one_screen_has_the_past_of_a_daemon(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.02")

    def screen(page: str, *arguments: str) -> str:
        return run("--socket", daemon.socket, "--once", "--page", page, *arguments, LC_ALL="C").stdout

    with training(daemon.socket) as ended:
        wait_until(lambda: daemon.snapshot().sequence > 100)
        assert re.search(rf"mlp \(PID {ended.pid}\) (attached, holds|took) 2 cores", screen("health"))
        (cores,) = [line for line in screen("history").splitlines() if line.startswith(" all cores")]
        assert re.search(r"[^ ]{2,}$", cores)
        (core,) = [line for line in screen("heatmap").splitlines() if "NC 0 " in line]
        assert re.search(r"[-=+*]{2,}$", core)
    wait_until(lambda: daemon.owners()[0] is None)
    assert screen("health", "-n", "2", "-i", "0.1").count("ended, 2 cores are free") == 2


def test_screens_of_a_recording_have_its_past(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "burst.neurec", snapshots("trn1.2xlarge")[:70])

    def screen(page: str, *arguments: str) -> str:
        return run("--replay", str(path), "--once", "--page", page, *arguments, COLUMNS="120").stdout

    shown = screen("health")
    assert "corrected HBM ECC error" in shown
    each = screen("health", "-n", "70").split(" neuron-top ")[1:]
    assert len(each) == 70
    assert "no events since" in each[0]
    assert f" neuron-top {each[-1]}" == shown
    assert all(re.search(r"[▅▆▇█]{60}", row) for row in screen("heatmap").splitlines()[3:5])
