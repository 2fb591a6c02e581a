"""Parameters, optimizer state and layers that are shared out among two ranks: the numbers of the whole on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.torchrun import torchrun

COMMON = """
import functools, json, sys, torch
import torch_xla.core.xla_model as xm, torch_xla.distributed.xla_backend
from torch import nn
rank, size, device = xm.get_ordinal(), xm.xrt_world_size(), xm.xla_device()
def told(**results):
    for index in range(size):
        if index == rank: print(json.dumps({"rank": rank, **results}), flush=True)
        xm.rendezvous("told")
def furthest(mine, theirs):
    return max((a.detach().cpu().float() - b.detach()).abs().max().item() for a, b in zip(mine, theirs, strict=True))
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 13), nn.Linear(13, width)
    def forward(self, value): return value + self.down(self.up(self.norm(value)).tanh())
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.blocks = nn.Embedding(11, 6), nn.ModuleList(Block(6) for _ in range(2))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.words.weight
    def forward(self, words):
        value = self.words(words)
        for block in self.blocks: value = block(value)
        return self.head(value)
def make():
    torch.manual_seed(0)
    return Model()
def words(which, step): return torch.randint(0, 11, (2, 5), generator=torch.Generator().manual_seed(10 * step + which))
def loss_of(model, value): return nn.functional.cross_entropy(model(value).flatten(0, 1), value.roll(1, 1).flatten())
def on_the_cpu(steps, **clip):
    model = make(); optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2); losses, norms = [], []
    for step in range(steps):
        optimizer.zero_grad()
        parts = [loss_of(model, words(which, step)) for which in range(size)]
        (sum(parts) / size).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        losses.append(parts[rank].item())
    return model, losses, norms
"""

FSDP = (
    COMMON
    + """
import torch_xla.utils.serialization as xser
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP, checkpoint_module
from torch_xla.distributed.fsdp import consolidate_sharded_model_checkpoints
from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
ways = {
    "whole": dict(),
    "units": dict(auto_wrap_policy=policy, shard_param_on_dim_0=True),
    "kept": dict(auto_wrap_policy=policy, reshard_after_forward=False),
    "checkpointed": dict(auto_wrap_policy=policy, auto_wrapper_callable=lambda m, **k: FSDP(checkpoint_module(m), **k)),
}
way = sys.argv[1]
model = FSDP(make(), **ways[way])
reference, losses, norms = on_the_cpu(5)
held = sum(p.numel() for p in model.parameters()) / sum(p.numel() for p in reference.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
mine, clipped = [], []
for step in range(5):
    optimizer.zero_grad()
    loss = loss_of(model, words(rank, step).to(device))
    loss.backward()
    clipped.append(model.clip_grad_norm_(0.5).item())
    optimizer.step(); xm.mark_step()
    mine.append(loss.item())
parts = {name: part.cpu() for name, part in model.state_dict().items()}
torch.save({"model": parts, "shard_metadata": model.get_shard_metadata()}, f"part-{rank}.pth")
xm.rendezvous("saved")
whole, _ = consolidate_sharded_model_checkpoints("part-", save_path=f"whole-{rank}.pth")
plain = make()
told(
    losses=[abs(a - b) for a, b in zip(mine, losses)], norms=[abs(a - b) for a, b in zip(clipped, norms)], held=held,
    smallest=min(norms), missing=list(plain.load_state_dict({"head.weight": whole["words.weight"], **whole})[0]),
    parameters=furthest(plain.parameters(), reference.parameters()),
)
"""
)


@pytest.mark.parametrize("way", ["whole", "units", "kept", "checkpointed"])
def test_fully_sharded_training_is_that_of_the_whole_batch_on_the_cpu(
    run_python: Callable[..., Any], tmp_path: Path, way: str
) -> None:
    (tmp_path / "script.py").write_text(FSDP)
    run = torchrun(run_python, "script.py", way)
    assert run.returncode == 0, run.stderr[-3000:]
    both = [json.loads(line) for line in run.stdout.splitlines()]
    assert [told["rank"] for told in both] == [0, 1]
    for told in both:
        assert max(told["losses"]) < 1e-5
        assert max(told["norms"]) < 1e-5
        assert told["smallest"] > 0.5, "nothing was clipped"
        assert told["missing"] == []
        assert told["parameters"] < 1e-5
        assert 0.5 <= told["held"] < 0.55, "each rank holds a half of the parameters, and padding"


ZERO = (
    COMMON
    + """
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer
reference, losses, norms = on_the_cpu(6)
model = make().to(device)
def optimizer_of(model): return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, max_norm=0.5, lr=1.0)
optimizer = optimizer_of(model)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1e-2)
for step in range(6):
    if step == 3:
        state, weights = optimizer.state_dict(), {name: value.cpu() for name, value in model.state_dict().items()}
        model = Model().to(device); model.load_state_dict(weights)
        optimizer = optimizer_of(model); optimizer.load_state_dict(state)
    optimizer.zero_grad()
    loss_of(model, words(rank, step).to(device)).backward()
    optimizer.step(); xm.mark_step()
