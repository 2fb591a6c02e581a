"""`torch_neuronx.DataParallel`: one traced model on several cores, each of which executes a part of the batch.

Source: "PyTorch NeuronX DataParallel API" of the AWS Neuron documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from neurontools.runtime.inference.placement import pinned, selected_cores
from neurontools.runtime.inference.script_module import model_of, neuron_modules
from neurontools.runtime.inference.structure import map_structure, tensors_of
from neurontools.runtime.tensors.buffers import Core
from neurontools.runtime.tensors.device import device

_PREFIX = "nc:"


class DataParallel(nn.Module):
    """Splits inputs along `dim`, executes the parts on cores in turn, and concatenates the results along `dim`.

    Loads the model onto `device_ids`: indices of this process's cores, as numbers or `nc:0`; None means all of them.
    `split_size` is the size of a part; None means the batch size divided by the number of cores. `num_workers` threads
    execute the parts; the default is two for each core. With dynamic batching, which needs `dim=0`, parts may have any
    size; otherwise each part needs the traced size.

    Raises TypeError if `model` is not traced, and ValueError for cores that this process does not have.
    """

    def __init__(
        self,
        model: Any,
        device_ids: Sequence[int | str] | None = None,
        dim: int = 0,
        set_dynamic_batching: bool = True,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.device_ids = [*range(len(device.cores))] if device_ids is None else [*map(_core_index, device_ids)]
        if not self.device_ids:
            raise ValueError("DataParallel: device_ids is empty; name at least one NeuronCore, or leave it out for all")
        self._cores: list[Core] = [selected_cores(index)[0] for index in self.device_ids]
        cores = [selected_cores(index)[0] for index in dict.fromkeys(self.device_ids)]
        self._models = [model_of(each.handle) for each in neuron_modules(model)]
        self.module = model
        self.split_size: int | None = None
        self.num_workers = 2 * len(self._cores)
        self._pool: ThreadPoolExecutor | None = None
        self._pool_size = 0
        if set_dynamic_batching and dim == 0:
            for each in self._models:
                try:
                    each.batch_size()
                except ValueError:  # the model is not eligible, and accepts only its traced size
                    break
            else:
                self._set_dynamic(True)
        for part, loaded in zip(neuron_modules(model), self._models, strict=True):
            loaded.load(cores, is_async=part.is_async)

    def disable_dynamic_batching(self) -> None:
        """Makes the model refuse parts that do not have the traced size."""
        self._set_dynamic(False)

    def _set_dynamic(self, is_dynamic: bool) -> None:
        for each in self._models:
            each.is_dynamic = is_dynamic

    def forward(self, *inputs: Any) -> Any:
        """Returns the results for the whole batch. Raises ValueError for inputs of different sizes along `dim`."""
        sizes = {value.shape[self.dim] for value in tensors_of(inputs, "input") if value.dim() > self.dim}
        if len(sizes) != 1:
            raise ValueError(
                f"DataParallel: the inputs have sizes {sorted(sizes)} in dimension {self.dim}; give all inputs one size"
            )
        (size,) = sizes
        split_size = self.split_size or max(1, size // len(self._cores))
        parts = [_part(inputs, self.dim, start, split_size) for start in range(0, size, split_size)]
        if len(parts) == 1:
            return self._execute(self._cores[0], parts[0])
        cores = [self._cores[number % len(self._cores)] for number in range(len(parts))]
        return _concatenated([*self._workers().map(self._execute, cores, parts)], self.dim)

    def _workers(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pool_size != self.num_workers:
            if self._pool is not None:
                self._pool.shutdown(wait=False)
            self._pool_size = self.num_workers
            self._pool = ThreadPoolExecutor(max(1, self.num_workers), thread_name_prefix="neuron-dp")
        return self._pool

    def _execute(self, core: Core, inputs: tuple[Any, ...]) -> Any:
        with pinned(core), torch.no_grad():
            return self.module(*inputs)


def _core_index(name: int | str) -> int:
    text = str(name).removeprefix(_PREFIX)
    if not text.isdecimal():
        raise ValueError(f"DataParallel: device_ids has {name!r}; name cores as 0 or 'nc:0'")
    return int(text)


def _part(inputs: Any, dim: int, start: int, length: int) -> Any:
    """Returns the inputs with a part of each tensor that has the dimension `dim`."""

    def narrow(value: Tensor) -> Tensor:
        return value if value.dim() <= dim else value.narrow(dim, start, min(length, value.shape[dim] - start))

    return map_structure(inputs, narrow)


def _concatenated(results: Sequence[Any], dim: int) -> Any:
    first = results[0]
    if isinstance(first, Tensor):
        return torch.cat([*results], dim)
    if isinstance(first, dict):
        return {key: _concatenated([each[key] for each in results], dim) for key in first}
    items = [_concatenated(same, dim) for same in zip(*results, strict=True)]
    return items if isinstance(first, list) else tuple(items)
