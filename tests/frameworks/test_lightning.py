"""Lightning's Trainer and Fabric, unmodified: their accelerator for XLA is the device.

Lightning clips the gradients of XLA's workers before it averages them, and those of its other workers after it. So two
workers are compared without clipping.
"""

from __future__ import annotations

import pytest

from tests.harness.framework_script import SUMMED_ELSEWHERE, Run

TWO_WORKERS = [
    ("neuron-run with two workers", {}),
    ("torchrun with two workers", {}),
    ("neuron-run with workers of the script's own", {"NEURONCORE_NUM_DEVICES": "2"}),
]


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


@pytest.mark.long
@pytest.mark.parametrize(("launcher", "variables"), TWO_WORKERS)
def test_two_workers_of_trainer_train_as_two_processes_on_the_cpu(
    run: Run, launcher: str, variables: dict[str, str]
) -> None:
    cpu = run("two processes on the cpu", "lightning_trainer.py", "cpu", DEVICES="2", CLIP="0")
    own = run(launcher, "lightning_trainer.py", CLIP="0", **variables)
    assert [(told["device"], told["strategy"], told["world_size"]) for told in own] == [("xla:0", "XLAStrategy", 2)] * 2
    for mine, theirs in zip(own, cpu, strict=True):
        assert len(mine["losses"]) == 4
        for key in ("losses", "validated", "weights"):
            assert mine[key] == pytest.approx(theirs[key], rel=SUMMED_ELSEWHERE)


@pytest.mark.long
@pytest.mark.parametrize(("launcher", "variables"), TWO_WORKERS)
def test_two_workers_of_fabric_train_as_two_processes_on_the_cpu(
    run: Run, launcher: str, variables: dict[str, str]
) -> None:
    cpu = run("two processes on the cpu", "lightning_fabric.py", "cpu", DEVICES="2", CLIP="0")
    own = run(launcher, "lightning_fabric.py", CLIP="0", **variables)
    for mine, theirs in zip(own, cpu, strict=True):
        assert (mine["device"], mine["world_size"], mine["broadcast"]) == ("xla:0", 2, "rank 0")
        assert mine["losses"] == pytest.approx(theirs["losses"], rel=SUMMED_ELSEWHERE)


@pytest.mark.long
def test_two_workers_of_fabric_share_out_the_parameters(run: Run) -> None:
    [cpu] = run("cpu", "lightning_fsdp.py", "cpu")
    own = run("neuron-run with two workers", "lightning_fsdp.py")
    for told in own:
        assert told["device"] == "xla:0"
        assert told["losses"] == pytest.approx(cpu["losses"], rel=SUMMED_ELSEWHERE)
        assert told["elements_held"] < 0.6 * cpu["elements_held"]
