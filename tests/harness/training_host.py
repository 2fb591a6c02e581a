"""A daemon of a test's own, and training scripts that report to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from neurontools.rpc import call, neuron_pb2
from tests.harness import python_process
from tests.harness.paths import NEURON_LS, PYTHONPATH
from tests.harness.waiting import HANG_SECONDS

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


class TrainingHost:
    """A daemon of a test's own, and scripts that report to it."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.socket = str(directory / "n.sock")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NEURON", "XLA_"))}
        self.environment = {
            **kept,
            **environment,
            "NEURONTOOLS_SOCKET": self.socket,
            "NEURON_COMPILE_CACHE_URL": str(directory / "cache"),  # of its own: compilations are counted
            "PYTHONPATH": PYTHONPATH,
        }
        del self.environment["NEURON_RT_NUM_CORES"]
        self.daemon: subprocess.Popen[bytes] | None = None
        self.scripts: list[subprocess.Popen[str]] = []

    def start_daemon(self) -> None:
        readable, writable = os.pipe()
        command = [sys.executable, "-m", "neurond", "--simulate", "trn1.2xlarge", "--socket", self.socket]
        self.daemon = python_process.popen(
            [*command, "--interval", "0.05", "--log-level", "error", "--ready-fd", str(writable)],
            loaded=python_process.MONITORS,
            pass_fds=(writable,),
            stdout=subprocess.DEVNULL,
            env=self.environment,
        )
        os.close(writable)
        with os.fdopen(readable, "rb") as ready:
            assert ready.readline() == b"ready\n"

    def start_script(self, text: str = SCRIPT, **environment: str) -> subprocess.Popen[str]:
        (self.directory / "script.py").write_text(text)
        script = python_process.popen(
            [sys.executable, "-m", "neurontools.runtime", "script.py"],
            loaded=python_process.TORCH,
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
        reply = call.call(self.socket, "/neurontools.v1.MonitorService/GetSnapshot", b"", timeout_seconds=HANG_SECONDS)
        return neuron_pb2.GetSnapshotResponse.FromString(reply).snapshot

    def neuron_ls(self) -> list[dict[str, Any]]:
        run = subprocess.run(
            [sys.executable, str(NEURON_LS), "-j"],
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
