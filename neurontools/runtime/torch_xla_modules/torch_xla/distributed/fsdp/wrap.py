"""torch_xla.distributed.fsdp.wrap: policies that choose the submodules to wrap.

With `recurse`, `policy(module, recurse, count)` returns whether to recurse into the submodules. Without `recurse`, it
returns whether to wrap the module. `count` is the number of the module's parameter elements that are not wrapped yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Module

Policy = Callable[..., bool]


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
        replaced = _wrapped(part, policy, wrapper)
        if replaced is not part:
            setattr(module, name, replaced)


def _wrapped(module: Module, policy: Policy, wrapper: Callable[[Module], Module]) -> Module:
    if policy(module, True, _count(module)):
        wrap_submodules(module, policy, wrapper)
        if policy(module, False, _count(module)):
            return wrapper(module)
    return module


def _count(module: Module) -> int:
    """Returns the number of parameter elements that are not wrapped yet."""
    return sum(p.numel() for p in module.parameters() if not hasattr(p, "_fsdp_shard_of"))
