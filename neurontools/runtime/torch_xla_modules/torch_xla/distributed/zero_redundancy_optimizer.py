"""torch_xla.distributed.zero_redundancy_optimizer: an optimizer with sharded state (ZeRO-1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from neurontools.runtime.execution.gloo import group_size, join_subgroup, rank_in_group

from ..core import xla_model as xm

Group = dict[str, Any]


class ZeroRedundancyOptimizer(Optimizer):
    """Wraps an optimizer: each rank updates its shard of each parameter, then all ranks gather full parameters.

    `step` averages the gradients over the ranks of `sharding_groups`, clips them to `max_norm` (1 by default, as in
    torch_xla) unless `grad_clipping` is False, and updates the parameters. The norm is over these ranks and, for
    tensor parallelism, over `grad_norm_groups`. Shards are along the first dimension, in `optimizer_dtype`
    (default float32). Other keywords are passed to the optimizer.
    """

    def __init__(
        self,
        params: Any,
        optimizer_class: Any,
        optimizer_dtype: torch.dtype | None = None,
        grad_clipping: bool = True,
        max_norm: float | None = None,
        pin_layout: bool = True,
        sharding_groups: Any = None,
        grad_norm_groups: Any = None,
        lazy_init: bool = False,
        bucket_cap_mb_all_gather: int = 0,
        bucket_cap_mb_reduce_scatter: int = 0,
        use_grad_acc_hook: bool = False,
        save_master_weights: bool = False,
        higher_cc_precision: bool = False,
        **defaults: Any,
    ) -> None:
        if use_grad_acc_hook:
            raise NotImplementedError(
                "ZeroRedundancyOptimizer(use_grad_acc_hook=True) is not part of the simulated runtime; leave it out"
            )
        super().__init__(params, defaults)
        self.optimizer_class = optimizer_class
        self.optimizer_dtype = optimizer_dtype or torch.float32
        self.grad_clipping = grad_clipping
        self.max_norm = 1.0 if max_norm is None else max_norm
        self.sharding_groups = sharding_groups
        self.grad_norm_groups = grad_norm_groups
        self.device = xm.xla_device()
        self.inited = False
        self._own_defaults = defaults
        if not lazy_init:
            self.init_zero()

    def init_zero(self) -> None:
        """Creates the optimizer of this rank's shards. The constructor calls it unless `lazy_init` is set."""
        group = join_subgroup(self.sharding_groups)
        self.local_world_size = group_size(group)
        self.local_rank = rank_in_group(xm.get_ordinal(), self.sharding_groups)
        groups = [{**group, "params": [self._part(p) for p in group["params"]]} for group in self.param_groups]
        self.base_optimizer: Any = self.optimizer_class(groups, **self._own_defaults)
        _share_settings(self.base_optimizer.param_groups, self.param_groups, only_missing=True)
        self.inited = True

    @torch.no_grad()
    def step(self, closure: Any = None, **keywords: Any) -> Any:
        if not self.inited:
            raise RuntimeError("ZeroRedundancyOptimizer(lazy_init=True): call init_zero() before step()")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        _share_settings(self.param_groups, self.base_optimizer.param_groups)
        stepped = [(whole, part, whole.grad) for whole, part in self._pairs() if whole.grad is not None]
        for _, part, gradient in stepped:
            part.grad = self._reduced(gradient)
        if self.grad_clipping:
            self._clip_grad_norm(self.max_norm)
        self.base_optimizer.step(**keywords)
        for whole, part, _ in stepped:
            part.grad = None
            gathered = xm.all_gather(part.detach().to(whole.dtype), groups=self.sharding_groups)
            whole.copy_(gathered.narrow(0, 0, max(1, whole.dim() and len(whole))).reshape(whole.shape))
        _share_settings(self.base_optimizer.param_groups, self.param_groups)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Returns the settings, and the state of this rank's shards as `base_state`. Each rank saves its own state."""
        return {**super().state_dict(), "base_state": self.base_optimizer.state_dict()["state"]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a result of `state_dict` of the same rank, and shards the parameters again."""
        settings = {key: value for key, value in state_dict.items() if key != "base_state"}
        super().load_state_dict(settings)
        self.init_zero()
        base = self.base_optimizer.state_dict()
        self.base_optimizer.load_state_dict({**base, "state": state_dict["base_state"]})

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        for whole_group, part_group in zip(self.param_groups, self.base_optimizer.param_groups, strict=True):
            yield from zip(whole_group["params"], part_group["params"], strict=True)

    @torch.no_grad()
    def _part(self, parameter: Tensor) -> torch.nn.Parameter:
        rows = self._padded(parameter.detach())
        part = rows.chunk(self.local_world_size)[self.local_rank].to(self.optimizer_dtype).clone()
        return torch.nn.Parameter(part, parameter.requires_grad)

    def _padded(self, value: Tensor) -> Tensor:
        rows = value if value.dim() else value.reshape(1)
        missing = -len(rows) % self.local_world_size
        return torch.nn.functional.pad(rows, [0, 0] * (rows.dim() - 1) + [0, missing]) if missing else rows

    def _reduced(self, gradient: Tensor) -> Tensor:
        size = self.local_world_size
        part = xm.reduce_scatter(
            xm.REDUCE_SUM, self._padded(gradient), 1.0 / size, 0, size, groups=self.sharding_groups
        )
        reduced: Tensor = part.to(self.optimizer_dtype)
        return reduced

    def _counts(self, parameter: Tensor) -> bool:
        """Whether this rank includes the gradient of a parameter in the gradient norm. Subclasses override this."""
        return True

    def _calc_grad_norm(self, norm_type: float = 2.0) -> Tensor:
        """Returns the 2-norm of the gradients of all shards. Raises ValueError if `norm_type` is not 2."""
        if norm_type != 2.0:
            raise ValueError(f"norm_type={norm_type}: only the 2-norm is there")
        own_squares = torch.zeros((), dtype=self.optimizer_dtype, device=self.device)
        for whole, part in self._pairs():
            if part.grad is not None and self._counts(whole):
                own_squares = own_squares + (part.grad * part.grad).sum()
        squares: Tensor = xm.all_reduce(xm.REDUCE_SUM, own_squares, groups=self.sharding_groups)
        if self.grad_norm_groups is not None:
            squares = xm.all_reduce(xm.REDUCE_SUM, squares, groups=self.grad_norm_groups)
        return squares.sqrt()

    def _clip_grad_norm(self, max_norm: float, norm_type: float = 2.0) -> None:
        """Scales the gradients of the shards; AWS's samples override this."""
        factor = (max_norm / (self._calc_grad_norm(norm_type) + 1e-6)).clamp(max=1.0)
        for _, part in self._pairs():
            if part.grad is not None:
                part.grad.mul_(factor)


def _share_settings(source: list[Group], target: list[Group], *, only_missing: bool = False) -> None:
    """Copies settings, such as learning rates, between the parameter groups of the wrapper and of its optimizer."""
    for given, target_group in zip(source, target, strict=True):
        for name, value in given.items():
            if name != "params" and not (only_missing and name in target_group):
                target_group[name] = value
