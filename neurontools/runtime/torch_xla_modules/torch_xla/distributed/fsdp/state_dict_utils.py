"""torch_xla.distributed.fsdp.state_dict_utils: merges sharded checkpoints of all ranks into one checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

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
