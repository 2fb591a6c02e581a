"""`python -m campaign.program_worker NAME SEED COUNT` compares random training programs with the CPU, bit by bit.

It runs COUNT programs, with the seeds SEED, SEED + 1 and so on, on a device with this name, `xla` or `neuron`. It
prints one line of JSON for each program. It shortens a program that differs from the CPU, and exits with 1.
"""

from __future__ import annotations

import copy
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from neurontools.runtime.launch.install import install_runtime
from neurontools.runtime.tensors.device import device

_ROUNDS = 8
_MOST_ELEMENTS = 512

Step = tuple[str, int, int, int]


@dataclass(frozen=True)
class Program:
    """Steps that each round repeats with other values. In round R, `changes[R]` replaces one of the steps.

    In every fourth round, the pending graph is also executed after the steps at `marks`.
    """

    steps: tuple[Step, ...]
    changes: dict[int, tuple[int, Step]]
    marks: frozenset[int]
    optimizer: str


def main(arguments: list[str]) -> int:
    """Runs the programs. Returns 1 if one differs from the CPU."""
    name, first_seed, count = arguments[0], int(arguments[1]), int(arguments[2])
    install_runtime()
    torch.set_num_threads(1)
    exit_code = 0
    for seed in range(first_seed, first_seed + count):
        program = random_program(Random(seed))
        difference = find_difference(program, name)
        if difference is not None:
            exit_code = 1
            program, difference = shortened(program, difference, lambda shorter: find_difference(shorter, name))
            difference = f"{difference}; {program}"
        print(json.dumps({"seed": seed, "difference": difference}), flush=True)
    return exit_code


def random_program(random: Random) -> Program:
    """Returns a program that depends only on the random generator."""

    def step() -> Step:
        return random.choice(sorted(OPERATIONS)), random.randrange(10), random.randrange(10), random.randint(-3, 5)

    steps = tuple(step() for _ in range(random.randint(3, 25)))
    changes = {random.randrange(4, _ROUNDS): (random.randrange(len(steps)), step()) for _ in range(random.randrange(3))}
    marks = frozenset(random.sample(range(len(steps)), random.randrange(3)))
    return Program(steps, changes, marks, random.choice(("SGD", "AdamW", "Adagrad")))


def shortened(program: Program, difference: str, find: Callable[[Program], str | None]) -> tuple[Program, str]:
    """Removes changes, marks and steps of a differing program as long as it differs."""
    simpler = [replace(program, changes={}), replace(program, marks=frozenset())]
    shorter = [replace(program, steps=program.steps[:n] + program.steps[n + 1 :]) for n in range(len(program.steps))]
    for candidate in (*simpler, *shorter):
        if candidate != program and (found := find(candidate)) is not None:
            return shortened(candidate, found, find)
    return program, difference


def find_difference(program: Program, name: str) -> str | None:
    """Runs a program on the CPU and on the device. Returns their first difference, or None."""
    expected = _results(program, "cpu", lambda: None)
    found = _results(program, name, lambda: device.flush_all("Campaign"))
    for number, (own, its) in enumerate(zip(expected, found, strict=True)):
        difference = f"{len(its)} results instead of {len(own)}" if len(own) != len(its) else None
        for one, other in zip(own, its, strict=False):
            difference = difference or _compared(one, other)
        if difference is not None:
            return f"round {number}: {difference}"
    return None


def _compared(expected: Any, found: Any) -> str | None:
    if not isinstance(expected, tuple) or not isinstance(found, tuple):
        return None if expected == found else f"{found} instead of {expected}"
    if expected[0] != found[0]:
        return f"{found[0]} instead of {expected[0]}"
    one, other = expected[1], found[1]
    if bool(((one == other) | (one.isnan() & other.isnan())).all()):
        return None
    return f"{found[0]}: values differ by {(one.double() - other.double()).abs().nan_to_num().max().item():.3g}"


def _results(program: Program, where: str, mark: Callable[[], None]) -> list[list[Any]]:
    generator = torch.Generator().manual_seed(99)
    parameters = [torch.nn.Parameter(torch.randn(rows, 4, generator=generator).to(where)) for rows in (3, 1)]
    optimizer = getattr(torch.optim, program.optimizer)(parameters, lr=0.01)
    results = []
    for number in range(_ROUNDS):
        torch.manual_seed(number)
        optimizer.zero_grad(set_to_none=number != 5)
        own = Round(where, parameters, number)
        changed_at, other = program.changes.get(number, (-1, None))
        for position, step in enumerate(program.steps):
            own.apply(other if position == changed_at and other is not None else step)
            if position in program.marks and number % 4 == 3:
                mark()
        own.train(optimizer)
        mark()
        results.append(own.results())
        for hook in own.hooks:
            hook.remove()
    return results


