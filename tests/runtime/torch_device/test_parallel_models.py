"""Models that several cores execute together: tensor-parallel tracing, saving, loading, and failing ranks."""

from __future__ import annotations

import gc
import importlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from neurontools.runtime.execution.gloo import CollectiveFailed
from neurontools.runtime.execution.rank_threads import RankExchange, group_number, members_of, recording_as
from neurontools.runtime.inference.loaded_model import unload_collected
from neurontools.runtime.reporting.inference_log import inference_log
from neurontools.runtime.tensors.buffers import Category, OutOfDeviceMemory
from tests.harness.waiting import HANG_SECONDS

Run = Callable[..., Any]
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

LLAMA = """
import sys, torch, torch_neuronx, neuronx_distributed
from torch import nn
from torch.nn import functional
from neuronx_distributed.parallel_layers import layers, parallel_state
WIDTH, HEADS, WORDS = 16, 4, 24
class Block(nn.Module):
    def __init__(self, column, row):
        super().__init__()
        self.query, self.key, self.value = (column(WIDTH, WIDTH) for _ in range(3))
        self.output, self.gate, self.up, self.down = (
            row(WIDTH, WIDTH), column(WIDTH, 40), column(WIDTH, 40), row(40, WIDTH))
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
    def forward(self, x, cos, sin):
        def heads(layer, rotated=True):
            value = layer(self.before(x)).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            half, other = value.chunk(2, -1)
            return value * cos + torch.cat((-other, half), -1) * sin if rotated else value
        seen = functional.scaled_dot_product_attention(
            heads(self.query), heads(self.key), heads(self.value, False), is_causal=True)
        x = x + self.output(seen.transpose(1, 2).flatten(2))
        return x + self.down(functional.silu(self.gate(self.between(x))) * self.up(self.between(x)))
class Llama(nn.Module):
    def __init__(self, is_parallel, **embedding):
        super().__init__()
        column, row, last, words = nn.Linear, nn.Linear, nn.Linear, nn.Embedding
        if is_parallel:
            column = lambda *sizes: layers.ColumnParallelLinear(*sizes, gather_output=False)
            row = lambda *sizes: layers.RowParallelLinear(*sizes, input_is_parallel=True)
            last, words = layers.ColumnParallelLinear, lambda *sizes: layers.ParallelEmbedding(*sizes, **embedding)
        self.words, self.blocks = words(WORDS, WIDTH), nn.ModuleList(Block(column, row) for _ in range(2))
        self.norm, self.head = nn.RMSNorm(WIDTH), last(WIDTH, WORDS)
    def forward(self, words):
        x = self.words(words)
        angles = torch.arange(words.shape[1], device=x.device)[:, None] / torch.tensor([1.0, 10.0], device=x.device)
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        for block in self.blocks: x = block(x, cos, sin)
        return {"logits": self.head(self.norm(x)), "words": words}
def sharded(path):
    def make():
        model = Llama(True).eval()
        neuronx_distributed.parallel_layers.load(path, model, sharded=False, model_key=None)
        return model, {}
    return make
"""


@pytest.fixture
def llama(xla: Any, tmp_path: Path) -> dict[str, Any]:
    """The names of the script above, a model for the CPU with its weights in `weights.pt`, and inputs."""
    space: dict[str, Any] = {}
    exec(LLAMA, space)
    gc.collect()
    unload_collected()  # the models of earlier tests
    model = space["Llama"](False).eval()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    return {**space, "cpu": model, "path": tmp_path, "inputs": torch.randint(24, (2, 6))}


def traced(llama: dict[str, Any], **options: Any) -> Any:
    trace = importlib.import_module("neuronx_distributed.trace")
    make = llama["sharded"](llama["path"] / "weights.pt")
    return trace.parallel_model_trace(make, llama["inputs"], tp_degree=2, **options)


