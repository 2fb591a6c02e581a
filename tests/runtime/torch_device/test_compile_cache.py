"""The compile cache on disk: what a second run finds, and what it does not trust."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from neurontools.runtime.programs import compiler
from neurontools.runtime.programs.compile_cache import CompileCache
from neurontools.runtime.programs.compiled_graph import CompiledGraph, InvalidCompiledGraph
from neurontools.runtime.programs.compiler_flags import CompilerFlags, parse

FLAGS = CompilerFlags()


@pytest.fixture
def model(xla: Any) -> CompiledGraph:
    value = torch.ones(2, 3).to("xla")
    kept = (torch.tensor(2.0) * value).softmax(1)[0] + value[1] * 3
    graph = xla.cores[0].graph
    alive = bytes([buffer.is_alive for buffer in graph.buffers])
    made = compiler.compile_graph(graph, alive, "123", FLAGS.hash_text)
    assert kept.shape == (3,)
    return made


@pytest.fixture
def cache(tmp_path: Path) -> CompileCache:
    return CompileCache({"NEURON_COMPILE_CACHE_URL": str(tmp_path / "cache"), "NEURON_RT_LOG_LEVEL": "INFO"})


def entry(cache: CompileCache) -> Path:
    directory = cache.directory(FLAGS)
    assert directory is not None
    return directory / "MODULE_123+d41d8cd9"


def test_a_model_survives_as_bytes(model: CompiledGraph) -> None:
    again = CompiledGraph.from_json(model.to_json())
    assert again.text() == model.text()
    assert again.to_json() == model.to_json()


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format": "other"}', b"\xff\xfe"])
def test_other_bytes_are_no_model(data: bytes) -> None:
    with pytest.raises((InvalidCompiledGraph, UnicodeDecodeError)):
        CompiledGraph.from_json(data)


def test_layout_and_log_lines(cache: CompileCache, model: CompiledGraph, capsys: pytest.CaptureFixture[str]) -> None:
    assert cache.find("123", FLAGS) is None
    cache.store(model, "the graph", FLAGS)
    files = {"model.hlo.pb", "model.neff", "model.done", "compile_flags.json"}
    assert {path.name for path in entry(cache).iterdir()} == files
    found = cache.find("123", FLAGS)
    assert found is not None
    assert found.text() == model.text()
    assert capsys.readouterr().err.splitlines() == [
        f"INFO ||NCC_WRAPPER||: Compile cache path: {entry(cache).parent.parent}",
        "INFO ||NCC_WRAPPER||: Compiler status PASS",
        (
            f"INFO ||NCC_WRAPPER||: Using a cached neff at {entry(cache)}/model.neff. "
            "Exiting with a successfully compiled graph."
        ),
    ]


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_entry_is_built_anew(
    cache: CompileCache, model: CompiledGraph, damage: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.store(model, "the graph", FLAGS)
    neff = entry(cache) / "model.neff"
    neff.write_bytes(neff.read_bytes()[:-10] if damage is None else damage)
    assert cache.find("123", FLAGS) is None
    assert "is damaged (its digest does not match); compiling it again" in capsys.readouterr().err
    cache.store(model, "the graph", FLAGS)
    assert cache.find("123", FLAGS) is not None


def test_what_another_user_wrote_is_not_executed(cache: CompileCache, model: CompiledGraph) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    cache.store(model, "the graph", FLAGS)
    os.chown(entry(cache) / "model.neff", 65534, 65534)
    assert cache.find("123", FLAGS) is None


def test_a_cache_that_cannot_be_written_costs_nothing_but_a_line(
    tmp_path: Path, model: CompiledGraph, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    cache = CompileCache({"NEURON_COMPILE_CACHE_URL": str(tmp_path / "file")})
    with cache.locked("123", FLAGS):
        cache.store(model, "the graph", FLAGS)
        cache.store(model, "the graph", FLAGS)
    assert cache.find("123", FLAGS) is None
    assert capsys.readouterr().err.count("can't be written") == 1


def test_flags_choose_the_directory(tmp_path: Path) -> None:
    cache = CompileCache({"NEURON_COMPILE_CACHE_URL": "s3://bucket/x"})
    assert cache.directory(FLAGS) is None
    assert cache.directory(parse("--no_cache")) is None
    assert str(cache.directory(parse(f"--cache_dir={tmp_path}"))).startswith(str(tmp_path))
    default = CompileCache({}).directory(FLAGS)
    assert default is not None
    assert default.parent == Path(f"/var/tmp/neuron-compile-cache-{os.geteuid()}")


SCRIPT = """
import torch, torch_xla, torch_xla.core.xla_model as xm, torch_xla.debug.metrics as met
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Dropout(0.5)).to(xm.xla_device())
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(2, 8).to(xm.xla_device())).sum().backward(); optimizer.step(); xm.mark_step()
print(met.counter_value("UncachedCompile") or 0, model[0].weight.sum().item())
"""


def test_a_second_run_compiles_nothing_and_gets_the_same(run_python: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    runs = [
        run_python("-m", "neurontools.runtime", "script.py", NEURON_COMPILE_CACHE_URL=str(tmp_path / "own"))
        for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr
    (first, value), (second, again) = (run.stdout.split() for run in runs)
    assert int(first) > 0
    assert (int(second), again) == (0, value)
