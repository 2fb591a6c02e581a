"""neuron-run and the end of its workers: signals, and workers that die."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace as Failure

import pytest

from neurontools.runtime.launch.torchrun_agent import root_cause
from neurontools.util.signals import blocking_interrupts
from tests.harness.loaded_interpreter import WHOLE_END
from tests.harness.neuron_run import TRAINING, OnTerminal, Started
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

pytest.importorskip("torch")
Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(*arguments: str, **changes: str) -> Started:
            given = ("--summary-json", "out.json", *arguments)
            return stack.enter_context(closing(Started(tmp_path, *given, **{WHOLE_END: "1"}, **changes)))

        (tmp_path / "script.py").write_text(TRAINING)
        yield begin


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.05")


def of_workers(workers: int) -> tuple[str, ...]:
    return ("-n", "2", "script.py") if workers == 2 else ("script.py",)


@pytest.mark.parametrize(
    ("workers", "number"),
    [
        (1, signal.SIGTERM),
        pytest.param(1, signal.SIGINT, marks=pytest.mark.slow),
        *(pytest.param(2, number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
    ],
)
def test_a_signal_ends_all_workers_and_frees_their_cores(
    start: Start, daemon: RunningDaemon, tmp_path: Path, workers: int, number: signal.Signals
) -> None:
    run = start(*of_workers(workers), socket=daemon.socket)
    pids = [run.pid_of(rank) for rank in range(workers)]
    assert set(daemon.holders()) == set(pids)
    run.process.send_signal(number)
    exit_code, _, errors = run.end()
    # A script that SIGINT interrupts ends as Python does, with a traceback and by the signal.
    assert exit_code == 128 + number, errors
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    wait_until(lambda: daemon.holders() == [])
    summary = json.loads((tmp_path / "out.json").read_text())
    assert (summary["workers"], summary["exit_code"], len(summary["ranks"])) == (workers, 128 + number, workers)


WAITING = """
import os, time, torch, torch_xla.core.xla_model as xm
try:
    value = torch.ones(4, device=xm.xla_device())
    open("waits" + os.environ["RANK"], "w").close()
    if os.environ["RANK"] == "1": time.sleep(1000)
    xm.all_reduce("sum", value)
except KeyboardInterrupt:
    open("interrupted" + os.environ["RANK"], "w").close()
"""


@pytest.mark.slow
def test_an_interrupt_reaches_a_worker_in_a_system_call_and_one_that_waits_for_it(start: Start, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WAITING)
    run = start("-n", "2", "script.py")
    wait_until(lambda: all((tmp_path / f"waits{rank}").exists() for rank in range(2)))
    run.process.send_signal(signal.SIGINT)
    exit_code, _, errors = run.end()
    assert exit_code == 128 + signal.SIGINT, errors
    assert all((tmp_path / f"interrupted{rank}").exists() for rank in range(2)), errors


def test_ctrl_c_while_python_starts_ends_a_worker_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TRAINING)
    command = [sys.executable, "-m", "neurontools.runtime", "script.py"]
    with blocking_interrupts(), subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as worker:
        worker.send_signal(signal.SIGINT)
        assert worker.communicate()[1] == b""
    assert worker.returncode == -signal.SIGINT


def is_running(pid: int) -> bool:
    """Whether a process is there and no mere entry that waits for whoever adopted it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


LAUNCHERS = {
    "neuron-run": TRAINING,
    "neuron-run -n": TRAINING,
    "multiprocessing": """
import multiprocessing, subprocess, sys
def train(rank):
    import os
    os.environ["RANK"] = str(rank)
    os.setsid()  # out of reach of whoever ends a group
    exec(open("training.py").read(), {"__name__": "training"})
if __name__ == "__main__":
    workers = [multiprocessing.get_context("spawn").Process(target=train, args=(rank,)) for rank in range(2)]
    for worker in workers: worker.start()
    other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    open("others", "w").write(str(other.pid))
    for worker in workers: worker.join()
""",
    "torchrun": """
import os, subprocess, sys
flags = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]
cores = {"NEURON_RT_VISIBLE_CORES": "1-2", "NEURON_RT_NUM_CORES": "2"}
command = [sys.executable, "-m", "torch.distributed.run", *flags, "training.py"]
agent = subprocess.Popen(command, env={**os.environ, **cores})
open("others", "w").write(str(agent.pid))
agent.wait()
""",
}
IGNORES = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


