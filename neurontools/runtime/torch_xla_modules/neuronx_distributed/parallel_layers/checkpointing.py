"""neuronx_distributed.parallel_layers.checkpointing: checkpoints with a file for each tensor-parallel rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch_xla.core.xla_model as xm
from torch_xla.utils import serialization

from . import parallel_state
from .utils import refuse_keywords, shard_state_dict


def save(
    state_dict: dict[str, Any], output_dir: str, save_serially: bool = True, save_xser: bool = False, **unknown: Any
) -> None:
    """Saves a state dictionary and waits for all ranks. Among ranks with the same weights, only the first writes.

    Ignores `save_serially`, because each rank has its own file.
    """
    refuse_keywords("checkpointing.save", unknown)
    xm.mark_step()
    if parallel_state.get_data_parallel_rank() == 0:
        path = _path(output_dir)
        path.parent.mkdir(parents=True, exist_ok=True)
        if save_xser:
            serialization.write(state_dict, path)
        else:
            torch.save(xm._maybe_convert_to_cpu(state_dict), path)
    xm.rendezvous("neuronx_distributed.checkpointing.save")


def load(
    output_dir: str, model: Any = None, model_key: str = "model", load_xser: bool = False, sharded: bool = True
) -> Any:
    """Returns this rank's state with CPU tensors, and loads it into `model`.

    `sharded=False` reads one file for all ranks, and loads this rank's shards of its full parameters.
    """
    path = _path(output_dir) if sharded else Path(output_dir)
    state = serialization.load(path) if load_xser else torch.load(path, map_location="cpu")
    if model is not None:
        parameters = state[model_key] if model_key and model_key in state else state
        if not sharded:
            rank, size = (
                parallel_state.get_tensor_model_parallel_rank(),
                parallel_state.get_tensor_model_parallel_size(),
            )
            parameters = shard_state_dict(model, parameters, rank, size)
        model.load_state_dict(parameters, strict=sharded)
    return state


def _path(output_dir: str) -> Path:
    return (
        Path(output_dir) / f"tp_rank_{parallel_state.get_tensor_model_parallel_rank():02d}_pp_rank_00" / "checkpoint.pt"
    )
