"""Children of a training process, and what becomes of its cores when it dies before them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.reporting_process import PATIENT
from tests.harness.restarted_daemon import RestartedDaemon
from tests.harness.waiting import run_to_end, wait_until

BEGIN = f"""{PATIENT}
import os, signal, sys, threading
from neurontools.runtime import Reporter
reporter = Reporter.attach()
"""
MANY_FORKS = f"""{BEGIN}
model = reporter.load_model("m")
def work():
    "What a child does with the reporter that it inherited: all of it has no effect."
    assert not [t for t in threading.enumerate() if t.name == "neurontools-reporter"]
    for _ in range(600):
        with model.execution(flop=1):
            reporter.add_memory(0, "tensors_bytes", 1)
    assert not reporter.is_monitored
    assert not reporter.flush(60)
    reporter.close()
stop = threading.Event()
def train():
    while not stop.is_set():
        with model.execution(flop=1):
            pass
def flush():
    while not stop.is_set():
        reporter.flush(10)
daemon = int(sys.argv[1])
if daemon:
    os.kill(daemon, signal.SIGSTOP)
threads = [threading.Thread(target=train) for _ in range(3)] + [threading.Thread(target=flush)]
for thread in threads:
    thread.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
if daemon:
    os.kill(daemon, signal.SIGCONT)
for thread in threads:
    thread.join()
arrived = any(reporter.flush(60) for _ in range(9))
print(arrived, reporter.is_monitored, reporter.ignored_calls)
"""
ORPHAN = f"""{BEGIN}
any(reporter.flush(10) for _ in range(9))
child = os.fork()
if child == 0:
    signal.pause()
print(child, flush=True)
signal.pause()
"""
ATTACHING_CHILD = f"""{PATIENT}
import os, signal, threading
from neurontools.runtime import Reporter
mine = Reporter.attach({{"NEURON_RT_NUM_CORES": "1"}} | dict(os.environ))
child = os.fork()
if child == 0:
    def work():
        own = Reporter.attach({{"NEURON_RT_NUM_CORES": "1"}} | dict(os.environ))
        os._exit(0 if any(own.flush(60) for _ in range(9)) and own.cores[0].neuroncore_index == 1 else 1)
    threading.Thread(target=work).start()
    signal.pause()
assert os.waitpid(child, 0)[1] == 0
assert any(mine.flush(60) for _ in range(9)), mine.last_error
print("done")
"""


def run(tmp_path: Path, code: str, socket: str, *arguments: str) -> tuple[int, str, str]:
    """Runs a program of its own that reports to the daemon at `socket`."""
    script = tmp_path / "script.py"
    script.write_text(code)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(script), *arguments]
    environment = {**os.environ, "NEURONTOOLS_SOCKET": socket}
    done = run_to_end(command, env=environment)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped", [False, True])  # then the reporter's thread waits for an answer nearly always
def test_forks_among_busy_threads_neither_hang_nor_disturb(
    daemon: RestartedDaemon, tmp_path: Path, is_stopped: bool
) -> None:
    assert daemon.process is not None
    done = run(tmp_path, MANY_FORKS, daemon.socket, str(daemon.process.pid) if is_stopped else "0")
    assert done == (0, "True True 0\n", "")


def test_forks_while_there_is_no_daemon(socket: str, tmp_path: Path) -> None:
    assert run(tmp_path, MANY_FORKS, socket, "0")[:2] == (0, "False False 0\n")


def test_cores_are_free_when_the_process_dies_before_its_child(daemon: RestartedDaemon) -> None:
    environment = {**os.environ, "NEURONTOOLS_SOCKET": daemon.socket}
    process = subprocess.Popen([sys.executable, "-c", ORPHAN], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        wait_until(lambda: set(daemon.owners()) == {process.pid})
        wait_until(lambda: not any(path.startswith("socket:") for path in open_files(child)))
        process.kill()
        process.wait()
        wait_until(lambda: daemon.owners() == ())
        os.kill(child, 0)  # it is still there
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def open_files(pid: int) -> list[str]:
    """What the descriptors of a process are; one that is closed meanwhile is none any more."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return found


def test_a_forked_child_can_attach_for_itself(daemon: RestartedDaemon, tmp_path: Path) -> None:
    assert run(tmp_path, ATTACHING_CHILD, daemon.socket) == (0, "done\n", "")