class Round:
    """The tensors of one round, and in `seen` what a script reads of them meanwhile."""

    def __init__(self, where: str, parameters: list[Any], number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        self.where = where
        self.parameters = parameters
        self.values: list[Any] = [*parameters, *(torch.randn(n, 4, generator=generator).to(where) for n in (3, 4))]
        self.hooks: list[Any] = []
        self.seen: list[Any] = []

    def apply(self, step: Step) -> None:
        """Applies an operation to two of the values, and adds its result to them. Keeps the type of an error."""
        name, i, j, n = step
        if not self.values:
            return
        try:
            result = OPERATIONS[name](self, self.values[i % len(self.values)], self.values[j % len(self.values)], n)
        except Exception as error:
            self.seen.append(f"{name}: {type(error).__name__}")
            return
        if result is not None and result.numel() <= _MOST_ELEMENTS:
            self.values.append(result)

    def train(self, optimizer: Any) -> None:
        """Makes a backward pass from all values that have a history, and a step of the optimizer."""
        try:
            losses: list[Any] = [value.float().sum() for value in self.values if value.grad_fn is not None]
            if losses:
                sum(losses[1:], losses[0]).backward()
            optimizer.step()
        except Exception as error:
            self.seen.append(f"training: {type(error).__name__}")

    def results(self) -> list[Any]:
        """Returns what was seen, and copies of all values, parameters and gradients."""
        values = [*self.values, *self.parameters]
        return [*self.seen, *map(_description, values), *map(_gradient_description, values)]


def _description(value: Any) -> Any:
    try:
        kind = (tuple(value.shape), value.stride(), str(value.dtype), value.requires_grad, value.is_leaf)
    except RuntimeError as error:  # a view that an in-place operator made invalid
        return type(error).__name__
    return kind, value.detach().to("cpu", copy=True)


def _gradient_description(value: Any) -> Any:
    try:
        gradient = value.grad if value.is_leaf or value.retains_grad else None
    except RuntimeError as error:
        return type(error).__name__
    return None if gradient is None else _description(gradient)


Operation = Callable[[Round, Any, Any, int], Any]


def _pure(function: Callable[[Any, Any, int], Any]) -> Operation:
    return lambda _own, value, other, n: function(value, other, n)


def _change(function: Callable[[Any, Any, int], Any]) -> Operation:
    def apply(_own: Round, value: Any, other: Any, n: int) -> None:
        function(value, other, n)

    return apply


def _without_gradient(function: Callable[[Any, Any, int], Any]) -> Operation:
    def apply(_own: Round, value: Any, other: Any, n: int) -> None:
        with torch.no_grad():
            function(value, other, n)

    return apply


def _under_autocast(own: Round, value: Any, other: Any, n: int) -> Any:
    with torch.autocast(own.where, torch.bfloat16):
        hidden = functional.linear(value, other).relu()
        return torch.mm(hidden, hidden.t()) + n


def _saved_on_host(own: Round, value: Any, other: Any, _n: int) -> Any:
    # save_on_cpu would not copy the tensors of the CPU.
    hooks = lambda tensor: tensor.to("cpu", copy=True), lambda tensor: tensor.to(own.where)
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        return (value * other).sigmoid()


def _checkpointed(_own: Round, value: Any, other: Any, n: int) -> Any:
    return checkpoint(lambda a, b: (a * b).tanh() * n, value, other, use_reentrant=False)


def _new_data(_own: Round, value: Any, other: Any, _n: int) -> None:
    """Replaces the data by others of this shape, else a backward pass reads beyond them. Leaves out views.

    If a base was changed in place, its views get a new history, which is by strides on the CPU, and else by operators.
    """
    if value.shape == other.shape and not value._is_view():  # noqa: SLF001
        value.data = other.data.clone()


def _loaded(_own: Round, value: Any, _other: Any, _n: int) -> Any:
    file = io.BytesIO()
    torch.save(value.detach(), file)
    file.seek(0)
    return torch.load(file)


def _hook(own: Round, value: Any, _other: Any, n: int) -> None:
    value.grad_fn  # noqa: B018  (stock torch crashes in register_hook of a view for which this raises an error)
    own.hooks.append(value.register_hook(lambda gradient: gradient * n))


def _leaf_hook(own: Round, value: Any, _other: Any, n: int) -> None:
    own.hooks.append(value.register_post_accumulate_grad_hook(lambda leaf: leaf.grad.add_(n)))


def _backward(_own: Round, value: Any, _other: Any, _n: int) -> None:
    value.float().square().sum().backward(retain_graph=True)


def _gradient(own: Round, value: Any, _other: Any, n: int) -> Any:
    """Returns a gradient; for a double backward pass, with a history of its own if n is positive."""
    found = torch.autograd.grad(
        value.float().square().sum(), own.parameters, retain_graph=True, create_graph=n > 0, allow_unused=True
    )
    return next((gradient for gradient in found if gradient is not None), None)


def _rows(value: Any, n: int) -> Any:
    return torch.tensor([0, n % len(value)], device=value.device)


def _of_shape(value: Any, shape: Any) -> Any:
    """Returns the tensor, or a new one if its shape differs, because a shared storage can't grow on the device."""
    return value if value.shape == shape else value.new_empty(shape)


def _drop(own: Round, value: Any, _other: Any, _n: int) -> None:
    own.values = [each for each in own.values if each is not value]


def _read(own: Round, value: Any, _other: Any, _n: int) -> None:
    own.seen.append(repr(value.detach().float().sum().item()))


OPERATIONS: dict[str, Operation] = {
    "add": _pure(lambda v, w, _n: v + w),
    "sub": _pure(lambda v, w, n: torch.sub(v, w, alpha=n)),
    "mul": _pure(lambda v, w, _n: v * w),
    "div": _pure(lambda v, w, _n: v / (w.abs() + 1)),
    "maximum": _pure(lambda v, w, _n: torch.maximum(v, w)),
    "where": _pure(lambda v, w, _n: torch.where(v > w, v, w)),
    "scale": _pure(lambda v, _w, n: v * (n / 3)),
    "shift": _pure(lambda v, _w, n: n - v),
    "power": _pure(lambda v, _w, n: v.abs().add(0.5) ** n),
    "tanh": _pure(lambda v, _w, _n: v.tanh()),
    "gelu": _pure(lambda v, _w, _n: functional.gelu(v)),
    "relu": _pure(lambda v, _w, _n: v.relu()),
    "softmax": _pure(lambda v, _w, _n: v.softmax(-1)),
    "log softmax": _pure(lambda v, _w, _n: v.log_softmax(0)),
    "layer norm": _pure(lambda v, _w, _n: functional.layer_norm(v, v.shape[-1:])),
    "dropout": _pure(lambda v, _w, _n: functional.dropout(v, 0.3)),
    "noise": _pure(lambda v, _w, _n: v + torch.rand_like(v)),
    "sum": _pure(lambda v, _w, n: v.sum(n % 2, keepdim=True)),
    "mean": _pure(lambda v, _w, _n: v.mean(-1, keepdim=True)),
    "variance": _pure(lambda v, _w, _n: v.var(0, keepdim=True)),
    "norm": _pure(lambda v, _w, _n: v.norm(dim=1, keepdim=True)),
    "cumsum": _pure(lambda v, _w, _n: v.cumsum(0)),
    "sort": _pure(lambda v, _w, _n: v.sort(-1)[0]),
    "largest": _pure(lambda v, _w, _n: v.max(0, keepdim=True)[0]),
    "filled": _pure(lambda v, _w, n: v.masked_fill(v > 1, n)),
    "clamped": _pure(lambda v, _w, n: v.clamp(min=n / 4)),
    "matrix product": _pure(lambda v, w, _n: v @ w.t()),
    "addmm": _pure(lambda v, w, n: torch.addmm(v[:, :1], v, w.t(), alpha=n)),
    # Copies, because the device saves both for the backward pass, and the CPU only one if it needs no more.
    "linear": _pure(lambda v, w, _n: functional.linear(v.clone(), w.clone())),
    "einsum": _pure(lambda v, w, _n: torch.einsum("ij,kj->ik", v, w)),
    "loss": _pure(lambda v, w, _n: functional.mse_loss(v, w.to(v.dtype))[None, None]),
    "cross entropy": _pure(lambda v, w, _n: functional.cross_entropy(v, w.softmax(-1))[None, None]),
    "cat": _pure(lambda v, w, _n: torch.cat([v[:2], w[1:]])),
    "stack": _pure(lambda v, w, n: torch.stack([v, w], 1)[:, n % 2]),
    "pad": _pure(lambda v, _w, n: functional.pad(v, (1, 0), value=float(n))),
    "roll": _pure(lambda v, _w, n: v.roll(n, 0)),
    "flip": _pure(lambda v, _w, _n: v.flip(1)),
    "gather": _pure(lambda v, w, _n: v.gather(0, w.long().abs() % len(v))),
    "index": _pure(lambda v, _w, n: v[[0, n % len(v), 0]]),
    "masked": _pure(lambda v, w, _n: v[w > 0][None]),
    "together": _pure(lambda v, w, _n: torch._foreach_add([v, w], 0.25)[1]),  # noqa: SLF001
    "long": _pure(lambda v, _w, _n: (v * 3).long().float()),
    "bfloat16": _pure(lambda v, _w, _n: v.bfloat16()),
    "float": _pure(lambda v, _w, _n: v.float()),
    "double": _pure(lambda v, _w, _n: v.double().cos().float()),
    "transpose": _pure(lambda v, _w, _n: v.t()),
    "rows": _pure(lambda v, _w, n: v[n % len(v) :]),
    "row": _pure(lambda v, _w, n: v[n % len(v)].unsqueeze(0)),
    "columns": _pure(lambda v, _w, n: v[:, :: 1 + n % 2]),
    "expanded": _pure(lambda v, _w, _n: v[:1].expand(3, -1)),
    "reshaped": _pure(lambda v, _w, _n: v.reshape(v.shape[::-1])),
    "viewed": _pure(lambda v, _w, _n: v.view(1, -1)),
    "diagonal": _pure(lambda v, _w, _n: v.diagonal()[None]),
    "chunk": _pure(lambda v, _w, _n: v.chunk(2, 1)[0]),
    "unfold": _pure(lambda v, _w, _n: v.unfold(0, 2, 1)[:, 0]),
    # Not of few elements, because some operators of the CPU leave a storage that is larger than their result.
    "strided": _pure(lambda v, _w, _n: v.as_strided((2, 2), (1, 2), 1) if v.numel() > 4 else v.detach()),
    "detached": _pure(lambda v, _w, _n: v.detach()),
    "leaf": _pure(lambda v, _w, _n: v.detach().clone().requires_grad_()),
    "parameter": _pure(lambda v, _w, _n: torch.nn.Parameter(v.detach())),
    "clone": _pure(lambda v, _w, _n: v.clone()),
    "contiguous": _pure(lambda v, _w, _n: v.t().contiguous()),
    "deepcopy": _pure(lambda v, _w, _n: copy.deepcopy(v)),
    "there and back": lambda own, v, _w, _n: v.to("cpu", copy=True).to(own.where, copy=True),
    "loaded": _loaded,
    "empty like": _pure(lambda v, _w, n: torch.full_like(v, n)),
    "add_": _change(lambda v, _w, n: v.add_(n)),
    "mul_": _change(lambda v, w, _n: v.mul_(w)),
    "sub_": _without_gradient(lambda v, w, _n: v.sub_(w)),
    "lerp_": _without_gradient(lambda v, w, n: v.lerp_(w, n / 8)),
    "sigmoid_": _change(lambda v, _w, _n: v.sigmoid_()),
    "relu_": _change(lambda v, _w, _n: functional.relu_(v)),
    "zero_": _without_gradient(lambda v, _w, _n: v.zero_()),
    "copy_": _change(lambda v, w, _n: v.copy_(w)),
    "copy_ of a part": _without_gradient(lambda v, w, n: v[n % len(v)].copy_(w[0])),
    "fill_": _change(lambda v, _w, n: v[n % len(v)].fill_(n)),
    "assigned column": _change(lambda v, w, _n: v.__setitem__((slice(None), 0), w[0, 0].clone())),
    "assigned by mask": _change(lambda v, w, n: v.__setitem__(w > 0, float(n))),
    "assigned by index": _change(lambda v, _w, n: v.__setitem__([0, n % len(v)], float(n))),
    "index_add_": _change(lambda v, w, n: v.index_add_(0, _rows(v, n), w[:2], alpha=0.5)),
    "masked_fill_": _without_gradient(lambda v, w, n: v.masked_fill_(w > 0, n)),
    "clamp_": _change(lambda v, _w, n: v.clamp_(max=n)),
    "t_": _without_gradient(lambda v, _w, _n: v.detach_().t_()),
    "data": _change(lambda v, _w, _n: v.data.mul_(0.5)),
    "new data": _new_data,
    "mul_ together": _without_gradient(lambda v, w, n: torch._foreach_mul_([v, w], 1 + n / 16)),
    "mul_ by pairs": _without_gradient(lambda v, w, _n: torch._foreach_mul_([v, v.clone()], [w, w])),
    "sum as an output": _without_gradient(lambda v, w, n: torch.add(v, n, out=_of_shape(w, v.shape))),
    "rows as an output": _without_gradient(
        lambda v, w, n: torch.index_select(v, 0, _rows(v, n), out=_of_shape(w, (2, v.shape[1])))
    ),
    "bernoulli_": _without_gradient(lambda v, _w, _n: v.bernoulli_(0.5)),
    "autocast": _under_autocast,
    "saved on the host": _saved_on_host,
    "checkpoint": _checkpointed,
    "hook": _hook,
    "hook of a leaf": _leaf_hook,
    "retained": _change(lambda v, _w, _n: v.retain_grad()),
    "backward": _backward,
    "gradient": _gradient,
    "drop": _drop,
    "read": _read,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
