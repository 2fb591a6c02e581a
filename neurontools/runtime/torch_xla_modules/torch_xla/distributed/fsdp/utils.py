"""torch_xla.distributed.fsdp.utils: activation checkpointing of modules."""

from __future__ import annotations

from typing import Any

import torch

from ...utils.checkpoint import checkpoint


def checkpoint_module(module: torch.nn.Module) -> torch.nn.Module:
    """Makes a module recompute its activations in backward instead of keeping them, and returns the module."""
    forward = module.forward

    def checkpointed(*arguments: Any, **keywords: Any) -> Any:
        return checkpoint(lambda *given: forward(*given, **keywords), *arguments)

    module.forward = checkpointed
    return module


def apply_xla_patch_to_nn_linear(module: torch.nn.Module, *_: Any) -> torch.nn.Module:
    """Returns the module unchanged: the patch prevents a change by XLA's compiler, which does not run here."""
    return module
