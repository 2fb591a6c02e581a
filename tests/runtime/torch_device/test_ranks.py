"""Two ranks, each on a core of its own: collectives, data-parallel and sharded training, ranks that hang or die."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from neurontools.runtime.torch_device import memory
from tests.harness.ports import free_port

Run = Callable[..., Any]

COMMON = """
import functools, os, torch
from torch import nn
def assert_close(mine, theirs, most=1e-5):
    for a, b in zip(mine, theirs, strict=True):
        a, b = (torch.as_tensor(x).detach().cpu().float() for x in (a, b))
        assert (a - b).abs().max() <= most, (a, b)
def data(which, step): return torch.randn(3, 8, generator=torch.Generator().manual_seed(10 * step + which))
"""
ENDING = """
os.write(1, f"fine {rank}\\n".encode())  # in one piece: the ranks share the output
"""

# Nothing initializes a process group: torch_xla's own functions do.
OF_TORCH_XLA = """
import torch_xla.core.xla_model as xm
if os.environ["RANK"] == "0": xm.send(torch.ones(3), channel_id=6)
else: assert xm.recv(torch.zeros(3), channel_id=6).tolist() == [1.0] * 3
rank, size, device = xm.get_ordinal(), xm.xrt_world_size(), xm.xla_device()
def full(value): return torch.full((3,), float(value), device=device)
assert xm.all_reduce("sum", full(rank)).tolist() == [1.0] * 3
assert xm.all_gather(full(rank)).tolist() == [0.0] * 3 + [1.0] * 3
assert xm.all_reduce("sum", full(rank), groups=[[0], [1]]).tolist() == [float(rank)] * 3
assert xm.mesh_reduce("x", rank + 1, sum) == 3
assert xm.rendezvous("y", bytes([rank])) == [b"\\0", b"\\1"]
assert xm.rendezvous("alone", b"x", replicas=[rank]) == [b"x"]
assert xm.xla_rendezvous(f"rank {rank}".encode()) == [b"rank 0", b"rank 1"]

mine = full(rank + 1)
assert xm.collective_permute(mine, [[0, 1], [1, 0]]).tolist() == [2.0 - rank] * 3
assert xm.collective_permute(mine * 10, [[0, 1]]).tolist() == [10.0 * rank] * 3
if rank == 0:
    xm.send(mine * 5, channel_id=7); xm.send(mine * 6, channel_id=7)
else:
    assert [xm.recv(full(0), channel_id=7).tolist() for _ in range(2)] == [[5.0] * 3, [6.0] * 3]
gathered = xm.all_gather_bucketized([mine, mine * 2], groups=[[0, 1]], bucket_cap_mb=1)
assert [tensor.tolist() for tensor in gathered] == [[1.0] * 3 + [2.0] * 3, [2.0] * 3 + [4.0] * 3]
[scattered] = xm.reduce_scatter_bucketized(xm.REDUCE_SUM, [torch.arange(4.0, device=device)], 0.5, 0, 2)
assert scattered.tolist() == [2.0 * rank, 2.0 * rank + 1.0]
listed = [mine.clone()]
assert xm.all_reduce(xm.REDUCE_MAX, listed) is listed and listed[0].tolist() == [2.0] * 3
on_the_second = xm.do_on_ordinals(lambda value: [value.device.type, value.tolist()], (mine,), ordinals=(1,))
assert on_the_second == [None, ["cpu", [2.0] * 3]][rank]
xm.optimization_barrier_([mine])

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
model, reference = make().to(device), make()
ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference))
for step in range(5):
    ours.zero_grad(); theirs.zero_grad()
    loss = model(data(rank, step).to(device)).pow(2).mean()
    loss.backward(); xm.optimizer_step(ours); xm.mark_step()
    whole = reference(torch.cat([data(of, step) for of in range(size)])).pow(2).mean()
    whole.backward(); theirs.step()
    assert abs(xm.mesh_reduce("loss", loss.item(), lambda parts: sum(parts) / len(parts)) - whole.item()) < 1e-6
