"""Exceptions in hooks of backward come out of backward, where stock torch would end the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Broken(Exception):
    pass


def broken(*_: Any) -> Any:
    raise Broken("by the hook")


def leaf() -> torch.Tensor:
    return torch.ones(3, device="xla", requires_grad=True)


def of_tensor() -> torch.Tensor:
    value = leaf()
    value.register_hook(broken)
    return (value * 2).sum()


def of_intermediate() -> torch.Tensor:
    value = leaf() * 2
    value.register_hook(broken)
    return value.sum()


def after_accumulation() -> torch.Tensor:
    value = leaf()
    value.register_post_accumulate_grad_hook(broken)
    return (value * 2).sum()


def of_several() -> torch.Tensor:
    values = [leaf(), leaf()]
    torch.autograd.graph.register_multi_grad_hook(values, broken)
    return (values[0] * values[1]).sum()


def of_module() -> torch.Tensor:
    module = nn.Linear(3, 3).to("xla")
    module.register_full_backward_hook(broken)
    return module(leaf()).sum()  # type: ignore[no-any-return]


def before_module() -> torch.Tensor:
    module = nn.Linear(3, 3).to("xla")
    module.register_full_backward_pre_hook(broken)
    return module(leaf()).sum()  # type: ignore[no-any-return]


def of_saved_tensors() -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda value: value, broken):
        value = leaf()
        return (value * value).sum()


def of_function() -> torch.Tensor:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            return value * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            raise Broken("by the hook")

    return Function.apply(leaf()).sum()  # type: ignore[no-any-return, no-untyped-call]


def recomputed(*, reentrant: bool) -> torch.Tensor:
    calls = []

    def layer(value: torch.Tensor) -> torch.Tensor:
        calls.append(value)
        return value.sin() if len(calls) == 1 else broken()

    return checkpoint(layer, leaf() * 1, use_reentrant=reentrant).sum()  # type: ignore[no-any-return]


CASES: dict[str, Callable[[], torch.Tensor]] = {
    "tensor": of_tensor,
    "intermediate": of_intermediate,
    "accumulated": after_accumulation,
    "several": of_several,
    "module": of_module,
    "before module": before_module,
    "saved tensors": of_saved_tensors,
    "function": of_function,
    "checkpoint": lambda: recomputed(reentrant=False),
    "reentrant checkpoint": lambda: recomputed(reentrant=True),
}


@pytest.mark.parametrize("case", CASES)
def test_the_exception_is_the_hooks_own(xla: Any, case: str) -> None:
    for _ in range(2):
        with pytest.raises(Broken, match="by the hook"):
            CASES[case]().backward()
    value = leaf()
    (value * 3).sum().backward()
    assert value.grad is not None
    assert value.grad.tolist() == [3.0] * 3


def test_of_gradients_that_are_asked_for(xla: Any) -> None:
    value = leaf()
    value.register_hook(broken)
    with pytest.raises(Broken):
        torch.autograd.grad((value * 2).sum(), value)


def test_an_interrupt_is_no_exception_and_comes_out_too(xla: Any) -> None:
    def interrupted(_: torch.Tensor) -> None:
        raise KeyboardInterrupt

    value = leaf()
    value.register_hook(interrupted)
    with pytest.raises(KeyboardInterrupt):
        (value * 2).sum().backward()


def test_hooks_work_as_ever(xla: Any) -> None:
    value = leaf()
    seen = []
    value.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad is not None))
    handle = value.register_hook(lambda gradient: gradient * 10)
    (value * 2).sum().backward()
    handle.remove()
    (value * 2).sum().backward()
    assert value.grad is not None
    assert (value.grad.tolist(), seen) == ([22.0] * 3, [True, True])
    value.register_hook(lambda gradient: torch.ones(7))
    with pytest.raises(RuntimeError, match="has changed the type of value"):
        (value * 2).sum().backward()


def test_a_saved_tensor_that_is_looked_at_outside_of_backward(xla: Any) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda value: value, broken):
        value = leaf()
        node: Any = (value * value).grad_fn
    with pytest.raises(Broken):
        node._saved_self  # noqa: B018


def test_backward_of_a_thread_of_the_script(xla: Any) -> None:
    """Autograd would give the device threads of its own there."""
    caught: list[BaseException] = []

    def train() -> None:
        try:
            of_tensor().backward()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert [type(error) for error in caught] == [Broken]
