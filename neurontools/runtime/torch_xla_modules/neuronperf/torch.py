"""`neuronperf.torch`: compiles PyTorch models and measures them on the NeuronCores of this process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Barrier
from typing import Any

import torch

from neurontools.runtime.inference.placement import placed
from neurontools.runtime.inference.tracing import trace
from neurontools.runtime.launch.import_hook import VERSIONS
from neurontools.runtime.tensors.device import device

from . import model_index
from .reporting import get_reports

_log = logging.getLogger("neuronperf.benchmarking")
BENCHMARK_SECS = 60.0
_LEVELS = (logging.ERROR, logging.INFO, logging.DEBUG)  # by verbosity
_WORKERS = (1, 2)


def compile(  # noqa: A001  the name of the API
    model: Any,
    inputs: Any,
    batch_sizes: int | Sequence[int] | None = None,
    pipeline_sizes: int | Sequence[int] | None = None,
    performance_levels: int | Sequence[int] | None = None,
    models_dir: str = "models",
    filename: str | None = None,
    compiler_args: dict[str, Any] | None = None,
    verbosity: int = 1,
    model_name: str | None = None,
) -> str:
    """Traces a model for each example input, and returns the name of the file of the model index.

    `compiler_args` are keyword arguments of torch_neuronx.trace. `performance_levels` has no effect. A model that can't
    be compiled is logged and left out. Raises ValueError for pipelines.
    """
    _set_verbosity(verbosity)
    _refuse_pipelines(pipeline_sizes)
    examples = _examples(inputs)
    name = model_name or type(model).__name__
    Path(models_dir).mkdir(parents=True, exist_ok=True)
    index: model_index.Index = {"version": VERSIONS["neuronperf"], "model_name": name, "model_configs": []}
    for number, (example, batch_size) in enumerate(zip(examples, _sizes(batch_sizes, len(examples)), strict=True)):
        began = time.perf_counter()
        try:
            traced = trace(model, example, **(compiler_args or {}))
        except Exception as error:
            _log_failure(f"Could not compile {name} for batch size {batch_size}", error)
            continue
        with NamedTemporaryFile(prefix=f"{name}_b{batch_size}_p1_", suffix=".pt", dir=models_dir, delete=False) as file:
            torch.jit.save(traced, file.name)
        where = str(Path(models_dir) / Path(file.name).name)
        seconds = round(time.perf_counter() - began, 3)
        index["model_configs"] += model_index.create(where, number, batch_size, compile_s=seconds)["model_configs"]
    return model_index.save(index, filename)


def benchmark(
    model_filename: Any,
    inputs: Any,
    batch_sizes: int | Sequence[int] | None = None,
    duration: float = BENCHMARK_SECS,
    n_models: int | Sequence[int] | None = None,
    pipeline_sizes: int | Sequence[int] | None = None,
    cast_modes: str | Sequence[str] | None = None,
    workers_per_model: int | Sequence[int] | None = None,
    env_setup_fn: Callable[[int, dict[str, Any]], None] | None = None,
    setup_fn: Callable[[int, dict[str, Any], Any], None] | None = None,
    preprocess_fn: Callable[..., Any] | None = None,
    postprocess_fn: Callable[[Any], Any] | None = None,
    dataset_loader_fn: Callable[..., Any] | None = None,
    verbosity: int = 1,
    multiprocess: bool = True,
    multiinterpreter: bool = False,
    return_timers: bool = False,
    device_type: str = "neuron",
    cost_per_hour: float | None = None,
    model_name: str | None = None,
    stats_interval: float | None = None,
) -> list[Any]:
    """Measures compiled models for `duration` seconds in each configuration, and returns their reports.

    `model_filename` is a traced model, or a model index that the other arguments filter. `n_models` copies lie on the
    cores in turn; by default one copy, then one for each core. `workers_per_model` threads feed each copy; by default
    one, then two. All run in this process, which holds the cores, so `multiprocess` and `multiinterpreter` have no
    effect. With `device_type="cpu"`, `model_filename` is a class. `return_timers` returns what `get_reports` takes.

    Raises ValueError for pipelines and for other devices, and TypeError for datasets.
    """
    _set_verbosity(verbosity)
    _refuse_pipelines(pipeline_sizes)
    if device_type not in ("neuron", "cpu"):
        raise ValueError(f"neuronperf: device_type {device_type!r} can't be measured here; use 'neuron' or 'cpu'")
    examples = _examples(inputs)
    name = model_name or getattr(model_filename, "__name__", Path(str(model_filename)).stem)
    models = _configured_models(model_filename, len(examples), batch_sizes, cast_modes)
    copies = _listed(n_models) or sorted({1, len(device.cores) if device_type == "neuron" else 1})
    results = []
    for workers, count, model in product(_listed(workers_per_model) or _WORKERS, copies, models):
        if model["input_idx"] >= len(examples):
            raise ValueError(
                f"neuronperf: {model['filename']} needs input {model['input_idx']}; pass all inputs that compile had"
            )
        config = {
            "model_filename": str(model["filename"]),
            "model_name": name,
            "device_type": device_type,
            "input_idx": model["input_idx"],
            "batch_size": model["batch_size"],
            "n_models": count,
            "workers_per_model": workers,
            "pipeline_size": model["pipeline_size"],
            "cast_mode": model.get("cast_mode"),
            "multiprocess": multiprocess,
            "multiinterpreter": multiinterpreter,
            "start_dts": time.strftime("%Y%m%d-%H%M%S"),
            "duration": duration,
            "cost_per_hour": cost_per_hour,
        }
        _log.info("Benchmarking '%s', %g seconds, %d models, %d workers each.", name, duration, count, workers)
        hooks = _Hooks(env_setup_fn, setup_fn, preprocess_fn, postprocess_fn)
        results.append((config, _measure(model["filename"], examples[model["input_idx"]], config, hooks)))
    return results if return_timers else get_reports(results)


class _Hooks:
    """The functions of the caller around loading and execution."""

    def __init__(self, env_setup: Any, setup: Any, preprocess: Any, postprocess: Any) -> None:
        self.env_setup, self.setup, self.preprocess, self.postprocess = env_setup, setup, preprocess, postprocess


def _measure(source: Any, example: tuple[Any, ...], config: dict[str, Any], hooks: _Hooks) -> dict[str, Any]:
    """Loads the copies of a model, lets its workers execute them, and returns their times in seconds."""
    names = ("latencies", "ends", "load", "warmup", "preprocess", "postprocess", "e2e")
    timers: dict[str, Any] = {name: [] for name in names}
    timers.update(began=time.perf_counter(), status="error")
    try:
        models = []
        for number in range(config["n_models"]):
            if hooks.env_setup is not None:
                hooks.env_setup(number, config)
            began = time.perf_counter()
            model = _load(source, number, config["device_type"])
            loaded = time.perf_counter()
            if hooks.setup is not None:
                hooks.setup(number, config, model)
            _infer(model, example, hooks, None)
            timers["load"].append(loaded - began)
            timers["warmup"].append(time.perf_counter() - loaded)
            models.append(model)
        workers = models * config["workers_per_model"]
        start = Barrier(len(workers) + 1)
        with ThreadPoolExecutor(len(workers), thread_name_prefix="neuronperf") as pool:
            running = [pool.submit(_work, model, example, hooks, start, config["duration"]) for model in workers]
            start.wait()
            timers["began"] = time.perf_counter()
            for each in running:
                for name, values in each.result().items():
                    timers[name] += values
        timers["status"] = "finished"
    except Exception as error:
        _log_failure(f"Could not benchmark '{config['model_filename']}'", error)
    return timers


def _load(source: Any, number: int, device_type: str) -> Any:
    if device_type == "cpu":
        return source().eval()
    with placed(number % len(device.cores), 1):
        return torch.jit.load(source)


def _work(
    model: Any, example: tuple[Any, ...], hooks: _Hooks, start: Barrier, duration_seconds: float
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in ("latencies", "ends", "preprocess", "postprocess", "e2e")}
    start.wait()
    deadline = time.perf_counter() + duration_seconds
    while True:  # once at least, however short the duration
        _infer(model, example, hooks, times)
        if time.perf_counter() >= deadline:
            return times


def _infer(model: Any, example: tuple[Any, ...], hooks: _Hooks, times: dict[str, list[float]] | None) -> None:
    began = time.perf_counter()
    arguments = example
    if hooks.preprocess is not None:
        prepared = hooks.preprocess(*example)
        arguments = prepared if isinstance(prepared, tuple) else (prepared,)
    submitted = time.perf_counter()
    with torch.no_grad():
        result = model(*arguments)
    ended = time.perf_counter()
    if hooks.postprocess is not None:
        hooks.postprocess(result)
    done = time.perf_counter()
    if times is not None:
        for name, value in (
            ("preprocess", submitted - began),
            ("latencies", ended - submitted),
            ("ends", ended),
            ("postprocess", done - ended),
            ("e2e", done - began),
        ):
            times[name].append(value)


def _configured_models(source: Any, input_count: int, batch_sizes: Any, cast_modes: Any) -> list[dict[str, Any]]:
    """Returns the models to measure: those of an index that pass the filters, or one for each input."""
    if isinstance(source, dict) or str(source).endswith(".json"):
        index = model_index.filter(source, batch_sizes=batch_sizes, cast_modes=cast_modes)
        if not index["model_configs"]:
            raise ValueError("neuronperf: the model index has no model of this batch size; see its model_configs")
        configs: list[dict[str, Any]] = index["model_configs"]
        return configs
    created = (model_index.create("", *each) for each in enumerate(_sizes(batch_sizes, input_count)))
    return [index["model_configs"][0] | {"filename": source} for index in created]


def _examples(inputs: Any) -> list[tuple[Any, ...]]:
    """Returns the example inputs, each as a tuple of arguments."""
    if isinstance(inputs, torch.utils.data.Dataset):
        raise TypeError("neuronperf: datasets are not supported here; pass a list of example inputs")
    listed = inputs if isinstance(inputs, list) else [inputs]
    return [example if isinstance(example, tuple) else (example,) for example in listed]


def _sizes(batch_sizes: int | Sequence[int] | None, count: int) -> list[int]:
    sizes = _listed(batch_sizes) or [1] * count
    if len(sizes) != count:
        raise ValueError(f"neuronperf: {len(sizes)} batch sizes for {count} inputs; give one batch size for each input")
    return sizes


def _listed(values: Any) -> list[Any]:
    return [] if values is None else [*values] if isinstance(values, (list, tuple, range)) else [values]


def _refuse_pipelines(pipeline_sizes: Any) -> None:
    if any(size != 1 for size in _listed(pipeline_sizes)):
        raise ValueError("neuronperf: a traced model runs on one NeuronCore; leave out pipeline_sizes, or use n_models")


def _log_failure(what: str, error: Exception) -> None:
    """Logs an error in one line: the last one, because TorchScript puts its traceback before it."""
    found = [line for line in str(error).splitlines() if "Error: " in line] or str(error).splitlines()[:1] or [""]
    _log.error("%s: %s", what, found[-1], exc_info=_log.isEnabledFor(logging.DEBUG))


def _set_verbosity(verbosity: int) -> None:
    if not logging.getLogger().handlers and not _log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s:%(name)s - %(message)s"))
        _log.addHandler(handler)
    _log.setLevel(_LEVELS[min(max(verbosity, 0), 2)])
