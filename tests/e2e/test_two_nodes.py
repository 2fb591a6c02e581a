"""Two nodes' worth of ranks on one machine: a torchrun each, a monitor daemon each, one training."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import python_process
from tests.harness.neuron_run import environment
from tests.harness.ports import free_port
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

torch = pytest.importorskip("torch")

STEPS, RANKS, BATCH = 6, 4, 4
SCRIPT = f"""
import json, os, time, torch, torch.distributed as dist, torch_xla.core.xla_model as xm, torch_xla.runtime as xr
import torch_xla.distributed.xla_backend
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("xla")
rank, size, device = dist.get_rank(), dist.get_world_size(), xm.xla_device()
assert (rank, size) == (xm.get_ordinal(), xm.xrt_world_size())
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
def data(of, step): return torch.randn({BATCH}, 8, generator=torch.Generator().manual_seed(100 * of + step))
results = dict(rank=rank, pid=os.getpid(), local=xm.get_local_ordinal(), local_size=int(os.environ["LOCAL_WORLD_SIZE"]))
for kind in ("optimizer_step", "ddp"):
    plain = make().to(device)
    model = DistributedDataParallel(plain) if kind == "ddp" else plain
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    losses = []
    for step in range({STEPS}):
        optimizer.zero_grad()
        loss = model(data(rank, step).to(device)).pow(2).mean()
        loss.backward()
        if kind == "ddp": optimizer.step()
        else: xm.optimizer_step(optimizer)
        xm.mark_step()
        losses.append(xm.mesh_reduce("loss", loss.item(), lambda parts: sum(parts) / len(parts)))
    results[kind] = losses, [p.detach().cpu().tolist() for p in plain.parameters()]
xm.master_print("said by the first rank of all", flush=True)
xm.master_print("said by the first rank of a node", local=True, flush=True)
with open(f"rank{{rank}}.new", "w") as file: json.dump(results, file)
os.rename(f"rank{{rank}}.new", f"rank{{rank}}.json")
while not os.path.exists("seen"): time.sleep(0.05)
xm.rendezvous("end")
"""


def expected() -> tuple[list[float], list[Any]]:
    """The losses and parameters of one process on the CPU that has the batches of all ranks."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        generators = [torch.Generator().manual_seed(100 * rank + step) for rank in range(RANKS)]
        optimizer.zero_grad()
        loss = model(torch.cat([torch.randn(BATCH, 8, generator=g) for g in generators])).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.detach() for parameter in model.parameters()]


@pytest.fixture
def nodes(tmp_path: Path, start_daemon: StartDaemon) -> Iterator[list[tuple[RunningDaemon, subprocess.Popen[str]]]]:
    """Both nodes of a training: the daemon and the torchrun of each. The second one may use cores 4 and 5 alone."""
    (tmp_path / "script.py").write_text(SCRIPT)
    port = free_port()
    made = []
    for node, (instance_type, cores) in enumerate((("trn1.2xlarge", ""), ("trn1.32xlarge", "4-5"))):
        daemon = start_daemon("--simulate", instance_type, "--interval", "0.05", name=f"{node}.sock")
        launcher = (*(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node)),)
        rendezvous = ("--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port))
        process = python_process.popen(
            [*launcher, *rendezvous, "-m", "neurontools.runtime", "script.py"],
            loaded=python_process.TORCH,
            cwd=tmp_path,
            env=environment(
                tmp_path,
                daemon.socket,
                NEURON_COMPILE_CACHE_URL=str(tmp_path / f"cache{node}"),
                **({"NEURON_RT_VISIBLE_CORES": cores} if cores else {}),
            ),
            **python_process.PIPES,
        )
        made.append((daemon, process))
    yield made
    for _, process in made:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=HANG_SECONDS)


def test_losses_are_those_of_one_process_and_each_node_shows_its_own_ranks(
    nodes: list[tuple[RunningDaemon, subprocess.Popen[str]]], tmp_path: Path
) -> None:
    def all_wrote() -> bool:
        assert all(process.poll() is None for _, process in nodes), [p.communicate()[1][-3000:] for _, p in nodes]
        return all((tmp_path / f"rank{rank}.json").exists() for rank in range(RANKS))

    wait_until(all_wrote)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    assert [(rank["local"], rank["local_size"]) for rank in ranks] == [(0, 2), (1, 2)] * 2
    losses, parameters = expected()
    for rank in ranks:
        for kind in ("optimizer_step", "ddp"):
            got_losses, got_parameters = rank[kind]
            assert got_losses == pytest.approx(losses, abs=1e-6)
            for got, parameter in zip(got_parameters, parameters, strict=True):
                torch.testing.assert_close(torch.tensor(got), parameter, rtol=0, atol=1e-6)
    pids = [rank["pid"] for rank in ranks]
    owners = [{core.index: core.owner_pid for core in daemon.snapshot().cores} for daemon, _ in nodes]
    assert owners[0] == {0: pids[0], 1: pids[1]}
    assert {index: pid for index, pid in owners[1].items() if pid is not None} == {4: pids[2], 5: pids[3]}
    for daemon, _ in nodes:
        shown = daemon.snapshot().processes
        assert len(shown) == 2
        assert all(each.command.endswith("script.py") for each in shown)
    (tmp_path / "seen").touch()
    said = []
    for _, process in nodes:
        output, errors = process.communicate(timeout=HANG_SECONDS)
        assert process.returncode == 0, errors[-3000:]
        said.append(output.splitlines())
    assert said == [["said by the first rank of all", "said by the first rank of a node"], said[0][1:]]
    for daemon, _ in nodes:
        wait_until(lambda daemon=daemon: not daemon.snapshot().processes)  # type: ignore[misc]
