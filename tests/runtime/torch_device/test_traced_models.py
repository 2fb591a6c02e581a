"""Models traced for inference: results, shapes, saving, placement on cores, HBM and counts."""

from __future__ import annotations

import copy
import gc
import importlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.inference.loaded_model import unload_collected
from neurontools.runtime.inference.recording import NotTraceable
from neurontools.runtime.inference.script_module import model_of, neuron_modules
from neurontools.runtime.inference.structure import UnsupportedStructure
from neurontools.runtime.programs.compiler import InvalidCompilerFlags
from neurontools.runtime.reporting.inference_log import inference_log
from neurontools.runtime.tensors.buffers import Category, OutOfDeviceMemory

Run = Callable[..., Any]
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Classifier(nn.Module):
    """Layers with tied weights, a buffer, a tensor attribute, a recurrent layer and a normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.recurrent = nn.GRU(8, 8, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("scale", torch.full((20,), 0.5))
        self.offset = torch.arange(20.0)

    def forward(self, words: torch.Tensor, options: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        states, last = self.recurrent(self.words(words))
        logits = self.head(self.norm(last[0])) * self.scale + self.offset * options["weight"]
        return {"logits": logits, "states": states.transpose(0, 1), "same": words}


@pytest.fixture
def torch_neuronx(xla: Any) -> Any:
    module = importlib.import_module("torch_neuronx")
    gc.collect()
    unload_collected()  # the models of earlier tests
    return module


def weights_of(model: Classifier) -> list[torch.Tensor]:
    """The weights that the results depend on."""
    unused = model.norm.num_batches_tracked
    return [model.offset, *(value for value in [*model.parameters(), *model.buffers()] if value is not unused)]


def constants_bytes(xla: Any) -> list[int]:
    return [core.memory.levels[Category.CONSTANTS] for core in xla.cores]


def executions(xla: Any) -> list[int]:
    return [core.statistics.executions_total for core in xla.cores]


def test_a_traced_model_computes_what_the_cpu_computes_and_is_saved_without_its_class(
    torch_neuronx: Any, xla: Any, run_python: Run, tmp_path: Path
) -> None:
    model = Classifier().eval()
    first, second = (
        (torch.randint(20, (3, 5)), {"weight": torch.rand(20)}),
        (torch.randint(20, (3, 5)), {"weight": torch.rand(20)}),
    )
    before, counted = executions(xla), inference_log.model("Classifier").read()
    traced = torch_neuronx.trace(model, first, compiler_workdir=tmp_path / "work")
    assert sum(executions(xla)) == sum(before)  # tracing executes nothing
    assert not torch.jit.is_tracing()
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    for inputs in (first, second):
        expected, results = model(*inputs), traced(*inputs)
        assert results.keys() == expected.keys()
        assert all(torch.equal(results[name], expected[name]) for name in expected)
    assert sum(executions(xla)) == sum(before) + 2
    served = inference_log.model("Classifier").read()
    assert served.calls_total - counted.calls_total == 2
    assert (served.samples_total - counted.samples_total, served.queue_depth) == (6, 0)
    (placement,) = served.placements
    assert placement.weights_bytes == sum(value.nbytes for value in weights_of(model))
    other = torch_neuronx.trace(Classifier().eval(), first)
    assert other is not None
    ids = {each.weights_id for each in inference_log.model("Classifier").read().placements}
    assert len(ids) == 2
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"model.hlo.pb", "graph.neff", "command.txt"}

    torch.jit.save(traced, tmp_path / "model.pt")
    torch.save((second, expected), tmp_path / "expected.pt")
    script = tmp_path / "serve.py"
    script.write_text(
        "import torch, torch_neuronx\n"
        "inputs, expected = torch.load('expected.pt')\n"
        "model = torch.jit.load('model.pt')\n"
        "results = model(*inputs)\n"
        "print(all(torch.equal(results[name], expected[name]) for name in expected), 'Classifier' in globals())\n"
    )
    done = run_python("-m", "neurontools.runtime", str(script))
    assert done.stdout == "True False\n", done.stderr


def test_loads_take_the_cores_in_turn_and_free_their_hbm(torch_neuronx: Any, xla: Any, tmp_path: Path) -> None:
    model, inputs = nn.Linear(64, 64).eval(), torch.rand(2, 64)
    before = constants_bytes(xla)
    traced = torch_neuronx.trace(model, inputs)
    torch.jit.save(traced, tmp_path / "linear.pt")
    loaded = [torch.jit.load(tmp_path / "linear.pt") for _ in range(3)]
    weights = 64 * 64 * 4 + 64 * 4
    assert [now - then for now, then in zip(constants_bytes(xla), before, strict=True)] == [2 * weights, 2 * weights]
    counts = executions(xla)
    with torch.no_grad():
        expected = model(inputs)
        for each in loaded[:2]:
            assert torch.equal(each(inputs), expected)
    assert [now - then for now, then in zip(executions(xla), counts, strict=True)] == [1, 1]
    gc.disable()  # a model is unloaded when the last reference to it goes, and not when the garbage collector runs
    try:
        del traced, loaded, each
    finally:
        gc.enable()
    unload_collected()
    assert constants_bytes(xla) == before
    assert torch.equal(copy.deepcopy(torch.jit.load(tmp_path / "linear.pt"))(inputs), expected)
    torch.jit.load(tmp_path / "linear.pt")(inputs)
    torch_neuronx.trace(model, inputs)(inputs)  # a load frees what is no longer referred to
    assert max(now - then for now, then in zip(constants_bytes(xla), before, strict=True)) <= weights


def test_other_inputs_are_refused_in_the_words_of_the_sdk(torch_neuronx: Any, xla: Any) -> None:
    traced = torch_neuronx.trace(nn.Linear(4, 2).eval(), torch.rand(2, 4))
    counts = executions(xla)
    for wrong, message in (
        (torch.rand(3, 4), "Incorrect tensor shape at input tensor #0: received 3 4, expected 2 4"),
        (torch.rand(2, 4).double(), "Incorrect tensor type at input tensor #0: received float64, expected float32"),
        (torch.rand(2, 4, device="xla"), "Incorrect device at input tensor #0: received xla:0, expected cpu"),
    ):
        with pytest.raises(RuntimeError, match=message) as raised:
            traced(wrong)
        assert str(raised.value).splitlines()[-1].startswith(f"RuntimeError: {message}"), (
            "below TorchScript's traceback"
        )
    xla.flush_all("Test")
    assert sum(executions(xla)) - sum(counts) <= 1  # only the random tensor on the device was executed
    with pytest.raises(RuntimeError, match="this tensor refers to no traced model"):
        torch.ops.neuron.forward_v2([torch.rand(2, 4)], torch.ones(1))


def test_results_that_pass_through_the_host_are_refused(torch_neuronx: Any) -> None:
    values = torch.rand(4)
    for func, message in (
        (lambda x: x[x > 0.5], "aten::index.Tensor: the compiler does not support this operator"),
        (lambda x: x.nonzero(), "aten::nonzero: the compiler"),
        (lambda x: torch.tensor(x.tolist()), r"reads the values of a tensor \[4\] that depends on its inputs"),
    ):
        with pytest.raises(NotTraceable, match=message):
            torch_neuronx.trace(func, values)
    with pytest.warns(torch.jit.TracerWarning, match="uses that of the example inputs"):
        traced = torch_neuronx.trace(lambda x: x + 1 if x.sum() > 0 else x - 1, values)
    assert torch.equal(traced(-values), -values + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a number that depends on no input is a constant
        traced = torch_neuronx.trace(lambda x: x * int(torch.ones(3, device=x.device).sum()), values)
    assert torch.equal(traced(values), values * 3)
    with pytest.raises(UnsupportedStructure, match=r"output\[1\] is a str; only tensors"):
        torch_neuronx.trace(lambda x: (x, "name"), values)
    with pytest.raises(UnsupportedStructure, match=r"input\[0\]\[1\] is a int; only tensors"):
        torch_neuronx.trace(lambda x: x, [values, 2])
    with pytest.raises(TypeError, match="a str can't be traced"):
        torch_neuronx.trace("model", values)


@torch.no_grad()
def test_a_cache_in_the_results_becomes_a_tuple_of_keys_and_values(torch_neuronx: Any) -> None:
    class Layer:
        def __init__(self, keys: torch.Tensor) -> None:
            self.keys, self.values = keys, keys + 1

    class DynamicCache:
        def __init__(self, keys: torch.Tensor) -> None:
            self.layers = [Layer(keys), Layer(keys * 2)]

    x = torch.rand(2, 3)
    traced = torch_neuronx.trace(lambda value: (value, DynamicCache(value)), x)
    (keys, values), (doubled, _) = traced(x)[1]
    with pytest.raises(UnsupportedStructure, match=r"keys \['result', 'cache'\].*return a tuple"):
        torch_neuronx.trace(lambda value: {"result": value, "cache": DynamicCache(value)}, x)
    assert torch.equal(keys, x)
    assert torch.equal(values, x + 1)
    assert torch.equal(doubled, x * 2)


def test_strides_of_the_example_inputs_are_those_of_the_executions(torch_neuronx: Any) -> None:
    model = nn.Conv2d(3, 8, 3).eval()
    x = torch.rand(1, 3, 8, 8).to(memory_format=torch.channels_last)
    traced = torch_neuronx.trace(model, x)
    assert torch.equal(traced(x), model(x))
    assert torch.equal(traced(x.contiguous()), model(x))
    assert torch.equal(torch_neuronx.trace(model, x.contiguous())(x.contiguous()[:, :, :, :]), model(x.contiguous()))


def test_inputs_and_weights_that_a_model_changes_stay_as_they_are(torch_neuronx: Any) -> None:
    class Counter(nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            self.calls += 1
            self.latest = x
            x += self.count
            return x * 1

    model, x = Counter(), torch.ones(2)
    traced = torch_neuronx.trace(model, x)
    for _ in range(2):
        assert torch.equal(traced(x), torch.full((2,), 2.0))
    assert torch.equal(x, torch.ones(2))
    assert torch.equal(model.count, torch.zeros(2))
    assert (model.calls, hasattr(model, "latest")) == (0, False)


def test_a_state_stays_on_the_core_between_executions(torch_neuronx: Any, tmp_path: Path) -> None:
    class Cache(nn.Module):
        sum: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sum", torch.zeros(3), persistent=False)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            total = self.sum + x
            return total * 2, total

    model = Cache()
    traced = torch_neuronx.trace(model, torch.ones(3), input_output_aliases={model.sum: 1})
    assert [traced(torch.ones(3))[0].item() for _ in range(3)] == [2.0, 4.0, 6.0]
    torch.jit.save(traced, tmp_path / "cache.pt")
    assert torch.jit.load(tmp_path / "cache.pt")(torch.ones(3))[0].item() == 2.0
    with pytest.raises(ValueError, match="names output 2, the model has 2 outputs"):
        torch_neuronx.trace(model, torch.ones(3), input_output_aliases={model.sum: 2})
    with pytest.raises(NotTraceable, match="no parameter or buffer of the traced module"):
        torch_neuronx.trace(model, torch.ones(3), input_output_aliases={torch.ones(3): 1})


def test_compiler_arguments_are_those_of_the_compiler_and_part_of_the_saved_model(
    torch_neuronx: Any, tmp_path: Path
) -> None:
    model, x = nn.Linear(8, 8).eval(), torch.rand(8, 8)
    traced = torch_neuronx.trace(model, x, compiler_args=["--auto-cast", "matmult", "-O1"])
    torch.jit.save(traced, tmp_path / "rounded.pt")
    rounded = torch.jit.load(tmp_path / "rounded.pt")(x)
    assert not torch.equal(rounded, model(x))
    assert torch.allclose(rounded, model(x), atol=0.05)
    with pytest.raises(InvalidCompilerFlags, match="compiler_args: unrecognized argument '--fast'"):
        torch_neuronx.trace(model, x, compiler_args="--fast")
    with pytest.raises(ValueError, match="cpu_backend=True needs the target"):
        torch_neuronx.trace(model, x, cpu_backend=True)


def test_a_model_is_compiled_once_for_all_processes(torch_neuronx: Any) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).eval(), torch.rand(7, 8)
    compiled = metrics.counters.get("UncachedCompile", 0)
    torch_neuronx.trace(model, x)
    assert metrics.counters["UncachedCompile"] == compiled + 1
    torch_neuronx.trace(model, x)
    assert metrics.counters["UncachedCompile"] == compiled + 1


def test_a_model_without_room_is_refused_and_leaves_nothing(
    torch_neuronx: Any, xla: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, x = nn.Linear(256, 256).eval(), torch.rand(1, 256)
    traced = torch_neuronx.trace(model, x)
    torch.jit.save(traced, tmp_path / "large.pt")
    expected = traced(x)
    for core in xla.cores:
        monkeypatch.setattr(core.memory, "limit_bytes", core.memory.total_bytes + 100_000)
    levels = [list(core.memory.levels) for core in xla.cores]
    with pytest.raises((RuntimeError, OutOfDeviceMemory), match="usage: model constants"):
        torch.jit.load(tmp_path / "large.pt")
    assert [list(core.memory.levels) for core in xla.cores] == levels
    for core in xla.cores:
        monkeypatch.setattr(core.memory, "limit_bytes", core.memory.total_bytes + 100)
    failed = sum(core.statistics.failed_executions_total for core in xla.cores)
    with pytest.raises((RuntimeError, OutOfDeviceMemory), match="usage: tensors"):
        traced(x)
    assert sum(core.statistics.failed_executions_total for core in xla.cores) == failed + 1
    assert [list(core.memory.levels) for core in xla.cores] == levels
    for core in xla.cores:
        monkeypatch.setattr(core.memory, "limit_bytes", core.memory.total_bytes + 100_000)
    assert torch.equal(traced(x), expected)


def test_a_model_of_another_version_is_refused(torch_neuronx: Any) -> None:
    document = torch.frombuffer(bytearray(json.dumps({"format": "other"}).encode()), dtype=torch.uint8)
    for data in (document, document[:5]):
        with pytest.raises(RuntimeError, match=r"can't be loaded .*; trace it again"):
            torch.ops.neuron.load_model(data.clone(), [], False, False, False)


class Scorer(nn.Module):
    """Two inputs with a batch, and two results with a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"score": self.layer(x * y), "norm": (x * y).norm(dim=1, keepdim=True)}


