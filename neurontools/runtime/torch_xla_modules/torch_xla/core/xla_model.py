"""torch_xla.core.xla_model: devices, steps and collectives."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from neurontools.runtime.counting.metrics import call_sites, metrics
from neurontools.runtime.execution import ranks
from neurontools.runtime.launch.import_hook import unsupported_message
from neurontools.runtime.reporting.training_report import training_log
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.device import device as _device

from .. import runtime
from . import _closures
from ._closures import add_step_closure as add_step_closure  # its place in torch_xla is here, and so is that of these
from ._collectives import REDUCE_AND as REDUCE_AND
from ._collectives import REDUCE_MAX as REDUCE_MAX
from ._collectives import REDUCE_MIN as REDUCE_MIN
from ._collectives import REDUCE_MUL as REDUCE_MUL
from ._collectives import REDUCE_OR as REDUCE_OR
from ._collectives import REDUCE_SUM as REDUCE_SUM
from ._collectives import all_gather as all_gather
from ._collectives import all_gather_bucketized as all_gather_bucketized
from ._collectives import all_reduce as all_reduce
from ._collectives import all_reduce_bucketized_gradients as all_reduce_bucketized_gradients
from ._collectives import all_to_all as all_to_all
from ._collectives import collective_broadcast as collective_broadcast
from ._collectives import collective_permute as collective_permute
from ._collectives import optimization_barrier_ as optimization_barrier_
from ._collectives import recv as recv
from ._collectives import reduce_scatter as reduce_scatter
from ._collectives import reduce_scatter_bucketized as reduce_scatter_bucketized
from ._collectives import rendezvous as rendezvous
from ._collectives import send as send
from ._collectives import xla_rendezvous as xla_rendezvous
from ._random_numbers import fork_rng as fork_rng
from ._random_numbers import get_rng_state as get_rng_state
from ._random_numbers import set_rng_state as set_rng_state

Tensor = torch.Tensor


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """The device of this process, or its n-th."""
    del devkind
    wanted = torch.device(_device.name, n or 0)
    _device.core(wanted)
    return wanted


def xla_device_hw(device: Any) -> str:
    """The kind of hardware behind a device: NEURON, or CPU for a CPU tensor's."""
    return "NEURON" if torch.device(device).type == _device.name else str(torch.device(device).type).upper()


def xla_real_devices(devices: Sequence[Any] | None = None) -> list[str]:
    """Devices by their names on the host."""
    cores = _device.cores if devices is None else [_device.core(torch.device(d)) for d in devices]
    return [f"NEURON:{core.global_index}" for core in cores]


def get_xla_supported_devices(devkind: str | None = None, max_devices: int | None = None) -> list[str]:
    """The names of this process's devices."""
    del devkind
    return [f"{_device.name}:{i}" for i in range(len(_device.cores))][:max_devices]


def is_xla_tensor(tensor: Tensor) -> bool:
    """Whether a tensor is on the device."""
    return tensor.device.type == _device.name


def xrt_world_size(defval: int = 1) -> int:
    """How many processes the job has."""
    return runtime.world_size() or defval


def get_ordinal(defval: int = 0) -> int:
    """The rank of this process."""
    del defval
    return runtime.global_ordinal()


def get_local_ordinal(defval: int = 0) -> int:
    """The rank of this process on its host."""
    del defval
    return runtime.local_ordinal()


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this process is the first, on its host or of all."""
    return (get_local_ordinal() if local else get_ordinal()) == 0


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """Prints in the first process only."""
    if is_master_ordinal(local):
        print(*args, file=fd, flush=flush)


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """Executes what is pending, then the step closures."""
    del wait, reset_scope
    metrics.count("MarkStep")
    call_sites.note("mark_step")
    _device.flush_all("MarkStep")
    _closures.run()


def wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Returns when everything on the devices is done, which it is when mark_step returns."""
    del devices
    _device.flush_all("WaitDeviceOps")


def unlazy(tensors: Sequence[Tensor]) -> None:
    """Executes what tensors need."""
    for tensor in tensors:
        _device.flush(_device.core_of(tensor), "Unlazy")


def get_memory_info(device: Any = None) -> dict[str, int]:
    """HBM of a device: bytes_used, bytes_limit and peak_bytes_used, and the old kb_total and kb_free."""
    core = _device.current if device is None else _device.core(torch.device(device))
    with buffers.lock:
        memory = buffers.account_of(core)
        return {
            "bytes_used": memory.total_bytes,
            "bytes_limit": memory.limit_bytes,
            "peak_bytes_used": memory.peak_bytes,
            "kb_total": memory.limit_bytes // 1024,
            "kb_free": (memory.limit_bytes - memory.total_bytes) // 1024,
        }


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: Any = None,
    pin_layout: bool = True,
) -> Any:
    """Averages the gradients over the ranks and steps; with `barrier` also executes."""
    reduce_gradients(optimizer, groups=groups, pin_layout=pin_layout)
    loss = optimizer.step(**(optimizer_args or {}))
    if barrier:
        mark_step()
    return loss


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: Any = None, pin_layout: bool = True) -> None:
    """Averages the gradients of an optimizer's parameters over the ranks."""
    count = ranks.ensure_world()
    if count <= 1:
        return
    all_reduce(
        REDUCE_SUM,
        _fetch_gradients(optimizer),
        scale=1.0 / ranks.group_size(ranks.subgroup(groups)),
        groups=groups,
        pin_layout=pin_layout,
    )


