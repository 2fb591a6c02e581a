"""Ways of torch to train on several ranks, each beside one process on the CPU with the data of all ranks.

`torch_parallel.py DIRECTORY [WAY...]` writes to a file for each rank, by way, the largest difference of losses and
weights: of a training without interruption, and of one that a checkpoint carries on in a new model after three steps.
An error is written as its first line.
"""

import functools
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS, RESUMED_AT, LEARNING_RATE = 6, 3, 1e-2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, value):
        return value + self.down(nn.functional.gelu(self.up(self.norm(value))))


def make(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(Block(), Block())


def data(part, step):
    return torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(100 * step + part))


def loss_of(model, value):
    return model(value).square().mean()


def train_on_cpu(parts):
    """Trains with the data of all parts. Returns the weights, and the loss of each part in each step."""
    model, losses = make(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        each = [loss_of(model, data(part, step)) for part in range(parts)]
        (sum(each) / parts).backward()
        optimizer.step()
        losses.append([loss.item() for loss in each])
    return {name: value.detach() for name, value in model.named_parameters()}, losses


def shard(model, mesh):
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def split(model, mesh):
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


@functools.cache
def mesh_of(**sizes):
    return init_device_mesh("neuron", (*sizes.values(),), mesh_dim_names=(*sizes,))


def in_two_dimensions(model):
    mesh = mesh_of(data=dist.get_world_size() // 2, tensor=2)
    return shard(split(model, mesh["tensor"]), mesh["data"])


def with_context_parallel(model):
    with context_parallel(mesh_of(all=dist.get_world_size()), buffers=[torch.ones(4, 4)], buffer_seq_dims=[0]):
        return model


WAYS = {
    "loop": lambda model: model,
    "DDP": DistributedDataParallel,
    "FSDP1": lambda model: FullyShardedDataParallel(model, use_orig_params=True),
    "FSDP2": lambda model: shard(model, mesh_of(all=dist.get_world_size())),
    "TP": lambda model: split(model, mesh_of(all=dist.get_world_size())),
    "2D": in_two_dimensions,
    "context_parallel": with_context_parallel,
}


def prepare(way, seed):
    model = WAYS[way](make(seed).to("neuron"))
    return model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


def difference(way, directory):
    """Trains on the device. With a directory, a checkpoint there carries the training on in a new model."""
    tensor_ranks = {"TP": dist.get_world_size(), "2D": 2}.get(way, 1)
    part, parts = dist.get_rank() // tensor_ranks, dist.get_world_size() // tensor_ranks
    weights, losses = train_on_cpu(parts)
    model, optimizer = prepare(way, seed=0)
    found = 0.0
    for step in range(STEPS):
        if directory is not None and step == RESUMED_AT:
            saved = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
            dcp.save(saved, checkpoint_id=directory)
            model, optimizer = prepare(way, seed=1)
            read = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
            dcp.load(read, checkpoint_id=directory)
            set_state_dict(model, optimizer, model_state_dict=read["model"], optim_state_dict=read["optimizer"])
        optimizer.zero_grad()
        loss = loss_of(model, data(part, step).to("neuron"))
        loss.backward()
        if way == "loop" and parts > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        found = max(found, abs(loss.item() - losses[step][part]))
    trained = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return max(found, *((trained[name].cpu() - weights[name]).abs().max().item() for name in weights))


def main(told, *ways):
    dist.init_process_group("neuron")
    found = {}
    for way in ways or WAYS:
        try:
            found[way] = [difference(way, directory) for directory in (None, str(Path(told).parent / f"saved {way}"))]
        except Exception as error:
            found[way] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    Path(told, str(dist.get_rank())).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
