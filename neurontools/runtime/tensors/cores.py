"""Which NeuronCores this process has: those the daemon grants, or those its environment asks for without one."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from neurontools.driver.environment import NUM_CORES, VISIBLE_CORES
from neurontools.driver.neuron_runtime import parse_visible_cores
from neurontools.runtime.reporting.control_channel import ArmedFaults, CaptureRequests
from neurontools.runtime.reporting.reporter import Reporter
from neurontools.runtime.tensors.core import Core
from neurontools.runtime.tensors.memory import GIB, Category, CoreMemory
from neurontools.runtime.tensors.memory_log import write_memory_log
from neurontools.runtime.tensors.monitoring import Monitor, Reported

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
