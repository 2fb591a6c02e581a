"""Training under a real daemon: what it shows is what the script did, whatever happens to the daemon."""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neurontools.client import Client
from neurontools.model.process import STEP_PARTS
from neurontools.profile import read_directory
from tests.harness.neuron_run import neuron_run
from tests.harness.restarted_daemon import RestartedDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

Start = Callable[..., "subprocess.Popen[str]"]
SCRIPT = """
import json, os, sys, time, torch, torch_xla, torch_xla.core.xla_model as xm
from torch.utils.flop_counter import FlopCounterMode
device = xm.xla_device()
torch.manual_seed(0)
def make(): return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
cpu = make()
counter = FlopCounterMode(display=False)
with counter: torch.nn.functional.cross_entropy(cpu(torch.randn(16, 64)), torch.randint(0, 10, (16,))).backward()
model = make().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
value, target = torch.randn(16, 64).to(device), torch.randint(0, 10, (16,)).to(device)
while not os.path.exists("stop"):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(value), target)
    loss.backward()
    if steps == 7:  # in the midst of a step, with a graph pending
        child = os.fork()
        if child == 0: os._exit((loss * 2).item() <= 0 or model[0].weight.shape != (32, 64))
        assert os.waitpid(child, 0)[1] == 0
    optimizer.step()
    if len(sys.argv) == 1: xm.mark_step()
    else: loss.item()  # a read in each step
    steps += 1
    open("alive", "w").write(str(steps))
    time.sleep(0.002)
info = xm.get_memory_info(device)
parameters = sum(p.numel() * 4 for p in model.parameters())
print(json.dumps({
    "steps": steps, "flops": counter.get_total_flops(), "parameters": parameters, "bytes": info["bytes_used"],
    # gradients, the loss, the batch and its targets
    "tensors": parameters + 4 + value.nbytes + target.nbytes, "loss": loss.item(),
    "to_device": parameters + value.nbytes + target.nbytes, "from_device": loss.nbytes,
}), flush=True)
sys.stdin.read()
"""


