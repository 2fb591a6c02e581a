"""torch_xla.distributed.fsdp.wrap: which parts of a model are units of their own.

A policy is called as `policy(module, recurse, count)`: whether to look at the parts of a module, or whether it is a
unit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Module = torch.nn.Module
Policy = Callable[..., bool]


def always_wrap_policy(*_: Any, **__: Any) -> bool:
    """Each module is a unit."""
    return True


def transformer_auto_wrap_policy(
    module: Module,
    recurse: bool,
    unwrapped_params: int = 0,
    transformer_layer_cls: Any = (),
    nonwrapped_numel: int = 0,
) -> bool:
    """The layers of a transformer, by their classes, are units."""
    del unwrapped_params, nonwrapped_numel
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
    """Modules with so many parameters that are in no unit yet are units; lists of modules are not."""
    count = max(unwrapped_params, nonwrapped_numel)
    leaves = tuple(force_leaf_modules or (torch.nn.MultiheadAttention,))
    excluded = tuple(exclude_wrap_modules or (torch.nn.ModuleList, torch.nn.ModuleDict))
    if recurse:
        return count >= min_num_params and not isinstance(module, leaves)
    return count >= min_num_params and not isinstance(module, excluded)


def wrap_parts(module: Module, policy: Policy, wrapper: Callable[[Module], Module]) -> None:
    """Replaces the parts of a module that a policy makes units, the innermost first."""
    for name, part in module.named_children():
        replaced = _wrapped(part, policy, wrapper)
        if replaced is not part:
            setattr(module, name, replaced)


def _wrapped(module: Module, policy: Policy, wrapper: Callable[[Module], Module]) -> Module:
    if policy(module, True, _count(module)):
        wrap_parts(module, policy, wrapper)
        if policy(module, False, _count(module)):
            return wrapper(module)
    return module


def _count(module: Module) -> int:
    """The elements of the parameters that are in no unit."""
    return sum(p.numel() for p in module.parameters() if not hasattr(p, "_fsdp_shard_of"))
