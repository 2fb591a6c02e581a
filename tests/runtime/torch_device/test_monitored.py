"""Training under a real daemon: what it shows is what the script did, whatever happens to the daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neurontools.rpc import neuron_pb2, unary

ROOT = Path(__file__).parents[3]
DEADLINE_SECONDS = 60.0
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
executions = 0
while not os.path.exists("stop"):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(value), target)
    loss.backward(); optimizer.step(); xm.mark_step()
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


def until(look: Any) -> Any:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        answer = look()
        if answer:
            return answer
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        time.sleep(0.02)


class Host:
    """A daemon of a test's own, and scripts that report to it."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.socket = str(directory / "n.sock")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NEURON", "XLA_"))}
        self.environment = {
            **kept,
            **environment,
            "NEURONTOOLS_SOCKET": self.socket,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}:{os.environ.get('PYTHONPATH', '')}",
        }
        del self.environment["NEURON_RT_NUM_CORES"]
        self.daemon: subprocess.Popen[bytes] | None = None
        self.scripts: list[subprocess.Popen[str]] = []

    def start_daemon(self) -> None:
        readable, writable = os.pipe()
        command = [sys.executable, "-m", "neurond", "--simulate", "trn1.2xlarge", "--socket", self.socket]
        self.daemon = subprocess.Popen(
            [*command, "--interval", "0.05", "--log-level", "error", "--ready-fd", str(writable)],
            pass_fds=(writable,),
            stdout=subprocess.DEVNULL,
            env=self.environment,
        )
        os.close(writable)
        with os.fdopen(readable, "rb") as ready:
            assert ready.readline() == b"ready\n"

    def start_script(self, text: str = SCRIPT, **environment: str) -> subprocess.Popen[str]:
        (self.directory / "script.py").write_text(text)
        script = subprocess.Popen(
            [sys.executable, "-m", "neurontools.runtime", "script.py"],
            cwd=self.directory,
            env={**self.environment, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.scripts.append(script)
        return script

    def snapshot(self) -> Any:
        reply = unary.call(self.socket, "/neurontools.v1.MonitorService/GetSnapshot", b"", timeout_seconds=5.0)
        return neuron_pb2.GetSnapshotResponse.FromString(reply).snapshot

    def neuron_ls(self) -> list[dict[str, Any]]:
        run = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "neuron-ls"), "-j"],
            capture_output=True,
            env=self.environment,
            check=True,
        )
        document: list[dict[str, Any]] = json.loads(run.stdout)
        return document

    def steps(self) -> int:
        try:
            return int((self.directory / "alive").read_text() or 0)
        except FileNotFoundError:
            return 0

    def stop(self) -> None:
        (self.directory / "stop").touch()

    def close(self) -> None:
        for process in (*self.scripts, self.daemon):
            if process is not None:
                process.kill()
                process.wait()
                for stream in (process.stdin, process.stdout, process.stderr):
                    if stream is not None:
                        stream.close()


@pytest.fixture
def host(tmp_path: Path, device_environment: dict[str, str]) -> Iterator[Host]:
    made = Host(tmp_path, device_environment)
    yield made
    made.close()


def test_every_number_is_the_scripts_own(host: Host) -> None:
    host.start_daemon()
    script = host.start_script(NEURON_RT_VISIBLE_CORES="1")
    until(lambda: host.steps() > 20)
    (device,) = host.neuron_ls()
    assert [process["pid"] for process in device["neuron_processes"]] == [script.pid]
    host.stop()
    assert script.stdout is not None
    line = script.stdout.readline()
    assert line, script.stderr.read() if script.stderr else ""
    done = json.loads(line)

    def settled() -> Any:
        snapshot = host.snapshot()
        # the last one reads the loss, which is there already
        return snapshot if snapshot.cores[1].executions_total >= done["steps"] else None

    snapshot = until(settled)
    time_of_report = snapshot.cores[1].measured_at_seconds
    snapshot = until(lambda: s if (s := host.snapshot()).cores[1].measured_at_seconds > time_of_report else None)
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
    assert not training.HasField("samples_total")  # the script has no loader
    assert training.to_device_bytes_total == done["to_device"]
    assert training.from_device_bytes_total == done["from_device"]
    assert training.compilations_total == len(process.models)
    assert 0 < training.compile_seconds_total < 60
    assert training.collectives_total == 0
    assert 0 < core.busy_seconds_total < 60
    script.communicate()
    until(lambda: not host.snapshot().processes)


def test_training_goes_on_whatever_happens_to_the_daemon(host: Host) -> None:
    script = host.start_script()
    until(lambda: host.steps() > 5)
    host.start_daemon()
    until(lambda: [p.pid for p in host.snapshot().processes] == [script.pid])
    assert host.daemon is not None
    host.daemon.send_signal(signal.SIGSTOP)
    seen = host.steps()
    until(lambda: host.steps() > seen + 20)
    host.daemon.kill()
    host.daemon.wait()
    seen = host.steps()
    until(lambda: host.steps() > seen + 20)
    host.start_daemon()
    until(lambda: [p.pid for p in host.snapshot().processes] == [script.pid])
    until(lambda: host.snapshot().cores[0].executions_total > 0)
    host.stop()
    _, errors = script.communicate()
    assert script.returncode == 0, errors
    assert errors.count("nothing is monitored") == 1


def test_a_killed_process_frees_its_cores(host: Host) -> None:
    host.start_daemon()
    script = host.start_script()
    until(lambda: host.steps() > 5)
    assert all(core.owner_pid == script.pid for core in host.snapshot().cores)
    script.kill()
    script.wait()
    until(lambda: not any(core.HasField("owner_pid") for core in host.snapshot().cores))


def test_cores_that_others_hold_are_refused_in_the_words_of_the_runtime(host: Host) -> None:
    host.start_daemon()
    host.start_script(NEURON_RT_VISIBLE_CORES="0")
    until(lambda: host.steps() > 5)
    second = host.start_script(NEURON_RT_VISIBLE_CORES="0")
    _, errors = second.communicate()
    assert second.returncode == 1
    assert "NRT_RESOURCE: NeuronCore(s) not available - Requested:nc0-nc0 Available:0" in errors


def test_a_required_daemon_that_is_not_there_is_an_error(host: Host) -> None:
    script = host.start_script(NEURONTOOLS_REQUIRE_DAEMON="1")
    _, errors = script.communicate()
    assert script.returncode == 12
    assert "no monitor daemon at" in errors


FORKING = """
import os, torch, torch_xla, torch_xla.core.xla_model as xm
from torch.utils.data import DataLoader, TensorDataset
value = torch.ones(3).to(xm.xla_device())
pending = value + 1
child = os.fork()
if child == 0:
    os._exit(0 if (pending * 2).sum().item() == 12.0 else 3)
assert os.waitpid(child, 0)[1] == 0
assert pending.tolist() == [2.0] * 3
data = TensorDataset(torch.randn(20, 4), torch.arange(20))
for context in ("fork", "spawn"):
    loader = DataLoader(data, batch_size=5, num_workers=2, multiprocessing_context=context)
    assert sum(y.to("xla").sum().item() for x, y in loader) == 190
print("fine")
"""


def test_forked_and_spawned_workers(host: Host) -> None:
    imports, *rest = FORKING.strip().splitlines()
    guarded = "\n".join([imports, "def main():", *("    " + line for line in rest)])
    guarded += "\nif __name__ == '__main__':\n    main()\n"
    host.start_daemon()
    script = host.start_script(guarded)
    output, errors = script.communicate()
    assert output == "fine\n", errors