assert_close(model.parameters(), reference.parameters(), 1e-6)
"""

OF_TORCH = """
import torch.distributed as dist, torch_xla.core.xla_model as xm, torch_xla.distributed.xla_backend
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
dist.init_process_group("xla")
rank, size, device = dist.get_rank(), dist.get_world_size(), xm.xla_device()
def full(value): return torch.full((3,), float(value), device=device)
t = full(rank + 1); dist.all_reduce(t); assert t.tolist() == [3.0] * 3
dist.all_reduce(t, op=dist.ReduceOp.MAX); assert t.tolist() == [3.0] * 3
t = full(rank + 1); dist.all_reduce(t, async_op=True).wait(); assert t[0].item() == 3
t = full(rank + 1); dist.all_reduce(t, op=dist.ReduceOp.AVG); assert t[0].item() == 1.5
t = full(rank + 1); dist.broadcast(t, 1); assert t[0].item() == 2
o = [torch.zeros(2, device=device) for _ in range(size)]
dist.all_gather(o, torch.full((2,), float(rank), device=device))
assert [x[0].item() for x in o] == [0, 1]
o = torch.zeros(4, device=device); dist.all_gather_into_tensor(o, torch.full((2,), float(rank), device=device))
assert o.tolist() == [0, 0, 1, 1]
o = torch.zeros(2, device=device); dist.reduce_scatter_tensor(o, torch.arange(4.0).to(device))
assert o.tolist() == ([0, 2] if rank == 0 else [4, 6])
o = torch.zeros(2, device=device); dist.all_to_all_single(o, torch.tensor([rank * 2.0, rank * 2 + 1.0]).to(device))
assert o.tolist() == [rank, rank + 2.0]
o = [None] * size; dist.all_gather_object(o, {"rank": rank}); assert o[1] == {"rank": 1}
g = dist.new_group([0, 1]); t = full(1); dist.all_reduce(t, group=g); assert t[0].item() == 2
if rank == 0: dist.send(full(7), 1)
else: t = full(0); dist.recv(t, 0); assert t[0].item() == 7
dist.barrier()

class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.odd, self.never = nn.Linear(16, 16), nn.Linear(16, 16)
        self.kind = kind
    def forward(self, value, is_odd):
        value = self.first(value).tanh()
        if self.kind is not None: value = checkpoint(self.second, value, use_reentrant=self.kind).tanh()
        else: value = self.second(value).tanh()
        if is_odd: value = value + self.odd(value)
        return self.third(value)
for kind, has_unused in ((None, True), (False, False), (False, True)):  # unused parameters, checkpoints, and both
    model, reference = Model(kind).to(device), Model(kind)
    if not has_unused:
        for p in (*model.odd.parameters(), *model.never.parameters()): p.requires_grad_(False)
    parallel = DistributedDataParallel(model, device_ids=[rank], find_unused_parameters=has_unused)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference))
    for step in range(6):
        is_odd = has_unused and step % 2 == 1
        if step == 3: parallel.load_state_dict(parallel.state_dict())  # gradients are still averaged
        ours.zero_grad(); theirs.zero_grad()
        parallel(data(rank, step).to(device), is_odd).pow(2).mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        ours.step(); xm.mark_step()
        reference(torch.cat([data(of, step) for of in range(size)]), is_odd).pow(2).mean().backward()
        expected = nn.utils.clip_grad_norm_(reference.parameters(), 0.05).item()
        theirs.step()
        assert abs(norm.item() - expected) < 1e-6 and expected > 0.05
    assert_close(model.parameters(), reference.parameters(), 1e-6)
"""


# The second rank dies, or waits for ever, where the first one awaits its part of a collective.
LEFT_ALONE = """
import os, signal, sys, torch, torch.distributed as dist, torch_xla.core.xla_model as xm
dist.init_process_group("xla")
value = torch.ones(3, device=xm.xla_device())
dist.all_reduce(value); xm.mark_step()
if dist.get_rank() == 1:
    if sys.argv[1] == "dies": os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()
