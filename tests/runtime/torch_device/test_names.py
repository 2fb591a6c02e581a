"""The rule that picks the device's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neurontools.runtime.launch.names import InvalidDeviceName, choose, device_name


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("import torch_xla.core.xla_model as xm", "xla"),
        ("import torch\nx = torch.ones(2, device='neuron')", "neuron"),
        ("import torch\nx = torch.ones(2).to('neuron:1')", "neuron"),
        ("import torch\ntorch.neuron.synchronize()", "neuron"),
        ("import torch\nprint('neuron is a word here')", "xla"),
        ("from torch_xla import core\nx = 'neuron'", "xla"),
        ("import torch_neuronx\nx = 'neuron'", "xla"),
        ("import torch", "xla"),
        ("this is not Python", "xla"),
    ],
)
def test_the_script_decides(tmp_path: Path, script: str, expected: str) -> None:
    path = tmp_path / "script.py"
    path.write_text(script)
    assert device_name({}, path) == expected
    assert device_name({"NEURONTOOLS_DEVICE": "neuron"}, path) == "neuron"


def test_without_a_script_it_is_xla() -> None:
    assert device_name({}, None) == device_name({}, "/no/such/script.py") == "xla"


def test_another_name_is_refused() -> None:
    with pytest.raises(InvalidDeviceName, match="set it to xla or neuron"):
        device_name({"NEURONTOOLS_DEVICE": "cuda"}, None)


NATIVE = """
import copy, pickle, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2)).to("neuron")
value = torch.randn(3, 8)
before = torch.neuron.memory_allocated()
loss = model(value.to("neuron")).sum()
loss.backward()
copy.deepcopy(model); pickle.loads(pickle.dumps(model.state_dict()))
fast = torch.compile(model, backend="neuron")(value.to("neuron"))
assert torch.equal(fast.cpu(), model(value.to("neuron")).cpu())
assert torch.accelerator.current_accelerator().type == "neuron", torch.accelerator.current_accelerator()
torch.neuron.synchronize()
print(loss.device, torch.neuron.device_count(), before, repr(torch.ones(1, device="neuron")))
"""


def test_the_native_device(run_python: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(NATIVE)
    run = run_python("-m", "neurontools.runtime", "script.py", NEURONTOOLS_DEVICE="")
    assert run.returncode == 0, run.stderr
    assert run.stdout == "neuron:0 2 184 tensor([1.], device='neuron:0')\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--device=neuron"], "neuron"),
        (["--device", "neuron:1"], "neuron"),
        (["trainer.accelerator='neuron'"], "neuron"),
        (["--lr", "1", "--device", "xla"], "xla"),
        (["--project", "neuron"], "xla"),
        (["neuron"], "xla"),
        (["--device", "cpu"], "xla"),
        (["--device"], "xla"),
    ],
)
def test_the_command_line_goes_before_the_script(tmp_path: Path, arguments: list[str], expected: str) -> None:
    path = tmp_path / "script.py"
    path.write_text("import argparse, torch\nif False:\n    import torch_xla")
    assert device_name({}, path, arguments) == expected
    path.write_text("import torch\nx = 'neuron'")
    assert device_name({}, path, arguments) == ("xla" if "xla" in arguments else "neuron")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("run.yaml", "model:\n  size: 3\n  device: neuron  # native\n", "neuron"),
        ("run.json", '{"lr": 1,\n "device": "neuron:0"\n}', "neuron"),
        ("run.json", '{"lr": 1, "device": "neuron", "size": 3}', "neuron"),
        ("run.yaml", "# device: neuron", "xla"),
        ("run.toml", 'accelerator = "neuron"', "neuron"),
        ("run.ini", "[run]\ndevice=neuron", "neuron"),
        ("run.yaml", "name: neuron", "xla"),
        ("run.yaml", "device: neuronal", "xla"),
        ("run.txt", "device: neuron", "xla"),
    ],
)
def test_a_configuration_among_the_arguments_says_the_name(tmp_path: Path, name: str, text: str, expected: str) -> None:
    script, path = tmp_path / "script.py", tmp_path / name
    script.write_text("import torch")
    path.write_text(text)
    assert device_name({}, script, ["--config", str(path)]) == expected
    assert device_name({}, script, [f"--config={path}"]) == expected
    assert device_name({}, script, ["--config", str(tmp_path / f"no-{name}")]) == "xla"


ARGUMENT = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--device"); parser.add_argument("--where")
given = parser.parse_args()
print(torch.ones(2, device=given.device or given.where).sum().item())
"""


@pytest.mark.parametrize(("launcher", "name"), [(True, "xla"), (True, "neuron"), (False, "neuron")])
def test_a_script_that_gets_the_name_by_its_command_line(
    run_python: Callable[..., Any], tmp_path: Path, launcher: bool, name: str
) -> None:
    (tmp_path / "script.py").write_text(ARGUMENT)
    way = ("-m", "neurontools.runtime") if launcher else ()
    variables = {"NEURONTOOLS_DEVICE": "", "NEURONTOOLS_RUNTIME": "" if launcher else "1"}
    run = run_python(*way, "script.py", "--device", name, is_started=not launcher, **variables)
    assert (run.returncode, run.stdout) == (0, "2.0\n"), run.stderr


def test_the_error_for_the_other_name_says_the_variable_and_the_reason(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(ARGUMENT)
    run = run_python("-m", "neurontools.runtime", "script.py", "--where", "neuron", NEURONTOOLS_DEVICE="")
    assert run.returncode == 1
    assert "device type at start of device string: neuron" in run.stderr
    assert run.stderr.splitlines()[-1] == (
        "neurontools: torch takes one name for the device in a process, and here it is 'xla', because script.py does "
        "not name neuron; set NEURONTOOLS_DEVICE=neuron to use 'neuron'"
    )
    (tmp_path / "script.py").write_text(ARGUMENT.replace("import argparse", "import torch_xla, argparse"))
    run = run_python("-m", "neurontools.runtime", "script.py", "--where", "neuron", NEURONTOOLS_DEVICE="")
    assert "here it is 'xla', because script.py imports torch_xla;" in run.stderr.splitlines()[-1]
    run = run_python("-m", "neurontools.runtime", "script.py", "--where", "nothing", NEURONTOOLS_DEVICE="")
    assert "torch takes one name" not in run.stderr
    assert choose({"NEURONTOOLS_DEVICE": "xla"}, None).reason == "NEURONTOOLS_DEVICE=xla"
