"""The rule that picks the device's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neurontools.runtime.launch.names import InvalidDeviceName, device_name


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
