"""Ctrl-C ends a training, whatever the runtime is doing when it comes."""

from __future__ import annotations

import ctypes
import linecache
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest
import torch

from neurontools.runtime.capture.following import following
from neurontools.runtime.tensors.buffer_table import buffers
from tests.harness.paths import PYTHONPATH

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


# Tells when it can be interrupted, and counts the interrupts; the first comes in a call that blocks.
IN_FORWARD = """
import os, sys, time, torch, torch_xla.core.xla_model as xm
weight = torch.ones(4, 4, device=xm.xla_device(), requires_grad=True)
for _ in range(2):
    weight @ weight
    xm.mark_step()
interrupts = 0

def forward():
    if not interrupts:
        time.sleep(3600)
    while True:
        weight @ weight

while interrupts < int(sys.argv[1]):
    try:
        os.write(1, b".")
        forward()
    except KeyboardInterrupt:
        interrupts += 1
os._exit(0)
"""
INTERRUPTS = 150
LONGEST_PAUSE_SECONDS = 0.002
LOST_AFTER_SECONDS = 5.0
"""Python itself loses an interrupt that comes in the callback of a weak reference, as its imports have them."""


def test_an_interrupt_at_any_moment_of_forward_is_raised(device_environment: dict[str, str], tmp_path: Path) -> None:
    """torch asks for the device's guard where nothing may raise, and every twentieth interrupt comes just then."""
    (tmp_path / "script.py").write_text(IN_FORWARD)
    random = Random(1)
    with subprocess.Popen(
        [sys.executable, "-m", "neurontools.runtime", "script.py", str(INTERRUPTS)],
        cwd=tmp_path,
        env={**os.environ, **device_environment, "PYTHONPATH": PYTHONPATH},
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as process:
        assert process.stdout
        assert process.stderr
        is_ready = process.stdout.read(1)
        while is_ready:
            at_seconds = time.perf_counter() + random.uniform(0, LONGEST_PAUSE_SECONDS)
            while time.perf_counter() < at_seconds:
                pass
            process.send_signal(signal.SIGINT)
            if select.select([process.stdout], [], [], LOST_AFTER_SECONDS)[0]:
                is_ready = process.stdout.read(1)
        errors = process.stderr.read().decode()
    assert process.returncode == 0, errors


_RECORDING = ("/capture/", "/tensors/", "/operators/", "<a call of a course>")


def _interrupted_at(line: int, do: Callable[[], Any]) -> bool:
    """Whether the n-th line of the runtime was reached, where a KeyboardInterrupt is raised."""
    left = line

    def strike(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if not any(place in frame.f_code.co_filename for place in _RECORDING):
            return None
        # Python looks for no signals where a block begins or ends, and an exception there would be in none.
        words = linecache.getline(frame.f_code.co_filename, frame.f_lineno).split()
        if event == "line" and words[:1] not in (["with"], ["try:"]):
            left -= 1
            if not left:
                sys.settrace(None)
                raise KeyboardInterrupt
        return strike

    sys.settrace(strike)
    try:
        do()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("steps_before", [0, 2, 6], ids=["recorded", "observed", "followed"])
def test_an_interrupt_at_any_line_of_recording_leaves_no_half_recorded_operator(xla: Any, steps_before: int) -> None:
    value, other = torch.randn(3, 4), torch.randn(4)
    there, other_there = value.to("xla"), other.to("xla")

    def step(value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (value.mul(2.5) + other).relu().max(1)[0].sub(other[1:2])

    expected = step(value, other)
    line = 0
    is_struck = True
    while is_struck:
        line += 1
        following.forget_all()
        for _ in range(steps_before):
            result = step(there, other_there)
            xla.flush_all("Test")
            del result
        is_struck = _interrupted_at(line, lambda: step(there, other_there))
        kept = step(there, other_there)
        again = step(there, other_there)
        xla.flush_all("Test")
        assert torch.equal(kept.cpu(), expected), line
        assert torch.equal(again.cpu(), expected), line
    assert line > 40
    got: list[bool] = []

    def take_lock() -> None:
        got.append(buffers.lock.acquire(blocking=False))
        if got[0]:
            buffers.lock.release()

    thread = threading.Thread(target=take_lock)
    thread.start()
    thread.join()
    assert got == [True], "the runtime's lock was never given back"
