"""XlaFullyShardedDataParallel: parameters, gradients and optimizer state sharded among the ranks.

This module also holds the policies of torch_xla.distributed.fsdp.wrap, which choose the submodules to wrap. With
`recurse`, `policy(module, recurse, count)` returns whether to recurse into the submodules. Without `recurse`, it
returns whether to wrap the module. `count` is the number of the module's parameter elements that are not wrapped yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional
from torch import Tensor
from torch.autograd import Function
from torch.nn import Module
from torch.utils._pytree import tree_map

from neurontools.runtime.execution.gloo import group_size, join_subgroup, rank_in_group

from ...core import xla_model as xm

Policy = Callable[..., bool]


@dataclass(frozen=True)
class ShardingConfig:
    """The ranks among which parameters are sharded, and the dtypes for gathers and gradient reductions.

    `compute_dtype` is the dtype of gathered parameters; None keeps the dtype of the shards. Gradients are averaged.
    """

    groups: Any
    rank: int
    size: int
    compute_dtype: torch.dtype | None
    reduces_in_float32: bool

    def shard_of(self, whole: Tensor, keeps_rows: bool) -> Tensor:
        """Returns this rank's shard of a tensor, padded with zeros to the same size on all ranks."""
        return _padded(_rows(whole, keeps_rows), self.size).chunk(self.size)[self.rank].clone()

    def gather(self, part: Tensor, shape: torch.Size, keeps_rows: bool) -> Tensor:
        """Gathers the full tensor of a shard; its gradient is reduced and scattered to the shards."""
        result: Tensor = _Gathered.apply(part, self, shape, keeps_rows)  # type: ignore[no-untyped-call]
        return result


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, sharing: ShardingConfig, shape: torch.Size, keeps_rows: bool) -> Tensor:
        ctx.gather_arguments = part.dtype, sharing, keeps_rows
        value = part if sharing.compute_dtype is None else part.to(sharing.compute_dtype)
        whole = xm.all_gather(value, groups=sharing.groups)
        rows = shape[0] if keeps_rows and shape else shape.numel()
        result: Tensor = whole.narrow(0, 0, rows).reshape(shape)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        dtype, sharing, keeps_rows = ctx.gather_arguments
        rows = _padded(_rows(gradients[0], keeps_rows), sharing.size)
        if sharing.reduces_in_float32:
            rows = rows.float()
        part = xm.reduce_scatter(xm.REDUCE_SUM, rows, 1.0 / sharing.size, 0, sharing.size, groups=sharing.groups)
        return part.to(dtype), None, None, None


def _rows(whole: Tensor, keeps_rows: bool) -> Tensor:
    return whole if keeps_rows and whole.dim() else whole.reshape(-1)


def _padded(rows: Tensor, size: int) -> Tensor:
    missing = -len(rows) % size
    return torch.nn.functional.pad(rows, [0, 0] * (rows.dim() - 1) + [0, missing]) if missing else rows


class GatheredParameter:
    """One sharded parameter: this rank's shard, from which `value` gathers the full parameter."""

    def __init__(self, whole: torch.nn.Parameter, sharing: ShardingConfig, keeps_rows: bool) -> None:
        self.shape = whole.shape
        self.keeps_rows = keeps_rows
        self._sharing = sharing
        self._whole: Tensor | None = None
        with torch.no_grad():
            self.part = torch.nn.Parameter(sharing.shard_of(whole.detach(), keeps_rows), whole.requires_grad)
        self.part._fsdp_shard_of = tuple(whole.shape)  # type: ignore[attr-defined]
        self.part._is_sharded = True  # type: ignore[attr-defined]  # Lightning reads this attribute

    @property
    def value(self) -> Tensor:
        """The full parameter. During a forward pass it is gathered once; otherwise each access gathers it."""
        return self._gathered() if self._whole is None else self._whole

    @contextmanager
    def held(self) -> Iterator[Tensor]:
        """A context manager that gathers the parameter once and keeps the full parameter until the block ends."""
        if self._whole is not None:
            yield self._whole
            return
        self._whole = self._gathered()
        try:
            yield self._whole
        finally:
            self._whole = None

    def _gathered(self) -> Tensor:
        return self._sharing.gather(self.part, self.shape, self.keeps_rows)

    def gather_for_backward(self) -> Tensor:
        """Gathers the parameter without autograd, for backward."""
        with torch.no_grad():
            return self._gathered().detach()


