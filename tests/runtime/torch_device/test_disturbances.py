"""Training goes on and its numbers stay right: hooks that raise, forks, a daemon that stops, dies, is out of reach."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.training_host import TrainingHost
from tests.harness.waiting import wait_until

HOOKS = """
import gc, json, sys, torch
device = sys.argv[1]
if device == "xla":
    import torch_xla.core.xla_model as xm
    device = xm.xla_device()
class Broken(Exception): pass
calls = dict(forward=0, backward=0, gradient=0, step=0)
def every(kind, count):
    def hook(*_):
        calls[kind] += 1
        if calls[kind] % count == 0: raise Broken(kind)
    return hook
def train():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(device)
    model[1].register_forward_hook(every("forward", 5))
    model[2].register_full_backward_hook(every("backward", 6))
    model[0].weight.register_hook(every("gradient", 7))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.register_step_pre_hook(every("step", 8))
    caught, losses = [], []
    for step in range(60):
        optimizer.zero_grad()
        value = torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).to(device)
        try:
            loss = model(value).pow(2).mean()
            loss.backward()
            optimizer.step()
        except Broken as error:
            caught.append(str(error))
        if sys.argv[1] == "xla": xm.mark_step()
        losses.append(loss.detach())
    return dict(caught=caught, losses=[l.item() for l in losses], weights=[p.tolist() for p in model.parameters()])
document = train()
gc.collect()
if sys.argv[1] == "xla":
    from neurontools.runtime.tensors.device import device as ours
    from neurontools.runtime.tensors.buffer_table import buffers
    from neurontools.runtime.tensors.memory import Category
    levels = buffers.account_of(ours.current).levels
    document["left"] = levels[Category.CONSTANTS] + levels[Category.TENSORS]
    document["failed"] = ours.current.statistics.failed_executions_total
print(json.dumps(document))
"""
DISTURBED = """
import json, os, sys, torch, torch_xla, torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

class Data(Dataset):
    def __len__(self): return 80
    def __getitem__(self, index): return torch.full((16,), float(index)), torch.tensor(index % 4)

def main():
    device = xm.xla_device()
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    steps = children = 0
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.cross_entropy(torch.nn.Linear(16, 4)(torch.ones(8, 16)), torch.zeros(8).long()).backward()
    while not os.path.exists("stop"):
        for value, target in pl.MpDeviceLoader(DataLoader(Data(), batch_size=8, num_workers=2), device):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(value), target)
            loss.backward()
            if steps % 7 == 0:  # in the midst of a step, with a graph pending
                child = os.fork()
                if child == 0: os._exit(0 if model.weight.shape == (4, 16) else 1)
                assert os.waitpid(child, 0)[1] == 0
                children += 1
            optimizer.step()
            xm.mark_step()
            steps += 1
            with open("alive.new", "w") as file: file.write(str(steps))
            os.rename("alive.new", "alive")
    parameters = [p for p in model.parameters()]
    print(json.dumps({
        "steps": steps, "children": children, "flops": counter.get_total_flops(), "is_finite": loss.isfinite().item(),
        "constants": sum(p.nbytes for p in parameters), "samples": steps * 8,
    }), flush=True)
    sys.stdin.read()

if __name__ == "__main__": main()
"""
EXHAUSTED = """
import json, os, resource, sys, torch, torch_xla, torch_xla.core.xla_model as xm
device = xm.xla_device()
weight = torch.ones(4, 4, device=device, requires_grad=True)
alive = os.open("alive", os.O_RDWR | os.O_CREAT)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
steps = 0
while not os.path.exists("stop"):
    (weight @ weight).sum().backward()
    xm.mark_step()
    steps += 1
    os.pwrite(alive, b"%d" % steps, 0)
    # From here on no descriptor is to be had, by our reporter's thread neither.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3 if os.path.exists("exhaust") else soft, hard))
