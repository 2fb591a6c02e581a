"""What a training is said to do: where its time goes, by operators and by lines, and what a usual step asks for."""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from neurontools.profile.definitions import SourceLine
from neurontools.rpc.report_limits import MOST_OPERATORS
from neurontools.runtime.counting.metrics import CallSiteCounter, RuntimeMetrics, TracedOperators
from neurontools.runtime.counting.steps import COLLECTIVE, COMPUTE, TRANSFER, StepBoundaries, StepClock
from neurontools.runtime.execution.graph_description import GraphChanges
from neurontools.runtime.execution.work import DeviceCounts, ExecutionWork, OperatorSamples, OperatorTimes, SteadyState

PARTS = ("host", "compile_wait", "input_wait", "transfer", "compute", "collective_wait")


def seconds(clock: StepClock) -> dict[str, float]:
    times = clock.read_times()
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
    assert clock.read_times().host_seconds == 3.0
    now.seconds = 20.0
    clock.begin()
    assert clock.read_times().host_seconds == 3.0
    now.seconds = 21.0
    assert clock.read_times().host_seconds == 4.0


def test_between_two_boundaries_is_what_was_charged_there() -> None:
    now = Now(10.0)
    clock = StepClock(now)
    now.seconds = 18.0
    assert clock.read_times().host_seconds == 8.0
    clock.charge(TRANSFER, 8.0, 0.0)  # which is known when it has ended
    now.seconds = 19.0
    before_seconds, before = clock.read_charges()
    clock.charge(COMPUTE, 1.0, 8.0)
    now.seconds = 20.0
    after_seconds, after = clock.read_charges()
    assert after_seconds - before_seconds == 1.0
    assert [later - earlier for earlier, later in zip(before, after, strict=True)] == [0.0, 0.0, 0.0, 1.0, 0.0]


PARTS_OF_A_SCRIPT = """
import json, time, torch, torch_xla.core.xla_model as xm
from torch.utils.data import DataLoader
from torch_xla.distributed.parallel_loader import MpDeviceLoader
from neurontools.runtime.launch.training_statistics import training_counters
from neurontools.model.process import STEP_PARTS
device = xm.xla_device()
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.randn(300, 300)
def train(width, pause_seconds, loader):
    model = torch.nn.Linear(300, width).to(device)
    earliest, before, began = time.perf_counter(), training_counters(), time.perf_counter()
    for batch in loader:
        loss = model(batch.to(device)).sum()
        loss.backward()
        xm.mark_step()
        loss.item()
        time.sleep(pause_seconds)
    ended, after, latest = time.perf_counter(), training_counters(), time.perf_counter()
    parts = {p.counter: (getattr(after, p.counter) or 0.0) - (getattr(before, p.counter) or 0.0) for p in STEP_PARTS}
    print(json.dumps({"shortest": ended - began, "longest": latest - earliest, **parts}))
train(300, 0.0, DataLoader(Slow()))
train(200, 0.03, MpDeviceLoader(DataLoader(Slow()), device))
"""


def test_the_parts_of_a_script_add_up_to_its_time(run_script: Callable[..., Any]) -> None:
    run = run_script(PARTS_OF_A_SCRIPT)
    for is_loaded_ahead, line in enumerate(run.stdout.splitlines()):
        told = json.loads(line)
        shortest, longest = told.pop("shortest"), told.pop("longest")  # the time that was counted lies in between
        assert 0.9 * shortest <= sum(told.values()) <= 1.1 * longest
        for part in ("compute", "compile_wait", "transfer"):
            assert told[f"{part}_seconds_total"] > 0.0, told
        assert told["collective_wait_seconds_total"] == 0.0
        if is_loaded_ahead:
            assert told["host_seconds_total"] >= 6 * 0.03, "who sleeps while a thread loads does not wait for input"
        else:
            waited = told["input_wait_seconds_total"]
            assert waited >= 6 * 0.02
            assert told["host_seconds_total"] <= longest - waited


