"""Optimizers that skip a step whose gradients overflowed, without asking the host.

Here a step is recorded like any other, so the stock optimizers are already free of synchronisation; `found_inf` is what
GradScaler hands over.
"""

from __future__ import annotations

from typing import Any

import torch


def skipping(base: type[Any]) -> type[Any]:
    """The optimizer, whose `step` takes `found_inf`."""

    class SyncFree(base):  # type: ignore[misc]
        __doc__ = f"torch.optim.{base.__name__} that leaves the parameters alone where found_inf is set."

        @torch.no_grad()
        def step(self, closure: Any = None, found_inf: torch.Tensor | None = None) -> Any:
            """Steps; where found_inf is not 0 the parameters keep their values."""
            if found_inf is None:
                return super().step(closure)
            parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
            before = [p.clone() for p in parameters]
            result = super().step(closure)
            for parameter, old in zip(parameters, before, strict=True):
                parameter.copy_(torch.where(found_inf.reshape(()) > 0, old, parameter))
            return result

    SyncFree.__name__ = SyncFree.__qualname__ = base.__name__
    return SyncFree