print(json.dumps({"steps": steps}), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def host(tmp_path: Path, device_environment: dict[str, str]) -> Iterator[TrainingHost]:
    made = TrainingHost(tmp_path, device_environment)
    yield made
    made.close()


def go_on(host: TrainingHost, count: int = 20) -> None:
    """Waits until the training has done so many steps more."""
    seen = host.steps()
    wait_until(lambda: host.steps() > seen + count)


def attached(host: TrainingHost, script: subprocess.Popen[str]) -> None:
    """Waits until the daemon shows the script, with figures."""
    wait_until(lambda: [p.pid for p in host.snapshot().processes if p.executions.completed_total] == [script.pid])


def told(host: TrainingHost, executions: int) -> None:
    """Waits until the daemon shows that the one process has done so many."""
    wait_until(lambda: [p for p in host.snapshot().processes if p.executions.completed_total >= executions])


def end(host: TrainingHost, script: subprocess.Popen[str]) -> dict[str, Any]:
    """Has the training stop; what it says of itself."""
    host.stop()
    assert script.stdout is not None
    line = script.stdout.readline()
    assert line, script.stderr.read() if script.stderr else ""
    document: dict[str, Any] = json.loads(line)
    return document


def test_hooks_that_raise_cost_what_they_cost_on_the_cpu(run_python: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(HOOKS)
    runs = [run_python("-m", "neurontools.runtime", "script.py", device) for device in ("cpu", "xla")]
    assert [run.returncode for run in runs] == [0, 0], runs[1].stderr
    expected, got = (json.loads(run.stdout) for run in runs)
    assert set(expected["caught"]) == {"forward", "backward", "gradient", "step"}
    assert (got.pop("left"), got.pop("failed")) == (0, 0)
    assert got == expected


def test_numbers_resume_and_are_right_after_forks_and_all_that_befalls_a_daemon(host: TrainingHost) -> None:
    host.start_daemon()
    script = host.start_script(DISTURBED, NEURON_RT_VISIBLE_CORES="0")
    attached(host, script)
    go_on(host)
    assert host.daemon is not None
    host.daemon.send_signal(signal.SIGSTOP)
    go_on(host, 50)
    host.daemon.send_signal(signal.SIGCONT)
    seen = host.steps()
    wait_until(lambda: host.snapshot().cores[0].executions_total > seen)
    host.daemon.kill()
    host.daemon.wait()
    go_on(host, 50)
    host.start_daemon()
    attached(host, script)
    host.daemon.send_signal(signal.SIGSTOP)
    go_on(host)
    host.daemon.kill()  # a stopped one
    host.daemon.wait()
    host.start_daemon()
    attached(host, script)
    done = end(host, script)
    told(host, done["steps"])
    (process,) = host.snapshot().processes
    core = host.snapshot().cores[0]
    assert done["children"] > 10
    assert done["is_finite"]
    # The last value is asked for when all has been executed: that is one execution more.
    assert process.executions.completed_total - done["steps"] in (0, 1)
    # A core counts since this daemon began.
    counted, rest = divmod(core.flop_total, done["flops"])
    assert rest == 0
    assert 0 < counted < done["steps"]
    assert core.executions_total - counted in (0, 1)
    assert core.memory.constants_bytes == done["constants"]
    assert (process.training.steps_total, process.training.samples_total) == (done["steps"], done["samples"])


def test_a_reporter_that_gets_no_descriptors_resumes_when_it_does(host: TrainingHost) -> None:
    host.start_daemon()
    script = host.start_script(EXHAUSTED, NEURON_RT_VISIBLE_CORES="0")
    attached(host, script)
    exhaust = host.directory / "exhaust"
    exhaust.touch()
    go_on(host)
    assert host.daemon is not None
    host.daemon.kill()
    host.daemon.wait()
    host.start_daemon()
    go_on(host, 200)
    assert not host.snapshot().processes
    exhaust.unlink()
    attached(host, script)
    done = end(host, script)
    told(host, done["steps"])
    assert script.poll() is None
