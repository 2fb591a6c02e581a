"""What a script tells of its training by itself."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from neurontools.model import TrainingCounters
from tests.harness import python_process
from tests.harness.reporting_process import PATIENT
from tests.harness.restarted_daemon import RestartedDaemon
from tests.harness.waiting import wait_until

LOOP = f"""{PATIENT}
import json, os, sys, threading, time
from neurontools.runtime import TrainingReport
def loader():
    for value in range(5):
        time.sleep(0.01)
        yield [value] * 4
report = TrainingReport.start()
print(report.is_monitored, threading.active_count(), flush=True)
for batch in report.batches(loader()):
    report.step(samples=len(batch))
with report.checkpoint():
    time.sleep(0.01)
try:
    with report.checkpoint():
        raise OSError
except OSError:
    pass
report.flush()
print("torch" in sys.modules, flush=True)
sys.stdin.readline()
report.close(); report.close(); report.step()
print("closed", flush=True)
sys.stdin.readline()
"""


def training(daemon: RestartedDaemon, pid: int) -> TrainingCounters | None:
    process = daemon.find(pid)
    counters = None if process is None else process.training
    return counters if counters is not None and counters.checkpoints_total else None


def started(arguments: list[str], socket: str, **variables: str) -> subprocess.Popen[str]:
    return python_process.popen(
        [sys.executable, *arguments],
        loaded=python_process.TORCH if "-m" in arguments else (),
        **python_process.PIPES,
        env=python_process.user_environment(NEURONTOOLS_SOCKET=socket, **variables),
    )


def test_a_loop_of_ones_own_tells_steps_samples_input_wait_and_checkpoints(daemon: RestartedDaemon) -> None:
    script = started(["-c", LOOP], daemon.socket, NEURON_RT_VISIBLE_CORES="3")
    assert script.stdout is not None
    assert script.stdout.readline() == "True 3\n", "the threads of reports and of signals"
    assert script.stdout.readline() == "False\n"
    told = wait_until(lambda: training(daemon, script.pid))
    assert (told.steps_total, told.samples_total, told.checkpoints_total) == (5, 20, 1)
    assert (told.input_wait_seconds_total or 0) >= 0.05
    assert (told.checkpoint_seconds_total or 0) >= 0.01
    assert (told.compilations_total, told.collectives_total, told.to_device_bytes_total) == (None, None, None)
    assert 0 < (told.last_step_at_seconds or 0) <= time.monotonic()
    assert told.host_seconds_total is None, "nobody counts it there"
    assert daemon.owners() == (script.pid,)
    assert script.stdin is not None
    print(file=script.stdin, flush=True)
    assert script.stdout.readline() == "closed\n"
    wait_until(lambda: daemon.owners() == ())
    _, errors = script.communicate("\n")
    assert (script.returncode, errors) == (0, "")


def test_without_a_daemon_or_with_cores_that_are_refused_training_goes_on(
    daemon: RestartedDaemon, tmp_path: Path
) -> None:
    for socket, told in ((str(tmp_path / "none.sock"), ""), (daemon.socket, "this training is not reported: ")):
        script = started(["-c", LOOP], socket, NEURON_RT_VISIBLE_CORES="99")
        output, errors = script.communicate("\n")
        assert (script.returncode, output) == (0, "False 1\nFalse\nclosed\n")
        assert errors.startswith(f"neurontools: {told}" if told else "")
        assert len(errors.splitlines()) == bool(told)


IN_THE_RUNTIME = f"""{PATIENT}
import sys, torch, torch_xla.core.xla_model as xm
from neurontools.runtime import TrainingReport
model = torch.nn.Linear(2, 2).to("xla"); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
report = TrainingReport.start()
for batch in report.batches([torch.ones(3, 2)] * 4):
    optimizer.zero_grad(); model(batch.to("xla")).sum().backward(); optimizer.step(); xm.mark_step()
    report.step(samples=3)
with report.checkpoint(): pass
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_on_simulated_cores_it_adds_what_the_runtime_does_not_see(daemon: RestartedDaemon, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(IN_THE_RUNTIME)
    script = started(
        ["-m", "neurontools.runtime", str(tmp_path / "script.py")],
        daemon.socket,
        NEURON_RT_NUM_CORES="1",
        NEURON_COMPILE_CACHE_URL=str(tmp_path / "cache"),
    )
    assert script.stdout is not None
    assert script.stdout.readline() == "done\n"
    told = wait_until(lambda: training(daemon, script.pid))
    assert (told.steps_total, told.checkpoints_total) == (4, 1)
    assert None not in (told.input_wait_seconds_total, told.to_device_bytes_total)
    script.communicate("\n")
    assert script.returncode == 0
