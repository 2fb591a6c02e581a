"""HuggingFace Trainer, and TRL's SFT with LoRA by PEFT, unmodified."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.framework_script import SUMMED_ELSEWHERE, Run


@pytest.mark.long
def test_trainer_has_the_losses_of_the_cpu_to_the_bit(run: Run) -> None:
    [cpu] = run("cpu", "hf_trainer.py")
    [own] = run("neuron-run", "hf_trainer.py")
    assert (own["device"], own["world_size"]) == ("xla:0", 1)
    assert [row["step"] for row in own["history"]] == [1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 9]
    assert own["history"] == cpu["history"]
    assert own["saved"] == own["weights"] == cpu["weights"]


@pytest.mark.long
def test_trainer_makes_no_new_graph_after_its_first_steps(run: Run) -> None:
    [own] = run("neuron-run with one worker", "hf_trainer.py")
    first_evaluation_is_over = 4
    assert own["graphs"][0] > 0
    assert len(set(own["graphs"][first_evaluation_is_over:])) == 1, own["graphs"]


@pytest.mark.long
def test_a_resumed_trainer_draws_what_an_uninterrupted_one_draws(run: Run) -> None:
    [whole] = run("neuron-run with one worker", "hf_trainer.py", DROPOUT="0.1")
    [resumed] = run("neuron-run with one worker", "hf_trainer.py", "checkpoints/checkpoint-3", DROPOUT="0.1")
    [undisturbed] = run("neuron-run with one worker", "hf_trainer.py")
    assert resumed["history"] == whole["history"]
    assert resumed["weights"] == whole["weights"]
    assert whole["history"] != undisturbed["history"]


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["neuron-run with two workers", "torchrun with two workers"])
def test_two_workers_train_as_two_processes_on_the_cpu(run: Run, launcher: str) -> None:
    cpu = run("two processes on the cpu", "hf_trainer.py")
    own = run(launcher, "hf_trainer.py")
    assert [told["world_size"] for told in own] == [2, 2]
    assert own[0]["weights"] == own[1]["weights"] == own[0]["saved"]
    assert len(own[0]["history"]) == 13
    for mine, theirs in zip(own[0]["history"], cpu[0]["history"], strict=True):
        assert _losses(mine) == pytest.approx(_losses(theirs), rel=SUMMED_ELSEWHERE)


@pytest.mark.long
def test_sft_with_lora_has_the_losses_of_the_cpu_to_the_bit(run: Run) -> None:
    [cpu] = run("cpu", "trl_sft_lora.py")
    [own] = run("neuron-run with one worker", "trl_sft_lora.py")
    assert own["device"] == "xla:0"
    assert own["trained"] == cpu["trained"] > 0
    assert own["losses"] == cpu["losses"]
    assert len(own["losses"]) == 4


@pytest.mark.long
def test_two_workers_of_sft_with_lora_train_as_two_processes_on_the_cpu(run: Run) -> None:
    cpu = run("two processes on the cpu", "trl_sft_lora.py")
    own = run("neuron-run with two workers", "trl_sft_lora.py")
    assert [told["device"] for told in own] == ["xla:0", "xla:0"]
    for mine, theirs in zip(own, cpu, strict=True):
        assert mine["losses"] == pytest.approx(theirs["losses"], rel=SUMMED_ELSEWHERE)
        assert len(mine["losses"]) == 4


def _losses(row: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in row.items() if key in ("loss", "eval_loss")}
