"""Scripts with nothing wrong in them: nothing is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.examples import some
from tests.harness.neuron_run_script import neuron_run, summary_of
from tests.harness.training_scripts import BEGINNING, LOOP, TRAINED

pytest.importorskip("torch")

USUAL = BEGINNING + TRAINED + LOOP
SCRIPTS = {
    "a loop over a loader": USUAL,
    "two epochs": BEGINNING + TRAINED + LOOP + LOOP,
    "Adam": USUAL.replace("SGD(model.parameters(), lr=0.1)", "Adam(model.parameters())"),
    "bfloat16": USUAL.replace("model.to(device)", "model.to(torch.bfloat16).to(device)").replace(
        "model(value)", "model(value.bfloat16()).float()"
    ),
    "autocast": USUAL.replace(
        "    loss = torch", "    with torch.autocast('xla', torch.bfloat16):\n        loss = torch"
    ),
    "a closure that prints each loss": USUAL.replace(
        "    step(value, target)\n", "    xm.add_step_closure(print, args=(step(value, target),))\n"
    ),
    "a loss that is read every tenth step": BEGINNING + TRAINED + "for number in range(40):\n"
    "    loss = step(torch.randn(8, 8).to(device), torch.zeros(8, dtype=torch.long).to(device))\n"
    "    if number % 10 == 0: print(loss.item())\n    xm.mark_step()\n",
    "a learning rate that changes": USUAL
    + "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)\n"
    + LOOP.replace("    step(value, target)\n", "    step(value, target)\n    scheduler.step()\n"),
    "accumulated gradients": BEGINNING + TRAINED + "for number in range(40):\n"
    "    value, target = torch.randn(8, 8).to(device), torch.zeros(8).long().to(device)\n"
    "    loss = torch.nn.functional.cross_entropy(model(value), target)\n"
    "    loss.backward()\n"
    "    if number % 2:\n        optimizer.step()\n        optimizer.zero_grad()\n        xm.mark_step()\n",
    "an evaluation in between": BEGINNING
    + TRAINED
    + LOOP
    + "with torch.no_grad():\n    print(model(data.tensors[0].to(device)).argmax(1).sum().item())\n"
    + LOOP,
    "an evaluation whose results are read batch by batch": BEGINNING
    + TRAINED
    + LOOP
    + "with torch.no_grad():\n"
    + "    for value, target in pl.MpDeviceLoader(DataLoader(data, batch_size=4), device):\n"
    + "        print((model(value).argmax(1) == target).sum().item())\n",
    "accumulated gradients, a mark for each batch": BEGINNING + TRAINED + "for number in range(48):\n"
    "    value, target = torch.randn(8, 8).to(device), torch.zeros(8).long().to(device)\n"
    "    torch.nn.functional.cross_entropy(model(value), target).backward()\n"
    "    if number % 4 == 3:\n        optimizer.step()\n        optimizer.zero_grad()\n"
    "    xm.mark_step()\n",
    "gradients that are clipped": USUAL.replace(
        "    optimizer.step()\n", "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    optimizer.step()\n"
    ),
    "a checkpoint at the end": USUAL + "xm.save(model.state_dict(), 'model.pt')\n",
}


@pytest.mark.parametrize("name", some(list(SCRIPTS), 0))
def test_a_clean_script_gets_no_advice(name: str, tmp_path: Path) -> None:
    document = summary_of(tmp_path, SCRIPTS[name])
    assert document["steps_total"] >= 10
    # Times of a CPU that others use as well may look like those of a slow loader.
    assert [each for each in document["advice"] if each["truth"] == "script"] == []


def test_two_workers_get_none_either(tmp_path: Path) -> None:
    script = USUAL.replace("optimizer.step()", "xm.optimizer_step(optimizer)")
    found = summary_of(tmp_path, script, "-n", "2")["advice"]
    assert [each for each in found if each["truth"] == "script"] == []


def test_advice_can_be_left_out_and_asked_for(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(USUAL.replace("    step(value, target)\n", "    step(value, target).item()\n"))
    said = neuron_run(tmp_path, "--simulate", "trn1.2xlarge", "script.py").stderr
    assert "host-read at" in said
    assert "script.py:" in said
    assert "source:" not in said
    assert "source:" in neuron_run(tmp_path, "--simulate", "trn1.2xlarge", "--advise", "script.py").stderr
    assert "host-read" not in neuron_run(tmp_path, "--simulate", "trn1.2xlarge", "--no-advice", "script.py").stderr
    ignoring = neuron_run(tmp_path, "--simulate", "trn1.2xlarge", "--ignore", "nan,host-read", "script.py")
    assert "host-read" not in ignoring.stderr


def test_a_rule_that_does_not_exist_is_told_before_the_script_runs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('ran')")
    ended = neuron_run(tmp_path, "--ignore", "speed", "script.py")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "no rule of advice is called 'speed'; there are recompile, " in ended.stderr
