"""neuron-top in a real terminal, against a real daemon: a training starts, runs and is killed; nothing hangs."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neurontools.recording.writer import RecordingWriter
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.still_feed import message_of, snapshots
from tests.harness.terminal_screen import TerminalScreen
from tests.harness.waiting import HANG_SECONDS

ROOT = Path(__file__).parents[2]
TOP = [sys.executable, str(ROOT / "scripts/neuron-top")]
# A process that attaches, reports a model that runs, and goes on until it is killed.
TRAINING = """
import os, socket, sys, time
from neurontools.rpc import neuron_pb2 as pb, unary
path = sys.argv[1]
connection = socket.socket(socket.AF_UNIX)
connection.connect(path + ".attach")
token = connection.makefile().readline().strip()
call = lambda name, request: unary.call(path, f"/neurontools.v1.RuntimeService/{name}", request.SerializeToString(),
    timeout_seconds=5)
call("Attach", pb.AttachRequest(token=token, core_count=2, tag="mlp", runtime_version="test"))
print("attached", flush=True)
started, steps = time.monotonic(), 0
while True:
    steps += 1
    now = time.monotonic()
    report = pb.Report(measured_at_seconds=now)
    for index in range(2):
        core = report.cores.add(local_index=index, busy_seconds_total=(now - started) / 2, flop_total=steps * 10**9,
            executions_total=steps, last_execution_at_unix_seconds=time.time())
        core.memory.tensors_bytes = 3 * 2**30
    report.executions.completed_total = steps
    call("Report", pb.ReportRequest(token=token, report=report))
    time.sleep(0.05)
