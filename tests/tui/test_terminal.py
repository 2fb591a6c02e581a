"""neuron-top in a real terminal, against real daemons: a training starts, runs and is killed; nothing hangs."""

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

from neurontools.testing import SimulatedFleet
from neurontools.util.errors import EXIT_FAILURE
from tests.harness import dashboard_terminal
from tests.harness.dashboard_terminal import Terminal
from tests.harness.host_clock import HostClock
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.terminal_screen import TerminalScreen
from tests.harness.waiting import HANG_SECONDS, wait_until

StartTerminal = Callable[..., Terminal]
ANSI = re.compile(r"\x1b[\[\]>=][0-?]*[ -/]*[@-~]?")
ENTER, DOWN, LEAVE_SCREEN = "\r", "\x1b[B", b"\x1b[?1049l"
BUSY = ("--simulate", "trn1.32xlarge", "--load", "steady", "--interval", "0.1")


def quit_from(top: Terminal) -> None:
    top.press("q")
    assert top.ends() == 0


def is_taken_over(top: Terminal) -> None:
    """Waits until Textual has the terminal."""
    while termios.tcgetattr(top.descriptor)[0] & termios.IXON:
        top.read()


def test_a_training_is_seen_from_its_start_to_its_end(
    daemon: RunningDaemon, training: subprocess.Popen[str], terminal: StartTerminal
) -> None:
    top = terminal("--socket", daemon.socket, "--interval", "0.1")
    top.shows("[2]:mlp")
    text = top.until(lambda text: re.search(r"\[ (4|5)\d\.\d\d%\]", text))
    assert "running on i-simulated (trn1.32xlarge)" in text
    assert "libssl" not in Path(f"/proc/{top.pid}/maps").read_text()
    top.press("w")
    # A screen is read while it is drawn: a line may be of both pages for a moment.
    row = re.compile(rf"^[│ ]*{training.pid} .*\bmlp\b.* 0-1 .* 6\.0G", re.MULTILINE)
    top.until(row.search)
    top.press("2", ">[2]:mlp<")
    top.press("\r", f"Process {training.pid}")
    top.press("\x1b")
    top.shows("1 process ")  # Esc and a letter together would be Alt and that letter
    top.press("K", "Send a signal")
    top.press("jjjjjjjj\r", f"Send SIGKILL to PID {training.pid}?")
    top.press("j\r")
    assert training.wait(HANG_SECONDS) == -signal.SIGKILL
    top.shows("no process holds a NeuronCore")
    top.press("e")
    text = top.shows("ended, 2 cores are free")
    assert f"mlp (PID {training.pid})" in text
    top.press("[[", "PAST")
    quit_from(top)
    assert LEAVE_SCREEN in top.raw


@pytest.mark.slow
def test_the_first_frame_says_what_it_does_not_know(shared_daemon: RunningDaemon, terminal: StartTerminal) -> None:
    top = terminal("--socket", shared_daemon.socket, "--page", "health")
    top.shows("LIVE")
    first = top.raw.partition(b"LIVE")[0].decode()
    assert "STARTING" in first
    assert "loading history" in first
    assert "all 16 devices are healthy" in first


@pytest.mark.slow
def test_a_lost_daemon_is_told_and_found_again_and_a_silent_one_holds_nothing_up(
    start_daemon: StartDaemon, terminal: StartTerminal
) -> None:
    flags = ("--simulate", "trn1.32xlarge", "--interval", "0.05", "--load", "steady")
    daemon = start_daemon(*flags)
    top = terminal("--socket", daemon.socket)
    top.shows("LIVE")
    daemon.stop(signal.SIGKILL)
    top.shows("LOST, data")
    top.shows("trying again")
    daemon = start_daemon(*flags)
    top.shows("LIVE")
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        top.until(lambda text: "SILENT, data" in text or "LOST, data" in text)
        quit_from(top)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


@pytest.mark.slow
def test_sizes_of_a_terminal(shared_daemon: RunningDaemon, terminal: StartTerminal) -> None:
    top = terminal("--socket", shared_daemon.socket, "-d", "3,5", width=20, height=5)
    top.shows("NeuronCore v2")
    for number in range(40):
        top.resize(20 + number * 5 % 180, 5 + number % 45)
    top.resize(200, 50)
    top.until(lambda text: "Memory Usage Summary" in text and "Utilization of ND 3,5" in text)
    quit_from(top)
    unknown = terminal("--socket", shared_daemon.socket, width=0, height=0)
    unknown.screen = TerminalScreen(80, 24)
    unknown.shows("q quit")
    unknown.press_until("w", "no process holds")
    unknown.resize(120, 40)
    unknown.until(lambda text: "LIVE" in text.partition("\n")[0][100:])
    quit_from(unknown)


