"""Where the time of executions goes by operator: sums over all executions, shares by those that were timed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from neurontools.rpc.report_limits import MOST_OPERATORS

torch = pytest.importorskip("torch")

SCRIPT = """
import json, torch, torch_xla.core.xla_model as xm
from neurontools.runtime.launch.setup import executor
from neurontools.runtime.tensors.device import device as d
device = xm.xla_device()
first, second = torch.randn(700, 700).to(device), torch.randn(700, 700).to(device)
total = torch.zeros(700, 700).to(device)
told = []
for step in range(160):
    total = total + torch.tanh(first @ second)
    xm.mark_step()
    if step in (5, 159): told.append([[o.name, o.seconds_total, o.executions_total] for o in executor().operators()])
print(json.dumps([told, d.current.statistics.busy_seconds, d.current.statistics.executions_total]))
"""


def test_operators_of_a_script(run_python: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    run = run_python("-m", "neurontools.runtime", "script.py")
    assert run.returncode == 0, run.stderr
    (early, late), busy_seconds, executions = json.loads(run.stdout)
    assert [name for name, *_ in early] == [""], "nothing was timed yet: it is all in the rest"
    known = {name: (seconds, count) for name, seconds, count in late}
    assert {"aten::tanh", "aten::add.Tensor"} <= known.keys()
    assert sum(seconds for seconds, _ in known.values()) == pytest.approx(busy_seconds, rel=0.01)
    assert max(known, key=lambda name: known[name][0]) in ("aten::mm", "aten::matmul")
    assert sum(count for _, count in known.values()) == 3 * executions


@dataclass
class Program:
    """A program as `OperatorTimes` sees one."""

    samples: Any
    executions: int = 0

    def execute(self, seconds: float, times_ns: tuple[int, ...] | None = None) -> None:
        self.executions += 1
        self.samples.seconds += seconds
        if times_ns is not None:
            self.samples.note(times_ns)


def program(*names: str) -> Program:
    from neurontools.runtime.execution.operator_times import OperatorSamples

    return Program(OperatorSamples(names))


def test_a_programs_time_is_shared_by_its_timed_executions() -> None:
    from neurontools.runtime.execution.operator_times import OperatorTimes

    times, one = OperatorTimes(), program("mm", "add", "mm")
    one.execute(2.0)
    assert [(o.name, o.seconds_total, o.executions_total) for o in times.so_far([one])] == [("", 2.0, 3)]
    one.execute(4.0, (0, 60, 70, 100))
    first = times.so_far([one])
    assert [(o.name, o.seconds_total, o.executions_total) for o in first] == [
        ("mm", pytest.approx(3.6), 2),
        ("add", pytest.approx(0.4), 1),
        ("", 2.0, 3),
    ]
    one.execute(1.0, (0, 0, 100, 100))
    later = {o.name: o.seconds_total for o in times.so_far([one])}
    assert all(later[o.name] >= o.seconds_total for o in first), "counters only grow"
    assert sum(later.values()) == pytest.approx(7.0)
    assert times.so_far([]) == times.so_far([one]), "what was unloaded stays counted"


def test_only_so_many_kinds_are_told_and_the_rest_together() -> None:
    from neurontools.runtime.execution.operator_times import OperatorTimes

    times, many = OperatorTimes(), program(*(f"op{number}" for number in range(40)))
    many.execute(40.0, tuple(number * number for number in range(41)))
    found = times.so_far([many])
    assert len(found) == MOST_OPERATORS
    assert [o.name for o in found[:2]] == ["op39", "op38"]
    assert found[-1].name == ""
    assert sum(o.seconds_total for o in found) == pytest.approx(40.0)


def test_a_program_is_timed_now_and_then_and_not_before_it_has_run_for_long() -> None:
    one = program("mm")
    first = one.samples.next_at
    assert not one.samples.is_due(), "it has taken no time yet"
    one.execute(1.0)
    assert one.samples.next_at > first
    assert one.samples.is_due()
