"""Scripts for accelerate, HuggingFace Trainer, TRL with PEFT and Lightning, unmodified, against the CPU."""

from __future__ import annotations

import runpy
import subprocess
from typing import Any

import pytest

from tests.harness.framework_script import PYTHON, SUMMED_ELSEWHERE, Run
from tests.harness.paths import ROOT
from tests.harness.ports import free_port
from tests.harness.running_daemon import RunningDaemon

pytestmark = pytest.mark.long
ACCELERATE, NOTEBOOK, SFT = "accelerate_loop.py", "accelerate_notebook.py", "trl_sft_lora.py"
HF, LIGHTNING, FABRIC = "hf_trainer.py", "lightning_trainer.py", "lightning_fabric.py"
NEURON_RUN, TORCHRUN = "neuron-run with two workers", "torchrun with two workers"
LAUNCH, OWN = "accelerate launch with two workers", "neuron-run with workers of the script's own"


@pytest.mark.parametrize(
    ("script", "same", "facts"),
    [
        (ACCELERATE, ("losses", "norms", "saved"), {"processes": 1}),
        (HF, ("history", "weights", "saved"), {"world_size": 1}),
        (SFT, ("losses", "trained"), {}),
        (LIGHTNING, ("losses", "validated", "weights"), {"strategy": "SingleDeviceXLAStrategy"}),
        (FABRIC, ("losses",), {"world_size": 1}),
    ],
)
def test_a_script_takes_the_device_and_has_the_numbers_of_the_cpu_to_the_bit(
    run: Run, script: str, same: tuple[str, ...], facts: dict[str, Any]
) -> None:
    [cpu] = run("cpu", script)
    [own] = run("neuron-run", script)
    assert own["device"] == "xla:0"
    assert facts.items() <= own.items()
    for key in same:
        assert own[key]
        assert own[key] == cpu[key]
    assert own.get("saved", own.get("weights")) == own.get("weights")


ACCELERATED: dict[str, Any] = {"processes": 2, "reduced": [2, 2], "broadcast": [0], "everyone": [0, 0, 1, 1]}


@pytest.mark.parametrize(
    ("launcher", "script", "same", "facts"),
    [
        (NEURON_RUN, ACCELERATE, ("losses", "norms"), ACCELERATED),
        (LAUNCH, ACCELERATE, ("losses", "norms"), ACCELERATED),
        (OWN, NOTEBOOK, ("losses", "norms"), ACCELERATED),
        (TORCHRUN, HF, ("losses",), {"world_size": 2}),
        (NEURON_RUN, SFT, ("losses",), {}),
        (NEURON_RUN, LIGHTNING, ("losses", "validated", "weights"), {"world_size": 2, "strategy": "XLAStrategy"}),
        (OWN, LIGHTNING, ("losses", "validated", "weights"), {"world_size": 2, "strategy": "XLAStrategy"}),
        (TORCHRUN, FABRIC, ("losses",), {"world_size": 2, "broadcast": "rank 0"}),
    ],
)
def test_two_workers_train_as_two_processes_on_the_cpu(
    run: Run, launcher: str, script: str, same: tuple[str, ...], facts: dict[str, Any]
) -> None:
    """Without clipping by Lightning, which does it before it averages the gradients of XLA's workers only."""
    is_lightning = script in (LIGHTNING, FABRIC)
    of_cpu = ("cpu",) if is_lightning else ()
    cpu = run("two processes on the cpu", ACCELERATE if script == NOTEBOOK else script, *of_cpu, CLIP="0", DEVICES="2")
    variables = {"NEURONCORE_NUM_DEVICES": "2"} if is_lightning and launcher == OWN else {}
    own = run(launcher, script, CLIP="0", PORT=str(free_port()), **variables)
    assert len(own) == 2
    for mine, theirs in zip(own, cpu, strict=True):
        assert mine["device"] == "xla:0"
        assert facts.items() <= mine.items()
        for key in same:
            assert mine[key]
            assert mine[key] == pytest.approx(theirs[key], rel=SUMMED_ELSEWHERE)
        assert mine.get("weights") == own[0].get("weights")
        assert (mine.get("saved") or mine.get("weights")) == mine.get("weights")


def test_a_loaded_state_of_accelerate_goes_on_with_the_same_random_numbers(run: Run) -> None:
    whole = run(NEURON_RUN, ACCELERATE, "save", DROPOUT="0.3")
    resumed = run(NEURON_RUN, ACCELERATE, "resume", DROPOUT="0.3")
    assert resumed[0]["losses"] == whole[0]["losses"][4:]
    assert resumed[0]["norms"] == whole[0]["norms"][2:]


