"""Steps that come again are followed instead of recorded: the same bits, bytes and counts, whatever comes between."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from neurontools.runtime.capture import following as following_module
from neurontools.runtime.capture.following import following
from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.memory import Category

Tensor = torch.Tensor
Step = Callable[[int], Any]
MANY = 16


@pytest.fixture(autouse=True)
def _nothing_expected(xla: Any) -> Iterator[None]:
    following.forget_all()
    yield
    xla.flush_all("Test")
    following.forget_all()


def followed() -> int:
    return metrics.counters.get("FollowedGraph", 0)


def is_following() -> bool:
    return following.ahead is not None


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


@pytest.mark.parametrize("name", changes())
def test_whatever_a_step_does_the_bits_are_those_of_the_cpu(xla: Any, name: str) -> None:
    expected = train("cpu", lambda: None, changes()[name])
    before = followed()
    got = train("xla", lambda: xla.flush_all("Test"), changes()[name])
    assert len(got) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert followed() > before


def test_steps_are_followed_after_a_few(xla: Any) -> None:
    before = followed()
    train("xla", lambda: xla.flush_all("Test"))
    assert followed() - before >= MANY - 6


def test_a_graph_that_is_asked_for_is_there(xla: Any) -> None:
    model, _, value, _ = make("xla")
    expected = None
    for _ in range(8):
        result = model(value)
        expected = expected if expected is not None else list(xla.cores[0].graph.key)
        xla.flush_all("Test")
        del result
    before = followed()
    result = model(value)
    assert is_following()
    assert xla.cores[0].graph.key == expected
    assert not is_following()
    xla.flush_all("Test")
    assert followed() == before
    assert result.shape == (5, 3)


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


def test_nothing_of_a_followed_step_is_left(xla: Any) -> None:
    train("xla", lambda: xla.flush_all("Test"))
    gc.collect()
    buffers.drain()
    count, level = len(buffers.by_address), xla.cores[0].memory.total_bytes
    for name in ("a hidden value is kept", "one more operator", "an operator that runs at once"):
        train("xla", lambda: xla.flush_all("Test"), changes()[name])
    gc.collect()
    xla.flush_all("Test")
    buffers.drain()
    assert len(buffers.by_address) == count
    # Programs that were made for the changes stay loaded.
    code = sum(xla.cores[0].memory.levels[c] for c in (Category.MODEL_CODE, Category.SCRATCHPAD))
    assert xla.cores[0].memory.total_bytes - code <= level


@pytest.mark.parametrize("most", [1, 2, 32])
def test_graphs_that_take_turns_are_followed_in_turn(xla: Any, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(following_module, "_MOST_COURSES", most)
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


def test_losses_that_are_all_kept_stay_what_they_were(xla: Any) -> None:
    model, _, value, _ = make("xla")
    kept, expected = [], []
    for number in range(MANY):
        kept.append(model(value).sum().mul(number))
        xla.flush_all("Test")
    reference, _, value, _ = make("cpu")
    expected = [reference(value).sum().mul(number) for number in range(MANY)]
    assert [k.item() for k in kept] == [e.item() for e in expected]


def test_inputs_of_another_shape_place_or_type_are_no_followed_step(xla: Any) -> None:
    def step(value: Tensor) -> Tensor:
        return value.mul(2).add(1).relu().sub(3).sum(0)

    value = torch.randn(6, 4)
    views = [value[:4], value[1:5], value[:4].double(), value[:4].t(), value[:2], value[:4].clone(), value[2:]]
    on_device = value.to("xla")
    views_there = [*(on_device[a:b] for a, b in ((0, 4), (1, 5))), on_device[:4].double(), on_device[:4].t()]
    views_there += [on_device[:2], on_device[:4].clone(), on_device[2:]]
    for _ in range(6):
        result = step(on_device[:4])
        xla.flush_all("Test")
        del result
    for expected, there in zip(views, views_there, strict=True):
        for _ in range(2):
            result = step(there)
            xla.flush_all("Test")
            assert torch.equal(result.cpu(), step(expected))


def test_an_exception_in_a_followed_call_leaves_what_came_before_it(xla: Any) -> None:
    value = torch.arange(4.0).to("xla")

    def step() -> Tensor:
        return value.mul(2).add(1).relu().sub(3)

    for _ in range(6):
        kept = step()
        xla.flush_all("Test")
        del kept
    begun = value.mul(2).add(1)
    ahead = following.ahead
    assert ahead is not None

    def strike(_arguments: Any, _keywords: Any) -> Any:
        raise KeyboardInterrupt

    take, ahead.take = ahead.take, strike
    with pytest.raises(KeyboardInterrupt):
        begun.relu()
    ahead.take = take
    assert begun.relu().sub(3).tolist() == [-2.0, 0.0, 2.0, 4.0]


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_give_the_bits_of_the_cpu(xla: Any, seed: int) -> None:
    """Steps of random operators: most are alike, some have one more, less or another, or a mark in the middle."""
    draw = random.Random(seed)
    operators: list[Callable[..., Any]] = [
        lambda a, b: a + b,
        lambda a, b: a * b,
        lambda a, _: a.tanh(),
        lambda a, _: a.t().contiguous(),
        lambda a, b: torch.where(a > b, a, b),
        lambda a, b: torch.cat([a[:2], b[2:]]),
        lambda a, _: a.add_(0.5),
        lambda a, b: torch._foreach_add([a, b], 0.25)[1],
        lambda a, b: a.mm(b).clamp(-1, 1),
        lambda a, _: a.softmax(-1),
        lambda a, _: a[1:].sum(0).expand(4, 4) * 1.0,
        lambda a, _: a.max(0)[0].expand(4, 4).clone(),
        lambda a, _: torch.native_layer_norm(a, [4], None, None, 1e-5)[0],
        lambda a, _: a.masked_fill(a > 1, 0.5),
    ]
    usual = [(draw.choice(operators), draw.randrange(4), draw.randrange(4), draw.randrange(4)) for _ in range(12)]
    steps = []
    for number in range(30):
        step = list(usual)
        if number >= 10 and draw.random() < 0.25:
            where = draw.randrange(len(step))
            other = (draw.choice(operators), draw.randrange(4), draw.randrange(4), draw.randrange(4))
            step[where : where + draw.randrange(2)] = [other] * draw.randrange(1, 3)
        steps.append((step, draw.randrange(len(step)) if number >= 10 and draw.random() < 0.15 else None))

    def run(where: str, mark: Callable[[], None]) -> list[Tensor]:
        torch.manual_seed(seed)
        values = [torch.randn(4, 4).to(where) for _ in range(4)]
        seen = []
        for step, marked in steps:
            for number, (operator, first, second, target) in enumerate(step):
                values[target] = operator(values[first], values[second])
                if number == marked:
                    seen.append(values[target].clone())
                    mark()
            mark()
        return [v.cpu() for v in values + seen]

    expected = run("cpu", lambda: None)
    before = followed()
    got = run("xla", lambda: xla.flush_all("Test"))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert followed() > before
