"""Exceptions in hooks of backward, where stock torch would end the process, and Ctrl-C at any moment."""

from __future__ import annotations

import ctypes
import linecache
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import methodcaller
from random import Random
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from neurontools.runtime.capture.replay import replayer
from neurontools.runtime.tensors.buffers import buffers
from tests.harness.waiting import HANG_SECONDS

Tensor = torch.Tensor


class Broken(BaseException):
    """As an interrupt, which is no Exception either."""


def broken(*_: Any) -> Any:
    raise Broken("by the hook")


def leaf() -> Tensor:
    return torch.ones(3, device="xla", requires_grad=True)


def hooked(register: Callable[[Tensor], object], *, is_leaf: bool = True) -> Tensor:
    value = leaf() if is_leaf else leaf() * 2
    register(value)
    return (value * 2).sum()


def in_module(method: str) -> Tensor:
    module = nn.Linear(3, 3).to("xla")
    getattr(module, method)(broken)
    return module(leaf()).sum()  # type: ignore[no-any-return]


def of_several() -> Tensor:
    values = [leaf(), leaf()]
    torch.autograd.graph.register_multi_grad_hook(values, broken)
    return (values[0] * values[1]).sum()


def of_saved_tensors() -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda value: value, broken):
        value = leaf()
        return (value * value).sum()


class BrokenFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise Broken("by the hook")


def recomputed(*, reentrant: bool) -> Tensor:
    calls = []

    def layer(value: Tensor) -> Tensor:
        calls.append(value)
        return value.sin() if len(calls) == 1 else broken()

    return checkpoint(layer, leaf() * 1, use_reentrant=reentrant).sum()  # type: ignore[no-any-return]


CASES: dict[str, Callable[[], Tensor]] = {
    "tensor": lambda: hooked(lambda value: value.register_hook(broken)),
    "intermediate": lambda: hooked(lambda value: value.register_hook(broken), is_leaf=False),
    "accumulated": lambda: hooked(lambda value: value.register_post_accumulate_grad_hook(broken)),
    "several": of_several,
    "module": lambda: in_module("register_full_backward_hook"),
    "before module": lambda: in_module("register_full_backward_pre_hook"),
    "saved tensors": of_saved_tensors,
    "function": lambda: BrokenFunction.apply(leaf()).sum(),  # type: ignore[no-untyped-call]
    "checkpoint": lambda: recomputed(reentrant=False),
    "reentrant checkpoint": lambda: recomputed(reentrant=True),
}


@pytest.mark.parametrize("case", CASES)
def test_the_exception_is_the_hooks_own(xla: Any, case: str) -> None:
    for _ in range(2):
        with pytest.raises(Broken, match="by the hook"):
            CASES[case]().backward()
    with ThreadPoolExecutor(1) as pool, pytest.raises(Broken):  # autograd has other threads there
        pool.submit(lambda: CASES[case]().backward()).result()
    value = leaf()
    (value * 3).sum().backward()
    assert value.grad is not None
    assert value.grad.tolist() == [3.0] * 3


def test_of_gradients_and_saved_tensors_that_are_asked_for(xla: Any) -> None:
    value = leaf()
    value.register_hook(broken)
    with pytest.raises(Broken):
        torch.autograd.grad((value * 2).sum(), value)
    with torch.autograd.graph.saved_tensors_hooks(lambda value: value, broken):
        value = leaf()
        node: Any = (value * value).grad_fn
    with pytest.raises(Broken):
        node._saved_self  # noqa: B018


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