state = sum(v.numel() for s in optimizer.base_optimizer.state.values() for n, v in s.items() if n != "step")
whole = 2 * sum(p.numel() for p in reference.parameters())
told(parameters=furthest(model.parameters(), reference.parameters()), held=state / whole)
"""
)


def test_an_optimizer_that_is_shared_out_steps_as_the_whole_one_and_can_be_resumed(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(ZERO)
    run = torchrun(run_python, "script.py")
    assert run.returncode == 0, run.stderr[-3000:]
    for line in run.stdout.splitlines():
        told = json.loads(line)
        assert told["parameters"] < 1e-5
        assert 0.5 <= told["held"] < 0.6
    assert len(run.stdout.splitlines()) == 2


TENSOR_PARALLEL = (
    COMMON
    + """
from neuronx_distributed.optimizer import NeuronZero1Optimizer
from neuronx_distributed.parallel_layers import checkpointing, grads, layers, move_model_to_device, parallel_state
from neuronx_distributed.parallel_layers.loss_functions import parallel_cross_entropy
from neuronx_distributed.parallel_layers.mappings import (
    gather_from_sequence_parallel_region, scatter_to_sequence_parallel_region)
parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
with_sequence = sys.argv[1] == "sequence"
class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(12, 8), nn.LayerNorm(8)
        self.up, self.down, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 12, bias=False)
    def forward(self, words):
        value = self.words(words)
        return self.head(value + self.down(self.up(self.norm(value)).relu()))
class Parallel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = layers.ParallelEmbedding(12, 8), nn.LayerNorm(8)
        extra = dict(sequence_parallel_enabled=True) if with_sequence else {}
        self.up = layers.ColumnParallelLinear(8, 16, gather_output=False, **extra)
        self.down = layers.RowParallelLinear(16, 8, input_is_parallel=True, **extra)
        self.head = layers.ColumnParallelLinear(8, 12, bias=False, gather_output=False, **extra)
        if with_sequence:
            for parameter in self.norm.parameters(): parameter.sequence_parallel_enabled = True
    def forward(self, words):
        value = self.words(words)
        if with_sequence: value = scatter_to_sequence_parallel_region(value)
        return self.head(value + self.down(self.up(self.norm(value)).relu()))
torch.manual_seed(3); reference = Whole()
torch.manual_seed(3); model = Parallel()
move_model_to_device(model, device)
noted = [model.up.weight.tensor_model_parallel, model.down.weight.partition_dim]
ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.5) for m in (model, reference))
if sys.argv[1] == "zero": ours = NeuronZero1Optimizer(model.parameters(), torch.optim.SGD, max_norm=0.1, lr=0.5)
losses, expected, norms, smallest = [], [], [], []
for step in range(4):
    value = torch.randint(0, 12, (4, 3), generator=torch.Generator().manual_seed(step))
    ours.zero_grad(); theirs.zero_grad()
    loss = parallel_cross_entropy(model(value.to(device)), value.roll(1, 0).to(device)).mean()
    loss.backward()
    grads.allreduce_sequence_parallel_gradients(ours)
    want = nn.functional.cross_entropy(reference(value).flatten(0, 1), value.roll(1, 0).flatten())
    want.backward()
    norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
    if sys.argv[1] != "zero":
        grads.bucket_allreduce_gradients(xm._fetch_gradients(ours))
        norms.append(abs(grads.clip_grad_norm(model.parameters(), 0.1).item() - norm.item()))
    smallest.append(norm.item())
    ours.step(); theirs.step(); xm.mark_step()
    losses.append(loss.item()); expected.append(want.item())
