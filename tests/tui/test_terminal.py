"""neuron-top in a real terminal, against a real daemon: a training starts, runs and is killed; nothing hangs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from neurontools.errors import EXIT_FAILURE
from tests.harness.dashboard_terminal import TRAINING, Terminal
from tests.harness.host_clock import HostClock
from tests.harness.paths import ROOT
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.terminal_screen import TerminalScreen
from tests.harness.waiting import HANG_SECONDS, wait_until

ANSI = re.compile(r"\x1b[\[\]>=][0-?]*[ -/]*[@-~]?")


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


def test_the_first_frame_says_what_it_does_not_know(daemon: RunningDaemon, terminal: Callable[..., Terminal]) -> None:
    top = terminal("--socket", daemon.socket, "--page", "health")
    top.shows("LIVE")
    first = top.raw.partition(b"LIVE")[0].decode()
    assert "STARTING" in first
    assert "loading the past" in first
    assert "all 16 devices are healthy" in first


def test_the_dashboard_carries_no_openssl(daemon: RunningDaemon, terminal: Callable[..., Terminal]) -> None:
    top = terminal("--socket", daemon.socket)
    top.shows("LIVE")
    assert "libssl" not in Path(f"/proc/{top.pid}/maps").read_text()


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
    top.until(lambda text: "ND 0-15: free" in text)
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
    path.write_bytes(path.read_bytes()[:-7])  # the regular end, of 6 bytes, and one of the record before it
    damaged = terminal("--replay", str(path))
    damaged.shows("not whole")
    damaged.press("q")
    assert damaged.ends() == EXIT_FAILURE
    told = damaged.raw.rpartition(b"\x1b[?1049l")[2].decode()
    last = ANSI.sub("", told).strip()
    assert last.startswith("neuron-top: ")
    assert "cut off within a snapshot" in last
    assert "\n" not in last


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
        top.press("w")
        top.shows("no process holds")
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


PUSH_KEYBOARD, POP_KEYBOARD = b"\x1b[>25u", b"\x1b[<u"


def takes_over(top: Terminal, times: int) -> None:
    top.until(lambda _text: top.raw.count(PUSH_KEYBOARD) == times)


def test_one_that_is_told_to_go_on_without_having_stopped_gives_back_all_that_it_takes(
    daemon: RunningDaemon, terminal: Callable[..., Terminal]
) -> None:
    top = terminal("--socket", daemon.socket)
    before = termios.tcgetattr(top.descriptor)
    top.shows("LIVE")
    for times in (2, 3):
        os.kill(top.pid, signal.SIGCONT)
        takes_over(top, times)
    top.shows("LIVE")
    held = os.open(f"/proc/{top.pid}/fd/0", os.O_RDWR | os.O_NOCTTY)
    top.press("q")
    assert top.ends() == 0
    assert top.raw.count(POP_KEYBOARD) == 3
    assert termios.tcgetattr(held)[:4] == before[:4]
    os.close(held)


def test_a_terminal_that_tells_the_mouse_in_pixels_goes_back_to_cells(
    daemon: RunningDaemon, terminal: Callable[..., Terminal]
) -> None:
    top = terminal("--socket", daemon.socket)
    top.until(lambda _text: b"\x1b[?2048$p" in top.raw)  # whether it tells its size by itself
    top.press("\x1b[?2048;2$y")
    top.until(lambda _text: b"\x1b[?1016h" in top.raw)
    top.press("q")
    assert top.ends() == 0
    assert b"\x1b[?1016l" in top.raw


# Python loads it by itself: a clock that is as far off as a file says. libfaketime has sleeping threads end in errors.
def test_a_clock_that_is_set_stops_nothing(terminal: Callable[..., Terminal], socket_directory: Path) -> None:
    socket = socket_directory / "s"
    clock = HostClock(socket_directory)
    environment = {**os.environ, **clock.environment}
    flags = ("--socket", str(socket), "--simulate", "trn1.2xlarge", "--interval", "0.05")
    with subprocess.Popen([sys.executable, "-m", "neurond", *flags], env=environment) as daemon:
        try:
            wait_until(socket.exists)
            top = terminal("--socket", str(socket), "--page", "health")
            top.shows(" LIVE ")
            clock.set(-120)
            top.shows("the clock of the host was set back by 2 m 0 s")
            with subprocess.Popen(
                [sys.executable, "-c", TRAINING, str(socket)], stdout=subprocess.DEVNULL, cwd=ROOT
            ) as training:
                # Whoever looks between the two sees it before it has any.
                top.until(re.compile("(attached, holds|took) 2 cores").search)
                top.shows(" LIVE ")
                clock.set(3480)
                top.shows("the clock of the host was set forward by 1 h 0 m")
                training.kill()
            top.shows("ended, 2 cores are free")
            top.shows(" LIVE ")
        finally:
            daemon.terminate()


def nobody_looks(top: Terminal) -> None:
    """Has more drawn than a terminal takes whose other end isn't read, until nothing moves any more."""
    top.shows("LIVE")
    while "32 processes" not in top.screen.text:
        top.press("w")  # again, as what is typed while Textual begins may be lost
        top.read(1.0)
    for _ in range(100):
        top.press("ow")
    process = psutil.Process(top.pid)
    before, quiet = process.cpu_times(), 0
    while quiet < 5:
        time.sleep(0.2)
        now = process.cpu_times()
        busy_seconds = now.user + now.system - before.user - before.system
        is_quiet = busy_seconds < 0.05 and not wants_to_run(top.pid)
        before, quiet = now, quiet + 1 if is_quiet else 0


def wants_to_run(pid: int) -> bool:
    """Whether a thread of it runs, or would if other processes let it."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended since
            if (thread / "stat").read_text().rpartition(")")[2].split()[0] == "R":
                return True
    return False


def test_keys_work_over_a_line_that_takes_no_frames(
    start_daemon: StartDaemon, terminal: Callable[..., Terminal]
) -> None:
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--load", "steady", "--interval", "0.1")
    top = terminal("--socket", daemon.socket, "--interval", "0.1")
    nobody_looks(top)
    seen = len(top.raw)
    top.press("q")
    assert top.ends() == 0
    assert len(top.raw) - seen < 500_000, "the frames that nobody saw were not kept for later"


def test_it_ends_when_the_terminal_is_gone(start_daemon: StartDaemon, terminal: Callable[..., Terminal]) -> None:
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--load", "steady", "--interval", "0.1")
    top = terminal("--socket", daemon.socket, "--interval", "0.1")
    nobody_looks(top)
    top.hang_up()
    assert top.ends() == -signal.SIGHUP
