"""Estimates of other batches, workers and degrees of parallelism, and of models that are counted without computing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neurontools.estimate import CountedRun, EstimateError, estimate
from neurontools.estimate.parallelism import Degrees, scale_run
from tests.harness.counted_runs import GIB, counted
from tests.harness.neuron_run import neuron_run

LARGE = """
import torch, torch_xla.core.xla_model as xm, torch_xla.distributed.parallel_loader as pl
from torch.utils.data import DataLoader, TensorDataset
device = xm.xla_device()
layers = (torch.nn.Linear(*shape, bias=False) for shape in ((65536, 32768), (32768, 65536)))
model = torch.nn.Sequential(*layers).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for (value,) in pl.MpDeviceLoader(DataLoader(TensorDataset(torch.randn(8, 65536)), batch_size=2), device):
    optimizer.zero_grad()
    loss = model(value).square().mean()
    loss.backward()
    xm.optimizer_step(optimizer)
print(loss.item())
"""
"""Two layers of 8 GiB each, with as much for gradients and for momentum: 48 GiB."""


def test_a_model_larger_than_hbm_and_host_is_counted_and_each_type_judged_by_itself(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LARGE)
    options = ("--shapes-only", "--summary-json", "out.json", "--tensor-parallel", "8", "--workers", "32")
    ran = neuron_run(
        tmp_path, "--estimate", "inf2.xlarge,trn2.48xlarge,trn1.32xlarge", *options, "--batch", "2,4096", "script.py"
    )
    assert ran.returncode == 0, ran.stderr
    estimates = json.loads((tmp_path / "out.json").read_text())["estimates"]
    fits = {(each["instance_type"], each["counted"]["batch_samples"]): each["counted"]["fits"] for each in estimates}
    assert fits == {
        ("inf2.xlarge", 2): False,  # 2 cores
        ("trn2.48xlarge", 2): True,
        ("trn1.32xlarge", 2): True,
        ("inf2.xlarge", 4096): False,
        ("trn2.48xlarge", 4096): True,
        ("trn1.32xlarge", 4096): True,
    }
    first = estimates[0]["counted"]
    assert first["weight_bytes"] == first["gradient_bytes"] == 16 * GIB // 8
    assert sum(first["flops_by_dtype"].values()) == 2 * 2 * 5 * 65536 * 32768 // 8  # the first input needs no gradient
    assert "refuses" not in ran.stderr
    assert "Batches, workers and degrees are calculated, not run" in ran.stderr
    assert "| 4096  |" in ran.stderr
    assert "wall time" not in ran.stderr


def test_work_and_memory_are_divided_by_the_degrees() -> None:
    run = counted()  # 2 TFLOP, batch 8; 4 GiB of weights, gradients and state, 6 GiB of the rest
    scaled = scale_run(run, Degrees(16, tensor=2, pipeline=4), 16)
    assert (scaled.worker_count, scaled.batch_samples, scaled.flops) == (16, 16, run.flops * 2 / 8)
    assert (scaled.weight_bytes, scaled.optimizer_state_bytes) == (GIB // 8, 2 * GIB // 8)
    assert scaled.peak_bytes == 4 * GIB // 8 + 6 * GIB * 2 // 2
    assert (scaled.collectives, scaled.collective_bytes) == (1, GIB / 8)
    assert (scaled.samples or 0) * scaled.worker_count == 16 * 2  # two copies of the model
    alone = scale_run(run, Degrees(8, tensor=8), None)
    assert (alone.collectives, alone.collective_bytes) == (0, 0)
    assert scale_run(run, None, None) is run
    one, many = (
        estimate(each, "trn1.32xlarge").samples_per_second for each in (run, scale_run(run, Degrees(32), None))
    )
    assert one is not None
    assert many is not None
    assert 25 < many.middle / one.middle <= 32


@pytest.mark.parametrize(
    ("run", "batch", "message"),
    [
        (counted(batch_samples=None, batches_total=None), 8, "the batch was not counted"),
        (counted(optimizer_state_bytes=None), None, "run an optimizer step"),
    ],
)
def test_a_run_without_the_parts_is_refused(run: CountedRun, batch: int | None, message: str) -> None:
    with pytest.raises(EstimateError, match=message):
        scale_run(run, Degrees(2), batch)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--estimate", "inf2.xlarge", "--batch", "8,many"), "--batch 8,many: give batches of a worker"),
        (("--estimate", "inf2.xlarge", "--workers", "6", "--tensor-parallel", "4"), "6 workers are no multiple of 4"),
        (("--estimate", "inf2.xlarge", "--shapes-only", "--profile", "."), "--profile"),
        (("--shapes-only",), "--shapes-only is for an estimate"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print(1)")
    ran = neuron_run(tmp_path, *options, "script.py")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert message in ran.stderr