def replace_with_gathered(module: Module, found: dict[str, GatheredParameter]) -> None:
    """Replaces registered parameters of a module by properties that gather them."""
    if isinstance(module, torch.nn.RNNBase):
        raise NotImplementedError(
            f"XlaFullyShardedDataParallel: {type(module).__name__} holds its parameters in a list of its own; leave it "
            "outside of the wrapped module"
        )
    kind: Any = type(module)
    members: dict[str, Any] = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    for name, parameter in found.items():
        module._parameters.pop(name)
        members[name] = property(partial(_gathered_value, parameter))
    module.__class__ = type(kind.__name__, (kind,), members)


def _gathered_value(parameter: GatheredParameter, _module: Module) -> Tensor:
    return parameter.value


class _SavedView:
    """An object that autograd saves instead of a view of a gathered parameter. Backward gathers the parameter again."""

    def __init__(self, parameter: GatheredParameter, tensor: Tensor) -> None:
        self.parameter = parameter
        self.layout = tensor.size(), tensor.stride(), tensor.storage_offset()


def regather_in_backward(wholes: dict[int, GatheredParameter]) -> Any:
    """Returns a context in which autograd does not save gathered parameters; backward gathers them again.

    `wholes` has the gathered parameters, by the address of their storage.
    """

    def pack(tensor: Tensor) -> Any:
        parameter = wholes.get(tensor.untyped_storage().data_ptr())
        return tensor if parameter is None else _SavedView(parameter, tensor)

    def unpack(saved: Any) -> Tensor:
        if isinstance(saved, _SavedView):
            return saved.parameter.gather_for_backward().as_strided(*saved.layout)
        value: Tensor = saved
        return value

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def clip_gradients(
    gradients: list[Tensor], counted: list[Tensor], max_norm: float, norm_type: float, groups: Any
) -> Tensor:
    """Scales `gradients` so that the norm of the gradients `counted` over all ranks is at most `max_norm`.

    Returns the unscaled norm. Each rank of the rank groups `groups` must call this function, also without gradients.
    """
    norms = [torch.linalg.vector_norm(gradient.float(), norm_type) for gradient in counted]
    each = torch.stack(norms) if norms else torch.zeros(1, device=xm.xla_device())
    total: Tensor
    if norm_type == float("inf"):
        total = xm.all_reduce(xm.REDUCE_MAX, each.max(), groups=groups)
    else:
        total = xm.all_reduce(xm.REDUCE_SUM, (each**norm_type).sum(), groups=groups) ** (1.0 / norm_type)
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.dtype))
    return total


def always_wrap_policy(*_: Any, **__: Any) -> bool:
    return True


