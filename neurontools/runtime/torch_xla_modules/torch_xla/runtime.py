"""torch_xla.runtime: which processes and devices the job has."""

from __future__ import annotations

import os

from neurontools.runtime.execution.ranks import ensure_world, have_met, own_rank
from neurontools.runtime.launch.device_registration import executor
from neurontools.runtime.tensors.device import device


def device_type() -> str:
    """The kind of device."""
    return "NEURON"


def set_device_type(pjrt_device: str) -> None:
    """Accepted for NEURON, which is all there is; RuntimeError for another kind."""
    if pjrt_device.split("_", maxsplit=1)[0].upper() != "NEURON":
        raise RuntimeError(
            f"set_device_type({pjrt_device!r}): the devices of this process are simulated NeuronCores, NEURON; start "
            "the script without neuron-run for other ones"
        )


def get_num_cached_compilation_graph() -> int:
    """How many compiled graphs are loaded in this process."""
    return len(executor().programs)


def world_size() -> int:
    """How many processes the job has, one device each."""
    return ensure_world()


def process_count() -> int:
    """How many processes the job has."""
    return ensure_world()


def process_index() -> int:
    """The number of this process in the job."""
    return global_ordinal()


def global_ordinal() -> int:
    """The rank of this process."""
    rank = own_rank()
    return int(os.environ.get("RANK", "0") or 0) if rank is None else rank


def local_ordinal() -> int:
    """The rank of this process on its host."""
    return int(os.environ.get("LOCAL_RANK", "0") or 0)


def local_process_count() -> int:
    """How many processes of the job are on this host."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)


def host_index() -> int:
    """The number of this host in the job."""
    return int(os.environ.get("GROUP_RANK", "0") or 0)


def global_device_count() -> int:
    """How many devices all processes have together."""
    return ensure_world() if have_met() else ensure_world() * len(device.cores)


def addressable_device_count() -> int:
    """How many devices this process has."""
    return len(device.cores)


local_device_count = addressable_device_count
addressable_runtime_device_count = addressable_device_count
global_runtime_device_count = global_device_count


def using_pjrt() -> bool:
    """Always, as torch_xla since 2.0."""
    return True


def is_spmd() -> bool:
    """Never: one process a core."""
    return False


def is_bf16_supported() -> bool:
    """Always."""
    return True


def get_master_ip() -> str:
    """The address of the job's first host."""
    return os.environ.get("MASTER_ADDR", "127.0.0.1")


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Where compiled graphs are kept; NEURON_COMPILE_CACHE_URL does the same."""
    del readonly
    os.environ["NEURON_COMPILE_CACHE_URL"] = path
