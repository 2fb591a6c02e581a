"""Takes the cores of this process, reports what they do to the daemon, and logs exhausted memory."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

import torch

from neurontools.driver.environment import NUM_CORES, VISIBLE_CORES
from neurontools.driver.neuron_runtime import NrtStatus, parse_visible_cores
from neurontools.model import DeviceMemory, HostMemory
from neurontools.runtime.reporting.control_channel import ArmedFaults, CaptureRequests
from neurontools.runtime.reporting.event_queue import LoadedModel
from neurontools.runtime.reporting.process_counters import ErrorKind, Outcome
from neurontools.runtime.reporting.reporter import Reporter
from neurontools.runtime.tensors.buffers import GIB, Category, Core, CoreMemory, buffers, log_stamp
from neurontools.util.directory import Directory

# Without a daemon nobody says what the hardware is: then a core is one of a trn1, as the examples of the SDK assume.
UNMONITORED_HBM_BYTES = 16 * GIB
UNMONITORED_CORES_PER_DEVICE = 2
LOCAL_RANK = "LOCAL_RANK"
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"


class ImpossibleRank(RuntimeError):
    """A worker of torchrun has no core in the range that the variables give."""


def rank_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the core of this worker of torchrun in it: one core a worker, by local rank.

    A range in NEURON_RT_VISIBLE_CORES is shared out among the local ranks; ImpossibleRank when it is too short.
    """
    changed = dict(environment)
    rank = environment.get(LOCAL_RANK, "")
    if not rank.isdigit():
        return changed
    first, count = 0, None
    visible = environment.get(VISIBLE_CORES, "").strip()
    if visible:
        first, count = parse_visible_cores(visible)
        if environment.get(LOCAL_WORLD_SIZE, "1") == "1":
            return changed
    if count is not None and int(rank) >= count:
        raise ImpossibleRank(
            f"{VISIBLE_CORES}={visible}: {count} core(s) for {environment.get(LOCAL_WORLD_SIZE)} local ranks; give one "
            "core for each rank, or start fewer"
        )
    changed.pop(NUM_CORES, None)
    changed[VISIBLE_CORES] = str(first + int(rank))
    return changed


def take_cores(environment: Mapping[str, str], captures: CaptureRequests | None = None) -> tuple[list[Core], Monitor]:
    """Attaches to the daemon, if there is one; the cores of this process and who is told about them."""
    reporter = Reporter.attach(rank_environment(environment), faults=ArmedFaults(), captures=captures)
    monitor = Reported(reporter)
    cores = []
    seed = torch.initial_seed()
    for granted in reporter.cores:
        index = granted.local_index
        number = granted.neuroncore_index if granted.neuroncore_index is not None else _asked_for(environment, index)
        device_index = granted.device_index
        memory = CoreMemory(
            granted.hbm_bytes or UNMONITORED_HBM_BYTES,
            number // UNMONITORED_CORES_PER_DEVICE if device_index is None else device_index,
            number,
            number % UNMONITORED_CORES_PER_DEVICE if granted.hbm_index is None else granted.hbm_index,
        )
        memory.write_log = write_memory_log
        core = Core(index, number, memory)
        core.generator.manual_seed(seed)
        # The state of its random numbers is what the runtime itself keeps on a core.
        memory.allocate(Category.RUNTIME, core.generator.get_state().numel())
        cores.append(core)
    return cores, monitor


def _asked_for(environment: Mapping[str, str], index: int) -> int:
    visible = rank_environment(environment).get(VISIBLE_CORES, "").strip()
    return (parse_visible_cores(visible)[0] if visible else 0) + index


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
        """Does nothing: no daemon is connected."""

    def unload_model(self, handle: Any) -> None:
        """Does nothing: no daemon is connected."""

    def begin(self, handle: Any, at_seconds: float) -> Any:
        """Does nothing: no daemon is connected."""

    def end(self, started: Any, flops: int, status: NrtStatus, queued_seconds: float, at_seconds: float) -> None:
        """Does nothing: no daemon is connected."""

    def error(self, kind: str) -> None:
        """Does nothing: no daemon is connected."""


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


_MOST_LINES = 200


def write_memory_log(memory: CoreMemory, text: str) -> str | None:
    """Writes the file for a refusal with this text; its path, or None where it can't be written.

    The runtime's lock is held. The directory is everybody's: what another user put in the way is not written to.
    """
    name = f"neuron_mem_table_device_{memory.device_index}_hbm_{memory.hbm_index}.log"
    with suppress(OSError, ValueError):
        content = f"{log_stamp()} {os.getpid()}\n{text}\n\n" + "\n".join(_table(memory)) + "\n"
        with Directory.open(tempfile.gettempdir()) as directory:
            directory.replace(name, content.encode())
            return f"{directory.path}/{name}"
    return None


def _table(memory: CoreMemory) -> list[str]:
    """Tensors of the core, alike ones in one line, the most bytes first."""
    alike: Counter[tuple[str, str, int]] = Counter()
    for buffer in buffers.by_address.values():
        if buffer.core.memory is memory and buffer.value is not None:
            alike[(Category(buffer.category).name.lower(), buffer.layout.text(), buffer.layout.nbytes)] += 1
    lines = [f"{'BYTES':>16} {'COUNT':>7} {'CATEGORY':<10} TENSOR"]
    for (category, layout, nbytes), count in sorted(alike.items(), key=lambda item: -item[0][2] * item[1])[
        :_MOST_LINES
    ]:
        lines.append(f"{nbytes * count:>16} {count:>7} {category:<10} {layout}")
    if len(alike) > _MOST_LINES:
        lines.append(f"and {len(alike) - _MOST_LINES} more kinds of tensors")
    return lines
