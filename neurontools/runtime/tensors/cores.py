"""Acquires the cores of this process, reports their executions to the daemon, and logs exhausted HBM."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from neurontools.driver.environment import NUM_CORES, VISIBLE_CORES, is_shapes_only
from neurontools.driver.neuron_runtime import NrtStatus, parse_visible_cores
from neurontools.model import DeviceMemory, HostMemory
from neurontools.runtime.reporting.control_channel import ArmedFaults, CaptureRequests
from neurontools.runtime.reporting.event_queue import LoadedModel
from neurontools.runtime.reporting.process_counters import ErrorKind, Outcome
from neurontools.runtime.reporting.reporter import Reporter
from neurontools.runtime.tensors.buffers import GIB, Category, Core, CoreMemory, buffers, log_stamp
from neurontools.util.directory import Directory

# Without a daemon the hardware is unknown. The runtime then assumes a trn1, as the SDK's examples do.
UNMONITORED_HBM_BYTES = 16 * GIB
UNMONITORED_CORES_PER_DEVICE = 2
UNLIMITED_HBM_BYTES = 1 << 62  # where nothing is computed: each instance type is asked afterwards whether it fits
LOCAL_RANK = "LOCAL_RANK"
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"


class ImpossibleRank(RuntimeError):
    """NEURON_RT_VISIBLE_CORES has too few cores for the local rank of this worker."""


def rank_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns a copy of the environment in which NEURON_RT_VISIBLE_CORES names one core for this worker of torchrun.

    The local rank selects the core: from the range in NEURON_RT_VISIBLE_CORES if that is set, else from all cores.
    Raises ImpossibleRank if the range is too short. The copy is unchanged if LOCAL_RANK is not set, or if
    NEURON_RT_VISIBLE_CORES is set and LOCAL_WORLD_SIZE is 1.
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


def attach_cores(environment: Mapping[str, str], captures: CaptureRequests | None = None) -> tuple[list[Core], Monitor]:
    """Attaches to the daemon, if there is one.

    Returns the cores of this process, and the monitor that receives their executions.
    """
    reporter = Reporter.attach(rank_environment(environment), faults=ArmedFaults(), captures=captures)
    monitor = Reported(reporter)
    cores = []
    seed = torch.initial_seed()
    for granted in reporter.cores:
        index = granted.local_index
        number = (
            granted.neuroncore_index if granted.neuroncore_index is not None else _requested_core(environment, index)
        )
        device_index = granted.device_index
        memory = CoreMemory(
            UNLIMITED_HBM_BYTES if is_shapes_only(environment) else granted.hbm_bytes or UNMONITORED_HBM_BYTES,
            number // UNMONITORED_CORES_PER_DEVICE if device_index is None else device_index,
            number,
            number % UNMONITORED_CORES_PER_DEVICE if granted.hbm_index is None else granted.hbm_index,
        )
        memory.write_log = write_memory_log
        core = Core(index, number, memory)
        core.generator.manual_seed(seed)
        # The state of the random generator is in the core's HBM and counts as runtime memory.
        memory.allocate(Category.RUNTIME, core.generator.get_state().numel())
        cores.append(core)
    return cores, monitor


def _requested_core(environment: Mapping[str, str], index: int) -> int:
    visible = rank_environment(environment).get(VISIBLE_CORES, "").strip()
    return (parse_visible_cores(visible)[0] if visible else 0) + index


class Monitor:
    """Receives the models and executions of this process. No method raises or blocks.

    The methods of this class do nothing, because no daemon is connected.
    """

    def load_model(self, core: Core, name: str, code_bytes: int, scratchpad_bytes: int) -> Any:
        """Reports a model loaded onto a core. Returns a handle for `begin` and `unload_model`."""

    def unload_model(self, handle: Any) -> None:
        """Reports that a model was unloaded from its core."""

    def begin(self, handle: Any, at_seconds: float) -> Any:
        """Reports that an execution begins at `at_seconds` of CLOCK_MONOTONIC. Returns the token for `end`."""

    def end(self, started: Any, flops: int, status: NrtStatus, queued_seconds: float, at_seconds: float) -> None:
        """Reports that an execution ended at `at_seconds`, after it waited `queued_seconds` for its start."""

    def error(self, kind: str) -> None:
        """Reports an error outside of executions: generic, numerical, transient, model, runtime or hardware."""


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


class Reported(Monitor):
    """Reports to the daemon through a Reporter, which never raises and never blocks."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter

    def load_model(self, core: Core, name: str, code_bytes: int, scratchpad_bytes: int) -> tuple[LoadedModel, int]:
        """Reports a loaded model. Its code counts towards the core's memory until the model is unloaded.

        The host also keeps the code that it copied to the core. The Neuron SDK counts this copy as DMA buffers.
        """
        del scratchpad_bytes  # a core has one scratchpad for all its models, and counts it
        memory = {core.local_index: DeviceMemory(model_code_bytes=code_bytes)}
        host_memory = HostMemory(dma_buffers_bytes=code_bytes)
        return self.reporter.load_model(name, memory=memory, host_memory=host_memory), core.local_index

    def unload_model(self, handle: tuple[LoadedModel, int]) -> None:
        self.reporter.unload_model(handle[0])

    def begin(self, handle: tuple[LoadedModel, int], at_seconds: float) -> tuple[LoadedModel, Any]:
        model, core = handle
        return model, model.begin(core, at_seconds)

    def end(
        self, started: tuple[LoadedModel, Any], flops: int, status: NrtStatus, queued_seconds: float, at_seconds: float
    ) -> None:
        model, token = started
        if status is NrtStatus.SUCCESS:
            model.end(token, flops, queued_seconds=queued_seconds, at_seconds=at_seconds)
            return
        outcome = _OUTCOMES.get(status, Outcome.COMPLETED_WITH_ERR)
        model.end(token, flops, outcome, queued_seconds, at_seconds)
        self.reporter.error(_ERRORS.get(status, ErrorKind.GENERIC))

    def error(self, kind: str) -> None:
        self.reporter.error(ErrorKind(kind))


