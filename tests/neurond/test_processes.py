from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from neurond.system.processes import MAX_COMMAND_CHARACTERS, ProcessFacts, ProcessTable

from tests.harness.waiting import wait_until

SLEEP = "import sys; print(flush=True); sys.stdin.read()"


class Child:
    """A process that runs until its end is asked for."""

    def __init__(self, *arguments: str | bytes) -> None:
        command = [sys.executable, "-c", SLEEP, *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL; it stays a zombie until `reap`."""
        self.process.kill()
        wait_until(lambda: os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT))

    def reap(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child("--steps", "two words")
    yield child
    child.reap()


def test_what_the_operating_system_knows(child: Child) -> None:
    facts = ProcessTable().facts(child.pid)
    assert facts.user == pwd.getpwuid(os.geteuid()).pw_name
    assert facts.command == f"{sys.executable} -c {SLEEP} --steps two words"
    assert facts.resident_bytes is not None
    assert facts.resident_bytes > 2**20
    assert facts.cpu_user_seconds_total is not None
    assert facts.started_at_unix_seconds is not None
    mine = ProcessTable().facts(os.getpid())
    assert mine.started_at_unix_seconds is not None
    assert mine.started_at_unix_seconds <= facts.started_at_unix_seconds


def test_what_changes_is_read_at_each_refresh() -> None:
    table = ProcessTable()
    before = table.facts(os.getpid())
    assert table.facts(os.getpid()) is before

    def grows() -> bool:
        sum(range(100_000))
        table.refresh([os.getpid()])
        now = table.facts(os.getpid()).cpu_user_seconds_total
        return now is not None and now > (before.cpu_user_seconds_total or 0)

    wait_until(grows)


def test_a_process_that_died_keeps_its_last_facts_until_it_is_forgotten(child: Child) -> None:
    table = ProcessTable()
    known = table.facts(child.pid)
    child.kill()
    table.refresh([child.pid])
    assert table.facts(child.pid).command == known.command
    child.reap()
    table.refresh([child.pid])
    assert table.facts(child.pid).command == known.command
    table.refresh([])
    assert table.facts(child.pid) == ProcessFacts()
    table.refresh([])
    assert not table._facts
    assert not table._processes


def test_a_process_that_died_before_it_was_seen_is_unknown(child: Child) -> None:
    child.reap()
    table = ProcessTable()
    assert table.facts(child.pid) == ProcessFacts()
    table.refresh([child.pid])
    assert table.facts(child.pid) == ProcessFacts()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose the next PID")
def test_the_next_process_with_a_pid_is_another_one(child: Child) -> None:
    table = ProcessTable()
    known = table.facts(child.pid)
    child.reap()

    def again() -> Child | None:
        last_pid = Path("/proc/sys/kernel/ns_last_pid")
        last = last_pid.read_text("ascii")
        last_pid.write_text(str(child.pid - 1), "ascii")
        other = Child("--other")
        last_pid.write_text(last, "ascii")  # others have no PIDs of those that ended lately
        if other.pid == child.pid:
            return other
        other.reap()
        return None

    other = wait_until(again)
    try:
        assert table.facts(child.pid, seen_at_unix_seconds=time.time()).command.endswith("--other"), "within a tick"
        table.refresh([child.pid])
        now = table.facts(child.pid)
        assert now.command.endswith("--other")
        assert now.started_at_unix_seconds != known.started_at_unix_seconds
    finally:
        other.reap()


def test_a_zombie_has_no_command_line(child: Child) -> None:
    child.kill()
    facts = ProcessTable().facts(child.pid)
    assert facts.command == ""
    assert facts.started_at_unix_seconds is not None


def test_a_process_that_could_not_be_read_is_read_again(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the daemon is out of file descriptors for a while."""
    import psutil

    table = ProcessTable()
    with monkeypatch.context() as limited:

        def fail(*_: object) -> None:
            raise OSError(24, "Too many open files")

        limited.setattr(psutil.Process, "__init__", fail)
        assert table.facts(child.pid) == ProcessFacts()
        table.refresh([child.pid])
    table.refresh([child.pid])
    assert table.facts(child.pid).command.endswith("two words")


@pytest.mark.parametrize("argument", [b"\xff\xfe", "\ud800".encode("utf-8", "surrogatepass"), "ä→".encode()])
def test_a_command_line_that_is_not_utf_8_can_be_sent(argument: bytes) -> None:
    child = Child(argument)
    try:
        command = ProcessTable().facts(child.pid).command
    finally:
        child.reap()
    assert command.startswith(sys.executable)
    assert command.encode("utf-8")


def test_a_long_command_line_is_cut() -> None:
    child = Child("x" * 100_000)
    try:
        assert len(ProcessTable().facts(child.pid).command) == MAX_COMMAND_CHARACTERS
    finally:
        child.reap()