dist.all_reduce(value); xm.mark_step()
"""
TIMED_OUT = "NRT_TIMEOUT(5): (FATAL-RT-UNDEFINED-STATE) inference timeout"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        pytest.param("waits", f"{TIMED_OUT} (20000 ms) on Neuron Device 0 NC 0", marks=pytest.mark.long),
        ("dies", "NRT_EXEC_HW_ERR_COLLECTIVES(1200): all_reduce did not complete"),
    ],
)
def test_a_collective_without_a_peer_ends_with_an_error(start_script: Run, how: str, text: str) -> None:
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    variables = {**place, "NEURON_RT_NUM_CORES": "", "NEURON_RT_EXEC_TIMEOUT": "20"}  # the first one is to be in time
    first, _ = (start_script(LEFT_ALONE, how, RANK=rank, LOCAL_RANK=rank, **variables) for rank in "01")
    _, errors = first.communicate()
    assert first.returncode == 1
    assert text in errors


FULLY_SHARDED = """
import torch_xla.core.xla_model as xm, torch_xla.distributed.xla_backend
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP, checkpoint_module
from torch_xla.distributed.fsdp import consolidate_sharded_model_checkpoints
from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer
rank, size, device = xm.get_ordinal(), xm.xrt_world_size(), xm.xla_device()
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
reference, losses, norms, STEPS = make(), [], [], 5
optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-2)
for step in range(STEPS):
    optimizer.zero_grad()
    parts = [loss_of(reference, words(which, step)) for which in range(size)]
    (sum(parts) / size).backward()
    norms.append(nn.utils.clip_grad_norm_(reference.parameters(), 0.5).item())
    optimizer.step()
    losses.append(parts[rank].item())
assert min(norms) > 0.5, "nothing was clipped"
elements = sum(p.numel() for p in reference.parameters())

policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
ways = {
    "whole": dict(),
    "units": dict(auto_wrap_policy=policy, shard_param_on_dim_0=True),
    "kept": dict(auto_wrap_policy=policy, reshard_after_forward=False),
    "checkpointed": dict(auto_wrap_policy=policy, auto_wrapper_callable=lambda m, **k: FSDP(checkpoint_module(m), **k)),
}
for way, options in ways.items():
    model = FSDP(make(), **options)
    held = sum(p.numel() for p in model.parameters()) / elements
    assert 0.5 <= held < 0.55, "each rank holds a half of the parameters, and padding"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    mine, clipped = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, words(rank, step).to(device))
        loss.backward()
        clipped.append(model.clip_grad_norm_(0.5).item())
        optimizer.step(); xm.mark_step()
        mine.append(loss.item())
    assert_close(mine, losses); assert_close(clipped, norms)
    parts = {name: part.cpu() for name, part in model.state_dict().items()}
    torch.save({"model": parts, "shard_metadata": model.get_shard_metadata()}, f"{way}-{rank}.pth")
    xm.rendezvous("saved")
    whole, _ = consolidate_sharded_model_checkpoints(f"{way}-", save_path=f"all-of-{way}-{rank}.pth")
    plain = make()
    assert not plain.load_state_dict({"head.weight": whole["words.weight"], **whole})[0]
    assert_close(plain.parameters(), reference.parameters())

model.zero_grad()
if rank == 0:
    for part in model.parameters(): part.grad = torch.full_like(part, 2.0)
count = sum(part.numel() for part in model.parameters())
norms = [model.clip_grad_norm_(9e9).item(), model.clip_grad_norm_(9e9, float("inf")).item()]
assert_close(norms, [2 * count**0.5, 2.0])

def optimizer_of(model): return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, max_norm=0.5, lr=1.0)
model = make().to(device)
optimizer = optimizer_of(model)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1e-2)
for step in range(STEPS):
    if step == 3:
        state, weights = optimizer.state_dict(), {name: value.cpu() for name, value in model.state_dict().items()}
        model = Model().to(device); model.load_state_dict(weights)
        optimizer = optimizer_of(model); optimizer.load_state_dict(state)
    optimizer.zero_grad()
    loss_of(model, words(rank, step).to(device)).backward()
    optimizer.step(); xm.mark_step()
state = sum(v.numel() for s in optimizer.base_optimizer.state.values() for n, v in s.items() if n != "step")
assert_close(model.parameters(), reference.parameters())
assert 0.5 <= state / (2 * elements) < 0.6
"""

TENSOR_PARALLEL = """
import torch_xla.core.xla_model as xm
from neuronx_distributed.optimizer import NeuronZero1Optimizer
from neuronx_distributed.parallel_layers import checkpointing, grads, layers, move_model_to_device, parallel_state
from neuronx_distributed.parallel_layers.loss_functions import parallel_cross_entropy
from neuronx_distributed.parallel_layers.mappings import (
    gather_from_sequence_parallel_region, scatter_to_sequence_parallel_region)
parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
rank, device = xm.get_ordinal(), xm.xla_device()
class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(12, 8), nn.LayerNorm(8)
        self.up, self.down, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 12, bias=False)
    def forward(self, words):
        value = self.words(words)
        return self.head(value + self.down(self.up(self.norm(value)).relu()))
class Parallel(nn.Module):
    def __init__(self, has_sequence):
        super().__init__()
        self.has_sequence, extra = has_sequence, dict(sequence_parallel_enabled=True) if has_sequence else {}
        self.words, self.norm = layers.ParallelEmbedding(12, 8), nn.LayerNorm(8)
        self.up = layers.ColumnParallelLinear(8, 16, gather_output=False, **extra)
        self.down = layers.RowParallelLinear(16, 8, input_is_parallel=True, **extra)
        self.head = layers.ColumnParallelLinear(8, 12, bias=False, gather_output=False, **extra)
        if has_sequence:
            for parameter in self.norm.parameters(): parameter.sequence_parallel_enabled = True
    def forward(self, words):
        value = self.words(words)
        if self.has_sequence: value = scatter_to_sequence_parallel_region(value)
        return self.head(value + self.down(self.up(self.norm(value)).relu()))
def part(name, whole):
    dim = {"words.weight": 0, "up.weight": 0, "up.bias": 0, "down.weight": 1, "head.weight": 0}.get(name)
    return whole if dim is None else whole.chunk(2, dim)[rank]
for way in "plain", "sequence", "zero":
    torch.manual_seed(3); reference = Whole()
    torch.manual_seed(3); model = Parallel(way == "sequence")
    move_model_to_device(model, device)
    assert model.up.weight.tensor_model_parallel and model.down.weight.partition_dim == 1
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.5) for m in (model, reference))
    if way == "zero": ours = NeuronZero1Optimizer(model.parameters(), torch.optim.SGD, max_norm=0.1, lr=0.5)
    for step in range(4):
        value = torch.randint(0, 12, (4, 3), generator=torch.Generator().manual_seed(step))
        ours.zero_grad(); theirs.zero_grad()
        loss = parallel_cross_entropy(model(value.to(device)), value.roll(1, 0).to(device)).mean()
        loss.backward()
        grads.allreduce_sequence_parallel_gradients(ours)
        want = nn.functional.cross_entropy(reference(value).flatten(0, 1), value.roll(1, 0).flatten())
        want.backward()
        norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
        assert norm > 0.1, "nothing was clipped"
        if way != "zero":
            grads.bucket_allreduce_gradients(xm._fetch_gradients(ours))
            assert_close([grads.clip_grad_norm(model.parameters(), 0.1)], [norm])
        ours.step(); theirs.step(); xm.mark_step()
        assert_close([loss], [want])
    assert_close(model.parameters(), [part(n, p) for n, p in reference.named_parameters()])
    checkpointing.save({"model": model.state_dict()}, way, save_xser=way == "zero")
    loaded = Parallel(way == "sequence"); checkpointing.load(way, loaded, load_xser=way == "zero")
    assert os.path.exists(f"{way}/tp_rank_{rank:02d}_pp_rank_00/checkpoint.pt")
    assert_close(model.parameters(), loaded.parameters(), 0.0)
"""

FSDP1 = """
import sys, torch.distributed as dist, torch_xla.distributed.xla_backend
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP, MixedPrecision, fully_shard
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, ShardingStrategy, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
D = sys.argv[1]
dist.init_process_group(D)
rank, size, STEPS = dist.get_rank(), dist.get_world_size(), 5
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.BatchNorm1d(8), nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, value): return value + self.down(self.up(self.norm(value)).tanh())
def make(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 8), Block(), nn.Linear(8, 4)).eval()
def optimizer_of(model): return torch.optim.AdamW(model.parameters(), lr=1e-2)
def weights_of(model): return [p.detach().cpu().clone() for p in model.parameters()]

reference = make(); optimizer, expected = optimizer_of(reference), []
for step in range(STEPS):
    optimizer.zero_grad()
    parts = [reference(data(which, step)).pow(2).mean() for which in range(size)]
    (sum(parts) / size).backward()
    norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
    assert norm > 0.1, "nothing was clipped"
    optimizer.step(); expected += [parts[rank].detach(), norm]

