"""neuronx_distributed.parallel_layers.checkpointing: a file for each tensor-parallel rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch_xla.core.xla_model as xm
from torch_xla.utils import serialization

from . import parallel_state


def save(
    state_dict: dict[str, Any], output_dir: str, save_serially: bool = True, save_xser: bool = False, **unknown: Any
) -> None:
    """Saves a state: of the ranks that have the same weights the first one writes; all wait."""
    del save_serially  # each writes a file of its own
    if unknown:
        raise NotImplementedError(f"checkpointing.save({next(iter(unknown))}=…) is not part of the simulated runtime")
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
    """This rank's state, with CPU tensors; into a model, where one is given. `sharded=False`: a file of the whole."""
    path = _path(output_dir) if sharded else Path(output_dir)
    state = serialization.load(path) if load_xser else torch.load(path, map_location="cpu")
    if model is not None:
        model.load_state_dict(state[model_key] if model_key else state)
    return state


def _path(output_dir: str) -> Path:
    return (
        Path(output_dir) / f"tp_rank_{parallel_state.get_tensor_model_parallel_rank():02d}_pp_rank_00" / "checkpoint.pt"
    )
