"""The daemon under a service manager: signs of life, priorities, and reading the configuration again."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from neurontools.client import Client
from neurontools.health import Kind
from neurontools.kernel_log.hardware_error import HardwareError
from neurontools.kernel_log.record import KernelRecord
from tests.harness.waiting import HANG_SECONDS, wait_until

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
    """A daemon without a terminal, as service managers start it; its log goes to a file."""

    def __init__(
        self, directory: Path, meanwhile: Callable[[Supervised], object] = lambda _daemon: None, **environment: str
    ) -> None:
        self.directory = directory
        self.socket = str(directory / "n.sock")
        self.log_path = directory / "log"
        (directory / "kmsg").touch()
        self.configure()
        readable, writable = os.pipe()
        command = [sys.executable, "-m", "neurond", "--simulate", "trn1.2xlarge", "--socket", self.socket]
        command += ["--config", str(directory / "neurond.toml"), "--ready-fd", str(writable)]
        with self.log_path.open("wb") as log:
            status = os.fstat(log.fileno())
            stream = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"} if environment.pop("journal", "") else {}
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writable,),
                start_new_session=True,
                env={**os.environ, **stream, **environment},
            )
        os.close(writable)
        meanwhile(self)
        with os.fdopen(readable, "rb") as ready:
            assert ready.readline() == b"ready\n", self.log

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def configure(self, level: str = "info", ratio: float = 0.95, interval: float = 0.05, actions: str = "") -> None:
        text = CONFIGURATION.format(
            directory=self.directory, level=level, ratio=ratio, interval=interval, actions=actions
        )
        (self.directory / "neurond.toml").write_text(text)

    def reload(self, said: str) -> None:
        """Has it read its configuration, and waits until the log says this once more."""
        before = self.log.count(said)
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.log.count(said) > before)

    def kinds(self) -> set[str]:
        with Client(self.socket) as client:
            health = client.snapshot().health
        return {finding.kind for finding in health.findings} if health is not None else set()

    def fails(self) -> None:
        with (self.directory / "kmsg").open("ab") as kernel:
            kernel.write(KernelRecord(1, 1, HardwareError("DMA_ERROR", 0, 0).text()).line())


@contextmanager
def supervised(
    directory: Path, meanwhile: Callable[[Supervised], object] = lambda _daemon: None, **environment: str
) -> Iterator[Supervised]:
    """`meanwhile` is done while it begins."""
    daemon = Supervised(directory, meanwhile, **environment)
    try:
        yield daemon
        daemon.process.terminate()
        assert daemon.process.wait(HANG_SECONDS) == 0
        assert "Traceback" not in daemon.log
    finally:
        daemon.process.kill()
        daemon.process.wait()


def test_a_reload_takes_over_what_can_change_and_names_the_rest(socket_directory: Path) -> None:
    told = socket_directory / "told"
    program = socket_directory / "program"
    program.write_text(f"#!/bin/sh\ncat >>{told}\n")
    program.chmod(0o755)
    with supervised(socket_directory) as daemon:
        pid = daemon.process.pid
        daemon.configure("debug", ratio=0.5, interval=0.1, actions=f'command = ["{program}"]')
        daemon.reload("these settings change with a restart: interval_seconds")
        assert "changed: log_level, health_thresholds, actions" in daemon.log
        daemon.fails()
        wait_until(lambda: told.exists() and told.read_text().endswith("\n"))
        assert json.loads(told.read_text())["finding"]["name"] == "DMA_ERROR"
        assert Kind.KERNEL_ERROR in daemon.kinds(), "what was known is known still"
        daemon.configure("error")
        daemon.process.send_signal(signal.SIGHUP)
        audit = socket_directory / "state/audit.jsonl"
        wait_until(lambda: audit.read_text().count("configuration_read") == 2)
        assert daemon.process.pid == pid
        assert daemon.process.poll() is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[daemon]\nlog_level = 'loud'", "daemon.log_level: "),
        ("[daemons]", "there is no such key"),
        ("[", "not TOML"),
        ("\x00" * 100, "not TOML"),
        ("[actions]\ncommand = ['sh', '-c', 'reboot']", "no absolute path"),
    ],
)
def test_a_configuration_that_is_wrong_changes_nothing(socket_directory: Path, text: str, says: str) -> None:
    with supervised(socket_directory) as daemon:
        (socket_directory / "neurond.toml").write_text(text)
        daemon.reload("the configuration stays as it was")
        assert says in daemon.log
        (socket_directory / "neurond.toml").unlink()
        daemon.reload("the configuration stays as it was")
        daemon.configure()
        daemon.reload("the configuration was read again; changed: nothing")


def test_a_reload_that_is_asked_for_before_it_serves_is_done_then(socket_directory: Path) -> None:
    def hang_up(daemon: Supervised) -> None:
        wait_until(lambda: list(socket_directory.glob("n.sock*")))
        daemon.process.send_signal(signal.SIGHUP)

    with supervised(socket_directory, hang_up) as daemon:
        wait_until(lambda: "the configuration was read again; changed: nothing" in daemon.log)


def test_a_storm_of_reloads_is_one_after_the_other(socket_directory: Path) -> None:
    with supervised(socket_directory) as daemon:
        for _ in range(200):
            daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "was read again" in daemon.log)
        assert daemon.process.poll() is None


def test_what_is_written_while_it_reads_is_read_after(socket_directory: Path) -> None:
    """It reads a FIFO, whose end comes once the file is another one and it was asked again."""
    with supervised(socket_directory) as daemon:
        file = socket_directory / "neurond.toml"
        before = file.read_bytes()
        file.unlink()
        os.mkfifo(file)
        daemon.process.send_signal(signal.SIGHUP)

        def opened() -> int | None:
            with contextlib.suppress(OSError):
                return os.open(file, os.O_WRONLY | os.O_NONBLOCK)
            return None

        fifo = wait_until(opened)
        try:
            os.write(fifo, before)
            file.unlink()
            daemon.configure("debug")
            daemon.process.send_signal(signal.SIGHUP)
        finally:
            os.close(fifo)
        wait_until(lambda: "the configuration was read again; changed: log_level" in daemon.log)


def test_systemd_hears_that_it_lives_and_that_it_reloads(socket_directory: Path) -> None:
    address = socket_directory / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(HANG_SECONDS)
        with supervised(socket_directory, NOTIFY_SOCKET=str(address), WATCHDOG_USEC="200000") as daemon:
            assert manager.recv(200) == b"READY=1"
            assert [manager.recv(200) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            daemon.process.send_signal(signal.SIGHUP)
            said = [manager.recv(200)]
            while said[-1] != b"READY=1":
                said.append(manager.recv(200))
            assert any(state.startswith(b"RELOADING=1\nMONOTONIC_USEC=") for state in said)


@pytest.mark.parametrize(("usec", "pid"), [("0", ""), ("-1", ""), ("x", ""), ("9" * 30, ""), ("200000", "1")])
def test_a_watchdog_that_is_not_for_us_is_told_nothing(socket_directory: Path, usec: str, pid: str) -> None:
    address = socket_directory / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(HANG_SECONDS)
        with supervised(socket_directory, NOTIFY_SOCKET=str(address), WATCHDOG_USEC=usec, WATCHDOG_PID=pid) as daemon:
            assert manager.recv(200) == b"READY=1"
            daemon.process.send_signal(signal.SIGHUP)
            assert manager.recv(200).startswith(b"RELOADING=1")
            assert manager.recv(200) == b"READY=1"


def test_the_journal_gets_priorities_and_a_terminal_words(socket_directory: Path) -> None:
    with supervised(socket_directory, journal="yes") as daemon:
        daemon.fails()
        wait_until(lambda: "<4>device 0: critical: " in daemon.log)
        assert daemon.log.startswith("<6>serving ")


def test_a_daemon_whose_terminal_goes_away_ends(socket_directory: Path) -> None:
    path = socket_directory / "n.sock"
    pid, terminal = pty.fork()
    if not pid:
        command = [sys.executable, "-m", "neurond", "--simulate", "trn1.2xlarge", "--socket", str(path)]
        os.execv(sys.executable, command)
    try:
        said = b""
        while b"serving" not in said:
            said += os.read(terminal, 4096)
        wait_until(lambda: Path(f"{path}.attach").exists())
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not path.exists()