"""


class Terminal:
    """neuron-top in a terminal of its own; what it shows is read back."""

    def __init__(
        self, *arguments: str, width: int = 120, height: int = 40, home: Path, shell: tuple[str, ...] = ()
    ) -> None:
        self.screen = TerminalScreen(width, height)
        self.raw = b""
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "XDG_CONFIG_HOME": str(home),
            "COLORTERM": "truecolor",
        }
        for name in ("NO_COLOR", "COLUMNS", "LINES", "NEURONTOOLS_SOCKET", "NEURONTOOLS_SIMULATE"):
            environment.pop(name, None)
        self.pid, self.descriptor = pty.fork()
        if not self.pid:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
            os.chdir(home)
            command = [*shell, *TOP, *arguments]
            os.execvpe(command[0], command, environment)
        self.exit_code: int | None = None

    def read(self, seconds: float = 0.05) -> bool:
        """Read what there is; whether there was anything."""
        data = b""
        if select.select([self.descriptor], [], [], seconds)[0]:
            try:
                data = os.read(self.descriptor, 65536)
            except OSError:
                data = b""
            self.raw += data
            self.screen.feed(data.decode("utf-8", "replace"))
        return bool(data)

    def until(self, look: Callable[[str], object]) -> str:
        deadline = time.monotonic() + HANG_SECONDS
        while not look(self.screen.text):
            assert time.monotonic() < deadline, f"did not come to pass:\n{self.screen.text}"
            self.read()
        return self.screen.text

    def shows(self, words: str) -> str:
        return self.until(lambda text: words in text)

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def resize(self, width: int, height: int) -> None:
        self.screen = TerminalScreen(width, height)
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def ends(self) -> int:
        deadline = time.monotonic() + HANG_SECONDS
        while self.exit_code is None:
            assert time.monotonic() < deadline, "it did not end"
            self.read()
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.exit_code = os.waitstatus_to_exitcode(status)
                while self.read():
                    pass
        return self.exit_code

    def close(self) -> None:
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.descriptor)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: str, **options: Any) -> Terminal:
        opened.append(Terminal(*arguments, home=tmp_path, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.fixture
def training(daemon: RunningDaemon) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING, daemon.socket], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "attached\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_training_is_seen_from_its_start_to_its_end(
    daemon: RunningDaemon, training: subprocess.Popen[str], terminal: Callable[..., Terminal]
) -> None:
    top = terminal("--socket", daemon.socket, "--interval", "0.1")
    top.shows("[2]:mlp")
    text = top.until(lambda text: re.search(r"\[ (4|5)\d\.\d\d%\]", text))
    assert "running on i-simulated (trn1.32xlarge)" in text
    top.press("w")
    # A screen is read while it is drawn: a line may be of both pages for a moment.
    row = re.compile(rf"^ *{training.pid} .*\bmlp\b.* 0-1 .* 6\.0G", re.MULTILINE)
    top.until(row.search)
    top.press("2")
    top.shows(">[2]:mlp<")
    top.press("\r")
    top.shows(f"Process {training.pid}")
    top.press("\x1b")
    top.shows("1 process ")  # Esc and a letter together would be Alt and that letter
    top.press("K")
    top.shows("Send a signal")
    top.press("jjjjjjjj\r")
    top.shows(f"Send SIGKILL to PID {training.pid}?")
    top.press("j\r")
    assert training.wait(HANG_SECONDS) == -signal.SIGKILL
    top.shows("no process holds a NeuronCore")
    top.press("e")
    text = top.shows("ended, 2 cores are free")
    assert f"mlp (PID {training.pid})" in text
    top.press("[[")
    top.shows("PAST")
    top.press("q")
    assert top.ends() == 0
    assert b"\x1b[?1049l" in top.raw  # the screen was given back


def test_a_lost_daemon_is_told_and_found_again(start_daemon: StartDaemon, terminal: Callable[..., Terminal]) -> None:
    flags = ("--simulate", "trn1.32xlarge", "--interval", "0.05", "--load", "steady")
    daemon = start_daemon(*flags)
    top = terminal("--socket", daemon.socket)
    top.shows("LIVE")
    daemon.stop(signal.SIGKILL)
    top.shows("LOST, data")
    top.shows("trying again")
    start_daemon(*flags)
    top.shows("LIVE")
    top.press("q")
    assert top.ends() == 0


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_it_ends_while_the_daemon_is_silent(daemon: RunningDaemon, terminal: Callable[..., Terminal], key: str) -> None:
    top = terminal("--socket", daemon.socket)
    top.shows("LIVE")
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        top.until(lambda text: "SILENT, data" in text or "LOST, data" in text)
        top.press(key)
        assert top.ends() == 0
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def test_a_storm_of_sizes_and_the_smallest_terminal(daemon: RunningDaemon, terminal: Callable[..., Terminal]) -> None:
    top = terminal("--socket", daemon.socket, width=20, height=5)
    top.shows("NeuronCore v2")
    for number in range(40):
        top.resize(20 + number * 5 % 180, 5 + number % 45)
    top.resize(200, 50)
    text = top.shows("Memory Usage Details")
    top.until(lambda text: "ND15" in text)
    assert "Traceback" not in text
    top.press("q")
    assert top.ends() == 0


def test_a_recording_is_made_and_replayed(
    start_daemon: StartDaemon, terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.05", "--load", "steady")
    path = tmp_path / "one.neurec"
    top = terminal("--socket", daemon.socket, "--interval", "0.05", "--record", str(path))
    top.shows("one.neurec")
    while path.stat().st_size < 12_000:
        top.read()
    top.press("q")
    assert top.ends() == 0
    again = terminal("--replay", str(path))
    again.shows("REPLAY")
    again.shows("synthetic-0")
    again.press("L")
    again.shows("REPLAY paused")
    again.press("[")
    again.shows("back [")
    again.press("q")
    assert again.ends() == 0


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


@pytest.mark.parametrize("page", ["overview", "processes", "topology", "history", "health"])
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


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--socket", "/tmp/none.sock", "--once"), 12, "no monitor daemon at unix:/tmp/none.sock"),
        (("--replay", "/etc/passwd", "--once"), 1, "no recording of neuron-top"),
        (("--replay", "/tmp/no such file"), 6, "there is no such file"),
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


def test_a_terminated_dashboard_gives_the_terminal_back(
    daemon: RunningDaemon, terminal: Callable[..., Terminal]
) -> None:
    top = terminal("--socket", daemon.socket)
    top.shows("LIVE")
    while termios.tcgetattr(top.descriptor)[0] & termios.IXON:
        top.read()  # until Textual has taken the terminal over
    os.kill(top.pid, signal.SIGTERM)
    assert top.ends() == -signal.SIGTERM
    assert b"\x1b[?1049l" in top.raw


def test_a_terminal_that_does_not_know_its_size_is_taken_for_a_usual_one(
    daemon: RunningDaemon, terminal: Callable[..., Terminal]
) -> None:
    top = terminal("--socket", daemon.socket, width=0, height=0)
    top.screen = TerminalScreen(80, 24)
    top.shows("q quit")
    top.press("w")
    top.shows("no process holds")
    top.resize(120, 40)
    top.until(lambda text: "LIVE" in text.partition("\n")[0][100:])
    top.press("q")
    assert top.ends() == 0


# What starts a program as an interactive shell does: in the foreground, and told when it stops.
JOB_CONTROL = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
child = os.fork()
if not child:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execvp(sys.argv[1], sys.argv[1:])
while True:
    status = os.waitpid(child, os.WUNTRACED)[1]
    os.tcsetpgrp(0, os.getpgrp())
    if not os.WIFSTOPPED(status):
        sys.exit(os.waitstatus_to_exitcode(status))
    print("stopped", flush=True)
    assert input() == "fg"
    os.tcsetpgrp(0, child)
    os.killpg(child, signal.SIGCONT)
"""


def test_it_stops_and_comes_back_as_programs_of_a_shell_do(
    daemon: RunningDaemon, terminal: Callable[..., Terminal]
) -> None:
    top = terminal("--socket", daemon.socket, shell=(sys.executable, "-c", JOB_CONTROL))
    before = termios.tcgetattr(top.descriptor)
    top.shows("LIVE")
    while termios.tcgetattr(top.descriptor)[0] & termios.IXON:
        top.read()  # until Textual has taken the terminal over
    for _ in range(2):
        while "no process holds" not in top.screen.text:
            top.press("w")  # again, as what is typed while Textual begins may be lost
            top.read(1.0)
        top.press("/x")
        top.shows("filter: x")
        top.press("\x1a")
        top.until(lambda _text: top.raw.rstrip().endswith(b"stopped"))
        assert termios.tcgetattr(top.descriptor)[:4] == before[:4]
        top.press("fg\n")
        top.screen = TerminalScreen(120, 40)
        top.shows("filter: x")
        top.shows("LIVE")
        top.press("\x1b")
        top.until(lambda text: "filter:" not in text)
    top.press("/x")
    top.shows("filter: x")
    top.press("\x03")
    assert top.ends() == 0
