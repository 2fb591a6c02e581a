"""Loops of Hugging Face's accelerate, unmodified."""

from __future__ import annotations

import pytest

from tests.harness.framework_script import SUMMED_ELSEWHERE, Run
from tests.harness.ports import free_port


@pytest.mark.long
def test_a_loop_has_the_losses_of_the_cpu_to_the_bit(run: Run) -> None:
    [cpu] = run("cpu", "accelerate_loop.py")
    [own] = run("neuron-run", "accelerate_loop.py")
    assert (own["device"], own["processes"], len(own["losses"])) == ("xla:0", 1, 16)
    assert own["losses"] == cpu["losses"]
    assert own["norms"] == cpu["norms"]
    assert own["saved"] == own["weights"] == cpu["saved"]


@pytest.mark.long
@pytest.mark.parametrize(
    "launcher", ["neuron-run with two workers", "torchrun with two workers", "accelerate launch with two workers"]
)
def test_two_workers_train_as_two_processes_on_the_cpu(run: Run, launcher: str) -> None:
    cpu = run("two processes on the cpu", "accelerate_loop.py")
    own = run(launcher, "accelerate_loop.py")
    assert [(told["device"], told["processes"]) for told in own] == [("xla:0", 2), ("xla:0", 2)]
    for told in own:
        assert (told["reduced"], told["broadcast"], told["everyone"]) == ([2, 2], [0], [0, 0, 1, 1])
        assert len(told["losses"]) == 8
        assert told["losses"] == pytest.approx(cpu[0]["losses"], rel=SUMMED_ELSEWHERE)
        assert told["norms"] == pytest.approx(cpu[0]["norms"], rel=SUMMED_ELSEWHERE)
        assert told["saved"] == told["weights"]


@pytest.mark.long
def test_a_notebook_starts_two_workers(run: Run) -> None:
    cpu = run("two processes on the cpu", "accelerate_loop.py")
    own = run("neuron-run with workers of the script's own", "accelerate_notebook.py", PORT=str(free_port()))
    assert [(told["device"], told["processes"]) for told in own] == [("xla:0", 2), ("xla:0", 2)]
    for told in own:
        assert told["losses"] == pytest.approx(cpu[0]["losses"], rel=SUMMED_ELSEWHERE)
        assert told["norms"] == pytest.approx(cpu[0]["norms"], rel=SUMMED_ELSEWHERE)


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["neuron-run", "neuron-run with two workers"])
def test_a_loaded_state_goes_on_with_the_same_random_numbers(run: Run, launcher: str) -> None:
    whole = run(launcher, "accelerate_loop.py", "save", DROPOUT="0.3")
    resumed = run(launcher, "accelerate_loop.py", "resume", DROPOUT="0.3")
    assert resumed[0]["losses"] == whole[0]["losses"][4:]
    assert resumed[0]["norms"] == whole[0]["norms"][2:]
