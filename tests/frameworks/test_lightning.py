"""Lightning's Trainer and Fabric, unmodified: their accelerator for XLA is the device."""

from __future__ import annotations

import pytest

from tests.harness.framework_script import Run


@pytest.mark.long
def test_trainer_takes_the_device_and_has_the_losses_of_the_cpu_to_the_bit(run: Run) -> None:
    [cpu] = run("cpu", "lightning_trainer.py")
    [own] = run("neuron-run", "lightning_trainer.py")
    assert (cpu["device"], own["device"], own["strategy"]) == ("cpu", "xla:0", "SingleDeviceXLAStrategy")
    assert len(own["losses"]) == 8
    for key in ("losses", "validated", "weights"):
        assert own[key] == cpu[key]


@pytest.mark.long
def test_trainer_on_the_cpu_is_left_alone_under_neuron_run(run: Run) -> None:
    [cpu] = run("cpu", "lightning_trainer.py")
    [own] = run("neuron-run", "lightning_trainer.py", "cpu")
    assert own == cpu


@pytest.mark.long
def test_trainer_goes_on_from_a_checkpoint(run: Run) -> None:
    run("neuron-run", "lightning_trainer.py", EPOCHS="1")
    [resumed] = run("neuron-run", "lightning_trainer.py", "auto", "checkpoints/last.ckpt")
    [whole] = run("neuron-run", "lightning_trainer.py")
    assert resumed["losses"] == whole["losses"][4:]
    assert resumed["weights"] == whole["weights"]


@pytest.mark.long
def test_fabric_has_the_losses_of_the_cpu_to_the_bit(run: Run) -> None:
    [cpu] = run("cpu", "lightning_fabric.py")
    [own] = run("neuron-run", "lightning_fabric.py")
    assert (own["device"], own["world_size"], len(own["losses"])) == ("xla:0", 1, 8)
    assert own["losses"] == cpu["losses"]
