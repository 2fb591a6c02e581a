"""Ctrl-C ends a training, whatever the runtime is doing when it comes."""

from __future__ import annotations

import ctypes
import random
import signal
import subprocess
import sys
import time
from collections import deque
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness import python_process
from tests.harness.paths import PYTHONPATH

INTERRUPTS = 100
TRAINING = """
import signal, sys, torch
from neurontools.runtime.launch.install import install
install()
from neurontools.runtime.tensors.device import device

def lose(unraisable):
    print("lost", repr(unraisable.exc_value), "in", unraisable.object, flush=True)

sys.unraisablehook = lose
def train():
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4))).to("xla")
    optimizer = torch.optim.SGD(model.parameters())
    batch = torch.ones(4, 8).to("xla")
    while True:
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
        device.flush_all("MarkStep")

for _ in range(int(sys.argv[1])):
    try:
        print("training", flush=True)
        train()
    except KeyboardInterrupt:
        pass
print("training", flush=True)
train()
"""


def test_an_interrupt_that_comes_while_storage_dies_is_raised(xla: Any) -> None:
    """All in one call of C: the signal comes, then tensors die, and only then Python looks for signals again."""
    tensors = [torch.ones(2).to("xla") for _ in range(3)]
    interrupt = partial(ctypes.CDLL(None)["raise"], signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        deque(map(methodcaller("__call__"), [interrupt, tensors.clear]), maxlen=0)
    assert not tensors


def test_every_interrupt_of_a_training_ends_it(device_environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRAINING, str(INTERRUPTS)]
    environment = {**device_environment, "PYTHONPATH": PYTHONPATH}
    chance = random.Random(11)
    with python_process.popen(
        command,
        loaded=python_process.TORCH,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment,
    ) as training:
        assert training.stdout
        for _ in range(INTERRUPTS + 1):
            assert training.stdout.readline() == "training\n"
            time.sleep(chance.uniform(0, 0.02))  # not to wait for anything: to come at any moment
            training.send_signal(signal.SIGINT)
        rest, told = training.communicate()
    assert rest == ""
    assert training.returncode == -signal.SIGINT, told
    assert told.rstrip().endswith("KeyboardInterrupt")