def transformer_auto_wrap_policy(
    module: Module,
    recurse: bool,
    unwrapped_params: int = 0,
    transformer_layer_cls: Any = (),
    nonwrapped_numel: int = 0,
) -> bool:
    """Wraps the layers of a transformer, by their classes."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: Module,
    recurse: bool,
    unwrapped_params: int = 0,
    min_num_params: int = int(1e8),
    force_leaf_modules: Any = None,
    exclude_wrap_modules: Any = None,
    nonwrapped_numel: int = 0,
) -> bool:
    """Wraps modules with at least `min_num_params` unwrapped parameter elements, except containers of modules."""
    count = max(unwrapped_params, nonwrapped_numel)
    leaves = tuple(force_leaf_modules or (torch.nn.MultiheadAttention,))
    excluded = tuple(exclude_wrap_modules or (torch.nn.ModuleList, torch.nn.ModuleDict))
    if recurse:
        return count >= min_num_params and not isinstance(module, leaves)
    return count >= min_num_params and not isinstance(module, excluded)


def wrap_submodules(module: Module, policy: Policy, wrapper: Callable[[Module], Module]) -> None:
    """Wraps the submodules that a policy chooses, innermost first."""
    for name, part in module.named_children():
        if policy(part, True, _count(part)):
            wrap_submodules(part, policy, wrapper)
            if policy(part, False, _count(part)):
                setattr(module, name, wrapper(part))


def _count(module: Module) -> int:
    return sum(p.numel() for p in module.parameters() if not hasattr(p, "_fsdp_shard_of"))


_SEPARATOR = "_FSDP_SHARD_SEPARATOR_"
_FOR_THE_COMPILER = {
    "flatten_parameters_on_cpu",
    "execute_sharding_on_init",
    "optimization_barrier_in_forward",
    "optimization_barrier_in_backward",
    "mark_step_on_finalization",
    "coalesce_all_gather_ops",
    "pin_layout_in_collective_ops",
    "use_all_gather_via_all_reduce",
    "disable_reshard_on_root",
    "_shard_size_multiple",
    "_debug_print",
    "_debug_msg",
    "_debug_dummy_forward_pass",
    "_debug_dummy_optimizer_step",
}
"""Keywords of torch_xla that do not change the results and are ignored."""


class XlaFullyShardedDataParallel(Module):
    """Wraps a module for fully sharded training; its parameters must be the same on all ranks.

    Each rank keeps a shard of each parameter, and `parameters()` returns the shards: create the optimizer after
    wrapping, and call `optimizer.step`. The full parameters exist during the forward pass; with `reshard_after_forward`
    they are gathered again in backward. Gradients are averaged over the ranks.

    Submodules that the script or `auto_wrap_policy` has wrapped are gathered separately.
    """

    def __init__(
        self,
        module: Module,
        reshard_after_forward: bool = True,
        flatten_parameters: bool = False,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., Module] | None = None,
        compute_dtype: torch.dtype | None = None,
        buffer_dtype: torch.dtype | None = None,
        fp32_reduce_scatter: bool = False,
        sharding_groups: Any = None,
        sharding_rank: int | None = None,
        sharding_world_size: int | None = None,
        shard_param_on_dim_0: bool = False,
        **hints: Any,
    ) -> None:
        unknown = hints.keys() - _FOR_THE_COMPILER
        if unknown:
            raise TypeError(f"XlaFullyShardedDataParallel: no keyword {min(unknown)!r} is known; leave it out")
        if flatten_parameters:
            raise NotImplementedError(
                "XlaFullyShardedDataParallel(flatten_parameters=True) is not part of the simulated runtime; leave it "
                "out: each parameter is sharded separately"
            )
        super().__init__()
        group = join_subgroup(sharding_groups)
        self.rank = rank_in_group(xm.get_ordinal(), sharding_groups) if sharding_rank is None else sharding_rank
        self.world_size = group_size(group) if sharding_world_size is None else sharding_world_size
        self.sharding_groups = sharding_groups
        self.reshard_after_forward = reshard_after_forward
        self.compute_dtype = compute_dtype
        self._sharing = ShardingConfig(sharding_groups, self.rank, self.world_size, compute_dtype, fp32_reduce_scatter)
        if auto_wrap_policy is not None:
            same: dict[str, Any] = {
                "reshard_after_forward": reshard_after_forward,
                "compute_dtype": compute_dtype,
                "buffer_dtype": buffer_dtype,
                "fp32_reduce_scatter": fp32_reduce_scatter,
                "sharding_groups": sharding_groups,
                "sharding_rank": sharding_rank,
                "sharding_world_size": sharding_world_size,
                "shard_param_on_dim_0": shard_param_on_dim_0,
            }
            wrapper = auto_wrapper_callable or type(self)
            wrap_submodules(module, auto_wrap_policy, lambda part: wrapper(part, **same))
        self._gathered: list[GatheredParameter] = []
        self._shard_info: dict[str, dict[str, Any]] = {}
        self._shard_parameters(module, shard_param_on_dim_0)
        self._fsdp_wrapped_module = module
        for buffer in module.buffers():
            if buffer_dtype is not None and buffer.is_floating_point():
                buffer.data = buffer.data.to(buffer_dtype)
        self.to(xm.xla_device())

    def _shard_parameters(self, module: Module, keeps_rows: bool) -> None:
        """Shards the parameters that are not wrapped yet; a parameter of several modules stays tied."""
        parameters: dict[int, GatheredParameter] = {}
        for path, owner in module.named_modules():
            found = {}
            for name, parameter in list(owner._parameters.items()):
                if parameter is None or hasattr(parameter, "_fsdp_shard_of"):
                    continue
                gathered = parameters.get(id(parameter))
                if gathered is None:
                    gathered = parameters[id(parameter)] = GatheredParameter(parameter, self._sharing, keeps_rows)
                    whole_name = f"{path}.{name}" if path else name
                    shard_name = f"_fsdp_shard.{whole_name}".replace(".", _SEPARATOR)
                    self.register_parameter(shard_name, gathered.part)
                    self._shard_info[shard_name] = {
                        "_orig_name": whole_name,
                        "_orig_size": tuple(parameter.shape),
                        "_keeps_rows": keeps_rows,
                    }
                found[name] = gathered
            if found:
                replace_with_gathered(owner, found)
        self._gathered = list(parameters.values())

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        apply: Any = super()._apply
        result = apply(fn, recurse)
        for gathered, name in zip(self._gathered, self._shard_info, strict=True):
            gathered.part = self._parameters[name]  # type: ignore[assignment]  # `_apply` may replace the Parameter object
        return result

    @property
    def module(self) -> Module:
        return self._fsdp_wrapped_module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.compute_dtype is not None:
            args, kwargs = tree_map(self._in_compute_dtype, (args, kwargs))
        with self._whole_parameters():
            return self._fsdp_wrapped_module(*args, **kwargs)

    def _in_compute_dtype(self, value: Any) -> Any:
        is_changed = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(self.compute_dtype) if is_changed else value

    @contextmanager
    def _whole_parameters(self) -> Iterator[None]:
        with ExitStack() as stack:
            wholes = {}
            for gathered in self._gathered:
                whole = stack.enter_context(gathered.held())
                wholes[whole.untyped_storage().data_ptr()] = gathered
            if self.reshard_after_forward and torch.is_grad_enabled():
                stack.enter_context(regather_in_backward(wholes))
            yield

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of this module, or else of the wrapped module."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_fsdp_wrapped_module"), name)

    def __getitem__(self, key: Any) -> Any:
        wrapped: Any = self._fsdp_wrapped_module
        return wrapped[key]

    def all_reduce_op(self, reduce_type: str, inputs: Any, scale: float = 1.0, groups: Any = None) -> Any:
        """Calls xm.all_reduce among the ranks that share this module's parameters."""
        return xm.all_reduce(reduce_type, inputs, scale, groups or self.sharding_groups)

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0, groups: Any = None) -> Tensor:
        """Scales gradients so that their norm over all ranks is at most `max_norm`. Returns the unscaled norm.

        Each rank of the group must call this. A rank without gradients contributes 0.
        """
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        return clip_gradients(gradients, gradients, max_norm, norm_type, groups or self.sharding_groups)

    def get_shard_metadata(self) -> dict[str, Any]:
        """Returns the name, the original size and the layout of each shard, for `consolidate_sharded_state_dicts`."""
        info = {
            f"{path}.{name}" if path else name: shard_info
            for path, unit in self.named_modules()
            if isinstance(unit, XlaFullyShardedDataParallel)
            for name, shard_info in unit._shard_info.items()
        }
        return {"shard_info": info, "rank": self.rank, "world_size": self.world_size}