OPERATORS_OF_A_SCRIPT = """
import json, torch, torch_xla.core.xla_model as xm
from neurontools.runtime.launch.device_registration import executor
from neurontools.runtime.tensors.device import device as d
device = xm.xla_device()
first, second = torch.randn(4, 400_000).to(device), torch.randn(400_000, 4).to(device)
total = torch.zeros(4, 4).to(device)
told = []
for step in range(160):
    total = total + torch.tanh(first @ second)
    xm.mark_step()
    if step in (5, 159): told.append([[o.name, o.seconds_total, o.executions_total] for o in executor().operators()])
print(json.dumps([told, d.current.statistics.busy_seconds, d.current.statistics.executions_total]))
"""


def test_operators_of_a_script(run_script: Callable[..., Any]) -> None:
    run = run_script(OPERATORS_OF_A_SCRIPT)
    (early, late), busy_seconds, executions = json.loads(run.stdout)
    assert [name for name, *_ in early] == [""], "nothing was timed yet: it is all in the rest"
    known = {name: (seconds, count) for name, seconds, count in late}
    assert {"aten::tanh", "aten::add.Tensor"} <= known.keys()
    assert sum(seconds for seconds, _ in known.values()) == pytest.approx(busy_seconds, rel=0.01)
    assert sum(count for _, count in known.values()) == 3 * executions


@dataclass
class Program:
    """A program as `OperatorTimes` sees one."""

    samples: OperatorSamples
    executions: int = 0

    def execute(self, seconds: float, times_ns: tuple[int, ...] | None = None) -> None:
        self.executions += 1
        self.samples.seconds += seconds
        if times_ns is not None:
            self.samples.add_times(times_ns)


def program(*names: str) -> Program:
    return Program(OperatorSamples(names))


def test_a_programs_time_is_shared_by_its_timed_executions() -> None:
    times, one = OperatorTimes(), program("mm", "add", "mm")
    one.execute(2.0)
    assert [(o.name, o.seconds_total, o.executions_total) for o in times.totals_by_operator([one])] == [("", 2.0, 3)]
    one.execute(4.0, (0, 60, 70, 100))
    first = times.totals_by_operator([one])
    assert [(o.name, o.seconds_total, o.executions_total) for o in first] == [
        ("mm", pytest.approx(3.6), 2),
        ("add", pytest.approx(0.4), 1),
        ("", 2.0, 3),
    ]
    one.execute(1.0, (0, 0, 100, 100))
    later = {o.name: o.seconds_total for o in times.totals_by_operator([one])}
    assert all(later[o.name] >= o.seconds_total for o in first), "counters only grow"
    assert sum(later.values()) == pytest.approx(7.0)
    assert times.totals_by_operator([]) == times.totals_by_operator([one]), "what was unloaded stays counted"


def test_only_so_many_kinds_are_told_and_the_rest_together() -> None:
    times, many = OperatorTimes(), program(*(f"op{number}" for number in range(40)))
    many.execute(40.0, tuple(number * number for number in range(41)))
    found = times.totals_by_operator([many])
    assert len(found) == MOST_OPERATORS
    assert [o.name for o in found[:2]] == ["op39", "op38"]
    assert found[-1].name == ""
    assert sum(o.seconds_total for o in found) == pytest.approx(40.0)


def test_the_line_is_the_script_s_and_not_a_library_s() -> None:
    found = CallSiteCounter()
    before = sys._getframe().f_lineno
    found.count_call("read")
    json.loads("{}", object_hook=lambda _: found.count_call("read"))
    assert {(what, Path(file).name, line - before): n for (what, file, line), n in found.counts.items()} == {
        ("read", "test_counting.py", 1): 1,
        ("read", "test_counting.py", 2): 1,
    }
    found = CallSiteCounter()
    exec(compile("note('read')", json.__file__, "exec"), {"note": found.count_call, "__name__": "json"})
    assert Path(next(iter(found.counts))[1]).name == "test_counting.py"  # who called the library