def is_in_engine(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "run_guarded":
        frame = frame.f_back
    return frame is not None


def raise_broken(number: int, _frame: object) -> None:
    raise Broken(f"by signal {number}")


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, Broken)], ids=["SIGINT", "SIGALRM"]
)
@pytest.mark.parametrize("place", ["capture", "operators", "tensors"])
def test_a_signal_while_the_engine_calls_the_runtime_raises_when_backward_has_ended(
    xla: Any, place: str, number: signal.Signals, raised: type[BaseException]
) -> None:
    def strike(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and f"/{place}/" in frame.f_code.co_filename and is_in_engine(frame.f_back):
            sys.setprofile(None)
            signal.raise_signal(number)

    replayer.drop_all_traces()
    weight = torch.ones(4, 4, device="xla", requires_grad=True)
    value = (weight @ weight).relu().sum()
    before = signal.getsignal(number)
    handler = signal.default_int_handler if number == signal.SIGINT else raise_broken
    signal.signal(number, handler)
    try:
        sys.setprofile(strike)
        with pytest.raises(raised):
            value.backward()
        assert sys.getprofile() is None, "it was never in that place"
        assert signal.getsignal(number) == handler
    finally:
        sys.setprofile(None)
        signal.signal(number, before)
    (weight @ weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.sum().item() > 0


def wait_for_a_signal() -> None:
    for _ in range(int(10 * HANG_SECONDS)):  # a signal that comes just before one wait is handled after it
        threading.Event().wait(0.1)


def interrupted_before(call: Callable[[], object]) -> None:
    """All in one call of C: the signal comes, then the call is made, and not before that Python looks for signals."""
    interrupt = partial(ctypes.CDLL(None)["raise"], signal.SIGINT)
    deque(map(methodcaller("__call__"), [interrupt, call]), maxlen=0)
    wait_for_a_signal()


def interrupted_by_a_thread() -> None:
    main: Any = threading.main_thread().ident
    threading.Thread(target=signal.pthread_kill, args=(main, signal.SIGINT)).start()
    wait_for_a_signal()


def train_with_hooks_that_raise(where: str, mark: Callable[[], None]) -> tuple[list[str], list[Tensor]]:
    drawn = Random(0)

    def hook(name: str, *_: Any) -> None:
        if drawn.random() < 0.15:
            raise Broken(name)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(where)
    model[1].register_forward_hook(partial(hook, "forward"))
    model[2].register_full_backward_hook(partial(hook, "backward"))
    nn.Module.get_parameter(model, "0.weight").register_hook(partial(hook, "gradient"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.register_step_pre_hook(partial(hook, "step"))
    caught = []
    for step in range(60):
        optimizer.zero_grad()
        value = torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).to(where)
        try:
            model(value).pow(2).mean().backward()
            optimizer.step()
        except Broken as error:
            caught.append(str(error))
        mark()
    return caught, [parameter.detach().cpu() for parameter in model.parameters()]


def test_hooks_that_raise_in_a_training_cost_what_they_cost_on_the_cpu(xla: Any) -> None:
    failed = xla.cores[0].statistics.failed_executions_total
    (expected, weights), (caught, got) = (
        train_with_hooks_that_raise(where, lambda: xla.flush_all("Test")) for where in ("cpu", "xla")
    )
    assert set(expected) == {"forward", "backward", "gradient", "step"}
    assert caught == expected
    assert all(torch.equal(a, b) for a, b in zip(got, weights, strict=True))
    assert xla.cores[0].statistics.failed_executions_total == failed


def test_an_interrupt_that_comes_while_storage_dies_or_the_script_waits_is_raised(xla: Any) -> None:
    tensors = [torch.ones(2).to("xla") for _ in range(3)]
    with pytest.raises(KeyboardInterrupt):
        interrupted_before(tensors.clear)
    assert not tensors
    with pytest.raises(KeyboardInterrupt):
        interrupted_by_a_thread()


@pytest.mark.parametrize("operator", [torch.matmul, torch.add, torch.Tensor.view_as])
def test_an_interrupt_is_raised_after_torch_has_asked_for_the_guard(xla: Any, operator: Callable[..., Tensor]) -> None:
    """torch asks for the device's guard where nothing may raise: an exception there ends the process."""
    weight = torch.ones(4, 4, device="xla", requires_grad=True)
    operator(weight, weight)
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        interrupted_before(partial(operator, weight, weight))
    assert operator(weight, weight).sum().item() > 0


@pytest.mark.filterwarnings("ignore:Exception ignored in PyObject_HasAttr:pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_is_sent_again_if_c_code_clears_its_error(xla: Any) -> None:
    """PyObject_HasAttrString clears each error of a getter. This getter is C code that raises the signal itself."""
    number = type("Number", (int,), {"sent": property(signal.raise_signal)})(signal.SIGINT)
    found = []

    def clear_the_error() -> None:
        found.append(ctypes.pythonapi.PyObject_HasAttrString(ctypes.py_object(number), b"sent"))
        wait_for_a_signal()

    with pytest.raises(KeyboardInterrupt):
        clear_the_error()
    assert found == [0]


_RECORDING = ("/capture/", "/tensors/", "/operators/", "<traced call>")


def _interrupted_at(line: int, do: Callable[[], Any]) -> bool:
    """Whether the n-th line of the runtime was reached, where a KeyboardInterrupt is raised."""
    left = line

    def strike(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if not any(place in frame.f_code.co_filename for place in _RECORDING):
            return None
        # Python looks for no signals where a block begins or ends, and an exception there would be in none.
        words = linecache.getline(frame.f_code.co_filename, frame.f_lineno).split()
        if event == "line" and words[:1] not in (["with"], ["try:"]):
            left -= 1
            if not left:
                sys.settrace(None)
                raise KeyboardInterrupt
        return strike

    sys.settrace(strike)
    try:
        do()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("steps_before", [0, 2, 6], ids=["recorded", "observed", "followed"])
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_at_any_line_of_recording_leaves_no_half_recorded_operator(
    xla: Any, steps_before: int, every: int
) -> None:
    value, other = torch.randn(3, 4), torch.randn(4)
    there, other_there = value.to("xla"), other.to("xla")

    def step(value: Tensor, other: Tensor) -> Tensor:
        return (value.mul(2.5) + other).relu().max(1)[0].sub(other[1:2])

    expected = step(value, other)
    line = 0
    is_struck = True
    while is_struck:
        line += every
        replayer.drop_all_traces()
        for _ in range(steps_before):
            result = step(there, other_there)
            xla.flush_all("Test")
            del result
        is_struck = _interrupted_at(line, lambda: step(there, other_there))
        kept = step(there, other_there)
        again = step(there, other_there)
        xla.flush_all("Test")
        assert torch.equal(kept.cpu(), expected), line
        assert torch.equal(again.cpu(), expected), line
    assert line > 40
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(buffers.lock.acquire, blocking=False).result(), "the runtime's lock was never given back"
        pool.submit(buffers.lock.release).result()
