"""Collects training counters and memory sizes for the reports to the daemon and for neuron-run's summary."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from neurontools.driver.environment import is_shapes_only
from neurontools.model import TrainingCounters
from neurontools.profile.definitions import WARM_UP_STEPS
from neurontools.runtime.counting.steps import step_clock, step_hooks, steps
from neurontools.runtime.execution.executor import Executor
from neurontools.runtime.operators.layout import layouts
from neurontools.runtime.reporting.inference_log import inference_log
from neurontools.runtime.reporting.reporter import Reporter
from neurontools.runtime.reporting.training_report import training_log
from neurontools.runtime.tensors.buffers import MEMORY_FIELDS, Category, buffers
from neurontools.runtime.tensors.device import device


def collect_counters(executor: Executor, reporter: Reporter) -> None:
    """Passes the current memory levels and counters to the reporter. Runs in the reporter's thread during the training.

    Leaves out the memory of model code, which the reporter itself counts.
    """
    # Without computing, a model may be larger than the HBM, and the daemon would refuse its levels.
    for core in () if is_shapes_only(os.environ) else device.acquired_cores:
        levels = buffers.account_of(core).levels.copy()
        for category, counter in MEMORY_FIELDS.items():
            if category is not Category.MODEL_CODE:
                reporter.set_memory(core.local_index, counter, levels[category])
    reporter.set_training(training_counters(), executor.operators())
    reporter.set_served_models(inference_log.read())


def training_counters() -> TrainingCounters:
    """Returns the current counters of all cores. Any thread may call it."""
    statistics = [core.statistics for core in device.acquired_cores]
    logged = training_log.counters
    times = step_clock.read_times()
    # The step clock measures only waits for torch's data loaders. It counts other waits for input as host time.
    logged_wait = logged.input_wait_seconds_total if times.input_wait_seconds is None else None
    return TrainingCounters(
        steps_total=steps.steps_total,
        samples_total=steps.samples_total if steps.batches_total else None,
        compilations_total=sum(each.compilations_total for each in statistics),
        compile_seconds_total=sum(each.compile_seconds for each in statistics),
        collectives_total=sum(each.collectives_total for each in statistics),
        collective_seconds_total=sum(each.collective_seconds for each in statistics),
        collective_bytes_total=sum(each.collective_bytes for each in statistics),
        to_device_bytes_total=sum(each.to_device_bytes for each in statistics),
        from_device_bytes_total=sum(each.from_device_bytes for each in statistics),
        input_wait_seconds_total=logged_wait if times.input_wait_seconds is None else times.input_wait_seconds,
        checkpoints_total=logged.checkpoints_total,
        checkpoint_seconds_total=logged.checkpoint_seconds_total,
        host_seconds_total=max(0.0, times.host_seconds - (logged_wait or 0.0)),
        compile_wait_seconds_total=times.compile_wait_seconds,
        transfer_seconds_total=times.transfer_seconds,
        compute_seconds_total=times.compute_seconds,
        collective_wait_seconds_total=times.collective_wait_seconds,
        compiling_since_seconds=times.compiling_since_seconds,
        last_step_at_seconds=steps.last_seconds,
        collective_since_seconds=times.collective_since_seconds,
        latest_collective=step_clock.latest_collective,
        checkpointing_since_seconds=logged.checkpointing_since_seconds,
    )


@dataclass(slots=True)
class HbmGrowth:
    """HBM in use on all cores of this process after a step.

    `warm_bytes` is the use at the end of the warm-up steps; until then, it is None.
    """

    warm_bytes: int | None = None
    latest_bytes: int | None = None
    rises_total: int = 0  # number of steps after which the memory in use had a new maximum
    _most_bytes: int = 0

    def record_step(self) -> None:
        used_bytes = sum(buffers.account_of(core).total_bytes for core in device.acquired_cores)
        if self.warm_bytes is None:
            if steps.steps_total < WARM_UP_STEPS:
                return
            self.warm_bytes = self._most_bytes = used_bytes
        self.latest_bytes = used_bytes
        if used_bytes > self._most_bytes:
            self._most_bytes = used_bytes
            self.rises_total += 1


hbm_growth = HbmGrowth()


def watch_hbm_growth() -> None:
    """Registers a hook that records HBM in use at each training step. Call it once."""
    step_hooks.append(hbm_growth.record_step)


_LATEST_STEP = 4096  # last step at which optimizer memory is recorded; later steps show nothing new


@dataclass(frozen=True, slots=True)
class _OptimizerSizes:
    """The HBM of the gradients and the state of one optimizer after its latest recorded step."""

    gradient_bytes: dict[int, int]  # gradient size by id() of the parameter
    host_parameters: set[int]  # id() of each CPU parameter that has a gradient
    state_bytes: int


@dataclass(slots=True)
class OptimizerMemory:
    """The peak HBM of weights, gradients and state of all live optimizers. None before the first optimizer step.

    Each thread reads only the optimizer that it has just stepped, because other threads may replace the gradients of
    their own optimizers at any moment.
    """

    weight_bytes: int | None = None
    gradient_bytes: int | None = None
    state_bytes: int | None = None
    host_parameters: int = 0  # largest number of CPU parameters with gradients after a step
    _sizes: WeakKeyDictionary[Any, _OptimizerSizes] = field(default_factory=WeakKeyDictionary)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def is_new(self, optimizer: Any) -> bool:
        """Returns whether no step of the optimizer was recorded before."""
        with self._lock:
            return optimizer not in self._sizes

    def record(self, optimizer: Any) -> None:
        """Records the memory of an optimizer's gradients and state. The calling thread must have just stepped it."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = {id(p): (p, gradient) for p in parameters if (gradient := p.grad) is not None}
        sizes = _OptimizerSizes(
            gradient_bytes={key: _device_bytes(gradient) for key, (_, gradient) in gradients.items()},
            host_parameters={key for key, (p, _) in gradients.items() if p.device.type == "cpu"},
            state_bytes=sum(_device_bytes(v) for p in parameters for v in optimizer.state.get(p, {}).values()),
        )
        with self._lock:
            self._sizes[optimizer] = sizes
            self._update_largest(list(self._sizes.values()))

    def _update_largest(self, every: list[_OptimizerSizes]) -> None:
        gradients = {key: size for sizes in every for key, size in sizes.gradient_bytes.items()}
        host_parameters = set().union(*(sizes.host_parameters for sizes in every))
        weights = max(
            (buffers.account_of(core).levels[Category.CONSTANTS] for core in device.acquired_cores), default=0
        )
        self.host_parameters = max(self.host_parameters, len(host_parameters))
        self.weight_bytes = max(self.weight_bytes or 0, weights)
        self.gradient_bytes = max(self.gradient_bytes or 0, sum(gradients.values()))
        self.state_bytes = max(self.state_bytes or 0, sum(sizes.state_bytes for sizes in every))


optimizer_memory = OptimizerMemory()


def watch_optimizers() -> None:
    """Registers a hook that records optimizer memory at steps 1, 2, 4, 8 and so on, and at an optimizer's first step.

    Call it once per process.
    """

    def stepped(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        count = steps.steps_total
        if count <= _LATEST_STEP and (count & (count - 1) == 0 or optimizer_memory.is_new(optimizer)):
            optimizer_memory.record(optimizer)

    register_optimizer_step_post_hook(stepped)


def _device_bytes(value: Any) -> int:
    if not isinstance(value, Tensor) or value.device.type != device.name:
        return 0
    return value.numel() * layouts.narrowed.get(value.dtype, value.dtype).itemsize
