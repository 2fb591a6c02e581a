"""torch_xla._XLAC, the extension module of torch_xla: the one function of it that Hugging Face's libraries call."""  # noqa: N999

from __future__ import annotations

import torch


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """A number of a tensor's memory, by which tied parameters are found."""
    return tensor.untyped_storage().data_ptr()
