"""Trainings that tests profile, and how they are run."""

from __future__ import annotations

from pathlib import Path

from tests.harness.neuron_run import neuron_run

TWELVE_STEPS = """
import torch, torch_xla.core.xla_model as xm
device = xm.xla_device()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for number in range(12):
    optimizer.zero_grad()
    output = model(torch.randn(8, 16).to(device))
    loss = torch.nn.functional.cross_entropy(output, torch.zeros(8, dtype=torch.long).to(device))
    loss.backward()
    optimizer.step()
    xm.mark_step()
print(loss.item())
"""
WITH_PROFILER = """
import torch, torch_xla.core.xla_model as xm
from torch.profiler import ProfilerActivity, profile, record_function, schedule, tensorboard_trace_handler
device = xm.xla_device()
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    with record_function("forward"):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 16).to(device)), torch.zeros(8).long().to(device))
    loss.backward()
    optimizer.step()
    xm.mark_step()
for _ in range(3): step()
"""


def output_of(directory: Path, script: str, *options: str) -> str:
    """What a script prints that ends well, run with neuron-run and these options."""
    (directory / "script.py").write_text(script)
    done = neuron_run(directory, "-q", "--simulate", "trn1.2xlarge", *options, "script.py")
    assert done.returncode == 0, done.stderr
    return done.stdout
