"""Processes: what the operating system knows of them, and what a snapshot has of them."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import BinaryIO

import pytest
from neurond.allocator import CoreAllocator, CoreLease, HostShape, RuntimeReport
from neurond.snapshots.sampler import build_process
from neurond.system.processes import MAX_COMMAND_CHARACTERS, ProcessFacts, ProcessTable

from neurontools.driver.neuron_runtime import CoreRequest
from neurontools.model import DeviceMemory, HostMemory, LoadedModel, Process, Subgraph
from tests.harness.waiting import wait_until

CLONE3 = 435
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


def test_what_the_operating_system_knows_is_read_and_what_changes_at_each_refresh(child: Child) -> None:
    facts = ProcessTable().facts(child.pid)
    assert facts.command == f"{sys.executable} -c {SLEEP} --steps two words"
    assert facts.resident_bytes is not None
    assert facts.resident_bytes > 2**20
    assert facts.cpu_user_seconds_total is not None
    assert facts.started_at_unix_seconds is not None
    table = ProcessTable()
    before = table.facts(os.getpid())
    assert table.facts(os.getpid()) is before
    assert before.started_at_unix_seconds is not None
    assert before.started_at_unix_seconds <= facts.started_at_unix_seconds

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
    zombie = ProcessTable().facts(child.pid)
    assert zombie.command == ""
    assert zombie.started_at_unix_seconds is not None
    child.reap()
    table.refresh([child.pid])
    assert table.facts(child.pid).command == known.command
    table.refresh([])
    assert table.facts(child.pid) == ProcessFacts()
    table.refresh([])
    assert table.last_facts(child.pid) == ProcessFacts(command="")
    unseen = ProcessTable()
    for _ in range(2):
        assert unseen.facts(child.pid) == ProcessFacts(), "it died before it was seen"
        unseen.refresh([child.pid])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose a PID")
def test_the_next_process_with_a_pid_is_another_one(child: Child) -> None:
    table = ProcessTable()
    known = table.facts(child.pid)
    child.reap()
    started = wait_until(lambda: start_with_pid(child.pid, sys.executable, "-c", "input()", "--other"))
    try:
        wait_until(lambda: ProcessTable().facts(child.pid).command.endswith("--other"))
        assert table.facts(child.pid, seen_at_unix_seconds=time.time()).command.endswith("--other"), "within a tick"
        table.refresh([child.pid])
        assert table.facts(child.pid).started_at_unix_seconds != known.started_at_unix_seconds
    finally:
        started.close()
        os.waitpid(child.pid, 0)


def start_with_pid(pid: int, *command: str) -> BinaryIO | None:
    """Starts a command under this PID (clone3(2)) and gives its stdin; None while another process has the PID."""
    set_tid = ctypes.c_int(pid)
    wanted = (ctypes.c_uint64 * 11)()
    wanted[4], wanted[8], wanted[9] = signal.SIGCHLD, ctypes.addressof(set_tid), 1  # exit_signal, set_tid, set_tid_size
    reads, writes = os.pipe()
    libc = ctypes.PyDLL(None, use_errno=True)  # which keeps the interpreter's lock: the child has this thread alone
    started = libc.syscall(CLONE3, wanted, ctypes.sizeof(wanted))
    if started == 0:
        os.dup2(reads, 0)
        os.execv(command[0], command)
    os.close(reads)
    if started > 0:
        return os.fdopen(writes, "wb")
    os.close(writes)
    assert ctypes.get_errno() == errno.EEXIST, os.strerror(ctypes.get_errno())
    return None


def test_a_process_that_could_not_be_read_is_read_again(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    "argument",
    [b"\xff\xfe", "\ud800".encode("utf-8", "surrogatepass"), "ä→".encode(), b"x" * 100_000],
    ids=["bytes", "surrogate", "UTF-8", "long"],
)
def test_a_command_line_can_be_sent_whatever_it_is(argument: bytes) -> None:
    child = Child(argument)
    try:
        command = ProcessTable().facts(child.pid).command
    finally:
        child.reap()
    assert command.startswith(sys.executable)
    assert command.encode("utf-8")
    assert (len(command) == MAX_COMMAND_CHARACTERS) == (len(argument) == 100_000)


TRN2 = HostShape(2, 8, 4, 1000, 2, (1, 2))
FACTS = ProcessFacts("python train.py", 900.0, 4096, 3.5, 0.5)


def held(request: CoreRequest) -> CoreLease:
    ledger = CoreAllocator(TRN2)
    ledger.enter("secret", 71, 1000, 950.0)
    return ledger.attach("secret", request, "job", "2.34")


def recorded(holding: CoreLease, now_seconds: float = 0.0, interval_seconds: float = 1.0) -> Process:
    return build_process(holding, FACTS, TRN2, now_seconds, interval_seconds)


def test_a_process_is_silent_after_three_seconds_and_three_intervals() -> None:
    holding = held(CoreRequest(0, 1))
    holding.report = RuntimeReport(100.0, {})
    for interval_seconds, last_second in ((0.05, 3.0), (1.0, 3.0), (5.0, 15.0)):
        assert recorded(holding, 100.0 + last_second, interval_seconds).reporting
        assert not recorded(holding, 100.1 + last_second, interval_seconds).reporting


@pytest.mark.parametrize(
    ("request_", "cores", "devices"),
    [
        (CoreRequest(3, 2), (3, 4), (0, 1)),
        (CoreRequest(3, 2, 1), (3, 4), (0, 0)),
        (CoreRequest(7, 2, 1), (7, 8), (0, 1)),  # across devices
    ],
)
def test_a_model_is_placed_on_the_cores_of_the_host(
    request_: CoreRequest, cores: tuple[int, ...], devices: tuple[int, ...]
) -> None:
    holding = held(request_)
    memory, host_memory = DeviceMemory(tensors_bytes=5), HostMemory(tensors_bytes=6)
    own = tuple(Subgraph(index, index, 0, memory, host_memory) for index in (0, 1))
    holding.report = RuntimeReport(1.0, {}, models=(LoadedModel(10001, "m.neff", "0" * 32, True, own, 8, 9.0),))
    (model,) = recorded(holding).models
    assert (model.model_id, model.name, model.running, model.executions_total) == (10001, "m.neff", True, 8)
    assert [part.index for part in model.subgraphs] == [0, 1]
    assert tuple(part.neuroncore_index for part in model.subgraphs) == cores
    assert tuple(part.device_index for part in model.subgraphs) == devices
    assert {(part.device_memory, part.host_memory) for part in model.subgraphs} == {(memory, host_memory)}
