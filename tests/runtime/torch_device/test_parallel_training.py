"""Several trainings at once, and what scripts do under two ranks: unused parameters, checkpoints, clipping."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.harness.loaded_interpreter import WHOLE_END
from tests.harness.torchrun import torchrun

RANKS = """
import json, os, sys, torch, torch.distributed as dist, torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
dist.init_process_group("xla")
rank, size, device = dist.get_rank(), dist.get_world_size(), xm.xla_device()
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.odd, self.never = nn.Linear(16, 16), nn.Linear(16, 16)
        self.kind = None
    def forward(self, value, is_odd):
        value = self.first(value).tanh()
        if self.kind is not None: value = checkpoint(self.second, value, use_reentrant=self.kind).tanh()
        else: value = self.second(value).tanh()
        if is_odd: value = value + self.odd(value)
        return self.third(value)
def make(kind):
    torch.manual_seed(0)
    model = Model()
    model.kind = kind
    return model
def data(of, step): return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * of + step))
results = {}
for name, kind, unused in (("unused", None, True), ("checkpoint", False, False), ("both", False, True)):
    def is_odd(step): return unused and step % 2 == 1
    model = make(kind).to(device)
    if not unused:
        for p in (*model.odd.parameters(), *model.never.parameters()): p.requires_grad_(False)
    parallel = DistributedDataParallel(model, find_unused_parameters=unused)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    for step in range(6):
        optimizer.zero_grad()
        parallel(data(rank, step).to(device), is_odd(step)).pow(2).mean().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05))
        optimizer.step(); xm.mark_step()
    reference = make(kind)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    expected = []
    for step in range(6):
        optimizer.zero_grad()
        whole = torch.cat([data(r, step) for r in range(size)])
        reference(whole, is_odd(step)).pow(2).mean().backward()
        expected.append(nn.utils.clip_grad_norm_(reference.parameters(), 0.05))
        optimizer.step()
    results[name] = [
        max((a.cpu() - b).abs().max().item() for a, b in zip(model.parameters(), reference.parameters())),
        max(abs(a.item() - b.item()) for a, b in zip(norms, expected)),
        min(b.item() for b in expected),
    ]
if rank == 0: print(json.dumps(results))
dist.destroy_process_group()
"""


def test_what_scripts_do_under_two_ranks(run_python: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(RANKS)
    run = torchrun(run_python, "script.py")
    assert run.returncode == 0, run.stderr[-3000:]
    results = json.loads(run.stdout)
    assert set(results) == {"unused", "checkpoint", "both"}
    for parameters, norms, smallest in results.values():
        assert parameters < 1e-6
        assert norms < 1e-6
        assert smallest > 0.05, "nothing was clipped"


def train(where: str, seed: int, mark: Callable[[], None]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    layers = [nn.Linear(8, 16), nn.Linear(16, 4)]
    with torch.no_grad():
        for layer in layers:
            for parameter in layer.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    model = nn.Sequential(layers[0], nn.LayerNorm(16), nn.GELU(), layers[1]).to(where)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(25):
        value = torch.randn(4, 8, generator=generator).to(where)
        target = torch.randint(0, 4, (4,), generator=generator).to(where)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(value), target)
        loss.backward()
        optimizer.step()
        mark()
        losses.append(loss.detach())
    return [tensor.detach().cpu() for tensor in (*losses, *model.parameters())]


@pytest.mark.parametrize("places", [("xla:0",) * 3, ("xla:0", "xla:1", "xla:0", "xla:1")])
def test_threads_train_whole_models_at_once(xla: Any, places: tuple[str, ...]) -> None:
    """Each marks its steps, which executes what the others have recorded so far too."""
    got: dict[int, list[torch.Tensor]] = {}
    failed: list[BaseException] = []
    together = threading.Barrier(len(places))

    def work(number: int, where: str) -> None:
        try:
            together.wait()
            got[number] = train(where, number, lambda: xla.flush_all("Test"))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number, where)) for number, where in enumerate(places)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for number in range(len(places)):
        expected = train("cpu", number, lambda: None)
        assert all(torch.equal(a, b) for a, b in zip(got[number], expected, strict=True))


LEAVING = """
import sys, threading, torch, torch_xla.core.xla_model as xm, torch_xla.distributed.parallel_loader as pl
device = xm.xla_device()
def batches():
    while True: yield torch.ones(64, 64), torch.zeros(64)
def loaders(): return [thread for thread in threading.enumerate() if thread.name == "ParallelLoader"]
for value, target in pl.MpDeviceLoader(batches(), device): break
assert loaders() == [], "a loader that was left still loads"
for value, target in pl.MpDeviceLoader(batches(), device):
    if sys.argv[1] == "exit": sys.exit(3)
    if sys.argv[1] == "raise": raise ValueError
    if sys.argv[1] == "keep": break
kept = iter(pl.MpDeviceLoader(batches(), device)); next(kept)
assert loaders()
"""


@pytest.mark.parametrize(("how", "exit_code"), [("exit", 3), ("raise", 1), ("keep", 0)])
def test_a_script_that_leaves_its_loader_ends_well(
    run_python: Callable[..., Any], tmp_path: Path, how: str, exit_code: int
) -> None:
    """The interpreter must not end while the loader's thread is in torch's C++: that aborts the process."""
    (tmp_path / "script.py").write_text(LEAVING)
    run = run_python("-m", "neurontools.runtime", "script.py", how, **{WHOLE_END: "1"})
    assert run.returncode == exit_code, run.stderr
    assert "terminate" not in run.stderr
