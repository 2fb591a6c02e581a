"""A script for several ranks, run as it is by a launcher of one process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.harness import python_process

SCRIPT = """
import torch, torch.distributed as dist, torch_xla.core.xla_model as xm, torch_xla.distributed.xla_backend
dist.init_process_group("xla"{arguments})
t = torch.ones(2, device=xm.xla_device()); dist.all_reduce(t)
print(dist.get_rank(), dist.get_world_size(), xm.xrt_world_size(), t.tolist())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("arguments", ["", ', init_method="xla://"'])
def test_a_process_that_nobody_gave_a_rank_is_the_only_one(tmp_path: Path, arguments: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(arguments=arguments))
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = python_process.run(
        [sys.executable, "-m", "neurontools.runtime", str(script)],
        loaded=python_process.TORCH,
        text=True,
        env=environment | {"NEURON_RT_NUM_CORES": "1"},
    )
    assert (done.returncode, done.stdout) == (0, "0 1 1 [1.0, 1.0]\n"), done.stderr
