"""torch_xla.distributed.parallel_loader: loads batches onto the device while the previous step runs."""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from neurontools.runtime.counting.metrics import call_sites
from neurontools.runtime.counting.steps import INPUT, step_clock, steps
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.tensors.device import device as _device

from ..core import xla_model as xm

_END = object()
_LONGEST_END_SECONDS = 30.0  # seconds that `close` waits for a thread that is fetching a batch


@contextmanager
def _input_wait() -> Iterator[None]:
    entry = step_clock.open(INPUT, time.perf_counter())
    try:
        yield
    finally:
        step_clock.close(entry, time.perf_counter())


class _Batches:
    """The batches of one pass over the loader, which a thread fetches. `close` ends the thread."""

    def __init__(self, iterator: Iterator[Any], device: Any, queue_size: int, batch_dim: int) -> None:
        self._iterator = iterator
        self._device = device
        self._batch_dim = batch_dim
        self._queue: queue.Queue[Any] = queue.Queue(max(1, queue_size))
        self._is_open = True
        self._thread = threading.Thread(target=self._fetch, name="ParallelLoader", daemon=True)
        self._thread.start()
        _open_batches.add(self)

    def _fetch(self) -> None:
        step_clock.background.add(threading.get_ident())
        try:
            for item in self._iterator:
                if not self._is_open:
                    return
                self._put((xm.to_device(item, self._device), _samples(item, self._batch_dim)))
            self._put(_END)
        except BaseException as error:
            self._put(error)
        finally:
            step_clock.background.discard(threading.get_ident())

    def _put(self, item: Any) -> None:
        while self._is_open:
            try:
                self._queue.put(item, timeout=0.2)
            except queue.Full:
                continue
            return

    def next(self) -> Any:
        """Returns the next batch and its number of samples; _END after the last batch. Raises the loader's error."""
        with _input_wait():
            item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Ends the thread after its current batch; may be called again."""
        self._is_open = False
        while not self._queue.empty():
            self._queue.get_nowait()
        if self._thread is not threading.current_thread():
            self._thread.join(_LONGEST_END_SECONDS)


class _BatchesInStep:
    """The batches of one pass over the loader, fetched without a thread: each when the script asks for it."""

    def __init__(self, iterator: Iterator[Any], device: Any, batch_dim: int) -> None:
        self._iterator = iterator
        self._device = device
        self._batch_dim = batch_dim

    def next(self) -> Any:
        """Returns the next batch and its number of samples; _END after the last batch. Raises the loader's error."""
        with _input_wait():
            item = next(self._iterator, _END)
        if item is _END:
            return _END
        return xm.to_device(item, self._device), _samples(item, self._batch_dim)

    def close(self) -> None:
        """Does nothing: there is no thread."""


_open_batches: weakref.WeakSet[_Batches] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends the loader threads before the interpreter ends.

    Otherwise a thread that is still in torch's C++ code would abort the process.
    """
    for batches in tuple(_open_batches):
        batches.close()


class PerDeviceLoader:
    """Iterates over the batches of one device, with a mark_step after every `batches_per_execution` of them."""

    def __init__(self, loader: ParallelLoader, device: Any) -> None:
        self._loader = loader
        self._device = device
        self._batches = loader.batches(device)
        self._yielded = 0

    def __iter__(self) -> PerDeviceLoader:
        return self

    def __next__(self) -> Any:
        return self.next()

    def __len__(self) -> int:
        return len(self._loader)

    def next(self) -> Any:
        if self._yielded >= self._loader.batches_per_execution - 1:
            self._yielded = 0
            xm.mark_step()
        else:
            self._yielded += 1
        place = call_sites.count_call("input")
        if ring.traced_steps:
            ring.trace_loader()
        waited = time.perf_counter()
        item = self._batches.next()
        call_sites.add_seconds(place, time.perf_counter() - waited)
        if ring.is_on:
            ring.record_input_wait(int(waited * 1e9))
        if item is _END:
            xm.mark_step()
            raise StopIteration
        batch, samples = item
        steps.record_batch(samples)
        return batch

    def close(self) -> None:
        self._batches.close()


class ParallelLoader:
    """Loads the batches of a DataLoader onto devices in the background."""

    def __init__(
        self,
        cpu_loader: Any,
        devices: Sequence[Any],
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 16,
        device_prefetch_size: int = 8,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
    ) -> None:
        if input_sharding is not None:
            raise NotImplementedError("input_sharding needs SPMD, which is not here; use one process per NeuronCore")
        if len(devices) != 1:
            raise NotImplementedError("a ParallelLoader of several devices is not here; use one process per NeuronCore")
        self._cpu_loader = cpu_loader
        self._devices = [torch.device(d) for d in devices]
        self._batch_dim = batchdim
        self.batches_per_execution = batches_per_execution
        self._queue_size = min(device_prefetch_size, 2)
        self._open: list[_Batches | _BatchesInStep] = []

    def __len__(self) -> int:
        return len(self._cpu_loader)

    def batches(self, device: Any) -> _Batches | _BatchesInStep:
        """Starts a pass. Creates the iterator here, so that worker processes are forked from the calling thread.

        A loader of accelerate gets no thread: the script reads the loader's `end_of_dataloader` after each batch, and a
        thread that fetches batches ahead would set that attribute too early.
        """
        iterator = iter(self._cpu_loader)
        batches: _Batches | _BatchesInStep
        if hasattr(self._cpu_loader, "end_of_dataloader"):
            batches = _BatchesInStep(iterator, device, self._batch_dim)
        else:
            batches = _Batches(iterator, device, self._queue_size, self._batch_dim)
        self._open.append(batches)
        return batches

    def per_device_loader(self, device: Any) -> PerDeviceLoader:
        return PerDeviceLoader(self, torch.device(device))

    def per_device_samples(self) -> int:
        """Returns the number of batches for each device."""
        return len(self)

    def next_item(self, device: Any) -> Any:
        """Returns the next batch of the latest pass."""
        if not self._open:
            self.batches(device)
        return self._open[-1].next()

    def close(self) -> None:
        for batches in self._open:
            batches.close()
        self._open.clear()


class MpDeviceLoader:
    """A DataLoader whose batches are on the device. Iterating over it calls mark_step."""

    def __init__(self, loader: Any, device: Any, **kwargs: Any) -> None:
        self._loader = loader
        self._device = device
        self._keywords = kwargs
        self._parallel: ParallelLoader | None = None

    def __iter__(self) -> Iterator[Any]:
        self._parallel = ParallelLoader(self._loader, [self._device], **self._keywords)
        iterator = self._parallel.per_device_loader(self._device)
        try:
            yield from iterator
        finally:
            # Executes the operators of the last step, even if the script leaves its loop early.
            iterator.close()
            _device.flush_all("LoaderEnd")

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the loader, such as its dataset, which accelerate reads when it saves its state."""
        if name.startswith("_"):  # `_loader` does not exist yet while this object is being copied
            raise AttributeError(name)
        return getattr(self._loader, name)

    def close(self) -> None:
        if self._parallel is not None:
            self._parallel.close()
            self._parallel = None


def _samples(item: Any, batch_dim: int) -> int:
    """Returns the number of samples of a batch: the length of its first tensor."""
    if isinstance(item, torch.Tensor):
        return int(item.shape[batch_dim]) if item.dim() > batch_dim else 1
    values = item.values() if isinstance(item, dict) else item if isinstance(item, (list, tuple)) else ()
    for value in values:
        found = _samples(value, batch_dim)
        if found:
            return found
    return 0
