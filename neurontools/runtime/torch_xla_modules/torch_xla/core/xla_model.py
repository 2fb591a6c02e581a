"""torch_xla.core.xla_model: devices, steps, step closures, random numbers and collectives."""

from __future__ import annotations

import atexit
import copy
import hashlib
import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from neurontools.runtime.counting.metrics import call_sites, metrics
from neurontools.runtime.execution.gloo import (
    ensure_world,
    group_size,
    join_subgroup,
    rank_in_group,
    receive_on_channel,
    send_on_channel,
)
from neurontools.runtime.execution.process_group import collective
from neurontools.runtime.launch.import_hook import unsupported_message
from neurontools.runtime.reporting.training_report import training_log
from neurontools.runtime.tensors.buffers import Core, buffers
from neurontools.runtime.tensors.device import device as _device
from neurontools.runtime.torch_device import torch_module

from .. import runtime

Closure = Callable[[], Any]
T = TypeVar("T")
REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX = "sum", "mul", "and", "or", "min", "max"
_step_closures: list[tuple[Closure, bool]] = []


class _Background:
    """Calls asynchronous step closures in order, in one thread. If one fails, a later mark_step raises its error."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Closure | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def call(self, closure: Closure) -> None:
        """Queues a closure. Raises the error of an earlier closure."""
        self.raise_error()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="StepClosures", daemon=True)
            self._thread.start()
            atexit.register(self._end)
        self._queue.put(closure)

    def raise_error(self) -> None:
        """Raises the first error of a closure since the last call of this method. Does nothing if no closure failed."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while (closure := self._queue.get()) is not None:
            try:
                with call_sites.closure():
                    closure()
            except BaseException as error:
                self._error = self._error or error

    def _end(self) -> None:
        """Calls the queued closures before the interpreter ends."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
            self.raise_error()


_background = _Background()


def add_step_closure(closure: Callable[..., Any], args: tuple[Any, ...] = (), run_async: bool = False) -> None:
    """Calls a function after the next mark_step, when its tensors have values.

    With `run_async` a thread calls it, mark_step does not wait for it, and a later mark_step raises its error.
    """
    _step_closures.append((lambda: closure(*args), run_async))


def _run_step_closures() -> None:
    _background.raise_error()
    if not _step_closures:
        return
    closures, _step_closures[:] = list(_step_closures), []
    for closure, is_async in closures:
        if is_async:
            _background.call(closure)
        else:
            with call_sites.closure():
                closure()


def set_rng_state(seed: int, device: Any = None) -> None:
    """Seeds the random number generator of a device, or of all devices."""
    for core in _device.cores if device is None else [torch_module.core_of(device)]:
        _device.flush(core, "GeneratorState")
        core.generator.manual_seed(int(seed))


def get_rng_state(device: Any = None) -> int:
    """Returns a seed with which `set_rng_state` reproduces the next random numbers, in another process too.

    Before the first random number, this is the device's seed. Later, the generator's state has 20 kbit, which a seed
    can't hold. So this function reseeds the device with a hash of the state, and returns the new seed. A run that saves
    the seed and continues draws the same numbers as a run that resumes from the seed. `torch.xla.get_rng_state` returns
    the full state and changes nothing.
    """
    core = torch_module.core_of(device)
    _device.flush(core, "GeneratorState")
    if not _is_fresh(core):
        state = core.generator.get_state().numpy().tobytes()
        core.generator.manual_seed(int.from_bytes(hashlib.sha256(state).digest()[:4], "little"))
    return core.generator.initial_seed()


def _is_fresh(core: Core) -> bool:
    """Whether no random number was drawn since the device was last seeded."""
    seeded = torch.Generator().manual_seed(core.generator.initial_seed())
    return torch.equal(seeded.get_state(), core.generator.get_state())


@contextmanager
def fork_rng(device: Any = None, enabled: bool = True) -> Iterator[None]:
    """Restores the random number generator of a device at the end of the block."""
    if not enabled:
        yield
        return
    before = torch_module.get_rng_state(device)
    try:
        yield
    finally:
        torch_module.set_rng_state(before, device)


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """Returns device `n` of this process; by default the first."""
    device = torch.device(_device.name, n or 0)
    _device.core(device)  # raises an error if this process does not have the device
    return device


def xla_device_hw(device: Any) -> str:
    """Returns the hardware type of a device: NEURON or CPU."""
    return "NEURON" if torch.device(device).type == _device.name else str(torch.device(device).type).upper()


def xla_real_devices(devices: Sequence[Any] | None = None) -> list[str]:
    """Returns the names of devices on the host, such as NEURON:0."""
    cores = _device.cores if devices is None else [_device.core(torch.device(d)) for d in devices]
    return [f"NEURON:{core.global_index}" for core in cores]


def get_xla_supported_devices(devkind: str | None = None, max_devices: int | None = None) -> list[str]:
    """Returns the names of the devices of this process, such as xla:0."""
    return [f"{_device.name}:{i}" for i in range(len(_device.cores))][:max_devices]


def is_xla_tensor(tensor: Tensor) -> bool:
    return tensor.device.type == _device.name


def xrt_world_size(defval: int = 1) -> int:
    """Returns the number of processes of the job."""
    return runtime.world_size() or defval


def get_ordinal(defval: int = 0) -> int:
    """Returns the rank of this process."""
    return runtime.global_ordinal()


def get_local_ordinal(defval: int = 0) -> int:
    return runtime.local_ordinal()


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this process is rank 0 of its host (`local`) or of the whole job."""
    return (get_local_ordinal() if local else get_ordinal()) == 0


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """Prints in rank 0 only, either of each host (`local`) or of the whole job."""
    if is_master_ordinal(local):
        print(*args, file=fd, flush=flush)


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """Executes the pending operators, then the step closures."""
    metrics.increment("MarkStep")
    call_sites.count_call("mark_step")
    _device.flush_all("MarkStep")
    _run_step_closures()


def wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Executes the pending operators. Execution is synchronous, so no further wait is needed."""
    _device.flush_all("WaitDeviceOps")


def unlazy(tensors: Sequence[Tensor]) -> None:
    """Executes the pending operators on the devices of these tensors."""
    for tensor in tensors:
        _device.flush(_device.core_of(tensor), "Unlazy")


def get_memory_info(device: Any = None) -> dict[str, int]:
    """Returns the HBM of a device: bytes_used, bytes_limit, peak_bytes_used, and the older kb_total and kb_free."""
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
    """Averages the gradients over the ranks and calls `optimizer.step`. With `barrier`, then calls mark_step."""
    reduce_gradients(optimizer, groups=groups, pin_layout=pin_layout)
    loss = optimizer.step(**(optimizer_args or {}))
    if barrier:
        mark_step()
    return loss


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: Any = None, pin_layout: bool = True) -> None:
    """Averages the gradients of an optimizer's parameters over the ranks."""
    if ensure_world() <= 1:
        return
    scale = 1.0 / group_size(join_subgroup(groups))
    all_reduce(REDUCE_SUM, _fetch_gradients(optimizer), scale, groups, pin_layout)


def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Returns the gradients of an optimizer's parameters. accelerate calls this and averages the gradients itself."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if any(gradient.is_sparse for gradient in gradients):
        raise NotImplementedError(f"sparse gradients are not supported on {_device.name}; use dense ones")
    return gradients


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Gives all ranks the parameters and buffers of rank 0."""
    collective_broadcast([*model.parameters(), *model.buffers()])
    mark_step()


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """Gathers the data of all ranks as a list, with CPU tensors, and returns the result of `reduce_fn(list)`."""
    payload = pickle.dumps(_maybe_convert_to_cpu(data))
    # Unpickling is safe here: the bytes come from ranks of the same job, with the same script and user.
    return reduce_fn([pickle.loads(part) for part in rendezvous(tag, payload)])  # noqa: S301


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    return replace_values(data, Tensor, lambda tensor: tensor.detach().cpu()) if convert else data


def replace_values(data: Any, kind: type[T], change: Callable[[T], Any]) -> Any:
    """Returns nested data with `change` applied to each value of type `kind`, such as each tensor.

    Other values stay unchanged. A dictionary of a subclass of dict keeps its attributes.
    """
    if isinstance(data, kind):
        return change(data)
    if isinstance(data, dict):
        changed = copy.copy(data)
        changed.update((key, replace_values(value, kind, change)) for key, value in data.items())
        return changed
    if isinstance(data, PackedSequence):  # its batch sizes stay on the CPU
        moved = (replace_values(part, kind, change) for part in (data.data, data.sorted_indices, data.unsorted_indices))
        values, *indices = moved
        return PackedSequence(values, data.batch_sizes, *indices)
    if isinstance(data, (list, tuple)):
        values = [replace_values(value, kind, change) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else type(data)(values)
    return data


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
    """Saves data with CPU tensors and waits for all ranks. By default only rank 0 of each host writes."""
    mark_step()
    if not master_only or is_master_ordinal(local=not global_master):
        with training_log.checkpoint():
            torch.save(_maybe_convert_to_cpu(data), file_or_path)
    rendezvous("torch_xla.core.xla_model.save")


def send_cpu_data_to_device(datas: Any, device: Any, input_sharding: Any = None) -> Any:
    """Moves the CPU tensors of nested data to a device. Returns a list for a single tensor, as torch_xla does."""
    if input_sharding is not None:
        raise NotImplementedError("input_sharding needs SPMD, which is not here; use one process per NeuronCore")
    return to_device([datas] if isinstance(datas, Tensor) else datas, device)


def to_device(data: Any, device: Any) -> Any:
    """Moves the CPU tensors of nested data to a device."""
    return replace_values(data, Tensor, lambda tensor: tensor.to(device) if tensor.is_cpu else tensor)


def do_on_ordinals(target: Callable[..., Any], data: Sequence[Any] = (), ordinals: Sequence[int] = (0,)) -> Any:
    """Calls a function with CPU tensors on the ranks `ordinals`, and waits for all ranks. None on other ranks."""
    mark_step()
    result = target(*_maybe_convert_to_cpu(list(data))) if get_ordinal() in ordinals else None
    rendezvous("torch_xla.core.xla_model.do_on_ordinals")
    return result


class RateTracker:
    """Measures samples per second: a smoothed rate since the last call of `rate`, and the rate since the start."""

    def __init__(self, smooth_factor: float = 0.4) -> None:
        self._smooth_factor = smooth_factor
        self._began_seconds = self._rate_read_seconds = time.monotonic()
        self._before, self._count = 0.0, 0.0
        self._rate: float | None = None

    def add(self, count: float) -> None:
        self._count += count

    def rate(self) -> float:
        """Returns samples per second since the last call, smoothed: `smooth_factor` is the weight of the last rate."""
        now = time.monotonic()
        elapsed = now - self._rate_read_seconds
        if elapsed <= 0:
            return 0.0
        current = self._count / elapsed
        smoothing = 0.0 if self._rate is None else self._smooth_factor
        self._rate = smoothing * (self._rate or 0.0) + (1 - smoothing) * current
        self._before, self._count, self._rate_read_seconds = self._before + self._count, 0.0, now
        return self._rate

    def global_rate(self) -> float:
        elapsed = time.monotonic() - self._began_seconds
        return (self._before + self._count) / elapsed if elapsed > 0 else 0.0


def set_replication(device: Any, devices: Any) -> None:
    """Does nothing: each process has one core."""


def get_stablehlo(tensors: Any = None) -> str:
    """Raises NotImplementedError: there is no StableHLO form of graphs."""
    raise NotImplementedError(unsupported_message("torch_xla.stablehlo"))


def all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: Any = None, pin_layout: bool = True) -> Any:
    """Reduces over the ranks.

    Returns a new tensor for one tensor; changes a list of tensors in place and returns it.
    """
    group = join_subgroup(groups)
    if isinstance(inputs, Tensor):
        result = inputs.clone()
        collective("all_reduce", [result], [], reduce_type, group=group)
        return result * scale if scale != 1.0 else result
    listed = list(inputs)
    if listed:
        collective("all_reduce", listed, [], reduce_type, group=group)
        if scale != 1.0:
            with torch.no_grad():
                for tensor in listed:
                    tensor.mul_(scale)
    return inputs


def all_gather(
    value: Any,
    dim: int = 0,
    groups: Any = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: Any = None,
    use_global_device_ids: Any = None,
) -> Any:
    """Concatenates the tensors of all ranks along a dimension."""
    if not isinstance(value, Tensor):
        results = [all_gather(v, dim, groups) for v in value]
        return _into(output, results)
    group = join_subgroup(groups)
    size = group_size(group)
    if size == 1:
        return _into(output, value.clone())
    parts = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(size)]
    collective("all_gather", parts, [value.detach()], group=group)
    return _into(output, torch.cat(parts, dim))


def all_gather_bucketized(
    input_list: list[Tensor],
    dim: int = 0,
    groups: Any = None,
    output: list[Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Any:
    """Gathers a list of tensors as `all_gather` does. Needs no buckets, because one graph has all collectives."""
    return all_gather(_listed(input_list), dim, groups, output, pin_layout)


def reduce_scatter(
    reduce_type: str,
    input: Any,  # noqa: A002  (the name of torch_xla)
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Any = None,
    output: Any = None,
    pin_layout: bool = True,
) -> Any:
    """Reduces over the ranks and returns this rank's part along a dimension. For a list of tensors, returns a list."""
    if not isinstance(input, Tensor):
        results = [reduce_scatter(reduce_type, each, scale, scatter_dim, shard_count, groups) for each in input]
        return _into(output, results)
    group = join_subgroup(groups)
    parts = [part.contiguous() for part in input.detach().chunk(shard_count, scatter_dim)]
    if group_size(group) == 1:
        return _into(output, input * scale)
    result = torch.empty_like(parts[0])
    collective("reduce_scatter", [result], parts, reduce_type, group=group)
    return _into(output, result * scale if scale != 1.0 else result)


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: list[Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Any = None,
    output: list[Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Any:
    """Does `reduce_scatter` for a list of tensors. Needs no buckets, because one graph has all collectives."""
    return reduce_scatter(reduce_type, _listed(input_list), scale, scatter_dim, shard_count, groups, output, pin_layout)


def _listed(tensors: Any) -> list[Tensor]:
    if not isinstance(tensors, list) or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise TypeError(f"input_list is {type(tensors).__name__}; give a list of tensors")
    return tensors


def all_to_all(
    value: Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Any = None,
    pin_layout: bool = True,
) -> Tensor:
    """Sends a part of the tensor to each rank and concatenates the received parts."""
    group = join_subgroup(groups)
    parts = [part.contiguous() for part in value.detach().chunk(split_count, split_dimension)]
    if group_size(group) == 1:
        return value.clone()
    results = [torch.empty_like(part) for part in parts]
    collective("all_to_all", results, parts, group=group)
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
    """Broadcasts the tensors of one rank to all ranks, in place."""
    if ensure_world() > 1:
        group = join_subgroup(groups)
        root = rank_in_group(root_ordinal, groups)
        collective("broadcast", [tensor.data for tensor in tensors], [], root=root, group=group)


def all_reduce_bucketized_gradients(
    gradients: Iterable[Tensor], scale: float, groups: Any, pin_layout: bool, bucket_cap_mb: int = 0
) -> None:
    """Sums gradients over the ranks and scales them, in place. Ignores `bucket_cap_mb`: one graph reduces them all."""
    all_reduce(REDUCE_SUM, list(gradients), scale, groups, pin_layout)


def collective_permute(value: Tensor, pairs: Sequence[Sequence[int]]) -> Tensor:
    """Sends tensors between ranks by `pairs` of (source, target); a rank that is not a target gets zeros.

    Raises ValueError if a rank is the source or the target of two pairs.
    """
    size = ensure_world()
    sources, targets = [int(pair[0]) for pair in pairs], [int(pair[1]) for pair in pairs]
    if len({*sources}) < len(sources) or len({*targets}) < len(targets):
        raise ValueError(f"collective_permute: pairs={list(pairs)}: give each rank once as source and once as target")
    if outside := [rank for rank in (*sources, *targets) if not 0 <= rank < size]:
        raise ValueError(f"collective_permute: pairs={list(pairs)}: there is no rank {outside[0]}, but 0 to {size - 1}")
    result = torch.zeros_like(value, memory_format=torch.contiguous_format, requires_grad=False)
    if size == 1:
        return value.detach().clone() if sources else result
    routes = " ".join(f"{source}>{target}" for source, target in zip(sources, targets, strict=True))
    collective("permute", [result], [value.detach()], routes)
    return result


def send(value: Tensor, channel_id: int) -> Tensor:
    """Sends a tensor through a channel and returns it, without waiting for the receiver.

    Calls of `recv` with the same channel return the tensors in the order of sending.
    """
    ensure_world()
    send_on_channel(channel_id, value.detach().cpu())
    return value


def recv(output: Tensor, channel_id: int) -> Tensor:
    """Waits for the next tensor of a channel, copies it into `output` and returns `output`."""
    ensure_world()
    with torch.no_grad():
        return output.copy_(receive_on_channel(channel_id, output))


def optimization_barrier_(tensors: Iterable[Tensor]) -> None:
    """Does nothing: operators run in the order in which they were recorded."""


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] | None = None) -> list[bytes]:
    """Waits for all ranks, or the ranks in `replicas`, and returns their payloads by rank."""
    _device.flush_all("Rendezvous")
    if ensure_world() <= 1:
        return [payload]
    return _gather_bytes(payload, join_subgroup([replicas] if replicas else None))


def xla_rendezvous(payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None) -> list[bytes]:
    """Waits for all ranks, or the ranks in `ordinals`, and returns their payloads by rank."""
    return rendezvous(tag or "", payload, ordinals)


def _gather_bytes(payload: bytes, group: int) -> list[bytes]:
    size = group_size(group)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    collective("all_gather", lengths, [torch.tensor([len(payload)])], group=group)
    longest = max(int(length) for length in lengths)
    padded = torch.zeros(max(1, longest), dtype=torch.uint8)
    if payload:
        padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    gathered = [torch.zeros_like(padded) for _ in range(size)]
    collective("all_gather", gathered, [padded], group=group)
    return [bytes(g[: int(n)].tolist()) for g, n in zip(gathered, lengths, strict=True)]
