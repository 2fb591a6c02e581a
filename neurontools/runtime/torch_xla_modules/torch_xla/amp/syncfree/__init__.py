"""torch_xla.amp.syncfree: optimizers that skip a step whose gradients overflowed, without a synchronisation.

Here torch's own optimizers need no synchronisation, because an optimizer step is recorded like other operators.
GradScaler sets `found_inf` if the gradients overflowed.
"""

from __future__ import annotations

from typing import Any

import torch


def _with_found_inf(base: type[Any]) -> type[Any]:
    class SyncFree(base):  # type: ignore[misc]
        __doc__ = f"torch.optim.{base.__name__} whose `step` leaves the parameters unchanged where `found_inf` is set."

        @torch.no_grad()
        def step(self, closure: Any = None, found_inf: torch.Tensor | None = None) -> Any:
            """Updates the parameters, unless `found_inf` is greater than 0."""
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


Adam = _with_found_inf(torch.optim.Adam)
AdamW = _with_found_inf(torch.optim.AdamW)
SGD = _with_found_inf(torch.optim.SGD)
