"""Rules for executions: environment settings, deadline, target check, NaN check, and the errors they raise.

NEURON_RT_EXEC_TIMEOUT sets the deadline. A CPU kernel can't be interrupted, so the deadline is checked between two
kernels. A collective, where executions usually hang, ends at its deadline. A wrong --target fails when the NEFF is
loaded, not when it is compiled. inf2, trn1 and trn1n load each other's NEFFs, because they have the same NeuronCores;
this is inferred, not documented.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from neurontools.driver.environment import LNC
from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.runtime.programs.compiled_graph import CompiledGraph
from neurontools.runtime.programs.compiler import CC_FLAGS, CompilerFlags
from neurontools.runtime.programs.numerics import STOCHASTIC_SEED, stochastic_rounding
from neurontools.runtime.tensors.buffers import Buffer, Category, OutOfDeviceMemory, Tensor
from neurontools.runtime.tensors.device import neuroncore_version

FAIL_ON_NAN = "NEURON_FAIL_ON_NAN"
EXTRACT_ONLY = "NEURON_EXTRACT_GRAPHS_ONLY"


@dataclass(frozen=True, slots=True)
class ExecutionPolicy:
    """Settings of executions from environment variables.

    `stochastic` is the random generator for stochastic rounding, or None without such rounding. With `extracts_only`,
    for neuron_parallel_compile, graphs are compiled into the cache and not executed.
    """

    fail_on_nan: bool
    timeout_seconds: float | None
    stochastic: torch.Generator | None
    extracts_only: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ExecutionPolicy:
        """Reads the settings from environment variables. Ignores a time-out that is not a positive integer."""
        timeout = environment.get(EXEC_TIMEOUT, "")
        stochastic = None
        if stochastic_rounding(environment):
            stochastic = torch.Generator()
            seed = environment.get(STOCHASTIC_SEED, "")
            stochastic.manual_seed(int(seed) if seed.lstrip("-").isdigit() else 0)
        return cls(
            fail_on_nan=environment.get(FAIL_ON_NAN, "0") not in ("", "0", "false"),
            timeout_seconds=float(timeout) if timeout.isdigit() and int(timeout) else None,
            stochastic=stochastic,
            extracts_only=environment.get(EXTRACT_ONLY, "0") not in ("", "0", "false"),
        )


ALLOW_LEGACY = "NEURON_RT_ALLOW_LEGACY_NEFF"


def check_load(
    flags: CompilerFlags,
    module: str,
    instance_type: str | None,
    logical_neuroncore_config: int | None,
    environment: Mapping[str, str],
) -> None:
    """Raises ExecutionFailed if a model compiled with these flags can't run on this host.

    A setting that is unknown for the model or the host (None) matches any value. NEURON_RT_ALLOW_LEGACY_NEFF=1 lets
    newer cores run NEFFs for older cores.
    """
    if flags.target is not None and instance_type is not None:
        wanted, own = neuroncore_version(flags.target), neuroncore_version(instance_type)
        is_legacy = wanted is not None and own is not None and wanted < own
        allowed = environment.get(ALLOW_LEGACY, "").lower() in ("1", "true")
        if None not in (wanted, own) and wanted != own and not (is_legacy and allowed):
            raise ExecutionFailed(
                NrtStatus.UNSUPPORTED_NEFF_VERSION,
                f"{module} was compiled with --target {flags.target}, this host is a {instance_type}; leave --target "
                f"out of {CC_FLAGS}" + (f", or set {ALLOW_LEGACY}=1" if is_legacy else ""),
            )
    wanted_size = flags.logical_neuroncore_config
    if None not in (wanted_size, logical_neuroncore_config) and wanted_size != logical_neuroncore_config:
        raise ExecutionFailed(
            NrtStatus.INVALID,
            f"Cannot run Neff {module}/model.neff with Logical Core Size of {wanted_size}. Runtime is currently "
            f"configured with {LNC}={logical_neuroncore_config}; give both the same value",
        )


EXEC_TIMEOUT = "NEURON_RT_EXEC_TIMEOUT"
_CLOCK_SLACK_SECONDS = 0.01  # gloo may stop waiting by this much too early, as it counts in whole ms


class Deadline(threading.local):
    """The deadline of the execution that runs in this thread. Each thread has its own."""

    def __init__(self) -> None:
        self.clock = time.monotonic
        self._timeout_seconds: float | None = None
        self._ends_at_seconds = 0.0
        self._place = ""

    def start(self, timeout_seconds: float, place: str) -> None:
        """Starts the deadline of an execution. `place` names the device and core in the error."""
        self._timeout_seconds = timeout_seconds
        self._ends_at_seconds = self.clock() + timeout_seconds
        self._place = place

    def clear(self) -> None:
        self._timeout_seconds = None

    def left_seconds(self) -> float | None:
        """Returns the time until the deadline; None without a deadline."""
        return None if self._timeout_seconds is None else max(0.0, self._ends_at_seconds - self.clock())

    def check(self) -> None:
        """Raises ExecutionFailed if the deadline has passed."""
        if self._timeout_seconds is not None and self.clock() > self._ends_at_seconds:
            raise self._exceeded(self._timeout_seconds)

    def wait(self, group: Any, work: Any) -> None:
        """Waits until a gloo group completes `work`. Raises ExecutionFailed if the deadline passes first."""
        if self._timeout_seconds is None:
            work.wait()
            return
        try:
            work.wait(timedelta(seconds=max(0.001, self._ends_at_seconds - self.clock())))
        except RuntimeError:
            if self.clock() < self._ends_at_seconds - _CLOCK_SLACK_SECONDS:
                raise
            # The group leaks: its threads still wait for the peers, and its destructor would wait for the threads.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
            raise self._exceeded(self._timeout_seconds) from None

    def _exceeded(self, timeout_seconds: float) -> ExecutionFailed:
        return ExecutionFailed(
            NrtStatus.TIMEOUT,
            f"(FATAL-RT-UNDEFINED-STATE) inference timeout ({timeout_seconds * 1e3:.0f} ms) on {self._place}, waiting "
            f"for execution completion notification; raise {EXEC_TIMEOUT}, use a smaller batch, or look at the other "
            "ranks",
        )


deadline = Deadline()


class ExecutionFailed(RuntimeError):
    """An execution ended with an NRT status other than success. The message begins with the status name."""

    def __init__(self, status: NrtStatus, text: str) -> None:
        super().__init__(f"NRT_{status.name}({int(status)}): {text}")
        self.status = status


class CompilationFailed(RuntimeError):
    """An earlier compilation of the graph failed. Only --retry_failed_compilation compiles it again."""

    def __init__(self, module: str, reason: str) -> None:
        super().__init__(
            f"{module} could not be compiled before ({reason}); set --retry_failed_compilation in NEURON_CC_FLAGS to "
            "try again"
        )


def nrt_status_of(error: BaseException) -> NrtStatus:
    if isinstance(error, ExecutionFailed):
        return error.status
    if isinstance(error, OutOfDeviceMemory):
        return NrtStatus.RESOURCE
    if isinstance(error, (IndexError, ValueError)):
        return NrtStatus.EXEC_BAD_INPUT
    return NrtStatus.EXEC_COMPLETED_WITH_ERR


_PAUSE_RATIO = 99  # pause after a check of large tensors, as a multiple of the check's duration


class NanCheck:
    """Looks for NaN in the results of one compiled graph and in the tensors that it updates in place.

    If a graph updates parameters, the check does not read other updated tensors. Optimizer state is twice the size of
    the parameters, and a NaN in optimizer state reaches the parameter in the same step.

    Each check reads the results that have one element, such as a loss. Reading the larger tensors takes up to a tenth
    of a step. So later checks spend only a hundredth of the run time on them. After a NaN in a larger tensor, each
    check reads all larger tensors until none has NaN. Without `reads_updated`, only results are read.
    """

    __slots__ = ("_larger", "_paused_until_seconds", "_single", "_written")

    def __init__(self, compiled: CompiledGraph, *, reads_updated: bool = True) -> None:
        def has_floats(number: int) -> bool:
            layout = compiled.layouts[number]
            return layout.device_dtype.is_floating_point and layout.extent > 0 and layout.device_dtype.itemsize > 1

        updated = {number for instruction in compiled.instructions for number in instruction.written}
        results = [position for position, number in enumerate(compiled.outputs) if has_floats(number)]
        self._single = [p for p in results if compiled.layouts[compiled.outputs[p]].extent == 1]
        self._larger = [position for position in results if position not in self._single]
        is_read = reads_updated
        self._written = [n for n in compiled.inputs if is_read and n in updated and has_floats(n)]
        self._paused_until_seconds = 0.0

    def finds(self, outputs: Sequence[Tensor], listed: Sequence[Buffer], *, is_exact: bool) -> bool:
        """Returns whether the outputs, or the updated buffers of the graph, contain NaN.

        With `is_exact`, reads all tensors even if a pause after an earlier check is not over.
        """
        for position in self._single:
            value = outputs[position].item()
            if value != value:
                return True
        began = time.perf_counter()
        if began < self._paused_until_seconds and not is_exact:
            return False
        is_found = self._reads_nan(outputs, listed)
        ended = time.perf_counter()
        self._paused_until_seconds = 0.0 if is_found else ended + _PAUSE_RATIO * (ended - began)
        return is_found

    def _reads_nan(self, outputs: Sequence[Tensor], listed: Sequence[Buffer]) -> bool:
        values = [outputs[position] for position in self._larger]
        if self._written:
            updated = [listed[number] for number in self._written]
            constants = [buffer for buffer in updated if buffer.category is Category.CONSTANTS]
            values += [buffer.value for buffer in constants or updated if buffer.value is not None]
        if not values:
            return False
        # A norm is NaN exactly if an element is NaN. Infinity and overflow give an infinite norm.
        norms: Any = torch._foreach_norm(values)
        return any(norm != norm for norm in (each.item() for each in norms))