@pytest.mark.slow
def test_a_tensor_parallel_llama_computes_what_the_cpu_computes_also_in_another_process(
    llama: dict[str, Any], xla: Any, run_script: Run, tmp_path: Path
) -> None:
    counted = inference_log.model("Llama").read()
    before = [core.statistics.executions_total for core in xla.cores]
    model = traced(llama, compiler_workdir=tmp_path / "work")
    assert [core.statistics.executions_total for core in xla.cores] == before  # tracing executes nothing
    for words in (llama["inputs"], torch.randint(24, (2, 6))):
        result, expected = model(words), llama["cpu"](words)
        torch.testing.assert_close(result["logits"], expected["logits"], rtol=1e-5, atol=1e-6)
        assert torch.equal(result["words"], words)
    assert [core.statistics.executions_total for core in xla.cores] == [count + 2 for count in before]
    log = inference_log.model("Llama").read()
    assert log.calls_total == counted.calls_total + 2  # a call of all ranks is one request
    assert [place.neuroncore_index for place in log.placements] == [0, 1]
    assert (tmp_path / "work" / "_tp1" / "graph.neff").exists()
    importlib.import_module("neuronx_distributed").trace.parallel_model_save(model, tmp_path / "saved")
    torch.save((words, result), tmp_path / "expected.pt")
    run = run_script(
        "import torch, neuronx_distributed as nxd\n"
        "words, expected = torch.load('expected.pt')\n"
        "result = nxd.trace.parallel_model_load('saved')(words)\n"
        "assert result.keys() == expected.keys() and torch.equal(result['logits'], expected['logits'])"
    )
    assert run.returncode == 0, run.stderr


