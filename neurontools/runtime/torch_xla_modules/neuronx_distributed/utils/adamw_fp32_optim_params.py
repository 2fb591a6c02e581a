"""neuronx_distributed.utils.adamw_fp32_optim_params: AdamW in float32 for parameters of lower precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class AdamW_FP32OptimParams(torch.optim.AdamW):  # noqa: N801
    """AdamW with state and updates in float32; parameters of another type get the rounded result.

    For such a parameter, the state has a float32 copy, `fp32_param`.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                self._step(parameter, group)
        return loss

    def _step(self, parameter: Tensor, group: dict[str, Any]) -> None:
        if parameter.grad is None:
            return
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.float32)
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=torch.float32)
            if parameter.dtype != torch.float32:
                state["fp32_param"] = parameter.detach().float().clone()
        whole, gradient = state.get("fp32_param", parameter), parameter.grad.float()
        beta1, beta2 = group["betas"]
        state["step"] += 1
        whole.mul_(1 - group["lr"] * group["weight_decay"])
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (state["exp_avg_sq"] / (1 - beta2 ** state["step"])).sqrt() + group["eps"]
        whole.sub_(state["exp_avg"] / root * (group["lr"] / (1 - beta1 ** state["step"])))
        if whole is not parameter:
            parameter.copy_(whole)