def wrap(seed, device_id=None, **options):
    model = make(seed) if device_id is not None or "cpu_offload" in options else make(seed).to(D)
    return FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device_id, **options)
def saved(model, optimizer):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True),
                              FullOptimStateDictConfig()):
        state = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
        assert all(value.is_cpu for value in state[0].values())
        model = wrap(1, device_id=rank, use_orig_params=True); optimizer = optimizer_of(model)
        model.load_state_dict(state[0])
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state[1]))
    return model, optimizer
half = MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)
ways = {
    "flat": dict(), "saved": dict(device_id=rank, use_orig_params=True), "host": dict(cpu_offload=CPUOffload(True)),
    "kept": dict(device_id=torch.device(D, rank), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP),
    "half": dict(mixed_precision=half, use_orig_params=True),
}
for way, options in ways.items():
    model = wrap(0, **options); optimizer, mine = optimizer_of(model), []
    held = sum(p.numel() for p in model.parameters()) / sum(p.numel() for p in reference.parameters())
    assert 0.4 < held < 0.6, (way, "each rank holds about a half")
    assert {p.device.type for p in model.parameters()} == {"cpu" if way == "host" else D}
    for step in range(STEPS):
        if (way, step) == ("saved", 3): model, optimizer = saved(model, optimizer)
        optimizer.zero_grad()
        value = data(rank, step).to(D); value.record_stream(torch.accelerator.current_stream())
        loss = model(value).float().pow(2).mean()
        loss.backward()
        mine += [loss, model.clip_grad_norm_(0.1)]
        optimizer.step()
    assert_close(mine, expected, 2e-2 if way == "half" else 1e-5)
    with FSDP.summon_full_params(model):
        assert_close(weights_of(model), weights_of(reference), 2e-2 if way == "half" else 1e-5)
if D == "xla":
    try: fully_shard(make().to(D))
    except NotImplementedError as error: assert "NEURONTOOLS_DEVICE=neuron" in str(error)
    else: raise AssertionError("fully_shard")
model = nn.parallel.DistributedDataParallel(make().to(D))
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
model(data(rank, 0).to(D)).sum().backward()
optimizer.step()
"""

UNDER_THE_NAME_NEURON = """
import torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
dist.init_process_group("neuron")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("neuron", (size,))
def whole_of(model): return [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]

def make(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
def sharded(seed):
    model = make(seed).to("neuron")
    for part in (model[0], model[3], model): fully_shard(part, mesh=mesh, reshard_after_forward=True)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer = sharded(0)
reference = make(); stepping = torch.optim.AdamW(reference.parameters(), lr=1e-2)
whole_bytes = sum(p.numel() * 4 for p in reference.parameters())
assert torch.neuron.memory_allocated() < 0.6 * whole_bytes, "what is not used has no bytes"
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
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor()
    optimizer.step()
    parts = [reference(data(which, step)).pow(2).mean() for which in range(size)]
    (sum(parts) / size).backward()
    assert_close([norm, loss], [nn.utils.clip_grad_norm_(reference.parameters(), 0.1), parts[rank]])
    stepping.step()
assert_close(whole_of(model), reference.parameters())

values = torch.arange(8.0).reshape(4, 2)
shared = distribute_tensor(values.to("neuron"), mesh, [Shard(0)])
assert shared.to_local().tolist() == values[2 * rank : 2 * rank + 2].tolist()
assert shared.full_tensor().tolist() == values.tolist()
product = (shared @ distribute_tensor(torch.ones(2, 3, device="neuron"), mesh, [Replicate()])).full_tensor()
assert product.tolist() == [[1.0] * 3, [5.0] * 3, [9.0] * 3, [13.0] * 3]
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, value): return self.down(self.up(self.norm(value)).relu())
torch.manual_seed(0); reference = Block()
torch.manual_seed(0); model = Block().to("neuron")
parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
assert model.up.weight.to_local().shape[0] == 8
ours, theirs = (torch.optim.AdamW(m.parameters(), lr=0.1) for m in (model, reference))  # the norm is no DTensor
for step in range(4):
    ours.zero_grad(); theirs.zero_grad()
    value = data(0, step).reshape(3, 1, 8)
    loss, want = model(value.to("neuron")).pow(2).mean(), reference(value).pow(2).mean()
    loss.backward(); want.backward()
    ours.step(); theirs.step()
    assert_close([loss], [want], 1e-6)
