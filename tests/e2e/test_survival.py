"""What a training with checkpoints survives, and by whose help: faults by launcher, each with a script that resumes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from neurontools.faults.kinds import KINDS
from neurontools.model import FaultState
from neurontools.testing import SimulatedHost
from tests.harness import framework_script, python_process
from tests.harness.neuron_run import environment
from tests.harness.ports import free_port
from tests.harness.waiting import HANG_SECONDS

pytest_plugins = ["neurontools.testing.pytest_plugin"]
pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples/train_resume.py"
STEPS = 30
FATAL = ("execution-unit-lost", "hang-compute", "numerical")
"""Kinds that end a process in three ways: by a failed execution, by a time-out and by NaN in its results."""
FATAL_VARIABLES = {"NEURON_RT_EXEC_TIMEOUT": "10", "NEURON_FAIL_ON_NAN": "1"}
HEALED = "has the other's state"
"""What a replica of torchft says when it has taken that over; one of two does it when they begin."""


def torchrun(restarts: int) -> list[str]:
    launcher = ("torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", str(restarts))
    return [sys.executable, "-m", *launcher, "--master-port", str(free_port()), "-m", "neurontools.runtime"]


def train(host: SimulatedHost, directory: Path, launcher: list[str], **variables: str) -> Any:
    return python_process.run(
        [*launcher, str(EXAMPLE), "--directory", str(directory), "--steps", str(STEPS)],
        loaded=python_process.TORCH,
        env=environment(directory, **host.environment, **variables),
        text=True,
    )


def outside_of(host: SimulatedHost, directory: Path) -> dict[str, str]:
    """The variables of programs in the environment of the frameworks, on the host."""
    if not framework_script.PYTHON.exists():
        pytest.skip("other people's frameworks are not installed; run make frameworks")
    return environment(directory, PYTHONPATH="", **host.environment)


def train_by_accelerate(host: SimulatedHost, directory: Path, restarts: int, **variables: str) -> Any:
    launcher = (*framework_script.ACCELERATE, "--multi_gpu", "--num_processes", "2", "--max_restarts", str(restarts))
    script = (str(framework_script.SCRIPTS / "accelerate_resume.py"), "states", str(STEPS))
    return subprocess.run(
        [str(framework_script.PYTHON), *launcher, "--main_process_port", str(free_port()), *script],
        env={**outside_of(host, directory), **variables},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


@pytest.fixture
def start_replica(host: SimulatedHost, tmp_path: Path) -> Iterator[Callable[[int, str], subprocess.Popen[str]]]:
    """Starts processes that train by torchft, each on a core of its own; what one says is in files of its name."""
    environment = outside_of(host, tmp_path)
    with ExitStack() as stack:

        def begin(command: list[str], **options: Any) -> subprocess.Popen[str]:
            python = [str(framework_script.PYTHON), *command]
            process = stack.enter_context(subprocess.Popen(python, text=True, **options))
            stack.callback(process.kill)
            return process

        def start(core: int, name: str) -> subprocess.Popen[str]:
            script = [str(framework_script.SCRIPTS / "torchft_replica.py"), str(core), str(STEPS)]
            own = {"TORCHFT_LIGHTHOUSE": address, "NEURON_RT_VISIBLE_CORES": str(core), **FATAL_VARIABLES}
            with (tmp_path / name).open("w") as output, (tmp_path / f"{name}.errors").open("w") as errors:
                return begin(
                    ["-m", "neurontools.runtime", *script], env=environment | own, stdout=output, stderr=errors
                )

        # Where the replicas find one another; it ends with its standard input.
        lighthouse = begin(
            [str(framework_script.SCRIPTS / "torchft_lighthouse.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert lighthouse.stdout
        address = lighthouse.stdout.readline().strip()
        yield start


def status_name(kind: str) -> str:
    return f"NRT_{KINDS[kind].status.name}({int(KINDS[kind].status)})"


def resumed_at(output: str) -> list[int]:
    """The steps that ranks went on with, each once."""
    return sorted({int(step) for step in re.findall(r"goes on with step (\d+)", output)})


@pytest.fixture
def host(simulated_neuron_host: Callable[..., SimulatedHost]) -> SimulatedHost:
    return simulated_neuron_host("trn1.2xlarge", interval_seconds=0.1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("launcher", "kind", "variables"),
    [
        ("torchrun", "execution-unit-lost", {}),
        ("torchrun", "out-of-bounds", {}),
        ("torchrun", "hang-collective", {"NEURON_RT_EXEC_TIMEOUT": "20"}),
        ("accelerate", "execution-unit-lost", {}),
        ("accelerate", "hang-collective", {"NEURON_RT_EXEC_TIMEOUT": "20"}),
    ],
)
def test_restarts_survive_what_ends_with_the_process(
    host: SimulatedHost, tmp_path: Path, launcher: str, kind: str, variables: dict[str, str]
) -> None:
    with host.fault(kind, core=1, after_executions=17):
        if launcher == "torchrun":
            done = train(host, tmp_path, torchrun(restarts=2), **variables)
        else:
            done = train_by_accelerate(host, tmp_path, restarts=2, **variables)
        assert (done.returncode, resumed_at(done.stdout) != []) == (0, True), done.stderr[-3000:]
        (fault,) = host.faults
        assert (fault.state, fault.met_total) == (FaultState.OVER, 1)
    assert f"step {STEPS}: loss" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hbm-uncorrectable", "dma-abort"])
def test_restarts_do_not_help_against_what_outlives_the_process_and_a_healed_host_goes_on(
    host: SimulatedHost, tmp_path: Path, kind: str
) -> None:
    with host.fault(kind, core=0, after_executions=17):
        done = train(host, tmp_path, torchrun(restarts=1))
        assert done.returncode == 1
        assert f"step {STEPS}: loss" not in done.stdout
        (fault,) = host.faults
        assert (fault.state, fault.met_total) == (FaultState.HOLDS, 2)
        assert host.kernel_log.read_text().count("NEURON_HW_ERR=") == 2
    done = train(host, tmp_path, torchrun(restarts=0))
    assert done.returncode == 0, done.stderr[-3000:]
    assert resumed_at(done.stdout) != []
    assert f"step {STEPS}: loss" in done.stdout


def train_by_trainer(host: SimulatedHost, directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs HuggingFace Trainer, which resumes from its latest checkpoint and writes one at each step."""
    script = [str(framework_script.SCRIPTS / "hf_trainer.py"), str(directory), "latest"]
    own = {"NEURON_RT_NUM_CORES": "1", "MAX_STEPS": "12", "SAVE_STEPS": "1", "HF_HUB_OFFLINE": "1", **FATAL_VARIABLES}
    return subprocess.run(
        [str(framework_script.PYTHON), "-m", "neurontools.runtime", *script],
        env={**outside_of(host, directory), **own},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


@pytest.mark.long
def test_a_trainer_that_meets_fatal_faults_takes_each_step_once(host: SimulatedHost, tmp_path: Path) -> None:
    whole, interrupted = tmp_path / "whole", tmp_path / "interrupted"
    for directory in (whole, interrupted):
        directory.mkdir()
    assert train_by_trainer(host, whole).returncode == 0
    steps = [0]
    for kind in FATAL[1:]:  # each run costs 12 s of CPU
        with host.fault(kind, core=0, after_executions=14):
            done = train_by_trainer(host, interrupted)
            assert done.returncode == 1, (kind, done.stderr[-3000:])
            assert status_name(kind) in done.stderr
            assert host.faults[0].met_total == 1
        steps.append(len(list((interrupted / "checkpoints").glob("checkpoint-*"))))
    done = train_by_trainer(host, interrupted)
    assert done.returncode == 0, done.stderr[-3000:]
    expected, found = (json.loads((directory / "0").read_text()) for directory in (whole, interrupted))
    assert (found["history"], found["weights"]) == (expected["history"], expected["weights"])
    assert all(before < after for before, after in pairwise(steps)), "each run got further before it failed"


@pytest.mark.long
def test_a_replica_of_torchft_that_meets_fatal_faults_takes_each_step_once(
    host: SimulatedHost, start_replica: Callable[[int, str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    def said(name: str) -> list[str]:
        return (tmp_path / name).read_text().splitlines()

    waiting = start_replica(0, "waiting")
    for kind in FATAL:
        with host.fault(kind, core=1, after_executions=11):
            assert start_replica(1, kind).wait(HANG_SECONDS) == 1, said(f"{kind}.errors")
            assert status_name(kind) in "".join(said(f"{kind}.errors"))
    again = start_replica(1, "again")
    assert again.wait(HANG_SECONDS) == 0, said("again.errors")
    assert waiting.wait(HANG_SECONDS) == 0, said("waiting.errors")
    assert all(said(name)[0] == HEALED for name in (*FATAL[1:], "again"))
    waited = [line for line in said("waiting") if line != HEALED]
    assert waited[:-1] == [f"step {step}" for step in range(1, STEPS + 1)]
    others = [line for name in (*FATAL, "again") for line in said(name) if line != HEALED]
    assert others == waited, "the same weights, no step twice, and none left out"


@pytest.mark.slow
def test_a_process_of_its_own_fails_and_goes_on_when_it_is_started_again(host: SimulatedHost, tmp_path: Path) -> None:
    alone = [sys.executable, "-m", "neurontools.runtime"]
    with host.fault("execution-unit-lost", device=0, after_executions=17):
        done = train(host, tmp_path, alone, NEURON_RT_NUM_CORES="1")
        assert done.returncode == 1
        assert "NRT_EXEC_UNIT_UNRECOVERABLE(101)" in done.stderr
        done = train(host, tmp_path, alone, NEURON_RT_NUM_CORES="1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert resumed_at(done.stdout) != []


@pytest.mark.slow
def test_nobody_notices_flipped_bits(host: SimulatedHost, tmp_path: Path) -> None:
    with host.fault("bit-flip", core=0, after_executions=3):
        done = train(host, tmp_path, torchrun(restarts=1))
        assert (done.returncode, resumed_at(done.stdout)) == (0, [])
        assert host.faults[0].met_total == 1
