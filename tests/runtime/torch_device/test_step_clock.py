"""Where a training's time goes: each moment in one part, whatever is within what."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from neurontools.runtime.counting.step_clock import COLLECTIVE, COMPILE, COMPUTE, INPUT, TRANSFER, StepClock
from tests.harness.torchrun import torchrun

PARTS = ("host", "compile_wait", "input_wait", "transfer", "compute", "collective_wait")


def seconds(clock: StepClock) -> dict[str, float]:
    times = clock.so_far()
    return {name: getattr(times, name) or 0.0 for name in times.__slots__ if name.removesuffix("_seconds") in PARTS}


class Now:
    """A clock that a test sets."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def test_what_is_within_another_part_is_charged_once() -> None:
    now = Now(9.0)
    clock = StepClock(now)
    read = clock.charged_seconds
    outer = clock.open(COMPUTE, 10.0)
    inner = clock.open(COLLECTIVE, 12.0)
    clock.close_collective(inner, 15.0, wait_seconds=2.0)
    clock.close(outer, 18.0)
    clock.charge(TRANSFER, 9.0, read)
    now.seconds = 19.0
    assert seconds(clock) == {
        "host_seconds": 1.0,
        "compile_wait_seconds": 0.0,
        "input_wait_seconds": 0.0,
        "transfer_seconds": 1.0,
        "compute_seconds": 6.0,
        "collective_wait_seconds": 2.0,
    }


def test_what_lasts_is_known_while_it_lasts_and_nothing_falls() -> None:
    clock = StepClock()
    assert clock.so_far().compiling_since_seconds is None
    assert clock.so_far().input_wait_seconds is None, "no loader was seen"
    began = time.monotonic()
    outer = clock.open(COMPUTE, time.perf_counter())
    inner = clock.open(COMPILE, time.perf_counter())
    first = clock.so_far()
    while (later := clock.so_far()).compile_wait_seconds <= first.compile_wait_seconds:
        pass
    assert later.compiling_since_seconds is not None
    assert began - 0.001 <= later.compiling_since_seconds <= time.monotonic(), "the two clocks are read one by one"
    clock.close(inner, time.perf_counter())
    assert clock.so_far().compiling_since_seconds is None
    clock.close(outer, time.perf_counter())
    waits = clock.open(COLLECTIVE, time.perf_counter())
    before = seconds(clock)
    clock.close_collective(waits, time.perf_counter(), wait_seconds=0.0)
    after = seconds(clock)
    assert all(after[name] >= value for name, value in before.items()), (before, after)


@pytest.mark.parametrize("wait_seconds", [0.0, 1.0, 4.0, 60.0])
def test_parts_are_together_the_time_that_passed_whatever_a_collective_turns_out_to_have_been(
    wait_seconds: float,
) -> None:
    now = Now(100.0)
    clock = StepClock(now)
    now.seconds = 102.0
    waits = clock.open(COLLECTIVE, 102.0)
    now.seconds = 110.0
    told = [seconds(clock)]
    assert told[0]["collective_wait_seconds"] == 8.0, "while it lasts nobody knows better"
    clock.close_collective(waits, 112.0, wait_seconds)
    for at_seconds in (112.0, 113.0, 140.0):
        now.seconds = at_seconds
        told.append(seconds(clock))
        assert sum(told[-1].values()) == pytest.approx(at_seconds - 100.0)
    for earlier, later in pairwise(told):
        assert all(later[name] >= earlier[name] for name in earlier), (earlier, later)
    waited = min(wait_seconds, 10.0)
    assert told[-1]["collective_wait_seconds"] == max(8.0, waited)
    assert told[-1]["compute_seconds"] <= 10.0 - waited
    another = clock.open(COLLECTIVE, 140.0)
    now.seconds = 148.0
    clock.close_collective(another, 148.0, 8.0)
    known = seconds(clock)
    assert known["collective_wait_seconds"] == pytest.approx(waited + 8.0), "by then it has come to what was told"
    assert known["compute_seconds"] == pytest.approx(10.0 - waited)


def test_a_clock_that_begins_when_it_was_read_tells_on_from_there() -> None:
    now = Now(10.0)
    clock = StepClock(now)
    now.seconds = 13.0
    assert clock.so_far().host_seconds == 3.0
    now.seconds = 20.0
    clock.begin()
    assert clock.so_far().host_seconds == 3.0
    now.seconds = 21.0
    assert clock.so_far().host_seconds == 4.0