@pytest.mark.parametrize(
    ("file", "cause"),
    [
        ("lightning/pytorch/trainer/result.py", "library graph by lightning"),
        ("transformers/models/gpt2/modeling_gpt2.py", "graph"),
        ("torchvision/ops/misc.py", "graph"),
    ],
)
def test_a_graph_of_the_loop_of_a_library_is_not_the_script_s(file: str, cause: str) -> None:
    found = CallSiteCounter()
    inner = SourceLine(f"/env/lib/python3.11/site-packages/{file}", 5, "f", is_package=True)
    found.count_call("graph", [inner, SourceLine("train.py", 7, "main")], names_package=True)
    assert found.counts == {(cause, "train.py", 7): 1}


def test_what_happens_often_in_one_step_is_in_one_step() -> None:
    found = CallSiteCounter()
    for found.step in range(3):
        for _ in range(4 if found.step == 1 else 1):
            found.count_call("read")
    (place,) = found.counts
    assert (found.counts[place], found.steps[place]) == (6, 3)


def test_the_report_of_metrics_has_the_format_of_torch_xla() -> None:
    metrics = RuntimeMetrics()
    for milliseconds in range(1, 101):
        metrics.add_duration("ExecuteTime", milliseconds / 1e3)
    for nbytes in (4, 60, 8):
        metrics.add_sample("InboundData", nbytes)
    metrics.add_tracing(1.5)
    metrics.add_tracing(250e-6)
    metrics.increment("MarkStep", 3)
    metrics.count_operators({"xla::add": 2})
    replayed = TracedOperators({"xla::add": 1, "xla::mul": 2})
    for _ in range(300):
        metrics.count_replay(replayed)
    metrics.count_tensor()
    text = metrics.report({**metrics.counters, **metrics.operator_counters()})
    assert text.splitlines() == [
        *("Metric: ExecuteTime", "  TotalSamples: 100", "  Accumulator: 5s050ms"),
        "  Percentiles: 1%=1.003ms; 5%=4.977ms; 50%=50.061ms; 90%=90.045ms; 95%=94.638ms; 99%=99.466ms",
        *("Metric: InboundData", "  TotalSamples: 3", "  Accumulator: 72", "  Largest: 60"),
        *("Metric: LazyTracing", "  TotalSamples: 2", "  Accumulator: 1s500ms"),
        *("Counter: CreateXlaTensor", "  Value: 1", "Counter: MarkStep", "  Value: 3"),
        *("Counter: xla::add", "  Value: 302", "Counter: xla::mul", "  Value: 600"),
    ]


def test_places_are_bounded() -> None:
    found = CallSiteCounter()
    for number in range(1000):
        found.count_call(f"fallback {number}")
    assert len(found.counts) == 256
    found.count_call("fallback 0")


def graph(*shapes: str, operators: int = 1, arguments: str = "%0") -> str:
    inputs = [f"%{number} = input {shape}" for number, shape in enumerate(shapes)]
    calls = [f"%{number + 9} = aten::relu({arguments}) -> (x) of %0" for number in range(operators)]
    return "\n".join([*inputs, *calls, "alive %9"])


def test_what_changed_is_the_first_input_that_differs() -> None:
    changes = GraphChanges()
    changes.add_graph(graph("float32[4,8]{8,1}", "float32[8]{1}"))
    assert list(changes.latest) == []
    changes.add_graph(graph("float32[5,8]{8,1}", "float32[8]{1}"))
    changes.add_graph(graph("float32[5,8]{1,5}", "float32[8]{1}"))
    changes.add_graph(graph("float32[5,8]{1,5}", "float32[8]{1}", "float32[8]{1}"))
    for arguments in ("%0", "%0", "%0:float32[4,8]{8,1}", "%0:float32[3,8]{8,1}", "%0:float32[3,8]{8,1}, 0.5"):
        changes.add_graph(graph("float32[5,8]{1,5}", "float32[8]{1}", operators=3, arguments=arguments))
    assert list(changes.latest) == [
        "an input is float32[5,8] where it was float32[4,8]",
        "an input is float32[5,8]{1,5} where it was float32[5,8]{8,1}",
        "it has 3 inputs where it had 2",
        "it has 3 operators, the one before has 1",
        "other results of it are needed later",
        "a constant of aten::relu has changed",
        "aten::relu uses float32[3,8] where it used float32[4,8]",
        "a constant of aten::relu has changed",
    ]


