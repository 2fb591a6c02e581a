"""Places where stock torch decides by the type of a device, and would decide wrongly or fail for this one."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.optim import asgd, nadam, radam

from neurontools.runtime.reporting.stderr_lines import warn_once
from neurontools.runtime.tensors.device import device

Tensor = torch.Tensor


def install() -> None:
    """Changes them; once a process."""
    _generators()
    _data_parallel()
    _optimizers()
    _legacy_save()


def _generators() -> None:
    """`torch.Generator("xla")`: stock torch wants a C++ hook for it. The numbers are drawn on the host anyway."""
    base: Any = torch._C.Generator

    class _Kind(type(base)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, base)

    class Generator(base, metaclass=_Kind):  # type: ignore[misc]
        __doc__ = base.__doc__
        _where: torch.device

        def __new__(cls, device_: Any = "cpu", *, device: Any = None) -> Any:
            where = torch.device(device_ if device is None else device)
            if where.type != _name():
                return base(where)
            made = super().__new__(cls)
            made._where = torch.device(where.type, where.index or 0)
            return made

        def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
            """Nothing left to do."""

        @property
        def device(self) -> torch.device:
            """The core that it was made for."""
            return self._where

    torch.Generator = Generator  # type: ignore[misc]


def _name() -> str:
    return device.name


def _data_parallel() -> None:
    """nn.DataParallel copies a module to several devices of one process in C++; here it runs on one, as on the CPU."""
    kind: Any = torch.nn.DataParallel
    original = kind.__init__

    @functools.wraps(original)
    def init(self: Any, module: torch.nn.Module, *arguments: Any, **keywords: Any) -> None:
        if torch.cuda.is_available():
            original(self, module, *arguments, **keywords)
            return
        torch.nn.Module.__init__(self)
        self.module, self.device_ids = module, []
        if any(p.device.type == device.name for p in module.parameters()) and len(device.taken) > 1:
            warn_once(
                "DataParallel",
                f"nn.DataParallel uses one NeuronCore of this process; use DistributedDataParallel with a process for "
                f"each ({len(device.taken)} cores: neuron-run --nproc-per-node {len(device.taken)})",
            )

    kind.__init__ = init


def _optimizers() -> None:
    """Without `foreach=`, torch takes the lists' way on accelerators; for these three its bits are not the loops'."""
    for module in (asgd, nadam, radam):
        original = module._default_to_fused_or_foreach

        def choose(params: Any, differentiable: bool, use_fused: bool = False, original: Any = original) -> Any:
            if any(isinstance(p, Tensor) and p.device.type == device.name for p in params):
                return False, False
            return original(params, differentiable, use_fused)

        module._default_to_fused_or_foreach = choose  # type: ignore[attr-defined]


def _legacy_save() -> None:
    """The format before torch 1.6 has the bytes after the tensors, so that loading would copy what is not read yet."""
    serialization: Any = torch.serialization
    original = serialization._legacy_save

    @functools.wraps(original)
    def save(*arguments: Any, **keywords: Any) -> Any:
        kind: Any = Tensor
        reduce_ex = kind.__reduce_ex__

        def refuse(self: Tensor, protocol: int) -> Any:
            if self.device.type == device.name:
                raise NotImplementedError(
                    f"torch.save(…, _use_new_zipfile_serialization=False): the old format can't hold tensors of "
                    f"{device.name}; save CPU tensors (xm.save does), or leave the argument out"
                )
            return reduce_ex(self, protocol)

        kind.__reduce_ex__ = refuse
        try:
            return original(*arguments, **keywords)
        finally:
            kind.__reduce_ex__ = reduce_ex

    serialization._legacy_save = save