def test_a_resumed_trainer_draws_what_an_uninterrupted_one_draws_and_makes_no_graph_after_its_first_steps(
    run: Run,
) -> None:
    [whole] = run("neuron-run with one worker", HF, DROPOUT="0.1")
    [resumed] = run("neuron-run with one worker", HF, "checkpoints/checkpoint-3", DROPOUT="0.1")
    [undisturbed] = run("neuron-run with one worker", HF)
    assert resumed["history"] == whole["history"]
    assert resumed["weights"] == whole["weights"]
    assert whole["history"] != undisturbed["history"]
    first_evaluation_is_over = 4
    assert undisturbed["graphs"][0] > 0
    assert len(set(undisturbed["graphs"][first_evaluation_is_over:])) == 1, undisturbed["graphs"]


def test_lightning_goes_on_from_a_checkpoint_and_trains_on_the_cpu_where_it_is_told_to(run: Run) -> None:
    run("neuron-run", LIGHTNING, EPOCHS="1")
    [resumed] = run("neuron-run", LIGHTNING, "auto", "checkpoints/last.ckpt")
    [whole] = run("neuron-run", LIGHTNING)
    assert resumed["losses"] == whole["losses"][4:]
    assert resumed["weights"] == whole["weights"]
    assert run("neuron-run", LIGHTNING, "cpu") == run("cpu", LIGHTNING)


def test_two_workers_of_fabric_share_out_the_parameters(run: Run) -> None:
    cpu = run("two processes on the cpu", FABRIC, "cpu", DEVICES="2", CLIP="0")
    for told in run(NEURON_RUN, FABRIC, SHARED="1", CLIP="0"):
        assert told["device"] == "xla:0"
        assert told["losses"] == pytest.approx(cpu[0]["losses"], rel=SUMMED_ELSEWHERE)
        assert told["elements_held"] < 0.6 * cpu[0]["elements_held"]


@pytest.mark.parametrize(
    ("framework", "steps", "samples", "checkpoints"),
    [("hf_trainer", 6, 24, 2), ("lightning", 5, 20, 1), ("accelerate", 5, 20, 1)],
)
def test_a_framework_on_another_device_reports_its_training_where_a_daemon_is(
    run: Run, daemon: RunningDaemon, framework: str, steps: int, samples: int, checkpoints: int
) -> None:
    variables = {"NEURONTOOLS_SOCKET": daemon.socket, "NEURON_RT_VISIBLE_CORES": "2"}
    [told] = run("cpu", "report_training.py", framework, **variables)
    assert (told["steps_total"], told["samples_total"], told["checkpoints_total"]) == (steps, samples, checkpoints)
    assert told["input_wait_seconds_total"] > 0
    assert told["collectives_total"] is None
    [alone] = run("cpu", "report_training.py", framework)
    assert "steps_total" not in alone
    assert "neurontools-reporter" not in alone["threads"]


def test_the_tokens_of_generate_through_a_traced_model_are_timed_as_the_script_times_them(run: Run) -> None:
    [found] = run("neuron-run", "generate_traced.py")
    own, shown = found["own"], found["shown"]
    assert all(own["equal"])
    assert shown["requests_counted"] == len(own["first"])
    bucket = 1.02
    for name, seconds in (("time_to_first_token", own["first"]), ("time_per_output_token", own["each"])):
        assert min(seconds) / bucket <= shown[name]["p50_seconds"] <= max(seconds) * bucket
        assert shown[name]["p100_seconds"] <= max(seconds) * bucket
    assert 0 < shown["tokens_per_second"] <= max(own["rates"]) * bucket


def test_the_page_has_a_row_for_each_training_of_the_table() -> None:
    rows = runpy.run_path(str(ROOT / "benchmarks/frameworks_table.py"))
    _, _, table = (ROOT / "docs/device.md").read_text("utf-8").partition(rows["TITLE"] + "\n")
    lines = table.partition("\n\n")[0].splitlines()[1:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [*rows["NAMES"]]
    assert all(line.count(" | ") == 3 for line in lines)


def test_the_documented_count_of_names_is_what_the_script_counts() -> None:
    if not PYTHON.exists():
        pytest.skip("other people's frameworks are not installed; run make frameworks")
    command = [str(PYTHON), str(ROOT / "scripts/torch_xla_names")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    table, _, missing = done.stdout.partition("\n\n")
    page = (ROOT / "docs/device.md").read_text("utf-8")
    for line in table.splitlines():
        assert line in page
    for name in missing.strip().removeprefix("Not there: ").split(", "):
        assert name in page
