"""neuron-top off a terminal: one screen of text, JSON, CSV, and its errors."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from neurond.load import SCENARIOS

from neurontools.cli.top import options
from neurontools.recording.writer import RecordingWriter
from neurontools.views.pages import PAGES
from tests.harness.dashboard_terminal import TOP
from tests.harness.paths import ROOT
from tests.harness.running_daemon import RunningDaemon
from tests.harness.still_feed import message_of, snapshots
from tests.harness.waiting import HANG_SECONDS, wait_until


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TOP, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8", **environment},
    )


def test_without_a_terminal_one_screen_is_printed(daemon: RunningDaemon, training: subprocess.Popen[str]) -> None:
    done = run("--socket", daemon.socket, COLUMNS="100")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert "NeuronCore v2 Utilization" in done.stdout
    assert "\x1b" not in done.stdout
    assert run("--socket", daemon.socket, "--once", "--page", "processes").stdout.count(str(training.pid)) >= 1


@pytest.mark.parametrize("page", options.PAGE_NAMES)
def test_a_screen_for_a_terminal_of_ascii_is_ascii(daemon: RunningDaemon, page: str) -> None:
    done = run("--socket", daemon.socket, "--once", "--page", page, LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


def test_documents_agree_with_their_schema(daemon: RunningDaemon, training: subprocess.Popen[str]) -> None:
    schema = json.loads(run("--json-schema").stdout)
    one = json.loads(run("--socket", daemon.socket, "--json").stdout)
    assert set(one) == set(schema["properties"]) == set(schema["required"])
    assert [process["pid"] for process in one["processes"]] == [training.pid]
    assert one["processes"][0]["neuroncores"] == [0, 1]
    several = json.loads(run("--socket", daemon.socket, "--json", "-n", "2", "-i", "0.1").stdout)
    assert several[0]["sequence"] < several[1]["sequence"]
    lines = run(
        "--socket", daemon.socket, "--json-lines", "-n", "3", "-i", "0.1", "-f", "tag=other"
    ).stdout.splitlines()
    assert [json.loads(line)["processes"] for line in lines] == [[], [], []]
    header, row = csv.reader(io.StringIO(run("--socket", daemon.socket, "--csv").stdout))
    assert dict(zip(header, row, strict=True))["pid"] == str(training.pid)


def test_a_reader_that_goes_away_ends_it_quietly(daemon: RunningDaemon) -> None:
    command = " ".join([*TOP, "--socket", daemon.socket, "--json-lines", "-i", "0.05"])
    done = subprocess.run(["bash", "-c", f"{command} | head -1 | wc -l"], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("1", "")
    endless = subprocess.Popen(
        [*TOP, "--socket", daemon.socket, "--json-lines"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert endless.stdout is not None
    assert endless.stderr is not None
    assert endless.stdout.readline()
    endless.send_signal(signal.SIGINT)
    assert endless.wait(HANG_SECONDS) == 130
    assert endless.stderr.read() == ""
    endless.stdout.close()
    endless.stderr.close()


def test_one_document_of_a_recording_is_its_last_moment(tmp_path: Path) -> None:
    path = tmp_path / "five.neurec"
    writer = RecordingWriter(str(path))
    for snapshot in snapshots("trn1.2xlarge", "steady")[:5]:
        writer.write(message_of(snapshot))
    writer.close()
    lines = [json.loads(line) for line in run("--replay", str(path), "--json-lines").stdout.splitlines()]
    assert [line["sequence"] for line in lines] == [1, 2, 3, 4, 5]
    assert json.loads(run("--replay", str(path), "--json").stdout) == lines[-1]
    first_of_two = json.loads(run("--replay", str(path), "--json", "-n", "2").stdout)[0]
    assert first_of_two == lines[0]
    shown = run("--replay", str(path), "--once", TZ="UTC").stdout
    assert lines[-1]["taken_at"][11:19] in shown.splitlines()[0]


@pytest.mark.parametrize("kind", [("--once",), ("--json",), ("--json-lines",), ("--csv",)])
def test_a_damaged_recording_fails_once_it_is_shown_as_far_as_it_goes(tmp_path: Path, kind: tuple[str, ...]) -> None:
    path = tmp_path / "cut.neurec"
    writer = RecordingWriter(str(path))
    for snapshot in snapshots("trn1.2xlarge", "steady")[:5]:
        writer.write(message_of(snapshot))
    writer.close()
    path.write_bytes(path.read_bytes()[:-40])
    done = run("--replay", str(path), *kind)
    of_monitor = subprocess.run(
        [sys.executable, "-m", "neurontools.cli.monitor.command", "--replay", str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == of_monitor.returncode == 1
    assert done.stdout
    for told in (done.stderr, of_monitor.stderr):
        assert re.fullmatch(r"[\w-]+: .*cut.neurec: cut off within a snapshot.*; it is shown up to there\n", told), told


def test_a_recording_with_nothing_in_it_is_a_table_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "empty.neurec"
    RecordingWriter(str(path)).close()
    done = run("--replay", str(path), "--csv")
    assert (done.returncode, done.stderr) == (0, "")
    (header,) = done.stdout.splitlines()
    assert header.startswith("taken_at,")


def test_user_and_pid_are_part_of_the_filter(daemon: RunningDaemon, training: subprocess.Popen[str]) -> None:
    def pids(*arguments: str) -> list[int]:
        document = json.loads(run("--socket", daemon.socket, "--json", *arguments).stdout)
        return [process["pid"] for process in document["processes"]]

    assert pids("-p", str(training.pid), "-f", "nobody or mlp") == [training.pid]
    assert pids("-p", "1", "-f", "nobody or mlp") == []
    assert pids("-u", "no one") == []


def test_help_names_pages_themes_and_loads() -> None:
    shown = run("--help").stdout
    for words in (options.PAGE_NAMES, options.THEME_NAMES, options.LOADS):
        assert ", ".join(words) in shown
    assert [page.name for page in PAGES] == list(options.PAGE_NAMES)
    assert list(SCENARIOS) == list(options.LOADS)


def test_one_screen_has_the_past_of_a_daemon(daemon: RunningDaemon, training: subprocess.Popen[str]) -> None:
    wait_until(lambda: daemon.snapshot().sequence > 100)
    events = run("--socket", daemon.socket, "--once", "--page", "health").stdout
    assert re.search(rf"mlp \(PID {training.pid}\) (attached, holds|took) 2 cores", events)
    history, heatmap = (
        run("--socket", daemon.socket, "--once", "--page", page, LC_ALL="C").stdout.splitlines()
        for page in ("history", "heatmap")
    )
    assert re.search(r"[^ ]{4,}$", next(line for line in history if line.startswith(" all cores")))
    assert re.search(r"[-=+*]{2,}$", next(line for line in heatmap if "NC 0 " in line))
    training.kill()
    wait_until(lambda: daemon.owners()[0] is None)
    screens = run("--socket", daemon.socket, "--once", "--page", "health", "-n", "2", "-i", "0.1").stdout
    assert screens.count("ended, 2 cores are free") == 2


def test_screens_of_a_recording_have_its_past(tmp_path: Path) -> None:
    path = tmp_path / "burst.neurec"
    writer = RecordingWriter(str(path))
    for snapshot in snapshots()[:70]:
        writer.write(message_of(snapshot))
    writer.close()
    shown = run("--replay", str(path), "--once", "--page", "health", COLUMNS="120").stdout
    assert "corrected HBM ECC error" in shown
    screens = run("--replay", str(path), "--once", "--page", "health", "-n", "70", COLUMNS="120").stdout
    each = screens.split(" neuron-top ")[1:]
    assert len(each) == 70
    assert "nothing has happened since" in each[0]
    assert f" neuron-top {each[-1]}" == shown
    rows = run("--replay", str(path), "--once", "--page", "heatmap", COLUMNS="100").stdout.splitlines()[3:35]
    assert all(re.search(r"[▅▆▇█]{60}", row) for row in rows)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("-f", "util>nan"), 2, "neuron-top: --filter: 'nan' is no value of util; give percent"),
        (("-p", "x"), 2, "neuron-top: --pid: 'x' is no value of pid"),
        (("--socket", "/tmp/none.sock", "--once"), 12, "no monitor daemon at unix:/tmp/none.sock"),
        (("--replay", "/etc/passwd", "--once"), 1, "no recording of neuron-top"),
        (("--replay", "/tmp/no such file"), 6, "there is no such file"),
        (("--replay", "/tmp/no such file", "--csv"), 6, "there is no such file"),
        (("--replay", "/etc/passwd", "--csv", "-n", "2"), 1, "no recording of neuron-top"),
        (("--interval", "0"), 2, "give seconds from"),
        (("--json", "--csv"), 2, "exclude each other"),
        (("--theme", "pink"), 2, "give one of auto"),
        (("-f", "colour=1", "--json", "--socket", "/x"), 2, "no column 'colour'"),
        (("--jsn",), 1, "did you mean --json"),
    ],
)
def test_misuse_is_told_in_one_line(arguments: tuple[str, ...], code: int, told: str) -> None:
    done = run(*arguments)
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout
