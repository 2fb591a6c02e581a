"""Steps that come again are followed instead of recorded: the same bits, bytes and counts, whatever comes between."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from neurontools.runtime.capture import replay
from neurontools.runtime.capture.replay import replayer
from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.tensors.buffers import Category, buffers
from neurontools.runtime.tensors.device import device
from tests.harness.examples import examples
from tests.harness.seeding import seed

Tensor = torch.Tensor
MANY = 16


@pytest.fixture(autouse=True)
def _nothing_expected(xla: Any) -> Iterator[None]:
    replayer.drop_all_traces()
    yield
    xla.flush_all("Test")
    replayer.drop_all_traces()


def followed() -> int:
    return metrics.counters.get("FollowedGraph", 0)


def make(where: str, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer, Tensor, Tensor]:
    torch.manual_seed(seed)
    model: nn.Module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    value, target = torch.randn(5, 6), torch.randint(0, 3, (5,))
    model = model.to(where)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01), value.to(where), target.to(where)


def train(where: str, mark: Callable[[], None], change: Callable[..., Any] | None = None) -> list[Tensor]:
    """Losses and parameters of many steps; `change` gets the step's number, model, hidden values and optimizer."""
    model, optimizer, value, target = make(where)
    losses, kept = [], []
    for number in range(MANY):
        optimizer.zero_grad()
        hidden = model[:2](value)  # type: ignore[index]
        if change is not None:
            kept.append(change(number, model, hidden, optimizer))
        result = model[2:](hidden)  # type: ignore[index]
        loss = nn.functional.cross_entropy(result, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        del hidden, result, loss
        mark()
    found = [*losses, *(p.detach() for p in model.parameters()), *(k for k in kept if isinstance(k, Tensor))]
    return [tensor.cpu() for tensor in found]


def changes() -> dict[str, Callable[[int, Any, Tensor, Any], Any]]:
    """What scripts do every now and then in a step."""

    def at(*numbers: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return lambda do: lambda number, *rest: do(number, *rest) if number in numbers else None

    def learning_rate(number: int, _model: Any, _hidden: Tensor, optimizer: Any) -> None:
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + number)

    def clipped(_number: int, model: Any, _hidden: Tensor, _optimizer: Any) -> Any:
        return nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    def frozen(number: int, model: Any, _hidden: Tensor, _optimizer: Any) -> None:
        model[0].weight.requires_grad_(number % 2 == 0)

    def evaluated(_number: int, model: Any, hidden: Tensor, _optimizer: Any) -> Tensor:
        with torch.no_grad():
            result: Tensor = model[2:](hidden).sum()
        return result

    return {
        "nothing": lambda *_: None,
        "each hidden value is kept": lambda _n, _m, hidden, _o: hidden.detach(),
        "another learning rate each time": learning_rate,
        "a hidden value is kept": at(7, 8)(lambda _n, _m, hidden, _o: hidden.detach()),
        "a hidden value is read": at(6, 9)(lambda _n, _m, hidden, _o: hidden.sum().item()),
        "a part of it is kept": at(7)(lambda _n, _m, hidden, _o: hidden.detach()[1:3]),
        "one more operator": at(5, 6, 11)(lambda _n, _m, hidden, _o: hidden.detach().mul(2).sum()),
        "gradients are clipped": at(8)(clipped),
        "a layer is frozen": at(8, 9)(frozen),
        "an evaluation": at(5, 10)(evaluated),
        "an evaluation each time": evaluated,
        "it is changed in place": at(7)(lambda _n, _m, hidden, _o: hidden.data.mul_(1.5).sum()),
        "an operator that runs at once": at(7, 8)(lambda _n, _m, hidden, _o: hidden.detach().nonzero()),
        "an operator that runs at once, each time": lambda _n, _m, hidden, _o: hidden.detach().nonzero().sum(),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", changes())
def test_whatever_a_step_does_the_bits_are_those_of_the_cpu(xla: Any, name: str) -> None:
    expected = train("cpu", lambda: None, changes()[name])
    before = followed()
    got = train("xla", lambda: xla.flush_all("Test"), changes()[name])
    assert len(got) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert followed() - before >= (MANY - 6 if name == "nothing" else 1), "after a few steps"


def test_executions_flops_and_bytes_are_counted_as_of_recorded_steps(xla: Any) -> None:
    model, optimizer, value, target = make("xla")
    statistics, memory = xla.cores[0].statistics, xla.cores[0].memory

    def step() -> tuple[int, ...]:
        flops, executions = statistics.flops_total, statistics.executions_total
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(value), target).backward()
        optimizer.step()
        xla.flush_all("Test")
        buffers.drain()
        return statistics.flops_total - flops, statistics.executions_total - executions, *memory.levels

    recorded = [step() for _ in range(3)][-1]
    before = followed()
    assert {step() for _ in range(8)} == {recorded}
    assert followed() - before >= 6
    # Three products of each layer but the first, whose input needs no gradient: 2 FLOPs for each multiplication.
    assert recorded[:2] == (2 * 5 * (2 * 6 * 8 + 3 * 8 * 8 + 3 * 8 * 3), 1)
    parameters = sum(p.nbytes for p in model.parameters())
    assert memory.levels[Category.CONSTANTS] >= parameters


@pytest.mark.parametrize("most", [1, 2, 32])
def test_graphs_that_take_turns_are_followed_in_turn(xla: Any, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(replay, "MAX_TRACES", most)
    value, results = torch.arange(6.0), []
    there = value.to("xla")

    def step(value: Tensor, turn: int) -> Tensor:
        for _ in range(turn + 3):
            value = value.mul(0.5).add(turn).relu()
        return value

    before = followed()
    for number in range(40):
        results.append(step(there, number % 4))
        xla.flush_all("Test")
    assert all(torch.equal(r.cpu(), step(value, n % 4)) for n, r in enumerate(results))
    # Where there is room for one, each takes the place of the one before; it may still be followed at once.
    assert followed() - before > (20 if most == 32 else -1)


def test_inputs_of_another_shape_place_or_type_are_no_followed_step(xla: Any) -> None:
    def step(value: Tensor) -> Tensor:
        return value.mul(2).add(1).relu().sub(3).sum(0)

    def inputs(value: Tensor) -> list[Tensor]:
        first = value[:4]
        return [first, value[1:5], first.double(), first.t(), value[:2], first.clone(), value[2:]]

    value = torch.randn(6, 4)
    on_device = inputs(value.to("xla"))
    for _ in range(6):
        result = step(on_device[0])
        xla.flush_all("Test")
        del result
    for expected, there in zip(inputs(value), on_device, strict=True):
        for _ in range(2):
            result = step(there)
            xla.flush_all("Test")
            assert torch.equal(result.cpu(), step(expected))


def column(where: str) -> Tensor:
    """A column whose dimension of size 1 has another stride than a contiguous tensor's."""
    return torch.arange(4.0).reshape(1, 4).to(where).t()


def image(where: str) -> Tensor:
    """An image as vision transformers make it of their patches: neither contiguous nor plain channels-last."""
    return torch.arange(512.0).reshape(1, 16, 32).to(where).transpose(-1, -2).reshape(1, 32, 4, 4)


@pytest.mark.parametrize("make", [column, image])
@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x.masked_fill(x > 1, 0.5),
        lambda x: x / 1.0,
        lambda x: x > 1,
        lambda x: x + x,
        lambda x: x.relu(),
        lambda x: x.clone(),
        lambda x: torch.where(x > 1, x, x),
        lambda x: torch._foreach_mul([x, x], 2.0)[1],
        lambda x: torch.rand_like(x) > 2,
        lambda x: x.long() // x.long().clamp(min=1),
        lambda x: x.sort(0)[1],
    ],
)
def test_strides_of_dimensions_of_size_1_are_those_of_the_cpu(
    xla: Any, make: Callable[[str], Tensor], operation: Callable[[Tensor], Tensor]
) -> None:
    expected, result = operation(make("cpu")), operation(make("xla"))
    assert (result.shape, result.stride()) == (expected.shape, expected.stride())
    assert torch.equal(result.cpu(), expected)


def convolution_of(kind: Any, *arguments: Any, dimensions: int = 2, **keywords: Any) -> Any:
    return lambda: (kind(*arguments, **keywords), torch.rand(2, arguments[0], *[5] * dimensions))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        convolution_of(nn.Conv2d, 4, 8, 3, padding=1),
        convolution_of(nn.Conv2d, 1, 8, 3),
        convolution_of(nn.Conv2d, 4, 4, 3, groups=4, bias=False),
        convolution_of(nn.Conv3d, 4, 6, 3, dimensions=3),
        convolution_of(nn.ConvTranspose2d, 4, 8, 3, stride=2),
        convolution_of(nn.ConvTranspose3d, 4, 6, 2, dimensions=3),
        convolution_of(nn.Conv2d, 4, 8, 3, padding=1, padding_mode="reflect"),
    ],
)
@pytest.mark.parametrize("changed", ["model", "images", "both"])
def test_strides_of_channels_last_models_are_those_of_the_cpu(
    xla: Any, make: Callable[[], tuple[nn.Module, Tensor]], changed: str
) -> None:
    layer, images = make()
    channels_last: Any = torch.channels_last if images.dim() == 4 else torch.channels_last_3d
    pool = nn.MaxPool2d(2) if images.dim() == 4 else nn.MaxPool3d(2)
    norm: Any = nn.BatchNorm2d if images.dim() == 4 else nn.BatchNorm3d
    model: Any = nn.Sequential(layer, norm(layer.out_channels), nn.ReLU(), pool)
    if changed != "images":
        model.to(memory_format=channels_last)
    if changed != "model":
        images = images.to(memory_format=channels_last)
    seen = []
    for where in ("cpu", "xla"):
        own, value = copy.deepcopy(model).to(where), images.detach().to(where).requires_grad_()
        results: list[Any] = [value]
        for part in own:
            results.append(part(results[-1]))
        results[-1].square().sum().backward()
        results += [each.grad for each in (value, *own.parameters())]
        seen.append([(each.stride(), each.detach().cpu()) for each in results])
    for (stride, numbers), (expected_stride, expected) in zip(*seen, strict=True):
        assert stride == expected_stride
        torch.testing.assert_close(numbers, expected)


def test_strides_of_normalized_images_with_swapped_sides_are_those_of_the_cpu(xla: Any) -> None:
    norm, value = nn.BatchNorm2d(4), torch.rand(2, 4, 3, 5)
    swapped = copy.deepcopy(norm).to("xla")(value.to("xla").transpose(2, 3))
    assert swapped.stride() == norm(value.transpose(2, 3)).stride()


def test_group_norm_takes_a_scaled_image_of_patches(xla: Any) -> None:
    result = nn.functional.group_norm(image("xla") / 1.0, 8)
    assert torch.equal(result.cpu(), nn.functional.group_norm(image("cpu") / 1.0, 8))


Step = tuple[str, int, int, int]
Operation = Callable[[list[torch.Tensor], int, int, int], None]


def binary(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Operation:
    def apply(values: list[torch.Tensor], i: int, j: int, _n: int) -> None:
        a, b = values[i % len(values)], values[j % len(values)]
        if a.shape == b.shape:
            values.append(function(a, b))

    return apply


def unary(function: Callable[[torch.Tensor, int], torch.Tensor]) -> Operation:
    def apply(values: list[torch.Tensor], i: int, _j: int, n: int) -> None:
        values.append(function(values[i % len(values)], n))

    return apply


def in_place(function: Callable[[torch.Tensor, int], object]) -> Operation:
    def apply(values: list[torch.Tensor], i: int, _j: int, n: int) -> None:
        value = values[i % len(values)]
        if not value._is_view() or value.stride(-1) != 0:
            function(value, n)

    return apply


def drop(values: list[torch.Tensor], i: int, _j: int, _n: int) -> None:
    if len(values) > 1:
        del values[i % len(values)]


OPERATIONS: dict[str, Operation] = {
    "add": binary(torch.add),
    "mul": binary(torch.mul),
    "maximum": binary(torch.maximum),
    "tanh": unary(lambda v, _n: v.tanh()),
    "scale": unary(lambda v, n: v * (n / 3)),
    "shift": unary(lambda v, n: v + n),
    "product": unary(lambda v, _n: v @ v.t()),
    "softmax": unary(lambda v, _n: v.softmax(-1)),
    "where": binary(lambda a, b: torch.where(a > b, a, b)),
    "cat": binary(lambda a, b: torch.cat([a[:2], b[2:]])),
    "added together": binary(lambda a, b: torch._foreach_add([a, b], 0.25)[1]),
    "norm": unary(lambda v, _n: torch.native_layer_norm(v, v.shape[-1:], None, None, 1e-5)[0]),
    "largest": unary(lambda v, _n: v.max(0)[0].expand(3, -1).clone()),
    "filled": unary(lambda v, _n: v.masked_fill(v > 1, 0.5)),
    "cumsum": unary(lambda v, _n: v.cumsum(0)),
    "transpose": unary(lambda v, _n: v.t()),
    "row": unary(lambda v, n: v[n % v.shape[0]].unsqueeze(0)),
    "columns": unary(lambda v, n: v[:, n % v.shape[1] :]),
    "contiguous": unary(lambda v, _n: v.contiguous()),
    "bfloat16": unary(lambda v, _n: v.bfloat16().float()),
    "parameter": unary(lambda v, _n: nn.Parameter(v).detach()),
    "is zero": unary(lambda v, _n: v.logical_not().float()),
    "noise": unary(lambda v, _n: v + torch.rand_like(v)),
    "add_": in_place(lambda v, n: v.add_(n)),
    "sigmoid_": in_place(lambda v, _n: v.sigmoid_()),
    "fill_row": in_place(lambda v, n: v[n % v.shape[0]].fill_(n)),
    "zero_": in_place(lambda v, _n: v.zero_()),
    "drop": drop,
}
STEP = st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 9), st.integers(0, 9), st.integers(-3, 5))
QUIET = settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])


REPEATED = 10


def resident_bytes() -> int:
    levels = buffers.account_of(device.cores[0]).by_field()
    return levels["constants_bytes"] + levels["tensors_bytes"]


def run(
    where: str, steps: list[Step], marks: set[int], changes: dict[int, tuple[int, Step]], mark: Callable[[], None]
) -> list[Any]:
    """Runs the steps again and again on values that begin anew; in some rounds one of them is another one."""
    seen: list[Any] = []
    before = resident_bytes()
    for repeated in range(REPEATED):
        seed(5)
        generator = torch.Generator().manual_seed(repeated)
        values = [torch.randn(3, 4, generator=generator).to(where), torch.randn(4, 4, generator=generator).to(where)]
        seed(6 + repeated)
        changed_at, other = changes.get(repeated, (-1, None))
        for number, step in enumerate(steps):
            name, i, j, n = other if number == changed_at and other is not None else step
            OPERATIONS[name](values, i, j, n)
            if number in marks and repeated % 4 == 3:
                mark()
        mark()
        storages = {v.untyped_storage().data_ptr(): v.untyped_storage().nbytes() for v in values}
        assert resident_bytes() - before == (0 if where == "cpu" else sum(storages.values()))
        seen += [(v.shape, v.stride(), v.cpu()) for v in values]
    return seen


@QUIET
@given(
    st.lists(STEP, max_size=25),
    st.sets(st.integers(0, 24)),
    st.dictionaries(st.integers(4, REPEATED - 1), st.tuples(st.integers(0, 24), STEP), max_size=3),
)
def test_random_steps_equal_the_cpu_and_give_all_bytes_back(
    xla: Any, steps: list[Step], marks: set[int], changes: dict[int, tuple[int, Step]]
) -> None:
    gc.collect()
    xla.flush_all("Test")
    before = resident_bytes()
    expected = run("cpu", steps, marks, changes, lambda: None)
    got = run("xla", steps, marks, changes, lambda: xla.flush_all("Test"))
    for (shape, stride, value), (got_shape, got_stride, got_value) in zip(expected, got, strict=True):
        assert (got_shape, got_stride) == (shape, stride)
        assert torch.equal(value.nan_to_num(), got_value.nan_to_num())
    xla.flush_all("Test")
    assert resident_bytes() == before
