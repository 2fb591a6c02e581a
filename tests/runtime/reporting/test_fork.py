"""Children of a training process, and what becomes of its cores when it dies before them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.examples import examples
from tests.harness.restarted_daemon import RestartedDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

BEGIN = """
import multiprocessing, os, signal, sys, threading
from neurontools.runtime import Reporter
reporter = Reporter.attach()
model = reporter.load_model("m")
"""

WORK_IN_CHILD = """
def work():
    "What a child does with the reporter that it inherited: all of it has no effect."
    assert not [t for t in threading.enumerate() if t.name == "neurontools-reporter"]
    for _ in range(600):
        with model.execution(flop=1):
            reporter.add_memory(0, "tensors_bytes", 1)
    assert not reporter._journal.notes
    assert not reporter.flush(60)
    reporter.close()
"""

MANY_FORKS = f"""{BEGIN}{WORK_IN_CHILD}
stop = threading.Event()
def train():
    while not stop.is_set():
        with model.execution(flop=1):
            pass
def flush():
    while not stop.is_set():
        reporter.flush(10)
threads = [threading.Thread(target=train) for _ in range(3)] + [threading.Thread(target=flush)]
for thread in threads:
    thread.start()
for _ in range({examples(40)}):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads:
    thread.join()
assert any(reporter.flush(60) for _ in range(9)), reporter.last_error
assert reporter.is_monitored and not reporter.ignored_calls
print("done")
"""

ORPHAN = f"""{BEGIN}
any(reporter.flush(10) for _ in range(9))
child = os.fork()
if child == 0:
    signal.pause()
print(child, flush=True)
signal.pause()
"""

POOLS = f"""{BEGIN}{WORK_IN_CHILD}
def reports(_):
    return reporter is not None and reporter.is_monitored

if __name__ == "__main__":
    for method in sys.argv[1:]:
        context = multiprocessing.get_context(method)
        process = context.Process(target=work)
        process.start()
        process.join()
        assert process.exitcode == 0, method
        with context.Pool(2) as pool:
            assert pool.map(reports, range(4)) == [False] * 4
    assert any(reporter.flush(60) for _ in range(9)), reporter.last_error
    print("done")
"""

SPAWNED = """
import multiprocessing, os
from neurontools.runtime import Reporter

def inherit(_):
    return sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and
                  os.path.exists(f"/proc/self/fd/{fd}"))

def attach(core):
    with Reporter.attach({"NEURON_RT_VISIBLE_CORES": str(core)} | dict(os.environ)) as reporter:
        return reporter.cores[0].neuroncore_index, any(reporter.flush(10) for _ in range(9))

if __name__ == "__main__":
    os.environ["NEURON_RT_NUM_CORES"] = "1"
    reporter = Reporter.attach()
    assert any(reporter.flush(60) for _ in range(9))
    for method in ("spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.map(attach, [7]) == [(7, True)], method
    assert any(reporter.flush(60) for _ in range(9)), reporter.last_error
    print("done")
"""


def run(code: str, socket: str, *arguments: str, tmp_path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program of its own that reports to the daemon at `socket`."""
    if tmp_path is not None:
        script = tmp_path / "script.py"
        script.write_text(code)
        command = [sys.executable, str(script), *arguments]
    else:
        command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, "NEURONTOOLS_SOCKET": socket, "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)


def test_forks_among_busy_threads_neither_hang_nor_disturb(daemon: RestartedDaemon) -> None:
    done = run(MANY_FORKS, daemon.socket)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_forks_while_the_daemon_does_not_answer(daemon: RestartedDaemon) -> None:
    """The reporter's thread then waits for an answer at nearly all times."""
    code = MANY_FORKS.replace("threads = [", "os.kill(int(sys.argv[1]), signal.SIGSTOP)\nthreads = [").replace(
        "stop.set()\n", "stop.set()\nos.kill(int(sys.argv[1]), signal.SIGCONT)\n"
    )
    assert daemon.process is not None
    done = run(
        code,
        daemon.socket,
        str(daemon.process.pid),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_forks_while_there_is_no_daemon(socket: str) -> None:
    code = MANY_FORKS.replace("assert any(reporter.flush", "assert not any(reporter.flush").replace(
        "assert reporter.is_m", "assert not reporter.is_m"
    )
    done = run(code, socket)
    assert (done.returncode, done.stdout) == (0, "done\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_cores_are_free_when_the_process_dies_before_its_child(daemon: RestartedDaemon, number: signal.Signals) -> None:
    environment = {**os.environ, "NEURONTOOLS_SOCKET": daemon.socket}
    process = subprocess.Popen([sys.executable, "-c", ORPHAN], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        wait_until(lambda: set(daemon.owners()) == {process.pid})
        wait_until(lambda: not any(path.startswith("socket:") for path in open_files(child)))
        process.send_signal(number)
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


def test_forked_pools_do_not_report(daemon: RestartedDaemon) -> None:
    done = run(POOLS, daemon.socket, "fork")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_spawned_pools_attach_for_themselves(daemon: RestartedDaemon, tmp_path: Path) -> None:
    done = run(SPAWNED, daemon.socket, tmp_path=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_data_loader_workers_do_not_disturb(daemon: RestartedDaemon, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = f"""{BEGIN}
from torch.utils.data import DataLoader
loader = DataLoader(list(range(64)), batch_size=4, num_workers=2)
for _ in range(3):
    for batch in loader:
        with model.execution(flop=len(batch)):
            pass
assert any(reporter.flush(60) for _ in range(9)), reporter.last_error
print("done")
"""
    done = run(code, daemon.socket, tmp_path=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_forked_child_can_attach_for_itself(daemon: RestartedDaemon) -> None:
    code = """
import os, signal, threading
from neurontools.runtime import Reporter
mine = Reporter.attach({"NEURON_RT_NUM_CORES": "1"} | dict(os.environ))
child = os.fork()
if child == 0:
    def work():
        own = Reporter.attach({"NEURON_RT_NUM_CORES": "1"} | dict(os.environ))
        os._exit(0 if any(own.flush(60) for _ in range(9)) and own.cores[0].neuroncore_index == 1 else 1)
    threading.Thread(target=work).start()
    signal.pause()
assert os.waitpid(child, 0)[1] == 0
assert any(mine.flush(60) for _ in range(9)), mine.last_error
"""
    done = run(code, daemon.socket)
    assert (done.returncode, done.stderr) == (0, "")
