"""Two ranks under torchrun, each on a core of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.torchrun import torchrun

COLLECTIVES = """
import torch, torch.distributed as dist, torch_xla.core.xla_model as xm, torch_xla.distributed.xla_backend
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
assert xm.all_reduce("sum", full(rank)).tolist() == [1.0] * 3
assert xm.all_gather(full(rank)).tolist() == [0.0] * 3 + [1.0] * 3
assert xm.all_reduce("sum", full(rank), groups=[[0], [1]]).tolist() == [float(rank)] * 3
assert xm.mesh_reduce("x", rank + 1, sum) == 3
assert xm.rendezvous("y", bytes([rank])) == [b"\\0", b"\\1"]
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(torch.nn.Linear(4, 4).to(device)); model(torch.ones(2, 4, device=device)).sum().backward()
import os; os.write(1, f"fine {rank}\\n".encode())  # in one piece: the ranks share the output
dist.destroy_process_group()
"""
AVERAGING = """
import json, os, sys, torch, torch_xla.core.xla_model as xm
from torch import nn
device, rank, size = xm.xla_device(), xm.get_ordinal(), xm.xrt_world_size()
def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
def data(k, i): return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * k + i))
model = make().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for i in range(5):
    optimizer.zero_grad()
    loss = model(data(rank, i).to(device)).pow(2).mean()
    loss.backward(); xm.optimizer_step(optimizer); xm.mark_step()
    losses.append(xm.mesh_reduce("loss", loss.item(), lambda parts: sum(parts) / len(parts)))
reference = make()
optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
expected = []
for i in range(5):
    optimizer.zero_grad()
    loss = reference(torch.cat([data(k, i) for k in range(size)])).pow(2).mean()
    loss.backward(); optimizer.step(); expected.append(loss.item())
largest = max((a.cpu() - b).abs().max().item() for a, b in zip(model.parameters(), reference.parameters()))
if rank == 0: print(json.dumps([largest, max(abs(a - b) for a, b in zip(losses, expected))]))
"""
DYING = """
import os, signal, torch, torch.distributed as dist, torch_xla.core.xla_model as xm
dist.init_process_group("xla")
value = torch.ones(3, device=xm.xla_device())
dist.all_reduce(value); xm.mark_step()
if dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(value); xm.mark_step()
except RuntimeError as error:
    open("error", "w").write(str(error))
    raise
"""
HANGING = """
import os, sys, time, torch, torch.distributed as dist, torch_xla.core.xla_model as xm
dist.init_process_group("xla")
value = torch.ones(3, device=xm.xla_device())
dist.all_reduce(value); xm.mark_step()
if dist.get_rank() == 1:
    while not os.path.exists("error"): time.sleep(0.01)
    sys.exit(0)
try:
    dist.all_reduce(value); xm.mark_step()
except RuntimeError as error:
    open("error.part", "w").write(str(error)); os.rename("error.part", "error")
"""


SPAWNING = """
import torch, torch_xla.core.xla_model as xm, torch_xla.distributed.xla_multiprocessing as xmp
def train(index, scale):
    value = torch.full((2,), (index + 1.0) * scale, device=xm.xla_device())
    open(f"out{index}", "w").write(f"{xm.get_ordinal()} {xm.xrt_world_size()} {xm.all_reduce('sum', value).tolist()}")
if __name__ == "__main__":
    import sys
    if "used" in sys.argv: kept = torch.ones(2, device="xla")
    xmp.spawn(train, args=(10,), nprocs=2, start_method=sys.argv[1])
"""


def test_collectives(run_python: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(COLLECTIVES)
    run = torchrun(run_python, "script.py")
    assert run.returncode == 0, run.stderr[-3000:]
    assert sorted(run.stdout.splitlines()) == ["fine 0", "fine 1"]


def test_gradients_are_averaged_as_over_the_whole_batch(run_python: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(AVERAGING)
    run = torchrun(run_python, "script.py")
    assert run.returncode == 0, run.stderr[-3000:]
    parameters, losses = json.loads(run.stdout)
    assert parameters < 1e-6
    assert losses < 1e-6


@pytest.mark.long
def test_a_collective_that_hangs_ends_at_the_time_out(run_python: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(HANGING)
    run = torchrun(run_python, "script.py", NEURON_RT_EXEC_TIMEOUT="20")  # the first is to be in time
    assert run.returncode == 0, run.stderr[-3000:]
    error = (tmp_path / "error").read_text()
    assert error.startswith(
        "NRT_TIMEOUT(5): (FATAL-RT-UNDEFINED-STATE) inference timeout (20000 ms) on Neuron Device 0 NC 0"
    )


def test_the_others_end_with_an_error_when_a_rank_dies(run_python: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(DYING)
    run = torchrun(run_python, "script.py")
    assert run.returncode != 0
    if (tmp_path / "error").exists():  # torchrun may have ended the other rank before it noticed
        assert "NRT_EXEC_HW_ERR_COLLECTIVES(1200): all_reduce did not complete" in (tmp_path / "error").read_text()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_that_a_script_starts(run_python: Callable[..., Any], tmp_path: Path, method: str) -> None:
    (tmp_path / "script.py").write_text(SPAWNING)
    run = run_python("-m", "neurontools.runtime", "script.py", method, NEURON_RT_NUM_CORES="")
    assert run.returncode == 0, run.stderr
    assert [(tmp_path / f"out{rank}").read_text() for rank in (0, 1)] == ["0 2 [30.0, 30.0]", "1 2 [30.0, 30.0]"]


def test_a_process_that_has_tensors_on_its_cores_starts_no_ranks(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SPAWNING)
    run = run_python("-m", "neurontools.runtime", "script.py", "fork", "used", NEURON_RT_NUM_CORES="")
    assert run.returncode == 1
    assert "this process has tensors on its NeuronCores, which 2 workers can't share with it" in run.stderr


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "1"),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NEURON_RT_VISIBLE_CORES": "4-7"}, "5"),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NEURON_RT_VISIBLE_CORES": "4-7"}, "4-7"),
    ],
)
def test_each_rank_takes_its_own_core(environment: dict[str, str], expected: str | None) -> None:
    from neurontools.runtime.tensors.cores import rank_environment

    assert rank_environment(environment).get("NEURON_RT_VISIBLE_CORES") == expected


def test_a_range_shorter_than_the_ranks_is_refused() -> None:
    from neurontools.runtime.tensors.cores import ImpossibleRank, rank_environment

    with pytest.raises(ImpossibleRank, match="2 core\\(s\\) for 4 local ranks"):
        rank_environment({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4", "NEURON_RT_VISIBLE_CORES": "0-1"})