def bucket_kernel() -> Any:
    def choose(inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
        length = inputs[0].size(1)
        bucket = 0 if length <= 4 else 1
        return [torch.nn.functional.pad(inputs[0], [0, 4 + 4 * bucket - length])], torch.tensor(bucket)

    return torch.jit.script(choose)


def test_a_parallel_model_with_buckets_chooses_by_the_length_on_all_ranks(
    llama: dict[str, Any], xla: Any, tmp_path: Path
) -> None:
    trace = importlib.import_module("neuronx_distributed.trace")
    config = importlib.import_module("torch_neuronx").BucketModelConfig(bucket_kernel)
    buckets = [torch.zeros(2, length, dtype=torch.long) for length in (4, 8)]
    make = llama["sharded"](tmp_path / "weights.pt")
    model = trace.parallel_model_trace(make, buckets, bucket_config=config, tp_degree=2, inline_weights_to_neff=False)
    trace.parallel_model_save(model, tmp_path / "saved")
    before = [core.statistics.executions_total for core in xla.cores]
    for each in (model, trace.parallel_model_load(tmp_path / "saved")):
        for length in (3, 4, 7):
            words = torch.randint(24, (2, length))
            logits = each(words)["logits"]
            assert logits.shape[1] == (4 if length <= 4 else 8)
            torch.testing.assert_close(logits[:, :length], llama["cpu"](words)["logits"], rtol=1e-5, atol=1e-6)
    assert [core.statistics.executions_total for core in xla.cores] == [count + 6 for count in before]


FOUR_RANKS = (
    LLAMA
    + """
import threading
cpu = Llama(False).eval()
torch.save(cpu.state_dict(), "weights.pt")
words = torch.randint(WORDS, (1, 5))
both = [neuronx_distributed.trace.parallel_model_trace(sharded("weights.pt"), words, tp_degree=n) for n in (4, 2)]
expected = [model(words)["logits"] for model in both]
for logits in expected: torch.testing.assert_close(logits, cpu(words)["logits"], rtol=1e-5, atol=1e-6)
different = []
def serve(model, logits):
    for _ in range(5): different.extend([] if torch.equal(model(words)["logits"], logits) else [model])
threads = [threading.Thread(target=serve, args=each) for each in zip(both * 4, expected * 4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
from neurontools.runtime.tensors.device import device
print(len(different), [core.statistics.executions_total for core in device.cores])
"""
)


@pytest.mark.slow
def test_models_on_four_and_on_two_of_the_same_cores_serve_many_threads(run_script: Run) -> None:
    run = run_script(FOUR_RANKS, NEURON_RT_NUM_CORES="4")
    assert run.stdout == "0 [42, 42, 21, 21]\n", run.stderr


def test_layers_with_padding_and_a_rank_as_weight(llama: dict[str, Any]) -> None:
    layers = importlib.import_module("neuronx_distributed.parallel_layers.layers")
    parallel_layers = importlib.import_module("neuronx_distributed.parallel_layers")
    trace = importlib.import_module("neuronx_distributed.trace")

    class Padded(torch.nn.Module):
        def __init__(self, is_parallel: bool) -> None:
            super().__init__()
            if is_parallel:
                self.words = layers.ParallelEmbedding(7, 6, pad=True, use_spmd_rank=True)
                self.others = layers.ParallelEmbedding(7, 6, shard_across_embedding=True)
                self.up = layers.ColumnParallelLinear(6, 5, pad=True)
                self.down = layers.RowParallelLinear(5, 4, pad=True)
            else:
                self.words, self.others = torch.nn.Embedding(7, 6), torch.nn.Embedding(7, 6)
                self.up, self.down = torch.nn.Linear(6, 5), torch.nn.Linear(5, 4)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.down(self.up(self.words(words) + self.others(words)))
            return result

    cpu, words = Padded(False).eval(), torch.arange(7)
    state = {**cpu.state_dict(), "words.rank_util.rank": torch.arange(2, dtype=torch.int32)}
    model = trace.parallel_model_trace(
        lambda: Padded(True).eval(),
        words,
        tp_degree=2,
        spmd_mode=True,
        inline_weights_to_neff=False,
        checkpoint_loader_callable=lambda: state,
        serialization_path=llama["path"] / "saved",
    )
    torch.testing.assert_close(model(words), cpu(words))
    assert torch.equal(trace.parallel_model_load(llama["path"] / "saved")(words), model(words))
    assert parallel_layers.pad.get_number_of_extra_heads(6, 4) == 2
    with recording_as(0, 2), parallel_layers.parallel_state.traced_as(0, 2, 2):
        padded = parallel_layers.pad.pad_model(layers.ColumnParallelLinear(6, 6, gather_output=False), 4, 6)
    assert padded.weight.shape == (4, 6)
    assert not padded.weight[3].any()


def test_a_model_without_room_on_one_core_leaves_nothing_and_a_failed_rank_ends_the_others(
    llama: dict[str, Any], xla: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, trace = traced(llama), importlib.import_module("neuronx_distributed.trace")
    last = xla.cores[1].memory
    monkeypatch.setattr(last, "limit_bytes", last.total_bytes + 100)
    levels = [[*core.memory.levels] for core in xla.cores]
    with pytest.raises(OutOfDeviceMemory):
        model(llama["inputs"])
    assert [[*core.memory.levels] for core in xla.cores] == levels
    monkeypatch.undo()
    expected = model(llama["inputs"])["logits"]
    monkeypatch.setattr(last, "limit_bytes", last.total_bytes)
    with pytest.raises(OutOfDeviceMemory, match="usage: tensors"):  # and not that of the rank that waits
        model(llama["inputs"])
    monkeypatch.undo()
    assert torch.equal(model(llama["inputs"])["logits"], expected)
    with pytest.raises(RuntimeError, match=r"Incorrect tensor shape at input tensor #0: received 2 7, expected 2 6"):
        model(torch.zeros(2, 7, dtype=torch.int64))
    trace.parallel_model_save(model, llama["path"] / "saved")
    with pytest.raises(RuntimeError, match=r"is the model of one rank.*parallel_model_load"):
        torch.jit.load(llama["path"] / "saved" / "tp_1.pt")(llama["inputs"])
    (llama["path"] / "saved" / "tp_0.pt").rename(llama["path"] / "saved" / "tp_7.pt")
    with pytest.raises(FileNotFoundError, match=r"tp_0\.pt: the file of this rank is missing; give the directory"):
        trace.parallel_model_load(llama["path"] / "saved")
    del model
    gc.collect()
    unload_collected()
    assert xla.cores[0].memory.levels[Category.CONSTANTS] <= levels[0][Category.CONSTANTS]


def test_a_rank_that_ends_early_fails_the_ranks_that_wait_for_it(xla: Any) -> None:
    exchange, errors = RankExchange(xla.cores, 0.0), []

    def wait_for_the_other() -> None:
        with exchange.member(0):
            one = torch.ones(1)
            try:
                torch.ops.neuron.collective([one], [], "all_reduce", "sum", 0, group_number(None, 2))
            except CollectiveFailed as error:
                errors.append(str(error))

    thread = threading.Thread(target=wait_for_the_other)
    thread.start()
    with exchange.member(1):
        pass
    thread.join(HANG_SECONDS)
    assert "a rank of this model has ended" in errors[0]


def test_groups_of_ranks_have_numbers_that_no_rank_changes() -> None:
    for groups in ([[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 1, 2, 3]], [[0], [1], [2], [3]]):
        number = group_number(groups, 4)
        assert all([*members_of(number, rank)] == group for group in groups for rank in group)
    assert [*members_of(group_number(None, 4), 2)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="groups of one size"):
        group_number([[0, 3], [1, 2]], 4)


class Generator(torch.nn.Module):
    """A decoder with two states: one that forward assigns, and one that it changes in place."""

    cache: torch.Tensor
    count: torch.Tensor

    def __init__(self, is_parallel: bool) -> None:
        super().__init__()
        layers: Any = importlib.import_module("neuronx_distributed.parallel_layers.layers")
        self.gather = importlib.import_module("neuronx_distributed.parallel_layers.mappings")
        self.is_parallel = is_parallel
        size = importlib.import_module("neuronx_distributed").parallel_layers.parallel_state
        ranks = size.get_tensor_model_parallel_size()
        self.words: Any = layers.ParallelEmbedding(20, 8) if is_parallel else torch.nn.Embedding(20, 8)
        self.up: Any = (
            layers.ColumnParallelLinear(8, 12, gather_output=False) if is_parallel else torch.nn.Linear(8, 12)
        )
        self.down: Any = layers.RowParallelLinear(12, 8) if is_parallel else torch.nn.Linear(12, 8)
        self.register_buffer("cache", torch.zeros(2, 12 // ranks))
        self.register_buffer("count", torch.zeros(1), persistent=False)

    def forward(self, words: torch.Tensor, scale: torch.Tensor | None = None) -> dict[str, Any]:
        self.cache = self.cache + self.up(self.words(words)).sum(1)
        self.count.add_(1)
        value = self.gather.gather_from_tensor_model_parallel_region(self.cache) if self.is_parallel else self.cache
        result = self.down(value)
        return {"result": result if scale is None else result * scale, "rest": (self.count + 0, words)}


def test_a_model_builder_shares_weights_and_states_between_shapes(llama: dict[str, Any], xla: Any) -> None:
    package = importlib.import_module("neuronx_distributed")
    cpu, path = Generator(False).eval(), llama["path"] / "generator.pt"
    checkpoint = {name: value.clone() for name, value in cpu.state_dict().items() if name != "cache"}
    with package.NxDParallelState(world_size=2, tensor_model_parallel_size=2):
        parallel = Generator(True).eval()
        builder = package.ModelBuilder(parallel).trace(torch.zeros(2, 5, dtype=torch.int64), tag="prefill")
        builder.trace(kwargs={"words": torch.zeros(2, 1, dtype=torch.int64), "scale": torch.ones(1)}, tag="decode")
        model = builder.compile(compiler_args="--auto-cast=none")
        weights = package.shard_checkpoint(checkpoint, parallel)
    assert model.get_available_keys() == {"prefill", "decode"}
    with pytest.raises(RuntimeError, match=r"call set_weights\(\) and to_neuron\(\)"):
        model(torch.zeros(2, 5, dtype=torch.int64))
    before = [core.memory.levels[Category.CONSTANTS] for core in xla.cores]
    model.set_weights(weights)
    model.to_neuron()
    taken = [core.memory.levels[Category.CONSTANTS] - old for core, old in zip(xla.cores, before, strict=True)]
    rank_bytes = sum(value.nbytes for value in weights[0].values()) + parallel.cache.nbytes + parallel.count.nbytes
    assert all(rank_bytes <= each < 1.5 * rank_bytes for each in taken)  # once, and not once for each shape
    model.save(path, save_weights=True)
    loaded = package.NxDModel.load(path)
    with torch.no_grad():
        for inputs in ((torch.randint(20, (2, 5)),), *[(torch.randint(20, (2, 1)), torch.rand(1)) for _ in range(3)]):
            expected, result = cpu(*inputs), model(*inputs)
            torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(loaded(*inputs), result, rtol=0, atol=0)
    torch.testing.assert_close(model.read_from_neuron_buffer("cache", 1), cpu.cache[:, 6:], rtol=1e-5, atol=1e-6)
    model.write_to_neuron_buffer(torch.full((1,), 7.0), "count", 0)
    assert model(words=torch.zeros(2, 5, dtype=torch.int64))["rest"][0] == 8
    with pytest.raises(ValueError, match=r"no graph has inputs of the shapes .*\(2, 7\).*prefill: .*\(2, 5\)"):
        model(torch.zeros(2, 7, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"the weight 'up.bias' is missing; pass what shard_checkpoint returns"):
        model.replace_weights([{name: value for name, value in each.items() if name != "up.bias"} for each in weights])
    torch.save({"format": "other"}, path)
    with pytest.raises(RuntimeError, match=r"NRT_UNSUPPORTED_NEFF_VERSION.*is no saved NxDModel"):
        package.NxDModel.load(path)