@pytest.mark.slow
def test_a_recording_is_made_and_replayed(start_daemon: StartDaemon, terminal: StartTerminal, tmp_path: Path) -> None:
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.05", "--load", "steady")
    path = tmp_path / "one.neurec"
    top = terminal("--socket", daemon.socket, "--interval", "0.05", "--record", str(path))
    top.shows("one.neurec")
    while path.stat().st_size < 12_000:
        top.read()
    quit_from(top)
    again = terminal("--replay", str(path))
    again.shows("REPLAY")
    again.shows("synthetic-0")
    again.press("L", "REPLAY paused")
    again.press("[", "back [")
    quit_from(again)
    path.write_bytes(path.read_bytes()[:-7])  # the regular end, of 6 bytes, and one of the record before it
    damaged = terminal("--replay", str(path))
    damaged.shows("not whole")
    damaged.press("q")
    assert damaged.ends() == EXIT_FAILURE
    told = damaged.raw.rpartition(LEAVE_SCREEN)[2].decode()
    last = ANSI.sub("", told).strip()
    assert last.startswith("neuron-top: ")
    assert "cut off within a snapshot" in last
    assert "\n" not in last


@pytest.mark.slow
def test_a_terminated_dashboard_gives_the_terminal_back(shared_daemon: RunningDaemon, terminal: StartTerminal) -> None:
    of_many_hosts = ("--hosts", "unix:/nowhere/n.sock")
    for options, words in ((("--socket", shared_daemon.socket), "LIVE"), (of_many_hosts, "lost: no daemon")):
        top = terminal(*options)
        top.shows(words)
        is_taken_over(top)
        os.kill(top.pid, signal.SIGTERM)
        assert top.ends() == -signal.SIGTERM
        assert top.raw.count(LEAVE_SCREEN) == 1


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


@pytest.mark.slow
def test_it_stops_and_comes_back_as_programs_of_a_shell_do(
    shared_daemon: RunningDaemon, terminal: StartTerminal
) -> None:
    top = terminal("--socket", shared_daemon.socket, shell=(sys.executable, "-c", JOB_CONTROL))
    before = termios.tcgetattr(top.descriptor)
    top.shows("LIVE")
    is_taken_over(top)
    for _ in range(2):
        top.press("w", "no process holds")
        top.press("/x", "filter: x")
        top.press("\x1a")
        top.until(lambda _text: top.raw.rstrip().endswith(b"stopped"))
        assert termios.tcgetattr(top.descriptor)[:4] == before[:4]
        top.press("fg\n")
        top.screen = TerminalScreen(120, 40)
        top.shows("filter: x")
        top.shows("LIVE")
        top.press("\x1b")
        top.until(lambda text: "filter:" not in text)
    top.press("/x", "filter: x")
    top.press("\x03")
    assert top.ends() == 0


PUSH_KEYBOARD, POP_KEYBOARD = b"\x1b[>25u", b"\x1b[<u"


def takes_over(top: Terminal, times: int) -> None:
    top.until(lambda _text: top.raw.count(PUSH_KEYBOARD) == times)


@pytest.mark.slow
def test_one_that_is_told_to_go_on_without_having_stopped_gives_back_all_that_it_takes(
    shared_daemon: RunningDaemon, terminal: StartTerminal
) -> None:
    top = terminal("--socket", shared_daemon.socket)
    before = termios.tcgetattr(top.descriptor)
    top.shows("LIVE")
    for times in (2, 3):
        os.kill(top.pid, signal.SIGCONT)
        takes_over(top, times)
    top.shows("LIVE")
    held = os.open(f"/proc/{top.pid}/fd/0", os.O_RDWR | os.O_NOCTTY)
    quit_from(top)
    assert top.raw.count(POP_KEYBOARD) == 3
    assert termios.tcgetattr(held)[:4] == before[:4]
    os.close(held)


