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
from neurontools.runtime.inference.structure import UnsupportedStructure
from neurontools.runtime.programs.compiler import InvalidCompilerFlags
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
    before = executions(xla)
    traced = torch_neuronx.trace(model, first, compiler_workdir=tmp_path / "work")
    assert sum(executions(xla)) == sum(before)  # tracing executes nothing
    assert not torch.jit.is_tracing()
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    for inputs in (first, second):
        expected, results = model(*inputs), traced(*inputs)
        assert results.keys() == expected.keys()
        assert all(torch.equal(results[name], expected[name]) for name in expected)
    assert sum(executions(xla)) == sum(before) + 2
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
    del traced, loaded, each
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
        with pytest.raises(RuntimeError, match=message):
            traced(wrong)
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


def test_inputs_and_weights_that_a_model_changes_stay_as_they_are(torch_neuronx: Any) -> None:
    class Counter(nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            x += self.count
            return x * 1

    model, x = Counter(), torch.ones(2)
    traced = torch_neuronx.trace(model, x)
    for _ in range(2):
        assert torch.equal(traced(x), torch.full((2,), 2.0))
    assert torch.equal(x, torch.ones(2))
    assert torch.equal(model.count, torch.zeros(2))


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
            torch.ops.neuron.load_model(data.clone(), [], False, False)
