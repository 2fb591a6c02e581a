"""neuron-profile on the profile of a training that really ran: its sums are those of neuron-run's own summary."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.neuron_run_script import neuron_run

SCRIPT = """
import torch, torch_xla.core.xla_model as xm, torch_xla.distributed.parallel_loader as pl
device = xm.xla_device()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
batches = [(torch.randn(8, 16), torch.zeros(8, dtype=torch.long)) for _ in range(15)]
for value, target in pl.MpDeviceLoader(batches, device):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(value), target)
    loss.backward()
    xm.optimizer_step(optimizer)
print(loss.item())
"""
MODEL_LINE, STEP_LINE = 10, 12


def told(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "neurontools.cli.profile.command", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.long
def test_its_sums_are_those_of_the_summary(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    run = neuron_run(
        tmp_path,
        *("--simulate", "trn1.2xlarge", "--nproc-per-node", "2", "--summary-json", "out.json", "--profile", "made"),
        "script.py",
    )
    assert run.returncode == 0, run.stderr
    summary = json.loads((tmp_path / "out.json").read_text())
    found = json.loads(told("show", tmp_path / "made", "--json"))
    operators, ranks = found["operators"], found["ranks"]
    assert sum(each["seconds"] for each in operators) == pytest.approx(summary["busy_seconds"], rel=0.01)
    assert sum(each["flop_total"] for each in operators) == found["flop_total"] == summary["flop_total"]
    assert [each["hbm_peak_bytes"] for each in ranks] == [each["hbm_peak_bytes"] for each in summary["ranks"]]
    assert sum(each["executions_total"] for each in ranks) == summary["executions_total"]
    assert [each["steps_total"] for each in ranks] == [15, 15]
    collectives = sum(each["seconds"] for each in found["collectives"])
    assert collectives == pytest.approx(summary["collective_seconds"], rel=0.01)
    assert sum(each["count"] for each in found["collectives"]) == summary["collectives_total"]
    for rank in ranks:
        assert rank["peak"]["bytes"] == rank["hbm_peak_bytes"]
        assert sum(rank["peak"]["by_category_bytes"].values()) == pytest.approx(rank["peak"]["bytes"], rel=0.05)
    lines = {each["line"].rpartition(":")[2] for each in operators if each["name"] == "aten::linear"}
    assert lines == {str(MODEL_LINE)}
    shown = told("show", tmp_path / "made")
    assert "2 ranks, 15 steps" in shown
    assert "why: the first one" in shown
    assert f"script.py:{STEP_LINE}" in shown
    page = told("report", tmp_path / "made", "-o", "-")
    assert "Sequential" in page
    same = told("diff", tmp_path / "made", tmp_path / "made")
    assert "nothing differs" in same
