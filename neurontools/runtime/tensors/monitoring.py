"""What the runtime tells the monitor daemon, and the silence when there is none."""

from __future__ import annotations

from typing import Any, Protocol

from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.model import DeviceMemory, HostMemory
from neurontools.runtime.reporting.event_queue import LoadedModel
from neurontools.runtime.reporting.process_counters import ErrorKind, Outcome
from neurontools.runtime.reporting.reporter import Reporter
from neurontools.runtime.tensors.core import Core


class Monitor(Protocol):
    """Who is told about models and executions. None of the methods raises or waits."""

    def load_model(self, core: Core, name: str, code_bytes: int, scratchpad_bytes: int) -> Any:
        """A model was loaded onto a core; the answer goes with the calls below."""

    def unload_model(self, handle: Any) -> None:
        """A model left its core."""

    def begin(self, handle: Any, at_seconds: float) -> Any:
        """An execution of a model begins, at a moment of CLOCK_MONOTONIC; the answer goes to `end`."""

    def end(self, started: Any, flops: int, status: NrtStatus, queued_seconds: float, at_seconds: float) -> None:
        """An execution ended; `queued_seconds` is how long it waited before it began."""

    def error(self, kind: str) -> None:
        """An error outside of executions: generic, numerical, transient, model, runtime or hardware."""


class NotMonitored:
    """No daemon: nothing is told to anybody."""

    def load_model(self, core: Core, name: str, code_bytes: int, scratchpad_bytes: int) -> Any:
        """Nothing to tell."""

    def unload_model(self, handle: Any) -> None:
        """Nothing to tell."""

    def begin(self, handle: Any, at_seconds: float) -> Any:
        """Nothing to tell."""

    def end(self, started: Any, flops: int, status: NrtStatus, queued_seconds: float, at_seconds: float) -> None:
        """Nothing to tell."""

    def error(self, kind: str) -> None:
        """Nothing to tell."""


_OUTCOMES = {
    NrtStatus.SUCCESS: Outcome.COMPLETED,
    NrtStatus.EXEC_COMPLETED_WITH_NUM_ERR: Outcome.COMPLETED_WITH_NUM_ERR,
    NrtStatus.TIMEOUT: Outcome.TIMED_OUT,
    NrtStatus.EXEC_BAD_INPUT: Outcome.INCORRECT_INPUT,
    NrtStatus.RESOURCE: Outcome.FAILED_TO_QUEUE,
    NrtStatus.EXEC_HW_ERR_COLLECTIVES: Outcome.TIMED_OUT,
}
_ERRORS = {
    NrtStatus.EXEC_COMPLETED_WITH_NUM_ERR: ErrorKind.NUMERICAL,
    NrtStatus.TIMEOUT: ErrorKind.TRANSIENT,
    NrtStatus.EXEC_BAD_INPUT: ErrorKind.MODEL,
    NrtStatus.RESOURCE: ErrorKind.RUNTIME,
    NrtStatus.EXEC_OOB: ErrorKind.MODEL,
    NrtStatus.EXEC_SW_NQ_OVERFLOW: ErrorKind.RUNTIME,
    NrtStatus.NETWORK_PROXY_FAILURE: ErrorKind.RUNTIME,
    NrtStatus.EXEC_HW_ERR_COLLECTIVES: ErrorKind.TRANSIENT,
    NrtStatus.EXEC_UNIT_UNRECOVERABLE: ErrorKind.HARDWARE,
    NrtStatus.EXEC_HW_ERR_HBM_UE: ErrorKind.HARDWARE,
    NrtStatus.EXEC_HW_ERR_NC_UE: ErrorKind.HARDWARE,
    NrtStatus.EXEC_HW_ERR_DMA_ABORT: ErrorKind.HARDWARE,
    NrtStatus.EXEC_HW_ERR_REPAIRABLE_HBM_UE: ErrorKind.HARDWARE,
}


class Reported:
    """Tells the daemon through a Reporter, which never raises and never waits."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter

    def load_model(self, core: Core, name: str, code_bytes: int, scratchpad_bytes: int) -> tuple[LoadedModel, int]:
        """A model was loaded; its code counts towards the core's memory until it is unloaded.

        The host keeps the instructions too, from which the core got them: what the original counts as DMA buffers.
        """
        del scratchpad_bytes  # shared by the models of the core, so it is reported with the core's memory
        memory = {core.local_index: DeviceMemory(model_code_bytes=code_bytes)}
        host_memory = HostMemory(dma_buffers_bytes=code_bytes)
        return self.reporter.load_model(name, memory=memory, host_memory=host_memory), core.local_index

    def unload_model(self, handle: tuple[LoadedModel, int]) -> None:
        """A model left its core."""
        self.reporter.unload_model(handle[0])

    def begin(self, handle: tuple[LoadedModel, int], at_seconds: float) -> tuple[LoadedModel, Any]:
        """An execution begins."""
        model, core = handle
        return model, model.begin(core, at_seconds)

    def end(
        self,
        started: tuple[LoadedModel, Any],
        flops: int,
        status: NrtStatus,
        queued_seconds: float,
        at_seconds: float,
    ) -> None:
        """An execution ended."""
        model, token = started
        if status is NrtStatus.SUCCESS:
            model.end(token, flops, queued_seconds=queued_seconds, at_seconds=at_seconds)
            return
        outcome = _OUTCOMES.get(status, Outcome.COMPLETED_WITH_ERR)
        model.end(token, flops, outcome, queued_seconds, at_seconds)
        self.reporter.error(_ERRORS.get(status, ErrorKind.GENERIC))

    def error(self, kind: str) -> None:
        """An error outside of executions."""
        self.reporter.error(ErrorKind(kind))