_MOST_LINES = 200


def write_memory_log(memory: CoreMemory, text: str) -> str | None:
    """Writes the memory table of a core after a refused allocation. Returns the file's path, or None on failure.

    `text` is the message of the refusal. The caller holds the runtime's lock. All users can write to the temporary
    directory, so a file that another user placed there is left unchanged.
    """
    name = f"neuron_mem_table_device_{memory.device_index}_hbm_{memory.hbm_index}.log"
    with suppress(OSError, ValueError):
        content = f"{log_stamp()} {os.getpid()}\n{text}\n\n" + "\n".join(_table(memory)) + "\n"
        with Directory.open(tempfile.gettempdir()) as directory:
            directory.replace(name, content.encode())
            return f"{directory.path}/{name}"
    return None


def _table(memory: CoreMemory) -> list[str]:
    """Returns a table of the core's tensors: one line for each category and layout, most bytes first."""
    alike: Counter[tuple[str, str, int]] = Counter()
    for buffer in buffers.by_address.values():
        if buffer.core.memory is memory and buffer.value is not None:
            alike[(Category(buffer.category).name.lower(), buffer.layout.text(), buffer.layout.nbytes)] += 1
    lines = [f"{'BYTES':>16} {'COUNT':>7} {'CATEGORY':<10} TENSOR"]
    ordered = sorted(alike.items(), key=lambda item: -item[0][2] * item[1])
    for (category, layout, nbytes), count in ordered[:_MOST_LINES]:
        lines.append(f"{nbytes * count:>16} {count:>7} {category:<10} {layout}")
    if len(alike) > _MOST_LINES:
        lines.append(f"and {len(alike) - _MOST_LINES} more kinds of tensors")
    return lines