TRAINING = ExecutionWork(Counter(float32=30), tensors_total=7, moved_bytes=100)
FORWARD = ExecutionWork(Counter(float32=10), tensors_total=3, moved_bytes=40)
EVALUATION = ExecutionWork(Counter(float32=10), tensors_total=3, moved_bytes=40)
USUAL = (4, 1, 1, 30, 7, 100)


class Training:
    """One that counts a batch of 4 samples for each step."""

    def __init__(self) -> None:
        self.counted = SteadyState()
        self.batches = 0

    def step(self, *executed: ExecutionWork) -> None:
        self.batches += 1
        self.counted.step_done(DeviceCounts(4 * self.batches, self.batches, 2 * self.batches, 0))
        self.run(*executed)

    def run(self, *executed: ExecutionWork) -> None:
        for work in executed:
            self.counted.executed(work)

    def totals(self) -> tuple[int, int, int]:
        """Steps, executions and FLOPs."""
        steps, _, executions, work = self.counted.total() or pytest.fail("nothing was counted")
        return steps, executions, work.flops

    def a_step(self) -> tuple[float, ...]:
        steps, counts, executions, work = self.counted.total() or pytest.fail("nothing was counted")
        numbers = (counts.samples, counts.batches, executions, work.flops, work.tensors_total, work.moved_bytes)
        return tuple(number / steps for number in numbers)


def test_nothing_is_known_before_the_second_step() -> None:
    training = Training()
    training.run(EVALUATION)
    assert training.counted.total() is None
    training.step(TRAINING)
    assert training.counted.total() is None
    training.step(TRAINING)
    assert training.a_step() == USUAL


@pytest.mark.parametrize("batches", [2, 50, 10_000])
def test_an_evaluation_is_no_part_of_a_step_wherever_it_is(batches: int) -> None:
    training = Training()
    for round_number in range(4):
        for _ in range(5 if round_number else 0):
            training.step(TRAINING)
        training.batches += batches
        training.run(*[EVALUATION] * batches)
    assert training.a_step() == USUAL


def test_executions_that_are_not_one_a_step_are_part_of_training() -> None:
    several_batches = Training()
    for number in range(1, 41):
        several_batches.step(*[TRAINING] * (number % 10 == 0))
    assert several_batches.a_step() == (4, 1, 0.1, 3, 0.7, 10)
    value_read = Training()
    for number in range(1, 22):
        value_read.step(*([FORWARD, ExecutionWork(Counter(float32=20))] if number % 10 == 5 else [TRAINING]))
        value_read.step()
    assert value_read.totals() == (40, 22, 600)
    all_sizes = Training()
    for number in range(10):
        all_sizes.step(ExecutionWork(Counter(float32=(10, 20, 60)[number % 3])))
    assert all_sizes.a_step()[3] == 30


def test_what_is_kept_is_bounded_and_no_program_taken_for_another() -> None:
    training = Training()
    for number in range(100):
        training.step(ExecutionWork(Counter(float32=number + 1)))
    assert training.totals() == (99, 99, sum(range(1, 100)))
    for number in range(2000):
        training.step(ExecutionWork(Counter(float32=number)))
    assert training.totals()[:2] == (256, 256)


@pytest.mark.parametrize(
    ("loop", "steps_total"),
    [("A", 1), ("AB" * 20, 20), ("AAB" * 10, 20), ("ABC" * 7, 7), ("B" + "AB" * 9, 10), ("A" * 10 + "B" * 10, 19)],
)
def test_a_step_is_an_iteration_whatever_the_number_of_optimizers(loop: str, steps_total: int) -> None:
    boundaries = StepBoundaries()
    optimizers = {name: torch.optim.SGD([torch.zeros(1)]) for name in loop}
    assert sum(boundaries.begins_step(optimizers[name]) for name in loop) == steps_total
    for _ in range(3):  # an optimizer of its own for each step
        optimizers.clear()
        gc.collect()
        optimizers["new"] = torch.optim.SGD([torch.zeros(1)])
        assert boundaries.begins_step(optimizers["new"])