assert_close(whole_of(model), reference.parameters(), 1e-6)
from torch.distributed.tensor.experimental import context_parallel
try:
    with context_parallel(mesh, buffers=[value], buffer_seq_dims=[0]): pass
except NotImplementedError as error: assert "use parallelize_module with SequenceParallel" in str(error)
else: raise AssertionError("context_parallel")
"""

COMPILED = """
import sys, torch.distributed as dist
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
expected = {in_place: [8.0, 12.0], as_function: [7.0, 11.0]}
if name == "xla": expected[of_xla] = [8.0 + rank, 12.0 + rank]
for function, numbers in expected.items():
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for k, number in enumerate(numbers):
        assert compiled(torch.full((2,), rank + k + 1.0, device=name)).tolist() == [number] * 2, function

trained = []
for where in ("cpu", name):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)).to(where)
    parallel = model if where == "cpu" else torch.compile(torch.nn.parallel.DistributedDataParallel(model))
    for step in range(3):
        value = torch.randn(4, 2, generator=torch.Generator().manual_seed(step)).to(where)  # the same on both ranks
        model.zero_grad()
        parallel(value).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters(): parameter -= 0.1 * parameter.grad
    trained.append([value.detach().cpu() for value in model.state_dict().values()])
for ours, theirs in zip(*trained, strict=True): torch.testing.assert_close(ours, theirs)

torch.manual_seed(0)
layer = torch.nn.Linear(2, 1, bias=False).to(name)
import tempfile, torch.distributed.checkpoint as checkpoint
directory = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(directory)
checkpoint.async_save({"weight": layer.weight.detach()}, checkpoint_id=directory[0]).result()
read = {"weight": torch.zeros(1, 2, device=name)}
checkpoint.load(read, checkpoint_id=directory[0])
assert torch.equal(read["weight"], layer.weight)
dist.barrier()
"""


@pytest.mark.parametrize(
    ("script", "arguments", "name"),
    [
        pytest.param(OF_TORCH_XLA, (), "xla", id="torch_xla"),
        pytest.param(OF_TORCH, (), "xla", id="torch.distributed"),
        pytest.param(FULLY_SHARDED, (), "xla", id="parameters and optimizer state", marks=pytest.mark.slow),
        pytest.param(FSDP1, ("neuron",), "neuron", id="FSDP1 neuron", marks=pytest.mark.slow),
        pytest.param(FSDP1, ("xla",), "xla", id="FSDP1", marks=pytest.mark.slow),
        pytest.param(TENSOR_PARALLEL, (), "xla", id="layers", marks=pytest.mark.slow),
        pytest.param(UNDER_THE_NAME_NEURON, (), "", id="neuron"),
        pytest.param(COMPILED, ("xla", "openxla"), "xla", id="compiled", marks=pytest.mark.slow),
        pytest.param(COMPILED, ("neuron", "neuron"), "neuron", id="compiled neuron", marks=pytest.mark.slow),
    ],
)
def test_what_is_shared_out_computes_what_the_whole_does_on_the_cpu(
    run_script: Callable[..., Any], script: str, arguments: tuple[str, ...], name: str
) -> None:
    run = run_script(COMMON + script + ENDING, *arguments, ranks=2, NEURONTOOLS_DEVICE=name)
    assert sorted(run.stdout.splitlines()) == ["fine 0", "fine 1"]


def test_a_storage_gives_its_bytes_back_and_takes_them_again(xla: Any) -> None:
    tensor = torch.arange(1024.0).to("xla")
    view = tensor[:2]
    storage: Any = tensor.untyped_storage()
    before = memory.memory_allocated()
    storage.resize_(0)
    assert (storage.nbytes(), storage.size(), len(storage)) == (0, 0, 0)
    assert memory.memory_allocated() == before - 4096
    with pytest.raises(RuntimeError, match="resized to 0 bytes"):
        view.tolist()
    storage.resize_(4096)
    assert (storage.nbytes(), memory.memory_allocated()) == (4096, before)
    tensor.copy_(torch.arange(1024.0))
    assert view.tolist() == [0.0, 1.0]
    with pytest.raises(NotImplementedError, match="to 0 bytes and back, not to 8"):
        storage.resize_(8)
    storage.resize_(0)
    del tensor, view, storage
    assert memory.memory_allocated() == before - 4096
