"""torch_xla.utils.serialization: stores each tensor in its own file, so that host memory holds one at a time."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import torch

from ..core import xla_model as xm


class TensorReference:
    """The place of a tensor in a saved state: the number of the tensor's file, its type and shape."""

    def __init__(self, tid: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.tid, self.dtype, self.shape = tid, dtype, shape


def save(data: Any, path: Any, master_only: bool = True, global_master: bool = False) -> None:
    """Saves nested data: its tensors as CPU tensors in the directory `<path>.tensors`, the rest in the file `path`.

    By default one process of each host writes; all processes wait until the data is written.
    """
    xm.mark_step()
    if not master_only or xm.is_master_ordinal(local=not global_master):
        write(data, path)
    xm.rendezvous("torch_xla.utils.serialization.save")


def write(data: Any, path: Any) -> None:
    """Like `save`, but always writes in this process, and does not wait for other processes."""
    directory = _directory(path)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    numbers = itertools.count()

    def written(tensor: torch.Tensor) -> TensorReference:
        number = next(numbers)
        torch.save(tensor.detach().cpu(), directory / f"tensor_{number}.pt")
        return TensorReference(number, tensor.dtype, tuple(tensor.shape))

    torch.save(xm.replace_values(data, torch.Tensor, written), path)


def load(path: Any) -> Any:
    """Loads the data that `save` wrote, with CPU tensors. A pickle can run code, so load only files that you trust."""
    directory = _directory(path)
    return xm.replace_values(
        torch.load(path, weights_only=False),
        TensorReference,
        lambda reference: torch.load(directory / f"tensor_{reference.tid}.pt"),
    )


def _directory(path: Any) -> Path:
    return Path(f"{path}.tensors")