class TrainingHost:
    """A host whose daemon a test starts, and scripts that report to it."""

    def __init__(self, directory: Path, daemon: RestartedDaemon, start_script: Start) -> None:
        self.directory = directory
        self.daemon = daemon
        self.snapshot = daemon.snapshot
        self._start_script = start_script

    def start_daemon(self) -> None:
        self.daemon.start("trn1.2xlarge")

    def start_script(self, text: str = SCRIPT, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        own_cache = {"NEURON_COMPILE_CACHE_URL": str(self.directory / "cache")}  # compilations are counted
        variables = {"NEURONTOOLS_SOCKET": self.daemon.socket, "NEURON_RT_NUM_CORES": "", **own_cache, **environment}
        return self._start_script(text, *arguments, **variables)

    def steps(self) -> int:
        try:
            return int((self.directory / "alive").read_text() or 0)
        except FileNotFoundError:
            return 0

    def go_on(self, count: int = 20) -> None:
        """Waits until the training has done so many steps more."""
        seen = self.steps()
        wait_until(lambda: self.steps() > seen + count)

    def end(self, script: subprocess.Popen[str]) -> dict[str, Any]:
        """Has the training stop; what it says of itself. It waits for its standard input to close then."""
        (self.directory / "stop").touch()
        assert script.stdout is not None
        line = script.stdout.readline()
        assert line, script.stderr.read() if script.stderr else ""
        document: dict[str, Any] = json.loads(line)
        return document


@pytest.fixture
def host(tmp_path: Path, stopped_daemon: RestartedDaemon, start_script: Start) -> TrainingHost:
    return TrainingHost(tmp_path, stopped_daemon, start_script)


def test_every_number_is_the_scripts_own(host: TrainingHost) -> None:
    host.start_daemon()
    inspected = host.directory / "inspected"
    script = host.start_script(
        NEURON_RT_VISIBLE_CORES="1", NEURON_RT_INSPECT_ENABLE="1", NEURON_RT_INSPECT_OUTPUT_DIR=str(inspected)
    )
    host.go_on()
    done = host.end(script)

    def next_snapshot(after_seconds: float) -> Any:
        snapshot = host.snapshot()
        core = snapshot.cores[1]
        is_new = core.measured_at_seconds is not None and core.measured_at_seconds > after_seconds
        # the last execution reads the loss, which is there already
        return snapshot if is_new and (core.executions_total or 0) >= done["steps"] else None

    first = wait_until(lambda: next_snapshot(0.0))
    snapshot = wait_until(lambda: next_snapshot(first.cores[1].measured_at_seconds))
    core, (process,) = snapshot.cores[1], snapshot.processes
    assert process.pid == script.pid
    assert core.executions_total == done["steps"] == process.executions.completed_total
    assert core.flop_total == done["steps"] * done["flops"]
    assert core.memory.constants_bytes == done["parameters"]
    assert core.memory.tensors_bytes == done["tensors"]
    levels = core.memory
    total = levels.constants_bytes + levels.tensors_bytes + levels.model_code_bytes
    total += levels.model_shared_scratchpad_bytes + levels.runtime_memory_bytes
    assert total == done["bytes"]
    assert sum(model.executions_total for model in process.models) == done["steps"]
    assert process.host_memory.dma_buffers_bytes == levels.model_code_bytes > 0
    training = process.training
    assert training.steps_total == done["steps"]
    assert training.samples_total is None  # the script has no loader
    assert training.to_device_bytes_total == done["to_device"]
    assert training.from_device_bytes_total == done["from_device"]
    assert training.compilations_total == len(process.models)
    assert 0 < training.compile_seconds_total < HANG_SECONDS
    assert training.collectives_total == 0
    parts = [getattr(training, part.counter) or 0.0 for part in STEP_PARTS]
    assert sum(parts) <= process.measured_at_seconds - process.counted_since_seconds + 1.0
    assert 0 < training.compute_seconds_total <= core.busy_seconds_total < HANG_SECONDS
    assert training.host_seconds_total > 0
    assert training.input_wait_seconds_total is None
    assert training.compiling_since_seconds is None
    assert 0 < training.last_step_at_seconds <= process.measured_at_seconds
    (work,) = process.core_work
    script.communicate()
    assert script.returncode == 0
    wait_until(lambda: not host.snapshot().processes)

    (profile,) = read_directory(inspected)
    assert sum(profile.graph_totals.column("executions")) == done["steps"]
    operators_seconds = sum(profile.operator_totals.column("total_ns")) / 1e9
    # A core is busy too from an execution's end to the event of that end, if a report is made in between.
    assert sum(model.busy_seconds_total for model in process.models) == pytest.approx(operators_seconds, rel=1e-5)
    assert work.busy_seconds_total > operators_seconds * 0.99999
    assert profile.metadata.logical_neuroncore_config == 1


@pytest.mark.slow
def test_advice_is_shown_while_the_script_runs(host: TrainingHost) -> None:
    host.start_daemon()
    host.start_script(SCRIPT, "reading")
    advice = wait_until(
        lambda: [a for process in host.snapshot().processes for a in process.advice if a.rule == "host-read"]
    )[0]
    line = next(number for number, text in enumerate(SCRIPT.splitlines(), 1) if "a read in each step" in text)
    assert (advice.place or "").endswith(f"script.py:{line}")
    assert "reads a step" in advice.measured
    assert "xm.add_step_closure" in advice.fix


def test_cores_are_one_scripts_until_it_is_killed_and_its_wait_for_a_compilation_is_shown(host: TrainingHost) -> None:
    host.start_daemon()
    first = host.start_script()
    host.go_on()
    assert set(host.daemon.owners()) == {first.pid}
    refused = host.start_script(NEURON_RT_VISIBLE_CORES="0")
    _, errors = refused.communicate()
    assert refused.returncode == 1
    assert "NRT_RESOURCE: NeuronCore(s) not available - Requested:nc0-nc0 Available:0" in errors
    first.kill()
    first.wait()
    wait_until(lambda: not host.snapshot().processes)
    assert host.daemon.owners() == ()

    entries = {path.parent for path in (host.directory / "cache").rglob("model.done")}
    with contextlib.ExitStack() as locks:
        for entry in entries:
            (entry / "model.done").unlink()
            lock = locks.enter_context((entry / "model.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # as another worker does that compiles
        host.start_script()

        def waiting() -> Any:
            for process in host.snapshot().processes:
                if process.training is not None and process.training.compiling_since_seconds is not None:
                    return process
            return None

        process = wait_until(waiting)
        since = process.training.compiling_since_seconds
        assert process.counted_since_seconds - 1.0 <= since <= process.measured_at_seconds
        seen = [since]  # by two clocks that are read one after the other: one is late where the process had to wait

        def stays_while_the_wait_grows() -> bool:
            training = waiting().training
            seen.append(training.compiling_since_seconds)
            return bool(training.compile_wait_seconds_total > 0.5 and seen[-1] - min(seen) < 0.1)

        wait_until(stays_while_the_wait_grows)
    wait_until(lambda: not waiting())


def test_a_required_daemon_that_is_not_there_is_an_error(host: TrainingHost) -> None:
    script = host.start_script(NEURONTOOLS_REQUIRE_DAEMON="1")
    _, errors = script.communicate()
    assert script.returncode == 12
    assert "no monitor daemon at" in errors


INTERRUPTED = """
import sys, torch, torch_xla.core.xla_model as xm
weight = torch.ones(4, 4, device=xm.xla_device())
at, is_struck = 0, True
while is_struck:
    at, left, is_struck = at + 1, at + 1, False
    def strike(frame, event, argument):
        global left, is_struck
        if frame.f_code.co_name != "end": return None
        left -= event == "line"
        if not left:
            sys.settrace(None)
            is_struck = True
            raise KeyboardInterrupt
        return strike
    result = weight @ weight
    sys.settrace(strike)
    try: xm.mark_step()
    except KeyboardInterrupt: pass
    finally: sys.settrace(None)
open("struck", "w").write(str(at))
"""


def test_an_execution_counts_once_wherever_ctrl_c_interrupts_the_record_of_its_end(
    daemon: RestartedDaemon, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(INTERRUPTED)
    variables = {"NEURONTOOLS_SOCKET": daemon.socket, "NEURON_RT_NUM_CORES": "1"}
    run = neuron_run(tmp_path, "-q", "--summary-json", "out.json", "script.py", **variables)
    assert run.returncode == 0, run.stderr
    summary = json.loads((tmp_path / "out.json").read_text())
    assert int((tmp_path / "struck").read_text()) > 5
    with Client(daemon.socket, timeout_seconds=HANG_SECONDS) as client:
        (ended,) = wait_until(lambda: client.ended().processes)
    assert ended.executions is not None
    assert (ended.executions.completed_total, ended.flop_total) == (summary["executions_total"], summary["flop_total"])
