"""Which bytes of HBM are constants: the parameters and buffers of modules, on all the ways they come and go."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
import torch
from torch import nn


def nbytes(tensors: Any) -> int:
    return sum(t.nbytes for t in tensors)


def own(module: nn.Module) -> int:
    return nbytes([*module.parameters(), *module.buffers()])


@pytest.fixture
def added(xla: Any) -> Any:
    """A function that says how many bytes of constants and tensors there are more than when the test began."""
    from neurontools.runtime.tensors.memory import Category

    def levels() -> tuple[int, int]:
        gc.collect()  # what other tests left in cycles
        xla.flush_all("Test")
        memory = xla.cores[0].memory
        return memory.levels[Category.CONSTANTS], memory.levels[Category.TENSORS]

    constants, tensors = levels()
    return lambda: (levels()[0] - constants, levels()[1] - tensors)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))


def test_training(xla: Any, added: Any) -> None:
    made = model()
    size, gradients = own(made), nbytes(made.parameters())
    made.to("xla")
    assert added() == (size, 0)
    made(torch.randn(4, 8).to("xla")).sum().backward()
    assert added() == (size, gradients)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9)
    optimizer.step()
    assert added() == (size, 2 * gradients)
    optimizer.zero_grad()
    assert added() == (size, gradients)


def test_parameters_that_get_other_bytes(xla: Any, added: Any) -> None:
    made = model().to("xla")
    size = own(made)
    for parameter in made.parameters():
        parameter.data = parameter.data - 1.0
    assert added() == (size, 0)
    weight = next(made.parameters())
    old = weight.data
    weight.data = torch.zeros(8, 8, device="xla")
    assert added() == (size, old.nbytes)
    del old
    assert added() == (size, 0)


def test_state_dicts(xla: Any, added: Any) -> None:
    made = model().to("xla")
    size = own(made)
    state = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    assert added() == (size, size)
    made.load_state_dict(state, assign=True)
    del state
    assert added() == (size, 0)
    made.load_state_dict({name: tensor.cpu() for name, tensor in made.state_dict().items()})
    assert added() == (size, 0)


def test_copies_of_a_model_are_models(xla: Any, added: Any) -> None:
    made = model().to("xla")
    size = own(made)
    copied = copy.deepcopy(made)
    assert added() == (2 * size, 0)
    copied = pickle.loads(pickle.dumps(made))
    assert added() == (2 * size, 0)
    del copied
    average = [p.detach().clone() for p in made.parameters()]
    assert added() == (size, nbytes(average))


def test_conversions_and_leaving(xla: Any, added: Any) -> None:
    made = model().to("xla")
    size = own(made)
    made.half()
    assert added() == (own(made), 0)
    assert own(made) < size
    made.cpu()
    assert added() == (0, 0)


def test_made_on_the_device(xla: Any, added: Any) -> None:
    with torch.device("xla"):
        made = nn.BatchNorm1d(4)
    assert added() == (own(made), 0)
    made.running_mean = torch.ones(4, device="xla")
    assert added() == (own(made), 0)


def test_lazy_parameters(xla: Any, added: Any) -> None:
    made = nn.LazyLinear(3).to("xla")
    made(torch.ones(1, 2).to("xla"))
    assert made.weight.shape == (3, 2)
    assert added() == (own(made), 0)
