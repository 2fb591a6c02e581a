"""torch's own distribution under the device name neuron: fully_shard, DTensor, tensor parallelism, checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.torchrun import torchrun

COMMON = """
import json, os, sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("neuron")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("neuron", (size,))
def make(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
def data(which, step): return torch.randn(3, 8, generator=torch.Generator().manual_seed(10 * step + which))
def furthest(mine, theirs):
    return max((a.full_tensor().cpu() - b.detach()).abs().max().item() for a, b in zip(mine, theirs, strict=True))
def told(**results):
    for index in range(size):
        if index == rank: print(json.dumps(results), flush=True)
        dist.barrier()
"""

SHARDED = (
    COMMON
    + """
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
import torch.distributed.checkpoint as dcp
def sharded(seed):
    model = make(seed).to("neuron")
    for part in (model[0], model[3], model): fully_shard(part, mesh=mesh, reshard_after_forward=True)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer = sharded(0)
reference = make(); stepping = torch.optim.AdamW(reference.parameters(), lr=1e-2)
before = torch.neuron.memory_allocated()
losses, expected, norms = [], [], []
for step in range(5):
    if step == 3:
        weights, states = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id="saved")
        model, optimizer = sharded(1)
        weights, states = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": states}
        dcp.load(state, checkpoint_id="saved")
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    optimizer.zero_grad(); stepping.zero_grad()
    loss = model(data(rank, step).to("neuron")).pow(2).mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor().item()
    optimizer.step()
    parts = [reference(data(which, step)).pow(2).mean() for which in range(size)]
    (sum(parts) / size).backward()
    norms.append(abs(norm - nn.utils.clip_grad_norm_(reference.parameters(), 0.1).item()))
    stepping.step()
    losses.append(loss.item()); expected.append(parts[rank].item())
told(
    losses=[abs(a - b) for a, b in zip(losses, expected)], norms=norms, resident=before,
    parameters=furthest(model.parameters(), reference.parameters()),
    whole=sum(p.numel() * 4 for p in reference.parameters()),
)
"""
)


def test_fully_shard_trains_as_the_whole_batch_on_the_cpu_and_resumes_from_a_checkpoint(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SHARDED)
    run = torchrun(run_python, "script.py", NEURONTOOLS_DEVICE="")
    assert run.returncode == 0, run.stderr[-3000:]
    both = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(both) == 2
    for told in both:
        assert max(told["losses"]) < 1e-5
        assert max(told["norms"]) < 1e-5
        assert told["parameters"] < 1e-5
        assert told["resident"] < 0.6 * told["whole"], "what is not used has no bytes"


TENSOR_PARALLEL = (
    COMMON
    + """
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
values = torch.arange(8.0).reshape(4, 2)
shared = distribute_tensor(values.to("neuron"), mesh, [Shard(0)])
again = (shared @ distribute_tensor(torch.ones(2, 3, device="neuron"), mesh, [Replicate()])).full_tensor().tolist()
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, value): return self.down(self.up(value).relu())
torch.manual_seed(0); reference = Block()
torch.manual_seed(0); model = Block().to("neuron")
parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference))
differences = []
for step in range(4):
    ours.zero_grad(); theirs.zero_grad()
    value = data(0, step).reshape(3, 1, 8)
    loss, want = model(value.to("neuron")).pow(2).mean(), reference(value).pow(2).mean()
    loss.backward(); want.backward()
    ours.step(); theirs.step()
    differences.append(abs(loss.item() - want.item()))
told(
    own=shared.to_local().tolist(), whole=shared.full_tensor().tolist(), product=again, losses=differences,
    held=model.up.weight.to_local().shape[0],
    parameters=furthest(model.parameters(), reference.parameters()),
)
"""
)


def test_distributed_tensors_and_parallel_modules_compute_what_the_cpu_does(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(TENSOR_PARALLEL)
    run = torchrun(run_python, "script.py", NEURONTOOLS_DEVICE="")
    assert run.returncode == 0, run.stderr[-3000:]
    first, second = [json.loads(line) for line in run.stdout.splitlines()]
    assert (first["own"], second["own"]) == ([[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0], [6.0, 7.0]])
    for told in (first, second):
        assert told["whole"] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
        assert told["product"] == [[1.0] * 3, [5.0] * 3, [9.0] * 3, [13.0] * 3]
        assert told["held"] == 8
        assert max(told["losses"]) < 1e-6
        assert told["parameters"] < 1e-6


COMPILED = """
import json, os, sys, torch, torch.distributed as dist
name, backend = sys.argv[1:]
if name == "xla": exec("import torch_xla.core.xla_model as xm, torch_xla.distributed.xla_backend")
dist.init_process_group(name)
rank = dist.get_rank()
import torch.distributed._functional_collectives as functional
def in_place(value):
    value = value * 2
    dist.all_reduce(value)
    return value + dist.get_world_size()
def as_function(value): return functional.all_reduce(value * 2, "sum", dist.group.WORLD) + 1
def of_xla(value): return xm.all_reduce("sum", value * 2) + xm.xrt_world_size() + xm.get_ordinal()
results = {}
for function in (in_place, as_function) + ((of_xla,) if name == "xla" else ()):
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    results[function.__name__] = [compiled(torch.full((2,), rank + k + 1.0, device=name)).tolist() for k in range(2)]
for index in range(2):
    if index == rank: print(json.dumps(results), flush=True)
    dist.barrier()
"""


@pytest.mark.parametrize(("name", "backend"), [("xla", "openxla"), ("neuron", "neuron")])
def test_collectives_are_compiled_into_whole_graphs(
    run_python: Callable[..., Any], tmp_path: Path, name: str, backend: str
) -> None:
    (tmp_path / "script.py").write_text(COMPILED)
    run = torchrun(run_python, "script.py", name, backend, NEURONTOOLS_DEVICE=name)
    assert run.returncode == 0, run.stderr[-3000:]
    both = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(both) == 2
    for rank, told in enumerate(both):
        assert told["in_place"] == [[8.0] * 2, [12.0] * 2]
        assert told["as_function"] == [[7.0] * 2, [11.0] * 2]
        assert name != "xla" or told["of_xla"] == [[8.0 + rank] * 2, [12.0 + rank] * 2]


def test_a_storage_gives_its_bytes_back_and_takes_them_again(xla: Any) -> None:
    import torch

    from neurontools.runtime.torch_device import torch_module

    tensor = torch.arange(1024.0).to("xla")
    view = tensor[:2]
    storage: Any = tensor.untyped_storage()
    before = torch_module.memory_allocated()
    storage.resize_(0)
    assert (storage.nbytes(), storage.size(), len(storage)) == (0, 0, 0)
    assert torch_module.memory_allocated() == before - 4096
    with pytest.raises(RuntimeError, match="resized to 0 bytes"):
        view.tolist()
    storage.resize_(4096)
    assert (storage.nbytes(), torch_module.memory_allocated()) == (4096, before)
    tensor.copy_(torch.arange(1024.0))
    assert view.tolist() == [0.0, 1.0]
    with pytest.raises(NotImplementedError, match="to 0 bytes and back, not to 8"):
        storage.resize_(8)
    storage.resize_(0)
    del tensor, view, storage
    assert torch_module.memory_allocated() == before - 4096