def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The gradients of an optimizer's parameters; accelerate averages them over the ranks by itself."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if any(gradient.is_sparse for gradient in gradients):
        raise NotImplementedError(f"sparse gradients are not supported on {_device.name}; use dense ones")
    return gradients


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Gives all ranks the parameters and buffers of rank 0."""
    collective_broadcast([*model.parameters(), *model.buffers()])
    mark_step()


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """Applies a function to the data of all ranks, which are sent as CPU values."""
    payload = pickle.dumps(_maybe_convert_to_cpu(data))
    # The bytes come from the other ranks of the same job, which run the same script as the same user.
    return reduce_fn([pickle.loads(part) for part in rendezvous(tag, payload)])  # noqa: S301


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    return with_tensors(data, lambda tensor: tensor.detach().cpu()) if convert else data


def with_tensors(data: Any, change: Callable[[Tensor], Any]) -> Any:
    """Nested data with each of its tensors changed; other values, and what else a dictionary has, stay."""
    if isinstance(data, Tensor):
        return change(data)
    if isinstance(data, dict):
        changed = copy.copy(data)
        changed.update((key, with_tensors(value, change)) for key, value in data.items())
        return changed
    if isinstance(data, (list, tuple)):
        values = [with_tensors(value, change) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else type(data)(values)
    return data


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
    """Saves with CPU tensors, in the first process only unless told otherwise, and waits for all."""
    mark_step()
    should_write = not master_only or is_master_ordinal(local=not global_master)
    if should_write:
        with training_log.checkpoint():
            torch.save(_maybe_convert_to_cpu(data), file_or_path)
    rendezvous("torch_xla.core.xla_model.save")


def send_cpu_data_to_device(datas: Any, device: Any, input_sharding: Any = None) -> Any:
    """Moves the CPU tensors of nested data to a device; of a single tensor it makes a list of one, as torch_xla."""
    if input_sharding is not None:
        raise NotImplementedError("input_sharding needs SPMD, which is not here; use one process a NeuronCore")
    return to_device([datas] if isinstance(datas, Tensor) else datas, device)


def to_device(data: Any, device: Any) -> Any:
    """Moves the CPU tensors of nested data to a device."""
    return with_tensors(data, lambda tensor: tensor.to(device) if tensor.is_cpu else tensor)


def do_on_ordinals(target: Callable[..., Any], data: Sequence[Any] = (), ordinals: Sequence[int] = (0,)) -> Any:
    """Calls a function with CPU values on some ranks, and waits for all; None where it is not called."""
    mark_step()
    result = target(*_maybe_convert_to_cpu(list(data))) if get_ordinal() in ordinals else None
    rendezvous("torch_xla.core.xla_model.do_on_ordinals")
    return result


class RateTracker:
    """How many samples a second a loop gets through: since it was asked last, smoothed, and on the whole."""

    def __init__(self, smooth_factor: float = 0.4) -> None:
        self._smooth_factor = smooth_factor
        self._began_seconds = self._asked_seconds = time.monotonic()
        self._before, self._count = 0.0, 0.0
        self._rate: float | None = None

    def add(self, count: float) -> None:
        """So many samples more."""
        self._count += count

    def rate(self) -> float:
        """Samples a second since the last call; the rate before it counts for `smooth_factor` of the result."""
        now = time.monotonic()
        elapsed = now - self._asked_seconds
        if elapsed <= 0:
            return 0.0
        current = self._count / elapsed
        kept = 0.0 if self._rate is None else self._smooth_factor
        self._rate = kept * (self._rate or 0.0) + (1 - kept) * current
        self._before, self._count, self._asked_seconds = self._before + self._count, 0.0, now
        return self._rate

    def global_rate(self) -> float:
        """Samples a second since the tracker was made."""
        elapsed = time.monotonic() - self._began_seconds
        return (self._before + self._count) / elapsed if elapsed > 0 else 0.0


def set_replication(device: Any, devices: Any) -> None:
    """Nothing to do: one process a core."""


def get_stablehlo(tensors: Any = None) -> str:
    """Not there."""
    del tensors
    raise NotImplementedError(unsupported_message("torch_xla.stablehlo"))


def __getattr__(name: str) -> Any:
    raise AttributeError(unsupported_message(f"torch_xla.core.xla_model.{name}"))