@pytest.mark.slow
def test_a_terminal_that_tells_the_mouse_in_pixels_goes_back_to_cells(
    shared_daemon: RunningDaemon, terminal: StartTerminal
) -> None:
    top = terminal("--socket", shared_daemon.socket)
    top.until(lambda _text: b"\x1b[?2048$p" in top.raw)  # whether it tells its size by itself
    top.press("\x1b[?2048;2$y")
    top.until(lambda _text: b"\x1b[?1016h" in top.raw)
    quit_from(top)
    assert b"\x1b[?1016l" in top.raw


# Python loads it by itself: a clock that is as far off as a file says. libfaketime has sleeping threads end in errors.
@pytest.mark.slow
def test_a_clock_that_is_set_stops_nothing(terminal: StartTerminal, socket_directory: Path) -> None:
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
            with dashboard_terminal.training(str(socket)):
                # Whoever looks between the two sees it before it has any.
                top.until(re.compile("(attached, holds|took) 2 cores").search)
                top.shows(" LIVE ")
                clock.set(3480)
                top.shows("the clock of the host was set forward by 1 h 0 m")
            top.shows("ended, 2 cores are free")
            top.shows(" LIVE ")
        finally:
            daemon.terminate()


def nobody_looks(top: Terminal) -> None:
    """Has more drawn than a terminal takes whose other end isn't read, until nothing moves any more."""
    top.shows("LIVE")
    top.press_until("w", "32 processes")
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


@pytest.mark.slow
def test_a_line_that_takes_no_frames_holds_up_no_end(start_daemon: StartDaemon, terminal: StartTerminal) -> None:
    daemon = start_daemon(*BUSY)
    top = terminal("--socket", daemon.socket, "--interval", "0.1")
    nobody_looks(top)
    seen = len(top.raw)
    quit_from(top)
    assert len(top.raw) - seen < 500_000, "the frames that nobody saw were not kept for later"
    gone = terminal("--socket", daemon.socket, "--interval", "0.1")
    nobody_looks(gone)
    gone.hang_up()
    assert gone.ends() == -signal.SIGHUP


def test_many_hosts_into_one_and_back(terminal: StartTerminal) -> None:
    with SimulatedFleet(3, mix="trn1.2xlarge=2,inf2.xlarge", interval_seconds=0.2, processes=3) as fleet:
        top = terminal("--hostfile", fleet.hostfile, "--page", "topology")
        top.shows("3 hosts, 3 live")
        top.shows("─ Hosts, worst first ─")
        top.press("?", "PgUp PgDn Home End: move; Enter: host, open group")
        top.press(ENTER, "coloured by utilization")
        top.press("q", "3 hosts, 3 live")
        fleet.stop("host-002")
        top.shows("2 live, 1 lost")
        top.until(lambda text: " host-002 " in text and "lost: " in text)
        top.press("/host-002", "filter: host-002")
        top.press(ENTER)
        top.until(lambda text: " host-000 " not in text.split("WORST")[-1])
        top.press(ENTER, "host-002: no monitor daemon")
        quit_from(top)


@pytest.mark.slow
def test_what_is_typed_before_the_next_page_is_there_is_for_that(terminal: StartTerminal) -> None:
    with SimulatedFleet(3, mix="trn1.2xlarge", interval_seconds=0.2) as fleet:
        top = terminal("--hostfile", fleet.hostfile)
        top.shows("3 hosts, 3 live")
        top.press(ENTER + "w" + "/no such process" + ENTER, "no process passes the filter")
        top.press("q" + DOWN + "/host" + ENTER, "filter: host")
        top.press(ENTER + "q" + ENTER + "m" + "q" + "/-00", "filter: host-00")


@pytest.mark.slow
def test_hosts_by_user(start_daemon: StartDaemon, terminal: StartTerminal) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.2")
    with (
        SimulatedFleet(1, mix="inf2.xlarge", interval_seconds=0.2) as idle,
        contextlib.closing(Attachment(daemon)) as job,
    ):
        job.attach(core_count=1)
        (process,) = daemon.snapshot().processes
        top = terminal("--hosts", f"unix:{daemon.socket},{idle.places[0].text}")
        top.shows("2 hosts, 2 live")
        for way in ("alike", "type", "job", "user"):
            top.press("b", f"Hosts by {way}")
        top.shows(f"+ {process.user or process.uid}, 1 host")
        top.shows("+ no user, 1 host")
        quit_from(top)
