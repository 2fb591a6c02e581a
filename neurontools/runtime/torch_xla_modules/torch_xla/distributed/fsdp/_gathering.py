"""Modules whose parameters are gathered when they are asked for, because only a part of each is on this rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ._shards import Sharing

Tensor = torch.Tensor
Module = torch.nn.Module


class GatheredParameter:
    """One parameter: this rank's part of it, and how the whole of it is had."""

    def __init__(self, whole: torch.nn.Parameter, sharing: Sharing, keeps_rows: bool) -> None:
        self.shape = whole.shape
        self.keeps_rows = keeps_rows
        self._sharing = sharing
        self._whole: Tensor | None = None
        with torch.no_grad():
            self.part = torch.nn.Parameter(sharing.part(whole.detach(), keeps_rows), whole.requires_grad)
        self.part._fsdp_shard_of = tuple(whole.shape)  # type: ignore[attr-defined]
        self.part._is_sharded = True  # type: ignore[attr-defined]  # what Lightning looks for

    @property
    def value(self) -> Tensor:
        """The whole parameter: the one that is held in a forward pass, else gathered anew."""
        return self._gathered() if self._whole is None else self._whole

    @contextmanager
    def held(self) -> Iterator[Tensor]:
        """Gathers the parameter once for all who use it within."""
        if self._whole is not None:
            yield self._whole
            return
        self._whole = self._gathered()
        try:
            yield self._whole
        finally:
            self._whole = None

    def _gathered(self) -> Tensor:
        return self._sharing.gathered(self.part, self.shape, self.keeps_rows)

    def again(self) -> Tensor:
        """The whole parameter without a history, for backward."""
        with torch.no_grad():
            return self._gathered().detach()


def install(module: Module, found: dict[str, GatheredParameter]) -> None:
    """Makes attributes of a module the parameters that they name, gathered; its own registered ones go."""
    if isinstance(module, torch.nn.RNNBase):
        raise NotImplementedError(
            f"XlaFullyShardedDataParallel: {type(module).__name__} holds its parameters in a list of its own; leave it "
            "outside of the wrapped module"
        )
    kind: Any = type(module)
    members: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    for name, parameter in found.items():
        module._parameters.pop(name)
        members[name] = property(_getter(parameter))
    module.__class__ = type(kind.__name__, (kind,), members)


def _getter(parameter: GatheredParameter) -> Callable[[Module], Tensor]:
    return lambda _module: parameter.value


class _Place:
    """Where in a gathered parameter a tensor lies that autograd keeps for backward."""

    def __init__(self, parameter: GatheredParameter, tensor: Tensor) -> None:
        self.parameter = parameter
        self.layout = tensor.size(), tensor.stride(), tensor.storage_offset()


def resharding(wholes: dict[int, GatheredParameter]) -> Any:
    """A context in which autograd keeps no gathered parameter, but where to have it from; `wholes` by their memory."""

    def pack(tensor: Tensor) -> Any:
        parameter = wholes.get(tensor.untyped_storage().data_ptr())
        return tensor if parameter is None else _Place(parameter, tensor)

    def unpack(kept: Any) -> Tensor:
        if isinstance(kept, _Place):
            return kept.parameter.again().as_strided(*kept.layout)
        value: Tensor = kept
        return value

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
