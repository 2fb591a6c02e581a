"""What `import torch` and `import torch_xla` do in a Python that starts with the .pth file of the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.paths import ROOT
from tests.harness.waiting import run_to_end

pytest.importorskip("torch")
PTH = ROOT / "scripts" / "neurontools.pth"
BEGIN = "import site, sys; site.addsitedir(sys.argv[1])\n"  # what the start of Python does with site-packages
OURS = "print(*sorted(name for name in sys.modules if name.partition('.')[0] == 'neurontools'))"
WHICH = "from importlib import util; print('ours' if 'neurontools' in util.find_spec('torch_xla').origin else 'real')"
WORKER = {"TORCHELASTIC_RUN_ID": "x"}


@pytest.fixture
def site_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "site"
    directory.mkdir()
    (directory / PTH.name).write_text(PTH.read_text())
    return directory


PACKAGES = (
    "neurontools",
    "neurontools.runtime",
    "neurontools.runtime.startup",
    "neurontools.util",
    "neurontools.util.light_imports",
)


def python(site_directory: Path, code: str, *paths: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("NEURON", "TORCHELASTIC", "PYTHONPATH"))}
    path = os.pathsep.join(map(str, (ROOT, *paths)))
    return run_to_end(
        [sys.executable, "-c", BEGIN + code, str(site_directory)],
        env={**inherited, "PYTHONPATH": path, "NEURONTOOLS_SOCKET": str(site_directory / "none.sock"), **environment},
    )


def test_only_workers_load_anything_and_that_is_little(site_directory: Path) -> None:
    for environment in ({}, {"NEURONTOOLS_RUNTIME": "0", **WORKER}):
        assert python(site_directory, OURS, **environment).stdout.split() == []
    loaded = python(site_directory, OURS, **WORKER).stdout.split()
    assert sorted(loaded) == sorted([*PACKAGES, "neurontools.runtime.startup.torch_xla_path"])
    assert "No module named 'torch_xla'" in python(site_directory, "import torch_xla").stderr


@pytest.mark.slow
def test_import_torch_stays_as_it_is_without_an_opt_in(site_directory: Path) -> None:
    loaded = python(site_directory, f"import torch; {OURS}").stdout.split()
    assert set(loaded) <= {*PACKAGES, "neurontools.runtime.startup.torch_autoload"}


@pytest.mark.slow
def test_an_opt_in_brings_the_runtime(site_directory: Path) -> None:
    loaded = python(site_directory, f"import torch; {OURS}", NEURONTOOLS_RUNTIME="1").stdout.split()
    assert "neurontools.runtime.launch.import_hook" in loaded


@pytest.mark.parametrize(
    ("package", "opt_in"),
    [
        ("torch_xla", WORKER),
        pytest.param("torch_xla", {"NEURONTOOLS_RUNTIME": "1"}, marks=pytest.mark.slow),
        pytest.param("torch_neuronx", WORKER, marks=pytest.mark.slow),
        pytest.param("torch_neuronx", {"NEURONTOOLS_RUNTIME": "1"}, marks=pytest.mark.slow),
    ],
)
def test_the_first_import_may_be_ours(site_directory: Path, package: str, opt_in: dict[str, str]) -> None:
    code = f"import {package}, torch; print(torch.ones(2, device='xla').tolist())"
    done = python(site_directory, code, NEURON_COMPILE_CACHE_URL=str(site_directory / "cache"), **opt_in)
    assert done.stdout == "[1.0, 1.0]\n", done.stderr


def test_a_real_torch_xla_is_not_shadowed_unless_ours_is_forced(site_directory: Path, tmp_path: Path) -> None:
    real = tmp_path / "real" / "torch_xla"
    real.mkdir(parents=True)
    (real / "__init__.py").write_text("")
    run = python(site_directory, WHICH, real.parent, **WORKER)
    assert run.stdout == "real\n", run.stderr
    forced = python(site_directory, WHICH, real.parent, NEURONTOOLS_FORCE_TORCH_XLA="1", **WORKER)
    assert forced.stdout == "ours\n", forced.stderr
    without = python(site_directory, WHICH, **WORKER)
    assert without.stdout == "ours\n", without.stderr


@pytest.mark.slow
def test_a_training_imports_dynamo_and_sympy_only_when_it_compiles(site_directory: Path) -> None:
    code = """
import threading, torch_xla, torch
def weights(device, compiled):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, foreach=False)
    step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4, device=device)).pow(2)[0].clamp(min=0).mean().backward()
        step()
    return [p.tolist() for p in model.parameters()]
equal = [weights("cpu", False) == weights("xla", False)]
print("torch._dynamo" in sys.modules, "sympy" in sys.modules)
importing = threading.Thread(target=__import__, args=["torch._dynamo"])
importing.start()
while importing.is_alive():  # steps go on while another thread has Dynamo half imported
    weights("xla", False)
equal.append(weights("cpu", True) == weights("xla", True))
def halves(device): return torch.compile(lambda x: x[: len(x) // 2] * 2, backend="eager", dynamic=True)(
    torch.arange(6.0, device=device)).tolist()
print("torch._dynamo" in sys.modules, *equal, halves("cpu") == halves("xla") == [0, 2, 4])
"""
    done = python(site_directory, code, NEURONTOOLS_RUNTIME="1", NEURON_COMPILE_CACHE_URL=str(site_directory / "cache"))
    assert done.stdout.split() == ["False", "False", *["True"] * 4], done.stderr
