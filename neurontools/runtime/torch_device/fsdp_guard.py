"""FSDP on the device: an error where a script asks for it, not an abort in the middle of backward.

It resizes storages and waits for streams in C++, which a backend in Python has not. torch.distributed.fsdp is imported
by few scripts and takes long, so it is changed when it is imported.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch

from neurontools.runtime.tensors.device import device

_PACKAGE = "torch.distributed.fsdp"


class _Loader(Loader):
    """Loads the package as it is, then guards it."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the original."""
        made: ModuleType | None = self._original.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """As the original, and the guards."""
        self._original.exec_module(module)
        guard(module)


class FsdpFinder(MetaPathFinder):
    """Finds torch.distributed.fsdp and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The package's own spec with our loader."""
        if fullname != _PACKAGE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def install() -> None:
    """Guards the package now or when it is imported; once a process."""
    loaded = sys.modules.get(_PACKAGE)
    if loaded is not None:
        guard(loaded)
    else:
        sys.meta_path.insert(0, FsdpFinder())


def guard(package: Any) -> None:
    """Makes both ways into FSDP refuse modules for the device."""
    kind = package.FullyShardedDataParallel
    kind.__init__ = _refusing(kind.__init__, "FullyShardedDataParallel", lambda named: named.get("device_id"))
    package.fully_shard = _refusing(package.fully_shard, "fully_shard", lambda named: _mesh_device(named.get("mesh")))


def _mesh_device(mesh: Any) -> Any:
    return None if mesh is None else mesh.device_type


def _refusing(original: Callable[..., Any], name: str, chosen: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def guarded(*arguments: Any, **keywords: Any) -> Any:
        where = chosen(keywords)
        # Without a device of the script's choice FSDP takes the accelerator, which is ours.
        if where is None or isinstance(where, int) or torch.device(where).type == device.name:
            raise NotImplementedError(
                f"{name}: FSDP is not supported on {device.name}, because it resizes storages in C++; use "
                "DistributedDataParallel, with ZeroRedundancyOptimizer to share out the optimizer's state"
            )
        return original(*arguments, **keywords)

    return guarded
