"""torch_xla.runtime: the processes and devices of the job."""

from __future__ import annotations

import os

from neurontools.runtime.execution.gloo import ensure_world, has_joined_world, own_rank
from neurontools.runtime.launch.device_registration import executor
from neurontools.runtime.tensors.device import device


def device_type() -> str:
    return "NEURON"


def set_device_type(pjrt_device: str) -> None:
    """Accepts NEURON; raises RuntimeError for another device type."""
    if pjrt_device.split("_", maxsplit=1)[0].upper() != "NEURON":
        raise RuntimeError(
            f"set_device_type({pjrt_device!r}): the devices of this process are simulated NeuronCores, NEURON; start "
            "the script without neuron-run for other ones"
        )


def get_num_cached_compilation_graph() -> int:
    return len(executor().programs)


def world_size() -> int:
    """Returns the number of processes of the job; each has one device."""
    return ensure_world()


def global_ordinal() -> int:
    """Returns the rank of this process."""
    rank = own_rank()
    return int(os.environ.get("RANK", "0") or 0) if rank is None else rank


def local_ordinal() -> int:
    """Returns the local rank of this process on its host."""
    return int(os.environ.get("LOCAL_RANK", "0") or 0)


def local_process_count() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)


def host_index() -> int:
    """Returns the index of this host in the job."""
    return int(os.environ.get("GROUP_RANK", "0") or 0)


def global_device_count() -> int:
    """Returns the number of devices of all processes."""
    return ensure_world() if has_joined_world() else ensure_world() * len(device.cores)


def addressable_device_count() -> int:
    """Returns the number of devices of this process."""
    return len(device.cores)


process_count = world_size
process_index = global_ordinal
local_device_count = addressable_device_count
addressable_runtime_device_count = addressable_device_count
global_runtime_device_count = global_device_count


def using_pjrt() -> bool:
    """Returns True, as torch_xla does since 2.0."""
    return True


def is_spmd() -> bool:
    """Returns False: SPMD is not supported."""
    return False


def is_bf16_supported() -> bool:
    return True


def get_master_ip() -> str:
    """Returns the address of the job's first host."""
    return os.environ.get("MASTER_ADDR", "127.0.0.1")


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Sets the directory of the compile cache, as NEURON_COMPILE_CACHE_URL does."""
    os.environ["NEURON_COMPILE_CACHE_URL"] = path
