"""torch_xla.distributed.fsdp: fully sharded data parallelism.

This module also holds the functions of its modules state_dict_utils and utils: merging the sharded checkpoints of all
ranks, and activation checkpointing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from ...utils.checkpoint import checkpoint
from .xla_fully_sharded_data_parallel import XlaFullyShardedDataParallel as XlaFullyShardedDataParallel

_WRAPPED = "_fsdp_wrapped_module."


def consolidate_sharded_state_dicts(checkpoints: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Merges the checkpoints of all ranks, each `{"model": …, "shard_metadata": …}`, into one state dictionary.

    Raises ValueError if a rank is missing.
    """
    ordered = sorted(checkpoints, key=lambda checkpoint: checkpoint["shard_metadata"]["rank"])
    size = ordered[0]["shard_metadata"]["world_size"] if ordered else 0
    found = [checkpoint["shard_metadata"]["rank"] for checkpoint in ordered]
    if not ordered or found != list(range(size)):
        raise ValueError(f"checkpoints of ranks {found}, but there were {size}; give one of each rank")
    shards = ordered[0]["shard_metadata"]["shard_info"]
    whole = {}
    for name, value in ordered[0]["model"].items():
        info = shards.get(name)
        if info is None:
            whole[name.replace(_WRAPPED, "")] = value
            continue
        unit = name[: name.rindex("_fsdp_shard")]
        parts = torch.cat([checkpoint["model"][name].cpu() for checkpoint in ordered])
        shape = torch.Size(info["_orig_size"])
        rows = shape[0] if info["_keeps_rows"] and shape else shape.numel()
        original = info["_orig_name"].replace(_WRAPPED, "")
        whole[unit.replace(_WRAPPED, "") + original] = parts[:rows].reshape(shape).clone()
    return whole


def consolidate_sharded_model_checkpoints(
    ckpt_prefix: str, ckpt_suffix: str = "*.pth", save_path: str = "", save_model: bool = True
) -> tuple[dict[str, torch.Tensor], str]:
    """Merges the checkpoint files `<prefix><suffix>` of all ranks.

    Returns the state dictionary and the path of the saved file. Without `save_model` the path is "".
    """
    start = Path(ckpt_prefix)
    is_directory = ckpt_prefix.endswith("/")
    directory, pattern = (start, ckpt_suffix) if is_directory else (start.parent, start.name + ckpt_suffix)
    paths = sorted(directory.glob(pattern))
    if not paths:
        raise FileNotFoundError(f"{ckpt_prefix + ckpt_suffix}: no such checkpoints")
    whole = consolidate_sharded_state_dicts([torch.load(path, map_location="cpu") for path in paths])
    if not save_model:
        return whole, ""
    target = save_path or f"{ckpt_prefix}_consolidated.pth"
    torch.save({"model": whole}, target)
    return whole, target


def checkpoint_module(module: Module) -> Module:
    """Makes a module recompute its activations in backward instead of keeping them, and returns the module."""
    forward = module.forward

    def checkpointed(*arguments: Any, **keywords: Any) -> Any:
        return checkpoint(lambda *given: forward(*given, **keywords), *arguments)

    module.forward = checkpointed
    return module


def apply_xla_patch_to_nn_linear(module: Module, *_: Any) -> Module:
    """Returns the module unchanged: the patch prevents a change by XLA's compiler, which does not run here."""
    return module
