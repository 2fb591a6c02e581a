"""How ranks begin: by torch_xla, by multiprocessing, alone; and the core that each of them takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neurontools.runtime.tensors.cores import ImpossibleRank, rank_environment

Run = Callable[..., Any]

SPAWNING = """
import sys, torch, torch_xla.core.xla_model as xm, torch_xla.distributed.xla_multiprocessing as xmp
def train(index, scale):
    value = torch.full((2,), (index + 1.0) * scale, device=xm.xla_device())
    open(f"out{index}", "w").write(f"{xm.all_reduce('sum', value).tolist()} {xm.get_ordinal()} {xm.xrt_world_size()}")
if __name__ == "__main__":
    if "used" in sys.argv: kept = torch.ones(2, device="xla")
    xmp.spawn(train, args=(10,), nprocs=2, start_method=sys.argv[1])
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_ranks_that_a_script_starts(run_script: Run, tmp_path: Path, method: str) -> None:
    run_script(SPAWNING, method, NEURON_RT_NUM_CORES="")
    assert [(tmp_path / f"out{rank}").read_text() for rank in (0, 1)] == ["[30.0, 30.0] 0 2", "[30.0, 30.0] 1 2"]


MULTIPROCESSING = """
import multiprocessing, sys, torch
from concurrent.futures import ProcessPoolExecutor
def work(index): return (torch.ones(4, device="neuron") * index).sum().item()
if __name__ == "__main__":
    with ProcessPoolExecutor(2, multiprocessing.get_context(sys.argv[1])) as workers:
        print(list(workers.map(work, (1, 2))))
"""


@pytest.mark.parametrize(
    "method", ["forkserver", *(pytest.param(other, marks=pytest.mark.slow) for other in ("spawn", "fork"))]
)
def test_processes_of_multiprocessing_have_the_device(run_script: Run, method: str) -> None:
    run = run_script(MULTIPROCESSING, method, NEURONTOOLS_DEVICE="")
    assert run.stdout == "[4.0, 8.0]\n"


def test_a_process_that_has_tensors_on_its_cores_starts_no_ranks(run_script: Run) -> None:
    run = run_script(SPAWNING, "fork", "used", exit_code=1, NEURON_RT_NUM_CORES="")
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
    assert rank_environment(environment).get("NEURON_RT_VISIBLE_CORES") == expected


def test_a_range_shorter_than_the_ranks_is_refused() -> None:
    with pytest.raises(ImpossibleRank, match="2 core\\(s\\) for 4 local ranks"):
        rank_environment({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4", "NEURON_RT_VISIBLE_CORES": "0-1"})


ALONE = """
import torch, torch.distributed as dist, torch_xla.core.xla_model as xm, torch_xla.distributed.xla_backend
for arguments in {}, {"init_method": "xla://"}:
    dist.init_process_group("xla", **arguments)
    t = torch.ones(2, device=xm.xla_device()); dist.all_reduce(t)
    print(dist.get_rank(), dist.get_world_size(), xm.xrt_world_size(), t.tolist())
    dist.destroy_process_group()
"""


def test_a_process_that_nobody_gave_a_rank_is_the_only_one(run_script: Run) -> None:
    assert run_script(ALONE, RANK="", WORLD_SIZE="").stdout == "0 1 1 [1.0, 1.0]\n" * 2
