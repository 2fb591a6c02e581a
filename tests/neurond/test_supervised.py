"""The daemon as a process: the files of its sockets, signals, signs of life and reading the configuration again."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import pty
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from neurond.service.socket_files import SocketFiles
from neurond.system.lifecycle import watchdog_seconds

from neurontools.driver.kernel_log import HardwareError, KernelRecord
from neurontools.model.finding import FindingKind
from neurontools.util.errors import EXIT_FAILURE, EXIT_PERMISSION, UserError
from tests.harness.json_lines import audit_entries
from tests.harness.running_daemon import Attachment, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")


def refusal(path: Path) -> tuple[int, str]:
    """The exit code and the message when a daemon can't have this socket."""
    with pytest.raises(UserError) as refused:
        SocketFiles(str(path)).claim()
    return refused.value.exit_code, str(refused.value)


def mode(path: Path | str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def files_of(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.suffix != ".log"}


def test_sockets_and_directories_that_are_made_are_for_this_user_alone(
    start_daemon: StartDaemon, socket_directory: Path
) -> None:
    (socket_directory / "tmp").mkdir()
    (socket_directory / "tmp").chmod(0o1777)  # sticky, as /tmp is
    path = socket_directory / "tmp/a/b/n.sock"
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--socket", str(path))  # the later --socket counts
    assert mode(path) == mode(f"{path}.attach") == mode(f"{path}.lock") == 0o600
    assert mode(path.parent) == 0o700
    assert daemon.stop() == 0
    assert files_of(path.parent) == set()
    assert start_daemon(name="tmp/n.sock").snapshot().sequence
    assert mode(socket_directory / "tmp") == 0o1777


@needs_root
def test_the_members_of_a_group_may_use_the_sockets(start_daemon: StartDaemon, socket_directory: Path) -> None:
    group = next(group for group in grp.getgrall() if group.gr_gid != os.getegid())
    path = socket_directory / "made" / "n.sock"
    socket_directory.chmod(0o755)
    start_daemon("--simulate", "trn1.2xlarge", "--socket", str(path), "--group", group.gr_name)
    assert (mode(path.parent), path.parent.stat().st_gid) == (0o750, group.gr_gid)
    for file in (path, Path(f"{path}.attach")):
        assert (mode(file), file.stat().st_gid) == (0o660, group.gr_gid)
    for member, status in ((group.gr_gid, 0), (group.gr_gid + 1, 1)):
        connects = subprocess.run(["test", "-w", path], user=65534, group=member, extra_groups=[], check=False)
        assert connects.returncode == status


def test_a_second_daemon_is_refused(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    assert refusal(Path(first.socket)) == (
        EXIT_FAILURE,
        f"a daemon serves {first.socket} already (PID {first.pid}); stop it, or choose another socket with --socket",
    )
    assert first.snapshot().daemon_pid == first.pid, "the first one goes on"
    Attachment(first).close()


def test_the_socket_of_a_killed_daemon_is_taken_over(start_daemon: StartDaemon, socket_directory: Path) -> None:
    first = start_daemon()
    first.stop(signal.SIGKILL)
    assert files_of(socket_directory) == {"n.sock", "n.sock.attach", "n.sock.lock"}
    second = start_daemon()
    assert second.snapshot().daemon_pid == second.pid != first.pid
    Attachment(second).close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_behind(start_daemon: StartDaemon, socket_directory: Path, number: signal.Signals) -> None:
    daemon = start_daemon()
    attachment = Attachment(daemon)
    attachment.attach()
    assert daemon.stop(number) == 0
    assert files_of(socket_directory) == set()
    assert attachment.connection.recv(1) == b"", "those who are attached are told"
    attachment.close()
    assert "Traceback" not in daemon.log
    assert "Error" not in daemon.log


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_while_the_daemon_starts_leaves_nothing_behind(socket_directory: Path, number: signal.Signals) -> None:
    """The signal comes as soon as there is a lock, in the midst of everything."""
    command = [sys.executable, "-m", "neurond", "--simulate", "trn1.2xlarge", "--socket", f"{socket_directory}/n.sock"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        wait_until((socket_directory / "n.sock.lock").exists)
        process.send_signal(number)
        assert process.wait(HANG_SECONDS) == 0
    assert files_of(socket_directory) == set()


@needs_root
@pytest.mark.parametrize(("owner", "permissions"), [(65534, 0o700), (65534, 0o755), (0, 0o777), (0, 0o770)])
def test_a_directory_that_others_may_change_is_refused(socket_directory: Path, owner: int, permissions: int) -> None:
    """Also one above: another user could put a link there between two looks, and have modes changed elsewhere."""
    theirs, mine = socket_directory / "theirs", socket_directory / "theirs" / "mine"
    mine.mkdir(parents=True)
    os.chown(theirs, owner, -1)
    theirs.chmod(permissions)
    told = (
        EXIT_PERMISSION,
        f"other users may change the directory {theirs}; use one that only you may write to with --socket",
    )
    assert refusal(theirs / "n.sock") == told
    assert files_of(theirs) == {"mine"}
    if permissions != 0o770:  # members of the group are no strangers on the way
        assert refusal(mine / "n.sock") == told
        assert files_of(mine) == set()


def test_other_files_in_the_place_of_a_socket_or_lock_are_left_alone(socket_directory: Path) -> None:
    path, lock, precious = (socket_directory / name for name in ("n.sock", "n.sock.lock", "precious"))
    precious.write_text("data")
    for other in (path, Path(f"{path}.attach")):
        other.write_text("mine")
        assert refusal(path) == (
            EXIT_FAILURE,
            f"{other} exists and is not a socket; remove it, or choose another with --socket",
        )
        assert other.read_text() == "mine"
        assert files_of(socket_directory) == {other.name, "precious"}
        other.unlink()
    lock.symlink_to(precious)
    code, text = refusal(path)
    assert (code, "Too many levels of symbolic links" in text) == (EXIT_FAILURE, True)
    lock.unlink()
    os.link(precious, lock)
    code, text = refusal(path)
    assert (code, "is not a regular file with one name" in text) == (EXIT_PERMISSION, True)
    assert precious.read_text() == "data"
    assert refusal(precious / "n.sock") == (
        EXIT_FAILURE,
        f"can't use the socket {precious}/n.sock (Not a directory); choose another with --socket",
    )


def test_a_file_that_came_in_place_of_a_socket_keeps_its_mode(socket_directory: Path) -> None:
    files = SocketFiles(str(socket_directory / "n.sock"))
    files.claim()
    precious = socket_directory / "precious"
    precious.touch(0o644)
    for is_link in (True, False):
        if is_link:
            (socket_directory / "n.sock").symlink_to(precious)
        else:
            (socket_directory / "n.sock").touch(0o644)
        with pytest.raises(OSError, match=r"n\.sock"):
            files.open_up(files.path)
        assert mode(socket_directory / "n.sock") == 0o644
        (socket_directory / "n.sock").unlink()
    files.release()
    assert files_of(socket_directory) == {"precious"}


def test_a_socket_of_another_program_is_not_taken_while_it_listens(socket_directory: Path) -> None:
    path = socket_directory / "theirs.sock"
    told = f"another program listens on {path}; stop it, or choose another socket with --socket"
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(path))
        theirs.listen()
        assert refusal(path) == (EXIT_FAILURE, told)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
    files = SocketFiles(str(path))
    files.claim()
    assert not path.exists(), "it was a dead one's"
    files.release()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(str(path))
        assert refusal(path) == (EXIT_FAILURE, told)
        assert path.exists()


def test_a_path_with_characters_that_mean_something_in_a_uri(start_daemon: StartDaemon, socket_directory: Path) -> None:
    daemon = start_daemon(name="a b%41#b?ä→.sock")
    assert daemon.snapshot().sequence
    assert daemon.stop() == 0
    assert files_of(socket_directory) == set()


CONFIGURATION = """
[daemon]
kmsg = "{directory}/kmsg"
log_level = "{level}"
interval_seconds = {interval}
state_directory = "{directory}/state"

[health]
memory_used_ratio = {ratio}

[actions]
{actions}
"""


class Supervised:
    """A daemon as service managers start it, with a configuration and a kernel log of its own."""

    def __init__(self, start_daemon: StartDaemon, directory: Path, **environment: str) -> None:
        self.directory = directory
        (directory / "kmsg").touch()
        self.configure()
        self.daemon = start_daemon(
            "--simulate", "trn1.2xlarge", "--config", str(directory / "neurond.toml"), environment=environment
        )

    @property
    def log(self) -> str:
        return self.daemon.log

    def configure(self, level: str = "info", ratio: float = 0.95, interval: float = 0.05, actions: str = "") -> None:
        text = CONFIGURATION.format(
            directory=self.directory, level=level, ratio=ratio, interval=interval, actions=actions
        )
        (self.directory / "neurond.toml").write_text(text)

    def hang_up(self) -> None:
        self.daemon.process.send_signal(signal.SIGHUP)

    def reload(self, said: str) -> None:
        """Has it read its configuration, and waits until the log says this once more."""
        before = self.log.count(said)
        self.hang_up()
        wait_until(lambda: self.log.count(said) > before)

    def fails(self) -> None:
        with (self.directory / "kmsg").open("ab") as kernel:
            kernel.write(KernelRecord(1, 1, HardwareError("DMA_ERROR", 0, 0).text()).line())


Start = Callable[..., Supervised]


@pytest.fixture
def start(start_daemon: StartDaemon, socket_directory: Path) -> Iterator[Start]:
    started: list[Supervised] = []

    def begin(**environment: str) -> Supervised:
        started.append(Supervised(start_daemon, socket_directory, **environment))
        return started[-1]

    yield begin
    for each in started:
        assert each.daemon.stop() == 0


def test_a_reload_takes_over_what_can_change_and_names_the_rest(start: Start, socket_directory: Path) -> None:
    told = socket_directory / "told"
    program = socket_directory / "program"
    program.write_text(f"#!/bin/sh\ncat >>{told}\n")
    program.chmod(0o755)
    supervised = start()
    supervised.configure("debug", ratio=0.5, interval=0.1, actions=f'command = ["{program}"]')
    supervised.reload("these settings need a restart: interval_seconds")
    assert "changed: log_level, health_thresholds, actions" in supervised.log
    supervised.fails()
    wait_until(lambda: told.exists() and told.read_text().endswith("\n"))
    assert json.loads(told.read_text())["finding"]["name"] == "DMA_ERROR"
    assert supervised.daemon.findings(FindingKind.KERNEL_ERROR), "what was known is known still"
    supervised.configure("error")
    supervised.hang_up()
    wait_until(lambda: len(audit_entries(socket_directory / "state", "configuration_read")) == 2)
    assert supervised.daemon.process.poll() is None


def test_a_configuration_that_is_wrong_changes_nothing(start: Start, socket_directory: Path) -> None:
    supervised = start()
    for text, says in (("[", "not TOML"), ("[actions]\ncommand = ['sh', '-c', 'reboot']", "not an absolute path")):
        (socket_directory / "neurond.toml").write_text(text)
        supervised.reload("the configuration is unchanged")
        assert says in supervised.log
    (socket_directory / "neurond.toml").unlink()
    supervised.reload("the configuration is unchanged")
    supervised.configure()
    for _ in range(200):
        supervised.hang_up()
    supervised.reload("the configuration was reloaded; changed: nothing")
    assert supervised.daemon.process.poll() is None, "a storm of reloads is one after the other"


def test_a_reload_that_is_asked_for_before_it_serves_is_done_then(start: Start, socket_directory: Path) -> None:
    lock = socket_directory / "n.sock.lock"

    def hang_up() -> None:
        wait_until(lambda: lock.exists() and lock.read_text().endswith("\n"))
        os.kill(int(lock.read_text()), signal.SIGHUP)

    hanging_up = threading.Thread(target=hang_up)
    hanging_up.start()
    supervised = start()
    hanging_up.join()
    wait_until(lambda: "the configuration was reloaded; changed: nothing" in supervised.log)


@pytest.mark.slow
def test_a_file_that_is_written_while_it_is_read_is_read_again(start: Start, socket_directory: Path) -> None:
    """It reads a FIFO, whose end comes once the file is another one and it was asked again."""
    supervised = start()
    file = socket_directory / "neurond.toml"
    before = file.read_bytes()
    file.unlink()
    os.mkfifo(file)
    supervised.hang_up()

    def opened() -> int | None:
        with contextlib.suppress(OSError):
            return os.open(file, os.O_WRONLY | os.O_NONBLOCK)
        return None

    fifo = wait_until(opened)
    try:
        os.write(fifo, before)
        file.unlink()
        supervised.configure("debug")
        supervised.hang_up()
    finally:
        os.close(fifo)
    wait_until(lambda: "the configuration was reloaded; changed: log_level" in supervised.log)


def test_systemd_hears_that_it_lives_and_that_it_reloads(start: Start, socket_directory: Path) -> None:
    address = socket_directory / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(HANG_SECONDS)
        supervised = start(NOTIFY_SOCKET=str(address), WATCHDOG_USEC="1000000")
        assert manager.recv(200) == b"READY=1"
        assert [manager.recv(200) for _ in range(2)] == [b"WATCHDOG=1"] * 2
        supervised.hang_up()
        said = [manager.recv(200)]
        while said[-1] != b"READY=1":
            said.append(manager.recv(200))
        assert any(state.startswith(b"RELOADING=1\nMONOTONIC_USEC=") for state in said)


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [
        ("200000", "", 0.1),
        ("200000", "our own", 0.1),
        ("200000", "1", None),
        ("0", "", None),
        ("-1", "", None),
        ("x", "", None),
        ("9" * 30, "", None),
        ("", "", None),
    ],
)
def test_a_watchdog_waits_for_this_process_alone(
    monkeypatch: pytest.MonkeyPatch, usec: str, pid: str, seconds: float | None
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "our own" else pid)
    assert watchdog_seconds() == seconds


def test_the_journal_gets_priorities(start: Start, socket_directory: Path) -> None:
    log = socket_directory / "n.log"
    log.touch()
    supervised = start(JOURNAL_STREAM=f"{log.stat().st_dev}:{log.stat().st_ino}")
    supervised.fails()
    wait_until(lambda: "<4>device 0: critical: " in supervised.log)
    assert supervised.log.startswith("<6>serving ")


@pytest.mark.slow
def test_a_daemon_whose_terminal_goes_away_ends(socket_directory: Path) -> None:
    path = socket_directory / "n.sock"
    ours, theirs = pty.openpty()
    command = ["setsid", "--ctty", sys.executable, "-m", "neurond", "--simulate", "trn1.2xlarge", "--socket", str(path)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        try:
            said = b""
            while b"serving" not in said:
                said += os.read(ours, 4096)
            wait_until(lambda: Path(f"{path}.attach").exists())
            os.close(ours)
            assert process.wait(HANG_SECONDS) == 0
        finally:
            process.kill()
    assert not path.exists()
