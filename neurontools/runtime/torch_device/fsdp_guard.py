"""FSDP on the device: where it can't be, an error where a script asks for it, not an abort in the middle of backward.

FullyShardedDataParallel resizes storages in C++, which a backend in Python can't follow. `fully_shard` does it in
Python, which `resized_storages` carries out; but it needs a DeviceMesh, and under the name `xla` torch leaves that to
torch_xla's SPMD.

torch.distributed.fsdp is imported by few scripts and takes long, so it is changed when it is imported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from neurontools.runtime.tensors.device import device
from neurontools.runtime.torch_device.when_imported import when_imported


def install() -> None:
    """Guards the package now or when it is imported; once a process."""
    when_imported("torch.distributed.fsdp", guard)


def guard(package: Any) -> None:
    """Makes the ways into FSDP refuse modules for the device where they can't be."""
    kind = package.FullyShardedDataParallel
    kind.__init__ = _refusing(
        kind.__init__,
        f"FullyShardedDataParallel is not supported on {device.name}, because it resizes storages in C++; use "
        "fully_shard under the device name neuron, torch_xla's XlaFullyShardedDataParallel, or DistributedDataParallel "
        "with ZeroRedundancyOptimizer",
        lambda named: named.get("device_id"),
    )
    if device.name == "xla":
        package.fully_shard = _refusing(
            package.fully_shard,
            "fully_shard is not supported on xla, where torch leaves a DeviceMesh to torch_xla's SPMD; use the device "
            "name neuron (NEURONTOOLS_DEVICE=neuron), or torch_xla's XlaFullyShardedDataParallel",
            lambda named: _mesh_device(named.get("mesh")),
        )


def _mesh_device(mesh: Any) -> Any:
    return None if mesh is None else mesh.device_type


def _refusing(original: Callable[..., Any], text: str, chosen: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def guarded(*arguments: Any, **keywords: Any) -> Any:
        where = chosen(keywords)
        # Without a device of the script's choice FSDP takes the accelerator, which is ours.
        if where is None or isinstance(where, int) or torch.device(where).type == device.name:
            raise NotImplementedError(text)
        return original(*arguments, **keywords)

    return guarded