@pytest.mark.parametrize(
    "launcher",
    ["neuron-run", "neuron-run -n", *(pytest.param(name, marks=pytest.mark.slow) for name in list(LAUNCHERS)[2:])],
)
def test_workers_do_not_outlive_a_neuron_run_that_is_killed(
    start: Start, daemon: RunningDaemon, tmp_path: Path, launcher: str
) -> None:
    """They ignore SIGTERM, as a script that hangs does."""
    (tmp_path / "training.py").write_text(IGNORES + TRAINING)
    (tmp_path / "script.py").write_text(IGNORES + LAUNCHERS[launcher])
    run = start(*of_workers(2 if launcher == "neuron-run -n" else 1), socket=daemon.socket)
    pids = [run.pid_of(rank) for rank in range(1 if launcher == "neuron-run" else 2)]
    assert set(pids) <= set(daemon.holders())
    if "others" in LAUNCHERS[launcher]:
        others = tmp_path / "others"
        pids.append(int(wait_until(lambda: others.read_text() if others.exists() else None)))
    run.process.kill()
    wait_until(lambda: not any(map(is_running, pids)))
    wait_until(lambda: daemon.holders() == [])


def test_ctrl_c_in_the_terminal(daemon: RunningDaemon, tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text(TRAINING)
    (tmp_path / "script.py").write_text(
        "try: exec(compile(open('training.py').read(), 'training.py', 'exec'))\n"
        "except KeyboardInterrupt: open('interrupts', 'a').write('i')\n"
    )
    with closing(OnTerminal(tmp_path, 120, "script.py", socket=daemon.socket)) as run:
        run.read_until(r"step \d")
        run.type("\x03")
        exit_code, written = run.end()
    assert exit_code == 0, written
    assert (tmp_path / "interrupts").read_text() == "i", "the script was interrupted more than once"
    assert "steps        " in written
    wait_until(lambda: daemon.holders() == [])


DYING = """
import os, signal, sys, torch, torch_xla.core.xla_model as xm
value = torch.ones(4, device=xm.xla_device())
for step in range(3): xm.all_reduce("sum", value); xm.mark_step()
if xm.get_ordinal() == 0:
    os.write(2, b"half of a li")  # as a worker leaves it that is ended in the midst of a traceback
    open("written", "w").close()
    signal.pause()
while not os.path.exists("written"): pass
if sys.argv[1] == "exit": sys.exit(7)
if sys.argv[1] == "raise": raise ValueError("of its own")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("how", "exit_code", "told"),
    [
        pytest.param("exit", 7, "ended with exit code 7; the other one was ended", marks=pytest.mark.slow),
        ("raise", 1, "ended with exit code 1; the other one was ended"),
        pytest.param("kill", 137, "was killed by SIGKILL; the other one was ended", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_dies(start: Start, tmp_path: Path, how: str, exit_code: int, told: str) -> None:
    (tmp_path / "script.py").write_text(DYING)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    run = start("--simulate", "trn1.2xlarge", "-n", "2", "script.py", how, TMPDIR=str(temporary))
    ended, _, errors = run.end()
    assert ended == exit_code, errors
    assert list(temporary.iterdir()) == []
    (line,) = [line for line in errors.splitlines() if line.startswith("neuron-run: ")]
    assert line.startswith("neuron-run: worker 1 (PID ")
    assert line.endswith(told)
    summary = json.loads((tmp_path / "out.json").read_text())
    assert (summary["workers"], summary["exit_code"]) == (2, exit_code)
    told_by = {rank["rank"]: rank["failure"] for rank in summary["ranks"]}
    if how == "raise":
        assert told_by[1] == "ValueError: of its own"
    assert 1 in told_by, "a worker that is killed leaves what it told before"


def test_the_cause_is_the_worker_that_failed_first() -> None:
    failures = {
        0: Failure(exitcode=-15, pid=10, timestamp=1),
        1: Failure(exitcode=1, pid=11, timestamp=1),
        2: Failure(exitcode=7, pid=12, timestamp=2),
        3: Failure(exitcode=9, pid=13, timestamp=3),
    }
    assert root_cause(failures, {})[0] == 1
    assert root_cause(failures, {11: "CollectiveFailed: NRT_EXEC_HW_ERR_COLLECTIVES(1200): …"})[0] == 2
    assert root_cause({0: failures[0]}, {})[0] == 0


@pytest.mark.slow
def test_the_variables_of_the_agent_are_not_those_of_a_worker(start: Start, tmp_path: Path) -> None:
    """Told to use the runtime everywhere, the agent takes no cores all the same."""
    (tmp_path / "script.py").write_text(
        "import os, torch\n"
        "print(torch.ones(2, device='neuron').sum().item(), os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD'))\n"
    )
    run = start(
        "--simulate", "trn1.2xlarge", "-n", "2", "script.py", NEURONTOOLS_RUNTIME="1", NEURONTOOLS_DEVICE="neuron"
    )
    exit_code, output, errors = run.end()
    assert (exit_code, output.split()) == (0, ["2.0", "None"] * 2), errors