def test_between_two_boundaries_is_what_was_charged_there() -> None:
    now = Now(10.0)
    clock = StepClock(now)
    now.seconds = 18.0
    assert clock.so_far().host_seconds == 8.0
    clock.charge(TRANSFER, 8.0, 0.0)  # which is known when it has ended
    now.seconds = 19.0
    before_seconds, before = clock.at_boundary()
    clock.charge(COMPUTE, 1.0, 8.0)
    now.seconds = 20.0
    after_seconds, after = clock.at_boundary()
    assert after_seconds - before_seconds == 1.0
    assert [later - earlier for earlier, later in zip(before, after, strict=True)] == [0.0, 0.0, 0.0, 1.0, 0.0]


def test_parts_of_threads_that_overlap_are_no_more_than_the_time() -> None:
    clock = StepClock()
    began = time.perf_counter()
    clock.begin()

    def busy(part: int) -> None:
        for _ in range(200):
            entry = clock.open(part, time.perf_counter())
            sum(range(100))
            clock.close(entry, time.perf_counter())

    threads = [threading.Thread(target=busy, args=(part,)) for part in (COMPUTE, INPUT, COMPILE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = seconds(clock)
    host = known.pop("host_seconds")
    assert sum(known.values()) <= time.perf_counter() - began
    assert host >= 0.0


SCRIPT = """
import json, time, torch, torch_xla.core.xla_model as xm
from torch.utils.data import DataLoader
from neurontools.runtime.counting.step_clock import step_clock
from neurontools.runtime.launch.observation import training_counters
from neurontools.model.training import STEP_PARTS
device = xm.xla_device()
kind = %r
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.randn(300, 300)
model = torch.nn.Linear(300, 300).to(device)
loader = DataLoader(Slow(), batch_size=1)
if kind == "ahead":
    from torch_xla.distributed.parallel_loader import MpDeviceLoader
    loader = MpDeviceLoader(loader, device)
earliest, before, began = time.perf_counter(), training_counters(), time.perf_counter()
for batch in loader:
    loss = model(batch.to(device)).sum()
    loss.backward()
    xm.mark_step()
    loss.item()
    if kind == "ahead": time.sleep(0.03)
ended, after, latest = time.perf_counter(), training_counters(), time.perf_counter()
names = [part.counter for part in STEP_PARTS]
print(json.dumps({"shortest": ended - began, "longest": latest - earliest, **{
    name: (getattr(after, name) or 0.0) - (getattr(before, name) or 0.0) for name in names}}))
"""


@pytest.mark.parametrize("kind", ["in step", "ahead"])
def test_the_parts_of_a_script_add_up_to_its_time(run_python: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT % kind)
    run = run_python("-m", "neurontools.runtime", "script.py")
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    shortest, longest = told.pop("shortest"), told.pop("longest")  # the time that was counted lies in between
    assert 0.9 * shortest <= sum(told.values()) <= 1.1 * longest
    for part in ("compute", "compile_wait", "transfer"):
        assert told[f"{part}_seconds_total"] > 0.0, told
    assert told["collective_wait_seconds_total"] == 0.0
    waited = told["input_wait_seconds_total"]
    if kind == "in step":
        assert waited >= 6 * 0.02
        assert told["host_seconds_total"] <= longest - waited
    else:
        assert told["host_seconds_total"] >= 6 * 0.03, "who sleeps while a thread loads does not wait for input"


RANKS = """
import json, os, time, torch, torch.distributed as dist, torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
from neurontools.runtime.counting.step_clock import step_clock
dist.init_process_group("xla")
rank, device = dist.get_rank(), xm.xla_device()
model = torch.nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
value = torch.randn(8, 64).to(device)
def train(steps, seconds):
    for step in range(steps):
        optimizer.zero_grad()
        model(value).pow(2).mean().backward()
        if rank == 0: open(f"{seconds} {step}", "w").close()
        while not os.path.exists(f"{seconds} {step}"): time.sleep(0.005)  # the other one has had the CPU that it needs
        if rank == 1: time.sleep(seconds)
        xm.optimizer_step(optimizer)
        xm.mark_step()
train(5, 0.0)
before = step_clock.so_far().collective_wait_seconds
train(10, 0.1)
waited = step_clock.so_far().collective_wait_seconds - before
sums = [None, None]
dist.all_gather_object(sums, waited)
if rank == 0: print(json.dumps(sums))
dist.destroy_process_group()
"""


def test_who_waits_for_a_slow_rank_says_so_and_the_slow_one_does_not(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(RANKS)
    run = torchrun(run_python, "script.py")
    assert run.returncode == 0, run.stderr[-3000:]
    waiting, slow = json.loads(run.stdout)
    assert waiting >= 0.3, "of the second that the other slept; the rest is for estimates on a busy machine"
    assert slow < waiting
