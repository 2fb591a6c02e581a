"""torch_xla.core.xla_model: devices, steps and collectives."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch

from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.counting.places import places
from neurontools.runtime.execution import collectives, ranks
from neurontools.runtime.launch.missing import text_of
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.device import device as _device

from .. import runtime
from ._random_numbers import fork_rng, get_rng_state, set_rng_state  # noqa: F401  (their place in torch_xla is here)

Tensor = torch.Tensor
REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX = "sum", "mul", "and", "or", "min", "max"
_step_closures: list[Callable[[], Any]] = []


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
    places.note("mark_step")
    _device.flush_all("MarkStep")
    if _step_closures:
        closures, _step_closures[:] = list(_step_closures), []
        for closure in closures:
            closure()


def wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Returns when everything on the devices is done, which it is when mark_step returns."""
    del devices
    _device.flush_all("WaitDeviceOps")


def add_step_closure(closure: Callable[..., Any], args: tuple[Any, ...] = (), run_async: bool = False) -> None:
    """Calls a function after the next mark_step, when the values of its tensors are there."""
    del run_async
    _step_closures.append(lambda: closure(*args))


def unlazy(tensors: Sequence[Tensor]) -> None:
    """Executes what tensors need."""
    for tensor in tensors:
        _device.flush(buffers.of(tensor).core, "Unlazy")


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


def all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: Any = None, pin_layout: bool = True) -> Any:
    """Reduces over the ranks: a tensor gives a new one, a list of tensors is changed in place."""
    del pin_layout
    ranks.ensure_world()
    group = ranks.subgroup(groups)
    if isinstance(inputs, Tensor):
        result = inputs.clone()
        collectives.collective("all_reduce", [result], [], reduce_type, group=group)
        return result * scale if scale != 1.0 else result
    listed = list(inputs)
    if listed:
        collectives.collective("all_reduce", listed, [], reduce_type, group=group)
        if scale != 1.0:
            with torch.no_grad():
                for tensor in listed:
                    tensor.mul_(scale)
    return None


def all_gather(
    value: Any,
    dim: int = 0,
    groups: Any = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: Any = None,
    use_global_device_ids: Any = None,
) -> Any:
    """The tensors of all ranks, side by side along a dimension."""
    del pin_layout, channel_id, use_global_device_ids
    if not isinstance(value, Tensor):
        results = [all_gather(v, dim, groups) for v in value]
        return _into(output, results)
    ranks.ensure_world()
    group = ranks.subgroup(groups)
    size = ranks.group_size(group)
    if size == 1:
        return _into(output, value.clone())
    parts = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(size)]
    collectives.collective("all_gather", parts, [value.detach()], group=group)
    return _into(output, torch.cat(parts, dim))


def reduce_scatter(
    reduce_type: str,
    input: Tensor,  # noqa: A002  (the name of torch_xla)
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Any = None,
    output: Any = None,
    pin_layout: bool = True,
) -> Any:
    """Reduces over the ranks; each keeps its part along a dimension."""
    del pin_layout
    ranks.ensure_world()
    group = ranks.subgroup(groups)
    parts = [part.contiguous() for part in input.detach().chunk(shard_count, scatter_dim)]
    if ranks.group_size(group) == 1:
        return _into(output, input * scale)
    result = torch.empty_like(parts[0])
    collectives.collective("reduce_scatter", [result], parts, reduce_type, group=group)
    return _into(output, result * scale if scale != 1.0 else result)


def all_to_all(
    value: Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Any = None,
    pin_layout: bool = True,
) -> Tensor:
    """Sends a part of the tensor to each rank and joins what comes."""
    del pin_layout
    ranks.ensure_world()
    group = ranks.subgroup(groups)
    parts = [part.contiguous() for part in value.detach().chunk(split_count, split_dimension)]
    if ranks.group_size(group) == 1:
        return value.clone()
    results = [torch.empty_like(part) for part in parts]
    collectives.collective("all_to_all", results, parts, group=group)
    return torch.cat(results, concat_dimension)


def _into(output: Any, value: Any) -> Any:
    if output is None:
        return value
    if isinstance(output, Tensor):
        output.copy_(value)
    else:
        for target, result in zip(output, value, strict=True):
            target.copy_(result)
    return output


def collective_broadcast(
    tensors: list[Tensor], root_ordinal: int = 0, groups: Any = None, pin_layout: bool = True
) -> None:
    """Gives all ranks the tensors of one of them, in place."""
    del pin_layout
    if ranks.ensure_world() > 1:
        group = ranks.subgroup(groups)
        root = ranks.rank_in_group(root_ordinal, groups)
        collectives.collective("broadcast", [tensor.data for tensor in tensors], [], root=root, group=group)


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Gives all ranks the parameters and buffers of rank 0."""
    collective_broadcast([*model.parameters(), *model.buffers()])
    mark_step()


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] | None = None) -> list[bytes]:
    """Waits for all ranks; returns the payloads of all, by rank."""
    del tag, replicas
    _device.flush_all("Rendezvous")
    if ranks.ensure_world() <= 1:
        return [payload]
    return _gather_bytes(payload)


def _gather_bytes(payload: bytes) -> list[bytes]:
    size = ranks.group_size(0)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    collectives.collective("all_gather", lengths, [torch.tensor([len(payload)])])
    longest = max(int(length) for length in lengths)
    padded = torch.zeros(max(1, longest), dtype=torch.uint8)
    if payload:
        padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    gathered = [torch.zeros_like(padded) for _ in range(size)]
    collectives.collective("all_gather", gathered, [padded])
    return [bytes(g[: int(n)].tolist()) for g, n in zip(gathered, lengths, strict=True)]


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """Applies a function to the data of all ranks, which are sent as CPU values."""
    payload = pickle.dumps(_maybe_convert_to_cpu(data))
    # The bytes come from the other ranks of the same job, which run the same script as the same user.
    return reduce_fn([pickle.loads(part) for part in rendezvous(tag, payload)])  # noqa: S301


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    return _with_tensors(data, lambda tensor: tensor.detach().cpu()) if convert else data


def _with_tensors(data: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Nested data with each of its tensors changed; other values, and what else a dictionary has, stay."""
    if isinstance(data, Tensor):
        return change(data)
    if isinstance(data, dict):
        changed = copy.copy(data)
        changed.update((key, _with_tensors(value, change)) for key, value in data.items())
        return changed
    if isinstance(data, (list, tuple)):
        values = [_with_tensors(value, change) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else type(data)(values)
    return data


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
    """Saves with CPU tensors, in the first process only unless told otherwise, and waits for all."""
    mark_step()
    should_write = not master_only or is_master_ordinal(local=not global_master)
    if should_write:
        torch.save(_maybe_convert_to_cpu(data), file_or_path)
    rendezvous("torch_xla.core.xla_model.save")


def send_cpu_data_to_device(data: Any, device: Any, input_sharding: Any = None) -> Any:
    """Moves the tensors of nested data to a device."""
    del input_sharding
    return _with_tensors(data, lambda tensor: tensor.to(device))


def set_replication(device: Any, devices: Any) -> None:
    """Nothing to do: one process a core."""


def get_stablehlo(tensors: Any = None) -> str:
    """Not there."""
    del tensors
    raise NotImplementedError(text_of("torch_xla.stablehlo"))


def __getattr__(name: str) -> Any:
    raise AttributeError(text_of(f"torch_xla.core.xla_model.{name}"))
