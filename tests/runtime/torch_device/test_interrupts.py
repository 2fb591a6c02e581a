"""Ctrl-C ends a training, whatever the runtime is doing when it comes."""

from __future__ import annotations

import ctypes
import signal
import subprocess
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
import torch

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_an_interrupt_that_comes_while_storage_dies_is_raised(xla: Any) -> None:
    """All in one call of C: the signal comes, then tensors die, and only then Python looks for signals again."""
    tensors = [torch.ones(2).to("xla") for _ in range(3)]
    interrupt = partial(ctypes.CDLL(None)["raise"], signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        deque(map(methodcaller("__call__"), [interrupt, tensors.clear]), maxlen=0)
    assert not tensors


# The signal comes when torch's engine of backward passes calls a Python function of the runtime, in a certain place.
IN_BACKWARD = """
import signal, sys, torch, torch_xla.core.xla_model as xm
weight = torch.ones(4, 4, device=xm.xla_device(), requires_grad=True)

def is_in_engine(frame):
    while frame is not None and frame.f_code.co_name != "run_guarded":
        frame = frame.f_back
    return frame is not None

def strike(frame, event, _argument):
    if event == "call" and "/PLACE/" in frame.f_code.co_filename and is_in_engine(frame.f_back):
        sys.setprofile(None)
        signal.raise_signal(NUMBER)

def handler(number, _frame):
    raise Exception(f"signal {number}")

if NUMBER != signal.SIGINT:
    signal.signal(NUMBER, handler)
before = signal.getsignal(NUMBER)
value = (weight @ weight).relu().sum()
sys.setprofile(strike)
try:
    value.backward()
except (KeyboardInterrupt, Exception) as error:
    print(repr(error))
assert sys.getprofile() is None, "it was never in that place"
assert signal.getsignal(NUMBER) == before
(weight @ weight).sum().backward()
print(weight.grad.cpu().sum().item() > 0)
"""


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, "KeyboardInterrupt()"), (signal.SIGALRM, "Exception('signal 14')")]
)
@pytest.mark.parametrize("place", ["capture", "operators", "tensors"])
def test_a_signal_in_backward_raises_when_it_has_ended(
    run_python: Run, tmp_path: Path, place: str, number: signal.Signals, raised: str
) -> None:
    code = IN_BACKWARD.replace("NUMBER", f"signal.{number.name}").replace("PLACE", place)
    (tmp_path / "script.py").write_text(code)
    done = run_python("-m", "neurontools.runtime", "script.py")
    assert (done.returncode, done.stdout) == (0, f"{raised}\nTrue\n"), done.stderr
