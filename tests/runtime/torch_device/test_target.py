"""Compiler flags against the host, graphs that are only extracted, and compilations that failed before."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from neurontools.nrt.status import NrtStatus
from neurontools.runtime.execution.failure import ExecutionFailed
from neurontools.runtime.execution.target import check_load, neuroncore_version
from neurontools.runtime.programs.compiler_flags import InvalidCompilerFlags, parse

Run = Callable[..., "subprocess.CompletedProcess[str]"]
LEGACY = {"NEURON_RT_ALLOW_LEGACY_NEFF": "1"}


@pytest.mark.parametrize(
    ("flags", "instance_type", "lnc", "environment"),
    [
        ("", "trn1.32xlarge", 1, {}),
        ("--target trn1", "trn1.32xlarge", 1, {}),
        ("--target inf2", "trn1n.32xlarge", 1, {}),
        ("--target trn2", None, None, {}),
        ("--target trn2 -lnc 2", "trn2u.48xlarge", 2, {}),
        ("--target trn1", "trn2.48xlarge", 2, LEGACY),
        ("--target trn1", "a-type-of-tomorrow", 1, {}),
    ],
)
def test_what_loads(flags: str, instance_type: str | None, lnc: int | None, environment: dict[str, str]) -> None:
    check_load(parse(flags), "MODULE_1", instance_type, lnc, environment)


@pytest.mark.parametrize(
    ("flags", "instance_type", "lnc", "environment", "status", "text"),
    [
        ("--target trn2", "trn1.32xlarge", 1, LEGACY, 10, "compiled with --target trn2, this host is a trn1.32xlarge"),
        ("--target trn1", "trn2.48xlarge", 2, {}, 10, "or set NEURON_RT_ALLOW_LEGACY_NEFF=1"),
        (
            "-lnc 2",
            "trn2.48xlarge",
            1,
            {},
            2,
            "Logical Core Size of 2. Runtime is currently configured with NEURON_LOGICAL",
        ),
    ],
)
def test_what_does_not_load(
    flags: str, instance_type: str, lnc: int, environment: dict[str, str], status: int, text: str
) -> None:
    with pytest.raises(ExecutionFailed) as refused:
        check_load(parse(flags), "MODULE_1", instance_type, lnc, environment)
    assert refused.value.status == NrtStatus(status)
    assert text in str(refused.value)


def test_versions_of_all_types() -> None:
    from neurontools.catalog import names

    assert all(neuroncore_version(name) is not None for name in names())


def test_a_size_that_a_target_does_not_have() -> None:
    with pytest.raises(InvalidCompilerFlags, match="trn1 has no logical NeuronCores of 2"):
        parse("--target trn1 -lnc 2")


SCRIPT = """
import torch, torch_xla, torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
x = torch.ones(3).to(xm.xla_device())
y = x * 2 + 1
x.add_(5)
xm.mark_step()
print(y.tolist(), x.tolist(), met.counter_value("UncachedCompile"), met.counter_value("ExecuteComputation"))
"""


@pytest.fixture
def script(run_python: Run, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        variables = {"NEURON_COMPILE_CACHE_URL": str(tmp_path / "cache"), **environment}
        return run_python("-m", "neurontools.runtime", str(path), **variables)

    return run


def test_extracted_graphs_are_compiled_and_not_executed(
    script: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    extracted = script(NEURON_EXTRACT_GRAPHS_ONLY="1")
    assert extracted.stdout == "[0.0, 0.0, 0.0] [1.0, 1.0, 1.0] 1 None\n", extracted.stderr
    assert script().stdout == "[3.0, 3.0, 3.0] [6.0, 6.0, 6.0] None 1\n"


def test_a_compilation_that_failed_is_not_tried_again(
    script: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    assert script().returncode == 0
    (entry,) = tmp_path.glob("cache/*/MODULE_*")
    (entry / "model.done").unlink()
    (entry / "model.neff").unlink()
    (entry / "model.log").write_text("the compiler ran out of memory")
    again = script()
    assert again.returncode == 1
    assert f"Got a cached failed neff at {entry}/model.neff. Will skip compilation, please set" in again.stderr
    assert "could not be compiled before (the compiler ran out of memory)" in again.stderr
    retried = script(NEURON_CC_FLAGS="--retry_failed_compilation")
    assert retried.stdout == "[3.0, 3.0, 3.0] [6.0, 6.0, 6.0] 1 1\n", retried.stderr
    assert not (entry / "model.log").exists()
