"""neuron-run --estimate as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neurontools.cli.run.summary import combined, text
from tests.harness.counted_runs import summary
from tests.harness.neuron_run_script import neuron_run, summary_of
from tests.harness.paths import ROOT
from tests.harness.training_scripts import BEGINNING, PLAIN, TRAINED

pytest.importorskip("torch")


VIT = str(ROOT / "examples" / "train_vit.py")
WIDTH, DEPTH, TOKENS, BATCH, CLASSES = 64, 2, 17, 4, 1000


def flops_of_a_step() -> int:
    """By hand: multiplications and additions of the small model, forward and twice backward."""
    linear = TOKENS * WIDTH * (3 * WIDTH + WIDTH + 8 * WIDTH) * DEPTH + WIDTH * CLASSES
    patches = 16 * (3 * 8 * 8) * WIDTH
    attention = 2 * TOKENS * TOKENS * WIDTH * DEPTH  # two products: scores and what they weigh
    # Pictures need no gradient, so the patches are multiplied once in backward; backward of attention computes its
    # scores again.
    return 2 * BATCH * (3 * linear + 2 * patches + attention + attention * 5 // 2)


def test_a_run_is_estimated_without_a_daemon(tmp_path: Path) -> None:
    run = neuron_run(
        tmp_path, "--estimate", "inf2.xlarge", "--summary-json", "out.json", "--samples", "1000", VIT, "--small",
        "--batch", str(BATCH), "--steps", "4",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "loss" in run.stdout
    assert "inf2.xlarge        fits" in run.stderr
    assert "would cost" in run.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["instance_type"] == "inf2.xlarge"
    (rank,) = document["ranks"]
    (estimate,) = document["estimates"]
    assert rank["flops_by_dtype"] == {"float32": 4 * flops_of_a_step()}
    weights = rank["weight_bytes"]
    assert (rank["gradient_bytes"], rank["batch_samples"], rank["batches_total"]) == (weights, BATCH, 4)
    parameters = weights // 4
    counters = rank["optimizer_state_bytes"] - 8 * parameters  # a step each, which Adam keeps on the host
    assert counters == 0
    assert estimate["counted"]["rest_bytes"] == rank["hbm_peak_bytes"] - 4 * weights
    assert estimate["costs"][0]["epoch_usd"] is not None


def test_an_evaluation_is_no_part_of_a_step(tmp_path: Path) -> None:
    evaluation = (
        "with torch.no_grad():\n    for value, target in pl.MpDeviceLoader(DataLoader(data, batch_size=4), device):\n"
        "        right = (model(value).argmax(1) == target).sum()\n"
    )
    epoch = PLAIN + "    step(value, target)\n"
    script = BEGINNING + TRAINED + (epoch + evaluation) * 2
    document = summary_of(tmp_path, script, "--estimate", "trn1.2xlarge")
    assert (document["steps_total"], document["samples_total"]) == (24, 4 * 96)
    (made,) = document["estimates"]
    # Of the first layer only the gradient of the weights is asked for.
    assert made["counted"]["flops_by_dtype"] == {"float32": 2 * 8 * (2 * 8 * 16 + 3 * 16 * 4)}
    assert made["counted"]["executions_per_step"] == 1
    assert document["samples_per_second"] == pytest.approx(8 * document["steps_per_second"])


def test_memory_is_that_of_all_optimizers(tmp_path: Path) -> None:
    script = (
        "import torch, torch_xla.core.xla_model as xm\n"
        "models = [torch.nn.Linear(8, 4).to(xm.xla_device()), torch.nn.Linear(4, 2).to(xm.xla_device())]\n"
        "optimizers = [torch.optim.Adam(model.parameters()) for model in models]\n"
        "for _ in range(3):\n"
        "    models[1](models[0](torch.ones(3, 8).to(xm.xla_device()))).sum().backward()\n"
        "    for optimizer in optimizers: optimizer.step()\n"
        "    for optimizer in optimizers: optimizer.zero_grad()\n"
        "    xm.mark_step()\n"
    )
    (rank,) = summary_of(tmp_path, script)["ranks"]
    weights = 4 * (8 * 4 + 4 + 4 * 2 + 2)
    assert (rank["weight_bytes"], rank["gradient_bytes"], rank["optimizer_state_bytes"]) == (
        weights,
        weights,
        2 * weights,
    )


def test_what_the_compiler_narrows_is_counted_as_that(tmp_path: Path) -> None:
    arguments = ("-q", "--estimate", "trn1.2xlarge", "--summary-json", "out.json", VIT, "--small", "--steps", "2")
    run = neuron_run(tmp_path, *arguments, NEURON_CC_FLAGS="--auto-cast=matmult --auto-cast-type=bf16")
    assert run.returncode == 0, run.stderr
    assert set(json.loads((tmp_path / "out.json").read_text())["ranks"][0]["flops_by_dtype"]) == {"bfloat16"}
    run = neuron_run(tmp_path, *arguments, "--bf16")
    assert run.returncode == 0, run.stderr
    assert set(json.loads((tmp_path / "out.json").read_text())["ranks"][0]["flops_by_dtype"]) == {"bfloat16"}


def test_a_script_without_a_step_has_no_estimate_and_its_own_exit_code(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys, torch_xla.core.xla_model as xm; xm.xla_device(); sys.exit(3)\n")
    run = neuron_run(tmp_path, "-q", "--estimate", "trn1.2xlarge", "script.py")
    assert run.returncode == 3
    assert "no estimate: no training step was seen" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--estimate", "trn9.large"), "trn9.large"),
        (("--estimate", ","), "no instance type given"),
        (("--estimate", "inf1.xlarge"), "nothing trains on them"),
        (("--estimate", "trn1.2xlarge", "--calibrate", "none.toml"), "none.toml: No such file"),
        (("--estimate", "trn1.2xlarge", "--prices", "none.toml"), "none.toml: No such file"),
        (("--estimate", "trn1.2xlarge", "--samples", "many"), "--samples 'many'"),
        (("--estimate", "trn1.2xlarge", "--samples", "0"), "--samples 0: no samples"),
        (("--estimate", "trn1.2xlarge", "--samples", "9" * 17), "not a whole number up to"),
        (("--samples", "5"), "add --estimate"),
    ],
)
def test_wrong_options_are_a_line_before_the_script_runs(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    (tmp_path / "script.py").write_text("print('ran')\n")
    run = neuron_run(tmp_path, *arguments, "script.py")
    assert run.returncode == 2
    assert told in run.stderr
    assert run.stderr.count("\n") == 1
    assert run.stdout == ""


def test_the_summary_says_what_it_would_cost() -> None:
    rank = summary()["ranks"][0] | {"instance_type": "trn1.2xlarge", "cores": [0], "rank": 0}
    told = text(combined([rank], 0, 12.0))
    assert "for 1,000 steps on trn1.2xlarge, an estimate" in told
    assert "would cost" not in text(combined([rank | {"instance_type": None}], 0, 12.0))
