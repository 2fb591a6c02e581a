"""NaN, time-outs and failures of executions, as the variables ask."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from neurontools.nrt.status import NrtStatus
from neurontools.runtime.execution.failure import ExecutionFailed
from neurontools.runtime.execution.policy import Policy


class Told:
    """A monitor that keeps what it is told."""

    def __init__(self) -> None:
        self.statuses: list[NrtStatus] = []
        self.flops = 0

    def load_model(self, core: Any, name: str, code_bytes: int, scratchpad_bytes: int) -> str:
        return name

    def unload_model(self, handle: Any) -> None:
        pass

    def begin(self, handle: Any, at_seconds: float) -> Any:
        return handle, at_seconds

    def end(self, started: Any, flops: int, status: NrtStatus, queued_seconds: float, at_seconds: float) -> None:
        assert queued_seconds >= 0
        assert at_seconds >= started[1]
        self.flops += flops
        self.statuses.append(status)

    def error(self, kind: str) -> None:
        pass


@pytest.fixture
def executor(xla: Any) -> Iterator[Any]:
    from neurontools.runtime.launch.setup import executor

    made = executor()
    policy, monitor = made._policy, made.monitor
    forget_programs(made)
    made.monitor = Told()
    yield made
    forget_programs(made)
    made._policy, made.monitor = policy, monitor


def forget_programs(executor: Any) -> None:
    """Unloads all: each is known to the monitor that it was loaded under."""
    for programs in list(executor.loaded.values()):
        for loaded in list(programs.values()):
            executor._unload(loaded)
    executor.programs.clear()


def test_nan_is_counted_and_training_goes_on(xla: Any, executor: Any) -> None:
    before = xla.cores[0].statistics.numerical_errors_total
    value = torch.tensor([0.0, 1.0]).to("xla")
    result = value / value
    xla.flush_all("Test")
    assert result.isnan().tolist() == [True, False]
    assert executor.monitor.statuses == [NrtStatus.EXEC_COMPLETED_WITH_NUM_ERR, NrtStatus.SUCCESS]
    assert xla.cores[0].statistics.numerical_errors_total == before + 1


def test_nan_in_a_parameter_that_is_updated_in_place_counts(xla: Any, executor: Any) -> None:
    layer = torch.nn.Linear(2, 2).to("xla")
    xla.flush_all("Test")
    executor.monitor.statuses.clear()
    optimizer = torch.optim.SGD(layer.parameters(), lr=float("nan"))
    layer(torch.ones(1, 2).to("xla")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    xla.flush_all("Test")
    assert executor.monitor.statuses == [NrtStatus.EXEC_COMPLETED_WITH_NUM_ERR]
    assert layer.weight.isnan().all().item()


def test_nan_in_another_tensor_that_is_updated_in_place_counts(xla: Any, executor: Any) -> None:
    value = torch.zeros(3).to("xla")
    value.div_(value)
    xla.flush_all("Test")
    assert executor.monitor.statuses == [NrtStatus.EXEC_COMPLETED_WITH_NUM_ERR]


def test_infinities_are_no_nan(xla: Any, executor: Any) -> None:
    kept = torch.tensor([float("inf"), float("-inf")]).to("xla") * 2
    xla.flush_all("Test")
    assert executor.monitor.statuses == [NrtStatus.SUCCESS]
    assert kept.numel() == 2


def test_nan_is_an_error_where_it_is_asked_for(xla: Any, executor: Any) -> None:
    executor._policy = Policy.from_environment({"NEURON_FAIL_ON_NAN": "1"})
    kept = torch.zeros(2).to("xla").log().mul(0)
    with pytest.raises(ExecutionFailed, match=r"^NRT_EXEC_COMPLETED_WITH_NUM_ERR\(1003\): the results .* have NaN"):
        xla.flush_all("Test")
    assert kept.isnan().all().item()


def test_a_time_out(xla: Any, executor: Any) -> None:
    executor._policy = Policy(False, 1e-9, None)
    kept = torch.zeros(2).to("xla") + 1
    with pytest.raises(ExecutionFailed, match=r"^NRT_TIMEOUT\(5\): .*inference timeout"):
        xla.flush_all("Test")
    assert executor.monitor.statuses == [NrtStatus.TIMEOUT]
    with pytest.raises(RuntimeError, match=r"no value: .*NRT_TIMEOUT"):
        kept.tolist()
    executor._policy = Policy.from_environment({"NEURON_RT_EXEC_TIMEOUT": "600"})
    assert (torch.zeros(2).to("xla") + 1).tolist() == [1.0, 1.0]


def test_a_time_out_ends_an_execution_between_two_operators(xla: Any, executor: Any) -> None:
    ran: list[str] = []
    lasts_seconds = 0.0
    with torch.library._scoped_library("deadline", "FRAGMENT") as library:
        library.define("slow(Tensor x, str name) -> Tensor")

        def slow(x: torch.Tensor, name: str) -> torch.Tensor:
            ran.append(name)
            until = time.monotonic() + lasts_seconds
            while time.monotonic() < until:
                pass
            return x + 1

        library.impl("slow", slow, "CPU")
        library.impl("slow", lambda x, name: torch.empty_like(x), "Meta")
        executor._policy = Policy.from_environment({"NEURON_RT_EXEC_TIMEOUT": "600"})
        for attempt in range(3):  # interpreted, then generated
            if attempt == 2:
                lasts_seconds, executor._policy = 2.0, Policy(False, 1.0, None)
            kept = torch.zeros(2).to("xla")
            for name in ("first", "second"):
                kept = torch.ops.deadline.slow(kept, name)
            if attempt == 2:
                with pytest.raises(ExecutionFailed, match=r"inference timeout \(1000 ms\) on Neuron Device 0 NC 0"):
                    xla.flush_all("Test")
            else:
                xla.flush_all("Test")
    assert ran == ["first", "second"] * 2 + ["first"]


def test_failures_have_their_status(xla: Any, executor: Any) -> None:
    value = torch.ones(3).to("xla")
    kept = value.gather(0, torch.tensor([7]).to("xla"))
    with pytest.raises(RuntimeError):
        xla.flush_all("Test")
    assert executor.monitor.statuses == [NrtStatus.EXEC_COMPLETED_WITH_ERR]
    assert kept.shape == (1,)


def test_flops_are_those_of_torchs_counter(xla: Any, executor: Any) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3),
            torch.nn.Flatten(),
            torch.nn.Linear(288, 16),
            torch.nn.ReLU(),
            torch.nn.Linear(16, 4),
        )

    with FlopCounterMode(display=False) as counter:
        make()(torch.randn(5, 3, 8, 8)).sum().backward()
    model = make().to("xla")
    model(torch.randn(5, 3, 8, 8).to("xla")).sum().backward()
    xla.flush_all("Test")
    assert executor.monitor.flops == counter.get_total_flops()
