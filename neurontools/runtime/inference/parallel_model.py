"""Models that several cores execute together: a traced model for each rank of a tensor-parallel group.

Source: "Inference with Tensor Parallelism" (neuronx-distributed) of the AWS Neuron documentation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

from neurontools.runtime.execution.rank_threads import RankExchange
from neurontools.runtime.inference.buckets import BucketModelConfig, trace_buckets
from neurontools.runtime.inference.placement import selected_cores
from neurontools.runtime.inference.script_module import build_module, model_of, neuron_modules
from neurontools.runtime.inference.structure import as_arguments
from neurontools.runtime.inference.tracing import trace_model
from neurontools.runtime.reporting.inference_log import ModelCounters, inference_log
from neurontools.runtime.tensors.buffers import Core

_FILE = "tp_{}.pt"
_execution_locks: dict[int, threading.Lock] = {}


class RankThreads:
    """The threads that execute the ranks of a model, one for each rank."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="neuron-rank")

    def execute(self, cores: Sequence[Core], counters: ModelCounters, run: Callable[[int], Any]) -> list[Any]:
        """Calls `run(N)` in the thread of rank N, for all ranks at the same time. Returns their results.

        Waits for executions of all models that have a core in common. Raises the first error of the ranks.
        """
        queued = perf_counter()
        counters.change_queue_depth(1)
        with _all_of(cores):
            counters.change_queue_depth(-1)
            exchange = RankExchange(cores, queued)
            futures = [self._pool.submit(_execute_rank, exchange, rank, run) for rank in range(len(cores))]
            wait(futures)
        if exchange.first_error is not None:
            raise exchange.first_error
        return [future.result() for future in futures]

    def __del__(self) -> None:
        self._pool.shutdown(wait=False)


def _execute_rank(exchange: RankExchange, rank: int, run: Callable[[int], Any]) -> Any:
    with exchange.member(rank), torch.no_grad():
        return run(rank)


class ParallelModel(nn.Module):
    """Traced models of which `models[N]` is rank N, which core N of the process executes. Any thread may call it.

    The models are loaded at the first execution. All ranks get the same inputs; the result is that of rank 0.
    """

    def __init__(self, models: Sequence[torch.jit.ScriptModule]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.tp_degree = len(models)
        self._ranks = [[model_of(part.handle) for part in neuron_modules(model)] for model in models]
        self._counters = inference_log.model(self._ranks[0][0].model.name)
        self._lock = threading.Lock()
        self._cores: list[Core] = []
        self._threads = RankThreads(self.tp_degree)

    def load(self) -> None:
        """Loads rank N onto core N of the process. Does nothing if it is loaded.

        Raises ValueError if the process has too few cores, and OutOfDeviceMemory; then no rank is loaded.
        """
        with self._lock:
            if self._cores:
                return
            cores = selected_cores(0, self.tp_degree)
            with ExitStack() as on_failure:
                for core, models in zip(cores, self._ranks, strict=True):
                    for model in models:
                        on_failure.callback(model.unload)
                        model.load([core])
                on_failure.pop_all()
            self._cores = cores

    def forward(self, *inputs: Any) -> Any:
        """Executes the model once. Waits for executions of all models that have a core in common with it."""
        self.load()
        return self._threads.execute(self._cores, self._counters, lambda rank: self.models[rank](*inputs))[0]


@contextmanager
def _all_of(cores: Sequence[Core]) -> Iterator[None]:
    """Waits until no other parallel model executes on any of the cores. The order of the locks avoids deadlocks."""
    with ExitStack() as held:
        for index in sorted(core.global_index for core in cores):
            held.enter_context(_execution_locks.setdefault(index, threading.Lock()))
        yield


def trace_rank(
    func: Callable[..., Any],
    example_inputs: Any,
    *,
    bucket_config: BucketModelConfig | None,
    compiler_workdir: str | Path | None,
    compiler_args: str | Sequence[str] | None,
    has_separate_weights: bool,
) -> torch.jit.ScriptModule:
    """Traces the model of one rank. `func` returns a model, or a model and its `input_output_aliases`.

    The module and what `torch.jit.load` makes of its file are on no core before their first execution.
    """
    if bucket_config is not None:
        module = trace_buckets(
            lambda **keywords: _model_and_aliases(func(**keywords)),
            example_inputs,
            bucket_config,
            compiler_workdir=compiler_workdir,
            compiler_args=compiler_args,
            has_separate_weights=has_separate_weights,
        )
    else:
        model, aliases = _model_and_aliases(func())
        arguments = as_arguments(example_inputs)
        traced, result = trace_model(
            model,
            arguments,
            input_output_aliases=aliases,
            compiler_workdir=compiler_workdir,
            compiler_args=compiler_args,
            has_separate_weights=has_separate_weights,
        )
        module = build_module(traced, arguments, result)
    for part in neuron_modules(module):
        part.is_lazy = True
    return module


def _model_and_aliases(returned: Any) -> tuple[Any, Any]:
    return returned if isinstance(returned, tuple) else (returned, None)


def save_ranks(model: ParallelModel, directory: str | Path) -> None:
    """Saves the model of each rank as a file `tp_0.pt` and so on in a directory, which it creates if necessary."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    for rank, each in enumerate(model.models):
        torch.jit.save(each, str(Path(directory) / _FILE.format(rank)))


def load_ranks(directory: str | Path) -> ParallelModel:
    """Reads what `save_ranks` wrote. Raises FileNotFoundError if the file of a rank is missing."""
    found = len([*Path(directory).glob(_FILE.format("*"))])
    files = [Path(directory) / _FILE.format(rank) for rank in range(max(1, found))]
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(
                f"{file}: the file of this rank is missing; give the directory of parallel_model_save, with the files "
                "of all ranks"
            )
    return ParallelModel([torch.jit.load(str(file)) for file in files])