def part(name, whole):
    dim = {"words.weight": 0, "up.weight": 0, "up.bias": 0, "down.weight": 1, "head.weight": 0}.get(name)
    return whole if dim is None else whole.chunk(2, dim)[rank]
checkpointing.save({"model": model.state_dict()}, "saved", save_xser=sys.argv[1] == "zero")
loaded = Parallel(); checkpointing.load("saved", loaded, load_xser=sys.argv[1] == "zero")
told(
    losses=[abs(a - b) for a, b in zip(losses, expected)], norms=norms or [0.0], smallest=min(smallest), noted=noted,
    parameters=furthest(model.parameters(), [part(n, p) for n, p in reference.named_parameters()]),
    loaded=furthest(model.parameters(), loaded.parameters()),
)
"""
)


@pytest.mark.parametrize("way", ["plain", "sequence", "zero"])
def test_layers_that_are_shared_out_compute_what_the_whole_ones_do(
    run_python: Callable[..., Any], tmp_path: Path, way: str
) -> None:
    (tmp_path / "script.py").write_text(TENSOR_PARALLEL)
    run = torchrun(run_python, "script.py", way)
    assert run.returncode == 0, run.stderr[-3000:]
    both = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(both) == 2
    for told in both:
        assert max(told["losses"]) < 1e-5
        assert max(told["norms"]) < 1e-5
        assert told["smallest"] > 0.1, "nothing was clipped"
        assert told["parameters"] < 1e-5
        assert told["loaded"] == 0.0
        assert told["noted"] == [True, 1]


NAMES = """
import json, sys, threading, torch, torch_xla.core.xla_model as xm
rank, device = xm.get_ordinal(), xm.xla_device()
results = {}
mine = torch.full((3,), float(rank + 1), device=device)
results["permuted"] = xm.collective_permute(mine, [[0, 1], [1, 0]]).tolist()
results["shifted"] = xm.collective_permute(mine * 10, [[0, 1]]).tolist()
if rank == 0:
    xm.send(mine * 5, channel_id=7); xm.send(mine * 6, channel_id=7)
else:
    results["received"] = [xm.recv(torch.empty(3, device=device), channel_id=7).tolist() for _ in range(2)]
results["met"] = [part.decode() for part in xm.xla_rendezvous(f"rank {rank}".encode())]
results["alone"] = len(xm.rendezvous("alone", b"x", replicas=[rank]))
gathered = xm.all_gather_bucketized([mine, mine * 2], groups=[[0, 1]], bucket_cap_mb=1)
results["gathered"] = [tensor.tolist() for tensor in gathered]
results["scattered"] = [t.tolist() for t in xm.reduce_scatter_bucketized(
    xm.REDUCE_SUM, [torch.arange(4.0, device=device)], 0.5, 0, 2)]
listed = [mine.clone()]
results["same list"] = xm.all_reduce(xm.REDUCE_MAX, listed) is listed and listed[0].tolist()
results["ordinals"] = xm.do_on_ordinals(lambda value: [value.device.type, value.tolist()], (mine,), ordinals=(1,))
xm.optimization_barrier_([mine])
for index in range(2):
    if index == rank: print(json.dumps(results), flush=True)
    xm.rendezvous("told")
"""


def test_collectives_between_single_ranks(run_python: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(NAMES)
    run = torchrun(run_python, "script.py")
    assert run.returncode == 0, run.stderr[-3000:]
    first, second = [json.loads(line) for line in run.stdout.splitlines()]
    assert (first["permuted"], second["permuted"]) == ([2.0] * 3, [1.0] * 3)
    assert (first["shifted"], second["shifted"]) == ([0.0] * 3, [10.0] * 3)
    assert second["received"] == [[5.0] * 3, [6.0] * 3]
    assert (first["ordinals"], second["ordinals"]) == (None, ["cpu", [2.0] * 3])
    assert (first["scattered"], second["scattered"]) == ([[0.0, 1.0]], [[2.0, 3.0]])
    for told in (first, second):
        assert told["met"] == ["rank 0", "rank 1"]
        assert told["alone"] == 1
        assert told["gathered"] == [[1.0] * 3 + [2.0] * 3, [2.0] * 3 + [4.0] * 3]
        assert told["same list"] == [2.0] * 3