def assert_rows_equal(results: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """A matrix product of another number of rows may differ in the last bit."""
    assert results.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(results[name], value)


@torch.no_grad()
def test_dynamic_batching_splits_and_pads(torch_neuronx: Any, xla: Any, tmp_path: Path) -> None:
    model = Scorer().eval()
    traced = torch_neuronx.dynamic_batch(torch_neuronx.trace(model, (torch.rand(4, 6), torch.rand(4, 6))))
    torch.jit.save(traced, tmp_path / "dynamic.pt")
    loaded = torch.jit.load(tmp_path / "dynamic.pt")
    for size, executed in ((4, 1), (1, 1), (5, 2), (12, 3)):
        inputs = torch.rand(size, 6), torch.rand(size, 6)
        before = sum(executions(xla))
        assert_rows_equal(loaded(*inputs), model(*inputs))
        assert sum(executions(xla)) == before + executed
    with pytest.raises(RuntimeError, match=r"the inputs have batch sizes \[2, 3\]; give all inputs"):
        loaded(torch.rand(2, 6), torch.rand(3, 6))
    with pytest.raises(RuntimeError, match="received 4 7, expected 4 6"):
        loaded(torch.rand(3, 7), torch.rand(3, 7))
    with pytest.raises(ValueError, match=r"traced with \[2, 3\], \[3\]"):
        torch_neuronx.dynamic_batch(torch_neuronx.trace(lambda x: x.sum(0), torch.rand(2, 3)))
    with pytest.raises(TypeError, match="Scorer is no traced model"):
        torch_neuronx.dynamic_batch(model)


@torch.no_grad()
def test_data_parallel_uses_all_cores_and_keeps_the_order(torch_neuronx: Any, xla: Any) -> None:
    model = Scorer().eval()
    traced = torch_neuronx.trace(model, (torch.rand(4, 6), torch.rand(4, 6)))
    before = constants_bytes(xla)
    parallel = torch_neuronx.DataParallel(traced)
    assert (parallel.device_ids, parallel.num_workers, parallel.split_size) == ([0, 1], 4, None)
    weights = (6 * 3 + 3) * 4
    assert sum(constants_bytes(xla)) == sum(before) + weights
    counts = executions(xla)
    for size in (8, 16, 3, 1):
        inputs = torch.rand(size, 6), torch.rand(size, 6)
        assert_rows_equal(parallel(*inputs), model(*inputs))
    assert [now - then for now, then in zip(executions(xla), counts, strict=True)] == [1 + 2 + 2 + 1, 1 + 2 + 1]
    parallel.num_workers, parallel.split_size = 1, 4
    inputs = torch.rand(9, 6), torch.rand(9, 6)
    assert_rows_equal(parallel(*inputs), model(*inputs))
    parallel.disable_dynamic_batching()
    assert_rows_equal(parallel(inputs[0][:8], inputs[1][:8]), model(inputs[0][:8], inputs[1][:8]))
    with pytest.raises(RuntimeError, match="received 1 6, expected 4 6"):
        parallel(*inputs)
    for wrong, message in (
        (["nc:2"], "NeuronCore 2: this process has 2"),
        (["core 0"], "name cores as"),
        ([], "empty"),
    ):
        with pytest.raises(ValueError, match=message):
            torch_neuronx.DataParallel(traced, device_ids=wrong)
    only = torch_neuronx.DataParallel(traced, device_ids=["nc:1"])
    counts = executions(xla)
    assert_rows_equal(only(*inputs), model(*inputs))
    assert [now - then for now, then in zip(executions(xla), counts, strict=True)] == [0, 3]


@torch.no_grad()
def test_data_parallel_along_another_dimension(torch_neuronx: Any) -> None:
    traced = torch_neuronx.trace(lambda x: (x * 2, [x + 1]), torch.rand(3, 4))
    x = torch.rand(3, 8)
    double, (more,) = torch_neuronx.DataParallel(traced, dim=1)(x)
    assert torch.equal(double, x * 2)
    assert torch.equal(more, x + 1)


def cores_of(traced: Any) -> list[int]:
    return [core.local_index for module in neuron_modules(traced) for core in model_of(module.handle).cores]


@torch.no_grad()
def test_models_are_placed_on_the_named_cores(torch_neuronx: Any, xla: Any, tmp_path: Path) -> None:
    model, x = nn.Linear(16, 16).eval(), torch.rand(2, 16)
    traced = torch_neuronx.trace(model, x)
    torch.jit.save(traced, tmp_path / "model.pt")
    placement = importlib.import_module("torch_neuronx.experimental.placement")
    with torch_neuronx.experimental.neuron_cores_context(start_nc=1, nc_count=1):
        assert cores_of(torch.jit.load(tmp_path / "model.pt")) == [1]
    with placement.multicore_context():
        assert cores_of(torch.jit.load(tmp_path / "model.pt")) == [0, 1]
    torch_neuronx.move_trace_to_device(traced, 0)
    assert cores_of(traced) == [0]
    torch_neuronx.experimental.set_multicore(traced)
    counts = executions(xla)
    assert all(torch.equal(traced(x), model(x)) for _ in range(4))
    assert [now - then for now, then in zip(executions(xla), counts, strict=True)] == [2, 2]
    with pytest.raises(ValueError, match="NeuronCores 1 to 2: this process has 2"):
        torch_neuronx.experimental.set_neuron_cores(traced, 1, 2)
    with pytest.raises(ValueError, match="NeuronCore 7"):
        torch_neuronx.move_trace_to_device(traced, 7)
    assert cores_of(traced) == [0, 1]


@torch.no_grad()
def test_lazy_and_asynchronous_loads(torch_neuronx: Any, xla: Any, tmp_path: Path) -> None:
    model, x = nn.Linear(16, 16).eval(), torch.rand(2, 16)
    traced = torch_neuronx.trace(model, x)
    torch_neuronx.async_load(traced)
    torch.jit.save(traced, tmp_path / "async.pt")
    assert torch.equal(torch.jit.load(tmp_path / "async.pt")(x), model(x))
    torch_neuronx.async_load(traced, False)
    torch_neuronx.lazy_load(traced)
    torch.jit.save(traced, tmp_path / "lazy.pt")
    loaded = torch.jit.load(tmp_path / "lazy.pt")
    assert cores_of(loaded) == []
    assert torch.equal(loaded(x), model(x))
    assert len(cores_of(loaded)) == 1


@torch.no_grad()
def test_separate_weights_are_replaced_also_in_the_saved_model(torch_neuronx: Any, tmp_path: Path) -> None:
    first, second, x = Classifier().eval(), Classifier().eval(), (torch.randint(20, (3, 5)), {"weight": torch.rand(20)})
    traced = torch_neuronx.trace(first, x, inline_weights_to_neff=False)
    torch_neuronx.replace_weights(traced, second.state_dict())
    torch.jit.save(traced, tmp_path / "replaced.pt")
    for each in (traced, torch.jit.load(tmp_path / "replaced.pt")):
        assert torch.equal(each(*x)["logits"], second(*x)["logits"])
    assert not torch.equal(first(*x)["logits"], second(*x)["logits"])
    with pytest.raises(ValueError, match=r"the weight '.*' is missing"):
        torch_neuronx.replace_weights(traced, {})
    with pytest.warns(UserWarning, match="trace it with inline_weights_to_neff=False"):
        torch_neuronx.replace_weights(torch_neuronx.trace(first, x), second)


def bucket_kernel() -> Any:
    def choose(inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
        x = inputs[0]
        size = x.size(1)
        if size <= 4:
            return [torch.nn.functional.pad(x, [0, 4 - size])], torch.tensor(0)
        return [torch.nn.functional.pad(x, [0, 8 - size])], torch.tensor(1)

    return torch.jit.script(choose)


@torch.no_grad()
def test_a_bucket_model_chooses_by_the_shape(torch_neuronx: Any, tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.sum(1), x.abs().amax(1)

    config = torch_neuronx.BucketModelConfig(bucket_kernel)
    traced = torch_neuronx.bucket_model_trace(lambda: (Sum(), {}), [torch.rand(2, 4), torch.rand(2, 8)], config)
    torch.jit.save(traced, tmp_path / "buckets.pt")
    loaded = torch.jit.load(tmp_path / "buckets.pt")
    for size in (3, 4, 6):
        x = torch.rand(2, size)
        for result, expected in zip(loaded(x), Sum()(x), strict=True):
            torch.testing.assert_close(result, expected)
    for wrong in (Sum(), Sum):
        with pytest.raises(TypeError, match=r"bucket_model_trace: Sum is no pair .* such as lambda: \(model, {}\)"):
            torch_neuronx.bucket_model_trace(wrong, [torch.rand(2, 4)], config)
    with pytest.raises(NotImplementedError, match="use input_output_aliases"):
        torch_neuronx.BucketModelConfig(bucket_kernel, shared_state_buffer=[])


def test_analyze_lists_supported_and_unsupported_operators(torch_neuronx: Any) -> None:
    report = torch_neuronx.analyze(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.rand(2, 4))
    assert report["support_percentage"] == "100.00%"
    assert report["supported_operators"] == {"aten::linear": 1, "aten::relu": 1}
    report = torch_neuronx.analyze(lambda x: x.relu().nonzero(), torch.rand(2, 4))
    assert [(each["kind"], each["failureAt"]) for each in report["unsupported_operators"]] == [
        ("aten::nonzero", "neuronx-cc")
    ]
    assert report["support_percentage"] == "50.00%"
