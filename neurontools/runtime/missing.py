"""Parts of torch_xla that the simulated runtime does not have: errors that name them and say what to use."""

from __future__ import annotations

from typing import Any

_INSTEAD = {
    "torch_xla.distributed.fsdp": "torch.nn.parallel.DistributedDataParallel",
    "torch_xla.distributed.spmd": "one process a NeuronCore (torchrun) with xm.all_reduce",
    "torch_xla.experimental": "the stable modules",
    "torch_xla.stablehlo": "torch.export on the CPU",
    "torch_xla.core.xla_model.send": "torch.distributed.send",
    "torch_xla.core.xla_model.recv": "torch.distributed.recv",
    "torch_xla.core.xla_model.collective_permute": "torch.distributed.send and recv",
}


class Missing:
    """Stands for something that is not there: any use of it is an AttributeError that says so."""

    def __init__(self, name: str, instead: str) -> None:
        self._name = name
        self._instead = instead

    def __getattr__(self, attribute: str) -> Any:
        raise AttributeError(f"{self._name}.{attribute} is not part of the simulated runtime; use {self._instead}")


def text_of(name: str) -> str:
    """The text of the error for a missing name."""
    instead = next((advice for prefix, advice in _INSTEAD.items() if name.startswith(prefix)), None)
    return f"{name} is not part of the simulated runtime" + (f"; use {instead}" if instead else "")
